//! The next step of a remediation: which fault is next, and whether its step is reserved, recorded as a dry run, skipped, or blocked.

use super::select::{EvidenceRequirement, Recurrence};
use super::slot::SlotReservation;
use super::update::RemediationUpdate;
use super::{Ctx, approval, attempt, cause, checks, refused, select};
use crate::context::{Block, NodeContext, ObservedFault, Probe, Requeue};
use crate::fault::FaultState;
use crate::moment::since;
use crate::plan::BlockReason;
use crate::policy::{Mode, Policy, Rule, Step};
use crate::procedure::{self, executors};
use crate::remediation::{Executor, MAX_STEPS, Remediation, RemediationFault, Resolution, StepState};

/// Reserves the next step: that of the most urgent fault for which a step may be taken now.
pub(super) fn reserve_for_most_urgent(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    policy: &Policy,
    update: &mut RemediationUpdate,
    slot: &SlotReservation,
    requeue: &mut Requeue,
) {
    reserve_except(ctx, node, policy, update, None, slot, requeue);
}

/// Reserves the next step of the most urgent fault except one.
pub(super) fn reserve_except(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    policy: &Policy,
    update: &mut RemediationUpdate,
    except: Option<&str>,
    slot: &SlotReservation,
    requeue: &mut Requeue,
) {
    for id in by_urgency(&update.remediation, node).into_iter().filter(|id| Some(id.as_str()) != except) {
        if let Some(step) = update.remediation.current_step() {
            let message = format!("{} for a more urgent fault of node {} goes first", step.phrase(), node.name);
            update.block(&id, Block::new(BlockReason::LowerUrgency, &message), requeue);
            continue;
        }
        if let Err(block) = try_fault(ctx, node, policy, update, &id, slot, requeue) {
            update.block(&id, block, requeue);
        }
    }
}

/// Returns the open faults, most urgent first. Faults that are not observed now come last.
fn by_urgency(remediation: &Remediation, node: &NodeContext<'_>) -> Vec<String> {
    let place = |fault: &RemediationFault| node.seen.iter().position(|s| s.fault.id == fault.id).unwrap_or(usize::MAX);
    let mut open: Vec<&RemediationFault> = remediation.faults.iter().filter(|f| f.state == Resolution::Open).collect();
    open.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.id.cmp(&b.id)));
    open.into_iter().map(|fault| fault.id.clone()).collect()
}

