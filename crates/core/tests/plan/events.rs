//! What may happen in a random world between two passes of the controller.

use std::collections::{BTreeMap, BTreeSet};

use nrh_core::drain::RecreatedBy;
use nrh_core::external_condition::ExternalCondition;
use nrh_core::fault::{FaultState, FaultType, Severity};
use nrh_core::policy::{ActionType, Mode, Policy};
use nrh_core::remediation::{Approval, Cancel, ManualRequest, remediation_of};
use nrh_core::snapshot::{SuspectPod, TriState};
use nrh_core::taint::KeyedTaint;
use nrh_core::window::WindowType;
use nrh_simulate::remediator::Remediator;
use nrh_simulate::workload::Workload;
use nrh_simulate::world::{PodLike, WorldNode};
use proptest::prelude::*;

use crate::manual::manual;
use crate::samples::{backing_off, creating, failed, fault, overdue, pod, today, tomorrow, workload};
use crate::world::{ClearedBy, World, secs};

pub const NODES: [&str; 4] = ["a", "b", "c", "d"];
pub const ZONE: &str = "zone";
/// What policies select nodes by, where there are several.
pub const POOL: &str = "pool";
/// The names of policies, as many as there are.
pub const POLICIES: [&str; 3] = ["p", "q", "r"];
/// A label of pods, and the value that a rule does not want.
pub const LABEL: &str = "app";
pub const NOT_DB: &str = "db";
/// What another tool writes on Nodes, and the policy asks for.
pub const CONDITION: &str = "KernelDeadlock";

/// Something that happens between two passes.
#[derive(Clone, Debug)]
pub enum Event {
    Nothing,
    /// To a node, if it is there.
    On(usize, OnNode),
    SuspendAll(bool),
    /// What happens to policies happens to the one at this place, of as many as there are.
    SuspendPolicy(usize, bool),
    PausePolicy(usize, bool),
    /// An edit makes the policy one that cannot be used, and another one mends it.
    BreakPolicy(usize, bool),
    DryRun(usize, bool),
    /// A person agrees to what is waited for on a node, or to something that was over long ago.
    Approve(usize, bool),
    Windows(usize, u8),
    LoseLedger,
    /// A node leaves the fleet; another one comes under its name.
    Leave(usize),
    Come(usize),
    DeleteRemediation(usize),
    /// Somebody takes the finalizer off a remediation and removes it, whatever it holds.
    LoseRemediation(usize),
    NewLeader,
    Refuse(bool),
    Shadow(usize, usize, bool),
    Label(usize, u8),
    Cancel(usize),
    DeleteManualRequest(usize),
    MayEvict(TriState),
    RemovePolicy(usize),
    /// The one that was removed last comes back as it was.
    RestorePolicy,
    Prioritise(usize, i32),
}

/// Something that happens to a node.
#[derive(Clone, Debug)]
pub enum OnNode {
    FallIll(FaultType, Option<ClearedBy>),
    Recover,
    Fade(FaultState),
    StickPod(u8),
    ResolvePods,
    EndPod(bool),
    Probe(bool),
    Check(u64),
    Jobs(bool),
    Ready(TriState),
    Kubelet(TriState),
    MayAct(bool),
    Exclude(bool),
    Suspend(bool),
    Cordon,
    Uncordon,
    Taint(u8),
    Replace,
    Condition(u8),
    Remediator(Remediator),
    ManualRequest(FaultType, ActionType),
    Pods(u8),
    /// A node goes to another pool, and perhaps from one policy to another.
    Pool(u8),
}

/// What happens where there are several policies: they come and go, and so do their nodes.
pub fn event_of_several() -> impl Strategy<Value = Event> {
    let which = 0..POLICIES.len();
    prop_oneof![
        24 => event(),
        1 => which.clone().prop_map(Event::RemovePolicy),
        2 => Just(Event::RestorePolicy),
        1 => (which, -1..=1).prop_map(|(policy, priority)| Event::Prioritise(policy, priority)),
        2 => (0..NODES.len(), 0_u8..2).prop_map(|(n, pool)| Event::On(n, OnNode::Pool(pool))),
    ]
}

