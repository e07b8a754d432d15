//! The status view of a node. No text here contains an age. Otherwise the object would be written with every check.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::readiness;
use super::update::RemediationUpdate;
use crate::context::{NodeContext, ObservedFault, Probe, exclusion};
use crate::fault::{Fault, FaultState, Severity};
use crate::faults::ShowsIn;
use crate::moment::{clock, since};
use crate::plan::{AssignedRule, BlockReason, Blocked, Health, NodeStatusView, SelfHealing};
use crate::policy::Mode;
use crate::procedure::pending_operation::PendingOperation;
use crate::remediation::{Marker, Phase, Remediation, StepRecord, StepState};
use crate::snapshot::TriState;
use crate::text::bounded;

/// Longest phrase of a summary.
const PHRASE: usize = 256;

/// The status views of nodes on which nothing happens. Most nodes of a fleet are such, and nodes in the same state share one
/// view. Each state is put into words once.
#[derive(Debug, Default)]
pub(super) struct Resting<'a>(BTreeMap<RestKey<'a>, Arc<NodeStatusView>>);

/// The state of a node at rest: its first policy, the kubelet's version, whether the node does not flap, and whether pods are unread.
type RestKey<'a> = (Option<&'a str>, Option<&'a str>, TriState, bool);

impl<'a> Resting<'a> {
    /// The status view of one node.
    pub fn status_view(
        &mut self,
        node: &NodeContext<'a>,
        update: Option<&RemediationUpdate>,
        blocked: &[&Blocked],
    ) -> Arc<NodeStatusView> {
        let Some(key) = at_rest(node).filter(|_| update.is_none() && blocked.is_empty()) else {
            return Arc::new(status_view(node, update, blocked));
        };
        let view = self.0.entry(key).or_insert_with(|| Arc::new(status_view(node, None, &[])));
        debug_assert_eq!(**view, status_view(node, None, &[]), "of node {}", node.name);
        Arc::clone(view)
    }
}

/// The state of the node, if the node is known to be healthy: no fault, no remembered remediation, no stuck pod, no recent
/// change, and a probe that reports on time.
fn at_rest<'a>(node: &NodeContext<'a>) -> Option<RestKey<'a>> {
    let view = node.view.filter(|view| view.ready != TriState::Unknown)?;
    let remembered = node.open.len() + node.finished.len() + node.pods.len() + node.seen.len();
    let is_noted = node.flap.is_some() || node.report.is_none_or(|report| report.stopped.is_some());
    let is_left_alone = exclusion::is_suspended(node) || exclusion::of_the_node(node).is_some();
    (node.probe == Probe::Reporting && remembered == 0 && !is_noted && !is_left_alone).then(|| {
        let first = node.policies.first().map(|policy| policy.name.as_str());
        (first, view.kubelet_version.as_deref(), node.stable, node.pods_unread)
    })
}

fn status_view(node: &NodeContext<'_>, update: Option<&RemediationUpdate>, blocked: &[&Blocked]) -> NodeStatusView {
    let remediation = update.map(|update| &update.remediation).filter(|remediation| remediation.is_open());
    let is_reporting = node.probe == Probe::Reporting;
    NodeStatusView {
        health: health(node),
        top_fault_type: top_fault(node).map(|seen| seen.fault.kind),
        top_fault: top_fault(node).map(phrase).unwrap_or_default(),
        activity: bounded(&activity(node, remediation, blocked), PHRASE),
        policy: policy(node, remediation),
        assigned_rules: node.seen.iter().filter_map(|seen| assigned_rule(node, seen)).collect(),
        remediation: remediation.map(|remediation| remediation.name.clone()),
        stopped: readiness::stopped(node),
        kubelet_version: node.view.and_then(|view| view.kubelet_version.clone()),
        cluster_faults: node.seen.iter().filter(|s| s.fault.kind.is_cluster_fault()).map(timeless).collect(),
        probe_reporting: match node.probe {
            Probe::Reporting => TriState::True,
            Probe::Silent => TriState::False,
            _ => TriState::Unknown,
        },
        restart_safe_known: is_reporting
            && node.view.is_some_and(|view| view.ready != TriState::Unknown)
            && node.seen.iter().all(|seen| seen.fault.kind.spec().shows_in != ShowsIn::KubeletStart),
        self_healing: self_healing(node, blocked),
        excluded: exclusion::of_the_node(node),
        pods_progressing: pods_progressing(node),
        stable: node.stable,
        flap: node.flap.map(|flap| flap.record.clone()),
        check_sequence: update.is_some_and(|update| update.asks_for_check)
            || blocked.iter().any(|blocked| blocked.reason == BlockReason::StaleEvidence),
    }
}

