//! The step under way: from reserved over started to verified.

use super::evidence::{Cure, NodeFacts};
use super::payment::Payment;
use super::turn::Turn;
use super::{Ctx, Wake, approval, attempt, drain, hand_off, lanes, mark, reboot};
use crate::core::episode::{Episode, HealState, Lane, StepRecord, StepState, since};
use crate::core::order::{Outcome, OutcomeReason, OutcomeState};
use crate::core::policy::{ActionType, Policy, Step};

/// Moves the step under way on as far as the evidence allows.
pub(super) fn move_on(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    turn: &mut Turn,
    payment: &Payment,
    wake: &mut Wake,
) {
    let Some(record) = turn.episode.current_step().cloned() else { return };
    if matches!(record.state, StepState::Reserved | StepState::Started) {
        take_answer(ctx, facts, &mut turn.episode, &record.operation_id);
        reboot::note(ctx, facts, &mut turn.episode);
    }
    let Some(record) = turn.episode.current_step().cloned() else { return };
    match record.state {
        StepState::AwaitingApproval => approval::wait(ctx, facts, policy, turn, &record, payment, wake),
        StepState::Reserved => repeat(ctx, facts, policy, turn, &record, payment, wake),
        StepState::Started | StepState::Verifying if record.action == ActionType::HandOff => {
            hand_off::wait(ctx, facts, policy, turn, &record, wake);
        }
        StepState::Started if record.action == ActionType::Drain => {
            drain::go_on(ctx, facts, policy, turn, &record, payment, wake);
        }
        StepState::Started if record.action == ActionType::Reboot => {
            reboot::wait(ctx, facts, policy, turn, &record, wake);
        }
        StepState::Started if record.action == ActionType::MarkForReboot => {
            mark::wait(ctx, facts, policy, turn, &record, wake);
        }
        StepState::Started => wait(ctx, facts, policy, turn, &record, payment, wake),
        StepState::Verifying => {
            verify(ctx, facts, turn, &record, attempt::step_of(policy, &turn.episode, &record), wake);
        }
        _ => {}
    }
}

/// The node's answer, from either lane: the best one counts.
fn answer<'a>(ctx: Ctx<'a>, facts: &NodeFacts<'a>, operation: &str) -> Option<&'a Outcome> {
    let job = ctx.snapshot.jobs.get(operation).and_then(|job| job.outcome.as_ref());
    let agent = facts.own_report().and_then(|report| report.agent.as_ref());
    let rank = |outcome: &Outcome| match (outcome.state, outcome.reason) {
        (OutcomeState::Done, _) => 0,
        (OutcomeState::Running, _) => 1,
        (OutcomeState::Failed, _) => 2,
        (OutcomeState::Refused, OutcomeReason::AlreadyClaimed | OutcomeReason::AlreadyRebooted) => 4,
        (OutcomeState::Refused, _) => 3,
    };
    [job, agent].into_iter().flatten().filter(|outcome| outcome.operation_id == operation).min_by_key(|o| rank(o))
}

fn take_answer(ctx: Ctx<'_>, facts: &NodeFacts<'_>, episode: &mut Episode, operation: &str) {
    let now = ctx.snapshot.now;
    let answer = answer(ctx, facts, operation).cloned();
    let has_job = ctx.snapshot.jobs.contains_key(operation);
    let Some(step) = episode.current_step_mut() else { return };
    let is_started = (has_job && step.lane == Lane::Job) || hand_off::was_made(ctx, step);
    if step.state == StepState::Reserved && (is_started || answer.is_some()) {
        step.state = StepState::Started;
        step.started_at = Some(now);
    }
    let Some(answer) = answer else { return };
    if !reboot::is_news(step, answer.reason) {
        return;
    }
    step.reason = Some(answer.reason);
    match (answer.state, answer.reason) {
        (OutcomeState::Running, _) => {}
        // That it was told to reboot, or carries the mark for it, is no reboot: the boot id tells.
        (OutcomeState::Done, _)
        | (OutcomeState::Refused, OutcomeReason::AlreadyClaimed | OutcomeReason::AlreadyRebooted)
            if step.action.boots() =>
        {
            step.message = crate::core::text::bounded(&answer.message, crate::core::fault::MAX_LINE);
        }
        // Claimed by an earlier start of the same operation: judged by its effect.
        (OutcomeState::Done, _) | (OutcomeState::Refused, OutcomeReason::AlreadyClaimed) => {
            step.state = StepState::Verifying;
            step.acted_at = Some(now);
            step.message = crate::core::text::bounded(&answer.message, crate::core::fault::MAX_LINE);
        }
        (OutcomeState::Refused, _) => step.finish(StepState::Refused, &answer.message, now),
        (OutcomeState::Failed, _) => step.finish(StepState::Failed, &answer.message, now),
    }
}

