//! Storms: many nodes with the same new fault at once. One common cause, or one wrong detector, is more likely than many faulty
//! nodes. Nothing begins for the fault until no new nodes report it. Then one node is remediated. If that helps, two nodes
//! follow, then four, and so on.
//!
//! Fewer nodes are enough if they share something that most nodes do not ([`shared()`]): that is the likely cause.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::context::{NodeContext, Probe};
use crate::fault::{Fault, FaultState, FaultType};
use crate::moment::since;
use crate::plan::StormView;
use crate::policy::{Policy, Rule};
use crate::remediation::{Phase, Remediation, RemediationFault, Resolution};
use crate::snapshot::{NodeView, Snapshot};

mod shared;

use shared::{Common, shared};

/// Fewer nodes than this are no storm, whatever their share.
pub(super) const LEAST: u32 = 5;
/// How long a success or failure counts for the number of nodes that may be remediated at a time.
const MEMORY: Duration = Duration::from_hours(1);
/// When to check again whether a storm has passed: faults age without an event.
pub(super) const AGAIN: Duration = Duration::from_secs(30);

/// The same fault on the nodes of one policy.
#[derive(Clone, Debug, Default)]
struct FaultSpread<'a> {
    /// Nodes on which it is confirmed.
    affected: Vec<&'a NodeView>,
    /// Nodes on which it is new, including those that do not show it any more.
    fresh: Vec<&'a NodeView>,
    /// How many of the nodes in `fresh` do not show it any more.
    gone: u32,
}

fn count(nodes: &[&NodeView]) -> u32 {
    u32::try_from(nodes.len()).unwrap_or(u32::MAX)
}

/// The kinds of fault that the policy was to remediate on this node and that began within the storm window.
fn lately(policy: &Policy, node: &NodeContext<'_>) -> BTreeSet<FaultType> {
    let now = node.cluster.snapshot.now;
    let faults = node.remediations_of(policy).flat_map(|remediation| &remediation.faults);
    let is_new = |fault: &&RemediationFault| fault.since.is_some_and(|at| since(now, at) <= policy.limits.storm.window);
    let acts = |fault: &&RemediationFault| policy.rule(&fault.rule).is_some_and(Rule::acts);
    faults.filter(is_new).filter(acts).map(|fault| fault.kind).collect()
}

/// The faults that the nodes of a policy have in common.
#[derive(Clone, Debug, Default)]
pub(super) struct StormDetector<'a> {
    spreads: BTreeMap<FaultType, FaultSpread<'a>>,
    selected: Vec<&'a NodeView>,
}

#[derive(Clone, Debug)]
pub(super) struct Storm {
    phase: StormPhase,
    /// What the nodes have in common, if few nodes are enough. Other nodes are not part of the storm.
    among: Option<Common>,
}

