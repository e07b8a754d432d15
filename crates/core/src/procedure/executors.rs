//! Which executor runs a step on the node, and why: a Job where the kubelet can start one, else the probe.

use jiff::Timestamp;

use crate::action::{Action, RunsOn};
use crate::context::NodeContext;
use crate::fault::Daemon;
use crate::kubelet;
use crate::remediation::{Executor, StepRecord};
use crate::snapshot::TriState;
use crate::text::bounded;

/// Maximum length of a reason, in bytes.
const MAX_REASON: usize = 256;

/// The executor of an action that a Job could run, and the reason. A kubelet whose start is blocked starts no Job, although the
/// node may be Ready. So no Job is used when the kubelet has written nothing since its start began, however short that time is.
/// No Job is used either when the container runtime does not answer.
pub(crate) fn choose(node: &NodeContext<'_>) -> (Executor, &'static str) {
    let Some((view, report)) = node.view.zip(node.report) else { return (Executor::Probe, "the kubelet is not known") };
    let works = report.heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.kubelet_works == TriState::True);
    if !works {
        (Executor::Probe, "the probe does not report that the kubelet works")
    } else if view.ready != TriState::True {
        (Executor::Probe, "the node is not Ready")
    } else if kubelet::unfinished(view, &report.kubelet).is_some() {
        (Executor::Probe, "the kubelet has not completed its start")
    } else if node.seen.iter().any(|seen| seen.fault.kind.spec().down == Some(Daemon::Runtime)) {
        (Executor::Probe, "the container runtime does not answer")
    } else {
        (Executor::Job, "the kubelet works, and the node is Ready")
    }
}

/// Who executes the action on this node.
pub(crate) fn of(node: &NodeContext<'_>, action: &Action) -> Executor {
    match action.traits().runs_on {
        RunsOn::Controller => Executor::Controller,
        RunsOn::Probe => Executor::Probe,
        RunsOn::JobOrProbe => choose(node).0,
    }
}

/// Whether both executors support the action.
pub(crate) fn is_of_either(action: &Action) -> bool {
    action.traits().runs_on == RunsOn::JobOrProbe
}

/// Records why the executor of an attempt was chosen, where there was a choice.
pub(crate) fn note(node: &NodeContext<'_>, record: &mut StepRecord) {
    if is_of_either(&record.action) {
        record.executor_reason = format!("{:?}: {}", record.executor, choose(node).1);
    }
}

/// Records that the attempt continues with the other executor, and why.
pub(crate) fn note_switch(record: &mut StepRecord, to: Executor, why: &str, now: Timestamp) {
    record.executor = to;
    record.executor_reason = bounded(&format!("{}; then {to:?}: {why}", record.executor_reason), MAX_REASON);
    record.executor_changed_at = Some(now);
}
