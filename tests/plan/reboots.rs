//! Reboots: under our own cordon only, once for one boot, by the node's own agent, and judged by the boot id alone.

use nrh::core::drain::Drain;
use nrh::core::episode::{Approval, HealState, Phase, StepRecord, StepState};
use nrh::core::fault::{Fault, FaultType, Severity};
use nrh::core::order::NodeAction;
use nrh::core::plan::{Effect, HoldReason, Operation};
use nrh::core::policy::{Action, ActionType, Amount, ApprovalMode, Step, TopologyLimit};
use nrh::core::reboot::Reboot;
use nrh::core::snapshot::Tri;

use crate::samples::{drain, fault, hung, notify, reboot, secs, step, workload};
use crate::world::{Chaos, Cure, World, acts, reasons};

fn cordon() -> Step {
    step(Action::Cordon(None))
}

fn drained_first() -> Step {
    Step { action: Action::Reboot(Reboot::default()), ..reboot() }
}

fn silent() -> Fault {
    Fault { severity: Severity::Critical, ..fault(FaultType::RuntimeUnreachable, "it") }
}

fn sick(ladder: &[Step]) -> World {
    World::sick(silent(), Cure::Reboot, ladder)
}

fn record(world: &World) -> StepRecord {
    let steps = &world.only_episode().steps;
    steps.iter().find(|step| step.action == ActionType::Reboot).unwrap_or_else(|| panic!("none: {steps:#?}")).clone()
}

/// Passes until the order stands.
fn ordered(world: &mut World) {
    for _ in 0..20 {
        world.pass();
        if world.did().contains(&"order Reboot") {
            return;
        }
        world.tick(secs(5));
    }
    panic!("no order: {:?}", world.did());
}

#[test]
fn a_node_is_cordoned_rebooted_and_opened_again_once_its_new_boot_is_well() {
    let mut world = sick(&[cordon(), reboot(), notify()]);
    world.run(secs(600));
    assert_eq!(world.did(), ["cordon", "order Reboot", "uncordon"]);
    let done = record(&world);
    assert_eq!((done.state, done.boot_id.as_deref()), (StepState::Succeeded, Some("boot-0")));
    assert!(done.message.contains("its boot id was boot-0 and is boot-1; the fault is gone"), "{}", done.message);
    assert_eq!(world.only_episode().phase, Phase::Succeeded);
    assert_eq!(world.nodes["n1"].boots.count, 1);
}

#[test]
fn the_order_is_for_one_boot_and_for_the_nodes_own_agent() {
    let mut world = sick(&[cordon(), reboot()]);
    world.pass();
    world.tick(secs(5));
    let plan = world.pass();
    let order = plan.effects.into_iter().find_map(|effect| match effect {
        Effect::Act { operation: Operation::GiveOrder(order), .. } => Some(order),
        _ => None,
    });
    let order = order.unwrap();
    assert_eq!((order.action, order.boot_id.as_deref()), (NodeAction::Reboot, Some("boot-0")));
}

#[test]
fn the_agent_that_comes_back_to_the_same_order_does_nothing() {
    let mut world = sick(&[cordon(), reboot(), notify()]);
    ordered(&mut world);
    // The controller is away; the order stands in the API all the while.
    for _ in 0..60 {
        world.tick(secs(5));
    }
    assert_eq!(world.nodes["n1"].boots.count, 1, "it would boot again and again");
    assert!(world.nodes["n1"].report.order.is_some());
    world.run(secs(60));
    assert_eq!((world.only_episode().phase, world.nodes["n1"].boots.count), (Phase::Succeeded, 1));
    assert!(world.nodes["n1"].report.order.is_none());
}

#[test]
fn a_controller_that_dies_between_the_order_and_its_record_does_not_give_it_again() {
    for may_see in [true, false] {
        let mut world = sick(&[cordon(), reboot(), notify()]);
        world.pass();
        world.tick(secs(5));
        // The reservation and the order, and no record of the order.
        world.disturbed_pass(&Chaos { crash_after: Some(2), ..Chaos::default() });
        assert_eq!(record(&world).state, StepState::Reserved);
        assert_eq!(world.did(), ["cordon", "order Reboot"]);
        world.tick(secs(5));
        if may_see {
            // The next leader sees the order that stands.
            world.pass();
            assert_eq!(record(&world).state, StepState::Started);
        }
        for _ in 0..30 {
            world.tick(secs(5));
        }
        world.run(secs(120));
        assert_eq!(world.did(), ["cordon", "order Reboot", "uncordon"]);
        assert_eq!((record(&world).state, world.nodes["n1"].boots.count), (StepState::Succeeded, 1));
    }
}