impl Storm {
    /// The phase of the storm for this node.
    pub fn on(&self, node: Option<&NodeView>) -> Option<StormPhase> {
        let is_here = self.among.as_ref().is_none_or(|common| node.is_none_or(|node| common.is_of(node)));
        is_here.then_some(self.phase)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StormPhase {
    /// New nodes report the fault: nothing begins.
    Rising,
    /// No new nodes report it, but many are still faulty: the maximum number that may be remediated at a time.
    Passing(u32),
}

impl<'a> StormDetector<'a> {
    /// Counts one selected node.
    pub fn count(&mut self, policy: &Policy, node: &NodeContext<'_>, view: &'a NodeView) {
        self.selected.push(view);
        let mut met: BTreeMap<FaultType, bool> = BTreeMap::new();
        // Notifications are always allowed: a storm does not block a rule that only notifies.
        let is_matched = |fault: &Fault| policy.perhaps_for(fault, &node.around).any(|(rule, _)| rule.acts());
        // The last report of a silent probe is old.
        let seen = node.seen.iter().filter(|_| node.probe == Probe::Reporting);
        for seen in seen.filter(|s| s.fault.state == FaultState::Confirmed && is_matched(&s.fault)) {
            *met.entry(seen.fault.kind).or_default() |= seen.lasted <= policy.limits.storm.window;
        }
        // Faults that are resolved as fast as they appear are a storm too: a wrong detector finds the next node meanwhile.
        for kind in lately(policy, node) {
            if let Some(is_fresh) = met.get_mut(&kind) {
                *is_fresh = true;
                continue;
            }
            let spread = self.spreads.entry(kind).or_default();
            spread.gone += 1;
            spread.fresh.push(view);
        }
        for (kind, is_fresh) in met {
            let spread = self.spreads.entry(kind).or_default();
            spread.affected.push(view);
            if is_fresh {
                spread.fresh.push(view);
            }
        }
    }

    fn from(&self, policy: &Policy) -> u32 {
        policy.limits.storm.min_nodes.of(count(&self.selected)).max(LEAST)
    }

    /// Whether these nodes are a storm: many of all nodes, or enough nodes that share something. If the threshold is above the
    /// number of selected nodes, the policy wants no storm at all.
    fn storm(&self, nodes: &[&NodeView], from: u32, phase: impl Fn() -> StormPhase) -> Option<Storm> {
        if count(nodes) >= from {
            return Some(Storm { phase: phase(), among: None });
        }
        let is_possible = from <= count(&self.selected) && count(nodes) >= LEAST;
        let common = is_possible.then(|| shared(nodes, &self.selected)).flatten();
        let common = common.filter(|common| common.having() >= LEAST)?;
        Some(Storm { phase: phase(), among: Some(common) })
    }

    /// The kinds of fault that many of the nodes have.
    pub fn storms(&self, policy: &Policy, snapshot: &Snapshot) -> BTreeMap<FaultType, Storm> {
        let from = self.from(policy);
        let stand = |(kind, spread): (&FaultType, &FaultSpread<'_>)| {
            let rising = || self.storm(&spread.fresh, from, || StormPhase::Rising);
            let passing = || StormPhase::Passing(max_concurrent(helped(policy, *kind, snapshot)));
            Some((*kind, rising().or_else(|| self.storm(&spread.affected, from, passing))?))
        };
        self.spreads.iter().filter_map(stand).collect()
    }

    /// The status views of all storms of the policy, the widest first, each with the evidence for one cause.
    pub fn views(&self, policy: &Policy, storms: &BTreeMap<FaultType, Storm>) -> Vec<StormView> {
        let mut all: Vec<_> =
            storms.iter().filter_map(|(kind, storm)| Some((*kind, storm, self.spreads.get(kind)?))).collect();
        all.sort_by_key(|(kind, _, spread)| std::cmp::Reverse((count(&spread.fresh), count(&spread.affected), *kind)));
        let status_view = |(kind, storm, spread): (FaultType, &Storm, &FaultSpread<'_>)| StormView {
            fault: kind,
            max_concurrent: match storm.phase {
                StormPhase::Rising => 0,
                StormPhase::Passing(max_concurrent) => max_concurrent,
            },
            nodes: count(&spread.affected),
            new: count(&spread.fresh),
            evidence: self.evidence(policy, kind, storm, spread),
        };
        all.into_iter().map(status_view).collect()
    }

    /// The evidence for a storm of this kind, and what the controller does about it.
    fn evidence(&self, policy: &Policy, kind: FaultType, storm: &Storm, spread: &FaultSpread<'_>) -> String {
        let from = self.from(policy);
        let within = policy.limits.storm.window.as_secs() / 60;
        let (rises, selected) = (storm.phase == StormPhase::Rising, self.selected.len());
        let (affected, fresh) = (count(&spread.affected), count(&spread.fresh));
        let what = if rises {
            let gone = match spread.gone {
                0 => String::new(),
                gone => format!(" ({gone} of them resolved)"),
            };
            format!(
                "{fresh} of {selected} nodes have a new {kind} within {within} min{gone}, a storm starts at {from} nodes, or \
                 at {LEAST} that have something in common: nothing starts for it until no more come"
            )
        } else {
            format!(
                "{affected} of {selected} nodes have {kind}: only a few are remediated at a time, as long as that helps"
            )
        };
        let of = if rises { &spread.fresh } else { &spread.affected };
        let common = shared(of, &self.selected).map_or_else(String::new, |common| format!("; {common}"));
        what + &common
    }
}

/// How many remediations resolved the fault by an action and began after the last one that did not help. One that has
/// tried nothing is no evidence. Nor is a fault that was remediated while it was new: it may have been resolved before
/// it showed that many nodes have it.
fn helped(policy: &Policy, kind: FaultType, snapshot: &Snapshot) -> u32 {
    let is_mine = |remediation: &&Remediation| {
        let is_over = matches!(remediation.phase, Phase::Succeeded | Phase::Failed | Phase::Quarantined);
        is_over
            && remediation.policy == policy.name
            && remediation.finished_at.is_some_and(|at| since(snapshot.now, at) < MEMORY)
    };
    let ended: Vec<&Remediation> = snapshot.remediations.values().filter(is_mine).collect();
    let has = |remediation: &Remediation, is: &dyn Fn(&RemediationFault) -> bool| {
        remediation.faults.iter().any(|fault| fault.kind == kind && is(fault))
    };
    let in_vain = |remediation: &Remediation, fault: &RemediationFault| {
        let was_exhausted = fault.state == Resolution::Exhausted || fault.resolved_after_exhaustion();
        was_exhausted && remediation.has_tried(&fault.id)
    };
    let failed = ended.iter().filter(|remediation| has(remediation, &|fault| in_vain(remediation, fault)));
    let last = failed.filter_map(|remediation| remediation.finished_at).max();
    let later = ended.iter().filter(|remediation| last.is_none_or(|last| remediation.started_at >= last));
    let resolved = later.filter(|remediation| {
        has(remediation, &|fault| {
            let mut steps = remediation.steps.iter().filter(|step| step.fault_id == fault.id && step.action.resolves());
            let was_acted_on = steps.any(|step| step.executed_at.is_some());
            let lasted = fault.since.map(|at| since(remediation.started_at, at));
            let was_old = lasted.is_some_and(|lasted| lasted >= policy.limits.storm.window);
            fault.is_resolved_by_steps() && was_acted_on && was_old
        })
    });
    u32::try_from(resolved.count()).unwrap_or(u32::MAX)
}

/// One at first, two after one success, four after three successes, and so on.
fn max_concurrent(helped: u32) -> u32 {
    let next = helped.saturating_add(1);
    1 << next.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_as_many_follow_when_all_before_were_resolved() {
        let all: Vec<u32> = (0..9).map(max_concurrent).collect();
        assert_eq!(all, [1, 2, 2, 4, 4, 4, 4, 8, 8]);
        assert_eq!(max_concurrent(u32::MAX), 1 << 31);
    }
}
