//! One update of an open remediation: the controller advances its step, records resolved faults, adds new faults, and reserves
//! the next step.

use jiff::Timestamp;

use super::scope::{self, Scope};
use super::slot::SlotReservation;
use super::update::RemediationUpdate;
use super::{Ctx, approval, attempt, cause, cleanup, ending, next_step, stabilization, steps};
use crate::budget::Slots;
use crate::context::{Block, ClearCheck, NodeContext, Wake, evidence, of_policy};
use crate::fault::{FaultState, FaultType};
use crate::plan::BlockReason;
use crate::policy::{Policy, Rule, RuleMatch};
use crate::procedure::{boot, hand_off, marker};
use crate::remediation::{MAX_REMEDIATION_FAULTS, Marker, Remediation, Resolution, StepState};

/// Runs one reconcile of an open remediation.
pub(super) fn take(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    remediation: &Remediation,
    slot: &SlotReservation,
    slots: &mut Slots,
    wake: &mut Wake,
) -> RemediationUpdate {
    let mut turn = RemediationUpdate::new(remediation.clone());
    hand_off::note_uncordon(ctx.cluster, facts, &mut turn.remediation);
    let is_known = marker::record_removed(ctx.cluster, facts, &mut turn.remediation);
    if !remediation.phase.is_final() {
        match (ending::must_end(ctx, facts, &turn.remediation), slot, of_policy::policy_of(ctx.cluster, remediation)) {
            (Some(why), ..) => ending::cancel(ctx, &mut turn.remediation, &why),
            (None, SlotReservation::Refused(why), _) => ending::cancel(ctx, &mut turn.remediation, why),
            (None, _, Some(policy)) if is_known => go_on(ctx, facts, policy, &mut turn, (slot, slots), wake),
            (None, _, _) => {}
        }
    }
    if stabilization::is_awaited(ctx, facts, &mut turn, wake) {
        return turn;
    }
    if turn.remediation.is_watched() {
        // From here on the controller runs the pending cleanup. The record has to say so before the cleanup begins.
        turn.remediation.set_phase();
    }
    if let Some(cleanup) = cleanup::clean_up(ctx, facts, &mut turn.remediation, wake) {
        turn.effect = Some(cleanup);
        wake.at(ctx.settings.retry);
    }
    cleanup::note_pending_reboot(ctx, facts, &mut turn, wake);
    turn
}

fn go_on(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    (slot, slots): (&SlotReservation, &mut Slots),
    wake: &mut Wake,
) {
    steps::move_on(ctx, facts, policy, turn, slot, wake);
    if let Some(why) = scope::broken(policy) {
        set_aside(turn, &why, ctx.snapshot.now);
    }
    mark_healed(ctx, facts, &mut turn.remediation);
    if turn.remediation.phase.is_final() {
        return;
    }
    if turn.remediation.current_step().is_none() {
        if let Some(why) = ending::must_stop(ctx, facts, &turn.remediation) {
            // A remediation without work comes to its own end, and takes in nothing new.
            if turn.remediation.has_work() {
                ending::cancel(ctx, &mut turn.remediation, &why);
            }
            return;
        }
        join(ctx, facts, policy, turn, slots, wake);
        // The remediator of a finished step releases the node before the controller does anything else to it.
        if let Some(back) = cleanup::take_back(ctx, facts, &mut turn.remediation, Marker::is_hand_off) {
            turn.effect = Some(back);
            hold_back(ctx, turn, wake);
            wake.at(ctx.settings.retry);
        }
        if turn.effect.is_none() {
            match scope::broken(policy) {
                Some(why) => hold_open(turn, &why, wake),
                None => next_step::reserve_for_most_urgent(ctx, facts, policy, turn, slot, wake),
            }
        }
    } else {
        let blocked = turn.blocked.len();
        wait_for_step(turn, wake);
        join(ctx, facts, policy, turn, slots, wake);
        yield_to_more_urgent(ctx, facts, policy, turn, blocked, slot, wake);
    }
    turn.remediation.set_phase();
}

/// Blocks all open faults while the object of a remediator is to be deleted.
fn hold_back(ctx: Ctx<'_>, turn: &mut RemediationUpdate, wake: &mut Wake) {
    match hand_off::deletion_block(ctx.cluster, &turn.remediation) {
        Err(rest) => wake.at(rest),
        Ok(None) => {}
        Ok(Some(block)) => {
            for id in open_but(&turn.remediation, None) {
                turn.block(&id, block.clone(), wake);
            }
        }
    }
}

