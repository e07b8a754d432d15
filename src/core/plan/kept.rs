//! Nodes that stay cordoned after the ladder of a fault is at its end: until the fault has stayed away, or for as long as the
//! policy says.
//!
//! Such an episode is at its end but for its undo: it holds no slot and keeps no other from the node. How many nodes can be so is
//! bounded by `limits.maxUnhealthy`, since each of them is unhealthy.

use jiff::Timestamp;

use super::evidence::{Cure, NodeFacts};
use super::turn::Turn;
use super::{Ctx, Wake, ending, hand_off};
use crate::core::episode::{Episode, EpisodeFault, HealState, Phase, StepState, clock, since};
use crate::core::policy::{Action, ActionType, Keep, Mode, Policy};

/// For how long the policy keeps the node cordoned for the sake of this fault, whose ladder is at its end.
fn keep(policy: &Policy, fault: &EpisodeFault) -> Option<Keep> {
    let reached = usize::try_from(fault.rung).unwrap_or(usize::MAX);
    let steps = policy.rule(&fault.rule)?.steps.iter().take(reached).filter(|step| step.mode == Mode::Enforce);
    let kept = steps.filter_map(|step| if let Action::Cordon(keep) = step.action { keep } else { None });
    kept.max_by_key(|keep| keep.keep_for)
}

/// Until when the node stays cordoned for faults that no step has healed. None = no longer than the episode.
pub(super) fn until(ctx: Ctx<'_>, facts: &NodeFacts<'_>, episode: &Episode) -> Option<Timestamp> {
    let policy = ending::policy_of(ctx, episode).filter(|_| episode.undo.owes_cordon())?;
    // A remediator uncordons the node that it has rebooted: there is nothing left to keep.
    if hand_off::was_handed(episode) && !facts.view.is_some_and(|view| view.unschedulable) && !episode.is_contained() {
        return None;
    }
    let cordon =
        episode.steps.iter().rev().find(|s| s.action == ActionType::Cordon && s.state == StepState::Succeeded)?;
    let standing = episode.faults.iter().filter(|fault| fault.state == HealState::GivenUp);
    let longest = standing.filter_map(|fault| keep(policy, fault)).map(|keep| keep.keep_for).max()?;
    cordon.acted_at?.checked_add(longest).ok()
}

/// Ends an episode with nothing left to do but to take back its cordon, and puts that off.
pub(super) fn contain(ctx: Ctx<'_>, episode: &mut Episode, until: Timestamp, wake: &mut Wake) {
    let now = ctx.snapshot.now;
    wake.at(since(until, now));
    let standing = episode.faults.iter().filter(|fault| fault.state == HealState::GivenUp);
    let names: Vec<&str> = standing.map(|fault| fault.kind.as_str()).collect();
    let message = format!(
        "the ladder is at an end, and not healed: {}; a person is needed; the node stays cordoned until that is gone, {} at \
         the latest (cordon.keepFor)",
        names.join(", "),
        clock(until)
    );
    (episode.phase, episode.finished_at) = (Phase::Contained, Some(now));
    episode.say(&message);
}

/// One look at an episode whose node is kept cordoned: it goes on so, or ends, and the undo is done.
pub(super) fn watch(ctx: Ctx<'_>, facts: &NodeFacts<'_>, episode: &Episode, wake: &mut Wake) -> Turn {
    let mut turn = Turn::new(episode.clone());
    note_clean(ctx, facts, &mut turn.episode, wake);
    let is_gone = turn.episode.faults.iter().all(|fault| fault.state == HealState::Healed);
    // With nothing left to wait for it is put back as after any other cure.
    if !is_gone {
        let Some((phase, why)) = over(ctx, facts, &turn.episode, wake) else { return turn };
        (turn.episode.phase, turn.episode.finished_at) = (phase, None);
        turn.episode.say(&why);
    }
    turn.effect = ending::undo(ctx, facts, &mut turn.episode);
    if turn.effect.is_some() {
        wake.at(ctx.settings.retry);
    }
    turn
}

/// Marks faults healed that have stayed away for as long as the policy asks.
fn note_clean(ctx: Ctx<'_>, facts: &NodeFacts<'_>, episode: &mut Episode, wake: &mut Wake) {
    let (now, fresh) = (ctx.snapshot.now, ctx.settings.evidence_max_age);
    let Some(policy) = ending::policy_of(ctx, episode) else { return };
    let ended = episode.finished_at;
    for fault in episode.faults.iter_mut().filter(|fault| fault.state == HealState::GivenUp) {
        let delay = keep(policy, fault).map_or(std::time::Duration::ZERO, |keep| keep.healthy_delay);
        match facts.cure(fault, ended, now, fresh) {
            Cure::Present => fault.clean_since = None,
            // Nobody could look: what was seen before still counts, and nothing is concluded.
            Cure::Unknown => {}
            Cure::Clean => {
                let away = since(now, *fault.clean_since.get_or_insert(now));
                match delay.checked_sub(away).filter(|left| !left.is_zero()) {
                    Some(left) => wake.at(left),
                    None => fault.state = HealState::Healed,
                }
            }
        }
    }
}

/// Why the node is not kept cordoned any longer, and what the episode has come to. None = it is, at least until then.
fn over(ctx: Ctx<'_>, facts: &NodeFacts<'_>, episode: &Episode, wake: &mut Wake) -> Option<(Phase, String)> {
    let now = ctx.snapshot.now;
    if let Some(why) = ending::must_end(ctx, facts, episode).or_else(|| ending::must_stop(ctx, facts, episode)) {
        return Some((Phase::Cancelled, why));
    }
    if let Some(other) = facts.view.and_then(|view| view.cordoned_by.as_deref()).filter(|mark| *mark != episode.name) {
        return Some((Phase::Failed, format!("not healed; episode {other} has taken over its cordon")));
    }
    match until(ctx, facts, episode) {
        Some(until) if until > now => {
            wake.at(since(until, now));
            None
        }
        Some(until) => {
            let why =
                format!("not healed, and kept cordoned until {} (cordon.keepFor); a person is needed", clock(until));
            Some((Phase::Failed, why))
        }
        None => Some((Phase::Failed, "not healed, and the policy keeps its node cordoned no longer".to_owned())),
    }
}
