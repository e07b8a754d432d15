//! Reboots: under our own cordon only, once for one boot, by the node's own agent, and judged by the boot id alone.

use nrh_core::command::{OutcomeReason, OutcomeState};
use nrh_core::fault::FaultType;
use nrh_core::plan::BlockReason;
use nrh_core::policy::{ActionType, Amount, History, Mode, Step, TopologyLimit};
use nrh_core::remediation::{ActionResult, Phase, Resolution, StepRecord, StepState, executed};
use nrh_core::snapshot::TriState;

use crate::samples::{
    asked, cordon, drain, drain_all_the_same, fault, hand_off, hung, mark_for_reboot, notify, plugin, reboot,
    reboot_drained, secs, silent,
};
use crate::world::{Change, Chaos, ClearedBy, World, acts, reasons, says};

/// A node whose runtime answers nothing until it boots anew.
pub fn sick(steps: &[Step]) -> World {
    World::sick(silent(), ClearedBy::Reboot, steps)
}

fn record(world: &World) -> StepRecord {
    let steps = &world.only_remediation().steps;
    steps.iter().find(|step| step.action == ActionType::Reboot).unwrap_or_else(|| panic!("none: {steps:#?}")).clone()
}

/// Somebody else reboots it.
fn reboot_by_hand(world: &mut World) {
    world.node("n1").view.boot_id = Some("theirs".into());
    world.heartbeat("n1").boot_id = "theirs".into();
}

/// Such a node, right after the command was given.
fn commanded(steps: &[Step]) -> World {
    let mut world = sick(steps);
    world.until(secs(100), "given its command", |world| world.did().contains(&"command Reboot"));
    world
}

#[test]
fn the_agent_that_comes_back_to_the_same_command_does_nothing() {
    let mut world = commanded(&[cordon(), reboot(), notify()]);
    // The controller is away; the command stands in the API all the while.
    world.without_controller(60, 5);
    assert_eq!(world.nodes["n1"].boots.count, 1, "it would boot again and again");
    assert!(world.nodes["n1"].command.is_some());
    world.run(secs(60));
    assert_eq!((world.phase(), world.nodes["n1"].boots.count), (Phase::Succeeded, 1));
    assert!(world.nodes["n1"].command.is_none());
}

#[test]
fn a_controller_that_dies_between_the_command_and_its_record_does_not_give_it_again() {
    for may_see in [true, false] {
        let mut world = sick(&[cordon(), reboot(), notify()]).passed(1);
        world.tick(secs(5));
        // The reservation and the command, and no record of the command.
        world.disturbed_pass(&Chaos { crash_after: Some(2), ..Chaos::default() });
        assert_eq!(record(&world).state, StepState::Scheduled);
        assert_eq!(world.did(), ["cordon", "command Reboot"]);
        world.tick(secs(5));
        if may_see {
            // The next leader sees the command that stands.
            world.pass();
            assert_eq!(record(&world).state, StepState::Started);
        }
        world.without_controller(30, 5);
        world.run(secs(120));
        assert_eq!(world.did(), ["cordon", "command Reboot", "uncordon"]);
        assert_eq!((record(&world).state, world.nodes["n1"].boots.count), (StepState::Succeeded, 1));
    }
}

#[test]
fn a_node_that_has_booted_anew_before_the_command_is_not_told_to() {
    let mut world = sick(&[cordon(), reboot(), notify()]).passed(1);
    world.tick(secs(5));
    // Scheduled and not commanded; then somebody else reboots it.
    world.disturbed_pass(&Chaos { crash_after: Some(1), ..Chaos::default() });
    assert_eq!(record(&world).state, StepState::Scheduled);
    reboot_by_hand(&mut world);
    world.run(secs(900));
    assert!(!world.did().contains(&"command Reboot"), "{:?}", world.did());
    assert_eq!(record(&world).state, StepState::Failed, "it has booted, and the fault is still there");
}

