//! Random worlds, and random rounds in them.

use std::collections::BTreeSet;
use std::fmt;

use nrh_core::action::Restart;
use nrh_core::external_condition::ConditionMatcher;
use nrh_core::fault::FaultType;
use nrh_core::policy::{
    Amount, Daemon, FaultLimit, Limits, Mode, NodeLimit, OnFailure, Policy, Requirement, Rule, Selector, Step,
    StormLimit, TopologyLimit,
};
use nrh_core::snapshot::TriState;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};

use crate::events::{CONDITION, Event, LABEL, NODES, NOT_DB, POLICIES, POOL, ZONE, come};
use crate::samples::{
    asked, clean_up, cont, cordon, delete_pod, drain, hand_off, kept, kill, mark_for_reboot, notify, policy, reboot,
    reboot_drained, restart, rule, soft_taint, taint,
};
use crate::world::{Chaos, World, secs};

pub fn some_steps() -> impl Strategy<Value = Vec<Step>> {
    let mut twice = cont();
    (twice.max_attempts, twice.timeout, twice.cooldown) = (2, secs(30), secs(20));
    let shadow = |step: Step| Step { mode: Mode::DryRun, ..step };
    let asked_shortly = |step| Step { approval_timeout: secs(60), ..asked(step) };
    let shortly_kept = || kept(secs(600), secs(60));
    let short = |kind| Step { timeout: secs(60), ..hand_off(kind) };
    let restart = |daemon| restart(daemon, Restart::default());
    prop::sample::select(vec![
        vec![shadow(cordon()), cont(), shadow(kill(true)), clean_up(), shadow(notify())],
        vec![cont()],
        vec![taint(), cont(), kill(true), notify()],
        vec![soft_taint(), cont(), shortly_kept(), short("Fix")],
        vec![shortly_kept(), cont(), notify()],
        vec![cont(), kill(false), clean_up(), delete_pod()],
        vec![cordon(), cont(), kill(true), clean_up(), notify()],
        vec![cordon(), twice.clone(), delete_pod(), notify()],
        vec![restart(Daemon::Kubelet), cont(), restart(Daemon::Runtime), notify()],
        vec![cont(), cordon(), short("Fix"), notify()],
        vec![cordon(), drain(), cont(), kill(true), notify()],
        vec![cont(), shortly_kept(), Step { on_failure: OnFailure::Stop, ..drain() }, short("Fix"), notify()],
        vec![short("Fix"), short("Other"), asked_shortly(short("Third"))],
        vec![cordon(), Step { timeout: secs(300), ..reboot() }, notify()],
        vec![cont(), Step { timeout: secs(900), ..mark_for_reboot() }, cordon(), reboot(), notify()],
        vec![cordon(), asked_shortly(Step { timeout: secs(900), ..mark_for_reboot() }), short("Fix")],
        vec![cont(), reboot(), cordon(), drain(), reboot_drained(), reboot(), notify()],
        vec![cordon(), asked_shortly(reboot()), reboot(), notify()],
        vec![delete_pod(), clean_up(), twice, cordon(), kill(false)],
        vec![shortly_kept(), short("Fix"), notify()],
    ])
}

fn limits() -> impl Strategy<Value = Limits> {
    let percents = || prop::sample::select(vec![25_u32, 50, 75]).prop_map(Amount::Percent);
    let zones = prop::option::of(prop_oneof![(1_u32..3).prop_map(Amount::Count), percents()]);
    let bad = prop::sample::select(vec![50_u32, 75, 100]);
    let acts = prop::option::of((1_u32..4, prop::sample::select(vec![60_u64, 600, 7200])));
    let rare = prop::option::weighted(0.4, prop_oneof![(0_u32..3).prop_map(Amount::Count), percents()]);
    let most = prop_oneof![(1_u32..4).prop_map(Amount::Count), percents()];
    (most, bad, zones, acts, rare).prop_map(|(max_in_flight, bad, zones, acts, rare)| {
        let zone = |most| TopologyLimit { key: ZONE.into(), max_in_flight: most };
        let kinds = [FaultType::HungContainer, FaultType::OrphanContainer, FaultType::NodeCondition];
        let few = |most| FaultLimit { faults: kinds.into(), max_in_flight: most };
        let per_node = |(acts, within)| NodeLimit { max_actions: acts, window: secs(within) };
        Limits {
            max_unhealthy: Amount::Percent(bad),
            max_in_flight,
            per_topology: zones.map(zone).into_iter().collect(),
            per_fault: rare.map(few).into_iter().collect(),
            per_node: acts.map_or_else(NodeLimit::default, per_node),
            storm: StormLimit::default(),
        }
    })
}

/// The condition that policies ask for.
fn asked_condition() -> ConditionMatcher {
    ConditionMatcher { kind: CONDITION.into(), status: TriState::True, reasons: ["Asked".to_owned()].into() }
}

fn world(policies: &[Policy], ceiling: u32) -> World {
    let mut world = World::new(policies, &NODES);
    for (place, name) in NODES.iter().enumerate() {
        come(&mut world, place, format!("uid-{name}"));
    }
    world.ceiling = ceiling;
    world.settings.rebuild_ledger = true;
    world
}

