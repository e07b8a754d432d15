//! Faults that come back: what has healed one for a short while is an attempt that has failed, so the next step of the ladder
//! has its turn.
//!
//! Only where there is one that heals and that may be taken now, by nobody's word but the policy's. With none the same is done
//! again, as often as [`readiness`](super::readiness) lets it, and then it is left to a person. What keeps pods away (Cordon, Taint, Drain) is done anew each time: it is gone with its episode.

use std::time::Duration;

use jiff::Timestamp;

use super::attempt;
use super::evidence::NodeFacts;
use crate::episode::{Episode, EpisodeFault, StepRecord, since};
use crate::policy::{Mode, OnFailure, Policy, Step};

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

/// That a step has healed a fault as often as it may be tried, and that it has come back, if so.
pub(super) fn is_spent(facts: &NodeFacts<'_>, standing: &EpisodeFault, policy: &Policy, step: &Step) -> Option<String> {
    if !step.heals() || step.on_failure == OnFailure::Stop {
        return None;
    }
    let times = times(facts, standing, policy, step);
    (times > 0 && times >= step.attempts).then(|| format!("it came back {times} time(s) after this had healed it"))
}

/// How often it was healed lately by this very step, as the policy has it now, and came back.
fn times(facts: &NodeFacts<'_>, standing: &EpisodeFault, policy: &Policy, step: &Step) -> u32 {
    let healed = |episode: &&&Episode| {
        let fault = episode.fault(&standing.id).filter(|was| was.rule == standing.rule);
        fault.is_some_and(EpisodeFault::is_cured) && episode.policy == policy.name
    };
    let is_it = |episode: &Episode, record: &StepRecord| {
        let is_here = record.fault_id == standing.id && record.rung == standing.rung && record.acted_at.is_some();
        is_here && attempt::step_of(policy, episode, record).is_some_and(|named| named == step)
    };
    let of = |episode: &&Episode| episode.steps.iter().filter(|record| is_it(episode, record)).count();
    u32::try_from(facts.recent.iter().filter(healed).map(of).sum::<usize>()).unwrap_or(u32::MAX)
}