/// These, and now and then a remediation is lost. How soon its node has another one is also a matter of what else was recorded of it.
pub fn with_losses(events: impl Strategy<Value = Event>) -> impl Strategy<Value = Event> {
    prop_oneof![90 => events, 1 => (0..NODES.len()).prop_map(Event::LoseRemediation)]
}

/// A node falls ill with a fault that one thing ends, or nothing.
pub fn falls_ill() -> impl Strategy<Value = Event> {
    let kind = prop::sample::select(vec![
        FaultType::HungContainer,
        FaultType::NetworkPluginHung,
        FaultType::LeakedShim,
        FaultType::OrphanContainer,
        FaultType::RuntimeListHung,
        FaultType::KubeletDown,
        FaultType::RuntimeUnreachable,
    ]);
    let cure = prop::sample::select(vec![
        Some(ClearedBy::Cont),
        Some(ClearedBy::Kill),
        Some(ClearedBy::CleanupOrphans),
        Some(ClearedBy::RestartKubelet),
        Some(ClearedBy::RestartRuntime),
        Some(ClearedBy::Reboot),
        Some(ClearedBy::HandOff),
        None,
    ]);
    (0..NODES.len(), kind, cure).prop_map(|(n, kind, cure)| Event::On(n, OnNode::FallIll(kind, cure)))
}

pub fn event() -> impl Strategy<Value = Event> {
    let node = 0..NODES.len();
    let which = || 0..POLICIES.len();
    let requested = prop::sample::select(vec![
        FaultType::HungContainer,
        FaultType::OrphanContainer,
        FaultType::KubeletDown,
        FaultType::StuckDaemonSetPod,
        FaultType::NodeCondition,
    ]);
    let action = prop::sample::select(vec![
        ActionType::Cordon,
        ActionType::Taint,
        ActionType::ReleaseHungProcess,
        ActionType::CleanupOrphans,
        ActionType::RestartKubelet,
        ActionType::DeletePod,
        ActionType::Reboot,
        ActionType::MarkForReboot,
        ActionType::HandOff,
        ActionType::Notify,
    ]);
    let tri = || prop::sample::select(vec![TriState::True, TriState::True, TriState::False, TriState::Unknown]);
    let remediator =
        prop::sample::select(vec![Remediator::Works, Remediator::Fails, Remediator::Silent, Remediator::Taken]);
    let state = prop::sample::select(vec![FaultState::Suspected, FaultState::Confirmed, FaultState::Clearing]);
    prop_oneof![
        8 => Just(Event::Nothing),
        8 => falls_ill(),
        2 => node.clone().prop_map(|n| Event::On(n, OnNode::Recover)),
        1 => (node.clone(), state).prop_map(|(n, s)| Event::On(n, OnNode::Fade(s))),
        3 => (node.clone(), 0_u8..4).prop_map(|(n, p)| Event::On(n, OnNode::StickPod(p))),
        2 => node.clone().prop_map(|n| Event::On(n, OnNode::ResolvePods)),
        1 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Event::On(n, OnNode::EndPod(b))),
        1 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Event::On(n, OnNode::Probe(b))),
        1 => (node.clone(), 0_u64..100).prop_map(|(n, s)| Event::On(n, OnNode::Check(s))),
        1 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Event::On(n, OnNode::Jobs(b))),
        1 => (node.clone(), tri()).prop_map(|(n, t)| Event::On(n, OnNode::Ready(t))),
        1 => (node.clone(), tri()).prop_map(|(n, t)| Event::On(n, OnNode::Kubelet(t))),
        1 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Event::On(n, OnNode::MayAct(b))),
        1 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Event::On(n, OnNode::Exclude(b))),
        1 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Event::On(n, OnNode::Suspend(b))),
        1 => prop::bool::weighted(0.3).prop_map(Event::SuspendAll),
        1 => (which(), any::<bool>()).prop_map(|(p, on)| Event::SuspendPolicy(p, on)),
        1 => (which(), any::<bool>()).prop_map(|(p, on)| Event::PausePolicy(p, on)),
        1 => (which(), any::<bool>()).prop_map(|(p, on)| Event::BreakPolicy(p, on)),
        4 => (0..NODES.len(), prop::bool::weighted(0.8)).prop_map(|(n, now)| Event::Approve(n, now)),
        1 => (which(), any::<bool>()).prop_map(|(p, on)| Event::DryRun(p, on)),
        1 => (which(), 0_u8..4).prop_map(|(p, how)| Event::Windows(p, how)),
        1 => Just(Event::LoseLedger),
        1 => node.clone().prop_map(|n| Event::On(n, OnNode::Cordon)),
        2 => node.clone().prop_map(|n| Event::On(n, OnNode::Uncordon)),
        2 => (node.clone(), 0_u8..5).prop_map(|(n, how)| Event::On(n, OnNode::Taint(how))),
        1 => node.clone().prop_map(|n| Event::On(n, OnNode::Replace)),
        2 => node.clone().prop_map(Event::Leave),
        3 => node.clone().prop_map(Event::Come),
        1 => node.prop_map(Event::DeleteRemediation),
        1 => Just(Event::NewLeader),
        2 => any::<bool>().prop_map(Event::Refuse),
        2 => (which(), 0_usize..5, any::<bool>()).prop_map(|(p, step_index, on)| Event::Shadow(p, step_index, on)),
        3 => (0..NODES.len(), 0_u8..4).prop_map(|(n, how)| Event::On(n, OnNode::Condition(how))),
        3 => (0_usize..3, 0_u8..6).prop_map(|(key, how)| Event::Label(key, how)),
        2 => (0..NODES.len(), remediator).prop_map(|(n, how)| Event::On(n, OnNode::Remediator(how))),
        4 => (0..NODES.len(), requested, action).prop_map(|(n, of, act)| Event::On(n, OnNode::ManualRequest(of, act))),
        2 => (0..NODES.len()).prop_map(Event::Cancel),
        1 => (0..NODES.len()).prop_map(Event::DeleteManualRequest),
        1 => tri().prop_map(Event::MayEvict),
        4 => (0..NODES.len(), 0_u8..6).prop_map(|(n, how)| Event::On(n, OnNode::Pods(how))),
    ]
}