/// Told in medik8s/node-healthcheck-operator #274.
#[test]
fn while_it_is_away_nothing_else_begins_on_the_node_and_the_evidence_of_then_counts_for_nothing() {
    let mut world = commanded(&[cordon(), reboot(), notify()]);
    for _ in 0..11 {
        let plan = world.pass_after(5);
        assert!(acts(&plan).is_empty(), "{plan:#?}");
        assert_eq!(plan.policies["p"].unhealthy, 1, "it is one of those that limits count");
        assert_eq!(record(&world).state, StepState::Started);
    }
    let faults = world.only_remediation().faults.len();
    assert_eq!(faults, 1, "what shows while it is away is no new fault");
    // The Node shows the new boot before its probe does: that is no clean check.
    world.node("n1").view.boot_id = Some("boot-1".into());
    world.node("n1").sick.clear();
    world.node("n1").boots.away = None;
    for _ in 0..4 {
        world.pass_after(5);
        assert_eq!(record(&world).state, StepState::Verifying);
    }
    world.heartbeat("n1").boot_id = "boot-1".into();
    world.run(secs(60));
    assert_eq!(record(&world).state, StepState::Succeeded);
}

/// Told in NVIDIA/NVSentinel #1808 and medik8s/self-node-remediation #258.
#[test]
fn one_that_does_not_boot_in_time_has_failed_and_is_not_told_again() {
    let mut world = sick(&[cordon(), reboot(), reboot(), notify()]);
    world.node("n1").boots.fails = true;
    world.run(secs(3600));
    assert_eq!(world.did(), ["cordon", "command Reboot", "notify", "uncordon"]);
    let failed = record(&world);
    assert_eq!(failed.state, StepState::TimedOut);
    assert!(failed.message.starts_with("node n1 has not rebooted within 600s: "), "{}", failed.message);
    assert_eq!(world.only_remediation().faults[0].state, Resolution::Exhausted);
}

/// Passes until the step is at its end, and the time that took.
fn timed_out(world: &mut World) -> u64 {
    world.until(secs(5_000), "at its end", |world| record(world).state == StepState::TimedOut)
}

/// Passes for so many seconds; whether the node was cordoned all the while.
fn stays_cordoned(world: &mut World, seconds: u64) -> bool {
    for _ in 0..seconds / 5 {
        world.pass();
        if !world.is_cordoned() {
            return false;
        }
        world.tick(secs(5));
    }
    true
}

#[test]
fn a_node_that_was_told_and_did_not_go_down_in_time_stays_closed_for_as_long_as_it_may_do_so() {
    let mut world = commanded(&[cordon(), reboot(), notify()]);
    world.node("n1").boots.fails = true;
    let gone = timed_out(&mut world);
    assert!(stays_cordoned(&mut world.clone(), 2_350 - gone), "told, and still up in the same boot");
    world.pass();
    let plan = world.pass_after(5);
    assert!(plan.nodes["n1"].activity.contains("may still reboot: remediation n1-"), "{:?}", plan.blocked);
    assert!(reasons(&plan).contains(&BlockReason::InProgress), "{:?}", plan.blocked);
    // Down it goes, much later: nobody had opened it, and the new boot opens it.
    let mut late = world.clone();
    late.node("n1").boots.fails = false;
    late.node("n1").boots.away = Some(12);
    late.run(secs(120));
    assert!(!late.is_cordoned() && late.nodes["n1"].boots.count == 1);
    world.run(secs(2_450 - gone));
    assert!(!world.is_cordoned(), "the wait has an end: {:?}", world.only_remediation());
    assert_eq!((world.did(), world.phase()), (vec!["cordon", "command Reboot", "notify", "uncordon"], Phase::Failed));
}

#[test]
fn a_command_that_was_not_begun_in_time_keeps_no_node_closed_once_a_check_shows_the_same_boot() {
    let mut world = unheard(&[cordon(), reboot(), notify()]);
    // Nobody can check: it may be on its way.
    let gone = timed_out(&mut world);
    assert!(stays_cordoned(&mut world.clone(), 2_300 - gone));
    world.clone().run(secs(2_500 - gone));
    // The node of a runtime that does not answer is not Ready as a rule, and proves nothing then.
    world.node("n1").probe_runs = true;
    world.node("n1").view.ready = TriState::False;
    assert!(stays_cordoned(&mut world.clone(), 600));
    world.node("n1").view.ready = TriState::True;
    world.run(secs(60));
    assert_eq!((world.is_cordoned(), world.phase()), (false, Phase::Failed));
}

/// A probe that was cut off right after it read the command has the command's whole time from then on.
#[test]
fn a_node_in_the_same_boot_stays_closed_for_as_long_as_its_probe_may_begin_the_reboot() {
    let mut world = unheard(&[cordon(), reboot(), notify()]);
    world.policies.clear();
    assert!(stays_cordoned(&mut world, 200));
    world.node("n1").probe_runs = true;
    assert!(stays_cordoned(&mut world, 80));
    world.run(secs(60));
    assert_eq!((world.is_cordoned(), world.phase()), (false, Phase::Cancelled));
}

