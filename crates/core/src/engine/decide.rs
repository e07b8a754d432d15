//! One pass: gather the context, advance the open remediations, open new ones, clean up, and report what is blocked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use super::scope::Scope;
use super::slot::SlotReservation;
use super::update::RemediationUpdate;
use super::{advance, cause, cleanup, limits, manual_requests, open, retention, scope, slot, stale, views};
use crate::budget::Slots;
use crate::context::{Block, ClusterContext, NodeContext, Nodes, ObservedFault, Requeue, gather, unreadable};
use crate::plan::{Blocked, Effect, Plan, PlanSettings};
use crate::policy::Policy;
use crate::remediation::{Remediation, not_ahead};
use crate::snapshot::Snapshot;

/// See [`Ctx::judge`].
pub(super) type Judge = fn(PolicyContext<'_>, &ObservedFault<'_>) -> Result<(), Block>;

/// The input of every part of a decision: the cluster, and what each policy covers of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ctx<'a> {
    pub cluster: ClusterContext<'a>,
    pub nodes: &'a Nodes<'a>,
    /// Whether a fault may be remediated. It is a value since the judgement of one fault may need that of another.
    pub judge: Judge,
    pub scopes: &'a BTreeMap<&'a str, Scope<'a>>,
}

impl<'a> Deref for Ctx<'a> {
    type Target = ClusterContext<'a>;

    fn deref(&self) -> &Self::Target {
        &self.cluster
    }
}

impl<'a> Ctx<'a> {
    pub fn new(cluster: ClusterContext<'a>, nodes: &'a Nodes<'a>, scopes: &'a BTreeMap<&'a str, Scope<'a>>) -> Self {
        Self { cluster, nodes, judge: |cx, seen| cause::judge(cx, seen).map(drop), scopes }
    }
}

/// One policy on one node, in one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct PolicyContext<'a> {
    pub ctx: Ctx<'a>,
    pub node: &'a NodeContext<'a>,
    pub policy: &'a Policy,
}

impl<'a> Deref for PolicyContext<'a> {
    type Target = Ctx<'a>;

    fn deref(&self) -> &Self::Target {
        &self.ctx
    }
}

impl<'a> PolicyContext<'a> {
    /// What the policy covers.
    pub fn scope(self) -> Option<&'a Scope<'a>> {
        self.ctx.scopes.get(self.policy.name.as_str())
    }

    /// Whether the policy may start anything new on the node, slots aside.
    pub fn require_unblocked(self) -> Result<(), Block> {
        let blocked = self.scope().and_then(|scope| scope.blocked(Some(self.node)));
        blocked.map_or(Ok(()), |blocked| Err(blocked.into()))
    }

    /// Why no further remediation of the policy may start on the node, since enough run already in the policy, the cluster or the
    /// node's zone, rack or pool.
    pub fn limit_reached(self, slots: &Slots) -> Option<Block> {
        let limit = self.scope().map_or(0, |scope| scope.max_in_flight);
        let refused = slots.refuse(&self.policy.name, limit, self.policy.mode);
        refused.or_else(|| self.scope()?.topology_limit_reached(self.node, self.nodes, slots)).map(Block::from)
    }
}

