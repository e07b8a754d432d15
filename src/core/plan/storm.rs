//! Many nodes with the same new fault at once: one cause, or one detector that errs, is more likely than many sick nodes.
//! Nothing is begun for it until no more come; then one is healed, and when that has helped two, four, and so on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::evidence::{NodeFacts, Probe};
use crate::core::episode::{Episode, EpisodeFault, HealState, Phase, since};
use crate::core::fault::{Fault, FaultState, FaultType};
use crate::core::policy::{Policy, Rule};
use crate::core::snapshot::NodeView;

/// Fewer nodes than this are no storm, whatever their share.
pub(super) const LEAST: u32 = 5;
/// How long what has helped, or has not, counts for how many may be healed at a time.
const MEMORY: Duration = Duration::from_hours(1);
/// When to look again whether a storm has passed: faults grow older without an event.
pub(super) const AGAIN: Duration = Duration::from_secs(30);

/// The same fault on the nodes of one policy.
#[derive(Clone, Debug, Default)]
struct Spread<'a> {
    /// Nodes on which it is confirmed.
    sick: u32,
    /// Of those, nodes on which it is new.
    fresh: u32,
    /// Nodes on which it began as lately and does not show any more.
    gone: u32,
    /// Of the sick ones, how many have which kubelet.
    versions: BTreeMap<&'a str, u32>,
}

impl Spread<'_> {
    const fn all_fresh(&self) -> u32 {
        self.fresh.saturating_add(self.gone)
    }
}

/// The kinds of fault that were to be healed here in the name of the policy and that began within the time of a storm.
fn lately(policy: &Policy, facts: &NodeFacts<'_>, now: Timestamp) -> BTreeSet<FaultType> {
    let faults = facts.episodes_of(policy).flat_map(|episode| &episode.faults);
    let is_new = |fault: &&EpisodeFault| fault.since.is_some_and(|at| since(now, at) <= policy.limits.storm.within);
    let acts = |fault: &&EpisodeFault| policy.rule(&fault.rule).is_some_and(Rule::acts);
    faults.filter(is_new).filter(acts).map(|fault| fault.kind).collect()
}

/// What a policy's nodes have in common.
#[derive(Clone, Debug, Default)]
pub(super) struct Weather<'a> {
    spreads: BTreeMap<FaultType, Spread<'a>>,
    /// Selected nodes, and how many of them have which kubelet.
    selected: u32,
    versions: BTreeMap<&'a str, u32>,
}

/// How one kind of fault stands with a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storm {
    /// New ones come: nothing is begun.
    Rising,
    /// No more come, and many are sick still: so many may be healed at a time.
    Passing(u32),
}

impl<'a> Weather<'a> {
    /// Counts one selected node.
    pub fn count(&mut self, policy: &Policy, facts: &NodeFacts<'_>, view: &'a NodeView, now: Timestamp) {
        self.selected += 1;
        let version = view.kubelet_version.as_deref();
        if let Some(version) = version {
            *self.versions.entry(version).or_default() += 1;
        }
        let mut met: BTreeMap<FaultType, bool> = BTreeMap::new();
        // People are told at any time: no storm holds a rule that does nothing else.
        let is_matched = |fault: &Fault| policy.perhaps_for(fault, &facts.around).any(|(rule, _)| rule.acts());
        // A silent probe's word is old.
        let seen = facts.seen.iter().filter(|_| facts.probe == Probe::Reporting);
        for seen in seen.filter(|s| s.fault.state == FaultState::Confirmed && is_matched(&s.fault)) {
            *met.entry(seen.fault.kind).or_default() |= seen.lasted <= policy.limits.storm.within;
        }
        // What is healed as fast as it comes is a storm as well: a detector that errs finds the next node in the meantime.
        for kind in lately(policy, facts, now) {
            match met.get_mut(&kind) {
                Some(is_fresh) => *is_fresh = true,
                None => self.spreads.entry(kind).or_default().gone += 1,
            }
        }
        for (kind, is_fresh) in met {
            let spread = self.spreads.entry(kind).or_default();
            spread.sick += 1;
            spread.fresh += u32::from(is_fresh);
            if let Some(version) = version {
                *spread.versions.entry(version).or_default() += 1;
            }
        }
    }

    fn from(&self, policy: &Policy) -> u32 {
        policy.limits.storm.nodes.of(self.selected).max(LEAST)
    }

