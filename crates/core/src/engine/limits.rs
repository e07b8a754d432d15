//! The narrower limits of a policy now: the maximum, the current count, and where no further action is allowed.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::scope::{Group, Scope};
use crate::budget::Slots;
use crate::context::{NodeContext, Nodes};
use crate::moment::{after, since};
use crate::plan::{FaultLimitView, LimitsView, MAX_SHOWN, NodeAtLimit, TopologyLimitView};
use crate::policy::{Policy, Rule, Step, TopologyLimit};
use crate::remediation::{Executor, Remediation, StepRecord, StepState};
use crate::text::bounded;

pub(super) fn status_view(scope: &Scope<'_>, nodes: &Nodes<'_>, slots: &Slots) -> LimitsView {
    let (policy, limits) = (scope.policy, &scope.policy.limits);
    let each = limits.per_topology.iter().zip(&scope.groups);
    let rooms: Vec<_> = each.flat_map(|(limit, group)| rooms(policy, limit, group, nodes, slots)).collect();
    let (rooms, topologies_left_out) = least(rooms, Ord::cmp);
    let spent = nodes.values().filter_map(|node| spent(node, node.remediations_by(policy), policy));
    let by_wait = |a: &NodeAtLimit, b: &NodeAtLimit| b.until.cmp(&a.until).then_with(|| a.node.cmp(&b.node));
    let (spent, spent_left_out) = least(spent.collect(), by_wait);
    LimitsView {
        topologies: rooms.into_iter().map(|(_, room)| room.view()).collect(),
        topologies_left_out,
        faults: limits
            .per_fault
            .iter()
            .map(|limit| FaultLimitView {
                faults: limit.faults.iter().copied().collect(),
                in_flight: slots.in_flight_for(&policy.name, policy.mode, &limit.faults, None),
                max_in_flight: limit.max_in_flight.of(scope.selected),
            })
            .collect(),
        spent,
        spent_left_out,
    }
}

/// The first entries, in order, and how many more there are. There may be one for each of ten thousand nodes.
fn least<T>(mut all: Vec<T>, by: impl Fn(&T, &T) -> Ordering) -> (Vec<T>, u32) {
    let more = all.len().saturating_sub(MAX_SHOWN);
    if more > 0 {
        all.select_nth_unstable_by(MAX_SHOWN, &by);
        all.truncate(MAX_SHOWN);
    }
    all.sort_unstable_by(by);
    (all, u32::try_from(more).unwrap_or(u32::MAX))
}

/// The maximum and the current count for one value. Borrowed, because few are shown.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Room<'a> {
    key: &'a str,
    value: Option<&'a str>,
    nodes: u32,
    in_flight: u32,
    max_in_flight: u32,
}

impl Room<'_> {
    fn view(self) -> TopologyLimitView {
        let Self { key, value, nodes, in_flight, max_in_flight } = self;
        TopologyLimitView {
            key: bounded(key, 317),
            value: value.map(|value| bounded(value, 63)),
            nodes,
            in_flight,
            max_in_flight,
        }
    }
}

/// Each value of the label of one limit, with the room that is left.
fn rooms<'a>(
    policy: &Policy,
    limit: &'a TopologyLimit,
    group: &Group<'a>,
    nodes: &Nodes<'_>,
    slots: &Slots,
) -> Vec<(u32, Room<'a>)> {
    let mut here: BTreeMap<Option<&str>, u32> = BTreeMap::new();
    // A remediation whose node is gone counts for every value.
    let mut anywhere = 0;
    for node_name in slots.nodes_in_flight(&policy.name, policy.mode) {
        match nodes.get(node_name).and_then(|node| node.view) {
            Some(view) => *here.entry(view.labels.get(&limit.key).map(String::as_str)).or_default() += 1,
            None => anywhere += 1,
        }
    }
    let room = |value: Option<&'a str>, count: u32| {
        let max_in_flight = limit.max_in_flight.of(count);
        let in_flight = anywhere + here.get(&value).copied().unwrap_or_default();
        let room = Room { key: &limit.key, value, nodes: count, in_flight, max_in_flight };
        (max_in_flight.saturating_sub(in_flight), room)
    };
    group.iter().map(|(value, count)| room(*value, *count)).collect()
}