#[test]
fn a_node_that_has_booted_anew_before_the_order_is_not_told_to() {
    let mut world = sick(&[cordon(), reboot(), notify()]);
    world.pass();
    world.tick(secs(5));
    // Reserved and not ordered; then somebody else reboots it.
    world.disturbed_pass(&Chaos { crash_after: Some(1), ..Chaos::default() });
    assert_eq!(record(&world).state, StepState::Reserved);
    let node = world.node("n1");
    node.view.boot_id = Some("theirs".into());
    node.report.heartbeat.as_mut().unwrap().boot_id = "theirs".into();
    world.run(secs(900));
    assert!(!world.did().contains(&"order Reboot"), "{:?}", world.did());
    assert_eq!(record(&world).state, StepState::Failed, "it has booted, and the fault is still there");
}

#[test]
fn while_it_is_away_nothing_else_begins_on_the_node_and_the_evidence_of_then_counts_for_nothing() {
    let mut world = sick(&[cordon(), reboot(), notify()]);
    ordered(&mut world);
    for _ in 0..11 {
        world.tick(secs(5));
        let plan = world.pass();
        assert!(acts(&plan).is_empty(), "{plan:#?}");
        assert_eq!(plan.policies["p"].unhealthy, 1, "it is one of those that limits count");
        assert_eq!(record(&world).state, StepState::Started);
    }
    let faults = world.only_episode().faults.len();
    assert_eq!(faults, 1, "what shows while it is away is no new fault");
    // The Node shows the new boot before its probe does: that is no clean look.
    world.node("n1").view.boot_id = Some("boot-1".into());
    world.node("n1").sick.clear();
    world.node("n1").boots.away = None;
    for _ in 0..4 {
        world.tick(secs(5));
        world.pass();
        assert_eq!(record(&world).state, StepState::Verifying);
    }
    world.node("n1").report.heartbeat.as_mut().unwrap().boot_id = "boot-1".into();
    world.run(secs(60));
    assert_eq!(record(&world).state, StepState::Succeeded);
}

#[test]
fn one_that_does_not_boot_in_time_has_failed_and_is_not_told_again() {
    let mut world = sick(&[cordon(), reboot(), reboot(), notify()]);
    world.node("n1").boots.fails = true;
    world.run(secs(1200));
    assert_eq!(world.did(), ["cordon", "order Reboot", "notify", "uncordon"]);
    let failed = record(&world);
    assert_eq!(failed.state, StepState::TimedOut);
    assert!(failed.message.starts_with("node n1 has not booted anew within 600s: "), "{}", failed.message);
    assert_eq!(world.only_episode().faults[0].state, HealState::GivenUp);
}

#[test]
fn never_without_a_cordon_of_ours_nor_undrained_unless_the_policy_says_so() {
    // Without a cordon in the ladder, and under somebody else's.
    let mut world = sick(&[reboot(), notify()]);
    world.run(secs(120));
    assert_eq!(world.did(), ["notify"]);
    let mut world = sick(&[cordon(), reboot(), notify()]);
    world.node("n1").view.unschedulable = true;
    world.run(secs(120));
    assert!(!world.did().contains(&"order Reboot"), "{:?}", world.did());

    // A drain that did not come to its end is none; what the node cannot end is not waited for.
    let all_the_same = Action::Drain(Drain { even_if_runtime_hangs: true, ..Drain::default() });
    let ladder = [cordon(), Step { action: all_the_same, ..drain() }, drained_first(), notify()];
    let mut world = sick(&ladder);
    world.node("n1").workloads = vec![workload("web")];
    world.node("n1").workloads[0].budget = Some("web".into());
    world.run(secs(900));
    assert!(!world.did().contains(&"order Reboot"), "{:?}", world.did());
    let mut world = sick(&ladder);
    world.node("n1").workloads = vec![workload("web")];
    world.run(secs(900));
    assert_eq!(world.did(), ["cordon", "drain", "drain", "order Reboot", "uncordon"]);
    // Nor is one that is left out, since the node cannot end pods.
    let mut world = sick(&[cordon(), drain(), drained_first(), notify()]);
    world.run(secs(900));
    assert!(!world.did().contains(&"order Reboot"), "{:?}", world.did());
}