/// Decides what the controller does now, what is blocked and why, and when to decide again.
///
/// Total, pure and deterministic: equal input gives an equal plan, in whatever order the lists arrive.
pub fn plan(snapshot: &Snapshot, settings: &PlanSettings) -> Plan {
    // A change that `taken_as_now` makes is written like any other change.
    let (known, until_now) = (snapshot, taken_as_now(snapshot));
    let snapshot = until_now.as_ref().unwrap_or(known);
    let policies = by_order(snapshot);
    let by_name = by_name(&policies);
    let cluster = ClusterContext { snapshot, settings, policies: &by_name };
    let mut requeue = Requeue::default();
    let nodes = gather::gather(cluster, &policies, None, &mut requeue);
    let scopes = scope::scopes(&policies, &nodes, snapshot);
    let ctx = Ctx::new(cluster, &nodes, &scopes);
    let mut slots = Slots::reconcile(snapshot, settings);
    if let Some(release) = slots.next_release(snapshot.now, settings.cache_lag) {
        requeue.after(release);
    }

    let mut updates = of_open_remediations(ctx, &mut slots);
    // The next pass sees the result of such an update.
    let is_ending = |update: &RemediationUpdate| !update.remediation.is_quarantined() || update.effect.is_some();
    let mut busy: BTreeSet<&str> =
        updates.iter().filter(|(_, updates)| updates.iter().any(is_ending)).map(|(node_name, _)| *node_name).collect();
    let begun = manual_requests::begin(ctx, &busy, &mut slots, &mut requeue);
    let taken = begun.updates.iter().map(|update| &update.remediation.node).chain(&begun.stopped);
    busy.extend(taken.filter_map(|node_name| Some(*nodes.get_key_value(node_name.as_str())?.0)));
    let opened = open::open(ctx, &busy, &mut slots, &mut requeue);
    let mut blocked = opened.blocked;
    blocked.extend(begun.blocked);
    blocked.extend(unreadable::blocked(&nodes, &mut requeue));
    for update in begun.updates.into_iter().chain(opened.updates) {
        if let Some((name, _)) = nodes.get_key_value(update.remediation.node.as_str()) {
            updates.entry(name).or_default().push(update);
        }
    }
    updates.values().flatten().for_each(|update| requeue.merge(update.requeue));
    blocked.extend(updates.values().flatten().flat_map(|update| update.blocked.iter().cloned()));
    blocked.sort_by(|a, b| {
        (&a.node, &a.fault_id, a.reason, &a.message).cmp(&(&b.node, &b.fault_id, b.reason, &b.message))
    });
    blocked.dedup();

    let mut effects: Vec<Effect> =
        slots.to_store(settings.rebuild_ledger).map(Effect::StoreLedger).into_iter().collect();
    let gone = leftovers(ctx, &updates, &slots);
    for (node_name, mut extra) in gone {
        let updates = updates.get(node_name).map(Vec::as_slice).unwrap_or_default();
        effects.extend(updates.iter().filter_map(|update| write(known, &update.remediation)));
        effects.append(&mut extra);
        effects.extend(updates.iter().filter_map(|update| update.effect.clone()));
    }
    effects.extend(begun.effects);
    effects.extend(retention::sweep(ctx, &mut requeue));
    // Every effect follows from some age, and no age is known.
    if snapshot.clock_disputed.is_some() {
        effects.clear();
    }

    Plan {
        effects,
        nodes: node_status_views(&nodes, &updates, &blocked),
        policies: scopes
            .iter()
            .map(|(name, scope)| {
                let limits = limits::status_view(scope, &nodes, &slots);
                ((*name).to_owned(), scope.status_view(limits, &slots, snapshot.now))
            })
            .collect(),
        blocked,
        next: requeue.get(),
    }
}

/// The snapshot in which no open work has a time later than its own `now`, from a clock that was ahead of this one. `None` where
/// nothing changes, as while the clocks are disputed: `now` may be the wrong time. A finished record is not changed: while its
/// times are ahead, it counts as a record of today, which can only block more actions.
pub(super) fn taken_as_now(snapshot: &Snapshot) -> Option<Snapshot> {
    if snapshot.clock_disputed.is_some() {
        return None;
    }
    let now = snapshot.now;
    let live = snapshot.remediations.values().filter(|remediation| remediation.is_live());
    let remediations: Vec<Remediation> = live.filter_map(|remediation| remediation.with_times_until(now)).collect();
    let is_ahead = snapshot.manual_requests.values().any(|manual| not_ahead(manual.asked_at, now) != manual.asked_at);
    if remediations.is_empty() && !is_ahead {
        return None;
    }
    let mut next = snapshot.clone();
    next.remediations.extend(remediations.into_iter().map(|remediation| (remediation.name.clone(), remediation)));
    for manual in next.manual_requests.values_mut() {
        manual.asked_at = not_ahead(manual.asked_at, now);
    }
    Some(next)
}