/// The share of [`NodeLimit::window`](crate::policy::NodeLimit) for which a node may keep a slot of its policy busy.
const BUSY: u32 = 4;

/// Whether the policy has acted on this node as often, or for as long, as the limit allows. All Node objects of that name count:
/// a recreated Node may stand for the same machine, and recreation of machines in vain must have an end, too.
///
/// A successful attempt counts like any other: the node itself shows whether it is resolved. An attempt that the node refused
/// counts as well, because it occupied the slot.
pub(super) fn spent<'r>(
    node: &NodeContext<'_>,
    remediations: impl Iterator<Item = &'r Remediation>,
    policy: &Policy,
) -> Option<NodeAtLimit> {
    let (now, answer_within) = (node.cluster.snapshot.now, node.cluster.settings.answer_within);
    let limit = policy.limits.per_node;
    let steps = remediations.flat_map(|remediation| &remediation.steps);
    // An action that failed or gave no answer may have changed the node too.
    let attempts = steps.filter(|step| step.action.disturbs() && !step.is_refused_call());
    let attempts = attempts.filter(|step| step.state != StepState::Refused || step.executor != Executor::Controller);
    let mut executed: Vec<Timestamp> = Vec::new();
    let mut busy: Vec<(Timestamp, Duration)> = Vec::new();
    // An attempt that is about to change its executor is one action, not two.
    for step in attempts.filter(|step| step.state != StepState::Scheduled) {
        let at = step.executed_at.or(step.started_at);
        executed.extend(at.filter(|at| since(now, *at) < limit.window));
        if let Some(end) = step.clear_since.or(step.finished_at) {
            busy.push((end, waited(step, end, answer_within)));
        }
    }
    executed.sort_unstable();
    let most = usize::try_from(limit.max_actions).unwrap_or(usize::MAX);
    // The action that reached the limit. When it leaves the window, there is room for another.
    let often = executed.len().checked_sub(most).and_then(|first| executed.get(first)).copied();
    let slow = long(busy, (limit.window / BUSY).max(longest(policy, answer_within)), limit.window);
    let slow = slow.filter(|at| since(now, *at) < limit.window);
    let at = often.max(slow)?;
    let until = after(at, limit.window);
    let acts = u32::try_from(executed.len()).unwrap_or(u32::MAX);
    Some(NodeAtLimit { node: node.name.to_owned(), actions: acts, is_slow: slow > often, until })
}

/// For how long an attempt kept the slot busy with waiting for the node. Time that the controller needs itself, or that a person
/// takes to answer, does not count against the node.
fn waited(step: &StepRecord, end: Timestamp, answer_within: Duration) -> Duration {
    if step.executor == Executor::Controller || step.state == StepState::Cancelled {
        return Duration::ZERO;
    }
    // An attempt that no person approved ends like one without an answer, after hours.
    let unbegun = || since(end, step.scheduled_at).min(answer_within);
    step.started_at.map_or_else(unbegun, |started| since(end, started))
}

/// The end of the last attempt at which the attempts of one window reached the maximum time. The whole window counts from there.
/// If attempts resumed as soon as the first one leaves the window, they would never end.
fn long(mut busy: Vec<(Timestamp, Duration)>, most: Duration, within: Duration) -> Option<Timestamp> {
    busy.sort_unstable();
    let (mut total, mut oldest, mut last) = (Duration::ZERO, 0, None);
    for (end, took) in &busy {
        total = total.saturating_add(*took);
        while let Some((_, length)) = busy.get(oldest).filter(|(first, _)| since(*end, *first) >= within) {
            (total, oldest) = (total.saturating_sub(*length), oldest + 1);
        }
        last = if total >= most { Some(*end) } else { last };
    }
    last
}

/// The longest wait for the node in the steps of one rule: every node may take that long.
fn longest(policy: &Policy, answer_within: Duration) -> Duration {
    let each = |step: &Step| step.timeout.max(answer_within).saturating_mul(step.max_attempts);
    let on_node = |rule: &Rule| -> Duration {
        let steps = rule.steps.iter().filter(|step| step.action.kind().is_done_on_node());
        steps.map(each).fold(Duration::ZERO, Duration::saturating_add)
    };
    policy.rules.iter().map(on_node).max().unwrap_or_default()
}
