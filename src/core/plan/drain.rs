//! Drains: when a node's pods are evicted, round after round, and when that is at an end.
//!
//! Like a cordon a drain contains, and heals nothing by itself: what follows it on the ladder follows at once. It is begun only
//! on a node that carries this episode's own cordon, since evicted pods would come back to any other.

use super::evidence::NodeFacts;
use super::payment::Payment;
use super::turn::Turn;
use super::{Ctx, Hold, HoldReason, Wake, attempt, ladder};
use crate::core::episode::{Episode, EpisodeFault, StepRecord, StepState, since};
use crate::core::fault::{Fault, FaultState};
use crate::core::policy::{Action, ActionType, OnFailure, Policy, Rule, Step};
use crate::core::snapshot::Tri;

/// Whether the controller may evict pods; as long as nobody knows, no node is drained.
pub(super) fn is_proven(ctx: Ctx<'_>) -> Result<(), Hold> {
    let message = match ctx.snapshot.may_evict {
        Tri::True => return Ok(()),
        Tri::False => {
            "the controller may not evict pods (create pods/eviction), so no node is drained: give it the right by ClusterRole \
             nrh:drain (config/samples/drain-rights.yaml), which is asked for again and again"
        }
        Tri::Unknown => {
            "it is not known yet whether the controller may evict pods (create pods/eviction), so no node is drained; it is \
             asked again and again"
        }
    };
    Err(Hold::new(HoldReason::CannotAct, message))
}

/// That it is known that the controller may not: then such a step is left out, and nothing is begun for its sake.
pub(super) fn is_lacking(ctx: Ctx<'_>, action: &Action) -> Option<Hold> {
    action.drain().filter(|_| ctx.snapshot.may_evict == Tri::False).and_then(|_| is_proven(ctx).err())
}

/// Why a drain has no place in this episode, if so: it cannot be, or the cordon that it needs is not this episode's.
pub(super) fn is_out_of_place(ctx: Ctx<'_>, episode: &Episode, step: &Step) -> Option<String> {
    step.action.drain()?;
    if let Some(hold) = is_lacking(ctx, &step.action) {
        return Some(format!("Drain left out: {}", hold.message()));
    }
    let is_ours = episode.undo.owes_cordon() && episode.cordoned_at().is_some();
    (!is_ours).then(|| {
        format!(
            "Drain left out: node {} is not cordoned by this episode, and whoever else has cordoned it has to say whether its \
             pods are to go",
            episode.node
        )
    })
}

/// Where the ladder goes on from a step that is not done. After a drain with `onFailure: Stop` nothing harsher follows, whatever
/// it was that kept the node from being drained.
pub(super) fn rung_without(step: &Step, rule: &Rule, rung: u32) -> u32 {
    let next = rung.saturating_add(1);
    let stops = step.action.drain().is_some() && step.on_failure == OnFailure::Stop;
    if stops { rule.telling_rung(next) } else { next }
}

/// Whether the node shows the cordon that a drain needs: evicted pods would come back to a node that takes pods.
pub(super) fn is_cordoned(facts: &NodeFacts<'_>, step: &Step) -> Result<(), Hold> {
    if step.action.drain().is_none() {
        return Ok(());
    }
    let mark = facts.view.filter(|view| view.unschedulable).and_then(|view| view.cordoned_by.as_deref());
    if mark.is_some_and(|mark| facts.open.iter().any(|episode| episode.name == mark)) {
        return Ok(());
    }
    let message = format!(
        "node {} does not show the cordon of its episode (any more): it is not drained, since evicted pods would come back",
        facts.name
    );
    Err(Hold::new(HoldReason::CannotAct, &message))
}

/// Whether the node was drained in just this way since it was cordoned: it is not done twice.
pub(super) fn is_done(step: &Step, episode: Option<&Episode>) -> bool {
    let Some((with, episode)) = step.action.drain().zip(episode) else { return false };
    let since = episode.cordoned_at();
    let is_it = |record: &StepRecord| {
        record.action == ActionType::Drain
            && record.state == StepState::Succeeded
            && record.drain.as_ref() == Some(with)
            && record.finished_at >= since
    };
    episode.steps.iter().any(is_it)
}

/// A drain under way: another round of evictions, until no pod is left or its time is over.
pub(super) fn go_on(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    turn: &mut Turn,
    record: &StepRecord,
    payment: &Payment,
    wake: &mut Wake,
) {
    let now = ctx.snapshot.now;
    let gone = format!("no further pod is evicted, since the fault is gone; {}", record.message);
    let Some((standing, step)) = attempt::purpose(ctx, facts, policy, turn, record, &gone) else { return };
    let age = since(now, record.started_at.unwrap_or(record.reserved_at));
    if age >= step.timeout {
        let why = format!("not drained within {}s: {}", step.timeout.as_secs(), record.message);
        return attempt::end(turn, StepState::TimedOut, &why, now);
    }
    wake.at(step.timeout.saturating_sub(age));
    if step.needs_approval() && turn.episode.approved(&record.operation_id).is_none() {
        let why = format!("its approval was taken back, or the policy asks for one now; {}", record.message);
        return attempt::end(turn, StepState::Cancelled, &why, now);
    }
    let rested = record.continued_at.map_or(ctx.settings.retry, |at| since(now, at));
    if rested < ctx.settings.retry {
        return wake.at(ctx.settings.retry.saturating_sub(rested));
    }
    match payment.is_made().and_then(|()| may_go_on(ctx, facts, policy, &standing, step)) {
        Ok(fault) => {
            turn.effect = attempt::act(ctx, facts, &turn.episode, record, fault, step);
            wake.at(ctx.settings.retry);
        }
        Err(hold) => turn.hold(&record.fault_id, hold, wake),
    }
}

/// Whether another round may begin. What is under way asks neither for the hour of day nor how often the node was acted on: it
/// counts itself.
fn may_go_on<'f>(
    ctx: Ctx<'_>,
    facts: &'f NodeFacts<'_>,
    policy: &Policy,
    standing: &EpisodeFault,
    step: &Step,
) -> Result<&'f Fault, Hold> {
    let not_now = || {
        let message = format!("{} ({}) is not confirmed any more", standing.kind, standing.subject);
        Hold::new(HoldReason::NotConfirmed, &message)
    };
    let seen = facts.find(&standing.id).filter(|s| s.fault.state == FaultState::Confirmed).ok_or_else(not_now)?;
    let rule = policy.rule(&standing.rule).ok_or_else(not_now)?;
    ladder::still_asked_for(facts, policy, rule, &seen.fault, step)?;
    ladder::evidence(facts, seen, ctx)?;
    ladder::may_be_touched(facts, &seen.fault)?;
    is_proven(ctx)?;
    is_cordoned(facts, step)?;
    Ok(&seen.fault)
}