/// Records faults that are gone by a clean check, whether a step resolved them or they resolved by themselves.
fn mark_healed(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation) {
    let current = remediation.current_step().map(|step| step.fault_id.clone());
    let mut healed = Vec::new();
    for fault in &remediation.faults {
        if fault.state == Resolution::Resolved || current.as_deref() == Some(fault.id.as_str()) {
            continue;
        }
        let after = remediation.steps.iter().filter(|s| s.fault_id == fault.id).filter_map(|s| s.executed_at).max();
        if facts.clear_check(fault, after, ctx.snapshot.now, ctx.settings.evidence_max_age) == ClearCheck::Clean {
            healed.push((fault.id.clone(), fault.kind, after.is_some()));
        }
    }
    for (id, kind, was_acted_on) in healed {
        if let Some(fault) = remediation.fault_mut(&id) {
            fault.state = Resolution::Resolved;
        }
        let how = if was_acted_on { "is gone now" } else { "recovered by itself" };
        remediation.say(&format!("{kind} {how}"));
    }
}

/// Adds confirmed faults of the node that are not in the remediation yet, or have come back.
fn join(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    slots: &mut Slots,
    wake: &mut Wake,
) {
    let scope = ctx.scopes.get(policy.name.as_str());
    let selects = facts.policies.iter().any(|selecting| selecting.name == policy.name);
    for seen in facts.seen.iter().filter(|seen| seen.fault.state == FaultState::Confirmed) {
        let id = seen.fault.id.as_str();
        match turn.remediation.fault(id).map(|fault| fault.state) {
            Some(Resolution::Open) => continue,
            Some(Resolution::Exhausted) => {
                let is_fresh = evidence::require_fresh(facts, seen, ctx.cluster).is_ok();
                let how =
                    if is_fresh { "and it is still there" } else { "and nobody can check whether it is still there" };
                let message =
                    format!("{} ({}): no step is left {how}; a person is needed", seen.fault.kind, seen.fault.subject);
                turn.block(id, Block::new(BlockReason::StepsExhausted, &message), wake);
                continue;
            }
            Some(Resolution::Resolved) | None => {}
        }
        if !selects {
            // The policy does not select the node any more. The remediation finishes what has begun, and takes in nothing new.
            let message = format!(
                "{} ({}): policy {} does not select node {} any more; its remediation {} has the node until its end",
                seen.fault.kind, seen.fault.subject, policy.name, facts.name, turn.remediation.name
            );
            turn.block(id, Block::new(BlockReason::LowerUrgency, &message), wake);
            continue;
        }
        let other = facts.policy_for(&seen.fault).filter(|other| other.name != policy.name);
        if let Some((other, RuleMatch::Perhaps(rule, lack))) =
            other.map(|other| (other, facts.rule_of(other, &seen.fault)))
        {
            turn.block(id, of_policy::doubtful(other, rule, &seen.fault, &lack), wake);
            continue;
        }
        if let Some(other) = other {
            let message = format!(
                "{} ({}) is for policy {}; remediation {} of policy {} has the node until its end",
                seen.fault.kind, seen.fault.subject, other.name, turn.remediation.name, policy.name
            );
            turn.block(id, Block::new(BlockReason::LowerUrgency, &message), wake);
            continue;
        }
        match cause::judge(ctx, facts, policy, seen).and_then(|rule| not_blocked(facts, scope, rule)) {
            Err(block) => turn.block(id, block, wake),
            // A booting node shows many faults that resolve by themselves.
            Ok(_) if boot::is_under_way(&turn.remediation) => under_way(turn, id, wake),
            Ok(rule) => {
                let kind = seen.fault.kind;
                if let Some(scope) =
                    scope.filter(|scope| scope.limits(kind) && !turn.remediation.kinds().contains(&kind))
                    && let Some(block) = limited(ctx, facts, scope, turn, kind, slots)
                {
                    turn.block(id, block, wake);
                    continue;
                }
                if let Some(fault) = turn.remediation.fault_mut(id) {
                    (fault.state, fault.since) = (Resolution::Open, seen.opened(ctx.snapshot.now, rule).since);
                    fault.clear_since = None;
                } else if turn.remediation.faults.len() < MAX_REMEDIATION_FAULTS {
                    turn.remediation.faults.push(seen.opened(ctx.snapshot.now, rule));
                } else {
                    let message = format!(
                        "remediation {} has as many faults as it may have; the next one takes it",
                        turn.remediation.name
                    );
                    turn.block(id, Block::new(BlockReason::LowerUrgency, &message), wake);
                    continue;
                }
                if turn.remediation.current_step().is_some() {
                    under_way(turn, id, wake);
                }
            }
        }
    }
}

