//! The preflight of an action. It reads the objects of the action again from the API server, not from the cache of the watches, and
//! decides again. An answer of the last quarter of a second counts as live.

use std::fmt::Debug;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Resource;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{Applier, ApplyError};
use crate::cache::State;
use crate::cache::fold::Ingest;
use crate::cache::guard::Guardable;
use crate::cache::versions::version_of;
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
use nrh_core::snapshot::TriState;

/// The action that a preflight is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreflightRequest<'a> {
    pub remediation: &'a str,
    /// The operation id of its step.
    pub operation: &'a str,
    pub node: &'a str,
    /// Whether the action gives a command. If so, the preflight also reads the node's NodeCommand.
    pub gives_command: bool,
    /// The version of the ledger in which the controller stored the remediation's slot.
    pub ledger_version: &'a str,
}

/// What the preflight read, when nothing in it refuses the action.
#[derive(Debug)]
pub(super) struct PreflightState {
    pub node: Node,
    pub report: NodeRuntimeHealth,
    /// Its NodeCommand, if the action gives a command and the object exists.
    pub command: Option<NodeCommand>,
    /// The remediation in its current state.
    pub remediation: Remediation,
    /// The operation, as the engine decides it on what was read.
    pub operation: Operation,
}

/// What the preflight read.
#[derive(Default)]
struct Read {
    node: Option<Node>,
    report: Option<NodeRuntimeHealth>,
    command: Option<NodeCommand>,
    policy: Option<RemediationPolicy>,
    config: Option<Guarded<RemediationConfig>>,
    remediation: Option<NodeRemediation>,
    /// The pod that was read, if the action depends on one. `None`: the API server no longer has it.
    pod: Option<(PodRef, Option<Pod>)>,
}

impl Read {
    /// Stores what is newer than the cache, so that this and the next decision are based on it.
    fn fold_in(&self, state: &mut State, asked: Instant) {
        fn fold<K: Ingest + Clone>(object: Option<&K>, state: &mut State, now: Instant) {
            let Some(object) = object else { return };
            // The watch may have shown a later version, or the deletion, while this answer was on its way.
            let known = K::versions(state).latest(&K::key(object.meta()));
            let version = version_of(object.meta());
            if version == 0 || version > known {
                object.clone().fold(state, now);
            }
        }
        let now = Instant::now();
        fold(self.node.as_ref(), state, now);
        fold(self.report.as_ref(), state, now);
        fold(self.command.as_ref(), state, now);
        fold(self.policy.as_ref(), state, now);
        fold(self.config.as_ref(), state, now);
        fold(self.remediation.as_ref(), state, now);
        if let Some((named, pod)) = &self.pod {
            let of_set = pod.as_ref().filter(|pod| state.is_of_daemon_set(pod) == TriState::True);
            let suspect = of_set.and_then(|pod| pods::suspect(pod, state.snapshot.now));
            state.pod_reads.note_pod(named, suspect, asked);
        }
    }

    /// The traits of the pod that policies select by. Those of a pod that is gone are the last known ones.
    fn pod_seen(&self, state: &State) -> Option<(PodRef, PodSeen)> {
        let (named, pod) = self.pod.as_ref()?;
        let seen = match pod {
            Some(pod) => PodSeen::Read(pods::traits(pod, &asked_keys(&state.snapshot.policies))),
            None => state.known_pods.gone(named),
        };
        Some((named.clone(), seen))
    }
}

impl Applier {
    /// Updates everything in the snapshot that depends on time.
    pub(crate) fn refresh(&self, state: &mut State, now: Instant) {
        state.refresh(now, self.clock.now());
        state.snapshot.clock_disputed = self.clock.disputed();
    }