#[test]
fn a_policy_that_is_deleted_in_mid_boot_opens_no_node_that_is_about_to_go_down() {
    let mut world = commanded(&[cordon(), reboot(), notify()]);
    world.node("n1").boots.away = Some(100);
    world.policies.clear();
    assert!(stays_cordoned(&mut world, 480));
    assert_eq!(world.phase(), Phase::Cancelled);
    world.run(secs(120));
    assert_eq!((world.is_cordoned(), world.nodes["n1"].boots.count), (false, 1), "its new boot is known");
    // One that never comes back is opened all the same in the end.
    let mut world = commanded(&[cordon(), reboot(), notify()]);
    world.node("n1").boots.away = Some(10_000);
    world.policies.clear();
    assert!(stays_cordoned(&mut world, 2_300));
    world.run(secs(200));
    assert!(!world.is_cordoned() && !world.only_remediation().is_open());
}

#[test]
fn a_reboot_to_which_nobody_has_agreed_keeps_no_node_closed() {
    let mut world = sick(&[cordon(), asked(reboot()), notify()]);
    world.live(3, 5);
    assert_eq!((record(&world).state, world.is_cordoned()), (StepState::AwaitingApproval, true));
    world.policies[0].suspend = true;
    world.run(secs(20));
    assert_eq!((record(&world).state, world.is_cordoned()), (StepState::Cancelled, false));
}

#[test]
fn a_person_who_opens_a_node_that_may_go_down_has_the_last_word() {
    let mut world = commanded(&[cordon(), reboot(), notify()]);
    world.node("n1").boots.fails = true;
    timed_out(&mut world);
    world.run(secs(30));
    assert!(world.is_cordoned() && world.only_remediation().is_open());
    world.node("n1").view.unschedulable = false;
    world.run(secs(90));
    assert!(!world.is_cordoned() && world.only_remediation().is_open(), "its slot is kept: it may go down");
    world.run(secs(2_400));
    assert!(!world.is_cordoned() && !world.only_remediation().is_open(), "{:?}", world.only_remediation());
}

#[test]
fn never_without_a_cordon_of_ours_nor_undrained_unless_the_policy_says_so() {
    // Without a cordon among the steps, and under somebody else's.
    let world = sick(&[reboot(), notify()]).ran(120);
    assert_eq!(world.did(), ["notify"]);
    let mut world = sick(&[cordon(), reboot(), notify()]);
    world.node("n1").view.unschedulable = true;
    world.run(secs(120));
    assert!(!world.did().contains(&"command Reboot"), "{:?}", world.did());
    let left_out = record(&world);
    assert_eq!(left_out.state, StepState::Refused);
    assert_eq!(left_out.message, "skipped: node n1 is not cordoned by this remediation");

    // A drain that did not come to its end is none, nor is one that is left out, since the node cannot end pods. What the node
    // cannot end is not waited for, and what it can is.
    let all_the_same = drain_all_the_same();
    let after = |rounds| Some([vec!["cordon"], vec!["drain"; rounds], vec!["command Reboot", "uncordon"]].concat());
    for (fault, drain, budget, expected) in [
        (silent(), &all_the_same, Some("web"), None),
        (silent(), &all_the_same, None, after(2)),
        (silent(), &drain(), None, None),
        (plugin(), &drain(), None, after(3)),
    ] {
        let steps = [cordon(), drain.clone(), reboot_drained(), notify()];
        let mut world = World::sick(fault, ClearedBy::Reboot, &steps).with_pods(1);
        world.node("n1").workloads[0].budget = budget.map(str::to_owned);
        world.run(secs(900));
        match expected {
            Some(did) => assert_eq!(world.did(), did),
            None => assert!(!world.did().contains(&"command Reboot"), "{:?}", world.did()),
        }
    }
}