/// The updates of the remediations that are open or quarantined, by node.
fn of_open_remediations<'a>(ctx: Ctx<'a>, slots: &mut Slots) -> BTreeMap<&'a str, Vec<RemediationUpdate>> {
    let reservations = slot::settle(ctx, slots);
    let mut updates: BTreeMap<&'a str, Vec<RemediationUpdate>> = BTreeMap::new();
    for node in ctx.nodes.values() {
        // A frozen node counts as not checked since: its state is unknown, and so is what an action would find.
        if unreadable::is_frozen(node) {
            let unchanged = |open: &&Remediation| RemediationUpdate::new((*open).clone(), SlotReservation::Awaited);
            let open = node.open.iter().map(unchanged);
            updates.entry(node.name).or_default().extend(open);
            continue;
        }
        for remediation in &node.open {
            let slot = reservations.get(remediation.name.as_str()).cloned().unwrap_or(SlotReservation::Awaited);
            let update = advance::take(ctx, node, remediation, slot, slots);
            updates.entry(node.name).or_default().push(update);
        }
        for remediation in node.finished.iter().filter(|remediation| remediation.is_quarantined()) {
            updates.entry(node.name).or_default().push(cleanup::watch_quarantine(node, remediation));
        }
    }
    updates
}

/// All policies, those that go first before the others.
pub(super) fn by_order(snapshot: &Snapshot) -> Vec<&Policy> {
    let mut policies: Vec<&Policy> = snapshot.policies.iter().collect();
    policies.sort_by(|a, b| a.order(b));
    policies
}

pub(super) fn by_name<'a>(policies: &[&'a Policy]) -> BTreeMap<&'a str, &'a Policy> {
    policies.iter().map(|policy| (policy.name.as_str(), *policy)).collect()
}

/// Writes the remediation if this pass changed it.
fn write(snapshot: &Snapshot, remediation: &Remediation) -> Option<Effect> {
    let is_known = snapshot.remediations.get(&remediation.name).is_some_and(|known| known == remediation);
    let begins = snapshot.manual_requests.contains_key(&remediation.name);
    let effect = if begins { Effect::BeginManualRequest } else { Effect::WriteRemediation };
    (!is_known).then(|| effect(Box::new(remediation.clone())))
}

/// For every node with something to do: what the controller removes there before the action.
fn leftovers<'a>(
    ctx: Ctx<'a>,
    updates: &'a BTreeMap<&'a str, Vec<RemediationUpdate>>,
    slots: &Slots,
) -> BTreeMap<&'a str, Vec<Effect>> {
    let after =
        updates.values().flatten().map(|update| (update.remediation.name.as_str(), &update.remediation)).collect();
    let mut gone = stale::jobs(ctx, &after, slots);
    // A remediation that cannot be read may still need its markers on the node.
    let is_live = |name: &str| slots.holds(name) || ctx.snapshot.unreadable.contains_key(name);
    for node in ctx.nodes.values() {
        let mine = updates.get(node.name);
        let remediations: Vec<&Remediation> = mine.into_iter().flatten().map(|update| &update.remediation).collect();
        let command = stale::command(ctx, node, &remediations);
        let is_known = !unreadable::is_frozen(node);
        let markers = if is_known { cleanup::stale_markers(node, is_live) } else { Vec::new() };
        if mine.is_some() || command.is_some() || !markers.is_empty() {
            gone.entry(node.name).or_default().extend(command.into_iter().chain(markers));
        }
    }
    gone
}

fn node_status_views(
    nodes: &Nodes<'_>,
    updates: &BTreeMap<&str, Vec<RemediationUpdate>>,
    blocked: &[Blocked],
) -> BTreeMap<String, Arc<crate::plan::NodeStatusView>> {
    let mut resting = views::Resting::default();
    let mut by_node: BTreeMap<&str, Vec<&Blocked>> = BTreeMap::new();
    for one in blocked {
        by_node.entry(&one.node).or_default().push(one);
    }
    nodes
        .values()
        .filter(|node| node.report.is_some())
        .map(|node| {
            let blocked = by_node.get(node.name).map(Vec::as_slice).unwrap_or_default();
            let updates = updates.get(node.name).map(Vec::as_slice).unwrap_or_default();
            let update = updates.iter().find(|update| update.remediation.is_open()).or_else(|| updates.first());
            (node.name.to_owned(), resting.status_view(node, update, blocked))
        })
        .collect()
}
