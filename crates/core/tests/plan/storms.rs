//! The same fault on many nodes.

use std::time::Duration;

use nrh_core::command::OutcomeReason;
use nrh_core::fault::{Fault, FaultType};
use nrh_core::moment::since;
use nrh_core::plan::{BlockReason, Plan};
use nrh_core::policy::{Amount, Mode, Step, StormLimit};
use nrh_core::remediation::{Phase, Remediation, Resolution, StepState};
use nrh_core::snapshot::NodeView;

use proptest::prelude::*;

use crate::samples::{asked, cont, cordon, fault, hung, names, notify, plugin, policy, rule};
use crate::world::{ClearedBy, JOB_CONT, World, acts, reasons, says, secs};

/// Nodes under one policy without narrow budgets.
pub fn fleet(count: usize) -> World {
    let mut policy = policy("p", &[rule("r", &[FaultType::HungContainer], &[cont()])]);
    policy.limits.max_in_flight = Amount::Count(100);
    let mut world = World::new(&[policy], &names(count));
    world.ceiling = 100;
    world
}

/// These nodes have had the same fault for a minute.
pub fn inject(
    world: &mut World,
    nodes: std::ops::Range<usize>,
    by: impl Into<Option<ClearedBy>>,
    of: fn(&str) -> Fault,
) {
    let all = names(world.nodes.len());
    let fault = Fault { first_seen: world.now, duration_seconds: 60, ..of("log") };
    world.inject_all(&all[nodes], &fault, by);
}

/// Time passes for the faults, too: they grow older with each report.
pub fn age(world: &mut World, wait: Duration) {
    for sick in world.nodes.values_mut().flat_map(|node| &mut node.sick) {
        sick.fault.duration_seconds += wait.as_secs();
    }
    world.tick(wait);
}

fn pass(world: &mut World, wait: Duration) -> Plan {
    age(world, wait);
    world.pass()
}

/// So many passes: each number that is higher than all before it.
fn ramp(world: &mut World, passes: usize, number: impl Fn(&mut World) -> usize) -> Vec<usize> {
    let mut most = Vec::new();
    for _ in 0..passes {
        pass(world, secs(5));
        let now = number(world);
        most.extend((now > most.last().copied().unwrap_or(0)).then_some(now));
    }
    most
}

fn blocked(plan: &Plan) -> (BlockReason, String) {
    plan.policies["p"].blocked.clone().unwrap()
}

#[test]
fn the_same_new_fault_on_many_nodes_holds_until_no_more_come() {
    let mut world = fleet(40);
    inject(&mut world, 0..10, ClearedBy::Cont, hung);
    let plan = world.pass();
    assert!(acts(&plan).is_empty() && reasons(&plan).iter().all(|reason| *reason == BlockReason::Storm));
    let (reason, told) = blocked(&plan);
    assert_eq!(reason, BlockReason::Storm);
    says(&told, "10 of 40 nodes have a new HungContainer within 10 min");
    assert!(plan.next.is_some_and(|next| next <= secs(30)), "it clears itself");
    assert!(world.remediations.is_empty());
    // Two more, nearly ten minutes later: they alone are no storm, but the others are new still.
    pass(&mut world, secs(530));
    inject(&mut world, 10..12, ClearedBy::Cont, hung);
    assert!(acts(&pass(&mut world, secs(5))).is_empty());
    assert_eq!(acts(&pass(&mut world, secs(10))).len(), 1, "no more come: one is healed");
}

#[test]
fn what_is_resolved_as_fast_as_it_comes_is_a_storm_as_well() {
    let mut world = fleet(40);
    let mut resolved = 0;
    for node in 0..20 {
        inject(&mut world, node..node + 1, ClearedBy::Cont, hung);
        for _ in 0..4 {
            pass(&mut world, secs(5));
        }
        resolved = world.remediations.values().filter(|remediation| remediation.phase == Phase::Succeeded).count();
    }
    assert_eq!(resolved, 9, "with the tenth of forty within ten minutes it is one");
    let (reason, told) = blocked(&world.plan());
    assert!(reason == BlockReason::Storm && told.contains("(9 of them resolved)"), "{told}");
    // No more come: the nine are forgotten, the eleven others are still sick, and few at a time are resolved.
    pass(&mut world, secs(605));
    assert_eq!(world.open(), 1);
}