/// Three pods, one of which may not go at once, or none.
fn workloads(how: u8) -> Vec<Workload> {
    let mut pods: Vec<_> = (0..3).map(|i| workload(&format!("x{i}"))).collect();
    match how {
        0 => pods[1].budget = Some("web".into()),
        1 => pods[2].pod.has_empty_dir = true,
        2 => pods[0].takes = secs(600),
        3 => pods[2].pod.recreated_by = RecreatedBy::DaemonSet,
        4 => pods.clear(),
        _ => {}
    }
    pods
}

/// Somebody takes taints with our key off, or puts one there, beside ours or in its place; those of people have a value here.
fn taint_by_others(taints: &mut BTreeSet<KeyedTaint>, how: u8) {
    let mine = |effect: &str| KeyedTaint { effect: effect.into(), value: "mine".into() };
    match how {
        0 => taints.clear(),
        1 => taints.retain(|taint| !taint.value.is_empty()),
        2 => drop(taints.insert(mine("PreferNoSchedule"))),
        3 => drop(taints.insert(mine("NoExecute"))),
        _ => *taints = taints.iter().map(|one| mine(&one.effect)).collect(),
    }
}

/// A machine of that name, well and empty.
pub fn come(world: &mut World, place: usize, uid: String) {
    let mut node = WorldNode::new(NODES[place]);
    node.view.labels.insert(ZONE.into(), (place / 2).to_string());
    node.view.labels.insert(POOL.into(), (place % 2).to_string());
    node.report.node_uid = Some(uid.clone());
    node.view.uid = uid;
    world.nodes.insert(NODES[place].into(), node);
}

fn stuck(node: &str, key: &str, pattern: u8) -> SuspectPod {
    match pattern {
        0 => backing_off(node, key),
        1 => creating(node, key),
        2 => failed(node, key),
        _ => overdue(node, key),
    }
}

fn replace(node: &mut WorldNode, uid: String, is_schedulable: bool) {
    // Its annotations may come back with it, and somebody may cordon it as the one before was.
    if is_schedulable {
        (node.view.unschedulable, node.view.cordoned_by) = (false, None);
    }
    node.view.taints.clear();
    node.report.node_uid = Some(uid.clone());
    node.view.uid = uid;
    node.claimed.clear();
}

