//! One update of an open remediation: the controller advances its step, records resolved faults, adds new faults, and reserves
//! the next step.

use jiff::Timestamp;

use super::scope::{self, Scope};
use super::slot::SlotReservation;
use super::update::RemediationUpdate;
use super::{Ctx, approval, attempt, cause, cleanup, ending, next_step, stabilization, steps};
use crate::budget::Slots;
use crate::context::{Block, ClearCheck, NodeContext, Requeue, evidence, of_policy};
use crate::fault::{FaultState, FaultType};
use crate::plan::BlockReason;
use crate::policy::{Policy, Rule, RuleMatch};
use crate::procedure::{boot, hand_off, marker};
use crate::remediation::{MAX_REMEDIATION_FAULTS, Marker, Remediation, Resolution, StepState};

/// Runs one reconcile of an open remediation.
pub(super) fn take(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    remediation: &Remediation,
    slot: &SlotReservation,
    slots: &mut Slots,
    requeue: &mut Requeue,
) -> RemediationUpdate {
    let mut update = RemediationUpdate::new(remediation.clone());
    hand_off::note_uncordon(ctx.cluster, node, &mut update.remediation);
    let is_known = marker::record_removed(ctx.cluster, node, &mut update.remediation);
    if !remediation.phase.is_final() {
        match (ending::must_end(ctx, node, &update.remediation), slot, of_policy::policy_of(ctx.cluster, remediation)) {
            (Some(why), ..) => ending::cancel(ctx, &mut update.remediation, &why),
            (None, SlotReservation::Refused(why), _) => ending::cancel(ctx, &mut update.remediation, why),
            (None, _, Some(policy)) if is_known => go_on(ctx, node, policy, &mut update, (slot, slots), requeue),
            (None, _, _) => {}
        }
    }
    if stabilization::is_awaited(ctx, node, &mut update, requeue) {
        return update;
    }
    if update.remediation.is_watched() {
        // From here on the controller runs the pending cleanup. The record has to say so before the cleanup begins.
        update.remediation.set_phase();
    }
    if let Some(cleanup) = cleanup::clean_up(ctx, node, &mut update.remediation, requeue) {
        update.effect = Some(cleanup);
        requeue.after(ctx.settings.retry);
    }
    cleanup::note_pending_reboot(ctx, node, &mut update, requeue);
    update
}

fn go_on(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    policy: &Policy,
    update: &mut RemediationUpdate,
    (slot, slots): (&SlotReservation, &mut Slots),
    requeue: &mut Requeue,
) {
    steps::move_on(ctx, node, policy, update, slot, requeue);
    if let Some(why) = scope::broken(policy) {
        set_aside(update, &why, ctx.snapshot.now);
    }
    mark_healed(ctx, node, &mut update.remediation);
    if update.remediation.phase.is_final() {
        return;
    }
    if update.remediation.current_step().is_none() {
        if let Some(why) = ending::must_stop(ctx, node, &update.remediation) {
            // A remediation without work comes to its own end, and takes in nothing new.
            if update.remediation.has_work() {
                ending::cancel(ctx, &mut update.remediation, &why);
            }
            return;
        }
        join(ctx, node, policy, update, slots, requeue);
        // The remediator of a finished step releases the node before the controller does anything else to it.
        if let Some(back) = cleanup::take_back(ctx, node, &mut update.remediation, Marker::is_hand_off) {
            update.effect = Some(back);
            hold_back(ctx, update, requeue);
            requeue.after(ctx.settings.retry);
        }
        if update.effect.is_none() {
            match scope::broken(policy) {
                Some(why) => hold_open(update, &why, requeue),
                None => next_step::reserve_for_most_urgent(ctx, node, policy, update, slot, requeue),
            }
        }
    } else {
        let blocked = update.blocked.len();
        wait_for_step(update, requeue);
        join(ctx, node, policy, update, slots, requeue);
        yield_to_more_urgent(ctx, node, policy, update, blocked, slot, requeue);
    }
    update.remediation.set_phase();
}

/// Blocks all open faults while the object of a remediator is to be deleted.
fn hold_back(ctx: Ctx<'_>, update: &mut RemediationUpdate, requeue: &mut Requeue) {
    match hand_off::deletion_block(ctx.cluster, &update.remediation) {
        Err(rest) => requeue.after(rest),
        Ok(None) => {}
        Ok(Some(block)) => {
            for id in open_but(&update.remediation, None) {
                update.block(&id, block.clone(), requeue);
            }
        }
    }
}

