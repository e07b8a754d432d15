//! The preflight of an action. It reads every object that may refuse the action again from the API server, not from the cache of
//! the watches. An answer of the last quarter of a second counts as live.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::time::Instant;

use super::{Applier, ApplyError, lately, reboot};
use crate::cache::arrival::ReportArrivals;
use crate::cache::fold::Ingest;
use crate::calls::bounded_opt;
use nrh_api::policy::PolicyStep;
use nrh_api::view::guard::Guarded;
use nrh_api::view::{node, pods, report};
use nrh_api::{
    CONFIG_NAME, NodeCommand, NodeRemediation, NodeRuntimeHealth, RemediationConfig, RemediationPolicy, Suspend,
    convert,
};
use nrh_core::fault::{FaultState, FaultType, PodRef};
use nrh_core::plan::EVIDENCE_MAX_AGE;
use nrh_core::policy::asks_of_pods;
use nrh_core::policy::{ActionType, ApprovalMode, Mode, Policy};
use nrh_core::remediation::{Remediation, StepRecord, StepState};
use nrh_core::snapshot::{NodeView, TriState, missed_after};
use nrh_core::window;

mod meant;
mod own;

use meant::{LivePod, Question, still_meant};

/// The action that a preflight is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreflightRequest<'a> {
    /// The remediation.
    pub remediation: &'a str,
    /// The operation id of its step.
    pub operation: &'a str,
    /// The node.
    pub node: &'a str,
    /// The node's uid.
    pub node_uid: &'a str,
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
}

/// What the preflight read.
struct Read {
    node: Option<Node>,
    report: Option<NodeRuntimeHealth>,
    command: Option<NodeCommand>,
    policy: Option<RemediationPolicy>,
    /// Whether the policy was read for this preflight only.
    is_policy_new: bool,
    /// Who has suspended all remediation, and why.
    suspended: Option<String>,
    remediation: Option<NodeRemediation>,
    /// The pod of the fault, if a policy selects by labels or owners, or if the fault is about the pod itself.
    pod: Option<LivePod>,
}

impl Applier {
    /// Reads node, report, policy and remediation again. It folds the answers into the cache, so that the next decision is based
    /// on a refusal.
    ///
    /// The ledger must still be the version that this process wrote. Another leader may have taken over unnoticed while this
    /// machine, with all its clocks, stood still. Without this check, this process would spend a slot that the next leader may
    /// have freed because the remediation was not visible then. This process knows that the remediation exists before it reads
    /// the ledger. So if the version is unchanged, every later leader finds the remediation and keeps its slot.
    pub(super) async fn preflight(&self, look: PreflightRequest<'_>) -> Result<Live, ApplyError> {
        let PreflightRequest { remediation: name, operation, node, node_uid, is_order, paid_from } = look;
        let policy = self.cache.lock().snapshot.remediations.get(name).map(|e| e.policy.clone());
        let policy = policy.ok_or_else(|| ApplyError::NotNow(format!("remediation {name} is not known any more")))?;
        let pod = self.asked_pod(name, operation);
        let read = Box::pin(self.read_again((name, node, &policy), pod, is_order));
        let ledger = async { Ok(self.lately.ledger(&self.calls).await?) };
        let (read, ledger) = futures::try_join!(read, ledger)?;
        self.fold_in(&read);
        if ledger.as_deref() != Some(paid_from) {
            let found = ledger.unwrap_or_else(|| "none".to_owned());
            return Err(ApplyError::Overtaken { expected: paid_from.to_owned(), found });
        }
        self.not_suspended()?;
        let now = self.clock.now();
        let state = self.cache.lock();
        if let Some(doubt) = state.admission.doubt(Instant::now()) {
            return Err(ApplyError::NotNow(doubt));
        }
        let live = judge(read, operation, node_uid, &policy, &state.snapshot.policies, now);
        let live = live.map_err(ApplyError::NotNow)?;
        let unseen = ReportArrivals::default();
        let arrivals = state.arrivals.get(node).unwrap_or(&unseen);
        fresh(&live, operation, arrivals, Instant::now()).map_err(ApplyError::NotNow)?;
        drop(state);
        Ok(live)
    }

    /// Checks that nobody has suspended all remediation, by the watch and by what was read. Calls take time, so a caller checks
    /// this immediately before it begins something.
    ///
    /// # Errors
    /// If somebody has: who, and why.
    pub(super) fn not_suspended(&self) -> Result<(), ApplyError> {
        self.cache.lock().snapshot.suspended.as_deref().map_or(Ok(()), |by| Err(ApplyError::NotNow(all_suspended(by))))
    }