/// A reserved step: the act may or may not have happened. It is repeated, after the same questions as before.
fn repeat(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    turn: &mut Turn,
    record: &StepRecord,
    payment: &Payment,
    wake: &mut Wake,
) {
    let now = ctx.snapshot.now;
    let gone = "the fault was gone before the act was known to be done";
    let Some((standing, step)) = attempt::purpose(ctx, facts, policy, turn, record, gone) else { return };
    let (age, unpaid) = (since(now, record.reserved_at), payment.is_made().err());
    if age >= ctx.settings.answer_within {
        let is_doubt = || {
            let again = attempt::again(ctx, facts, policy, &turn.episode, &standing, step);
            again.is_err_and(|hold| hold.is_doubt())
        };
        // Without a ledger, or without knowing whose fault it is, nobody has tried: that costs no attempt, and nothing harsher
        // follows on it.
        let (state, why) = match unpaid {
            Some(_) => (StepState::Cancelled, "its slot could not be stored in time"),
            None if record.started_at.is_none() && is_doubt() => {
                (StepState::Cancelled, "nobody could tell in time whether its rule is for the fault")
            }
            None => (StepState::TimedOut, "the act could not be started in time"),
        };
        return attempt::end(turn, state, why, now);
    }
    wake.at(ctx.settings.answer_within.saturating_sub(age));
    if let Some(hold) = unpaid {
        return turn.hold(&record.fault_id, hold, wake);
    }
    if step.needs_approval() && turn.episode.approved(&record.operation_id).is_none() {
        let why = "its approval was taken back, or the policy asks for one now";
        return attempt::end(turn, StepState::Cancelled, why, now);
    }
    match attempt::again(ctx, facts, policy, &turn.episode, &standing, step) {
        Ok((fault, _)) => {
            turn.effect = attempt::act(ctx, facts, &turn.episode, record, fault, step);
            wake.at(ctx.settings.retry);
        }
        Err(hold) => turn.hold(&record.fault_id, hold, wake),
    }
}

/// A started step: the answer is awaited; a Job that does not start, or whose pod the kubelet refuses, makes room for the agent, once.
fn wait(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    turn: &mut Turn,
    record: &StepRecord,
    payment: &Payment,
    wake: &mut Wake,
) {
    let (now, settings) = (ctx.snapshot.now, ctx.settings);
    let age = since(now, record.started_at.unwrap_or(record.reserved_at));
    let job = ctx.snapshot.jobs.get(&record.operation_id);
    let is_late = age >= settings.job_start;
    if record.lane == Lane::Job {
        wake.when_past(settings.job_start, age);
        let can_act = facts.report.and_then(|r| r.heartbeat.as_ref()).is_some_and(|h| h.can_act);
        let refused = job.and_then(|job| job.rejected.as_ref());
        let refused = refused.map(|why| format!("the kubelet refused the Job's pod ({why})"));
        // No other pod is made for such a Job: there is nothing to wait for.
        if let Some(why) = refused.as_deref().filter(|_| can_act) {
            let record = switch_lane(turn, record, why);
            return repeat(ctx, facts, policy, turn, &record, payment, wake);
        }
        if is_late && job.is_some_and(|job| job.finished) {
            let why = refused.as_deref().unwrap_or("the Job ended without a result");
            return attempt::end(turn, StepState::Failed, why, now);
        }
        if is_late && can_act && !job.is_some_and(|job| job.started) {
            let why = format!("no Job started within {}s", settings.job_start.as_secs());
            let record = switch_lane(turn, record, &why);
            return repeat(ctx, facts, policy, turn, &record, payment, wake);
        }
    }
    let is_running = answer(ctx, facts, &record.operation_id).is_some();
    let limit = match attempt::step_of(policy, &turn.episode, record) {
        Some(step) if is_running => settings.answer_within.max(step.timeout),
        _ => settings.answer_within,
    };
    if age >= limit {
        return attempt::end(turn, StepState::TimedOut, "no answer from the node in time", now);
    }
    wake.at(limit.saturating_sub(age));
}

/// The same operation by the other lane, for which the same questions are asked: the node claims it once, whichever comes first.
fn switch_lane(turn: &mut Turn, record: &StepRecord, why: &str) -> StepRecord {
    if let Some(current) = turn.episode.current_step_mut() {
        lanes::note_switch(current, why);
        // That it was begun once stays in the record: the Job may still be on its way.
        current.state = StepState::Reserved;
        current.message = format!("{why}, the probe is asked instead");
    }
    StepRecord { lane: Lane::Agent, ..record.clone() }
}

/// A done step: the probe's clean look decides, for as long as the step asks.
pub(super) fn verify(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    turn: &mut Turn,
    record: &StepRecord,
    step: Option<&Step>,
    wake: &mut Wake,
) {
    let now = ctx.snapshot.now;
    let (timeout, verify_for) = reboot::times(ctx, record, step);
    let acted_at = record.acted_at.unwrap_or(record.reserved_at);
    let cure = match turn.episode.fault(&record.fault_id) {
        Some(_) if !reboot::is_looked_anew(facts, record) => Cure::Unknown,
        Some(fault) => facts.cure(fault, Some(acted_at), now, ctx.settings.evidence_max_age),
        None => Cure::Clean,
    };
    turn.look |= cure != Cure::Clean && facts.arrived().is_some_and(|arrived| arrived >= since(now, acted_at));
    let clean_since = (cure == Cure::Clean).then(|| record.clean_since.unwrap_or(now));
    if let Some(current) = turn.episode.current_step_mut() {
        current.clean_since = clean_since;
    }
    let age = since(now, reboot::began(record, acted_at));
    match clean_since.map(|at| since(now, at)) {
        Some(clean) if clean >= verify_for => {
            attempt::end(turn, StepState::Succeeded, &done_message(record, "the fault is gone"), now);
            if let Some(fault) = turn.episode.fault_mut(&record.fault_id) {
                fault.state = HealState::Healed;
                let message = format!("{} healed by {}", fault.kind, record.phrase());
                turn.episode.say(&message);
            }
        }
        Some(clean) => wake.at(verify_for.saturating_sub(clean)),
        None if age >= timeout => {
            let why = if cure == Cure::Present { "the fault is still there" } else { "nobody could look at the fault" };
            if record.action == ActionType::HandOff {
                return hand_off::time_out(ctx, turn, record, timeout, &done_message(record, why), wake);
            }
            attempt::end(turn, StepState::Failed, &done_message(record, why), now);
        }
        None => wake.at(timeout.saturating_sub(age)),
    }
}

fn done_message(record: &StepRecord, what: &str) -> String {
    if record.message.is_empty() { what.to_owned() } else { format!("{}; {what}", record.message) }
}