/// Records faults that are gone by a clean check, whether a step resolved them or they resolved by themselves.
fn mark_healed(ctx: Ctx<'_>, node: &NodeContext<'_>, remediation: &mut Remediation) {
    let current = remediation.current_step().map(|step| step.fault_id.clone());
    let mut healed = Vec::new();
    for fault in &remediation.faults {
        if fault.state == Resolution::Resolved || current.as_deref() == Some(fault.id.as_str()) {
            continue;
        }
        let after = remediation.steps.iter().filter(|s| s.fault_id == fault.id).filter_map(|s| s.executed_at).max();
        if node.clear_check(fault, after, ctx.snapshot.now, ctx.settings.evidence_max_age) == ClearCheck::Clean {
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
    node: &NodeContext<'_>,
    policy: &Policy,
    update: &mut RemediationUpdate,
    slots: &mut Slots,
    requeue: &mut Requeue,
) {
    let scope = ctx.scopes.get(policy.name.as_str());
    let selects = node.policies.iter().any(|selecting| selecting.name == policy.name);
    for seen in node.seen.iter().filter(|seen| seen.fault.state == FaultState::Confirmed) {
        let id = seen.fault.id.as_str();
        match update.remediation.fault(id).map(|fault| fault.state) {
            Some(Resolution::Open) => continue,
            Some(Resolution::Exhausted) => {
                let is_fresh = evidence::require_fresh(node, seen, ctx.cluster).is_ok();
                let how =
                    if is_fresh { "and it is still there" } else { "and nobody can check whether it is still there" };
                let message =
                    format!("{} ({}): no step is left {how}; a person is needed", seen.fault.kind, seen.fault.subject);
                update.block(id, Block::new(BlockReason::StepsExhausted, &message), requeue);
                continue;
            }
            Some(Resolution::Resolved) | None => {}
        }
        if !selects {
            // The policy does not select the node any more. The remediation finishes what has begun, and takes in nothing new.
            let message = format!(
                "{} ({}): policy {} does not select node {} any more; its remediation {} has the node until its end",
                seen.fault.kind, seen.fault.subject, policy.name, node.name, update.remediation.name
            );
            update.block(id, Block::new(BlockReason::LowerUrgency, &message), requeue);
            continue;
        }
        let other = node.policy_for(&seen.fault).filter(|other| other.name != policy.name);
        if let Some((other, RuleMatch::Perhaps(rule, lack))) =
            other.map(|other| (other, node.rule_of(other, &seen.fault)))
        {
            update.block(id, of_policy::doubtful(other, rule, &seen.fault, &lack), requeue);
            continue;
        }
        if let Some(other) = other {
            let message = format!(
                "{} ({}) is for policy {}; remediation {} of policy {} has the node until its end",
                seen.fault.kind, seen.fault.subject, other.name, update.remediation.name, policy.name
            );
            update.block(id, Block::new(BlockReason::LowerUrgency, &message), requeue);
            continue;
        }
        match cause::judge(ctx, node, policy, seen).and_then(|rule| not_blocked(node, scope, rule)) {
            Err(block) => update.block(id, block, requeue),
            // A booting node shows many faults that resolve by themselves.
            Ok(_) if boot::is_under_way(&update.remediation) => under_way(update, id, requeue),
            Ok(rule) => {
                let kind = seen.fault.kind;
                if let Some(scope) =
                    scope.filter(|scope| scope.limits(kind) && !update.remediation.kinds().contains(&kind))
                    && let Some(block) = limited(ctx, node, scope, update, kind, slots)
                {
                    update.block(id, block, requeue);
                    continue;
                }
                if let Some(fault) = update.remediation.fault_mut(id) {
                    (fault.state, fault.since) = (Resolution::Open, seen.opened(ctx.snapshot.now, rule).since);
                    fault.clear_since = None;
                } else if update.remediation.faults.len() < MAX_REMEDIATION_FAULTS {
                    update.remediation.faults.push(seen.opened(ctx.snapshot.now, rule));
                } else {
                    let message = format!(
                        "remediation {} has as many faults as it may have; the next one takes it",
                        update.remediation.name
                    );
                    update.block(id, Block::new(BlockReason::LowerUrgency, &message), requeue);
                    continue;
                }
                if update.remediation.current_step().is_some() {
                    under_way(update, id, requeue);
                }
            }
        }
    }
}

/// Blocks a joining fault where no new remediation may begin: it is as new as one that would open a remediation.
fn not_blocked<'p>(node: &NodeContext<'_>, scope: Option<&Scope<'_>>, rule: &'p Rule) -> Result<&'p Rule, Block> {
    let blocked = scope.and_then(|scope| scope.blocked(Some(node)));
    blocked.map_or(Ok(rule), |(reason, message)| Err(Block::new(reason, &message)))
}

