//! What holds whatever happens: random worlds, random people, crashes, failing calls and old caches.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use nrh::core::drain::{Owner, cannot_end};
use nrh::core::episode::{Approval, Cancel, Episode, HealState, Phase, StepRecord, StepState, Wish, episode_of, since};
use nrh::core::fault::{FaultState, FaultType, Severity};
use nrh::core::foreign::{Asked, Foreign};
use nrh::core::narrow::PodSeen;
use nrh::core::order::{NodeAction, Restart};
use nrh::core::plan::{Effect, Operation, Plan, plan};
use nrh::core::policy::{
    Action, ActionType, Amount, ApprovalMode, Daemon, FaultLimit, Keep, Mode, NodeLimit, OnFailure, Policy,
    Requirement, Selector, Step, TopologyLimit,
};
use nrh::core::reboot::Reboot;
use nrh::core::snapshot::{Slot, Snapshot, Tri};
use nrh::core::taint::{KeyedTaint, TaintEffect, TaintMark};
use nrh::core::window::{self, WindowType};
use nrh::simulate::remediator::Remediator;
use nrh::simulate::workload::Workload;
use nrh::simulate::world::{PodLike, WorldNode};
use proptest::prelude::*;

use crate::by_hand::wish;
use crate::samples::{
    backing_off, cont, creating, drain, failed, fault, hand_off, kill, mark_for_reboot, notify, overdue, pod, policy,
    reboot, rule, step, today, tomorrow, workload,
};
use crate::told::Told;
use crate::world::{Chaos, Cure, World, secs};

const NODES: [&str; 4] = ["a", "b", "c", "d"];
const ZONE: &str = "zone";
/// A label of pods, and the value that a rule does not want.
const LABEL: &str = "app";
const NOT_DB: &str = "db";
/// What another tool writes on Nodes, and the policy asks for.
const CONDITION: &str = "KernelDeadlock";

/// Something that happens between two passes.
#[derive(Clone, Debug)]
enum Event {
    Nothing,
    FallIll(usize, FaultType, Cure),
    Recover(usize),
    Fade(usize, FaultState),
    StickPod(usize, u8),
    HealPods(usize),
    EndPod(usize, bool),
    Probe(usize, bool),
    Look(usize, u64),
    Jobs(usize, bool),
    Ready(usize, Tri),
    Kubelet(usize, Tri),
    MayAct(usize, bool),
    Veto(usize, bool),
    Suspend(usize, bool),
    SuspendPolicy(bool),
    PausePolicy(bool),
    /// An edit makes the policy one that cannot be used, and another one mends it.
    BreakPolicy(bool),
    DryRun(bool),
    /// A person agrees to what is waited for on a node, or to something that was over long ago.
    Approve(usize, bool),
    Windows(u8),
    LoseLedger,
    Cordon(usize),
    Uncordon(usize),
    Taint(usize, u8),
    Replace(usize),
    /// A node leaves the fleet; another one comes under its name.
    Leave(usize),
    Come(usize),
    DeleteEpisode(usize),
    NewLeader,
    Refuse(bool),
    Shadow(usize, bool),
    Condition(usize, u8),
    Label(usize, u8),
    Remediator(usize, Remediator),
    Wish(usize, FaultType, ActionType),
    Cancel(usize),
    DeleteWish(usize),
    MayEvict(Tri),
    Pods(usize, u8),
}

fn event() -> impl Strategy<Value = Event> {
    let node = 0..NODES.len();
    let kind = prop::sample::select(vec![
        FaultType::HungContainer,
        FaultType::NetworkPluginHung,
        FaultType::LeakedShim,
        FaultType::OrphanContainer,
        FaultType::RuntimeListHung,
        FaultType::KubeletDown,
        FaultType::RuntimeUnreachable,
    ]);
    let wished = prop::sample::select(vec![
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
    let cure = prop::sample::select(vec![
        Cure::Cont,
        Cure::Kill,
        Cure::Cleanup,
        Cure::RestartKubelet,
        Cure::RestartRuntime,
        Cure::Reboot,
        Cure::HandOff,
        Cure::Nothing,
    ]);
    let tri = || prop::sample::select(vec![Tri::True, Tri::True, Tri::False, Tri::Unknown]);
    let remediator =
        prop::sample::select(vec![Remediator::Works, Remediator::Fails, Remediator::Silent, Remediator::Taken]);
    let state = prop::sample::select(vec![FaultState::Suspected, FaultState::Confirmed, FaultState::Clearing]);
    prop_oneof![
        8 => Just(Event::Nothing),
        8 => (node.clone(), kind, cure).prop_map(|(n, k, c)| Event::FallIll(n, k, c)),
        2 => node.clone().prop_map(Event::Recover),
        1 => (node.clone(), state).prop_map(|(n, s)| Event::Fade(n, s)),
        3 => (node.clone(), 0_u8..4).prop_map(|(n, p)| Event::StickPod(n, p)),
        2 => node.clone().prop_map(Event::HealPods),
        1 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Event::EndPod(n, b)),
        1 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Event::Probe(n, b)),
        1 => (node.clone(), 0_u64..100).prop_map(|(n, s)| Event::Look(n, s)),
        1 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Event::Jobs(n, b)),
        1 => (node.clone(), tri()).prop_map(|(n, t)| Event::Ready(n, t)),
        1 => (node.clone(), tri()).prop_map(|(n, t)| Event::Kubelet(n, t)),
        1 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Event::MayAct(n, b)),
        1 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Event::Veto(n, b)),
        1 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Event::Suspend(n, b)),
        1 => any::<bool>().prop_map(Event::SuspendPolicy),
        1 => any::<bool>().prop_map(Event::PausePolicy),
        1 => any::<bool>().prop_map(Event::BreakPolicy),
        4 => (0..NODES.len(), prop::bool::weighted(0.8)).prop_map(|(n, now)| Event::Approve(n, now)),
        1 => any::<bool>().prop_map(Event::DryRun),
        1 => (0_u8..4).prop_map(Event::Windows),
        1 => Just(Event::LoseLedger),
        1 => node.clone().prop_map(Event::Cordon),
        2 => node.clone().prop_map(Event::Uncordon),
        2 => (node.clone(), 0_u8..5).prop_map(|(n, how)| Event::Taint(n, how)),
        1 => node.clone().prop_map(Event::Replace),
        2 => node.clone().prop_map(Event::Leave),
        3 => node.clone().prop_map(Event::Come),
        1 => node.prop_map(Event::DeleteEpisode),
        1 => Just(Event::NewLeader),
        2 => any::<bool>().prop_map(Event::Refuse),
        2 => (0_usize..5, any::<bool>()).prop_map(|(rung, on)| Event::Shadow(rung, on)),
        3 => (0..NODES.len(), 0_u8..4).prop_map(|(n, how)| Event::Condition(n, how)),
        3 => (0_usize..3, 0_u8..6).prop_map(|(key, how)| Event::Label(key, how)),
        2 => (0..NODES.len(), remediator).prop_map(|(n, how)| Event::Remediator(n, how)),
        4 => (0..NODES.len(), wished, action).prop_map(|(n, kind, action)| Event::Wish(n, kind, action)),
        2 => (0..NODES.len()).prop_map(Event::Cancel),
        1 => (0..NODES.len()).prop_map(Event::DeleteWish),
        1 => tri().prop_map(Event::MayEvict),
        4 => (0..NODES.len(), 0_u8..6).prop_map(|(n, how)| Event::Pods(n, how)),
    ]
}