/// The policy of the open remediation, else the one for the worst fault, else the first one.
fn policy(node: &NodeContext<'_>, remediation: Option<&Remediation>) -> Option<String> {
    let of_worst = || top_fault(node).and_then(|seen| node.policy_for(&seen.fault));
    let idle = || of_worst().or_else(|| node.policies.first().copied()).map(|policy| policy.name.clone());
    remediation.map(|remediation| remediation.policy.clone()).or_else(idle)
}

fn assigned_rule(node: &NodeContext<'_>, seen: &ObservedFault<'_>) -> Option<(String, AssignedRule)> {
    let policy = node.policy_for(&seen.fault)?;
    let known = node.rule_of(policy, &seen.fault).filter(|(_, lack)| lack.is_none());
    let rule = known.map(|(rule, _)| rule.name.clone());
    Some((seen.fault.id.clone(), AssignedRule { policy: policy.name.clone(), rule }))
}

fn health(node: &NodeContext<'_>) -> Health {
    if node.probe != Probe::Reporting {
        return Health::Unknown;
    }
    let harms =
        |seen: &ObservedFault<'_>| seen.fault.state == FaultState::Confirmed && seen.fault.severity >= Severity::Medium;
    if node.seen.iter().any(harms) {
        Health::Unhealthy
    } else if node.seen.is_empty() {
        Health::Healthy
    } else {
        Health::Degraded
    }
}

/// Confirmed faults go before suspected ones. A silent probe goes before its last report.
fn top_fault<'s, 'a>(node: &'s NodeContext<'a>) -> Option<&'s ObservedFault<'a>> {
    let silent = node.seen.iter().find(|seen| seen.fault.kind.spec().shows_in == ShowsIn::Heartbeats);
    silent
        .or_else(|| node.seen.iter().find(|seen| seen.fault.state == FaultState::Confirmed))
        .or_else(|| node.seen.first())
}

fn phrase(seen: &ObservedFault<'_>) -> String {
    let sure = match seen.fault.state {
        FaultState::Suspected => " (suspected)",
        FaultState::Clearing => " (clearing)",
        FaultState::Confirmed => "",
    };
    bounded(&format!("{}: {}{sure}", seen.fault.kind, seen.fault.subject), PHRASE)
}

/// The fault without the values that change with every check.
fn timeless(seen: &ObservedFault<'_>) -> Fault {
    Fault { duration_seconds: 0, check_age_seconds: 0, ..seen.fault.as_ref().clone() }
}

fn activity(node: &NodeContext<'_>, remediation: Option<&Remediation>, blocked: &[&Blocked]) -> String {
    if let Some(remediation) = remediation {
        if let Some(step) = remediation.current_step() {
            return under_way(node, remediation, step);
        }
        // The cleanup has not begun yet.
        if remediation.phase == Phase::Verifying {
            return remediation.message.clone();
        }
        // In this order: the controller uncordons the node only after no remediator works on it any more.
        if let Some(handed) = remediation.cleanup.pending_hand_off().filter(|_| !remediation.has_work()) {
            return format!("deleting {handed} of remediation {}", remediation.name);
        }
        if let Some(pending) = PendingOperation::of(node, remediation) {
            return pending.message();
        }
        if remediation.cleanup.is_pending() && !remediation.has_work() {
            let what = if remediation.cleanup.has_pending(&Marker::Taint) { "taint" } else { "cordon" };
            return format!("removing the {what} of remediation {}", remediation.name);
        }
    }
    if let Some(kept) = node.finished.iter().find(|remediation| remediation.is_quarantined()) {
        return format!("kept cordoned, remediation {}: {}", kept.name, kept.message);
    }
    let place = |blocked: &Blocked| {
        let place = node.seen.iter().position(|seen| Some(&seen.fault.id) == blocked.fault_id.as_ref());
        place.unwrap_or(usize::MAX)
    };
    if let Some(first) = blocked.iter().min_by_key(|blocked| place(blocked)) {
        return format!("blocked: {}", first.message);
    }
    last_done(node)
}

