//! The scope of each policy: its nodes, how many of them are unhealthy, and whether anything new may start.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::storm::{Storm, StormDetector};
use crate::budget::Slots;
use crate::context::{NodeContext, Nodes, Probe, exclusion};
use crate::fault::{Fault, FaultState, FaultType};
use crate::plan::{BlockReason, LimitsView, PolicyStatusView, StormView};
use crate::policy::{Amount, Mode, Policy, Rule};
use crate::snapshot::{NodeView, Snapshot, TriState};
use crate::window::{self, Shut};

/// The share of selected nodes that may be unhealthy only by the report of their own probe before they count in `maxUnhealthy`. A
/// node that lies, or whose probe errs, must not block the others. If many nodes report it, they have a common cause.
const MAX_UNCORROBORATED: Amount = Amount::Percent(5);

/// Selected nodes by the value of the label of one limit. None = nodes without the label.
pub(super) type Group<'a> = BTreeMap<Option<&'a str>, u32>;

#[derive(Debug)]
pub(super) struct Scope<'a> {
    pub policy: &'a Policy,
    /// Why no policy starts anything, if so.
    suspended: Option<String>,
    /// Why no step of the policy may be taken at this time of day, if so.
    pub shut: Option<Shut>,
    pub selected: u32,
    pub unhealthy: u32,
    /// Unhealthy nodes of which only their own probe says so.
    uncorroborated: u32,
    pub unknown: u32,
    pub max_unhealthy: u32,
    pub max_in_flight: u32,
    pub overlaps: BTreeSet<&'a str>,
    storm_detector: StormDetector<'a>,
    /// The faults that are a storm.
    pub storms: BTreeMap<FaultType, Storm>,
    /// Selected nodes by the value of their label, for each topology that has a limit.
    pub groups: Vec<Group<'a>>,
}

/// Counts, for every policy, the nodes that it selects and that are not being deleted.
pub(super) fn scopes<'a>(
    policies: &[&'a Policy],
    nodes: &Nodes<'a>,
    snapshot: &Snapshot,
) -> BTreeMap<&'a str, Scope<'a>> {
    let mut scopes: Vec<Scope<'a>> = policies.iter().map(|policy| Scope::empty(policy)).collect();
    // The sets of policies that select a node together. A fleet has few, and most nodes have the set of the previous node.
    let mut together: BTreeSet<Vec<usize>> = BTreeSet::new();
    let mut last: Vec<usize> = Vec::new();
    for node in nodes.values() {
        let Some(view) = node.view.filter(|view| !view.deleting) else { continue };
        // Both lists are in the same order.
        let mut rest = node.policies.iter().peekable();
        let selects = |policy: &&Policy| rest.next_if(|selecting| selecting.name == policy.name).is_some();
        let places = policies.iter().map(selects).enumerate().filter_map(|(place, selects)| selects.then_some(place));
        let places: Vec<usize> = places.collect();
        for place in &places {
            scopes[*place].count(node, view);
        }
        if places != last {
            together.insert(places.clone());
            last = places;
        }
    }
    for places in &together {
        for place in places {
            let others = places.iter().filter(|other| *other != place);
            scopes[*place].overlaps.extend(others.map(|other| policies[*other].name.as_str()));
        }
    }
    scopes
        .into_iter()
        .map(|mut scope| {
            scope.suspended = exclusion::all_suspended(snapshot.suspended.as_deref());
            scope.shut = window::all_shut(&scope.policy.windows, &scope.policy.actions(), snapshot.now);
            scope.storms = scope.storm_detector.storms(scope.policy, snapshot);
            scope.max_unhealthy = scope.policy.limits.max_unhealthy.of(scope.selected);
            scope.max_in_flight = scope.policy.limits.max_in_flight.of(scope.selected);
            (scope.policy.name.as_str(), scope)
        })
        .collect()
}

impl<'a> Scope<'a> {
    fn empty(policy: &'a Policy) -> Self {
        Self {
            policy,
            suspended: None,
            shut: None,
            selected: 0,
            unhealthy: 0,
            uncorroborated: 0,
            unknown: 0,
            max_unhealthy: 0,
            max_in_flight: 0,
            overlaps: BTreeSet::new(),
            storm_detector: StormDetector::default(),
            storms: BTreeMap::new(),
            groups: vec![BTreeMap::new(); policy.limits.per_topology.len()],
        }
    }