pub fn happen(world: &mut World, event: &Event, turn: usize) {
    let name = |index: &usize| NODES[*index];
    match event {
        Event::On(n, event) if world.nodes.contains_key(name(n)) => on_node(world, name(n), event, turn),
        Event::On(..) | Event::Nothing => {}
        Event::Approve(n, now) => approve(world, name(n), *now),
        Event::Leave(n) => drop(world.nodes.remove(name(n))),
        Event::Come(n) => {
            if !world.nodes.contains_key(name(n)) {
                come(world, *n, format!("uid-{}-{turn}", name(n)));
            }
        }
        Event::DeleteRemediation(n) => {
            let open = world.remediations.values_mut().filter(|e| e.is_open() && e.node == name(n));
            open.for_each(|remediation| remediation.deleting = true);
        }
        Event::LoseRemediation(n) => lose(world, name(n)),
        Event::Cancel(n) => drop(world.cancel(name(n), &Cancel { cancelled_by: "ann".into(), reason: None })),
        Event::DeleteManualRequest(n) => world.manual_requests.retain(|_, manual| manual.node != name(n)),
        _ => happen_to_all(world, event),
    }
}

fn on_node(world: &mut World, name: &str, event: &OnNode, turn: usize) {
    match event {
        OnNode::FallIll(kind, cure) => {
            let mut ill = fault(*kind, &format!("x{}", turn % 3));
            ill.first_seen = world.now;
            ill.severity = if turn.is_multiple_of(2) { Severity::High } else { Severity::Medium };
            if world.node(name).sick.iter().all(|sick| sick.fault.id != ill.id) {
                world.inject(name, ill, *cure);
            }
        }
        OnNode::Recover => drop(world.node(name).sick.pop()),
        OnNode::Fade(state) => world.node(name).sick.iter_mut().for_each(|sick| sick.fault.state = *state),
        OnNode::StickPod(pattern) => {
            world.node(name).pods = vec![stuck(name, &format!("agent-{turn}"), *pattern)];
        }
        OnNode::ResolvePods => world.node(name).pods.clear(),
        OnNode::EndPod(ends) => {
            let terminating = world.terminating.entry(name.to_owned()).or_default();
            for pod in (0..3).map(|i| pod(&format!("x{i}"))) {
                let _ = if *ends { terminating.insert(pod) } else { terminating.remove(&pod) };
            }
        }
        OnNode::Probe(runs) => world.node(name).probe_runs = *runs,
        OnNode::Check(age) => world.node(name).checked = secs(*age),
        OnNode::Jobs(start) => world.node(name).job_starts = *start,
        OnNode::Ready(ready) => world.node(name).view.ready = *ready,
        OnNode::Kubelet(works) => world.heartbeat(name).kubelet_works = *works,
        OnNode::MayAct(may) => world.heartbeat(name).actions_enabled = *may,
        OnNode::Exclude(on) => {
            world.node(name).view.exclusions = on.then(|| "maintenance".to_owned()).into_iter().collect();
        }
        OnNode::Suspend(on) => world.node(name).report.suspended = on.then(|| "hands off".to_owned()),
        OnNode::Cordon => world.node(name).view.unschedulable = true,
        OnNode::Uncordon => world.node(name).view.unschedulable = false,
        OnNode::Taint(how) => taint_by_others(&mut world.node(name).view.taints, *how),
        OnNode::Replace => replace(world.node(name), format!("uid-{name}-{turn}"), turn.is_multiple_of(2)),
        OnNode::Remediator(how) => world.node(name).remediator = *how,
        OnNode::ManualRequest(kind, action) => {
            let manual = ManualRequest { timeout: secs(300), ..manual(*kind, *action) };
            let known = world.policies.iter().filter(|policy| POLICIES.contains(&policy.name.as_str())).count();
            let policy = POLICIES[turn % known.max(1)];
            world.ask(&format!("by-hand-{turn}"), name, policy, manual);
        }
        OnNode::Pods(how) => world.node(name).workloads = workloads(*how),
        OnNode::Pool(pool) => drop(world.node(name).view.labels.insert(POOL.into(), pool.to_string())),
        OnNode::Condition(how) => {
            let written = |status, reason| ExternalCondition::new(CONDITION, status, reason, "");
            let condition = match how {
                0 => written("True", "Asked"),
                1 => written("True", "Other"),
                2 => written("False", "Asked"),
                _ => None,
            };
            world.node(name).set_condition(CONDITION, condition);
        }
    }
}

