//! Episodes whose faults are all gone while their node flaps: what is away then may be there again a minute later. So recovery
//! needs quiet: the node stays as it is, and the episode open, until nothing has changed for a while.
//!
//! The wait has an end, whatever the node does: the episode holds a slot, and the node is to be given back to its pods.

use std::time::Duration;

use jiff::Timestamp;

use super::evidence::NodeFacts;
use super::turn::Turn;
use super::{Ctx, Hold, HoldReason, Wake, ending};
use crate::episode::{Episode, FLAPS_STILL, HealState, Phase, clock, since};
use crate::flap::{FlapView, QUIET};
use crate::policy::Action;

/// Longest wait, in times of the quiet that is asked for.
const LONGEST: u32 = 3;
/// Longest wait where that is more than the quiet itself: the episode holds a slot, and other faults of the node wait.
const HOUR: Duration = Duration::from_hours(1);

/// Time without a change that is asked for: a node that flaps changes more often than that. A policy may ask for more.
fn quiet(ctx: Ctx<'_>, episode: &Episode) -> Duration {
    let policy = ending::policy_of(ctx, episode);
    let rules = episode.faults.iter().filter_map(|fault| policy?.rule(&fault.rule));
    let delay = |action: &Action| if let Action::Cordon(Some(keep)) = action { Some(keep.healthy_delay) } else { None };
    rules.flat_map(|rule| &rule.steps).filter_map(|step| delay(&step.action)).fold(QUIET, Duration::max)
}

/// Until when it is waited at the latest: counted from what was done last, so that no change of the node puts it off.
fn until(episode: &Episode, quiet: Duration) -> Option<Timestamp> {
    episode.last_activity().checked_add((quiet * LONGEST).min(quiet.max(HOUR))).ok()
}

/// Whether all faults of the episode are gone and nothing but its undo is left to do.
fn is_healed(episode: &Episode) -> bool {
    let is_gone = !episode.faults.is_empty() && episode.faults.iter().all(|fault| fault.state == HealState::Healed);
    is_gone && episode.current_step().is_none()
}

/// The history of a node that flaps and was not quiet for as long as that.
fn flapping<'a>(facts: &NodeFacts<'a>, quiet: Duration) -> Option<&'a FlapView> {
    facts.flap.filter(|flap| flap.flapping.is_some() && flap.unchanged < quiet)
}

/// Whether the end of an episode that is healed is put off since its node flaps; it is told so.
pub(super) fn is_awaited(ctx: Ctx<'_>, facts: &NodeFacts<'_>, turn: &mut Turn, wake: &mut Wake) -> bool {
    let episode = &turn.episode;
    let is_at_it = turn.effect.is_some() || episode.undo.owed_hand_off().is_some();
    if episode.phase.is_final() || is_at_it || !is_healed(episode) {
        return false;
    }
    // Whoever stops it, or opens the node to pods, does not want it watched.
    let is_opened = episode.undo.owes_cordon() && facts.view.is_none_or(|view| !view.unschedulable);
    if is_opened || ending::must_stop(ctx, facts, episode).is_some() {
        return false;
    }
    let (quiet, now) = (quiet(ctx, episode), ctx.snapshot.now);
    let Some(flap) = flapping(facts, quiet) else { return false };
    let gone = format!("{} fault(s) gone by a clean look", episode.faults.len());
    let Some(until) = until(episode, quiet).filter(|until| *until > now) else {
        turn.episode.say(&format!("{gone}{FLAPS_STILL}"));
        return false;
    };
    wake.at(quiet.saturating_sub(flap.unchanged).min(since(until, now)));
    let message = format!(
        "{gone}, but the node flaps (condition NodeStable): watched until nothing has changed for {} \
         min, until {} at the latest",
        quiet.as_secs().div_ceil(60),
        clock(until)
    );
    turn.episode.phase = Phase::Verifying;
    turn.episode.say(&message);
    turn.hold_node(Hold::new(HoldReason::NodeFlaps, &message), wake);
    true
}