    fn count(&mut self, node: &NodeContext<'_>, view: &'a NodeView) {
        self.selected += 1;
        self.storm_detector.count(self.policy, node, view);
        for (limit, group) in self.policy.limits.per_topology.iter().zip(&mut self.groups) {
            *group.entry(view.labels.get(&limit.key).map(String::as_str)).or_default() += 1;
        }
        if is_unhealthy(self.policy, node) {
            self.unhealthy += 1;
            self.uncorroborated += u32::from(!is_corroborated(self.policy, node));
        } else if matches!(node.probe, Probe::Never | Probe::WrongNode) {
            self.unknown += 1;
        }
    }

    /// Why the policy starts nothing new on this node, slots aside. Without a node: on any that only its own probe calls unhealthy.
    pub fn blocked(&self, node: Option<&NodeContext<'_>>) -> Option<(BlockReason, String)> {
        if let Some(why) = &self.suspended {
            return Some((BlockReason::Suspended, why.clone()));
        }
        let name = &self.policy.name;
        if self.policy.suspend {
            return Some((BlockReason::Suspended, format!("policy {name} is suspended")));
        }
        if let Some(why) = broken(self.policy) {
            return Some((BlockReason::Paused, why));
        }
        if let Some(request) = self.policy.pause_requests.iter().min() {
            return Some((BlockReason::Paused, format!("policy {name} is paused: {request}")));
        }
        // For the node itself, the report of its own probe counts.
        let own = node.is_none_or(|node| is_unhealthy(self.policy, node) && !is_corroborated(self.policy, node));
        let left_out = self.uncorroborated.saturating_sub(own.into()).min(MAX_UNCORROBORATED.of(self.selected));
        (self.unhealthy.saturating_sub(left_out) > self.max_unhealthy).then(|| {
            let own_word = match left_out {
                0 => String::new(),
                count => format!(" ({count} of them, of which only their own probe says so, not counted)"),
            };
            // A number that each of many nodes repeats would be written to all of them whenever it changes.
            let count = match node {
                Some(_) => format!("too many nodes of policy {name} are unhealthy (its status has the number)"),
                None => format!(
                    "{} of the {} nodes of policy {name} are unhealthy{own_word}",
                    self.unhealthy, self.selected
                ),
            };
            let message =
                format!("{count}, maxUnhealthy is {}: nothing new starts until fewer are", self.max_unhealthy);
            (BlockReason::MaxUnhealthyExceeded, message)
        })
    }

    /// Why no further remediation may start on this node because enough run in its zone, rack or pool. A remediation whose node
    /// is gone counts in each of them: its place is unknown.
    pub fn topology_limit_reached(
        &self,
        node: &NodeContext<'_>,
        nodes: &Nodes<'_>,
        slots: &Slots,
    ) -> Option<(BlockReason, String)> {
        for (limit, group) in self.policy.limits.per_topology.iter().zip(&self.groups) {
            let value = |view: &NodeView| view.labels.get(&limit.key).cloned();
            let mine = node.view.and_then(value);
            let is_here =
                |node_name: &&str| nodes.get(*node_name).and_then(|other| other.view).is_none_or(|v| value(v) == mine);
            let used = slots.nodes_in_flight(&self.policy.name, self.policy.mode).filter(is_here).count();
            let selected = group.get(&mine.as_deref()).copied().unwrap_or_default();
            let most = limit.max_in_flight.of(selected);
            if used >= usize::try_from(most).unwrap_or(usize::MAX) {
                let (name, key) = (&self.policy.name, &limit.key);
                let place = mine.map_or_else(|| format!("without label {key}"), |value| format!("with {key}={value}"));
                let message = format!(
                    "policy {name} has {used} of {most} remediations on nodes {place} (limits.perTopology): the next one waits until one \
                     ends"
                );
                return Some((BlockReason::TopologyLimit, message));
            }
        }
        None
    }

    /// Why a fault of this kind may not be remediated on this node because enough other nodes have one in flight, if so.
    pub fn fault_limit_reached(&self, kind: FaultType, node: &str, slots: &Slots) -> Option<(BlockReason, String)> {
        let policy = &self.policy.name;
        for limit in self.policy.limits.per_fault.iter().filter(|limit| limit.faults.contains(&kind)) {
            let used = slots.in_flight_for(policy, self.policy.mode, &limit.faults, Some(node));
            let most = limit.max_in_flight.of(self.selected);
            if used >= most {
                let kinds: Vec<&str> = limit.faults.iter().map(|kind| kind.as_str()).collect();
                let message = format!(
                    "policy {policy} has {used} of {most} remediations for {} (limits.perFault): the next one waits until one ends",
                    kinds.join(" or ")
                );
                return Some((BlockReason::FaultLimit, message));
            }
        }
        None
    }

