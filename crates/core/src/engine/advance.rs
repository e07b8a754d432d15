//! One update of an open remediation: the controller advances its step, records resolved faults, adds new faults, and reserves
//! the next step.

use jiff::Timestamp;

use super::scope::{self, Scope};
use super::slot::SlotReservation;
use super::update::RemediationUpdate;
use super::{
    Ctx, PolicyContext, approval, attempt, cause, cleanup, ending, next_step, readiness, stabilization, steps,
};
use crate::budget::Slots;
use crate::context::{Block, ClearCheck, NodeContext, ObservedFault, evidence, of_policy};
use crate::fault::{FaultState, FaultType};
use crate::plan::BlockReason;
use crate::policy::Rule;
use crate::procedure::{boot, hand_off, marker};
use crate::remediation::{MAX_REMEDIATION_FAULTS, Marker, Remediation, Resolution, StepRecord, StepState};

pub(super) fn take(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    remediation: &Remediation,
    slot: SlotReservation,
    slots: &mut Slots,
) -> RemediationUpdate {
    let mut update = RemediationUpdate::new(remediation.clone(), slot);
    hand_off::note_uncordon(node, &mut update.remediation);
    let is_known = marker::record_removed(node, &mut update.remediation);
    steps::observe(node, &mut update.remediation);
    if !remediation.phase.is_final() {
        let policy = of_policy::policy_of(ctx.cluster, remediation);
        match (ending::must_end(node, &update.remediation), &update.slot, policy) {
            (Some(why), ..) => ending::cancel(ctx, &mut update.remediation, &why),
            (None, SlotReservation::Refused(why), _) => ending::cancel(ctx, &mut update.remediation, why),
            (None, _, Some(policy)) if is_known => {
                let cx = PolicyContext { ctx, node, policy };
                update.held = readiness::held_after_storm(cx, &update.remediation, slots);
                go_on(cx, &mut update, slots);
                slots.note_work(&update.remediation);
            }
            (None, _, _) => {}
        }
    }
    if stabilization::is_awaited(ctx, node, &mut update) {
        return update;
    }
    if update.remediation.is_watched() {
        // From here on the controller runs the pending cleanup. The record has to say so before the cleanup begins.
        update.remediation.set_phase();
    }
    if let Some(cleanup) = cleanup::clean_up(node, &mut update) {
        update.effect = Some(cleanup);
        update.requeue.after(ctx.settings.retry);
    }
    cleanup::note_pending_operation(node, &mut update);
    update
}

fn go_on(cx: PolicyContext<'_>, update: &mut RemediationUpdate, slots: &mut Slots) {
    steps::move_on(cx, update);
    if let Some(why) = scope::broken(cx.policy) {
        set_aside(update, &why, cx.snapshot.now);
    }
    mark_resolved(cx.node, &mut update.remediation);
    if update.remediation.phase.is_final() {
        return;
    }
    if update.remediation.current_step().is_none() {
        if let Some(why) = ending::must_stop(cx.ctx, cx.node, &update.remediation) {
            // A remediation without work comes to its own end, and takes in nothing new.
            if update.remediation.has_work() {
                ending::cancel(cx.ctx, &mut update.remediation, &why);
            }
            return;
        }
        join(cx, update, slots);
        // The remediator of a finished step releases the node before the controller does anything else to it.
        let is_hand_off = |marker: &Marker| marker.hand_off().is_some();
        if let Some(back) = cleanup::remove_next_marker(cx.node, &mut update.remediation, is_hand_off) {
            update.effect = Some(back);
            hold_back(cx.ctx, update);
            update.requeue.after(cx.settings.retry);
        }
        if update.effect.is_none() {
            match scope::broken(cx.policy) {
                Some(why) => block_open(update, &Block::new(BlockReason::Paused, &why)),
                None => next_step::reserve_for_most_urgent(cx, update),
            }
        }
    } else {
        let blocked = update.blocked.len();
        wait_for_step(update);
        join(cx, update, slots);
        yield_to_more_urgent(cx, update, blocked);
    }
    update.remediation.set_phase();
}

/// Blocks all open faults while the object of a remediator is to be deleted.
fn hold_back(ctx: Ctx<'_>, update: &mut RemediationUpdate) {
    match hand_off::deletion_block(ctx.cluster, &update.remediation) {
        Err(rest) => update.requeue.after(rest),
        Ok(None) => {}
        Ok(Some(block)) => block_open(update, &block),
    }
}

