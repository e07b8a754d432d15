//! The next step of a remediation: which fault is next, and whether its step is reserved, recorded as a dry run, skipped, or blocked.

use jiff::Timestamp;

use super::select::EvidenceRequirement;
use super::update::RemediationUpdate;
use super::{PolicyContext, approval, attempt, cause, checks, select};
use crate::command::OutcomeReason;
use crate::context::{Block, NodeContext, Probe};
use crate::fault::Fault;
use crate::moment::since;
use crate::plan::BlockReason;
use crate::policy::{Mode, Rule, Step};
use crate::procedure::{self, executors, pending_operation};
use crate::remediation::{
    Executor, MAX_REMEDIATION_FAULTS, MAX_STEPS, Remediation, RemediationFault, Resolution, StepRecord, StepState,
};

/// Reserves the next step: that of the most urgent fault for which a step may be taken now.
pub(super) fn reserve_for_most_urgent(cx: PolicyContext<'_>, update: &mut RemediationUpdate) {
    reserve_except(cx, update, None);
}

/// Reserves the next step of the most urgent fault except one.
pub(super) fn reserve_except(cx: PolicyContext<'_>, update: &mut RemediationUpdate, except: Option<&str>) {
    for id in by_urgency(&update.remediation, cx.node).into_iter().filter(|id| Some(id.as_str()) != except) {
        if let Some(step) = update.remediation.current_step() {
            let message = format!("{} for a more urgent fault of node {} goes first", step.phrase(), cx.node.name);
            update.block(&id, Block::new(BlockReason::LowerUrgency, &message));
            continue;
        }
        if let Err(block) = try_fault(cx, update, &id) {
            update.block(&id, block);
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

fn try_fault(cx: PolicyContext<'_>, update: &mut RemediationUpdate, id: &str) -> Result<(), Block> {
    if let Some(rule) = update.remediation.fault(id).and_then(|fault| cx.policy.rule(&fault.rule)) {
        select::follow_edit(&mut update.remediation, id, rule);
    }
    loop {
        let Some(mut open_fault) = update.remediation.fault(id).cloned() else { return Ok(()) };
        let Some(rule) = cx.policy.rule(&open_fault.rule) else { return Ok(()) };
        checks::after_refused_call(cx.snapshot.now, &update.remediation, &open_fault, rule)?;
        let seen = cx.node.find(id);
        // Every wait has an end.
        let is_waiting = since(cx.snapshot.now, update.remediation.last_activity()) < cause::MAX_CAUSE_WAIT;
        if update.remediation.manual.is_none() && is_waiting {
            cause::require_cause_checked_again(cx, &open_fault)?;
        }
        let mut notes = Vec::new();
        let fault = seen.map(|seen| seen.fault.as_ref());
        let step = select::select_step(cx, &mut open_fault, rule, Some(&update.remediation), fault, &mut notes);
        for note in notes {
            update.remediation.say(&note);
        }
        let steps = update.remediation.steps.len();
        let is_full = steps >= MAX_STEPS - MAX_REMEDIATION_FAULTS;
        if is_full && step.is_some_and(|step| !step.action.notifies()) {
            // There is still room to notify people of each fault.
            open_fault.step_index = rule.next_notify_step(open_fault.step_index);
            replace(&mut update.remediation, open_fault);
            continue;
        }
        let Some(step) = step.filter(|_| steps < MAX_STEPS) else {
            open_fault.state = Resolution::Exhausted;
            let why = if is_full { "the remediation has reached its limit of steps" } else { "no step is left" };
            update.remediation.say(&format!("{open_fault}: {why}; a person is needed"));
            replace(&mut update.remediation, open_fault);
            return Ok(());
        };
        replace(&mut update.remediation, open_fault.clone());
        if step.mode == Mode::DryRun {
            record_dry_run(cx, update, open_fault, step);
            continue;
        }
        if is_skipped(cx, update, &open_fault, rule, step) {
            continue;
        }
        checks::cooled_down(cx.node, &update.remediation, &open_fault, step)?;
        update.slot.require()?;
        let seen = match attempt::check(cx, &update.remediation, &open_fault, step, EvidenceRequirement::Fresh) {
            Ok(seen) => seen,
            Err(block) if block.reason == BlockReason::Cooldown => return Err(block),
            Err(block) => {
                let known = &update.remediation;
                let blocked = since(cx.snapshot.now, blocked_since(cx, known, &open_fault, step, &block));
                let remaining = cx.block_timeout(step).saturating_sub(blocked);
                let is_late = remaining.is_zero() || cx.node.probe == Probe::Silent;
                if let Some(seen) = seen.filter(|_| is_late && step.action.notifies() && block.awaits_check()) {
                    // The last observation was bad, and nobody can check any more. The controller notifies people anyway.
                    select::may_take(cx, Some(known), seen, rule, step, EvidenceRequirement::Any)?;
                    seen
                } else if !remaining.is_zero() && !block.outlasts(remaining) {
                    update.requeue.after(remaining);
                    return Err(block);
                } else {
                    skip_blocked_step(cx, update, open_fault, rule, step, &block);
                    continue;
                }
            }
        };
        let executor = executors::of(cx.node, &step.action);
        let mut record = attempt::record(cx.node, &update.remediation, &open_fault, step, executor);
        record.target = seen.fault.target.clone();
        let agreed = update.remediation.requested_by(&open_fault, step.action.kind(), cx.policy);
        record.approved_by = agreed.map(ToOwned::to_owned);
        if step.needs_approval() && agreed.is_none() {
            approval::ask(update, record, step);
        } else {
            if step.acts() {
                update.may_start(open_fault.kind)?;
                pending_operation::require_none(cx.node, &update.remediation, executor)?;
            }
            reserve(cx, update, record, &seen.fault, step);
        }
        return Ok(());
    }
}

/// Since when the step could have been taken but for a block. All faults of the node share one block timeout.
fn blocked_since(
    cx: PolicyContext<'_>,
    remediation: &Remediation,
    open_fault: &RemediationFault,
    step: &Step,
    block: &Block,
) -> Timestamp {
    let activity = if block.waits_for_window() { remediation.last_touched() } else { remediation.last_activity() };
    // Before these times it could not have started anyway.
    let pending = pending_operation::unanswered(cx.node, remediation).map(|(until, _)| until);
    let cooled = checks::cools_until(remediation, open_fault, step);
    let earliest = pending.into_iter().chain(cooled).map(|at| at.min(cx.snapshot.now));
    earliest.fold(activity, Timestamp::max)
}

/// Skips a step that is impossible or has no place here. Returns whether it did.
fn is_skipped(
    cx: PolicyContext<'_>,
    update: &mut RemediationUpdate,
    open_fault: &RemediationFault,
    rule: &Rule,
    step: &Step,
) -> bool {
    let mut open_fault = open_fault.clone();
    let procedure = procedure::of(&step.action);
    // A new remediation skips such a step, but not one that isolates the node, unless nothing at all may be tried
    // there. An open remediation waits.
    let is_new =
        |block: &Block| update.remediation.identity.is_none() && (block.prevents_any_try() || !step.action.contains());
    if let Some(block) = select::require_available(cx.node, open_fault.kind, step).err().filter(is_new) {
        if block.prevents_any_try() {
            skip_blocked_step(cx, update, open_fault, rule, step, &block);
            return true;
        }
        update.remediation.say(block.message());
        open_fault.step_index += 1;
    } else if let Some(why) = procedure.skip_reason(cx.node, &update.remediation) {
        // The record says afterwards, too, that this was not done.
        record_skipped(cx.node, update, &open_fault, step, &why, None);
        open_fault.step_index = rule.step_after_skip(step, open_fault.step_index);
    } else {
        return false;
    }
    replace(&mut update.remediation, open_fault);
    true
}

fn replace(remediation: &mut Remediation, open_fault: RemediationFault) {
    if let Some(fault) = remediation.fault_mut(&open_fault.id)
        && *fault != open_fault
    {
        *fault = open_fault;
    }
}

/// Records a dry-run step, or that even the dry run would be blocked, and goes on to the next step.
fn record_dry_run(
    cx: PolicyContext<'_>,
    update: &mut RemediationUpdate,
    mut open_fault: RemediationFault,
    step: &Step,
) {
    let checked = attempt::check(cx, &update.remediation, &open_fault, step, EvidenceRequirement::Fresh);
    let executor = if checked.is_ok() { executors::of(cx.node, &step.action) } else { Executor::Controller };
    let mut record = attempt::record(cx.node, &update.remediation, &open_fault, step, executor);
    let message = match checked {
        Ok(seen) => {
            record.target = seen.fault.target.clone();
            "not executed: the step is a dry run".to_owned()
        }
        Err(block) => format!("not executed: the step is a dry run, and would be blocked: {}", block.message()),
    };
    record.finish(StepState::Simulated, &message, cx.snapshot.now);
    update.remediation.steps.push(record);
    open_fault.step_index += 1;
    replace(&mut update.remediation, open_fault);
}

fn reserve(cx: PolicyContext<'_>, update: &mut RemediationUpdate, mut record: StepRecord, fault: &Fault, step: &Step) {
    executors::note(cx.node, &mut record);
    attempt::announce(&mut update.remediation, &record, &format!(" by {:?}", record.executor));
    attempt::act(cx, update, &record, fault, step);
    update.remediation.steps.push(record);
}

/// Skips a step that is blocked for longer than the block timeout, or before a new remediation has begun. Where the block says
/// nothing about the step, only notifications follow.
fn skip_blocked_step(
    cx: PolicyContext<'_>,
    update: &mut RemediationUpdate,
    mut open_fault: RemediationFault,
    rule: &Rule,
    step: &Step,
    block: &Block,
) {
    let is_at_once = block.reason == BlockReason::NodeLimit || update.remediation.identity.is_none();
    let why = if is_at_once { "not done" } else { "blocked for too long" };
    let reason = block.prevents_any_try().then_some(OutcomeReason::CheckFailed);
    record_skipped(cx.node, update, &open_fault, step, &format!("{why}: {}", block.message()), reason);
    open_fault.step_index = rule.step_after_skip(step, open_fault.step_index);
    if block.is_no_verdict() {
        open_fault.step_index = rule.next_notify_step(open_fault.step_index);
    }
    replace(&mut update.remediation, open_fault);
}

fn record_skipped(
    node: &NodeContext<'_>,
    update: &mut RemediationUpdate,
    open_fault: &RemediationFault,
    step: &Step,
    why: &str,
    reason: Option<OutcomeReason>,
) {
    let mut record = attempt::record(node, &update.remediation, open_fault, step, Executor::Controller);
    record.reason = reason;
    record.finish(StepState::Refused, why, node.cluster.snapshot.now);
    update.remediation.steps.push(record);
}