#[test]
fn neither_rebooted_nor_marked_while_the_boot_is_not_known_or_reported_differently() {
    let long = "a".repeat(65);
    // What the Node shows, and what the probe says.
    let cases = [
        (None, "boot-0"),
        (Some("other"), "boot-0"),
        (Some("boot-0"), ""),
        (Some(""), ""),
        (Some("a b"), "a b"),
        (Some("a\u{7}"), "a\u{7}"),
        (Some(&long), &long),
        (Some("ä"), "ä"),
    ];
    for step in [reboot(), mark_for_reboot()] {
        for (shown, said) in cases {
            let mut world = sick(&[cordon(), step.clone(), notify()]);
            let node = world.node("n1");
            node.view.boot_id = shown.map(str::to_owned);
            node.report.heartbeat.as_mut().unwrap().boot_id = said.to_owned();
            let plan = world.plan();
            let expected = (Vec::new(), vec![BlockReason::ActionsDisabled]);
            assert_eq!((acts(&plan), reasons(&plan)), expected, "not even cordoned: {shown:?}, {said:?}");
        }
    }
}

#[test]
fn a_person_says_yes_to_the_reboot_of_one_boot() {
    let mut world = sick(&[cordon(), asked(reboot()), notify()]);
    world.live(3, 5);
    assert_eq!(record(&world).state, StepState::AwaitingApproval);
    // It boots by other hands: what was asked for is not asked for any more.
    reboot_by_hand(&mut world);
    world.approve("n1", "ann").unwrap();
    world.pass();
    assert_eq!(record(&world).state, StepState::Cancelled);
    assert!(!world.did().contains(&"command Reboot"));
}

#[test]
fn not_twice_within_an_hour_whoever_asks_and_whatever_becomes_of_the_node_object() {
    for is_made_anew in [false, true] {
        let mut world = sick(&[cordon(), reboot(), notify()]).ran(600);
        assert_eq!(world.nodes["n1"].boots.count, 1);
        if is_made_anew {
            let node = world.node("n1");
            node.view.uid = "made anew".into();
            node.report.node_uid = Some("made anew".into());
            world.inject("n1", silent(), ClearedBy::Reboot);
        } else {
            world.tick(secs(60));
            world.inject("n1", fault(FaultType::KubeletDown, "x"), ClearedBy::Reboot);
        }
        let plan = world.plan();
        assert_eq!((acts(&plan), reasons(&plan)), (Vec::new(), vec![BlockReason::NodeLimit]), "{is_made_anew}");
        says(&plan.blocked[0].message, "was rebooted, or commanded to reboot, at");
    }
}

#[test]
fn nodes_of_one_zone_are_rebooted_one_after_the_other() {
    let mut world = World::under(&[cordon(), reboot()], &["a", "b"]);
    let limits = &mut world.policies[0].limits;
    limits.per_topology = vec![TopologyLimit { key: "zone".into(), max_in_flight: Amount::Count(1) }];
    (limits.max_in_flight, limits.max_unhealthy) = (Amount::Count(2), Amount::Count(2));
    limits.storm.min_nodes = Amount::Count(50);
    world.inject_all(&["a", "b"], &silent(), ClearedBy::Reboot);
    let mut most = 0;
    for _ in 0..120 {
        world.pass();
        world.tick(secs(5));
        most = most.max(world.nodes.values().filter(|node| node.boots.away.is_some()).count());
    }
    assert_eq!(most, 1, "both at a time");
    assert!(world.nodes.values().all(|node| node.boots.count == 1 && node.view.ready == TriState::True));
}

#[test]
fn what_only_another_fault_of_the_node_needs_is_not_rebooted_for() {
    for kind in FaultType::ALL {
        let world = World::sick(fault(kind, "it"), None, &[cordon(), reboot()]).ran(60);
        let rebooted = world.did().contains(&"command Reboot");
        assert!(!rebooted || kind.spec().remedy.new_boot.is_ok(), "{kind}");
    }
    // A process that is hung has to be named.
    let mut unnamed = hung("x");
    unnamed.target.process = None;
    let world = World::sick(unnamed, None, &[cordon(), reboot()]).ran(60);
    assert!(world.did().is_empty(), "{:?}", world.did());
}

/// A node whose probe cannot be reached right after the command was written.
fn unheard(steps: &[Step]) -> World {
    let mut world = sick(steps).passed(1);
    world.pass_after(5);
    if world.approve("n1", "ann").is_some() {
        world.pass();
    }
    assert_eq!(world.did(), ["cordon", "command Reboot"]);
    world.node("n1").probe_runs = false;
    world.pass_after(5);
    assert!(world.nodes["n1"].command.is_some(), "the node has not refused it, and may still begin it");
    world
}