/// Returns why a fault of a kind with its own limit does not join the remediation now. Either enough others of that kind are
/// remediated, or the stored slot does not note the kind yet. The next leader counts by the stored slot.
fn limited(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    scope: &Scope<'_>,
    update: &RemediationUpdate,
    kind: FaultType,
    slots: &mut Slots,
) -> Option<Block> {
    if let Some((reason, message)) = scope.full(kind, node.name, slots) {
        return Some(Block::new(reason, &message));
    }
    if slots.is_noted(&update.remediation.name, kind) {
        return None;
    }
    slots.note(&update.remediation.name, kind);
    let message =
        format!("{kind} has a limit of its own (limits.perFault): it is noted in the ledger before it is dealt with");
    Some(Block::new(BlockReason::FaultLimit, &message).until(ctx.settings.retry))
}

/// Cancels a step that has not begun, awaits approval, or would need another check before each round. Such a check cannot pass
/// for an unusable policy, and a step that was never tried must not count as tried. The engine may select the step again when the
/// policy is valid.
fn set_aside(update: &mut RemediationUpdate, why: &str, now: Timestamp) {
    let Some(step) = update.remediation.current_step() else { return };
    let is_waiting = match step.state {
        StepState::AwaitingApproval => true,
        StepState::Scheduled => step.started_at.is_none(),
        StepState::Started => step.action.traits().evicts_pods,
        _ => false,
    };
    if is_waiting {
        attempt::end(update, StepState::Cancelled, why, now);
        update.effect = None;
    }
}

/// Blocks all open faults with this reason.
fn hold_open(update: &mut RemediationUpdate, why: &str, requeue: &mut Requeue) {
    for id in open_but(&update.remediation, None) {
        update.block(&id, Block::new(BlockReason::Paused, why), requeue);
    }
}

fn wait_for_step(update: &mut RemediationUpdate, requeue: &mut Requeue) {
    let Some(current) = update.remediation.current_step().map(|step| step.fault_id.clone()) else { return };
    for id in open_but(&update.remediation, Some(&current)) {
        under_way(update, &id, requeue);
    }
}

/// Returns the open faults except one.
fn open_but(remediation: &Remediation, but: Option<&str>) -> Vec<String> {
    let open = remediation.faults.iter().filter(|fault| fault.state == Resolution::Open);
    open.map(|fault| fault.id.clone()).filter(|id| Some(id.as_str()) != but).collect()
}

fn under_way(update: &mut RemediationUpdate, id: &str, requeue: &mut Requeue) {
    let Some(step) = update.remediation.current_step() else { return };
    let how = if step.state == StepState::AwaitingApproval { "awaits approval" } else { "is under way" };
    let message = format!("{} {how} on node {}; one step at a time", step.phrase(), update.remediation.node);
    update.block(id, Block::new(BlockReason::InProgress, &message), requeue);
}

/// Withdraws a step that awaits approval, where another fault of the node can be remediated without approval. The controller asks
/// again after that. `blocked` is the number of blocks in the update before it reported what the other faults wait for.
fn yield_to_more_urgent(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    policy: &Policy,
    update: &mut RemediationUpdate,
    blocked: usize,
    slot: &SlotReservation,
    requeue: &mut Requeue,
) {
    let may = update.remediation.unanswered().is_some() && !policy.is_broken;
    let waiting = update.remediation.current_step().filter(|_| may);
    let Some(fault) = waiting.map(|step| step.fault_id.clone()) else { return };
    let mut other = RemediationUpdate::new(update.remediation.clone());
    attempt::end(&mut other, StepState::Cancelled, approval::GAVE_WAY, ctx.snapshot.now);
    let mut later = *requeue;
    next_step::reserve_except(ctx, node, policy, &mut other, Some(&fault), slot, &mut later);
    let goes_first = other.remediation.current_step().is_some_and(|step| !step.action.notifies());
    if other.effect.is_none() || !goes_first {
        return;
    }
    *requeue = later;
    update.blocked.truncate(blocked);
    update.blocked.append(&mut other.blocked);
    (update.remediation, update.effect) = (other.remediation, other.effect);
}