fn try_fault(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    policy: &Policy,
    update: &mut RemediationUpdate,
    id: &str,
    slot: &SlotReservation,
    requeue: &mut Requeue,
) -> Result<(), Block> {
    loop {
        let Some(mut standing) = update.remediation.fault(id).cloned() else { return Ok(()) };
        let Some(rule) = policy.rule(&standing.rule) else { return Ok(()) };
        refused::cooled_down(ctx, &update.remediation, &standing, rule)?;
        let seen = node.find(id);
        // Every wait has an end.
        let is_waiting = since(ctx.snapshot.now, update.remediation.last_activity()) < cause::MAX_CAUSE_WAIT;
        if update.remediation.manual.is_none() && is_waiting {
            cause::require_cause_checked_again(ctx, node, policy, &standing)?;
        }
        let mut notes = Vec::new();
        let step = select::select_step(
            Recurrence::of(ctx, Some(&update.remediation)),
            &mut standing,
            rule,
            Some(&update.remediation),
            node,
            seen.map(|seen| seen.fault.as_ref()),
            &mut notes,
        );
        for note in notes {
            update.remediation.say(&note);
        }
        let is_full = update.remediation.steps.len() >= MAX_STEPS;
        let Some(step) = step.filter(|_| !is_full) else {
            standing.state = Resolution::Exhausted;
            let why = if is_full { "the remediation has reached its limit of steps" } else { "no step is left" };
            update.remediation.say(&format!("{} ({}): {why}; a person is needed", standing.kind, standing.subject));
            replace(&mut update.remediation, standing);
            return Ok(());
        };
        replace(&mut update.remediation, standing.clone());
        if step.mode == Mode::DryRun {
            record_dry_run(ctx, node, policy, update, standing, seen, rule, step);
            continue;
        }
        if is_skipped(ctx, node, update, &standing, rule, step) {
            continue;
        }
        checks::cooled_down(ctx, node, &update.remediation, &standing, step)?;
        slot.require()?;
        let block = match check_step(ctx, node, policy, &update.remediation, &standing, seen, rule, step) {
            Ok((seen, executor))
                if step.needs_approval()
                    && update.remediation.requested_by(&standing, step.action.kind(), policy).is_none() =>
            {
                approval::ask(ctx, update, seen, &standing, step, executor, requeue);
                return Ok(());
            }
            Ok((seen, executor)) => {
                reserve(ctx, node, policy, update, seen, &standing, step, executor, requeue);
                return Ok(());
            }
            Err(block) => block,
        };
        if block.reason == BlockReason::Cooldown {
            return Err(block);
        }
        let waits = block.waits_for_window();
        // All faults of the node share one block timeout.
        let activity = if waits { update.remediation.last_touched() } else { update.remediation.last_activity() };
        let (block_timeout, idle_time) = (ctx.block_timeout(step), since(ctx.snapshot.now, activity));
        let notifies_without_check = step.action.notifies() && block.awaits_look();
        if let Some(seen) =
            seen.filter(|_| notifies_without_check && (idle_time >= block_timeout || node.probe == Probe::Silent))
        {
            // The last observation was bad, and nobody can check any more. The controller notifies people anyway.
            let executor = select::may_take(ctx, node, policy, seen, rule, step, EvidenceRequirement::Any)?;
            reserve(ctx, node, policy, update, seen, &standing, step, executor, requeue);
            return Ok(());
        }
        let remaining = block_timeout.saturating_sub(idle_time);
        if !remaining.is_zero() && !block.outlasts(remaining) {
            requeue.after(remaining);
            return Err(block);
        }
        skip_blocked_step(ctx, update, standing, rule, step, &block);
    }
}

/// Skips a step that is impossible or has no place here. Returns whether it did.
fn is_skipped(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    update: &mut RemediationUpdate,
    standing: &RemediationFault,
    rule: &Rule,
    step: &Step,
) -> bool {
    let mut standing = standing.clone();
    let procedure = procedure::of(&step.action);
    // A new remediation skips such a step, unless it isolates the node. An open one waits.
    let is_new = update.remediation.identity.is_none() && !step.action.contains();
    if let Some(block) = procedure.require_available(ctx.cluster, node).err().filter(|_| is_new) {
        update.remediation.say(block.message());
        standing.step_index += 1;
    } else if let Some(why) = procedure.skip_reason(ctx.cluster, node, &update.remediation) {
        // The record says afterwards, too, that this was not done.
        let mut record = attempt::record(ctx, &update.remediation, &standing, step, Executor::Controller);
        record.finish(StepState::Refused, &why, ctx.snapshot.now);
        update.remediation.steps.push(record);
        standing.step_index = rule.step_after_skip(step, standing.step_index);
    } else {
        return false;
    }
    replace(&mut update.remediation, standing);
    true
}

/// Returns the fault as it is observed now, and the executor that may take this step on it.
#[expect(clippy::too_many_arguments, reason = "the same that a step is taken with")]
fn check_step<'s, 'a>(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    policy: &Policy,
    remediation: &Remediation,
    standing: &RemediationFault,
    seen: Option<&'s ObservedFault<'a>>,
    rule: &Rule,
    step: &Step,
) -> Result<(&'s ObservedFault<'a>, Executor), Block> {
    let seen = require_confirmed(node, standing, seen)?;
    let executor = select::may_take(ctx, node, policy, seen, rule, step, EvidenceRequirement::Fresh)?;
    select::require_prepared(ctx, node, policy, remediation, standing, seen, rule, step)?;
    Ok((seen, executor))
}

