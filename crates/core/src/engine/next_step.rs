//! The next step of a remediation: which fault has its turn, and whether its step is reserved, recorded as a dry run, skipped, or blocked.

use super::select::{EvidenceRequirement, Recurrence};
use super::slot::SlotReservation;
use super::update::RemediationUpdate;
use super::{Ctx, approval, attempt, cause, checks, refused, select};
use crate::context::{Block, NodeContext, ObservedFault, Probe, Wake};
use crate::fault::FaultState;
use crate::moment::since;
use crate::plan::BlockReason;
use crate::policy::{Mode, Policy, Rule, Step};
use crate::procedure::{self, executors};
use crate::remediation::{Executor, MAX_STEPS, Remediation, RemediationFault, Resolution, StepState};

/// Reserves the next step: that of the most urgent fault for which a step may be taken now.
pub(super) fn reserve_for_most_urgent(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    slot: &SlotReservation,
    wake: &mut Wake,
) {
    reserve_but(ctx, facts, policy, turn, None, slot, wake);
}

/// Reserves the next step of the most urgent fault except one.
pub(super) fn reserve_but(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    but: Option<&str>,
    slot: &SlotReservation,
    wake: &mut Wake,
) {
    for id in by_urgency(&turn.remediation, facts).into_iter().filter(|id| Some(id.as_str()) != but) {
        if let Some(step) = turn.remediation.current_step() {
            let message = format!("{} for a more urgent fault of node {} goes first", step.phrase(), facts.name);
            turn.block(&id, Block::new(BlockReason::LowerUrgency, &message), wake);
            continue;
        }
        if let Err(block) = try_fault(ctx, facts, policy, turn, &id, slot, wake) {
            turn.block(&id, block, wake);
        }
    }
}

/// Returns the open faults, most urgent first. Faults that the probe does not name now come last.
fn by_urgency(remediation: &Remediation, facts: &NodeContext<'_>) -> Vec<String> {
    let place = |fault: &RemediationFault| facts.seen.iter().position(|s| s.fault.id == fault.id).unwrap_or(usize::MAX);
    let mut open: Vec<&RemediationFault> = remediation.faults.iter().filter(|f| f.state == Resolution::Open).collect();
    open.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.id.cmp(&b.id)));
    open.into_iter().map(|fault| fault.id.clone()).collect()
}

fn try_fault(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    id: &str,
    slot: &SlotReservation,
    wake: &mut Wake,
) -> Result<(), Block> {
    loop {
        let Some(mut standing) = turn.remediation.fault(id).cloned() else { return Ok(()) };
        let Some(rule) = policy.rule(&standing.rule) else { return Ok(()) };
        refused::cooled_down(ctx, &turn.remediation, &standing, rule)?;
        let seen = facts.find(id);
        // Every wait has an end.
        let is_waiting = since(ctx.snapshot.now, turn.remediation.last_activity()) < cause::LONGEST;
        if turn.remediation.manual.is_none() && is_waiting {
            cause::looked_for_again(ctx, facts, policy, &standing)?;
        }
        let mut notes = Vec::new();
        let step = select::select_step(
            Recurrence::of(ctx, Some(&turn.remediation)),
            &mut standing,
            rule,
            Some(&turn.remediation),
            facts,
            seen.map(|seen| seen.fault.as_ref()),
            &mut notes,
        );
        for note in notes {
            turn.remediation.say(&note);
        }
        let is_full = turn.remediation.steps.len() >= MAX_STEPS;
        let Some(step) = step.filter(|_| !is_full) else {
            standing.state = Resolution::Exhausted;
            let why = if is_full { "the remediation has as many steps as it may" } else { "no step is left" };
            turn.remediation.say(&format!("{} ({}): {why}; a person is needed", standing.kind, standing.subject));
            replace(&mut turn.remediation, standing);
            return Ok(());
        };
        replace(&mut turn.remediation, standing.clone());
        if step.mode == Mode::DryRun {
            shadow(ctx, facts, policy, turn, standing, seen, rule, step);
            continue;
        }
        if is_skipped(ctx, facts, turn, &standing, rule, step) {
            continue;
        }
        checks::cooled_down(ctx, facts, &turn.remediation, &standing, step)?;
        slot.require()?;
        let block = match judged(ctx, facts, policy, &turn.remediation, &standing, seen, rule, step) {
            Ok((seen, executor))
                if step.needs_approval()
                    && turn.remediation.requested_by(&standing, step.action.kind(), policy).is_none() =>
            {
                approval::ask(ctx, turn, seen, &standing, step, executor, wake);
                return Ok(());
            }
            Ok((seen, executor)) => {
                reserve(ctx, facts, policy, turn, seen, &standing, step, executor, wake);
                return Ok(());
            }
            Err(block) => block,
        };
        if block.reason == BlockReason::Cooldown {
            return Err(block);
        }
        let waits = block.waits_for_window();
        // All faults of the node share one wait. The time that one has waited in vain counts for the others as well.
        let activity = if waits { turn.remediation.last_touched() } else { turn.remediation.last_activity() };
        let (patience, idle) = (ctx.block_timeout(step), since(ctx.snapshot.now, activity));
        let tells = step.action.notifies() && block.awaits_look();
        if let Some(seen) = seen.filter(|_| tells && (idle >= patience || facts.probe == Probe::Silent)) {
            // The last observation was bad, and nobody can check any more. The controller notifies people anyway.
            let executor = select::may_take(ctx, facts, policy, seen, rule, step, EvidenceRequirement::Any)?;
            reserve(ctx, facts, policy, turn, seen, &standing, step, executor, wake);
            return Ok(());
        }
        let rest = patience.saturating_sub(idle);
        if !rest.is_zero() && !block.outlasts(rest) {
            wake.at(rest);
            return Err(block);
        }
        pass_over(ctx, turn, standing, rule, step, &block);
    }
}

