//! Drains: when the controller evicts the pods of a node, round after round, and when a drain ends.
//!
//! Like a cordon, a drain quarantines the node and resolves nothing by itself. The next step of the rule follows at once. The
//! controller drains only a node that carries the cordon of this remediation, since evicted pods would come back to any other.

use super::select::{EvidenceRequirement, Recurrence};
use super::slot::SlotReservation;
use super::update::RemediationUpdate;
use super::{Ctx, attempt, hand_off, readiness, select};
use crate::context::{Block, NodeContext, ObservedFault, Wake};
use crate::drain::{CannotEnd, Drain, cannot_end};
use crate::fault::{Fault, FaultState};
use crate::moment::since;
use crate::plan::BlockReason;
use crate::policy::{Action, ActionType, OnFailure, Policy, Rule, RuleMatch, Step};
use crate::remediation::{Remediation, RemediationFault, Resolution, StepRecord, StepState};
use crate::snapshot::TriState;

/// How often a drain yields to the release of a hung process and begins again, for one fault.
const GIVES_WAY: usize = 3;

/// Requires that the controller may evict pods. While that is unknown, it drains no node.
pub(super) fn require_proof(ctx: Ctx<'_>) -> Result<(), Block> {
    let message = match ctx.snapshot.may_evict {
        TriState::True => return Ok(()),
        TriState::False => {
            "the controller may not evict pods (create pods/eviction), so no node is drained: give it the right by ClusterRole \
             nrh:drain (config/samples/drain-rights.yaml), which is asked for again and again"
        }
        TriState::Unknown => {
            "it is not known yet whether the controller may evict pods (create pods/eviction), so no node is drained; it is \
             asked again and again"
        }
    };
    Err(Block::new(BlockReason::ActionsDisabled, message))
}

/// Returns a block where the controller is known to lack the right to evict pods, or where the node is known to be unable to end
/// pods. The controller then skips such a step, and begins nothing for its sake.
pub(super) fn unavailable(ctx: Ctx<'_>, facts: &NodeContext<'_>, action: &Action) -> Option<Block> {
    let with = action.drain()?;
    if ctx.snapshot.may_evict == TriState::False {
        return require_proof(ctx).err();
    }
    match ends_no_pods(facts, with) {
        Some(CannotEnd::Known(why)) => Some(Block::new(BlockReason::ActionsDisabled, &not_ended(facts, &why))),
        _ => None,
    }
}

/// Returns what keeps the node from ending pods, unless the policy ignores that.
fn ends_no_pods(facts: &NodeContext<'_>, with: &Drain) -> Option<CannotEnd> {
    let heartbeat = facts.report.and_then(|report| report.heartbeat.as_ref());
    let works = heartbeat.map_or(TriState::Unknown, |heartbeat| heartbeat.kubelet_works);
    let ready = facts.view.map_or(TriState::Unknown, |view| view.ready);
    let found = || cannot_end(ready, works, facts.seen.iter().map(|seen| seen.fault.as_ref()));
    (!with.ignore_runtime_hang).then(found).flatten()
}

fn not_ended(facts: &NodeContext<'_>, why: &str) -> String {
    format!(
        "node {} is not drained, since evicted pods would not end there: {why}; resolve that first (or set drain.ignoreRuntimeHang)",
        facts.name
    )
}

/// Checks that a drain may begin: the controller has the right, the node ends pods, and no release of a hung process goes first.
pub(super) fn may_begin(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    fault: &Fault,
    with: &Drain,
) -> Result<(), Block> {
    require_proof(ctx)?;
    if let Some(CannotEnd::Known(why) | CannotEnd::Doubtful(why)) = ends_no_pods(facts, with) {
        return Err(Block::new(BlockReason::ActionsDisabled, &not_ended(facts, &why)));
    }
    let Some(first) = release_first(ctx, facts, policy, fault) else { return Ok(()) };
    let message = format!(
        "node {} is drained after the release for {} ({}), which does not wait for the end of a drain",
        facts.name, first.fault.kind, first.fault.subject
    );
    Err(Block::new(BlockReason::HungProcessFirst, &message))
}