    /// The pod of the fault of a step, if any policy selects by labels or owners, or if the fault is about the pod itself.
    fn asked_pod(&self, remediation: &str, operation: &str) -> Option<PodRef> {
        let state = self.cache.lock();
        let remediation = state.snapshot.remediations.get(remediation)?;
        let step = remediation.attempt(operation)?;
        let fault = remediation.fault(&step.fault_id)?;
        let pod = fault.subject.pod.as_ref().or(step.target.pod.as_ref())?;
        (asks_of_pods(&state.snapshot.policies) || own::asks_pod(fault, step.action.kind())).then(|| pod.clone())
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

    async fn read_again(
        &self,
        (remediation, node, policy): (&str, &str, &str),
        pod: Option<PodRef>,
        is_order: bool,
    ) -> Result<Read, ApplyError> {
        let calls = &self.calls;
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
        let is_policy_new = policy.as_ref().is_some_and(|read| read.is_new);
        let policy = policy.map(|read| read.object);
        let suspended = config.and_then(|read| self.suspended(read));
        Ok(Read { node, report, command, policy, is_policy_new, suspended, remediation, pod })
    }

    /// Who has suspended all remediation and why, by the configuration that was read.
    fn suspended(&self, read: lately::Read<Guarded<RemediationConfig>>) -> Option<String> {
        let by = match &read.object.0 {
            Ok(config) => config.veto(),
            Err(bad) => Some(format!("it cannot be read: {}", bad.why)),
        };
        if read.is_new {
            read.object.fold(&mut self.cache.lock(), Instant::now());
        }
        by
    }

    fn fold_in(&self, read: &Read) {
        let (mut state, now) = (self.cache.lock(), Instant::now());
        if let Some(node) = read.node.clone() {
            node.fold(&mut state, now);
        }
        if let Some(report) = read.report.clone() {
            report.fold(&mut state, now);
        }
        if let Some(command) = read.command.clone() {
            command.fold(&mut state, now);
        }
        if let Some(policy) = read.policy.clone().filter(|_| read.is_policy_new) {
            policy.fold(&mut state, now);
        }
        if let Some(remediation) = read.remediation.clone() {
            remediation.fold(&mut state, now);
        }
    }
}

/// Whether the action may proceed. If not: which object refuses it, what was expected and what was found. `others` are all
/// policies that the controller knows.
fn judge(
    read: Read,
    operation: &str,
    node_uid: &str,
    policy_name: &str,
    others: &[Policy],
    at: Timestamp,
) -> Result<Live, String> {
    let remediation = read.remediation.as_ref().map(convert::remediation).ok_or("its remediation is gone")?;
    if remediation.deleting || remediation.phase.is_final() {
        return Err(format!("remediation {} is at an end ({})", remediation.name, remediation.phase.as_str()));
    }
    if let Some(cancel) = &remediation.cancel {
        return Err(format!("remediation {} was cancelled {}", remediation.name, cancel.told()));
    }
    if remediation.mode != Mode::Enforce {
        return Err(format!("remediation {} is a dry run", remediation.name));
    }
    let step = remediation.attempt(operation).filter(|step| !step.state.is_final());
    let step = step.ok_or_else(|| format!("remediation {} has no open step {operation}", remediation.name))?;

    let node = read.node.ok_or_else(|| format!("Node {} is gone", remediation.node))?;
    let view = node::view(&node);
    if view.uid != node_uid || remediation.node_uid != node_uid {
        return Err(format!("Node {} was replaced: expected uid {node_uid}, found {}", remediation.node, view.uid));
    }
    if view.deleting {
        return Err(format!("Node {} is being deleted", remediation.node));
    }
    if let Some(veto) = view.vetoes.first() {
        return Err(format!("Node {} is excluded from remediation: {veto}", remediation.node));
    }

    if let Some(why) = read.suspended {
        return Err(all_suspended(&why));
    }
    let policy = read.policy.ok_or_else(|| format!("RemediationPolicy {policy_name} is gone"))?;
    if policy.spec.suspend || policy.spec.mode != Mode::Enforce {
        return Err(format!("RemediationPolicy {policy_name} is suspended or a dry run"));
    }

    let fault = remediation.fault(&step.fault_id);
    let rule = fault.and_then(|fault| policy.spec.rules.iter().find(|rule| rule.name == fault.rule));
    let now = rule.and_then(|rule| rule.steps.get(usize::try_from(step.step_index).ok()?));
    let is_its = |now: &&PolicyStep| convert::action(now).is_some_and(|action| action.is_recorded_as(&step.action));
    let now = now.filter(is_its);
    let now =
        now.ok_or_else(|| format!("RemediationPolicy {policy_name} does not name {} there any more", step.phrase()))?;
    if now.mode != Mode::Enforce {
        return Err(format!("{} of RemediationPolicy {policy_name} is a dry run now", step.phrase()));
    }
    if now.approval == Some(ApprovalMode::Manual) && remediation.approved(operation).is_none() {
        return Err(format!("{} in remediation {} is not approved (any more)", step.phrase(), remediation.name));
    }

    let report = read.report.ok_or_else(|| format!("NodeRuntimeHealth {} is gone", remediation.node))?;
    if let Some(why) = report.veto() {
        return Err(format!("NodeRuntimeHealth {} is suspended: {why}", remediation.node));
    }
    if report::owner(&report.metadata).as_deref() != Some(node_uid) {
        return Err(format!("NodeRuntimeHealth {} is about another node of that name", remediation.node));
    }
    if let Some(fault) = fault {
        own::still_shows((fault, step, rule), &view, &report, read.pod.as_ref(), at)?;
        let policy = convert::policy(&policy)
            .map_err(|bad| format!("RemediationPolicy {policy_name} is not valid now: {}", bad.0.join("; ")))?;
        still_selected(&policy, &view, &remediation.node)?;
        still_in_window(&policy, step, at)?;
        still_meant(&Question { fault, step, view: &view, report: &report, policy: &policy, others }, read.pod)?;
    }
    let kind = remediation.faults.iter().find(|fault| fault.id == step.fault_id).map(|fault| fault.kind);
    // The probe's list does not contain faults that the controller finds itself.
    let confirmed = kind.is_some_and(nrh_core::fault::FaultType::is_cluster_fault)
        || report.status.as_ref().is_some_and(|status| {
            status.faults.iter().any(|fault| fault.id == step.fault_id && fault.state == FaultState::Confirmed)
        });
    if !confirmed {
        return Err(format!("fault {} is not confirmed any more", step.fault_id));
    }
    still_replaced(step, &view)?;
    still_safe(step, &report)?;
    reboot::still_to_do(&remediation, step, &view, &report)?;
    Ok(Live { node, report, command: read.command, remediation })
}

fn all_suspended(by: &str) -> String {
    format!("RemediationConfig {CONFIG_NAME} suspends all remediation: {by}")
}

/// Whether the policy selects the node. Somebody may have removed a label from the node, or narrowed the selector.
fn still_selected(policy: &Policy, view: &NodeView, node: &str) -> Result<(), String> {
    if policy.selector.matches(&view.labels) {
        return Ok(());
    }
    Err(format!("RemediationPolicy {} does not select Node {node} any more", policy.name))
}

/// Whether the policy allows such a step to begin at this time of day. A step that has begun continues, for example a drain in
/// its rounds.
fn still_in_window(policy: &Policy, step: &StepRecord, at: Timestamp) -> Result<(), String> {
    let shut = window::shut(&policy.windows, step.action.kind(), at).filter(|_| step.state != StepState::Started);
    shut.map_or(Ok(()), |shut| Err(format!("RemediationPolicy {}: {}", policy.name, shut.message)))
}

/// Whether a deleted pod gets a successor. No successor starts under such a taint, whoever has added it since the decision.
fn still_replaced(step: &StepRecord, view: &NodeView) -> Result<(), String> {
    match view.repels_daemon_sets().filter(|_| step.action == ActionType::DeletePod) {
        Some(taint) => {
            Err(format!("{}: its pod would have no successor under the node's taint {taint}", step.phrase()))
        }
        None => Ok(()),
    }
}

/// Whether the daemon can be restarted safely, by the probe's newest report.
fn still_safe(step: &StepRecord, report: &NodeRuntimeHealth) -> Result<(), String> {
    let Some(daemon) = step.action.traits().restarts else { return Ok(()) };
    let view = report::view(report).restart;
    let safe = view.of(daemon);
    if safe == TriState::True || step.action.params().restart.is_some_and(|with| with.skip_safety_check) {
        return Ok(());
    }
    Err(format!("{}: RestartSafe is {} for it by now: {}", step.phrase(), safe.as_str(), view.message))
}

/// Whether the report is still recent enough for an action. Slow calls may have taken time since the decision.
fn fresh(live: &Live, operation: &str, arrivals: &ReportArrivals, now: Instant) -> Result<(), String> {
    let node = &live.remediation.node;
    let step = live.remediation.attempt(operation);
    let fault = step.and_then(|step| live.remediation.fault(&step.fault_id));
    // A missing check does not keep the controller from notifying people.
    let tells = step.is_some_and(|step| step.action == ActionType::Notify);
    if tells || fault.is_some_and(|fault| fault.kind == FaultType::ProbeNotReporting) {
        return Ok(());
    }
    let status = live.report.status.as_ref();
    let interval = status.and_then(|status| status.probe.as_ref()).map_or(0, |probe| probe.interval_seconds);
    if arrivals.age(now) > missed_after(Duration::from_secs(u64::from(interval))) {
        return Err(format!("the probe of {node} has missed the heartbeat that it promised meanwhile"));
    }
    let id = fault.map(|fault| fault.id.as_str());
    let reported = status.and_then(|status| status.faults.iter().find(|fault| Some(fault.id.as_str()) == id));
    // The preflight has just checked a fault that the controller finds itself, in the objects that it read.
    let Some(reported) = reported else { return Ok(()) };
    let looked = arrivals.look_age(Duration::from_secs(reported.check_age_seconds), now);
    if looked > EVIDENCE_MAX_AGE {
        let limit = EVIDENCE_MAX_AGE.as_secs();
        return Err(format!("the last check of {} on {node} is older than {limit}s", reported.kind));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