/// One policy for all nodes and all faults.
pub fn worlds() -> impl Strategy<Value = World> {
    let matching = prop::option::weighted(0.3, Just(NOT_DB));
    (some_steps(), limits(), 1_u32..4, matching).prop_map(|(steps, limits, ceiling, matching)| {
        let mut policy = policy("p", &[rule("r", &FaultType::ALL, &steps)]);
        let other = |value: &str| Requirement::NotIn(LABEL.into(), BTreeSet::from([value.to_owned()]));
        policy.rules[0].matching.pods = matching.map(|value| Selector(vec![other(value)]));
        policy.rules[0].conditions.push(asked_condition());
        policy.limits = limits;
        world(&[policy], ceiling)
    })
}

/// Two or three policies, whose nodes and faults overlap or not, one before the other.
pub fn several() -> impl Strategy<Value = World> {
    let policies = prop::collection::vec(one_of_several(), 2..=POLICIES.len());
    (policies, 1_u32..5).prop_map(|(mut policies, ceiling)| {
        for (policy, name) in policies.iter_mut().zip(POLICIES) {
            (policy.name, policy.uid) = (name.to_owned(), format!("uid-{name}"));
        }
        world(&policies, ceiling)
    })
}

/// With one policy or several.
pub fn any_worlds() -> impl Strategy<Value = World> {
    prop_oneof![worlds(), several()]
}

/// For all nodes or some of them, for all faults or some of them, with some steps for each of its rules.
fn one_of_several() -> impl Strategy<Value = Policy> {
    let is = |key: &str, value: &str| Requirement::In(key.into(), BTreeSet::from([value.to_owned()]));
    let selectors = vec![
        Selector::default(),
        Selector(vec![is(POOL, "0")]),
        Selector(vec![is(POOL, "1")]),
        Selector(vec![Requirement::NotIn(POOL.into(), BTreeSet::from(["0".to_owned()]))]),
        Selector(vec![is(ZONE, "0")]),
    ];
    let of_containers = vec![FaultType::HungContainer, FaultType::OrphanContainer, FaultType::LeakedShim];
    let of_nodes = vec![
        FaultType::NetworkPluginHung,
        FaultType::KubeletDown,
        FaultType::RuntimeListHung,
        FaultType::RuntimeUnreachable,
        FaultType::StuckDaemonSetPod,
    ];
    let kinds = prop::sample::select(vec![FaultType::ALL.to_vec(), of_containers, of_nodes]);
    let rules = prop::collection::vec((kinds, some_steps(), any::<bool>()), 1..=2);
    (prop::sample::select(selectors), -1..=1, rules, limits()).prop_map(|(selector, priority, rules, limits)| {
        let rules = rules.into_iter().enumerate().map(|(place, (kinds, steps, asks))| {
            let mut rule = rule(&format!("r{place}"), &kinds, &steps);
            rule.conditions.extend(asks.then(asked_condition));
            rule
        });
        let rules: Vec<Rule> = rules.collect();
        Policy { selector, priority, limits, ..policy("?", &rules) }
    })
}

/// One round: what happens, how long it takes, and how the pass is disturbed.
#[derive(Clone)]
pub struct Round {
    pub event: Event,
    pub wait: u64,
    pub chaos: Chaos,
    pub is_stale: bool,
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
pub fn tried(cases: u32) -> ProptestConfig {
    let config = ProptestConfig { max_shrink_iters: 2_000, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { config } else { ProptestConfig { cases, ..config } }
}

/// Tries what takes long to tell: so many times, or as much fewer as `PROPTEST_CASES` is less than 10,000, but for eight. Within
/// `proptest!` the variable stands above every other number.
pub fn try_few<S: Strategy>(file: &'static str, cases: u32, input: &S, test: impl Fn(S::Value) -> TestCaseResult) {
    let config = ProptestConfig { source_file: Some(file), ..tried(10_000) };
    let share = u64::from(cases) * u64::from(config.cases) / 10_000;
    let cases = u32::try_from(share).unwrap_or(u32::MAX).clamp(cases.min(8), cases);
    if let Err(error) = TestRunner::new(ProptestConfig { cases, ..config }).run(input, test) {
        panic!("{error}");
    }
}

/// Rounds in which such events happen.
pub fn round(events: impl Strategy<Value = Event>) -> impl Strategy<Value = Round> {
    let failing = prop::collection::btree_set(0_usize..8, 0..3);
    let chaos = (prop::option::weighted(0.3, 0_usize..6), failing, any::<bool>());
    let wait = prop::sample::select(vec![0_u64, 1, 3, 5, 10, 20, 50, 120, 200]);
    (events, wait, chaos, prop::bool::weighted(0.2)).prop_map(
        |(event, wait, (crash_after, failing, calm), is_stale)| {
            let chaos = if calm { Chaos::default() } else { Chaos { crash_after, failing } };
            Round { event, wait, chaos, is_stale }
        },
    )
}