/// Finds another fault of the node that names a hung process, and whose next step releases it and may be taken now. The pod
/// above that process could not end, and everything that waits for the process would wait for the whole drain.
fn release_first<'s, 'a>(
    ctx: Ctx<'_>,
    facts: &'s NodeContext<'a>,
    policy: &Policy,
    fault: &Fault,
) -> Option<&'s ObservedFault<'a>> {
    let is_first = |seen: &&ObservedFault<'a>| {
        let other = seen.fault.as_ref();
        let is_its = facts.policy_for(other).is_some_and(|its| its.name == policy.name);
        if other.id == fault.id || other.state != FaultState::Confirmed || !is_its {
            return false;
        }
        let RuleMatch::Rule(rule) = facts.rule_of(policy, other) else { return false };
        let remediation = facts.open.iter().copied().find(|remediation| remediation.policy == policy.name);
        let known = remediation.and_then(|remediation| remediation.fault(&other.id));
        let mut standing = match known.map(|known| known.state) {
            Some(Resolution::Exhausted) => return false,
            Some(Resolution::Open) => known.cloned().unwrap_or_else(|| readiness::standing(ctx, seen, rule)),
            Some(Resolution::Resolved) | None => readiness::standing(ctx, seen, rule),
        };
        // A fault that is not open yet is judged as it will be opened.
        let of = remediation.filter(|_| known.is_some_and(|known| known.state == Resolution::Open));
        let Some(step) =
            select::select_step(Recurrence::of(ctx, of), &mut standing, rule, of, facts, Some(other), &mut Vec::new())
        else {
            return false;
        };
        let releases = matches!(step.action, Action::ReleaseHungProcess { .. }) && step.heals();
        if !releases || step.needs_approval() {
            return false;
        }
        let may = || match known.filter(|known| known.state == Resolution::Open) {
            Some(_) => select::may_take(ctx, facts, policy, seen, rule, step, EvidenceRequirement::Fresh).map(|_| ()),
            None => readiness::judge(ctx, facts, policy, seen).map(|_| ()),
        };
        // A fault that is not open yet has to join.
        let is_new = known.is_none_or(|known| known.state != Resolution::Open);
        let is_blocked =
            || ctx.scopes.get(policy.name.as_str()).is_some_and(|scope| scope.blocked(Some(facts)).is_some());
        !(is_new && is_blocked()) && may().is_ok()
    };
    facts.seen.iter().find(is_first)
}

/// Checks that the remediating step after a drain may be taken. The controller does not drain a node for a step that is blocked
/// anyway. A drain for its own sake waits for no such step.
#[expect(clippy::too_many_arguments, reason = "the same that a step is taken with")]
pub(super) fn require_benefit(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    remediation: &Remediation,
    standing: &RemediationFault,
    seen: &ObservedFault<'_>,
    rule: &Rule,
    step: &Step,
) -> Result<(), Block> {
    if step.action.drain().is_none() || rule.keeps_cordon() {
        return Ok(());
    }
    let mut after = standing.clone();
    loop {
        after.step_index = after.step_index.saturating_add(1);
        let Some(next) = select::select_step(
            Recurrence::of(ctx, Some(remediation)),
            &mut after,
            rule,
            Some(remediation),
            facts,
            Some(&seen.fault),
            &mut Vec::new(),
        ) else {
            return Ok(());
        };
        if next.heals() && hand_off::unavailable(ctx, &next.action).is_none() {
            return select::may_take(ctx, facts, policy, seen, rule, next, EvidenceRequirement::Fresh).map(|_| ());
        }
    }
}

/// Returns why this remediation skips a drain: the drain is impossible, or the cordon that it needs is not this remediation's.
pub(super) fn skip_reason(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    remediation: &Remediation,
    step: &Step,
) -> Option<String> {
    step.action.drain()?;
    if let Some(block) = unavailable(ctx, facts, &step.action) {
        return Some(format!("skipped: {}", block.message()));
    }
    let is_ours = remediation.cleanup.owes_cordon() && remediation.cordoned_at().is_some();
    (!is_ours).then(|| {
        format!(
            "skipped: node {} was cordoned by someone else; drain it manually, or uncordon it first",
            remediation.node
        )
    })
}

/// Returns the index of the next step after a step that is not done. After a drain with `onFailure: Stop` nothing harsher
/// follows, whatever kept the controller from draining the node.
pub(super) fn step_after_skip(step: &Step, rule: &Rule, step_index: u32) -> u32 {
    let next = step_index.saturating_add(1);
    let stops = step.action.drain().is_some() && step.on_failure == OnFailure::Stop;
    if stops { rule.next_notify_step(next) } else { next }
}

/// Requires that the node shows the cordon of this remediation. Evicted pods would come back to a schedulable node.
pub(super) fn require_cordon(facts: &NodeContext<'_>, remediation: &Remediation, step: &Step) -> Result<(), Block> {
    if step.action.drain().is_none() {
        return Ok(());
    }
    let mark = facts.view.filter(|view| view.unschedulable).and_then(|view| view.cordoned_by.as_deref());
    if mark == Some(remediation.name.as_str()) {
        return Ok(());
    }
    let message = format!(
        "node {} does not show the cordon of its remediation (any more): it is not drained, since evicted pods would come back",
        facts.name
    );
    Err(Block::new(BlockReason::ActionsDisabled, &message))
}