    /// Reads the objects of the action again, and has the engine decide once more.
    ///
    /// The ledger must still be the version that this process wrote. Another leader may have written it while this process was
    /// paused, and may have freed the slot because the remediation did not exist then. The remediation is known to exist before
    /// the ledger is read. So if the version is unchanged, each later leader finds the remediation and keeps its slot.
    pub(super) async fn preflight(&self, request: PreflightRequest<'_>) -> Result<PreflightState, ApplyError> {
        let PreflightRequest { remediation: name, operation, node, ledger_version, .. } = request;
        let asked = Instant::now();
        let policy = self.cache.lock().snapshot.remediations.get(name).map(|known| known.policy.clone());
        let gone = |what: &str, name: &str| ApplyError::NotNow(format!("{what} {name} is gone"));
        let policy = policy.ok_or_else(|| gone("NodeRemediation", name))?;
        let read = Box::pin(self.read_again(request, &policy));
        let ledger = async { Ok(self.lately.ledger(&self.calls).await?) };
        let (read, ledger) = futures::try_join!(read, ledger)?;
        read.fold_in(&mut self.cache.lock(), asked);
        if ledger.as_deref() != Some(ledger_version) {
            let found = ledger.unwrap_or_else(|| "none".to_owned());
            return Err(ApplyError::Overtaken { expected: ledger_version.to_owned(), found });
        }
        self.not_suspended()?;
        if read.policy.is_none() {
            return Err(gone("RemediationPolicy", &policy));
        }
        let mut state = self.cache.lock();
        let now = Instant::now();
        if let Some(not_enforced) = state.admission.not_enforced(now) {
            return Err(ApplyError::NotNow(not_enforced));
        }
        self.refresh(&mut state, now);
        let pod = read.pod_seen(&state);
        state.snapshot.pods_seen.extend(pod);
        let decided = engine::preflight(&state.snapshot, &self.settings, name, operation);
        drop(state);
        let remediation = read.remediation.as_ref().map(convert::remediation);
        Ok(PreflightState {
            node: read.node.ok_or_else(|| gone("Node", node))?,
            report: read.report.ok_or_else(|| gone("NodeRuntimeHealth", node))?,
            command: read.command,
            remediation: remediation.ok_or_else(|| gone("NodeRemediation", name))?,
            operation: decided.map_err(ApplyError::NotNow)?,
        })
    }

    /// Checks that nobody has suspended all remediation, by the watch and by what was read; the error says who has, and why.
    /// Calls take time, so a caller checks this immediately before it begins something.
    pub(super) fn not_suspended(&self) -> Result<(), ApplyError> {
        let suspended = self.cache.lock().snapshot.suspended.clone();
        suspended.map_or(Ok(()), |by| {
            Err(ApplyError::NotNow(format!("RemediationConfig {CONFIG_NAME} suspends all remediation: {by}")))
        })
    }

    /// The pod of the fault of a step, if any policy selects by labels or owners, or if the fault is about the pod itself.
    fn pod_to_read(&self, remediation: &str, operation: &str) -> Option<PodRef> {
        let state = self.cache.lock();
        let remediation = state.snapshot.remediations.get(remediation)?;
        let step = remediation.attempt(operation)?;
        let fault = remediation.fault(&step.fault_id)?;
        let pod = fault.subject.pod.as_ref().or(step.target.pod.as_ref())?;
        (asks_of_pods(&state.snapshot.policies) || needs_pod(fault, step)).then(|| pod.clone())
    }

    /// The current object of this name, if it exists. One that cannot be read is a refusal, and the next decision is based on that.
    pub(super) async fn read_now<K>(&self, name: &str) -> Result<Option<K>, ApplyError>
    where
        K: Guardable + Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug + DeserializeOwned,
    {
        match self.calls.find::<Guarded<K>>(name).await?.map(|found| found.0) {
            None => Ok(None),
            Some(Ok(object)) => Ok(Some(object)),
            Some(Err(bad)) => {
                let why = format!("{} {name} cannot be read: {}", K::KIND, bad.why);
                Guarded::<K>(Err(bad)).fold(&mut self.cache.lock(), Instant::now());
                Err(ApplyError::NotNow(why))
            }
        }
    }

    /// Reads the named pod. A pod of the same name with another uid is its successor: the named one is gone.
    async fn read_pod(&self, named: Option<PodRef>) -> Result<Option<(PodRef, Option<Pod>)>, ApplyError> {
        let Some(named) = named else { return Ok(None) };
        let pod = self.calls.find_in::<Pod>(&named.namespace, &named.name).await?;
        let pod = pod.filter(|pod| pods::names(pod).any(|name| name == named));
        Ok(Some((named, pod)))
    }

