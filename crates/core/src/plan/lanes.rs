//! By whom a step is carried out on the node, and by what evidence: a Job where the kubelet can start one, else the probe itself.

use jiff::Timestamp;

use super::evidence::NodeFacts;
use crate::episode::{Lane, StepRecord};
use crate::fault::FaultType;
use crate::kubelet;
use crate::policy::ActionType;
use crate::snapshot::Tri;
use crate::text::bounded;

/// Longest reason, in bytes.
const LONGEST: usize = 256;

/// The lane of what a Job could do, and why. While its start is blocked a kubelet starts none, although the node may be Ready: already
/// one that has written nothing since it began, for however short a time, is no good choice. Nor is one whose runtime does not answer.
pub(super) fn choose(facts: &NodeFacts<'_>) -> (Lane, &'static str) {
    let Some((view, report)) = facts.view.zip(facts.report) else { return (Lane::Agent, "the kubelet is not known") };
    let works = report.heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.kubelet_works == Tri::True);
    if !works {
        (Lane::Agent, "by the probe's word it is not known that the kubelet works")
    } else if view.ready != Tri::True {
        (Lane::Agent, "the node is not Ready")
    } else if kubelet::unfinished(view, &report.kubelet).is_some() {
        (Lane::Agent, "the kubelet's start has not come to an end")
    } else if facts.seen.iter().any(|seen| seen.fault.kind == FaultType::RuntimeUnreachable) {
        (Lane::Agent, "the container runtime does not answer")
    } else {
        (Lane::Job, "the kubelet works, and the node is Ready")
    }
}

/// Whether either lane can do it. A restart or a reboot is never done by a Job, which might end with it.
pub(super) const fn is_of_either(action: ActionType) -> bool {
    matches!(action, ActionType::CleanupOrphans | ActionType::ReleaseHungProcess)
}

/// Notes by what evidence the lane of an attempt was chosen, where there was a choice.
pub(super) fn note(facts: &NodeFacts<'_>, record: &mut StepRecord) {
    record.lane_reason = match record.lane {
        Lane::Agent if !is_of_either(record.action) => String::new(),
        Lane::Agent | Lane::Job => format!("{:?}: {}", record.lane, choose(facts).1),
        Lane::Api => String::new(),
    };
}

/// Notes that the attempt goes on by the other lane, and why it does so.
pub(super) fn note_switch(record: &mut StepRecord, to: Lane, why: &str, now: Timestamp) {
    record.lane = to;
    record.lane_reason = bounded(&format!("{}; then {to:?}: {why}", record.lane_reason), LONGEST);
    record.switched_at = Some(now);
}