#[test]
fn not_while_the_boot_is_not_known_or_told_of_differently() {
    type Change = fn(&mut World);
    let cases: [Change; 3] = [
        |w| w.node("n1").view.boot_id = None,
        |w| w.node("n1").view.boot_id = Some("other".into()),
        |w| w.node("n1").report.heartbeat.as_mut().unwrap().boot_id = String::new(),
    ];
    for change in cases {
        let mut world = sick(&[cordon(), reboot(), notify()]);
        change(&mut world);
        let plan = world.plan();
        assert_eq!((acts(&plan), reasons(&plan)), (Vec::new(), vec![HoldReason::CannotAct]), "not even cordoned");
    }
}

#[test]
fn a_person_says_yes_to_the_reboot_of_one_boot() {
    let manual = Step { approval: ApprovalMode::Manual, ..reboot() };
    let mut world = sick(&[cordon(), manual, notify()]);
    for _ in 0..3 {
        world.pass();
        world.tick(secs(5));
    }
    assert_eq!(record(&world).state, StepState::AwaitingApproval);
    // It boots by other hands: what was asked for is not asked for any more.
    let node = world.node("n1");
    node.view.boot_id = Some("theirs".into());
    node.report.heartbeat.as_mut().unwrap().boot_id = "theirs".into();
    let operation = record(&world).operation_id;
    let name = world.only_episode().name.clone();
    let yes = Approval { by: "ann".into(), operation_id: operation };
    world.episodes.get_mut(&name).unwrap().approval = Some(yes);
    world.pass();
    assert_eq!(record(&world).state, StepState::Cancelled);
    assert!(!world.did().contains(&"order Reboot"));
}

#[test]
fn not_twice_within_an_hour_whoever_asks() {
    let mut world = sick(&[cordon(), reboot(), notify()]);
    world.run(secs(600));
    assert_eq!(world.nodes["n1"].boots.count, 1);
    world.tick(secs(60));
    let again = Fault { id: Fault::identity(FaultType::KubeletDown, "x"), ..fault(FaultType::KubeletDown, "x") };
    world.infect("n1", again, Cure::Reboot);
    let plan = world.plan();
    assert_eq!((acts(&plan), reasons(&plan)), (Vec::new(), vec![HoldReason::NodeLimit]));
    assert!(plan.held[0].message.contains("was rebooted, or told to, at"), "{}", plan.held[0].message);
}

#[test]
fn nodes_of_one_zone_are_rebooted_one_after_the_other() {
    let mut world = World::new(
        &[crate::samples::policy("p", &[crate::samples::rule("r", &FaultType::ALL, &[cordon(), reboot()])])],
        &["a", "b"],
    );
    let limit = TopologyLimit { key: "zone".into(), max_in_flight: Amount::Count(1) };
    world.policies[0].limits.per_topology = vec![limit];
    world.policies[0].limits.max_in_flight = Amount::Count(2);
    world.policies[0].limits.max_unhealthy = Amount::Count(2);
    world.policies[0].limits.storm.nodes = Amount::Count(50);
    for name in ["a", "b"] {
        world.infect(name, silent(), Cure::Reboot);
    }
    let mut most = 0;
    for _ in 0..120 {
        world.pass();
        world.tick(secs(5));
        most = most.max(world.nodes.values().filter(|node| node.boots.away.is_some()).count());
    }
    assert_eq!(most, 1, "both at a time");
    assert!(world.nodes.values().all(|node| node.boots.count == 1 && node.view.ready == Tri::True));
}

#[test]
fn what_only_another_fault_of_the_node_needs_is_not_rebooted_for() {
    for kind in FaultType::ALL {
        let mut world = World::sick(fault(kind, "it"), Cure::Nothing, &[cordon(), reboot()]);
        world.run(secs(60));
        let rebooted = world.did().contains(&"order Reboot");
        assert!(!rebooted || nrh::core::reboot::helps(kind).is_ok(), "{kind}");
    }
    // A process that is hung has to be named.
    let mut unnamed = hung("x");
    unnamed.target.process = None;
    let mut world = World::sick(unnamed, Cure::Nothing, &[cordon(), reboot()]);
    world.run(secs(60));
    assert!(world.did().is_empty(), "{:?}", world.did());
}
