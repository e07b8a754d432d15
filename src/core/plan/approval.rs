//! Steps that a person has to approve. The attempt is recorded first, with its operation and what it would touch; a yes is to that
//! operation and to no other, and ends with it.
//!
//! ```text
//! AwaitingApproval ─► approved, asked the same questions again ─► Reserved ─► …
//!         │ the fault goes, its object changes, the policy changes ─► Cancelled
//!         └ nobody says yes in time ─► TimedOut: people are told, nothing harsher follows
//! ```

use super::evidence::{Cure, NodeFacts, Seen};
use super::payment::Payment;
use super::turn::Turn;
use super::{Ctx, Hold, HoldReason, Wake, advance, ending, steps};
use crate::core::episode::{EpisodeFault, Lane, StepRecord, StepState, clock, since};
use crate::core::policy::{Policy, Step};

/// Records the attempt, and asks for its approval.
pub(super) fn ask(
    ctx: Ctx<'_>,
    turn: &mut Turn,
    seen: &Seen<'_>,
    standing: &EpisodeFault,
    step: &Step,
    lane: Lane,
    wake: &mut Wake,
) {
    let mut record = advance::record(ctx, &turn.episode, standing, step, lane);
    record.target = seen.fault.target.clone();
    record.state = StepState::AwaitingApproval;
    turn.episode.say(&format!("{} for {} ({}) awaits approval", record.phrase(), standing.kind, standing.subject));
    turn.hold(&standing.id, awaited(turn, &record, step), wake);
    wake.at(step.approval_timeout);
    turn.episode.steps.push(record);
}

/// The attempt goes on once it is approved, and does not wait for ever.
pub(super) fn wait(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    turn: &mut Turn,
    record: &StepRecord,
    payment: &Payment,
    wake: &mut Wake,
) {
    let now = ctx.snapshot.now;
    if let Some(why) = ending::must_stop(ctx, facts, &turn.episode) {
        ending::cancel(ctx, &mut turn.episode, &why);
        return;
    }
    let standing = turn.episode.fault(&record.fault_id).cloned();
    let (Some(standing), Some(step)) = (standing, steps::step_of(policy, &turn.episode, record)) else {
        return steps::end(turn, StepState::Cancelled, "the policy does not name this step any more", now);
    };
    if facts.cure(&standing, Some(record.reserved_at), now, ctx.settings.evidence_max_age) == Cure::Clean {
        return steps::end(turn, StepState::Cancelled, "the fault was gone before the step was approved", now);
    }
    if facts.find(&standing.id).is_some_and(|seen| seen.fault.target != record.target) {
        return steps::end(turn, StepState::Cancelled, "the object has changed since its approval was asked for", now);
    }
    let age = since(now, record.reserved_at);
    if age >= step.approval_timeout {
        let limit = step.approval_timeout.as_secs() / 60;
        steps::end(turn, StepState::TimedOut, &format!("nobody approved it within {limit} min"), now);
        if let (Some(rule), Some(fault)) = (policy.rule(&standing.rule), turn.episode.fault_mut(&standing.id)) {
            fault.rung = rule.telling_rung(fault.rung.saturating_add(1));
        }
        return;
    }
    wake.at(step.approval_timeout.saturating_sub(age));
    let by = turn.episode.approved(&record.operation_id).map(ToOwned::to_owned);
    if by.is_none() && step.needs_approval() {
        let hold = awaited(turn, record, step);
        return turn.hold(&record.fault_id, hold, wake);
    }
    match payment.is_made().and_then(|()| steps::again(ctx, facts, policy, &standing, step)) {
        Err(hold) => turn.hold(&record.fault_id, hold, wake),
        Ok(fault) => {
            let whose = by.as_deref().map_or_else(String::new, |by| format!(", approved by {by}"));
            turn.episode.say(&format!("{} for {} ({}){whose}", record.phrase(), standing.kind, standing.subject));
            advance::owe(&mut turn.episode, record.action);
            let Some(current) = turn.episode.current_step_mut() else { return };
            (current.state, current.reserved_at, current.approved_by) = (StepState::Reserved, now, by);
            let record = current.clone();
            turn.effect = steps::act(ctx, facts, &turn.episode, &record, fault, step);
            wake.at(ctx.settings.retry);
        }
    }
}

fn awaited(turn: &Turn, record: &StepRecord, step: &Step) -> Hold {
    let until = record.reserved_at.checked_add(step.approval_timeout).unwrap_or(record.reserved_at);
    let message = format!(
        "{} waits for a person until {}: nrh approve {} --operation {}",
        record.phrase(),
        clock(until),
        turn.episode.node,
        record.operation_id
    );
    Hold::new(HoldReason::AwaitingApproval, &message)
}
