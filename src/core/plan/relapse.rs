//! Faults that come back: what has healed one for a short while is an attempt that has failed, so the next step of the ladder
//! has its turn.
//!
//! Only where there is one that heals, and that may be taken as things stand. With none the same is done again, as often as [`readiness`](super::readiness) lets it, and
//! then it is left to a person. What keeps pods away (Cordon, Taint, Drain) is done anew each time: it is gone with its episode.

use std::time::Duration;

use jiff::Timestamp;

use super::evidence::NodeFacts;
use crate::core::episode::{Episode, EpisodeFault, HealState, since};
use crate::core::policy::{Action, Mode, OnFailure, Rule, Step};

/// The episodes of this very node (`uid`) that really acted and ended within the memory of failures.
pub(super) fn recent<'a>(
    finished: &[&'a Episode],
    uid: Option<&str>,
    now: Timestamp,
    memory: Duration,
) -> Vec<&'a Episode> {
    let is_recent = |episode: &&&Episode| {
        let is_real = episode.mode == Mode::Enforce && Some(episode.node_uid.as_str()) == uid;
        is_real && episode.finished_at.is_some_and(|at| since(now, at) < memory)
    };
    finished.iter().filter(is_recent).copied().collect()
}

/// Why a step is not taken once more for a fault that has come back, if so. `helps` tells which actions can do anything about it as things stand.
pub(super) fn is_spent(
    facts: &NodeFacts<'_>,
    standing: &EpisodeFault,
    rule: &Rule,
    step: &Step,
    helps: impl Fn(&Action) -> bool,
) -> Option<String> {
    if !step.heals() || step.on_failure == OnFailure::Stop {
        return None;
    }
    let times = times(facts, standing, step);
    if times == 0 || times < step.attempts {
        return None;
    }
    let above = rule.steps.iter().skip(usize::try_from(standing.rung).ok()?.saturating_add(1));
    let is_more = above.filter(|step| step.heals()).any(|step| helps(&step.action));
    is_more.then(|| format!("it came back {times} time(s) after this had healed it"))
}

/// How often it was healed by this step lately, and came back.
fn times(facts: &NodeFacts<'_>, standing: &EpisodeFault, step: &Step) -> u32 {
    let healed = |episode: &&&Episode| {
        episode.fault(&standing.id).is_some_and(|was| {
            was.state == HealState::Healed && !was.outlasted_its_ladder() && was.rule == standing.rule
        })
    };
    let acted = facts.recent.iter().filter(healed).flat_map(|episode| &episode.steps).filter(|record| {
        record.fault_id == standing.id && record.rung == standing.rung && record.action == step.action.kind()
    });
    u32::try_from(acted.filter(|record| record.acted_at.is_some()).count()).unwrap_or(u32::MAX)
}