/// Checks whether the node was drained in this same way since its cordon. The controller does not drain it twice.
pub(super) fn is_done(step: &Step, remediation: Option<&Remediation>) -> bool {
    let Some((with, remediation)) = step.action.drain().zip(remediation) else { return false };
    let since = remediation.cordoned_at();
    let is_it = |record: &StepRecord| {
        record.action == ActionType::Drain
            && record.state == StepState::Succeeded
            && record.drain.as_ref() == Some(with)
            && record.finished_at >= since
    };
    remediation.steps.iter().any(is_it)
}

/// Continues a drain: another round of evictions, until no pod is left or the step's timeout expires.
pub(super) fn go_on(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    record: &StepRecord,
    slot: &SlotReservation,
    wake: &mut Wake,
) {
    let now = ctx.snapshot.now;
    let gone = format!("no further pod is evicted, since the fault is gone; {}", record.message);
    let Some((standing, step)) = attempt::purpose(ctx, facts, policy, turn, record, &gone) else { return };
    let age = since(now, record.started_at.unwrap_or(record.scheduled_at));
    if age >= step.timeout {
        let why = format!("not drained within {}s: {}", step.timeout.as_secs(), record.message);
        return attempt::end(turn, StepState::TimedOut, &why, now);
    }
    wake.at(step.timeout.saturating_sub(age));
    if step.needs_approval() && turn.remediation.approved(&record.operation_id).is_none() {
        let why = format!("its approval was taken back, or the policy asks for one now; {}", record.message);
        return attempt::end(turn, StepState::Cancelled, &why, now);
    }
    let interrupted = interruption(ctx, facts, policy, &turn.remediation, &standing, record, step);
    if let Some((state, why)) = interrupted {
        return attempt::end(turn, state, &format!("{why}; {}", record.message), now);
    }
    let rested = record.continued_at.map_or(ctx.settings.retry, |at| since(now, at));
    if rested < ctx.settings.retry {
        return wake.at(ctx.settings.retry.saturating_sub(rested));
    }
    match slot.require().and_then(|()| may_go_on(ctx, facts, policy, &turn.remediation, &standing, step)) {
        Ok(fault) => {
            turn.effect = attempt::act(ctx, facts, &turn.remediation, record, fault, step);
            wake.at(ctx.settings.retry);
        }
        Err(block) => turn.block(&record.fault_id, block, wake),
    }
}

/// Returns why a running drain ends early: the node is now known to be unable to end pods, or a hung process has to be released.
/// A drain yields to such a release a few times only, and begins again after it.
fn interruption(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    remediation: &Remediation,
    standing: &RemediationFault,
    record: &StepRecord,
    step: &Step,
) -> Option<(StepState, String)> {
    if let Some(CannotEnd::Known(why)) = step.action.drain().and_then(|with| ends_no_pods(facts, with)) {
        return Some((
            StepState::Failed,
            format!("no further pod is evicted, since evicted pods do not end there: {why}"),
        ));
    }
    let seen = facts.find(&standing.id).filter(|seen| select::evidence(facts, seen, ctx).is_ok())?;
    let first = release_first(ctx, facts, policy, &seen.fault)?;
    let gave_way = remediation.steps.iter().filter(|other| {
        let is_its =
            (other.action, other.step_index) == (record.action, record.step_index) && other.fault_id == record.fault_id;
        is_its && other.state == StepState::Cancelled && other.started_at.is_some()
    });
    let message = format!("it gives way to the release for {} ({})", first.fault.kind, first.fault.subject);
    (gave_way.count() < GIVES_WAY).then_some((StepState::Cancelled, message))
}

/// Checks that another round may begin. A running drain needs no open window and ignores the node's action limit: it counts
/// towards that limit itself.
fn may_go_on<'f>(
    ctx: Ctx<'_>,
    facts: &'f NodeContext<'_>,
    policy: &Policy,
    remediation: &Remediation,
    standing: &RemediationFault,
    step: &Step,
) -> Result<&'f Fault, Block> {
    let not_now = || {
        let message = format!("{} ({}) is not confirmed any more", standing.kind, standing.subject);
        Block::new(BlockReason::NotConfirmed, &message)
    };
    let seen = facts.find(&standing.id).filter(|s| s.fault.state == FaultState::Confirmed).ok_or_else(not_now)?;
    let rule = policy.rule(&standing.rule).ok_or_else(not_now)?;
    select::still_asked_for(facts, policy, rule, &seen.fault, step)?;
    select::evidence(facts, seen, ctx)?;
    select::may_be_touched(facts, &seen.fault)?;
    require_proof(ctx)?;
    if let Some(CannotEnd::Doubtful(why)) = step.action.drain().and_then(|with| ends_no_pods(facts, with)) {
        return Err(Block::new(BlockReason::ActionsDisabled, &not_ended(facts, &why)));
    }
    require_cordon(facts, remediation, step)?;
    Ok(&seen.fault)
}
