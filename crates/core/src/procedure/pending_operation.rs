//! Operations that may still change a node although no step waits for them any more: the step timed out, or its remediation was
//! stopped, and the node has not answered. Until the result is known, the remediation stays open and keeps its slot and its
//! cordon: what is done to another node in the meantime would exceed the budget. Each wait has an end: the longest time that a
//! node can take.

use std::time::Duration;

use jiff::Timestamp;

use super::boot::is_carried;
use crate::action::ActionType;
use crate::command::{CLOCK_SLACK, OutcomeReason};
use crate::context::{Block, NodeContext, Probe};
use crate::moment::{clock, since};
use crate::plan::BlockReason;
use crate::remediation::{Executor, Remediation, StepRecord, StepState};
use crate::snapshot::TriState;

/// How long after the command a machine may still go down: systemd's `reboot.target` has its job ended by force after 30 min
/// (systemd.special(7)), and the command may start some minutes later.
const MAX_SHUTDOWN: Duration = Duration::from_mins(40);

/// How long a kubelet may take to end the pod of a Job, whose own grace period is 5 s.
const POD_END: Duration = Duration::from_secs(30);

/// An operation with an unknown result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingOperation<'r> {
    remediation: &'r Remediation,
    step: &'r StepRecord,
    /// The latest time at which the node may still execute it.
    pub(crate) until: Timestamp,
}

impl<'r> PendingOperation<'r> {
    /// The operation that the end of this remediation waits for, if it has nothing else left to do.
    pub(crate) fn of(node: &NodeContext<'_>, remediation: &'r Remediation) -> Option<Self> {
        let is_at_its_end = remediation.phase.is_final() || !remediation.has_work();
        let view = node.view.filter(|view| view.uid == remediation.node_uid && is_at_its_end)?;
        // A person who uncordons a marked node has decided about what the mark asks others to do.
        let is_kept = |step: &&StepRecord| {
            let is_closed = view.unschedulable && remediation.cleanup.has_pending_cordon();
            step.action == ActionType::Reboot || is_closed
        };
        let reboot = reboot_of(remediation).filter(is_kept);
        let reboot = reboot.and_then(|step| Some((reboot_until(node, step)?, step)));
        let other = unanswered(node, remediation);
        let (until, step) = reboot.into_iter().chain(other).max_by_key(|(until, _)| *until)?;
        (until > node.cluster.snapshot.now).then_some(Self { remediation, step, until })
    }

    /// What is pending, and what it keeps, in one sentence.
    pub(crate) fn message(&self) -> String {
        let Self { remediation, step, until } = self;
        let commanded = if step.started_at.is_some() { "was" } else { "may have been" };
        let (what, ends) = match step.action.kind() {
            ActionType::Reboot => {
                (format!("{commanded} commanded to reboot and may still reboot"), "its boot id changes")
            }
            _ if is_carried(step) => ("was marked for a reboot and may still reboot".to_owned(), "its boot id changes"),
            _ => (format!("has not answered and may still execute {}", step.phrase()), "it answers"),
        };
        let markers: Vec<String> =
            remediation.cleanup.owed().map(|marker| marker.action().as_str().to_lowercase()).collect();
        let kept = if markers.is_empty() { String::new() } else { format!(", with its {},", markers.join(" and ")) };
        let (node, name, latest) = (&remediation.node, &remediation.name, clock(*until));
        format!("node {node} {what}: remediation {name} stays open{kept} until {ends}, at the latest until {latest}")
    }
}

/// Refuses another step that the node executes while the node may still execute the last one.
pub(crate) fn require_none(node: &NodeContext<'_>, remediation: &Remediation, executor: Executor) -> Result<(), Block> {
    let now = node.cluster.snapshot.now;
    let unanswered = unanswered(node, remediation).filter(|_| executor != Executor::Controller);
    let Some((until, step)) = unanswered.filter(|(until, _)| *until > now) else { return Ok(()) };
    // While its command or its Job is there, that time moves.
    let latest = if stands(node, step) { String::new() } else { format!(", at the latest until {}", clock(until)) };
    let message = format!(
        "node {} has not answered and may still execute {}: the next step on the node waits until it answers{latest}",
        node.name,
        step.phrase()
    );
    Err(Block::new(BlockReason::InProgress, &message).until(since(until, now)))
}