    /// The kinds of fault that many of the nodes have.
    pub fn storms(
        &self,
        policy: &Policy,
        episodes: &BTreeMap<String, Episode>,
        now: Timestamp,
    ) -> BTreeMap<FaultType, Storm> {
        let from = self.from(policy);
        let stand = |(kind, spread): (&FaultType, &Spread<'_>)| {
            if spread.all_fresh() >= from {
                return Some((*kind, Storm::Rising));
            }
            let most = || at_a_time(helped(policy, *kind, episodes, now));
            (spread.sick >= from).then(|| (*kind, Storm::Passing(most())))
        };
        self.spreads.iter().filter_map(stand).collect()
    }

    /// What is told of the policy: the widest storm, with what speaks for one cause.
    pub fn told(&self, policy: &Policy) -> Option<String> {
        let from = self.from(policy);
        let is_one = |spread: &Spread<'_>| spread.sick.max(spread.all_fresh()) >= from;
        let all = self.spreads.iter().filter(|(_, spread)| is_one(spread));
        let (kind, spread) = all.max_by_key(|(kind, s)| (s.all_fresh(), s.sick, **kind))?;
        let within = policy.limits.storm.within.as_secs() / 60;
        let what = if spread.all_fresh() >= from {
            let gone = match spread.gone {
                0 => String::new(),
                gone => format!(" ({gone} of them no more)"),
            };
            format!(
                "{} of {} nodes have a new {kind} within {within} min{gone}, a storm begins with {from}: nothing is begun \
                 for it until no more come",
                spread.all_fresh(),
                self.selected
            )
        } else {
            format!(
                "{} of {} nodes have {kind}: few at a time are healed, as long as it helps",
                spread.sick, self.selected
            )
        };
        Some(what + &self.one_version(spread))
    }

    /// That nearly all of the sick have a kubelet that most nodes have not.
    fn one_version(&self, spread: &Spread<'_>) -> String {
        let most = spread.versions.iter().max_by_key(|(version, count)| (**count, **version));
        let Some((version, sick)) = most else { return String::new() };
        let all = self.versions.get(version).copied().unwrap_or_default();
        if sick.saturating_mul(10) < spread.sick.saturating_mul(9) || all.saturating_mul(2) > self.selected {
            return String::new();
        }
        format!("; {sick} of the {} have kubelet {version}, which {all} of all nodes have", spread.sick)
    }
}

/// How many were healed by an act in episodes that began after the last one that did not help. What was healed while it was
/// new may have been healed before anybody saw that there are many: it speaks for nothing.
fn helped(policy: &Policy, kind: FaultType, episodes: &BTreeMap<String, Episode>, now: Timestamp) -> u32 {
    let is_mine = |episode: &&Episode| {
        let is_over = matches!(episode.phase, Phase::Succeeded | Phase::Failed | Phase::Contained);
        is_over && episode.policy == policy.name && episode.finished_at.is_some_and(|at| since(now, at) < MEMORY)
    };
    let ended: Vec<&Episode> = episodes.values().filter(is_mine).collect();
    let has = |episode: &Episode, is: &dyn Fn(&EpisodeFault) -> bool| {
        episode.faults.iter().any(|fault| fault.kind == kind && is(fault))
    };
    let in_vain = |fault: &EpisodeFault| fault.state == HealState::GivenUp || fault.outlasted_its_ladder();
    let failed = ended.iter().filter(|episode| has(episode, &in_vain));
    let last = failed.filter_map(|episode| episode.finished_at).max();
    let later = ended.iter().filter(|episode| last.is_none_or(|last| episode.opened_at >= last));
    let healed = later.filter(|episode| {
        has(episode, &|fault| {
            let mut steps = episode.steps.iter().filter(|step| step.fault_id == fault.id && step.action.heals());
            let was_acted_on = steps.any(|step| step.acted_at.is_some());
            let lasted = fault.since.map(|at| since(episode.opened_at, at));
            let was_old = lasted.is_some_and(|lasted| lasted >= policy.limits.storm.within);
            fault.state == HealState::Healed && !fault.outlasted_its_ladder() && was_acted_on && was_old
        })
    });
    u32::try_from(healed.count()).unwrap_or(u32::MAX)
}

/// One, after one that was healed two, after three four, and so on.
fn at_a_time(helped: u32) -> u32 {
    let next = helped.saturating_add(1);
    1 << next.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_as_many_follow_when_all_before_were_healed() {
        let all: Vec<u32> = (0..9).map(at_a_time).collect();
        assert_eq!(all, [1, 2, 2, 4, 4, 4, 4, 8, 8]);
        assert_eq!(at_a_time(u32::MAX), 1 << 31);
    }
}