/// Three pods, one of which may not go at once, or none.
fn workloads(how: u8) -> Vec<Workload> {
    let mut pods: Vec<_> = (0..3).map(|i| workload(&format!("x{i}"))).collect();
    match how {
        0 => pods[1].budget = Some("web".into()),
        1 => pods[2].pod.has_empty_dir = true,
        2 => pods[0].takes = secs(600),
        3 => pods[2].pod.owner = Owner::DaemonSet,
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

/// The node that it happens to.
const fn node_of(event: &Event) -> Option<usize> {
    match event {
        Event::FallIll(n, ..)
        | Event::Recover(n)
        | Event::Fade(n, _)
        | Event::StickPod(n, _)
        | Event::HealPods(n)
        | Event::EndPod(n, _)
        | Event::Probe(n, _)
        | Event::Look(n, _)
        | Event::Jobs(n, _)
        | Event::Ready(n, _)
        | Event::Kubelet(n, _)
        | Event::MayAct(n, _)
        | Event::Veto(n, _)
        | Event::Suspend(n, _)
        | Event::Cordon(n)
        | Event::Uncordon(n)
        | Event::Taint(n, _)
        | Event::Replace(n)
        | Event::Remediator(n, _)
        | Event::Wish(n, ..)
        | Event::Condition(n, _)
        | Event::Pods(n, _) => Some(*n),
        _ => None,
    }
}

/// A machine of that name, well and empty.
fn come(world: &mut World, place: usize, uid: String) {
    let mut node = WorldNode::new(NODES[place]);
    node.view.labels.insert(ZONE.into(), (place / 2).to_string());
    node.report.node_uid = Some(uid.clone());
    node.view.uid = uid;
    world.nodes.insert(NODES[place].into(), node);
}

fn happen(world: &mut World, event: &Event, turn: usize) {
    let name = |index: &usize| NODES[*index];
    let now = world.now;
    if node_of(event).is_some_and(|n| !world.nodes.contains_key(NODES[n])) {
        return;
    }
    match event {
        Event::Nothing => {}
        Event::FallIll(n, kind, cure) => {
            let mut ill = fault(*kind, &format!("x{}", turn % 3));
            ill.first_seen = now;
            ill.severity = if turn.is_multiple_of(2) { Severity::High } else { Severity::Medium };
            if world.node(name(n)).sick.iter().all(|sick| sick.fault.id != ill.id) {
                world.infect(name(n), ill, *cure);
            }
        }
        Event::Recover(n) => drop(world.node(name(n)).sick.pop()),
        Event::Fade(n, state) => world.node(name(n)).sick.iter_mut().for_each(|sick| sick.fault.state = *state),
        Event::StickPod(n, pattern) => {
            let key = format!("agent-{turn}");
            let stuck = match pattern {
                0 => backing_off(name(n), &key),
                1 => creating(name(n), &key),
                2 => failed(name(n), &key),
                _ => overdue(name(n), &key),
            };
            world.node(name(n)).pods = vec![stuck];
        }
        Event::HealPods(n) => world.node(name(n)).pods.clear(),
        Event::EndPod(n, ends) => {
            let pods: Vec<_> = (0..3).map(|i| pod(&format!("x{i}"))).collect();
            let _ = n;
            for pod in pods {
                let _ = if *ends { world.terminating.insert(pod) } else { world.terminating.remove(&pod) };
            }
        }
        Event::Probe(n, runs) => world.node(name(n)).probe_runs = *runs,
        Event::Look(n, age) => world.node(name(n)).looked = secs(*age),
        Event::Jobs(n, start) => world.node(name(n)).job_starts = *start,
        Event::Ready(n, ready) => world.node(name(n)).view.ready = *ready,
        Event::Kubelet(n, works) => world.node(name(n)).report.heartbeat.as_mut().unwrap().kubelet_works = *works,
        Event::MayAct(n, may) => world.node(name(n)).report.heartbeat.as_mut().unwrap().can_act = *may,
        Event::Veto(n, on) => {
            world.node(name(n)).view.vetoes = on.then(|| "maintenance".to_owned()).into_iter().collect();
        }
        Event::Suspend(n, on) => world.node(name(n)).report.suspended = on.then(|| "hands off".to_owned()),
        Event::Approve(n, now) => approve(world, name(n), *now),
        Event::Cordon(n) => world.node(name(n)).view.unschedulable = true,
        Event::Uncordon(n) => world.node(name(n)).view.unschedulable = false,
        Event::Taint(n, how) => taint_by_others(&mut world.node(name(n)).view.taints, *how),
        Event::Replace(n) => {
            let node = world.node(name(n));
            node.view.uid = format!("uid-{}-{turn}", name(n));
            (node.view.unschedulable, node.view.cordoned_by) = (false, None);
            // Its annotations may come back with it.
            node.view.taints.clear();
            node.report.node_uid = Some(node.view.uid.clone());
            node.claimed.clear();
        }
        Event::Leave(n) => drop(world.nodes.remove(name(n))),
        Event::Come(n) => {
            if !world.nodes.contains_key(name(n)) {
                come(world, *n, format!("uid-{}-{turn}", name(n)));
            }
        }
        Event::DeleteEpisode(n) => {
            let open = world.episodes.values_mut().filter(|e| e.is_open() && e.node == name(n));
            open.for_each(|episode| episode.deleting = true);
        }
        Event::Remediator(n, how) => world.node(name(n)).remediator = *how,
        Event::Wish(n, kind, action) => {
            let wish = Wish { timeout: secs(300), ..wish(*kind, *action) };
            world.ask(&format!("by-hand-{turn}"), name(n), "p", wish);
        }
        Event::Cancel(n) => drop(world.cancel(name(n), &Cancel { by: "ann".into(), reason: None })),
        Event::DeleteWish(n) => world.wishes.retain(|_, wish| wish.node != name(n)),
        Event::Pods(n, how) => world.node(name(n)).workloads = workloads(*how),
        Event::Condition(n, how) => {
            let written = |status, reason| Foreign::new(CONDITION, status, reason, "");
            let condition = match how {
                0 => written("True", "Asked"),
                1 => written("True", "Other"),
                2 => written("False", "Asked"),
                _ => None,
            };
            world.node(name(n)).set_condition(CONDITION, condition);
        }
        _ => happen_to_all(world, event),
    }
}

/// What happens to the policy, to the controller or to all nodes.
fn happen_to_all(world: &mut World, event: &Event) {
    match event {
        Event::SuspendPolicy(on) => world.policies[0].suspend = *on,
        Event::PausePolicy(on) => {
            world.policies[0].pause_requests = on.then(|| "release".to_owned()).into_iter().collect();
        }
        Event::BreakPolicy(on) => world.policies[0].is_broken = *on,
        Event::DryRun(on) => world.policies[0].mode = if *on { Mode::DryRun } else { Mode::Enforce },
        Event::Windows(which) => {
            world.policies[0].windows = match which {
                0 => vec![today(WindowType::Deny)],
                1 => vec![tomorrow(WindowType::Allow)],
                2 => vec![today(WindowType::Allow), tomorrow(WindowType::Deny)],
                _ => Vec::new(),
            };
        }
        Event::Shadow(rung, on) => {
            if let Some(step) = world.policies[0].rules[0].steps.get_mut(*rung) {
                step.mode = if *on { Mode::DryRun } else { Mode::Enforce };
            }
        }
        Event::NewLeader => world.epoch += 1,
        Event::LoseLedger => world.ledger = None,
        Event::MayEvict(may) => world.may_evict = *may,
        Event::Label(key, how) => label(world, *key, *how),
        Event::Refuse(on) => world.refuses = *on,
        other => unreachable!("{other:?} happens to a node"),
    }
}

/// A person agrees to what the node's episode waits for, or to the first that it ever asked for.
fn approve(world: &mut World, node: &str, now: bool) {
    let Some(episode) = world.episodes.values_mut().find(|e| e.is_open() && e.node == node) else { return };
    let steps = if now { episode.steps.last() } else { episode.steps.first() };
    let Some(operation_id) = steps.map(|step| step.operation_id.clone()) else { return };
    episode.approval = Some(Approval { by: "ann".into(), operation_id });
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

/// Only of a node that is drained.
fn reboot_drained() -> Step {
    Step { action: Action::Reboot(Reboot::default()), ..reboot() }
}

fn ladders() -> impl Strategy<Value = Vec<Step>> {
    let mut twice = cont();
    (twice.attempts, twice.timeout, twice.cooldown) = (2, secs(30), secs(20));
    let shadow = |step: Step| Step { mode: Mode::DryRun, ..step };
    let short = |kind| Step { timeout: secs(60), ..hand_off(kind) };
    let restart = |daemon| Action::Restart { daemon, with: Restart::default() };
    prop::sample::select(vec![
        vec![
            shadow(step(Action::Cordon(None))),
            cont(),
            shadow(kill(true)),
            step(Action::CleanupOrphans),
            shadow(notify()),
        ],
        vec![cont()],
        vec![step(Action::Taint(TaintEffect::NoSchedule)), cont(), kill(true), notify()],
        vec![
            step(Action::Taint(TaintEffect::PreferNoSchedule)),
            cont(),
            step(Action::Cordon(Some(Keep { keep_for: secs(600), healthy_delay: secs(60) }))),
            short("Fix"),
        ],
        vec![step(Action::Cordon(Some(Keep { keep_for: secs(600), healthy_delay: secs(60) }))), cont(), notify()],
        vec![cont(), kill(false), step(Action::CleanupOrphans), step(Action::DeletePod)],
        vec![step(Action::Cordon(None)), cont(), kill(true), step(Action::CleanupOrphans), notify()],
        vec![step(Action::Cordon(None)), twice.clone(), step(Action::DeletePod), notify()],
        vec![step(restart(Daemon::Kubelet)), cont(), step(restart(Daemon::Runtime)), notify()],
        vec![cont(), step(Action::Cordon(None)), short("Fix"), notify()],
        vec![step(Action::Cordon(None)), drain(), cont(), kill(true), notify()],
        vec![
            cont(),
            step(Action::Cordon(Some(Keep { keep_for: secs(600), healthy_delay: secs(60) }))),
            Step { on_failure: OnFailure::Stop, ..drain() },
            short("Fix"),
            notify(),
        ],
        vec![
            short("Fix"),
            short("Other"),
            Step { approval: ApprovalMode::Manual, approval_timeout: secs(60), ..short("Third") },
        ],
        vec![step(Action::Cordon(None)), Step { timeout: secs(300), ..reboot() }, notify()],
        vec![cont(), Step { timeout: secs(900), ..mark_for_reboot() }, step(Action::Cordon(None)), reboot(), notify()],
        vec![
            step(Action::Cordon(None)),
            Step {
                timeout: secs(900),
                approval: ApprovalMode::Manual,
                approval_timeout: secs(60),
                ..mark_for_reboot()
            },
            short("Fix"),
        ],
        vec![cont(), reboot(), step(Action::Cordon(None)), drain(), reboot_drained(), reboot(), notify()],
        vec![
            step(Action::Cordon(None)),
            Step { approval: ApprovalMode::Manual, approval_timeout: secs(60), ..reboot() },
            reboot(),
            notify(),
        ],
        vec![step(Action::DeletePod), step(Action::CleanupOrphans), twice, step(Action::Cordon(None)), kill(false)],
        vec![step(Action::Cordon(Some(Keep { keep_for: secs(600), healthy_delay: secs(60) }))), short("Fix"), notify()],
    ])
}

fn worlds() -> impl Strategy<Value = World> {
    let zones = prop::option::of(1_u32..3);
    let bad = prop::sample::select(vec![50_u32, 75, 100]);
    let acts = prop::option::of((1_u32..4, prop::sample::select(vec![60_u64, 600, 7200])));
    let narrow = prop::option::weighted(0.3, Just(NOT_DB));
    let rare = prop::option::weighted(0.4, 0_u32..3);
    let most = prop_oneof![
        (1_u32..4).prop_map(Amount::Count),
        prop::sample::select(vec![25_u32, 50, 75]).prop_map(Amount::Percent),
    ];
    (ladders(), most, 1_u32..4, bad, zones, acts, narrow, rare).prop_map(
        |(ladder, most, ceiling, bad, zones, acts, narrow, rare)| {
            let mut policy = policy("p", &[rule("r", &FaultType::ALL, &ladder)]);
            let other = |value: &str| Requirement::NotIn(LABEL.into(), BTreeSet::from([value.to_owned()]));
            policy.rules[0].narrow.pods = narrow.map(|value| Selector(vec![other(value)]));
            let asked = Asked { kind: CONDITION.into(), status: Tri::True, reasons: ["Asked".to_owned()].into() };
            policy.rules[0].conditions.push(asked);
            policy.limits.max_in_flight = most;
            policy.limits.max_unhealthy = Amount::Percent(bad);
            policy.limits.per_topology = zones
                .map(|most| TopologyLimit { key: ZONE.into(), max_in_flight: Amount::Count(most) })
                .into_iter()
                .collect();
            let kinds = [FaultType::HungContainer, FaultType::OrphanContainer, FaultType::NodeCondition];
            let few = |most| FaultLimit { faults: kinds.into(), max_in_flight: Amount::Count(most) };
            policy.limits.per_fault = rare.map(few).into_iter().collect();
            if let Some((acts, within)) = acts {
                policy.limits.per_node = NodeLimit { acts, within: secs(within) };
            }
            let mut world = World::new(&[policy], &NODES);
            for (place, name) in NODES.iter().enumerate() {
                come(&mut world, place, format!("uid-{name}"));
            }
            world.ceiling = ceiling;
            world.settings.rebuild_ledger = true;
            world
        },
    )
}

/// One round: what happens, how long it takes, and how the pass is disturbed.
#[derive(Clone)]
struct Round {
    event: Event,
    wait: u64,
    chaos: Chaos,
    is_stale: bool,
}

impl fmt::Debug for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, and {}s later", self.event, self.wait)?;
        if let Some(calls) = self.chaos.crash_after {
            write!(f, "; the controller dies after {calls} calls")?;
        }
        if !self.chaos.failing.is_empty() {
            write!(f, "; calls that fail: {:?}", self.chaos.failing)?;
        }
        if self.is_stale { write!(f, "; decided on what was so a round ago") } else { Ok(()) }
    }
}

/// How many worlds are tried: so many, unless `PROPTEST_CASES` says otherwise.
fn tried(cases: u32) -> ProptestConfig {
    let config = ProptestConfig { max_shrink_iters: 2_000, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { config } else { ProptestConfig { cases, ..config } }
}

fn round() -> impl Strategy<Value = Round> {
    let failing = prop::collection::btree_set(0_usize..8, 0..3);
    let chaos = (prop::option::weighted(0.3, 0_usize..6), failing, any::<bool>());
    let wait = prop::sample::select(vec![0_u64, 1, 3, 5, 10, 20, 50, 120, 200]);
    (event(), wait, chaos, prop::bool::weighted(0.2)).prop_map(
        |(event, wait, (crash_after, failing, calm), is_stale)| {
            let chaos = if calm { Chaos::default() } else { Chaos { crash_after, failing } };
            Round { event, wait, chaos, is_stale }
        },
    )
}

/// What every plan keeps, by what it was decided from.
fn check_plan(snapshot: &Snapshot, plan: &Plan) {
    if let Some(next) = plan.next {
        assert!(next > Duration::ZERO);
    }
    let mut acts = BTreeMap::<&str, u32>::new();
    for (place, effect) in plan.effects.iter().enumerate() {
        match effect {
            Effect::StoreLedger(ledger) => {
                assert_eq!(place, 0, "the ledger comes first");
                let had = snapshot.ledger.as_ref().map_or(0, |ledger| ledger.slots.len());
                let open = snapshot.episodes.values().filter(|e| e.is_open() && e.mode == Mode::Enforce).count();
                let most = usize::try_from(snapshot.ceiling).unwrap();
                assert!(ledger.slots.len() <= most.max(had).max(open), "{ledger:?}");
            }
            Effect::WriteEpisode(episode) => {
                check_episode(episode);
                check_new(snapshot, episode);
            }
            Effect::BeginWish(episode) => {
                check_episode(episode);
                check_wish(snapshot, plan, episode);
            }
            Effect::TellWish { name, message, .. } => {
                let wish = &snapshot.wishes[name];
                assert!(since(snapshot.now, wish.asked_at) < wish.wish.timeout, "it waits for ever");
                assert!(*message != wish.message && message.len() <= 512, "{message}");
            }
            Effect::Act { episode, operation_id, node, node_uid, operation } => {
                *acts.entry(node).or_default() += 1;
                check_act(snapshot, node, node_uid, operation);
                let written = plan.effects[..place].iter().find_map(|effect| match effect {
                    Effect::WriteEpisode(written) | Effect::BeginWish(written) if written.name == *episode => {
                        Some(written.as_ref())
                    }
                    _ => None,
                });
                let record = written.or_else(|| snapshot.episodes.get(episode)).unwrap();
                let step = record.current_step().unwrap();
                assert_eq!(step.operation_id, *operation_id, "reserved before the act");
                assert!(record.cancel.is_none(), "an act after a person's no was seen");
                check_approved(snapshot, record, step);
                let rule = &snapshot.policies[0].rules[0];
                assert_eq!(rule.steps[step.rung as usize].mode, Mode::Enforce, "a step that is a dry run");
                check_pod(snapshot, record, step, operation);
                if matches!(operation, Operation::HandOff(_)) {
                    let owed = record.undo.hand_off_of(operation_id).unwrap();
                    assert_eq!(&owed.name, node, "what is to be deleted is remembered before it is made");
                }
                if matches!(operation, Operation::Cordon) {
                    assert!(record.undo.owes_cordon(), "the undo is remembered before the act");
                }
                if matches!(operation, Operation::Taint(_)) {
                    assert!(record.undo.owes_taint(), "the undo is remembered before the act");
                }
            }
            Effect::Uncordon { episode, node, .. } => {
                let mark = snapshot.nodes[node].cordoned_by.as_ref();
                assert!(mark.is_none_or(|mark| mark == episode), "someone else's mark");
                if let Some(known) = snapshot.episodes.get(episode) {
                    assert_eq!(known.node_uid, snapshot.nodes[node].uid, "not on a replaced node");
                }
            }
            Effect::Untaint { episode, node } => {
                let mark = snapshot.nodes[node].tainted_by.as_ref();
                assert!(mark.is_none_or(|mark| mark.episode == *episode), "someone else's mark");
                if let Some(known) = snapshot.episodes.get(episode) {
                    let is_owed = known.undo.owes_taint() && known.node_uid == snapshot.nodes[node].uid;
                    assert!(is_owed || !known.may_own_taint_of(&snapshot.nodes[node].uid), "it is another's");
                    assert!(!known.is_contained() || !is_owed, "a taint outlasts no episode");
                }
            }
            Effect::TimeOutHandOff { episode, handed, at, .. } => {
                let record = &snapshot.episodes[episode];
                assert_eq!(record.current_step().unwrap().operation_id, handed.operation_id);
                assert!(*at <= snapshot.now, "before its time is over");
            }
            Effect::TakeBackHandOff { episode, handed, .. } => {
                let step = snapshot.episodes[episode].current_step();
                assert!(
                    step.is_none_or(|step| step.operation_id != handed.operation_id)
                        || plan.effects[..place]
                            .iter()
                            .any(|e| matches!(e, Effect::WriteEpisode(w) if w.name == *episode)),
                    "taken back under way"
                );
            }
            Effect::DeleteEpisode { name } => assert!(!snapshot.episodes[name].is_live()),
            Effect::WithdrawOrder { .. } | Effect::DeleteJob { .. } => {}
        }
    }
    assert!(acts.values().all(|count| *count == 1), "one step a node: {acts:?}");
    check_room(snapshot, plan);
}

/// What is opened has room by the fleet as it is: a percent of a fleet that has shrunk is less than it was.
fn check_room(snapshot: &Snapshot, plan: &Plan) {
    let written = |effect: &Effect| match effect {
        Effect::WriteEpisode(episode) | Effect::BeginWish(episode) => Some(episode.as_ref().clone()),
        _ => None,
    };
    let is_running = |e: &&Episode| e.mode == Mode::Enforce && !e.phase.is_final();
    let written: BTreeMap<String, Episode> =
        plan.effects.iter().filter_map(written).map(|episode| (episode.name.clone(), episode)).collect();
    let opened = written.values().filter(is_running).filter(|e| !snapshot.episodes.contains_key(&e.name)).count();
    let known = snapshot.episodes.values().map(|known| written.get(&known.name).unwrap_or(known));
    let policy = &snapshot.policies[0];
    let selected = u32::try_from(snapshot.nodes.values().filter(|node| !node.deleting).count()).unwrap();
    let most = policy.limits.max_in_flight.of(selected).min(snapshot.ceiling);
    let all = known.filter(is_running).count() + opened;
    assert!(opened == 0 || all <= usize::try_from(most).unwrap(), "{all} in flight, {most} of {selected} nodes");
}

/// Where nothing new may be begun no episode is opened, and by a policy that cannot be used no step is begun in one that is open.
fn check_new(snapshot: &Snapshot, episode: &Episode) {
    let policy = &snapshot.policies[0];
    let Some(known) = snapshot.episodes.get(&episode.name) else {
        // The record of a start by hand that was not begun.
        if episode.wish.is_some() && episode.phase.is_final() {
            return;
        }
        assert!(!policy.suspend && !policy.is_broken && policy.pause_requests.is_empty(), "opened: {episode:?}");
        // What else is unhealthy comes on top of these.
        let down = snapshot.nodes.values().filter(|node| node.ready != Tri::True).count();
        let selected = u32::try_from(snapshot.nodes.values().filter(|node| !node.deleting).count()).unwrap();
        let most = usize::try_from(policy.limits.max_unhealthy.of(selected)).unwrap();
        assert!(down <= most, "opened with {down} nodes that are not Ready, maxUnhealthy is {most}: {episode:?}");
        return;
    };
    assert!(!policy.is_broken || episode.steps.len() <= known.steps.len(), "a step by a policy that cannot be used");
}

/// What asks for a person is done with his word for this very attempt.
fn check_approved(snapshot: &Snapshot, record: &Episode, step: &StepRecord) {
    let rung = &snapshot.policies[0].rules[0].steps[step.rung as usize];
    let is_agreed = record.approved(&step.operation_id).is_some() || record.wish.is_some();
    assert!(!rung.needs_approval() || is_agreed, "nobody has agreed: {step:?}");
}

/// What a person starts by hand is one episode, paid for, on a node that has no other.
fn check_wish(snapshot: &Snapshot, plan: &Plan, episode: &Episode) {
    let wish = &snapshot.wishes[&episode.name];
    assert!(wish.cancel.is_none() && !wish.deleting && !snapshot.episodes.contains_key(&episode.name));
    assert_eq!((episode.identity.as_ref(), episode.wish.as_ref()), (Some(&wish.identity), Some(&wish.wish)));
    assert!(snapshot.episodes.values().all(|other| other.node != episode.node || !other.is_open()), "a second episode");
    let stored =
        plan.effects.iter().find_map(|e| if let Effect::StoreLedger(ledger) = e { Some(ledger) } else { None });
    let ledger = stored.or(snapshot.ledger.as_ref()).unwrap();
    assert!(ledger.slots.contains_key(&episode.name), "no slot: {ledger:?}");
    let policy = &snapshot.policies[0];
    assert!(!policy.suspend && policy.mode == Mode::Enforce && policy.pause_requests.is_empty() && !policy.is_broken);
    let step = episode.current_step().unwrap();
    let agreed = (wish.wish.policy_generation == Some(policy.generation)).then_some("ann");
    assert_eq!((step.action, step.approved_by.as_deref()), (wish.wish.action, agreed));
    let rule = policy.rule(&episode.faults[0].rule).unwrap();
    let first = rule.steps.iter().position(|one| one.mode == Mode::Enforce && one.action.kind() == step.action);
    assert_eq!(first, Some(step.rung as usize), "a later step in the place of the first");
    assert!(since(snapshot.now, wish.asked_at) < wish.wish.timeout, "what was wanted long ago");
    let reported = snapshot.reports[&episode.node].faults.iter().find(|seen| seen.fault.id == step.fault_id);
    assert!(reported.is_none_or(|seen| seen.fault.state == FaultState::Confirmed), "no fault that is confirmed");
}

fn check_episode(episode: &Episode) {
    let under_way = episode.steps.iter().filter(|step| !step.state.is_final()).count();
    assert!(under_way <= 1, "{episode:?}");
    assert!(episode.mode == Mode::Enforce || episode.phase.is_final(), "a dry run is over at once");
    assert!(!episode.phase.is_final() || under_way == 0, "{episode:?}");
    assert!(episode.phase != Phase::Succeeded || !episode.undo.is_owed(), "{episode:?}");
    assert!(!episode.is_contained() || episode.undo.is_owed(), "{episode:?}");
    assert!(episode.name.len() <= 58 && episode.message.len() <= 512);
}

/// How often a node was acted on, by what is remembered.
fn acted(snapshot: &Snapshot, node: &str, uid: &str) -> usize {
    let within = snapshot.policies[0].limits.per_node.within;
    let of_node = |e: &&Episode| e.mode == Mode::Enforce && e.node == node && e.node_uid == uid;
    let steps = snapshot.episodes.values().filter(of_node).flat_map(|episode| &episode.steps);
    let healing =
        steps.filter(|step| !matches!(step.action, ActionType::Cordon | ActionType::Taint | ActionType::Notify));
    let touched = healing.filter(|step| step.state != StepState::Refused && !step.is_refused_call());
    touched.filter_map(|step| step.acted_at.or(step.started_at)).filter(|at| since(snapshot.now, *at) < within).count()
}

/// Never on suspicion, on old evidence, on another node, against a no.
fn check_act(snapshot: &Snapshot, node: &str, uid: &str, operation: &Operation) {
    let (view, report) = (&snapshot.nodes[node], &snapshot.reports[node]);
    assert_eq!(view.uid, uid);
    assert!(view.vetoes.is_empty() && !view.deleting && report.suspended.is_none());
    assert_eq!(report.node_uid.as_ref(), Some(&view.uid));
    let policy: &Policy = &snapshot.policies[0];
    assert!(!policy.suspend && policy.mode == Mode::Enforce);
    let is_told = matches!(operation, Operation::Notify(_));
    // A drain that goes on is counted already, and asks for no hour: what has begun is finished.
    let open = snapshot.episodes.values().find(|episode| episode.node == node && episode.is_open());
    let step = open.and_then(Episode::current_step);
    let goes_on = step.is_some_and(|step| step.action == ActionType::Drain && step.state == StepState::Started);
    assert!(is_told || goes_on || window::shut(&policy.windows, ActionType::DeletePod, snapshot.now).is_none());
    assert!(snapshot.ledger.is_some() || snapshot.episodes.values().any(|e| e.node == node && e.is_open()));
    let heartbeat = report.heartbeat.as_ref().unwrap();
    if matches!(operation, Operation::Notify(_)) && heartbeat.arrived > heartbeat.interval {
        return;
    }
    assert!(heartbeat.arrived <= heartbeat.interval * 3 / 2, "a missed heartbeat");
    if matches!(operation, Operation::Drain(_)) {
        assert_eq!(snapshot.may_evict, Tri::True);
        let own = view.cordoned_by.as_ref().and_then(|mark| snapshot.episodes.get(mark)).unwrap();
        assert!(view.unschedulable && own.is_open(), "drained without a cordon of its episode");
        let faults = report.faults.iter().map(|seen| &seen.fault);
        assert_eq!(cannot_end(view.ready, heartbeat.kubelet_works, faults), None, "drained where no pod ends");
    }
    if !goes_on && !matches!(operation, Operation::Cordon | Operation::Taint(_) | Operation::Notify(_)) {
        assert!(acted(snapshot, node, uid) < policy.limits.per_node.acts as usize, "more acts than a node may have");
    }
    if let Operation::RunJob(order) | Operation::GiveOrder(order) = operation {
        let seen = report.faults.iter().find(|seen| seen.fault.id == order.fault_id).unwrap();
        assert_eq!(seen.fault.state, FaultState::Confirmed);
        assert!(seen.looked <= secs(45), "an old look");
    }
    if let Operation::GiveOrder(order) | Operation::RunJob(order) = operation
        && let Some(with) = &order.restart
    {
        let safe = match order.action {
            NodeAction::RestartKubelet => report.restart.kubelet,
            NodeAction::RestartRuntime => report.restart.runtime,
            other => panic!("{other:?} is no restart"),
        };
        assert!(safe == Tri::True || with.even_if_unsafe, "{:?} while that is not safe", order.action);
        assert!(matches!(operation, Operation::GiveOrder(_)), "a restart by a Job");
    }
    check_reboot(snapshot, node, operation);
    if let Operation::DeletePod(target) = operation {
        let pod = snapshot.pods.iter().find(|pod| pod.pod == *target).unwrap();
        assert!(pod.daemon_set.is_some() && pod.node == node && pod.read <= secs(45));
        assert!(!report.faults.iter().any(|seen| seen.fault.kind == FaultType::HungContainer
            && seen.fault.subject.pod.as_ref().is_some_and(|pod| pod.uid == target.uid)));
    }
}

/// A rule that asks for the labels of pods is for no fault whose pod's labels nobody knows.
fn check_pod(snapshot: &Snapshot, record: &Episode, step: &StepRecord, operation: &Operation) {
    let narrow = &snapshot.policies[0].rules[0].narrow;
    if narrow.pods.is_none() || matches!(operation, Operation::Notify(_)) {
        return;
    }
    let fault = record.fault(&step.fault_id).unwrap();
    let pod = fault.subject.pod.as_ref().or(step.target.pod.as_ref()).unwrap();
    match snapshot.pods_seen.get(pod) {
        Some(PodSeen::Read(traits)) => assert_ne!(traits.labels[LABEL].as_deref(), Some(NOT_DB)),
        other => panic!("acted on pod {pod} of which nothing is known: {other:?}"),
    }
}

/// What the world keeps after every pass, however it was disturbed.
/// For the boot that the node is in, and once in an episode; by its own agent only under the cordon of that episode.
fn check_reboot(snapshot: &Snapshot, node: &str, operation: &Operation) {
    let Operation::GiveOrder(order) = operation else {
        assert!(!matches!(operation, Operation::RunJob(order) if order.boot_id.is_some()), "by a Job");
        return;
    };
    assert_eq!(order.mark.is_some(), order.action == NodeAction::MarkForReboot);
    if !matches!(order.action, NodeAction::Reboot | NodeAction::MarkForReboot) {
        return assert_eq!(order.boot_id, None);
    }
    let (view, report) = (&snapshot.nodes[node], &snapshot.reports[node]);
    assert!(order.boot_id.is_some() && order.boot_id == view.boot_id, "for another boot");
    assert_eq!(view.boot_id.as_ref(), report.heartbeat.as_ref().map(|heartbeat| &heartbeat.boot_id));
    let is_begun = |step: &&StepRecord| {
        step.action.boots() && step.started_at.is_some() && step.operation_id != order.operation_id
    };
    // One that begins just now has none of before.
    let begun =
        |own: &Episode| own.steps.iter().filter(is_begun).filter(|step| step.state != StepState::Refused).count();
    let own = snapshot.episodes.get(episode_of(&order.operation_id));
    assert_eq!(own.map_or(0, begun), 0, "twice in one episode");
    if order.action == NodeAction::MarkForReboot {
        return assert_ne!(view.ready, Tri::Unknown, "marked although nobody knows how it is");
    }
    let own = view.cordoned_by.as_ref().and_then(|mark| snapshot.episodes.get(mark)).unwrap();
    assert!(view.unschedulable && own.is_open() && own.undo.owes_cordon(), "without a cordon of its episode");
}

/// No machine boots more often than it was told to.
fn check_boots(world: &World) {
    for (name, node) in &world.nodes {
        let told = world
            .log
            .iter()
            .filter(|(of, what)| of == name && ["order Reboot", "order MarkForReboot"].contains(&what.as_str()))
            .count();
        assert!(
            node.boots.count as usize <= told,
            "{name} was booted {} times, and told to {told} times",
            node.boots.count
        );
    }
}

fn check_world(world: &World) {
    check_boots(world);
    for node in NODES {
        let open = world.episodes.values().filter(|e| e.node == node && e.current_step().is_some()).count();
        assert!(open <= 1, "two steps on {node}");
    }
    assert!(world.acts.values().all(|count| *count == 1), "an operation was done twice: {:?}", world.acts);
    // What is at its end and only puts back a cordon that it has kept holds no slot.
    let in_flight = |e: &&Episode| !e.phase.is_final() && e.mode == Mode::Enforce;
    let open: Vec<&Episode> = world.episodes.values().filter(in_flight).collect();
    let most = world.policies[0].limits.max_in_flight.of(4).min(world.ceiling);
    assert!(open.len() <= usize::try_from(most).unwrap(), "{} in flight, {most} allowed", open.len());
    for limit in &world.policies[0].limits.per_topology {
        let zone = |episode: &Episode| world.nodes.get(&episode.node).map(|node| node.view.labels[&limit.key].clone());
        for place in ["0", "1"] {
            let here = open.iter().filter(|episode| zone(episode).as_deref() == Some(place)).count();
            assert!(here <= usize::try_from(limit.max_in_flight.of(2)).unwrap(), "{here} in zone {place}");
        }
    }
    for limit in &world.policies[0].limits.per_fault {
        let such = open.iter().filter(|episode| !episode.kinds().is_disjoint(&limit.faults)).count();
        assert!(such <= usize::try_from(limit.max_in_flight.of(4)).unwrap(), "{such} for {:?}", limit.faults);
    }
    check_hand_offs(world);
    check_drains(world);
    world.episodes.values().for_each(|episode| check_refusals(world, episode));
    if let Some(ledger) = &world.ledger {
        assert!(ledger.slots.len() <= usize::try_from(most).unwrap(), "{ledger:?}");
    }
}

/// Nothing is made twice, nor beside another of the same kind, nor is anything left that no episode will take back.
fn check_hand_offs(world: &World) {
    let hand_offs = &world.remediators;
    assert!(hand_offs.made.values().all(|count| *count == 1), "made twice: {:?}", hand_offs.made);
    for object in &hand_offs.objects {
        let owed = world.episodes.values().flat_map(|episode| &episode.undo.handed_off);
        let mut owed = owed.filter(|owed| owed.deleted_at.is_none() && owed.is_of_episode(&object.handed.operation_id));
        assert!(owed.any(|owed| owed.is_same_object(&object.handed)), "stranded: {object:?}");
    }
    for step in world.episodes.values().flat_map(|episode| &episode.steps) {
        let in_vain = step.action == ActionType::HandOff && step.state == StepState::TimedOut;
        if in_vain && step.started_at.is_some() && !step.message.contains("could not be told") {
            assert!(hand_offs.told.contains(&step.operation_id), "its remediator knows nothing: {step:?}");
        }
    }
}

/// What stays, or is held up, is not evicted, and a drain that is done has left nothing behind that was to go.
fn check_drains(world: &World) {
    for node in world.nodes.values() {
        for pod in node.workloads.iter().filter(|one| one.evicted_at.is_some()) {
            let may_go = pod.pod.owner != Owner::DaemonSet && !pod.pod.has_empty_dir && pod.budget.is_none();
            assert!(may_go, "evicted: {pod:?}");
        }
    }
    for step in world.episodes.values().flat_map(|episode| &episode.steps) {
        let is_drain = step.action == ActionType::Drain;
        if is_drain && step.state == StepState::TimedOut && step.started_at.is_some() {
            // Its second look may have been held until its time was over.
            let said = if step.quiet_rounds > 0 { "looked at once more" } else { "pod(s) left" };
            assert!(step.message.contains(said), "says not what is left: {step:?}");
        }
        if is_drain && step.state == StepState::Started {
            let began = step.started_at.unwrap();
            assert!(step.continued_at.is_some_and(|at| at >= began), "{step:?}");
        }
    }
}

/// After a call that the API server refused nothing is tried for that fault, and it is not given up, before the
/// step's cool-down is over.
fn check_refusals(world: &World, episode: &Episode) {
    let Some(policy) = world.policies.iter().find(|policy| policy.name == episode.policy) else { return };
    for fault in &episode.faults {
        let Some(rule) = policy.rule(&fault.rule) else { continue };
        let wait = |record: &StepRecord| {
            let rung = usize::try_from(record.rung).unwrap();
            let wait = rule.steps.get(rung).unwrap().cooldown.max(secs(10));
            record.finished_at.unwrap().checked_add(wait).unwrap()
        };
        let tried: Vec<&StepRecord> = episode.steps.iter().filter(|step| step.fault_id == fault.id).collect();
        for pair in tried.windows(2).filter(|pair| pair[0].is_refused_call()) {
            assert!(pair[1].reserved_at >= wait(pair[0]), "{pair:#?}");
        }
        // Another remediator had its turn before: the end of the episode gives the fault up.
        let is_given_up = fault.state == HealState::GivenUp && episode.phase != Phase::Cancelled;
        if let Some(last) = tried.last().filter(|last| last.is_refused_call() && is_given_up) {
            assert!(episode.finished_at.unwrap_or(world.now) >= wait(last), "{last:#?}");
        }
    }
}

fn shuffled(snapshot: &Snapshot) -> Snapshot {
    let mut other = snapshot.clone();
    other.policies.reverse();
    other.pods.reverse();
    for report in other.reports.values_mut() {
        report.faults.reverse();
    }
    other
}

/// Everybody lets go, and time passes: everything comes to an end and is put back.
fn calm_down(world: &mut World) {
    world.policies[0].suspend = false;
    // What is open waits for as long as the policy cannot be used: somebody mends it, at last.
    world.policies[0].is_broken = false;
    world.policies[0].windows.clear();
    world.refuses = false;
    world.may_evict = Tri::True;
    for node in world.nodes.values_mut() {
        (node.probe_runs, node.job_starts, node.looked) = (true, true, secs(1));
        // Whoever wants a node left alone keeps it cordoned, too, for as long as he wants.
        node.report.suspended = None;
        node.view.vetoes.clear();
    }
    for _ in 0..2_000 {
        let plan = world.pass();
        check_world(world);
        let slots = world.ledger.as_ref().map_or(0, |ledger| ledger.slots.len());
        let is_over = world.wishes.is_empty() && !world.episodes.values().any(Episode::is_live);
        // An order of which nobody knows any more is taken back when its time is over.
        let is_ordered = world.nodes.values().any(|node| node.report.order.is_some());
        if plan.effects.is_empty() && slots == 0 && is_over && !is_ordered {
            break;
        }
        world.tick(secs(15));
    }
    assert!(world.wishes.is_empty(), "never begun and never ended: {:?}", world.wishes);
    let open: Vec<&Episode> = world.episodes.values().filter(|episode| episode.is_live()).collect();
    assert!(open.is_empty(), "never ended: {open:#?}");
    for (name, node) in &world.nodes {
        assert!(node.view.cordoned_by.is_none(), "the cordon of {name} is stranded");
        assert!(node.view.tainted_by.is_none(), "the mark of a taint on {name} is stranded");
        // Those of people have a value here.
        let is_ours = TaintEffect::ALL.into_iter().any(|effect| node.view.carries(effect));
        assert!(!is_ours, "the taint of {name} is stranded");
        assert!(node.report.order.is_none(), "the order of {name} stands for ever");
    }
    world.tick(secs(5));
    assert!(world.nodes.values().all(|node| node.boots.marked.is_none()), "a mark stands that nobody wants");
    assert!(world.remediators.objects.is_empty(), "never taken back: {:?}", world.remediators.objects);
    assert!(world.jobs.values().all(|(_, job)| job.finished), "a Job waits for ever");
    assert_eq!(world.ledger.as_ref().map_or(0, |ledger| ledger.slots.len()), 0);
}

proptest! {
    #![proptest_config(tried(10_000))]

    #[test]
    fn the_rules_hold_in_a_disturbed_world(
        mut world in worlds(),
        rounds in prop::collection::vec(round(), 1..40),
    ) {
        Told::or_timeline(&mut world, |world, told| {
            let mut before = world.snapshot();
            for (turn, round) in rounds.iter().enumerate() {
                happen(world, &round.event, turn);
                told.happens(secs(round.wait), &format!("{round:?}"));
                world.tick(secs(round.wait));
                let now = world.snapshot();
                let mut snapshot = if round.is_stale { before } else { now.clone() };
                snapshot.now = now.now;
                let plan = world.carry_out(&snapshot, &round.chaos);
                told.decided(world, &plan);
                check_plan(&snapshot, &plan);
                check_world(world);
                before = now;
            }
            told.happens(Duration::ZERO, "all becomes calm");
            calm_down(world);
        })?;
    }
}

proptest! {
    #![proptest_config(tried(2_500))]

    #[test]
    fn the_same_in_any_order_gives_the_same(
        mut world in worlds(),
        rounds in prop::collection::vec(round(), 1..12),
        other in ladders(),
    ) {
        let mut second = policy("a-second", &[rule("r", &FaultType::ALL, &other)]);
        second.priority = 0;
        for (turn, round) in rounds.iter().enumerate() {
            happen(&mut world, &round.event, turn);
            world.tick(secs(round.wait));
            world.disturbed_pass(&round.chaos);
        }
        let mut snapshot = world.snapshot();
        snapshot.policies.push(second);
        let first = plan(&snapshot, &world.settings);
        prop_assert_eq!(&first, &plan(&snapshot, &world.settings));
        prop_assert_eq!(&first, &plan(&shuffled(&snapshot), &world.settings));
    }

    #[test]
    fn a_dry_run_beside_it_changes_nothing_that_is_done(
        mut world in worlds(),
        rounds in prop::collection::vec(round(), 1..25),
        ladder in ladders(),
        priority in -1..=1,
    ) {
        let mut tried = world.clone();
        let mut trial = policy("a-trial", &[rule("r", &FaultType::ALL, &ladder)]);
        (trial.mode, trial.priority) = (Mode::DryRun, priority);
        tried.policies.push(trial);
        for (turn, round) in rounds.iter().enumerate() {
            for world in [&mut world, &mut tried] {
                happen(world, &round.event, turn);
                world.tick(secs(round.wait));
                world.pass();
            }
            prop_assert_eq!(&world.log, &tried.log);
            prop_assert_eq!(&world.ledger.as_ref().map(|l| l.slots.len()), &tried.ledger.as_ref().map(|l| l.slots.len()));
        }
    }

    #[test]
    fn a_decision_is_content_with_its_own_result(
        mut world in worlds(),
        rounds in prop::collection::vec(round(), 1..12),
    ) {
        for (turn, round) in rounds.iter().enumerate() {
            happen(&mut world, &round.event, turn);
            world.tick(secs(round.wait));
            // At one moment a node sees at most its undo, its cordon and taint and one further act, and then rest.
            let (mut operations, mut drains) = (BTreeSet::new(), BTreeSet::new());
            let mut effects = Vec::new();
            for _ in 0..16 {
                let plan = world.pass();
                for effect in &plan.effects {
                    if let Effect::Act { operation_id, node, operation, .. } = effect
                        && !matches!(operation, Operation::Cordon | Operation::Taint(_) | Operation::Notify(_))
                    {
                        drains.extend(matches!(operation, Operation::Drain(_)).then(|| operation_id.clone()));
                        let is_new = operations.insert((node.clone(), operation_id.clone()));
                        prop_assert!(is_new, "repeated although it was done: {operation_id}");
                    }
                }
                effects = plan.effects;
            }
            // What the API server refused touched nothing, nor did what somebody else is at already: another step may have its turn.
            let refused: BTreeSet<&String> = world.episodes.values().flat_map(|episode| &episode.steps)
                .filter(|step| step.is_refused_call() || step.state == StepState::Refused).map(|step| &step.operation_id).collect();
            // Nor is a drain, which contains as a cordon does, in the way of the step that heals.
            operations.retain(|(_, id)| !refused.contains(id) && !drains.contains(id));
            let mut nodes = BTreeSet::new();
            prop_assert!(operations.iter().all(|(node, _)| nodes.insert(node)), "{operations:?}");
            prop_assert!(effects.is_empty(), "no rest: {effects:?}");
        }
    }

    #[test]
    fn nothing_read_makes_it_panic_or_forget_itself(
        mut world in worlds(),
        rounds in prop::collection::vec(round(), 1..12),
        noise in prop::collection::vec((any::<u8>(), any::<u64>(), ".{0,12}"), 0..24),
    ) {
        for (turn, round) in rounds.iter().enumerate() {
            happen(&mut world, &round.event, turn);
            world.tick(secs(round.wait));
            world.disturbed_pass(&round.chaos);
        }
        let mut snapshot = world.snapshot();
        for (what, number, text) in &noise {
            spoil(&mut snapshot, *what, *number, text);
        }
        let first = plan(&snapshot, &world.settings);
        prop_assert!(first.next.is_none_or(|next| next > Duration::ZERO));
        prop_assert_eq!(&first, &plan(&shuffled(&snapshot), &world.settings));
        for effect in &first.effects {
            if let Effect::WriteEpisode(episode) = effect {
                prop_assert!(episode.steps.iter().filter(|s| !s.state.is_final()).count() <= 1 || noise.len() > 1);
            }
        }
    }
}

/// Nonsense as a lying node, a careless person or a broken store might hand in.
fn spoil(snapshot: &mut Snapshot, what: u8, number: u64, text: &str) {
    let age = Duration::from_secs(number);
    let small = usize::try_from(number % 7).unwrap();
    match what % 20 {
        0 => snapshot.now = jiff::Timestamp::MIN,
        1 => snapshot.now = jiff::Timestamp::MAX,
        2 => snapshot.reports.values_mut().for_each(|r| r.faults.iter_mut().for_each(|f| f.looked = age)),
        3 => snapshot.reports.values_mut().filter_map(|r| r.heartbeat.as_mut()).for_each(|h| h.interval = age),
        4 => snapshot.reports.values_mut().filter_map(|r| r.heartbeat.as_mut()).for_each(|h| h.arrived = age),
        5 => snapshot.episodes.values_mut().for_each(|e| e.steps.truncate(small)),
        6 => snapshot.episodes.values_mut().for_each(|e| e.faults.truncate(small)),
        7 => snapshot.episodes.values_mut().for_each(|e| text.clone_into(&mut e.node)),
        8 => snapshot.episodes.values_mut().for_each(|e| e.faults.iter_mut().for_each(|f| f.rung = u32::MAX)),
        9 => snapshot.policies.iter_mut().for_each(|p| p.rules.iter_mut().for_each(|r| r.steps.clear())),
        10 => {
            let slot =
                Slot { node: text.to_owned(), policy: "p".to_owned(), taken_at: jiff::Timestamp::MAX, kinds: None };
            snapshot.ledger.get_or_insert_default().slots.insert(text.to_owned(), slot);
        }
        11 => snapshot.nodes.values_mut().for_each(|n| n.cordoned_by = Some(text.to_owned())),
        18 => snapshot.nodes.values_mut().for_each(|n| n.tainted_by = Some(TaintMark::read(text))),
        12 => {
            for report in snapshot.reports.values_mut() {
                let many: Vec<_> = report.faults.iter().cycle().take(200).cloned().collect();
                report.faults = many;
            }
        }
        13 => snapshot.pods.iter_mut().for_each(|p| (p.age, p.without_sandbox, p.read) = (age, Some(age), age)),
        14 => drop(snapshot.nodes.remove(NODES[small % 4])),
        15 => snapshot.pods_seen.values_mut().for_each(|seen| *seen = PodSeen::Gone),
        16 => snapshot.wishes.values_mut().for_each(|w| (w.wish.timeout, w.asked_at) = (age, jiff::Timestamp::MAX)),
        17 => snapshot.wishes.values_mut().for_each(|w| text.clone_into(&mut w.name)),
        _ => snapshot.policies.iter_mut().for_each(|p| {
            for step in p.rules.iter_mut().flat_map(|r| &mut r.steps) {
                (step.attempts, step.timeout, step.cooldown, step.verify_for) = (u32::MAX, age, age, age);
            }
        }),
    }
}
