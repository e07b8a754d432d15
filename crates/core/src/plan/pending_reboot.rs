//! Nodes that may still go down for a reboot that was ordered, although nobody waits for it any more: its step has run out of time,
//! or its remediation was stopped. They stay closed to pods until it is known what came of the order, and never for longer than a
//! machine can take to go down.

use std::time::Duration;

use jiff::Timestamp;

use super::evidence::{NodeContext, Probe};
use super::update::RemediationUpdate;
use super::{Block, BlockReason, Ctx, Wake, attempt, ending, mark};
use crate::command::OutcomeReason;
use crate::moment::{clock, since};
use crate::policy::{ActionType, Step};
use crate::remediation::{Remediation, StepRecord, StepState};
use crate::snapshot::TriState;

/// How long after the order a machine may still go down: systemd's `reboot.target` has its job ended by force after 30 min
/// (systemd.special(7)), and the order may be begun for some minutes before that.
const LONGEST: Duration = Duration::from_mins(40);

/// The reboot of a remediation of which nobody knows what has come. An expired marker counts too: a tool that
/// has already reacted to it may be draining the node.
fn unsettled(remediation: &Remediation) -> Option<&StepRecord> {
    let is_it = |step: &&StepRecord| {
        let is_over = matches!(step.state, StepState::TimedOut | StepState::Cancelled);
        let is_reboot = step.action == ActionType::Reboot || (mark::is_carried(step) && step.started_at.is_some());
        is_reboot && is_over && step.executed_at.is_none() && step.boot_id.is_some()
    };
    remediation.steps.iter().rev().find(is_it)
}

/// Until when the node may still go down at the latest; `None` = it will not, or has done so.
pub(super) fn until(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &Remediation) -> Option<Timestamp> {
    let step = unsettled(remediation)?;
    let view = facts.view?;
    // A person was asked and has not said yes: nothing was ordered.
    let named = ending::policy_of(ctx, remediation).and_then(|policy| attempt::step_of(policy, remediation, step));
    let was_asked = named.is_some_and(Step::needs_approval) && step.approved_by.is_none();
    if was_asked && step.started_at.is_none() {
        return None;
    }
    // It has booted anew, by whatever hand.
    if view.boot_id.is_some() && view.boot_id != step.boot_id {
        return None;
    }
    let now = ctx.snapshot.now;
    let still = |until: Timestamp| (until > now).then_some(until);
    let ttl = Duration::from_secs(ctx.settings.order_ttl_seconds.into());
    // From then on no probe begins it any more, whichever of its words we have not seen yet.
    let unheard = step.scheduled_at.checked_add(ttl.saturating_add(ctx.settings.cache_lag)).ok()?;
    let report = facts.report.filter(|_| facts.probe == Probe::Reporting);
    let heartbeat = report.and_then(|report| report.heartbeat.as_ref());
    // What the agent has said stands, also when its probe has ended with the machine that goes down.
    let said = facts.own_report().and_then(|report| report.agent.as_ref());
    let agent = said.filter(|agent| agent.operation_id == step.operation_id);
    let is_told = step.reason.is_some_and(OutcomeReason::is_told) || agent.is_some_and(|agent| agent.reason.is_told());
    // The same boot, by a look that is later than anything that could have been begun.
    let is_same = heartbeat.is_some_and(|heartbeat| {
        let is_later = now.checked_sub(heartbeat.arrived).is_ok_and(|arrived| arrived > unheard);
        is_later && Some(&heartbeat.boot_id) == step.boot_id.as_ref()
    });
    if is_same && view.boot_id == step.boot_id && view.ready == TriState::True && !is_told {
        return None;
    }
    // Nothing shows that it was ordered at all.
    if step.started_at.is_none() && !is_told {
        return still(unheard);
    }
    // A mark may have been found at its very end.
    let found = step.finished_at.filter(|_| step.action == ActionType::MarkForReboot).or(step.started_at);
    still(found.unwrap_or(step.scheduled_at).checked_add(LONGEST).ok()?)
}

/// Until when the cordon of a remediation with nothing else left to do stays for that reason.
pub(super) fn blocks_uncordon(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &Remediation) -> Option<Timestamp> {
    // Whoever has opened the node has the last word.
    let is_closed = facts.view.is_some_and(|view| view.uid == remediation.node_uid && view.unschedulable);
    let is_at_its_end = remediation.phase.is_final() || !remediation.has_work();
    until(ctx, facts, remediation).filter(|_| is_closed && is_at_its_end && remediation.cleanup.owes_cordon())
}

/// That the cordon stays, in one sentence.
pub(super) fn told(remediation: &Remediation, until: Timestamp) -> String {
    let is_mark = unsettled(remediation).is_some_and(|step| step.action == ActionType::MarkForReboot);
    let how = if is_mark { "marked for a reboot" } else { "commanded to reboot" };
    format!(
        "node {} was {how} and may still reboot: the cordon of remediation {} stays until its boot id changes, at the latest until {}",
        remediation.node,
        remediation.name,
        clock(until)
    )
}

/// Says so, where it is so.
pub(super) fn note(ctx: Ctx<'_>, facts: &NodeContext<'_>, turn: &mut RemediationUpdate, wake: &mut Wake) {
    let Some(until) = blocks_uncordon(ctx, facts, &turn.remediation).filter(|_| turn.effect.is_none()) else { return };
    wake.at(since(until, ctx.snapshot.now));
    let message = told(&turn.remediation, until);
    turn.block_node(Block::new(BlockReason::InProgress, &message), wake);
}
