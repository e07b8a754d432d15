//! Nodes with a pending reboot: they may still go down for a commanded reboot that no step waits for any more, because the step
//! timed out or its remediation was stopped. They stay cordoned until the result of the command is known, and never for longer
//! than a machine can take to go down.

use std::time::Duration;

use jiff::Timestamp;

use super::boot::is_carried;
use crate::action::ActionType;
use crate::command::OutcomeReason;
use crate::context::{ClusterContext, NodeContext, Probe, of_policy};
use crate::moment::clock;
use crate::policy::Step;
use crate::remediation::{Remediation, StepRecord, StepState};
use crate::snapshot::TriState;

/// How long after the command a machine may still go down: systemd's `reboot.target` has its job ended by force after 30 min
/// (systemd.special(7)), and the command may start some minutes later.
const MAX_SHUTDOWN: Duration = Duration::from_mins(40);

/// The reboot attempt of a remediation whose result is unknown. An expired marker counts too: a tool that has already reacted to
/// it may be draining the node.
fn unsettled(remediation: &Remediation) -> Option<&StepRecord> {
    let is_it = |step: &&StepRecord| {
        let is_over = matches!(step.state, StepState::TimedOut | StepState::Cancelled);
        let is_reboot = step.action == ActionType::Reboot || (is_carried(step) && step.started_at.is_some());
        is_reboot && is_over && step.executed_at.is_none() && step.boot_id.is_some()
    };
    remediation.steps.iter().rev().find(is_it)
}

/// The latest time at which the node may still go down; `None` = it will not, or has done so.
pub(crate) fn until(ctx: ClusterContext<'_>, node: &NodeContext<'_>, remediation: &Remediation) -> Option<Timestamp> {
    let step = unsettled(remediation)?;
    let view = node.view?;
    // A person was asked and has not approved: no reboot was commanded.
    let named = of_policy::policy_of(ctx, remediation).and_then(|policy| of_policy::step_of(policy, remediation, step));
    let was_asked = named.is_some_and(Step::needs_approval) && step.approved_by.is_none();
    if was_asked && step.started_at.is_none() {
        return None;
    }
    // The node has booted again, whoever caused it.
    if view.boot_id.is_some() && view.boot_id != step.boot_id {
        return None;
    }
    let now = ctx.snapshot.now;
    let still = |until: Timestamp| (until > now).then_some(until);
    let ttl = Duration::from_secs(ctx.settings.command_ttl_seconds.into());
    // After this time no probe starts the command, whichever of its reports the controller has not seen yet: the controller
    // withdraws it at the end of its time, and a probe that is cut off then counts that time from when it first read it.
    let unheard = step.scheduled_at.checked_add(ttl.saturating_mul(2).saturating_add(ctx.settings.cache_lag)).ok()?;
    let report = node.report.filter(|_| node.probe == Probe::Reporting);
    let heartbeat = report.and_then(|report| report.heartbeat.as_ref());
    // The answer of the node executor stays valid, even when its probe has ended with the machine that goes down.
    let reported = node.own_report().and_then(|report| report.agent.as_ref());
    let agent = reported.filter(|agent| agent.operation_id == step.operation_id);
    let is_delivered =
        step.reason.is_some_and(OutcomeReason::is_delivered) || agent.is_some_and(|agent| agent.reason.is_delivered());
    // The node is in the same boot, by a check that is later than any possible start of the command.
    let is_same = heartbeat.is_some_and(|heartbeat| {
        let arrived = node.arrived().and_then(|arrived| now.checked_sub(arrived).ok());
        arrived.is_some_and(|arrived| arrived > unheard) && Some(&heartbeat.boot_id) == step.boot_id.as_ref()
    });
    if is_same && view.boot_id == step.boot_id && view.ready == TriState::True && !is_delivered {
        return None;
    }
    // Nothing shows that the reboot was commanded at all.
    if step.started_at.is_none() && !is_delivered {
        return still(unheard);
    }
    // A tool may have found the marker at the very end of its time.
    let found = step.finished_at.filter(|_| step.action == ActionType::MarkForReboot).or(step.started_at);
    still(found.unwrap_or(step.scheduled_at).checked_add(MAX_SHUTDOWN).ok()?)
}

/// Until when the cordon stays for a pending reboot, if the remediation has nothing else left to do.
pub(crate) fn blocks_uncordon(
    ctx: ClusterContext<'_>,
    node: &NodeContext<'_>,
    remediation: &Remediation,
) -> Option<Timestamp> {
    // If somebody has uncordoned the node, that decision stands.
    let is_closed = node.view.is_some_and(|view| view.uid == remediation.node_uid && view.unschedulable);
    let is_at_its_end = remediation.phase.is_final() || !remediation.has_work();
    until(ctx, node, remediation).filter(|_| is_closed && is_at_its_end && remediation.cleanup.has_pending_cordon())
}

/// The message that the cordon stays, in one sentence.
pub(crate) fn message(remediation: &Remediation, until: Timestamp) -> String {
    let is_mark = unsettled(remediation).is_some_and(|step| step.action == ActionType::MarkForReboot);
    let how = if is_mark { "marked for a reboot" } else { "commanded to reboot" };
    format!(
        "node {} was {how} and may still reboot: the cordon of remediation {} stays until its boot id changes, at the latest until {}",
        remediation.node,
        remediation.name,
        clock(until)
    )
}
