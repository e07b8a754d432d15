//! Whether a fault that the controller finds itself still shows, by what was read now: the probe's list, which has the last word
//! about others, does not have it.
//!
//! A watch may be minutes behind without a word. What has recovered meanwhile is not cordoned, drained or handed to a remediator.

use jiff::Timestamp;

use super::meant::LivePod;
use super::still_stands;
use crate::api::NodeRuntimeHealth;
use crate::api::policy::PolicyRule;
use crate::controller::cache::{pods, report};
use crate::core::episode::{EpisodeFault, StepRecord};
use crate::core::fault::FaultType;
use crate::core::kubelet;
use crate::core::policy::ActionType;
use crate::core::snapshot::NodeView;

/// Whether the pod of a fault is read for the last look before such a step. Who deletes it reads it anyway.
pub(super) fn asks_pod(fault: &EpisodeFault, action: ActionType) -> bool {
    fault.kind == FaultType::StuckDaemonSetPod && !matches!(action, ActionType::DeletePod | ActionType::Notify)
}

/// Whether it still shows; if not, what was found. Of a node that flaps, and of a probe that is silent, one look says nothing.
pub(super) fn still_shows(
    (fault, step, rule): (&EpisodeFault, &StepRecord, Option<&PolicyRule>),
    view: &NodeView,
    report: &NodeRuntimeHealth,
    pod: Option<&LivePod>,
    now: Timestamp,
) -> Result<(), String> {
    if fault.kind == FaultType::NodeCondition {
        return still_stands(fault, rule, view);
    }
    if step.action == ActionType::Notify {
        return Ok(());
    }
    let found = match fault.kind {
        FaultType::PlegStalled => (!kubelet::says_pleg_stalled(view))
            .then(|| format!("Ready is {} by now, and not for its PLEG", view.ready.as_str())),
        FaultType::KubeletStartBlocked => kubelet::unfinished(view, &report::view(report).kubelet)
            .is_none()
            .then(|| "the kubelet's start does not show as unfinished any more".to_owned()),
        // Its successor is another pod: whether that is well the next decision says.
        FaultType::StuckDaemonSetPod => pod.and_then(|pod| well(pod, now)),
        _ => None,
    };
    found.map_or(Ok(()), |found| Err(format!("{} ({}): {found}", fault.kind, fault.subject)))
}

/// That the pod is well, if it is.
fn well(pod: &LivePod, now: Timestamp) -> Option<String> {
    let LivePod::There(named, pod) = pod else { return None };
    let is_well = pods::suspect(pod, now).is_some_and(|seen| seen.ready && seen.overdue.is_none());
    is_well.then(|| format!("Pod {named} is Ready by now"))
}