#[test]
fn what_does_not_help_begins_it_anew() {
    let mut world = fleet(40);
    world.policies[0].rules[0].steps[0].timeout = secs(20);
    inject(&mut world, 0..7, ClearedBy::Cont, hung);
    inject(&mut world, 7..8, None, hung);
    inject(&mut world, 8..40, ClearedBy::Cont, hung);
    pass(&mut world, secs(600));
    let failed = |world: &World| world.remediations.values().any(|remediation| remediation.phase == Phase::Failed);
    let mut most = 0;
    while !failed(&world) {
        pass(&mut world, secs(5));
        let open = world.open();
        most = most.max(open);
        assert!(world.nodes.values().any(|node| !node.sick.is_empty()));
    }
    assert!(most >= 4, "until then it has grown: {most}");
    let sick = world.nodes.values().filter(|node| !node.sick.is_empty()).count();
    assert!(sick > 10, "it is no storm any more");
    // What runs is finished; then one at a time again.
    let after = (0..20).map(|_| acts(&pass(&mut world, secs(1))).len());
    let begun: Vec<usize> = after.filter(|begun| *begun > 0).collect();
    assert_eq!(begun, [1, 2], "what had begun before the failure speaks for nothing");
}

/// One that came to nothing because nobody could check its node says nothing about the steps.
#[test]
fn what_was_not_tried_leaves_the_ramp_as_it_is() {
    let mut world = fleet(40);
    inject(&mut world, 0..30, ClearedBy::Cont, hung);
    pass(&mut world, secs(600));
    let most = |world: &World| world.plan().policies["p"].storms[0].max_concurrent;
    while most(&world) < 4 {
        pass(&mut world, secs(5));
    }
    for (reason, expected) in [(OutcomeReason::CheckFailed, 4), (OutcomeReason::Protected, 1)] {
        let mut world = world.clone();
        let is_over = |one: &&Remediation| one.phase == Phase::Succeeded;
        let mut failed = world.remediations.values().find(is_over).unwrap().clone();
        (failed.name, failed.phase, failed.finished_at) = ("failed".into(), Phase::Failed, Some(world.now));
        failed.faults[0].state = Resolution::Exhausted;
        for step in &mut failed.steps {
            (step.state, step.reason, step.executed_at) = (StepState::Refused, Some(reason), None);
        }
        world.remediations.insert(failed.name.clone(), failed);
        assert_eq!(most(&world), expected, "{reason:?}");
    }
}

#[test]
fn few_nodes_slow_nodes_and_other_faults_are_no_storm() {
    let mut small = fleet(8);
    inject(&mut small, 0..4, ClearedBy::Cont, hung);
    assert_eq!(acts(&small.pass()).len(), 4, "half of them, and fewer than five");

    let mut slow = fleet(40);
    for node in 0..12 {
        inject(&mut slow, node..node + 1, ClearedBy::Cont, hung);
        let plan = pass(&mut slow, secs(120));
        assert!(!reasons(&plan).contains(&BlockReason::Storm), "one every two minutes: {:?}", plan.blocked);
    }

    let mut two = fleet(40);
    two.policies[0].rules.push(rule("net", &[FaultType::NetworkPluginHung], &[cont()]));
    inject(&mut two, 0..12, ClearedBy::Cont, hung);
    inject(&mut two, 20..21, ClearedBy::Cont, |key| fault(FaultType::NetworkPluginHung, key));
    assert_eq!(acts(&two.pass()), [("n20".to_owned(), JOB_CONT.to_owned())]);

    let mut off = fleet(40);
    off.policies[0].limits.storm = StormLimit { min_nodes: Amount::Count(100_000), ..StormLimit::default() };
    inject(&mut off, 0..30, ClearedBy::Cont, hung);
    assert_eq!(acts(&off.pass()).len(), 30);
}

#[test]
fn people_are_told_in_a_storm_and_a_dry_run_shows_the_same() {
    let mut told = fleet(40);
    told.policies[0].rules[0].steps = vec![notify()];
    inject(&mut told, 0..12, None, hung);
    assert_eq!(acts(&told.pass()).len(), 12);

    let mut dry = fleet(40);
    dry.policies[0].mode = Mode::DryRun;
    inject(&mut dry, 0..12, ClearedBy::Cont, hung);
    let plan = dry.pass();
    assert!(dry.remediations.is_empty() && reasons(&plan).iter().all(|reason| *reason == BlockReason::Storm));
}

#[test]
fn a_kubelet_version_that_the_sick_have_in_common_is_named() {
    let mut world = fleet(40);
    for (place, node) in world.nodes.values_mut().enumerate() {
        node.view.kubelet_version = Some(if place < 14 { "v1.36.2" } else { "v1.35.0" }.to_owned());
    }
    inject(&mut world, 0..12, ClearedBy::Cont, hung);
    let (_, told) = blocked(&world.pass());
    assert!(told.ends_with("; 12 of the 12 have kubelet v1.36.2, which 14 of all nodes have"), "{told}");
    world.nodes.values_mut().for_each(|node| node.view.kubelet_version = Some("v1.36.2".to_owned()));
    let (_, told) = blocked(&world.pass());
    assert!(!told.contains("v1.36.2"), "what all have says nothing: {told}");
}