    async fn read_again(&self, request: PreflightRequest<'_>, policy: &str) -> Result<Read, ApplyError> {
        let PreflightRequest { remediation, operation, node, gives_command, .. } = request;
        let (calls, pod) = (&self.calls, self.pod_to_read(remediation, operation));
        let all = async {
            Ok(futures::try_join!(
                self.lately.policy(calls, policy),
                self.lately.config(calls),
                self.lately.remediation(calls, remediation),
            )?)
        };
        let command = async { if gives_command { self.read_now(node).await } else { Ok(None) } };
        let ((policy, config, remediation), report, node, command, pod) =
            futures::try_join!(all, self.read_now(node), self.read_now(node), command, self.read_pod(pod))?;
        Ok(Read { node, report, command, policy, config, remediation, pod })
    }
}

/// Whether the preflight of such a step reads the pod of a fault. The deletion of the pod reads it anyway, and its step records
/// what was found.
fn needs_pod(fault: &RemediationFault, step: &StepRecord) -> bool {
    fault.kind == FaultType::StuckDaemonSetPod && !step.action.notifies() && step.action != ActionType::DeletePod
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(version: u32, suspend: bool) -> Option<RemediationPolicy> {
        let object = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy",
            "metadata": {"name": "p", "resourceVersion": version.to_string()},
            "spec": {"mode": "Enforce", "suspend": suspend, "rules": [
                {"name": "r", "match": {"faults": ["HungContainer"], "podSelector": {"matchLabels": {"app": "web"}}},
                    "steps": [{"action": "Notify"}]}]}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn whoever_shares_an_answer_decides_on_it_and_an_older_one_changes_nothing() {
        let (mut state, now) = (State::default(), Instant::now());
        policy(1, false).unwrap().fold(&mut state, now);
        Read { policy: policy(3, true), ..Read::default() }.fold_in(&mut state, now);
        assert!(state.snapshot.policies[0].suspend, "the watch has not shown it yet");
        Read { policy: policy(2, false), ..Read::default() }.fold_in(&mut state, now);
        assert!(state.snapshot.policies[0].suspend, "read before the watch showed a later one");
        policy(3, true).unwrap().fold_deletion(&mut state);
        Read { policy: policy(3, true), ..Read::default() }.fold_in(&mut state, now);
        assert!(state.snapshot.policies.is_empty(), "deleted meanwhile");
    }

    #[test]
    fn a_pod_counts_as_it_was_just_read() {
        let (mut state, now) = (State::default(), Instant::now());
        policy(1, false).unwrap().fold(&mut state, now);
        let named = PodRef { namespace: "d".into(), name: "a".into(), uid: "u".into() };
        let pod = |labels: &Value| -> Option<Pod> {
            let owner =
                json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "o", "uid": "o", "controller": true}]);
            let meta = json!({"namespace": "d", "name": "a", "uid": "u", "labels": labels, "ownerReferences": owner});
            serde_json::from_value(json!({"metadata": meta, "spec": {"nodeName": "w1", "containers": []}})).unwrap()
        };
        let stuck = pods::suspect(&pod(&json!({})).unwrap(), state.snapshot.now).unwrap();
        let seen = |state: &State, read: &Read| match read.pod_seen(state).unwrap().1 {
            PodSeen::Read(traits) => traits.labels.get("app").cloned().flatten(),
            PodSeen::Gone => Some("gone".to_owned()),
        };
        for (found, app) in [(pod(&json!({"app": "web"})), Some("web")), (pod(&json!({})), None), (None, Some("gone"))]
        {
            state.pod_reads.note_pod(&named, Some(stuck.clone()), now);
            let read = Read { pod: Some((named.clone(), found)), ..Read::default() };
            read.fold_in(&mut state, Instant::now());
            assert!(state.pod_reads.get(&named).is_none(), "no DaemonSet of that uid is known");
            assert_eq!(seen(&state, &read).as_deref(), app);
        }
    }
}