/// Blocks a joining fault where no new remediation may begin: it is as new as one that would open a remediation.
fn not_blocked<'p>(facts: &NodeContext<'_>, scope: Option<&Scope<'_>>, rule: &'p Rule) -> Result<&'p Rule, Block> {
    let blocked = scope.and_then(|scope| scope.blocked(Some(facts)));
    blocked.map_or(Ok(rule), |(reason, message)| Err(Block::new(reason, &message)))
}

/// Returns why a fault of a kind with its own limit does not join the remediation now. Either enough others of that kind are
/// remediated, or the stored slot does not note the kind yet. The next leader counts by the stored slot.
fn limited(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    scope: &Scope<'_>,
    turn: &RemediationUpdate,
    kind: FaultType,
    slots: &mut Slots,
) -> Option<Block> {
    if let Some((reason, message)) = scope.full(kind, facts.name, slots) {
        return Some(Block::new(reason, &message));
    }
    if slots.is_noted(&turn.remediation.name, kind) {
        return None;
    }
    slots.note(&turn.remediation.name, kind);
    let message =
        format!("{kind} has a limit of its own (limits.perFault): it is noted in the ledger before it is dealt with");
    Some(Block::new(BlockReason::FaultLimit, &message).until(ctx.settings.retry))
}

/// Cancels a step that has not begun, awaits approval, or would need another check before each round. Such a check cannot pass
/// for an unusable policy, and a step that was never tried must not count as tried. The engine may select the step again when the
/// policy is valid.
fn set_aside(turn: &mut RemediationUpdate, why: &str, now: Timestamp) {
    let Some(step) = turn.remediation.current_step() else { return };
    let is_waiting = match step.state {
        StepState::AwaitingApproval => true,
        StepState::Scheduled => step.started_at.is_none(),
        StepState::Started => step.action.traits().evicts_pods,
        _ => false,
    };
    if is_waiting {
        attempt::end(turn, StepState::Cancelled, why, now);
        turn.effect = None;
    }
}

/// Blocks all open faults with this reason.
fn hold_open(turn: &mut RemediationUpdate, why: &str, wake: &mut Wake) {
    for id in open_but(&turn.remediation, None) {
        turn.block(&id, Block::new(BlockReason::Paused, why), wake);
    }
}

fn wait_for_step(turn: &mut RemediationUpdate, wake: &mut Wake) {
    let Some(current) = turn.remediation.current_step().map(|step| step.fault_id.clone()) else { return };
    for id in open_but(&turn.remediation, Some(&current)) {
        under_way(turn, &id, wake);
    }
}

/// Returns the open faults except one.
fn open_but(remediation: &Remediation, but: Option<&str>) -> Vec<String> {
    let open = remediation.faults.iter().filter(|fault| fault.state == Resolution::Open);
    open.map(|fault| fault.id.clone()).filter(|id| Some(id.as_str()) != but).collect()
}

fn under_way(turn: &mut RemediationUpdate, id: &str, wake: &mut Wake) {
    let Some(step) = turn.remediation.current_step() else { return };
    let how = if step.state == StepState::AwaitingApproval { "awaits approval" } else { "is under way" };
    let message = format!("{} {how} on node {}; one step at a time", step.phrase(), turn.remediation.node);
    turn.block(id, Block::new(BlockReason::InProgress, &message), wake);
}

/// Withdraws a step that awaits approval, where another fault of the node can be remediated without approval. The controller asks
/// again after that. `blocked` is the number of blocks in the update before it reported what the other faults wait for.
fn yield_to_more_urgent(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    blocked: usize,
    slot: &SlotReservation,
    wake: &mut Wake,
) {
    let may = turn.remediation.unanswered().is_some() && !policy.is_broken;
    let waiting = turn.remediation.current_step().filter(|_| may);
    let Some(fault) = waiting.map(|step| step.fault_id.clone()) else { return };
    let mut other = RemediationUpdate::new(turn.remediation.clone());
    attempt::end(&mut other, StepState::Cancelled, approval::GAVE_WAY, ctx.snapshot.now);
    let mut later = *wake;
    next_step::reserve_but(ctx, facts, policy, &mut other, Some(&fault), slot, &mut later);
    let goes_first = other.remediation.current_step().is_some_and(|step| !step.action.notifies());
    if other.effect.is_none() || !goes_first {
        return;
    }
    *wake = later;
    turn.blocked.truncate(blocked);
    turn.blocked.append(&mut other.blocked);
    (turn.remediation, turn.effect) = (other.remediation, other.effect);
}
