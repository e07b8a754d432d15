//! Checks whether a fault that the controller finds itself still shows, by what was just read. The probe's list decides about
//! other faults, but does not contain this one.
//!
//! A watch may be minutes behind without notice. A node or pod that has recovered meanwhile is not cordoned, drained or handed to
//! a remediator.

use jiff::Timestamp;

use super::meant::LivePod;
use nrh_api::policy::PolicyRule;
use nrh_api::view::{pods, report};
use nrh_api::{NodeRuntimeHealth, convert};
use nrh_core::external_condition::ConditionMatcher;
use nrh_core::fault::FaultType;
use nrh_core::kubelet;
use nrh_core::policy::ActionType;
use nrh_core::remediation::{RemediationFault, StepRecord};
use nrh_core::snapshot::NodeView;

/// Whether the preflight of such a step reads the pod of a fault. The deletion of the pod reads it anyway.
pub(super) fn asks_pod(fault: &RemediationFault, action: ActionType) -> bool {
    fault.kind == FaultType::StuckDaemonSetPod && action != ActionType::DeletePod && !action.notifies()
}

/// Checks that the fault still shows; if not, says what was found. For a flapping node, and for a silent probe, one reading
/// proves nothing.
pub(super) fn still_shows(
    (fault, step, rule): (&RemediationFault, &StepRecord, Option<&PolicyRule>),
    view: &NodeView,
    report: &NodeRuntimeHealth,
    pod: Option<&LivePod>,
    now: Timestamp,
) -> Result<(), String> {
    let found = match (fault.kind, step.action.kind()) {
        (FaultType::NodeCondition, _) => gone(fault, rule, view),
        // People are notified of what was decided.
        (_, action) if action.notifies() => None,
        (FaultType::PlegStalled, _) => (!kubelet::says_pleg_stalled(view))
            .then(|| format!("Ready is {} by now, and not for its PLEG", view.ready.as_str())),
        (FaultType::KubeletStartBlocked, _) => kubelet::unfinished(view, &report::view(report).kubelet)
            .is_none()
            .then(|| "the kubelet's start does not show as unfinished any more".to_owned()),
        // The deletion of the pod reports this in the record of the step.
        (FaultType::StuckDaemonSetPod, action) if asks_pod(fault, action) => pod.and_then(|pod| well(pod, now)),
        _ => None,
    };
    found.map_or(Ok(()), |found| Err(format!("{} ({}): {found}", fault.kind, fault.subject)))
}

/// Says if the Node no longer shows the fault's condition as the rule selects it.
fn gone(fault: &RemediationFault, rule: Option<&PolicyRule>, view: &NodeView) -> Option<String> {
    let asked = rule.into_iter().flat_map(|rule| &rule.matches.node_conditions).map(convert::asked);
    let of_type: Vec<ConditionMatcher> =
        asked.filter(|asked| Some(&asked.kind) == fault.subject.name.as_ref()).collect();
    let status = fault.subject.condition.as_ref().map(|condition| condition.status);
    // A change from one status to another that the rule also selects is still the same fault.
    let is_meant = of_type.iter().any(|asked| Some(asked.status) == status);
    let stands = is_meant && of_type.iter().any(|asked| asked.is_met_among(&view.conditions));
    (!stands).then(|| "the Node does not show it any more".to_owned())
}

/// Says if the pod is well. Its successor is another pod, and the next decision checks whether that is well.
fn well(pod: &LivePod, now: Timestamp) -> Option<String> {
    let LivePod::There(named, pod) = pod else { return None };
    let is_well = pods::suspect(pod, now).is_some_and(|seen| seen.is_well());
    is_well.then(|| format!("Pod {named} is Ready by now"))
}
