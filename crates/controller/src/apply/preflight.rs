//! The preflight of an action. It reads every object that may refuse the action again from the API server, not from the cache of
//! the watches. An answer of the last quarter of a second counts as live.

use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::time::Instant;

use super::{Applier, ApplyError, lately};
use crate::cache::State;
use crate::cache::fold::Ingest;
use crate::calls::bounded_opt;
use nrh_api::view::guard::Guarded;
use nrh_api::view::pods;
use nrh_api::{
    CONFIG_NAME, NodeCommand, NodeRemediation, NodeRuntimeHealth, RemediationConfig, RemediationPolicy, convert,
};
use nrh_core::engine;
use nrh_core::fault::{FaultType, PodRef};
use nrh_core::matching::PodSeen;
use nrh_core::plan::Operation;
use nrh_core::policy::{ActionType, asked_keys, asks_of_pods};
use nrh_core::remediation::{Remediation, RemediationFault, StepRecord};
use nrh_core::snapshot::Snapshot;

/// The action that a preflight is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreflightRequest<'a> {
    /// The remediation.
    pub remediation: &'a str,
    /// The operation id of its step.
    pub operation: &'a str,
    /// The node.
    pub node: &'a str,
    /// Whether the action gives a command. If so, the preflight also reads the node's NodeCommand.
    pub is_order: bool,
    /// The version of the ledger in which the controller stored the remediation's slot.
    pub paid_from: &'a str,
}

/// What the preflight read, when nothing in it refuses the action.
#[derive(Debug)]
pub(super) struct Live {
    /// The node.
    pub node: Node,
    /// Its report.
    pub report: NodeRuntimeHealth,
    /// Its NodeCommand, if the action gives a command and the object exists.
    pub command: Option<NodeCommand>,
    /// The remediation in its current state.
    pub remediation: Remediation,
    /// The operation, as the engine decides it on what was read.
    pub operation: Operation,
}

/// What the preflight read.
struct Read {
    node: Option<Node>,
    report: Option<NodeRuntimeHealth>,
    command: Option<NodeCommand>,
    policy: Option<lately::Read<RemediationPolicy>>,
    config: Option<lately::Read<Guarded<RemediationConfig>>>,
    remediation: Option<NodeRemediation>,
    pod: Option<LivePod>,
}

impl Read {
    /// Stores what was read in the cache. The answer to an earlier read changes nothing: what the watch has shown since is newer.
    fn fold_in(&self, state: &mut State, now: Instant) {
        fn fold<K: Ingest + Clone>(object: Option<&K>, state: &mut State, now: Instant) {
            if let Some(object) = object.cloned() {
                object.fold(state, now);
            }
        }
        fold(self.node.as_ref(), state, now);
        fold(self.report.as_ref(), state, now);
        fold(self.command.as_ref(), state, now);
        fold(self.policy.as_ref().filter(|read| read.is_new).map(|read| &read.object), state, now);
        fold(self.config.as_ref().filter(|read| read.is_new).map(|read| &read.object), state, now);
        fold(self.remediation.as_ref(), state, now);
    }
}

/// The pod of a fault.
enum LivePod {
    /// The API server has the pod.
    There(PodRef, Box<Pod>),
    /// The API server no longer has the pod. The second value is what the controller saw of it last.
    Gone(PodRef, PodSeen),
}

impl LivePod {
    /// Puts what was read in the place of what the controller has read before.
    fn show_in(self, snapshot: &mut Snapshot) {
        let (named, seen) = match self {
            Self::Gone(named, seen) => (named, seen),
            Self::There(named, pod) => {
                // A successor is another pod, and the next read of the node shows it.
                if let Some(suspect) = pods::suspect(&pod, snapshot.now) {
                    snapshot.pods.retain(|known| known.pod != named);
                    snapshot.pods.push(suspect);
                }
                (named, PodSeen::Read(pods::traits(&pod, &asked_keys(&snapshot.policies))))
            }
        };
        snapshot.pods_seen.insert(named, seen);
    }
}

impl Applier {
    /// Reads the objects of the action again, and has the engine decide once more. The answers are in the cache then, so that the
    /// next decision is based on a refusal.
    ///
    /// The ledger must still be the version that this process wrote. Another leader may have taken over unnoticed while this
    /// machine, with all its clocks, stood still. Without this check, this process would spend a slot that the next leader may
    /// have freed because the remediation was not visible then. This process knows that the remediation exists before it reads
    /// the ledger. So if the version is unchanged, every later leader finds the remediation and keeps its slot.
    pub(super) async fn preflight(&self, look: PreflightRequest<'_>) -> Result<Live, ApplyError> {
        let PreflightRequest { remediation: name, operation, node, paid_from, .. } = look;
        let policy = self.cache.lock().snapshot.remediations.get(name).map(|known| known.policy.clone());
        let gone = |what: &str, name: &str| ApplyError::NotNow(format!("{what} {name} is gone"));
        let policy = policy.ok_or_else(|| gone("NodeRemediation", name))?;
        let read = Box::pin(self.read_again(look, &policy));
        let ledger = async { Ok(self.lately.ledger(&self.calls).await?) };
        let (read, ledger) = futures::try_join!(read, ledger)?;
        read.fold_in(&mut self.cache.lock(), Instant::now());
        if ledger.as_deref() != Some(paid_from) {
            let found = ledger.unwrap_or_else(|| "none".to_owned());
            return Err(ApplyError::Overtaken { expected: paid_from.to_owned(), found });
        }
        self.not_suspended()?;
        read.policy.ok_or_else(|| gone("RemediationPolicy", &policy))?;
        let found = read.node.ok_or_else(|| gone("Node", node))?;
        let report = read.report.ok_or_else(|| gone("NodeRuntimeHealth", node))?;
        let remediation = read.remediation.as_ref().map(convert::remediation);
        let remediation = remediation.ok_or_else(|| gone("NodeRemediation", name))?;

        let (mut state, now) = (self.cache.lock(), Instant::now());
        if let Some(doubt) = state.admission.doubt(now) {
            return Err(ApplyError::NotNow(doubt));
        }
        state.refresh(now, self.clock.now());
        if let Some(pod) = read.pod {
            pod.show_in(&mut state.snapshot);
        }
        let operation = engine::preflight(&state.snapshot, &self.settings, name, operation);
        let operation = operation.map_err(ApplyError::NotNow)?;
        Ok(Live { node: found, report, command: read.command, remediation, operation })
    }