    /// Whether this kind of fault has its own limit.
    pub fn limits(&self, kind: FaultType) -> bool {
        self.policy.limits.per_fault.iter().any(|limit| limit.faults.contains(&kind))
    }

    /// The status view of the policy.
    pub fn status_view(&self, limits: LimitsView, slots: &Slots, now: Timestamp) -> PolicyStatusView {
        let (name, mode) = (&self.policy.name, self.policy.mode);
        let storms = self.storm_detector.views(self.policy, &self.storms);
        let outside = |shut: &Shut| (BlockReason::OutsideWindow, format!("policy {name}: {}", shut.message));
        let storm = |view: &StormView| (BlockReason::Storm, format!("policy {name}: {}", view.evidence));
        PolicyStatusView {
            limits,
            windows: self.policy.windows.iter().map(|window| window.status_view(now)).collect(),
            selected: self.selected,
            unhealthy: self.unhealthy,
            unknown: self.unknown,
            in_flight: slots.in_flight(name, mode),
            max_unhealthy: self.max_unhealthy,
            max_in_flight: self.max_in_flight,
            blocked: self
                .blocked(None)
                .or_else(|| self.shut.as_ref().map(outside))
                .or_else(|| storms.first().map(storm))
                .or_else(|| slots.refuse(name, self.max_in_flight, mode)),
            storms,
            overlaps: self.overlaps.iter().map(|name| (*name).to_owned()).collect(),
        }
    }
}

/// Why a policy is broken, if so: its object is not usable now, and the controller keeps what the policy said before.
pub(super) fn broken(policy: &Policy) -> Option<String> {
    let name = &policy.name;
    policy.is_broken.then(|| {
        format!(
            "policy {name} is not valid since it was changed (its condition Ready says why): its running remediations stay as they are, \
             and no new one starts, until the policy is valid again"
        )
    })
}

/// Whether the node counts as unhealthy: it has a confirmed fault that a rule is for, or may be for; it is not Ready; it has an
/// open remediation; it is quarantined; or its probe is silent.
/// A lasting fault counts only where a rule does more than notify. Certificates of a whole fleet expire on one day, and that
/// must not block the remediation of a hung container.
/// A node that never reported is unknown, not unhealthy. That it is not Ready is known without its probe. A node whose object
/// cannot be read counts as not Ready.
fn is_unhealthy(policy: &Policy, node: &NodeContext<'_>) -> bool {
    node.view.is_some_and(|view| view.ready != TriState::True || view.unreadable.is_some())
        || node.probe == Probe::Silent
        || node.open.iter().any(|remediation| remediation.mode == Mode::Enforce)
        || node.unreadable.is_some()
        || node.finished.iter().any(|remediation| remediation.is_quarantined())
        || has_matching_fault(policy, node, |_| true)
}

/// Whether the API shows that the node is unhealthy, not only its own probe. The node is not Ready or is unschedulable, its
/// probe is silent, or the controller itself found the fault.
fn is_corroborated(policy: &Policy, node: &NodeContext<'_>) -> bool {
    node.view.is_some_and(|view| view.ready != TriState::True || view.unreadable.is_some() || view.unschedulable)
        || node.probe == Probe::Silent
        || node.unreadable.is_some()
        || has_matching_fault(policy, node, |fault| fault.kind.is_cluster_fault())
}

/// Whether the node has a confirmed fault, of those asked for, that a rule is for, or may be for.
fn has_matching_fault(policy: &Policy, node: &NodeContext<'_>, is_asked: impl Fn(&Fault) -> bool) -> bool {
    let confirmed =
        node.seen.iter().map(|seen| seen.fault.as_ref()).filter(|fault| fault.state == FaultState::Confirmed);
    confirmed
        .filter(|fault| is_asked(fault))
        .any(|fault| policy.perhaps_for(fault, &node.around).any(|(rule, _)| counts(rule, fault)))
}

fn counts(rule: &Rule, fault: &Fault) -> bool {
    !fault.kind.spec().lasting || rule.acts()
}
