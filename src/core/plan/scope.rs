//! What each policy covers: its nodes, how many of them are unhealthy, and whether anything new may start.

use std::collections::{BTreeMap, BTreeSet};

use super::evidence::{NodeFacts, Probe};
use super::{HoldReason, PolicyOutlook};
use crate::core::budget::{Bounds, Slots};
use crate::core::fault::{Fault, FaultState};
use crate::core::policy::{ActionType, Mode, Policy, Rule};
use crate::core::snapshot::Tri;

/// A policy with what it covers now.
#[derive(Debug)]
pub(super) struct Scope<'a> {
    pub policy: &'a Policy,
    pub selected: u32,
    pub unhealthy: u32,
    pub unknown: u32,
    pub max_unhealthy: u32,
    pub max_in_flight: u32,
    pub overlaps: BTreeSet<&'a str>,
}

/// Counts, for every policy, the nodes that it selects and that are not being deleted.
pub(super) fn scopes<'a>(
    policies: &[&'a Policy],
    nodes: &BTreeMap<&'a str, NodeFacts<'a>>,
) -> BTreeMap<&'a str, Scope<'a>> {
    let mut scopes: Vec<Scope<'a>> = policies.iter().map(|policy| Scope::empty(policy)).collect();
    for facts in nodes.values() {
        let Some(view) = facts.view.filter(|view| !view.deleting) else { continue };
        let selected: Vec<&'a Policy> =
            policies.iter().filter(|policy| policy.selector.matches(&view.labels)).copied().collect();
        for scope in scopes.iter_mut().filter(|scope| selected.iter().any(|p| p.name == scope.policy.name)) {
            scope.count(facts);
            scope.overlaps.extend(selected.iter().map(|p| p.name.as_str()).filter(|n| *n != scope.policy.name));
        }
    }
    scopes
        .into_iter()
        .map(|mut scope| {
            scope.max_unhealthy = scope.policy.limits.max_unhealthy.of(scope.selected);
            scope.max_in_flight = scope.policy.limits.max_in_flight.of(scope.selected);
            (scope.policy.name.as_str(), scope)
        })
        .collect()
}

impl<'a> Scope<'a> {
    const fn empty(policy: &'a Policy) -> Self {
        Self {
            policy,
            selected: 0,
            unhealthy: 0,
            unknown: 0,
            max_unhealthy: 0,
            max_in_flight: 0,
            overlaps: BTreeSet::new(),
        }
    }

    fn count(&mut self, facts: &NodeFacts<'_>) {
        self.selected += 1;
        if is_unhealthy(self.policy, facts) {
            self.unhealthy += 1;
        } else if matches!(facts.probe, Probe::Never | Probe::WrongNode) {
            self.unknown += 1;
        }
    }

    /// Why the policy starts nothing new, budgets of slots aside.
    pub fn blocked(&self) -> Option<(HoldReason, String)> {
        let name = &self.policy.name;
        if self.policy.suspend {
            return Some((HoldReason::Suspended, format!("policy {name} is suspended")));
        }
        if let Some(request) = self.policy.pause_requests.iter().min() {
            return Some((HoldReason::Paused, format!("policy {name} is paused: {request}")));
        }
        (self.unhealthy > self.max_unhealthy).then(|| {
            let message = format!(
                "{} of the {} nodes of policy {name} are unhealthy, maxUnhealthy is {}: nothing new starts until fewer \
                 are",
                self.unhealthy, self.selected, self.max_unhealthy
            );
            (HoldReason::TooManyUnhealthy, message)
        })
    }

    /// What is written about the policy.
    pub fn outlook(&self, slots: &Slots) -> PolicyOutlook {
        let mode = self.policy.mode;
        let bounds = Bounds { in_flight: self.max_in_flight, mode };
        PolicyOutlook {
            selected: self.selected,
            unhealthy: self.unhealthy,
            unknown: self.unknown,
            in_flight: slots.in_flight(&self.policy.name, mode),
            max_unhealthy: self.max_unhealthy,
            max_in_flight: self.max_in_flight,
            blocked: self.blocked().or_else(|| slots.refuse(&self.policy.name, bounds)),
            overlaps: self.overlaps.iter().map(|name| (*name).to_owned()).collect(),
        }
    }
}

/// A confirmed fault that a rule is for, a node that is not Ready, an open episode, or a probe that went silent. What the
/// node itself lacks counts where a rule does more than tell of it: certificates of a whole fleet end on one day, and that
/// must not keep a hung container from being healed.
/// A node that never reported is unknown, not unhealthy; that it is not Ready is known without its probe.
fn is_unhealthy(policy: &Policy, facts: &NodeFacts<'_>) -> bool {
    facts.view.is_some_and(|view| view.ready != Tri::True)
        || facts.probe == Probe::Silent
        || facts.open.iter().any(|episode| episode.mode == Mode::Enforce)
        || facts.seen.iter().any(|seen| {
            seen.fault.state == FaultState::Confirmed
                && policy.rule_for(&seen.fault).is_some_and(|rule| counts(rule, &seen.fault))
        })
}

fn counts(rule: &Rule, fault: &Fault) -> bool {
    !fault.kind.is_lasting() || rule.steps.iter().any(|step| step.action.kind() != ActionType::Notify)
}