    /// Checks that nobody has suspended all remediation, by the watch and by what was read. Calls take time, so a caller checks
    /// this immediately before it begins something.
    ///
    /// # Errors
    /// If somebody has: who, and why.
    pub(super) fn not_suspended(&self) -> Result<(), ApplyError> {
        let suspended = self.cache.lock().snapshot.suspended.clone();
        suspended.map_or(Ok(()), |by| {
            Err(ApplyError::NotNow(format!("RemediationConfig {CONFIG_NAME} suspends all remediation: {by}")))
        })
    }

    /// The pod of the fault of a step, if any policy selects by labels or owners, or if the fault is about the pod itself.
    fn asked_pod(&self, remediation: &str, operation: &str) -> Option<PodRef> {
        let state = self.cache.lock();
        let remediation = state.snapshot.remediations.get(remediation)?;
        let step = remediation.attempt(operation)?;
        let fault = remediation.fault(&step.fault_id)?;
        let pod = fault.subject.pod.as_ref().or(step.target.pod.as_ref())?;
        (asks_of_pods(&state.snapshot.policies) || asks_pod(fault, step)).then(|| pod.clone())
    }

    /// The current Node, if it exists. A Node that cannot be read is a refusal, and the next decision is based on that.
    pub(super) async fn node_now(&self, name: &str) -> Result<Option<Node>, ApplyError> {
        let api = self.calls.read::<Guarded<Node>>();
        let found = bounded_opt(|| format!("reading Node {name}"), api.get(name)).await?;
        match found.map(|found| found.0) {
            None => Ok(None),
            Some(Ok(node)) => Ok(Some(node)),
            Some(Err(bad)) => {
                let why = format!("Node {name} cannot be read: {}", bad.why);
                Guarded::<Node>(Err(bad)).fold(&mut self.cache.lock(), Instant::now());
                Err(ApplyError::NotNow(why))
            }
        }
    }

    /// Reads the named pod.
    async fn read_pod(&self, named: Option<PodRef>) -> Result<Option<LivePod>, ApplyError> {
        let Some(named) = named else { return Ok(None) };
        let api = self.calls.read_in::<Pod>(&named.namespace);
        let pod = bounded_opt(|| format!("reading pod {named}"), api.get(&named.name)).await?;
        if let Some(pod) = pod.filter(|pod| pods::names(pod).any(|name| name == named)) {
            return Ok(Some(LivePod::There(named, Box::new(pod))));
        }
        let last = self.cache.lock().known_pods.gone(&named);
        Ok(Some(LivePod::Gone(named, last)))
    }

    /// The current command to the node, if there is one. A command that cannot be read is a refusal, and the next decision is
    /// based on that.
    async fn command_now(&self, node: &str, is_order: bool) -> Result<Option<NodeCommand>, ApplyError> {
        if !is_order {
            return Ok(None);
        }
        let api = self.calls.read::<Guarded<NodeCommand>>();
        match bounded_opt(|| format!("reading NodeCommand {node}"), api.get(node)).await?.map(|found| found.0) {
            None => Ok(None),
            Some(Ok(command)) => Ok(Some(command)),
            Some(Err(bad)) => {
                let why = format!("NodeCommand {node} cannot be read: {}", bad.why);
                Guarded::<NodeCommand>(Err(bad)).fold(&mut self.cache.lock(), Instant::now());
                Err(ApplyError::NotNow(why))
            }
        }
    }

    async fn read_again(&self, look: PreflightRequest<'_>, policy: &str) -> Result<Read, ApplyError> {
        let PreflightRequest { remediation, operation, node, is_order, .. } = look;
        let (calls, pod) = (&self.calls, self.asked_pod(remediation, operation));
        let reports = calls.read::<NodeRuntimeHealth>();
        let all = async {
            Ok(futures::try_join!(
                bounded_opt(|| format!("reading NodeRuntimeHealth {node}"), reports.get(node)),
                self.lately.policy(calls, policy),
                self.lately.config(calls),
                self.lately.remediation(calls, remediation),
            )?)
        };
        let ((report, policy, config, remediation), node, command, pod) =
            futures::try_join!(all, self.node_now(node), self.command_now(node, is_order), self.read_pod(pod))?;
        Ok(Read { node, report, command, policy, config, remediation, pod })
    }
}

/// Whether the preflight of such a step reads the pod of a fault. The deletion of the pod reads it anyway, and its step records
/// what was found.
fn asks_pod(fault: &RemediationFault, step: &StepRecord) -> bool {
    fault.kind == FaultType::StuckDaemonSetPod && !step.action.notifies() && step.action != ActionType::DeletePod
}