/// Gives the first nodes something new, and the others something old.
fn mark_out(world: &mut World, first: usize, mark: fn(&mut NodeView, String)) {
    for (place, node) in world.nodes.values_mut().enumerate() {
        mark(&mut node.view, if place < first { "new" } else { "old" }.to_owned());
    }
}

/// Few nodes are a storm, too, where they have in common what most have not: that is the likely cause.
#[test]
fn what_a_few_sick_nodes_have_in_common_makes_a_storm_of_them() {
    type Mark = (&'static str, fn(&mut NodeView, String));
    let marks: [Mark; 4] = [
        ("kubelet new", |view, value| view.kubelet_version = Some(value)),
        ("runtime new", |view, value| view.runtime_version = Some(value)),
        ("image new", |view, value| view.os_image = Some(value)),
        ("pool new", |view, value| drop(view.labels.insert("karpenter.sh/nodepool".to_owned(), value))),
    ];
    for (what, mark) in marks {
        let mut world = fleet(40);
        mark_out(&mut world, 8, mark);
        inject(&mut world, 0..5, ClearedBy::Cont, hung);
        let plan = world.pass();
        assert!(acts(&plan).is_empty(), "{what}: {:?}", acts(&plan));
        let (reason, told) = blocked(&plan);
        assert_eq!(reason, BlockReason::Storm);
        assert!(told.ends_with(&format!("; 5 of the 5 have {what}, which 8 of all nodes have")), "{told}");
        // Who has it not has nothing to do with it.
        inject(&mut world, 20..21, ClearedBy::Cont, hung);
        assert_eq!(acts(&world.pass()).len(), 1, "{what}");
        world.tick(secs(5));
        world.run(secs(60));
        // No more come: it is resolved one at a time, as after any storm.
        pass(&mut world, secs(600));
        assert_eq!(world.open(), 1, "{what}");
    }
}

#[test]
fn a_few_sick_nodes_like_all_others_are_no_storm() {
    // Fewer than five, in common with most, in common with too few of the sick, or nobody wants storms.
    let few = |sick: usize, marked: usize, nodes: Option<u32>| {
        let mut world = fleet(40);
        if let Some(nodes) = nodes {
            world.policies[0].limits.storm.min_nodes = Amount::Count(nodes);
        }
        mark_out(&mut world, marked, |view, value| view.kubelet_version = Some(value));
        inject(&mut world, 0..sick, ClearedBy::Cont, hung);
        acts(&world.pass()).len()
    };
    assert_eq!(few(4, 8, None), 4);
    assert_eq!(few(5, 21, None), 5);
    assert_eq!(few(5, 4, None), 5);
    assert_eq!(few(5, 8, Some(100_000)), 5);
    assert_eq!(few(5, 8, None), 0);
}

/// A remediation of another kind, however long it waits, is none of those that are resolved after a storm.
#[test]
fn what_waits_for_another_fault_does_not_hold_up_the_ramp() {
    let mut world = fleet(40);
    world.policies[0].rules.push(rule("ask", &[FaultType::NetworkPluginHung], &[asked(cont())]));
    world.inject("n39", plugin(), None);
    world.pass();
    assert_eq!(world.phase(), Phase::AwaitingApproval);
    inject(&mut world, 0..12, ClearedBy::Cont, hung);
    pass(&mut world, secs(600));
    let begun = world.remediations.values().filter(|remediation| remediation.phase != Phase::AwaitingApproval);
    assert_eq!(begun.count(), 1, "{:?}", world.remediations);
}

/// Nor does one that a person does not answer, unless it keeps its node cordoned meanwhile. A late yes starts no more than the ramp
/// leaves.
#[test]
fn what_waits_for_a_person_takes_no_place_in_the_ramp() {
    for (steps, asking) in [(vec![asked(cont())], 30), (vec![cordon(), asked(cont())], 1)] {
        let mut world = fleet(40);
        world.policies[0].rules[0].steps = steps;
        inject(&mut world, 0..30, ClearedBy::Cont, hung);
        pass(&mut world, secs(600));
        for _ in 0..35 {
            pass(&mut world, secs(5));
        }
        assert_eq!(world.remediations.values().filter(|one| one.awaiting().is_some()).count(), asking);
        let most = ramp(&mut world, 100, |world| {
            for node in names(40) {
                world.approve(&node, "ann");
            }
            world.remediations.values().filter(|one| one.is_open() && one.awaiting().is_none()).count()
        });
        assert!(world.nodes.values().all(|node| node.sick.is_empty()), "{asking}: {:?}", world.remediations);
        assert_eq!(most[..3], [1, 2, 4], "{asking}");
    }
}

/// Nor does an open remediation of another fault take in more than the ramp leaves.
#[test]
fn what_joins_an_open_remediation_obeys_the_ramp() {
    let mut world = fleet(40);
    let ask = Step { approval_timeout: secs(700), ..asked(cont()) };
    world.policies[0].rules.push(rule("ask", &[FaultType::NetworkPluginHung], &[ask]));
    let sick = |world: &World| {
        let has = |one: &&Remediation| one.faults.iter().any(|fault| fault.kind == FaultType::HungContainer);
        world.remediations.values().filter(has).count()
    };
    world.inject_all(&["n00", "n01", "n02", "n03"], &plugin(), None);
    world.pass();
    assert_eq!(world.remediations.len(), 4);
    inject(&mut world, 0..12, ClearedBy::Cont, hung);
    let plan = pass(&mut world, secs(600));
    assert_eq!((sick(&world), acts(&plan).len()), (1, 1), "{:?}", world.remediations);
    assert!(reasons(&plan).contains(&BlockReason::Storm));
    let mut most = 0;
    while world.nodes.values().flat_map(|node| &node.sick).any(|sick| sick.fault.kind == FaultType::HungContainer) {
        most = most.max(acts(&pass(&mut world, secs(5))).len());
        assert!(since(world.now, world.remediations.values().next().unwrap().started_at) < Duration::from_hours(1));
    }
    assert!(most > 1, "it has grown: {most}");
}

/// What goes after its last step has failed was not resolved by that step.
#[test]
fn what_outlasts_its_steps_is_no_cure() {
    let again = Step { max_attempts: 2, cooldown: secs(900), ..cont() };
    let again = rule("again", &[FaultType::NetworkPluginHung], &[again]);
    let rules = [rule("r", &[FaultType::HungContainer], &[cont()]), again];
    let mut world = World::with_rules(&rules).ill(plugin(), None).ill(hung("log"), None);
    let is_exhausted = |world: &World| world.remediations.values().any(|one| one.exhausted_faults().next().is_some());
    world.until(secs(900), "given up", is_exhausted);
    world.node("n1").sick.retain(|sick| sick.fault.kind != FaultType::HungContainer);
    world.wait(3, 5);
    let remediation = world.only_remediation();
    let fault = remediation.faults.iter().find(|fault| fault.kind == FaultType::HungContainer).unwrap();
    assert!(remediation.is_open(), "{remediation:?}");
    assert!(fault.resolved_after_exhaustion() && !fault.is_resolved_by_steps(), "{remediation:?}");
}

proptest! {
    /// Whoever fell ill with what, and when: nothing starts for a storm that rises, one node at a time for one that has
    /// passed, and all others are resolved.
    #[test]
    fn nothing_is_begun_for_a_storm(ill in prop::collection::vec((0_usize..12, any::<bool>(), 0_u64..1200), 0..30)) {
        let kinds = [FaultType::HungContainer, FaultType::NetworkPluginHung];
        let mut world = fleet(12);
        world.policies[0].rules = vec![rule("r", &kinds, &[cont()])];
        world.policies[0].limits.storm.min_nodes = Amount::Count(6);
        let all = names(12);
        for (node, is_net, age) in &ill {
            let mut one = fault(kinds[usize::from(*is_net)], "x");
            one.duration_seconds = *age;
            if world.node(&all[*node]).sick.iter().all(|sick| sick.fault.id != one.id) {
                world.inject(&all[*node], one, ClearedBy::Cont);
            }
        }
        let sick = |kind: FaultType, limit: u64| {
            let is = |fault: &Fault| fault.kind == kind && fault.duration_seconds <= limit;
            world.nodes.values().filter(|node| node.sick.iter().any(|sick| is(&sick.fault))).count()
        };
        let [rises, passes] = [600, u64::MAX].map(|limit| kinds.map(|kind| sick(kind, limit) >= 6));
        let all_sick = kinds.map(|kind| sick(kind, u64::MAX));
        world.pass();
        let begun = |kind: FaultType| {
            world.remediations.values().filter(|remediation| remediation.faults.iter().any(|fault| fault.kind == kind)).count()
        };
        for (place, kind) in kinds.into_iter().enumerate() {
            match (rises[place], passes[place]) {
                (true, _) => prop_assert_eq!(begun(kind), 0),
                (false, true) => prop_assert!(begun(kind) <= 1, "{} at once", begun(kind)),
                (false, false) => prop_assert_eq!(begun(kind), all_sick[place]),
            }
        }
    }
}