/// What happens to policies, to the controller or to all nodes.
fn happen_to_all(world: &mut World, event: &Event) {
    match event {
        Event::SuspendAll(on) => world.suspended = on.then(|| "by ann".to_owned()),
        Event::SuspendPolicy(which, on) => change(world, *which, |policy| policy.suspend = *on),
        Event::PausePolicy(which, on) => change(world, *which, |policy| {
            policy.pause_requests = on.then(|| "release".to_owned()).into_iter().collect();
        }),
        Event::BreakPolicy(which, on) => change(world, *which, |policy| policy.is_broken = *on),
        Event::DryRun(which, on) => {
            change(world, *which, |policy| policy.mode = if *on { Mode::DryRun } else { Mode::Enforce });
        }
        Event::Windows(which, how) => change(world, *which, |policy| {
            policy.windows = match how {
                0 => vec![today(WindowType::Deny)],
                1 => vec![tomorrow(WindowType::Allow)],
                2 => vec![today(WindowType::Allow), tomorrow(WindowType::Deny)],
                _ => Vec::new(),
            };
        }),
        Event::Shadow(which, step_index, on) => change(world, *which, |policy| {
            if let Some(step) = policy.rules[0].steps.get_mut(*step_index) {
                step.mode = if *on { Mode::DryRun } else { Mode::Enforce };
            }
        }),
        Event::Prioritise(which, priority) => change(world, *which, |policy| policy.priority = *priority),
        Event::RemovePolicy(which) => {
            let place = world.policies.iter().position(|policy| policy.name == POLICIES[*which]);
            let gone = place.map(|place| world.policies.remove(place));
            world.removed.extend(gone);
        }
        Event::RestorePolicy => {
            let back = world.removed.pop();
            world.policies.extend(back);
        }
        Event::NewLeader => world.epoch += 1,
        Event::LoseLedger => world.ledger = None,
        Event::MayEvict(may) => world.may_evict = *may,
        Event::Label(key, how) => label(world, *key, *how),
        Event::Refuse(on) => world.refuses = *on,
        other => unreachable!("{other:?} happens to a node"),
    }
}

/// Somebody edits one of the policies, if there is any.
fn change(world: &mut World, which: usize, edit: impl FnOnce(&mut Policy)) {
    let mut all: Vec<&mut Policy> = world.policies.iter_mut().filter(|p| POLICIES.contains(&p.name.as_str())).collect();
    let place = which.checked_rem(all.len());
    if let Some(policy) = place.and_then(|place| all.get_mut(place)) {
        edit(policy);
    }
}

/// The open remediation of a node is no more, and with it goes what it owns.
fn lose(world: &mut World, node: &str) {
    let Some(name) = world.remediations.values().find(|e| e.is_open() && e.node == node).map(|e| e.name.clone()) else {
        return;
    };
    world.remediations.remove(&name);
    world.remediators.objects.retain(|object| remediation_of(&object.handed.operation_id) != name);
    world.remediators.made.retain(|operation, _| remediation_of(operation) != name);
}

/// A person agrees to what the node's remediation waits for, or to the first that it ever asked for.
fn approve(world: &mut World, node: &str, now: bool) {
    let Some(remediation) = world.remediations.values_mut().find(|e| e.is_open() && e.node == node) else { return };
    let steps = if now { remediation.steps.last() } else { remediation.steps.first() };
    let Some(operation_id) = steps.map(|step| step.operation_id.clone()) else { return };
    remediation.approval = Some(Approval { approved_by: "ann".into(), operation_id });
}

/// What is known of a pod that faults of these worlds name.
fn label(world: &mut World, key: usize, how: u8) {
    let pod = pod(&format!("x{key}"));
    let there = |value: &str| {
        let labels = BTreeMap::from([(LABEL.to_owned(), value.to_owned())]);
        PodLike::There { labels, owner: None }
    };
    match how {
        0 | 1 => drop(world.pods.insert(pod, there("web"))),
        2 => drop(world.pods.insert(pod, there("db"))),
        3 => drop(world.pods.insert(pod, PodLike::There { labels: BTreeMap::new(), owner: None })),
        4 => drop(world.pods.insert(pod, PodLike::Gone)),
        _ => drop(world.pods.remove(&pod)),
    }
}