/// The last step given to the node, if it has no answer, and the latest time, past or not, at which it may be executed.
pub(crate) fn unanswered<'r>(
    node: &NodeContext<'_>,
    remediation: &'r Remediation,
) -> Option<(Timestamp, &'r StepRecord)> {
    let ready = node.view?.ready;
    let step = remediation.last_given().filter(|step| step.action != ActionType::Reboot && !is_carried(step))?;
    let longest = node.cluster.settings.latest_execution(step)?;
    if stands(node, step) {
        // An executor that has not read it yet may begin it from now on, as long as the node takes it for timely.
        let execution = node.cluster.settings.execution_time();
        let from_now = node.cluster.snapshot.now.checked_add(execution).ok()?;
        let timely = step.scheduled_at.checked_add(execution.saturating_add(CLOCK_SLACK)).ok()?;
        return Some((longest.max(from_now.min(timely)), step));
    }
    let is_jobs = match step.executor_changed_at {
        None => step.executor == Executor::Job,
        // The probe was to take it over, and was not asked before its end.
        Some(at) => step.executor == Executor::Probe && step.started_at.is_some_and(|started| started < at),
    };
    if is_jobs && ready == TriState::True {
        if node.cluster.snapshot.jobs.get(&step.operation_id).is_some_and(|job| job.pod_ended) {
            return None;
        }
        // A kubelet that reaches the API server ends the pod of a deleted Job.
        let ended = step.finished_at?.checked_add(node.cluster.settings.cache_lag.saturating_add(POD_END)).ok()?;
        return Some((ended, step));
    }
    Some((longest, step))
}

/// Whether its command or its Job is still there, or may be: the API server has not removed it, or nobody can read it.
fn stands(node: &NodeContext<'_>, step: &StepRecord) -> bool {
    let is_unreadable = node.command.is_some_and(|command| command.unreadable.is_some());
    let is_command = node.command().is_some_and(|command| command.operation_id == step.operation_id);
    let is_job = node.cluster.snapshot.jobs.get(&step.operation_id).is_some_and(|job| !job.finished);
    is_unreadable || is_command || is_job
}

/// The reboot attempt whose result is unknown. An expired marker counts too: a tool that has reacted to it may be draining the node.
fn reboot_of(remediation: &Remediation) -> Option<&StepRecord> {
    let is_it = |step: &&StepRecord| {
        let is_over = matches!(step.state, StepState::TimedOut | StepState::Cancelled);
        let is_reboot = step.action == ActionType::Reboot || (is_carried(step) && step.started_at.is_some());
        is_reboot && is_over && step.executed_at.is_none() && step.boot_id.is_some()
    };
    remediation.steps.iter().rev().find(is_it)
}

/// The latest time at which the node may still go down; `None` = it will not, or has done so.
fn reboot_until(node: &NodeContext<'_>, step: &StepRecord) -> Option<Timestamp> {
    let view = node.view?;
    // The node has booted again, for whatever reason.
    if view.boot_id.is_some() && view.boot_id != step.boot_id {
        return None;
    }
    let now = node.cluster.snapshot.now;
    let ttl = Duration::from_secs(node.cluster.settings.command_ttl_seconds.into());
    // After this time no probe starts the command, whichever of its reports the controller has not seen yet: the controller
    // withdraws it at the end of its time, and a probe that is cut off then counts that time from when it first read it.
    let unheard =
        step.scheduled_at.checked_add(ttl.saturating_mul(2).saturating_add(node.cluster.settings.cache_lag)).ok()?;
    // The answer of the node executor stays valid, even when its probe has ended with the machine that goes down.
    let reported = node.own_report().and_then(|report| report.agent.as_ref());
    let agent = reported.filter(|agent| agent.operation_id == step.operation_id);
    let is_delivered =
        step.reason.is_some_and(OutcomeReason::is_delivered) || agent.is_some_and(|agent| agent.reason.is_delivered());
    // The node is in the same boot, by a check that is later than any possible start of the command.
    let arrived = node.arrived().and_then(|arrived| now.checked_sub(arrived).ok());
    let is_same = node.probe == Probe::Reporting
        && arrived.is_some_and(|arrived| arrived > unheard)
        && node.own_boot_id() == step.boot_id.as_deref();
    if is_same && view.boot_id == step.boot_id && view.ready == TriState::True && !is_delivered {
        return None;
    }
    // Nothing shows that the reboot was commanded at all.
    if step.started_at.is_none() && !is_delivered {
        return Some(unheard);
    }
    // A tool may have found the marker at the very end of its time.
    let found = step.finished_at.filter(|_| step.action == ActionType::MarkForReboot).or(step.started_at);
    found.unwrap_or(step.scheduled_at).checked_add(MAX_SHUTDOWN).ok()
}
