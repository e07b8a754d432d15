//! One attempt at a step: how it is recorded, what it is for, whether it may still be done, what it does, and how it ends.

use super::evidence::{Cure, NodeFacts};
use super::ladder::Look;
use super::turn::Turn;
use super::{Ctx, Effect, Hold, HoldReason, drain, ending, hand_off, ladder, reboot};
use crate::episode::{Episode, EpisodeFault, Lane, StepRecord, StepState, operation_id};
use crate::fault::{Fault, FaultState};
use crate::policy::{Action, ActionType, Mode, Policy, Step};

/// A new attempt, with the next free operation id.
pub(super) fn record(ctx: Ctx<'_>, episode: &Episode, standing: &EpisodeFault, step: &Step, lane: Lane) -> StepRecord {
    StepRecord {
        operation_id: operation_id(&episode.name, episode.opened_at, episode.steps.len() + 1),
        fault_id: standing.id.clone(),
        action: step.action.kind(),
        signal: ladder::signal(&step.action),
        restart: ladder::restart_with(&step.action),
        hand_off: step.action.hand_off().cloned(),
        taint: step.action.taint(),
        drain: step.action.drain().cloned(),
        reboot: step.action.reboot().cloned(),
        mark_for_reboot: step.action.mark_for_reboot().cloned(),
        boot_id: reboot::boot(ctx, episode, &step.action),
        rung: standing.rung,
        lane,
        lane_reason: String::new(),
        target: crate::fault::Target::default(),
        state: StepState::Reserved,
        reason: None,
        message: String::new(),
        reserved_at: ctx.snapshot.now,
        approved_by: None,
        template_version: template_version(ctx, step).map(ToOwned::to_owned),
        started_at: None,
        switched_at: None,
        continued_at: None,
        quiet_rounds: 0,
        acted_at: None,
        clean_since: None,
        finished_at: None,
    }
}

/// Uid and generation of the template of a hand-off, as read last.
pub(super) fn template_version<'a>(ctx: Ctx<'a>, step: &Step) -> Option<&'a str> {
    let template = &step.action.hand_off()?.remediation_template;
    ctx.snapshot.template_versions.get(template).map(String::as_str)
}

/// What is to be put back after the act. Owed before it: a crash in between strands nothing.
pub(super) fn owe(episode: &mut Episode, record: &StepRecord) {
    if record.action == ActionType::Cordon {
        (episode.undo.cordoned, episode.undo.uncordoned_at) = (true, None);
    }
    if record.action == ActionType::Taint {
        (episode.undo.tainted, episode.undo.untainted_at) = (true, None);
    }
    hand_off::owe(episode, record);
}

/// The step of the policy that the attempt was made for, if the policy still has it.
pub(super) fn step_of<'p>(policy: &'p Policy, episode: &Episode, record: &StepRecord) -> Option<&'p Step> {
    let rule = policy.rule(&episode.fault(&record.fault_id)?.rule)?;
    let step = rule.steps.get(usize::try_from(record.rung).ok()?)?;
    // A policy changed meanwhile must not turn one act into another, and a step that is a dry run now is none.
    let is_same = step.action.kind() == record.action
        && ladder::signal(&step.action) == record.signal
        && ladder::restart_with(&step.action) == record.restart
        && step.action.hand_off() == record.hand_off.as_ref()
        && step.action.taint() == record.taint
        && step.action.drain() == record.drain.as_ref()
        && step.action.reboot() == record.reboot.as_ref()
        && step.action.mark_for_reboot() == record.mark_for_reboot.as_ref();
    (is_same && step.mode == Mode::Enforce).then_some(step)
}

/// What an attempt is for that is not known to have begun: its fault, and the step of the policy. None where it comes to its end
/// here: the episode stops, the fault is gone (`gone` says it), or the policy does not name the step any more.
pub(super) fn purpose<'p>(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &'p Policy,
    turn: &mut Turn,
    record: &StepRecord,
    gone: &str,
) -> Option<(EpisodeFault, &'p Step)> {
    let now = ctx.snapshot.now;
    if let Some(why) = ending::must_stop(ctx, facts, &turn.episode) {
        ending::cancel(ctx, &mut turn.episode, &why);
        return None;
    }
    let standing = turn.episode.fault(&record.fault_id).cloned();
    let (Some(standing), Some(step)) = (standing, step_of(policy, &turn.episode, record)) else {
        end(turn, StepState::Cancelled, "the policy does not name this step any more", now);
        return None;
    };
    if !reboot::is_same_boot(facts, record) {
        end(turn, StepState::Cancelled, "the node is in another boot than the one that was to end", now);
        return None;
    }
    if facts.cure(&standing, Some(record.reserved_at), now, ctx.settings.evidence_max_age) == Cure::Clean {
        end(turn, StepState::Cancelled, gone, now);
        return None;
    }
    Some((standing, step))
}

/// Whether the reserved step may still be done.
pub(super) fn again<'f>(
    ctx: Ctx<'_>,
    facts: &'f NodeFacts<'_>,
    policy: &Policy,
    episode: &Episode,
    standing: &EpisodeFault,
    step: &Step,
) -> Result<(&'f Fault, Lane), Hold> {
    let not_now = || {
        let message = format!("{} ({}) is not confirmed any more", standing.kind, standing.subject);
        Hold::new(HoldReason::NotConfirmed, &message)
    };
    let seen = facts.find(&standing.id).filter(|s| s.fault.state == FaultState::Confirmed).ok_or_else(not_now)?;
    let rule = policy.rule(&standing.rule).ok_or_else(not_now)?;
    // People are told once it is decided, whether or not the probe still looks.
    let look = if matches!(step.action, Action::Notify { .. }) { Look::Any } else { Look::Fresh };
    let lane = ladder::may_take(ctx, facts, policy, seen, rule, step, look)?;
    drain::is_cordoned(facts, episode, step)?;
    drain::is_worth_it(ctx, facts, policy, episode, standing, seen, rule, step)?;
    reboot::is_ready(facts, step)?;
    Ok((&seen.fault, lane))
}

/// The act of a reserved step.
pub(super) fn act(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    episode: &Episode,
    record: &StepRecord,
    fault: &Fault,
    step: &Step,
) -> Option<Effect> {
    let operation = ladder::operation(ctx, facts, record, fault, step)?;
    Some(Effect::Act {
        episode: episode.name.clone(),
        operation_id: record.operation_id.clone(),
        node: episode.node.clone(),
        node_uid: episode.node_uid.clone(),
        operation,
    })
}

/// Ends the attempt under way.
pub(super) fn end(turn: &mut Turn, state: StepState, message: &str, now: jiff::Timestamp) {
    if let Some(step) = turn.episode.current_step_mut() {
        step.finish(state, message, now);
    }
}