/// Returns the fault as it is observed now. The engine takes no step for a fault that is not confirmed.
fn require_confirmed<'s, 'a>(
    node: &NodeContext<'_>,
    standing: &RemediationFault,
    seen: Option<&'s ObservedFault<'a>>,
) -> Result<&'s ObservedFault<'a>, Block> {
    let what = format!("{} ({}) on {}", standing.kind, standing.subject, node.name);
    match seen {
        Some(seen) if seen.fault.state == FaultState::Confirmed => Ok(seen),
        Some(_) => Err(Block::new(BlockReason::NotConfirmed, &format!("{what} is not confirmed any more"))),
        None => Err(Block::new(
            BlockReason::NotConfirmed,
            &format!("{what} is not observed now, and is not confirmed to be resolved"),
        )),
    }
}

fn replace(remediation: &mut Remediation, standing: RemediationFault) {
    if let Some(fault) = remediation.fault_mut(&standing.id)
        && *fault != standing
    {
        *fault = standing;
    }
}

/// Records a dry-run step, or that even the dry run would be blocked, and goes on to the next step.
#[expect(clippy::too_many_arguments, reason = "the same that a step is taken with")]
fn record_dry_run(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    policy: &Policy,
    update: &mut RemediationUpdate,
    mut standing: RemediationFault,
    seen: Option<&ObservedFault<'_>>,
    rule: &Rule,
    step: &Step,
) {
    let check_step = check_step(ctx, node, policy, &update.remediation, &standing, seen, rule, step);
    let executor = check_step.as_ref().map_or(Executor::Controller, |(_, executor)| *executor);
    let mut record = attempt::record(ctx, &update.remediation, &standing, step, executor);
    let message = match check_step {
        Ok((seen, _)) => {
            record.target = seen.fault.target.clone();
            "not executed: the step is a dry run".to_owned()
        }
        Err(block) => format!("not executed: the step is a dry run, and would be blocked: {}", block.message()),
    };
    record.finish(StepState::Simulated, &message, ctx.snapshot.now);
    update.remediation.steps.push(record);
    standing.step_index += 1;
    replace(&mut update.remediation, standing);
}

#[expect(clippy::too_many_arguments, reason = "all of them make up the reservation")]
fn reserve(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    policy: &Policy,
    update: &mut RemediationUpdate,
    seen: &ObservedFault<'_>,
    standing: &RemediationFault,
    step: &Step,
    executor: Executor,
    requeue: &mut Requeue,
) {
    let mut record = attempt::record(ctx, &update.remediation, standing, step, executor);
    executors::note(node, &mut record);
    record.target = seen.fault.target.clone();
    let agreed = update.remediation.requested_by(standing, step.action.kind(), policy);
    record.approved_by = agreed.map(ToOwned::to_owned);
    update.remediation.say(&format!(
        "{} for {} ({}) by {executor:?}",
        record.phrase(),
        standing.kind,
        standing.subject
    ));
    update.effect = attempt::act(ctx, node, policy, &mut update.remediation, &record, &seen.fault, step);
    update.remediation.steps.push(record);
    requeue.after(ctx.settings.retry);
}

/// Skips a step that is blocked for longer than the block timeout. After a step that waits for its window or for the node's action
/// limit, or whose rule is ambiguous, only notifications follow.
fn skip_blocked_step(
    ctx: Ctx<'_>,
    update: &mut RemediationUpdate,
    mut standing: RemediationFault,
    rule: &Rule,
    step: &Step,
    block: &Block,
) {
    let mut record = attempt::record(ctx, &update.remediation, &standing, step, Executor::Controller);
    let why = if block.reason == BlockReason::NodeLimit { "not done" } else { "blocked for too long" };
    record.finish(StepState::Refused, &format!("{why}: {}", block.message()), ctx.snapshot.now);
    update.remediation.steps.push(record);
    standing.step_index = rule.step_after_skip(step, standing.step_index);
    if block.waits_for_window() || block.is_ambiguous() {
        standing.step_index = rule.next_notify_step(standing.step_index);
    }
    replace(&mut update.remediation, standing);
}