/// Skips a step that is impossible or has no place here. Returns whether it did.
fn is_skipped(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    turn: &mut RemediationUpdate,
    standing: &RemediationFault,
    rule: &Rule,
    step: &Step,
) -> bool {
    let mut standing = standing.clone();
    let procedure = procedure::of(&step.action);
    // A new remediation begins nothing for a step that is impossible. An open one waits for it.
    let is_new = turn.remediation.identity.is_none() && !step.action.contains();
    if let Some(block) = procedure.require_available(ctx.cluster, facts).err().filter(|_| is_new) {
        turn.remediation.say(block.message());
        standing.step_index += 1;
    } else if let Some(why) = procedure.skip_reason(ctx.cluster, facts, &turn.remediation) {
        // The record says afterwards, too, that this was not done.
        let mut record = attempt::record(ctx, &turn.remediation, &standing, step, Executor::Controller);
        record.finish(StepState::Refused, &why, ctx.snapshot.now);
        turn.remediation.steps.push(record);
        standing.step_index = rule.step_after_skip(step, standing.step_index);
    } else {
        return false;
    }
    replace(&mut turn.remediation, standing);
    true
}

/// Returns the fault as it shows now, and the executor that may take this step on it.
#[expect(clippy::too_many_arguments, reason = "the same that a step is taken with")]
fn judged<'s, 'a>(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    remediation: &Remediation,
    standing: &RemediationFault,
    seen: Option<&'s ObservedFault<'a>>,
    rule: &Rule,
    step: &Step,
) -> Result<(&'s ObservedFault<'a>, Executor), Block> {
    let seen = present(facts, standing, seen)?;
    let executor = select::may_take(ctx, facts, policy, seen, rule, step, EvidenceRequirement::Fresh)?;
    select::require_prepared(ctx, facts, policy, remediation, standing, seen, rule, step)?;
    Ok((seen, executor))
}

/// Returns the fault as it shows now. Without it the controller does nothing about the fault.
fn present<'s, 'a>(
    facts: &NodeContext<'_>,
    standing: &RemediationFault,
    seen: Option<&'s ObservedFault<'a>>,
) -> Result<&'s ObservedFault<'a>, Block> {
    let what = format!("{} ({}) on {}", standing.kind, standing.subject, facts.name);
    match seen {
        Some(seen) if seen.fault.state == FaultState::Confirmed => Ok(seen),
        Some(_) => Err(Block::new(BlockReason::NotConfirmed, &format!("{what} is not confirmed any more"))),
        None => {
            Err(Block::new(BlockReason::NotConfirmed, &format!("{what} does not show now; its end is not sure yet")))
        }
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
fn shadow(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    mut standing: RemediationFault,
    seen: Option<&ObservedFault<'_>>,
    rule: &Rule,
    step: &Step,
) {
    let judged = judged(ctx, facts, policy, &turn.remediation, &standing, seen, rule, step);
    let executor = judged.as_ref().map_or(Executor::Controller, |(_, executor)| *executor);
    let mut record = attempt::record(ctx, &turn.remediation, &standing, step, executor);
    let message = match judged {
        Ok((seen, _)) => {
            record.target = seen.fault.target.clone();
            "not executed: the step is a dry run".to_owned()
        }
        Err(block) => format!("not executed: the step is a dry run, and would be blocked: {}", block.message()),
    };
    record.finish(StepState::Simulated, &message, ctx.snapshot.now);
    turn.remediation.steps.push(record);
    standing.step_index += 1;
    replace(&mut turn.remediation, standing);
}

#[expect(clippy::too_many_arguments, reason = "all of them make up the reservation")]
fn reserve(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    seen: &ObservedFault<'_>,
    standing: &RemediationFault,
    step: &Step,
    executor: Executor,
    wake: &mut Wake,
) {
    let mut record = attempt::record(ctx, &turn.remediation, standing, step, executor);
    executors::note(facts, &mut record);
    record.target = seen.fault.target.clone();
    let agreed = turn.remediation.requested_by(standing, step.action.kind(), policy);
    record.approved_by = agreed.map(ToOwned::to_owned);
    turn.remediation.say(&format!("{} for {} ({}) by {executor:?}", record.phrase(), standing.kind, standing.subject));
    turn.effect = attempt::act(ctx, facts, policy, &mut turn.remediation, &record, &seen.fault, step);
    turn.remediation.steps.push(record);
    wake.at(ctx.settings.retry);
}

/// Skips a step that stayed blocked for too long, or that will stay blocked for longer than the block timeout: every wait has an
/// end. No harsher step replaces one that waits for its window or for the node's action limit, or whose rule is ambiguous. The
/// controller notifies people instead, where the rule has such a step.
fn pass_over(
    ctx: Ctx<'_>,
    turn: &mut RemediationUpdate,
    mut standing: RemediationFault,
    rule: &Rule,
    step: &Step,
    block: &Block,
) {
    let mut record = attempt::record(ctx, &turn.remediation, &standing, step, Executor::Controller);
    let why = if block.reason == BlockReason::NodeLimit { "not done" } else { "blocked for too long" };
    record.finish(StepState::Refused, &format!("{why}: {}", block.message()), ctx.snapshot.now);
    turn.remediation.steps.push(record);
    standing.step_index = rule.step_after_skip(step, standing.step_index);
    if block.waits_for_window() || block.is_ambiguous() {
        standing.step_index = rule.next_notify_step(standing.step_index);
    }
    replace(&mut turn.remediation, standing);
}