/// Records faults that are gone by a clean check, whether a step resolved them or they resolved by themselves.
fn mark_resolved(node: &NodeContext<'_>, remediation: &mut Remediation) {
    let now = node.cluster.snapshot.now;
    let current = remediation.current_step().map(|step| step.fault_id.clone());
    let (steps, mut message) = (&remediation.steps, None);
    for fault in &mut remediation.faults {
        if fault.state == Resolution::Resolved || current.as_deref() == Some(fault.id.as_str()) {
            continue;
        }
        let after = steps.iter().filter(|step| step.fault_id == fault.id).filter_map(|step| step.executed_at).max();
        if node.clear_check(fault, after) != ClearCheck::Clean {
            continue;
        }
        if fault.state == Resolution::Exhausted {
            // It has outlasted its steps: none of them has resolved it.
            fault.clear_since.get_or_insert(now);
        }
        fault.state = Resolution::Resolved;
        let may_have_helped = |step: &StepRecord| step.fault_id == fault.id && step.is_given() && !step.is_free();
        let how =
            if after.is_some() || steps.iter().any(may_have_helped) { "is gone now" } else { "recovered by itself" };
        message = Some(format!("{} {how}", fault.kind));
    }
    if let Some(message) = message {
        remediation.say(&message);
    }
}

/// Adds confirmed faults of the node that are not in the remediation yet, or have come back.
fn join(cx: PolicyContext<'_>, update: &mut RemediationUpdate, slots: &mut Slots) {
    for seen in cx.node.seen.iter().filter(|seen| seen.fault.state == FaultState::Confirmed) {
        let (id, kind) = (seen.fault.id.as_str(), seen.fault.kind);
        if update.remediation.fault(id).is_some_and(|fault| fault.state == Resolution::Open) {
            continue;
        }
        match may_join(cx, update, seen, slots) {
            Err(block) => update.block(id, block),
            Ok(rule) => {
                if cx.scope().is_some_and(|scope| scope.storms.contains_key(&kind)) {
                    // The remediations that this pass looks at later count this one.
                    slots.note(&update.remediation.name, kind);
                }
                let opened = seen.opened(cx.snapshot.now, rule);
                match update.remediation.fault_mut(id) {
                    Some(fault) => (fault.state, fault.since, fault.clear_since) = (opened.state, opened.since, None),
                    None => update.remediation.faults.push(opened),
                }
                under_way(update, id);
            }
        }
    }
}

/// Returns the rule under which the fault joins the remediation now, or why it does not.
fn may_join<'p>(
    cx: PolicyContext<'p>,
    update: &RemediationUpdate,
    seen: &ObservedFault<'_>,
    slots: &mut Slots,
) -> Result<&'p Rule, Block> {
    let (remediation, fault) = (&update.remediation, seen.fault.as_ref());
    let (kind, name) = (fault.kind, &remediation.name);
    let waits = |message: String| Err(Block::new(BlockReason::LowerUrgency, &message));
    let known = remediation.fault(&fault.id);
    if known.is_some_and(|fault| fault.state == Resolution::Exhausted) {
        let is_fresh = evidence::require_fresh(cx.node, seen).is_ok();
        let how = if is_fresh { "and it is still there" } else { "and nobody can check whether it is still there" };
        let message = format!("{fault}: no step is left {how}; a person is needed");
        return Err(Block::new(BlockReason::StepsExhausted, &message));
    }
    if !cx.node.policies.iter().any(|selecting| selecting.name == cx.policy.name) {
        // The policy does not select the node any more. The remediation finishes what has begun, and takes in nothing new.
        let (policy, node) = (&cx.policy.name, cx.node.name);
        return waits(format!(
            "{fault}: policy {policy} does not select node {node} any more; its remediation {name} has the node until its end"
        ));
    }
    let other = cx.node.policy_for(fault).filter(|other| other.name != cx.policy.name);
    if let Some(other) = other
        && of_policy::known_rule(cx.node, other, fault)?.is_some()
    {
        let (policy, other) = (&cx.policy.name, &other.name);
        return waits(format!(
            "{fault} is for policy {other}; remediation {name} of policy {policy} has the node until its end"
        ));
    }
    let rule = cause::judge(cx, seen)?;
    // It is as new as a fault that would open a remediation.
    cx.require_unblocked()?;
    // A booting node shows many faults that resolve by themselves.
    in_progress(remediation).filter(|_| boot::is_under_way(remediation)).map_or(Ok(()), Err)?;
    readiness::after_storm(cx, kind, rule, slots).map_or(Ok(()), Err)?;
    if let Some(scope) = cx.scope().filter(|scope| scope.limits(kind) && !remediation.kinds().contains(&kind))
        && let Some(block) = limited(cx.node, scope, update, kind, slots)
    {
        return Err(block);
    }
    if known.is_none() && remediation.faults.len() >= MAX_REMEDIATION_FAULTS {
        return waits(format!("remediation {name} has as many faults as it may have; the next one takes it"));
    }
    Ok(rule)
}