fn under_way(node: &NodeContext<'_>, remediation: &Remediation, step: &StepRecord) -> String {
    let steps = remediation
        .fault(&step.fault_id)
        .and_then(|fault| node.cluster.policies.get(remediation.policy.as_str())?.rule(&fault.rule))
        .map_or(0, |rule| rule.steps.len());
    let how = match step.state {
        StepState::Verifying => {
            format!("executed {}, its effect is being verified", clock(step.executed_at.unwrap_or(step.scheduled_at)))
        }
        StepState::AwaitingApproval => format!("awaits approval since {}", clock(step.scheduled_at)),
        StepState::Started => format!("started {}", clock(step.started_at.unwrap_or(step.scheduled_at))),
        _ => format!("reserved {}", clock(step.scheduled_at)),
    };
    format!("step {}/{steps} {} by {:?}, {how}", step.step_index.saturating_add(1), step.phrase(), step.executor)
}

fn last_done(node: &NodeContext<'_>) -> String {
    let recent = node
        .finished
        .iter()
        .filter(|e| e.mode == Mode::Enforce)
        .filter_map(|e| Some((*e, e.finished_at?)))
        .filter(|(_, at)| since(node.cluster.snapshot.now, *at) < node.cluster.settings.failed_memory)
        .max_by(|a, b| a.1.cmp(&b.1).then_with(|| a.0.name.cmp(&b.0.name)));
    let Some((remediation, at)) = recent else { return String::new() };
    let at = clock(at);
    match remediation.phase {
        Phase::Succeeded => {
            let step = remediation
                .steps
                .iter()
                .rev()
                .find(|step| step.state == StepState::Succeeded && step.action.resolves());
            step.map_or_else(|| format!("recovered {at}"), |step| format!("resolved {at} by {}", step.phrase()))
        }
        Phase::Failed => format!("not resolved, no step left since {at}"),
        Phase::Cancelled => format!("cancelled {at}: {}", remediation.message),
        _ => String::new(),
    }
}

fn self_healing(node: &NodeContext<'_>, blocked: &[&Blocked]) -> SelfHealing {
    let has = |reasons: &[BlockReason]| blocked.iter().any(|blocked| reasons.contains(&blocked.reason));
    let needs_a_person = [
        BlockReason::StepsExhausted,
        BlockReason::RecentlyFailed,
        BlockReason::NoPolicy,
        BlockReason::NoRule,
        BlockReason::RuleAmbiguous,
        BlockReason::Paused,
        BlockReason::RequestRejected,
        BlockReason::NodeLimit,
        BlockReason::AwaitingApproval,
        BlockReason::ActionsDisabled,
        BlockReason::PodsRunning,
    ];
    let unknown = [BlockReason::PodUnknown, BlockReason::LedgerUnavailable, BlockReason::AdmissionNotEnforced];
    if has(&needs_a_person) {
        SelfHealing::ManualActionRequired
    } else if has(&[BlockReason::Suspended]) || exclusion::is_suspended(node) {
        SelfHealing::Suspended
    } else if exclusion::of_the_node(node).is_some() {
        SelfHealing::Excluded
    } else if has(&[BlockReason::DryRun]) {
        SelfHealing::DryRun
    } else if node.probe != Probe::Reporting || has(&unknown) {
        SelfHealing::Unknown
    } else if node.seen.is_empty() && node.open.is_empty() {
        SelfHealing::NoFault
    } else if node.seen.iter().any(|seen| is_for_dry_run(node, &seen.fault)) {
        SelfHealing::DryRun
    } else {
        SelfHealing::Allowed
    }
}

fn is_for_dry_run(node: &NodeContext<'_>, fault: &Fault) -> bool {
    let policy = node.policy_for(fault).filter(|policy| node.rule_of(policy, fault).is_some());
    policy.is_some_and(|policy| policy.mode == Mode::DryRun)
}

fn pods_progressing(node: &NodeContext<'_>) -> TriState {
    let held_up = || node.seen.iter().map(|seen| &seen.fault).filter(|fault| fault.kind.spec().holds_up_pods);
    if held_up().any(|fault| fault.state == FaultState::Confirmed) {
        return TriState::False;
    }
    let is_checked = node.view.is_some() && node.probe == Probe::Reporting && !node.pods_unread;
    if held_up().next().is_some() || !is_checked || node.pods.iter().any(|pod| !pod.ready) {
        TriState::Unknown
    } else {
        TriState::True
    }
}