#[test]
fn a_command_that_nobody_has_heard_is_taken_back_when_somebody_says_no_or_its_time_is_over() {
    let cases: [(&'static str, Change); 6] = [
        ("policy suspended", |w| w.policies[0].suspend = true),
        ("node suspended", |w| w.node("n1").report.suspended = Some("looked at".into())),
        ("exclusion", |w| w.node("n1").view.exclusions = vec!["label".into()]),
        ("approval withdrawn", |w| w.remediations.values_mut().for_each(|remediation| remediation.approval = None)),
        ("another step in its place", |w| w.policies[0].rules[0].steps[1] = notify()),
        ("its time is over", |w| w.wait(25, 5)),
    ];
    for (name, no) in cases {
        let mut world = unheard(&[cordon(), asked(reboot()), notify()]);
        no(&mut world);
        world.pass_after(5);
        assert!(world.nodes["n1"].command.is_none(), "{name}: it would be carried out much later");
        assert_eq!(record(&world).state, StepState::Started, "{name}: whether it was, the next boot id tells");
        world.node("n1").probe_runs = true;
        world.run(secs(2400));
        assert_eq!((world.nodes["n1"].boots.count, record(&world).state), (0, StepState::TimedOut), "{name}");
    }
}

#[test]
fn what_was_answered_does_not_stand_any_longer_and_is_not_taken_back_by_who_has_forgotten_it() {
    let mut world = commanded(&[cordon(), reboot(), notify()]);
    world.node("n1").boots.fails = true;
    world.pass_after(5);
    assert_eq!(record(&world).reason, Some(OutcomeReason::Executed));
    assert!(world.nodes["n1"].command.is_none());
    // The claims are lost in the same boot, and the command is read once more.
    for (state, reason) in [
        (OutcomeState::Refused, OutcomeReason::CheckFailed),
        (OutcomeState::Refused, OutcomeReason::Protected),
        (OutcomeState::Failed, OutcomeReason::RequestFailed),
    ] {
        world.probe_answers(state, reason, "another word");
        world.pass();
        let step = record(&world);
        assert_eq!((step.state, step.reason), (StepState::Started, Some(OutcomeReason::Executed)), "{reason:?}");
    }
}

/// Told in NVIDIA/NVSentinel #1543.
#[test]
fn one_that_has_not_helped_is_not_repeated_before_a_day_is_over_however_short_the_history_is() {
    let mut world = World::sick(silent(), None, &[cordon(), reboot()]);
    world.policies[0].history = History { limit: 1, ttl: secs(60) };
    let mut commanded = Vec::new();
    for passed in 0..(26 * 60) {
        world.pass();
        if world.times("command Reboot") > commanded.len() {
            commanded.push(passed);
        }
        world.tick(secs(60));
    }
    assert_eq!(commanded.len(), 2, "{commanded:?}");
    assert!(commanded[1] - commanded[0] >= 24 * 60, "{commanded:?}");
}

#[test]
fn a_call_that_the_api_server_refuses_is_no_reboot() {
    let mut world = sick(&[cordon(), reboot(), notify()]).passed(1);
    world.tick(secs(5));
    world.disturbed_pass(&Chaos { crash_after: Some(1), ..Chaos::default() });
    let (name, operation) = (world.only_remediation().name.clone(), record(&world).operation_id);
    let refused = ActionResult::Failed { message: "no right".into() };
    let next = executed(world.only_remediation(), &operation, refused, world.now);
    world.remediations.insert(name, next);
    world.run(secs(600));
    assert_eq!(world.did(), ["cordon", "command Reboot", "uncordon"], "it costs no attempt");
    assert_eq!(world.nodes["n1"].boots.count, 1);
}

#[test]
fn a_machine_that_boots_is_waited_for_although_the_policy_does_not_name_the_step_any_more() {
    let mut world = commanded(&[cordon(), reboot(), hand_off("Fix"), notify()]);
    world.pass_after(5);
    world.policies[0].rules[0].steps[1].mode = Mode::DryRun;
    world.node("n1").boots.away = Some(1000);
    for _ in 0..(19 * 12) {
        world.pass();
        assert_eq!(record(&world).state, StepState::Started);
        world.tick(secs(5));
    }
    world.node("n1").boots.away = Some(0);
    world.run(secs(60));
    assert_eq!(record(&world).state, StepState::Succeeded);
}