/// Returns why a fault of a kind with its own limit does not join the remediation now. Either enough others of that kind are
/// remediated, or the stored slot does not note the kind yet. The next leader counts by the stored slot.
fn limited(
    node: &NodeContext<'_>,
    scope: &Scope<'_>,
    update: &RemediationUpdate,
    kind: FaultType,
    slots: &mut Slots,
) -> Option<Block> {
    if let Some(full) = scope.fault_limit_reached(kind, node.name, slots) {
        return Some(full.into());
    }
    if slots.is_noted(&update.remediation.name, kind) {
        return None;
    }
    slots.note(&update.remediation.name, kind);
    let message =
        format!("{kind} has a limit of its own (limits.perFault): it is noted in the ledger before it is dealt with");
    Some(Block::new(BlockReason::FaultLimit, &message).until(node.cluster.settings.retry))
}

/// Cancels a step that has not begun, awaits approval, or needs another check before each round. An unusable policy passes no such
/// check, and a step that was never tried must not count as tried. The engine may select it again when the policy is valid.
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

fn block_open(update: &mut RemediationUpdate, block: &Block) {
    for id in open_but(&update.remediation, None) {
        update.block(&id, block.clone());
    }
}

fn wait_for_step(update: &mut RemediationUpdate) {
    let Some(current) = update.remediation.current_step().map(|step| step.fault_id.clone()) else { return };
    for id in open_but(&update.remediation, Some(&current)) {
        under_way(update, &id);
    }
}

fn open_but(remediation: &Remediation, but: Option<&str>) -> Vec<String> {
    let open = remediation.faults.iter().filter(|fault| fault.state == Resolution::Open);
    open.map(|fault| fault.id.clone()).filter(|id| Some(id.as_str()) != but).collect()
}

fn under_way(update: &mut RemediationUpdate, id: &str) {
    if let Some(block) = in_progress(&update.remediation) {
        update.block(id, block);
    }
}

/// The block of the other faults while a step is under way.
fn in_progress(remediation: &Remediation) -> Option<Block> {
    let step = remediation.current_step()?;
    let how = if step.state == StepState::AwaitingApproval { "awaits approval" } else { "is under way" };
    let message = format!("{} {how} on node {}; one step at a time", step.phrase(), remediation.node);
    Some(Block::new(BlockReason::InProgress, &message))
}

/// Withdraws a step that awaits approval, where another fault of the node can be remediated without approval. The controller asks
/// again after that. `blocked` is the number of blocks in the update before it reported what the other faults wait for.
fn yield_to_more_urgent(cx: PolicyContext<'_>, update: &mut RemediationUpdate, blocked: usize) {
    let may = update.remediation.unapproved().is_some() && !cx.policy.is_broken;
    let waiting = update.remediation.current_step().filter(|_| may);
    let Some(fault) = waiting.map(|step| step.fault_id.clone()) else { return };
    let mut other = RemediationUpdate::new(update.remediation.clone(), update.slot.clone());
    other.held.clone_from(&update.held);
    attempt::end(&mut other, StepState::Cancelled, approval::GAVE_WAY, cx.snapshot.now);
    next_step::reserve_except(cx, &mut other, Some(&fault));
    if other.effect.is_none() || other.remediation.current_step().is_none() {
        return;
    }
    update.requeue.merge(other.requeue);
    update.blocked.truncate(blocked);
    update.blocked.append(&mut other.blocked);
    (update.remediation, update.effect) = (other.remediation, other.effect);
}
