//! Marks for a reboot by another tool: without a cordon of ours, for one boot, and taken back as long as nobody has begun.

use nrh_core::action::MarkForReboot;
use nrh_core::command::{OutcomeReason, OutcomeState};
use nrh_core::fault::{Fault, FaultType};
use nrh_core::plan::BlockReason;
use nrh_core::policy::{Action, ActionType, Step};
use nrh_core::remediation::{Phase, Resolution, StepRecord, StepState};
use nrh_core::snapshot::{SHUTTING_DOWN, TriState};
use nrh_core::window::{Window, WindowType};
use nrh_simulate::world::Kured;

use crate::reboots::sick;
use crate::samples::{asked, cordon, fault, mark_for_reboot, notify, reboot, secs, silent};
use crate::world::{Change, Chaos, ClearedBy, World, acts, command, reasons, says};

fn record(world: &World) -> StepRecord {
    let steps = &world.only_remediation().steps;
    let is_it = |step: &&StepRecord| step.action == ActionType::MarkForReboot;
    steps.iter().find(is_it).unwrap_or_else(|| panic!("none: {steps:#?}")).clone()
}

fn is_marked(world: &World) -> bool {
    world.nodes["n1"].boots.marked.is_some()
}

/// A node that carries the mark, and a kured that waits.
fn marked(steps: &[Step]) -> World {
    let mut world = sick(steps);
    world.node("n1").boots.kured = Kured::Waits;
    world.pass();
    if world.approve("n1", "ann").is_some() {
        world.pass();
    }
    world.pass_after(5);
    assert!(is_marked(&world) && record(&world).reason == Some(OutcomeReason::Executed), "{:?}", record(&world));
    world
}

#[test]
fn a_marked_node_is_rebooted_by_the_other_tool_and_judged_by_its_new_boot() {
    let world = sick(&[mark_for_reboot(), notify()]).ran(900);
    assert_eq!(world.did(), ["command MarkForReboot"], "no cordon, no drain and no reboot of ours");
    let done = record(&world);
    assert_eq!((done.state, done.boot_id.as_deref()), (StepState::Succeeded, Some("boot-0")));
    assert!(done.message.contains("its boot id was boot-0 and is boot-1; the fault is gone"), "{}", done.message);
    assert_eq!(world.phase(), Phase::Succeeded);
    let node = &world.nodes["n1"];
    assert!(node.boots.count == 1 && !node.view.unschedulable && node.command.is_none() && !is_marked(&world));
}

#[test]
fn the_command_names_the_file_the_boot_and_for_how_long() {
    let path = "/run/kured-reboot".to_owned();
    let mark = Step { action: Action::MarkForReboot(MarkForReboot { path: path.clone() }), ..mark_for_reboot() };
    let world = sick(&[mark]);
    let plan = world.plan();
    let command = command(&plan).unwrap();
    assert_eq!((command.action.kind(), command.boot_id.as_deref()), (ActionType::MarkForReboot, Some("boot-0")));
    assert_eq!(command.action, Action::MarkForReboot(MarkForReboot { path }));
    assert_eq!(command.marker_expires_after_seconds, Some(3600));
}

#[test]
fn the_command_stands_as_long_as_the_mark_is_wanted_and_waits_for_hours() {
    let mut world = marked(&[mark_for_reboot(), notify()]);
    for _ in 0..(50 * 12) {
        let plan = world.pass_after(5);
        assert!(acts(&plan).is_empty(), "{plan:#?}");
        assert!(is_marked(&world) && world.nodes["n1"].command.is_some());
        assert_eq!(plan.policies["p"].unhealthy, 1);
    }
    // A controller that dies, and the next one, change nothing.
    world.epoch += 1;
    world.disturbed_pass(&Chaos { crash_after: Some(0), ..Chaos::default() });
    world.node("n1").boots.kured = Kured::Works;
    world.run(secs(400));
    assert_eq!((record(&world).state, world.nodes["n1"].boots.count), (StepState::Succeeded, 1));
}

#[test]
fn a_mark_that_is_not_wanted_any_more_is_taken_back() {
    let cases: [(&'static str, Change, &'static str); 8] = [
        ("policy suspended", |w| w.policies[0].suspend = true, "policy p is suspended"),
        ("node suspended", |w| w.node("n1").report.suspended = Some("looked at".into()), "is suspended"),
        ("exclusion", |w| w.node("n1").view.exclusions = vec!["label".into()], "is excluded: label"),
        (
            "approval withdrawn",
            |w| w.remediations.values_mut().for_each(|e| e.approval = None),
            "approval was withdrawn",
        ),
        ("another step in its place", |w| w.policies[0].rules[0].steps[0] = notify(), "another step in its place"),
        (
            "another file",
            |w| {
                let path = "/run/other-reboot".to_owned();
                w.policies[0].rules[0].steps[0].action = Action::MarkForReboot(MarkForReboot { path });
            },
            "another step in its place",
        ),
        ("the policy is gone", |w| w.policies.clear(), "policy p is gone"),
        ("healed", |w| w.node("n1").sick.clear(), "the fault was gone before the node rebooted"),
    ];
    for (name, no, said) in cases {
        let mut world = marked(&[asked(mark_for_reboot()), notify()]);
        no(&mut world);
        world.wait(3, 5);
        world.tick(secs(5));
        assert!(!is_marked(&world) && world.nodes["n1"].command.is_none(), "{name}");
        let record = record(&world);
        assert_eq!(record.state, StepState::Cancelled, "{name}");
        assert!(record.message.contains(said), "{name}: {}", record.message);
        world.node("n1").boots.kured = Kured::Works;
        world.run(secs(600));
        assert_eq!(world.nodes["n1"].boots.count, 0, "{name}");
    }
}

#[test]
fn a_mark_is_taken_back_when_nobody_has_rebooted_the_node_in_time_and_a_timeout_that_was_raised_since_changes_nothing()
{
    for timeout in [secs(3_600), secs(86_400)] {
        let mut world = marked(&[mark_for_reboot(), notify()]);
        world.policies[0].rules[0].steps[0].timeout = timeout;
        world.run(secs(3600));
        let failed = record(&world);
        assert_eq!(failed.state, StepState::TimedOut);
        assert!(failed.message.starts_with("nobody has booted node n1 anew within 3600s: "), "{}", failed.message);
        world.run(secs(60));
        assert!(!is_marked(&world));
        assert_eq!(world.did(), ["command MarkForReboot", "notify"]);
        assert_eq!(world.only_remediation().faults[0].state, Resolution::Exhausted);
    }
}

#[test]
fn without_a_controller_the_node_takes_it_away_by_itself() {
    let mut world = marked(&[mark_for_reboot(), notify()]);
    world.without_controller(61, 60);
    assert!(!is_marked(&world) && world.nodes["n1"].command.is_some());
    // The agent has its answer already: what still stands in the API starts nothing.
    world.run(secs(120));
    assert_eq!((record(&world).state, world.nodes["n1"].boots.count), (StepState::TimedOut, 0));
}

#[test]
fn a_command_that_nobody_has_heard_is_taken_back_and_not_awaited() {
    let mut world = sick(&[mark_for_reboot(), notify()]).passed(1);
    world.node("n1").probe_runs = false;
    world.tick(secs(5));
    world.live(26, 5);
    assert!(world.nodes["n1"].command.is_none(), "it would be carried out much later");
    world.live(14, 5);
    assert_eq!(record(&world).state, StepState::TimedOut);
    assert!(record(&world).message.contains("did not say in time"), "{}", record(&world).message);
    world.node("n1").probe_runs = true;
    world.run(secs(300));
    assert!(!is_marked(&world));
}

#[test]
fn where_somebody_else_asks_for_the_same_the_boot_is_awaited_all_the_same() {
    let mut world = sick(&[mark_for_reboot(), notify()]);
    world.node("n1").boots.kured = Kured::Waits;
    world.pass();
    for (reason, state) in
        [(OutcomeReason::AlreadyRequested, OutcomeState::Done), (OutcomeReason::AlreadyExecuted, OutcomeState::Refused)]
    {
        world.probe_answers(state, reason, &format!("{reason:?} is said"));
        world.pass_after(5);
        let record = record(&world);
        // The second says nothing that is not known, and is kept for what it says all the same.
        assert_eq!((record.state, record.reason), (StepState::Started, Some(reason)));
        assert_eq!(record.message, format!("{reason:?} is said"));
    }
    // It was rebooted for the other's file.
    world.node("n1").boots.away = Some(3);
    world.run(secs(120));
    assert_eq!(record(&world).state, StepState::Succeeded);
}

#[test]
fn only_for_what_a_boot_ends_and_not_while_nobody_knows_how_the_node_is() {
    let mut world = sick(&[mark_for_reboot(), notify()]);
    world.node("n1").view.ready = TriState::Unknown;
    let plan = world.plan();
    assert_eq!((acts(&plan), reasons(&plan)), (Vec::new(), vec![BlockReason::ActionsDisabled]));
    for kind in FaultType::ALL {
        let world = World::sick(fault(kind, "it"), None, &[mark_for_reboot()]).ran(60);
        let marked = world.did().contains(&"command MarkForReboot");
        assert!(!marked || (mark_for_reboot().action.traits().addresses)(kind).is_ok(), "{kind}");
    }
}

#[test]
fn one_reboot_in_a_remediation_by_whatever_hand() {
    for (first, second) in [(mark_for_reboot(), reboot()), (reboot(), mark_for_reboot())] {
        let steps = [cordon(), first, second, notify()];
        let world = World::sick(silent(), None, &steps).ran(7200);
        let asked = world.did().iter().filter(|what| what.starts_with("command ")).count();
        assert_eq!((asked, world.nodes["n1"].boots.count), (1, 1), "{:?}", world.did());
    }
}

#[test]
fn the_hour_until_the_next_one_runs_from_the_boot_on() {
    let mut world = marked(&[mark_for_reboot(), notify()]).ran(3000);
    world.node("n1").boots.kured = Kured::Works;
    world.run(secs(300));
    assert_eq!(record(&world).state, StepState::Succeeded);
    world.tick(secs(1800));
    world.inject("n1", fault(FaultType::RuntimeListHung, "x"), ClearedBy::Reboot);
    let plan = world.plan();
    assert_eq!((acts(&plan), reasons(&plan)), (Vec::new(), vec![BlockReason::NodeLimit]));
}

#[test]
fn a_mark_that_cannot_be_made_is_not_waited_for_as_long_as_one_may_stand() {
    let mut world = sick(&[cordon(), mark_for_reboot(), notify()]).passed(1);
    world.node("n1").view.ready = TriState::Unknown;
    world.run(secs(1000));
    assert_eq!(world.did(), ["cordon", "notify", "uncordon"]);
    says(&record(&world).message, "blocked for too long: node n1 is not marked for a reboot");
}

#[test]
fn a_cordon_of_ours_is_kept_by_the_other_tool_and_ends_with_the_remediation() {
    let world = sick(&[cordon(), mark_for_reboot(), notify()]).ran(900);
    assert_eq!(world.did(), ["cordon", "command MarkForReboot", "uncordon"]);
    assert_eq!(world.phase(), Phase::Succeeded);
    // Where it opens the node all the same, that is somebody's word, and the mark goes with the remediation.
    let mut world = cordoned_and_marked();
    world.node("n1").view.unschedulable = false;
    world.run(secs(120));
    assert!(!is_marked(&world));
    assert_eq!(world.phase(), Phase::Cancelled);
}

#[test]
fn a_mark_for_which_nobody_can_drain_the_node_makes_room() {
    let mut down = marked(&[mark_for_reboot(), notify()]);
    let kubelet = fault(FaultType::KubeletDown, "kubelet");
    down.inject("n1", Fault { duration_seconds: 200, ..kubelet.clone() }, None);
    let mut unknown = marked(&[mark_for_reboot(), notify()]);
    unknown.node("n1").view.ready = TriState::Unknown;
    unknown.node("n1").view.ready_since = Some(unknown.now);
    for world in [&mut down, &mut unknown] {
        pass_for(world, 60);
        assert!(is_marked(world) && record(world).state == StepState::Started, "it may be going down just now");
    }
    down.node("n1").sick.retain(|sick| sick.fault.kind != FaultType::KubeletDown);
    down.inject("n1", Fault { duration_seconds: 300, ..kubelet }, None);
    for (mut world, said) in [(down, "its kubelet is down"), (unknown, "whether it is Ready is Unknown")] {
        pass_for(&mut world, 300);
        let ended = record(&world);
        assert_eq!((ended.state, is_marked(&world)), (StepState::Cancelled, false), "{said}: {ended:?}");
        assert!(ended.message.contains(said), "{}", ended.message);
    }
}

#[test]
fn a_mark_does_not_outlast_the_window_in_which_it_was_made() {
    // These worlds begin at one o'clock.
    let actions = [ActionType::MarkForReboot].into_iter().collect();
    let deny = Window::new(WindowType::Deny, "0 2 * * *", secs(3600), "UTC", actions).unwrap();
    let mut world = marked(&[Step { timeout: secs(14_400), ..mark_for_reboot() }, notify()]);
    world.policies[0].windows = vec![deny];
    pass_for(&mut world, 3000);
    assert!(is_marked(&world) && record(&world).state == StepState::Started);
    let mut begun = world.clone();
    begun.node("n1").view.exclusions = vec![SHUTTING_DOWN[0].to_owned()];
    pass_for(&mut world, 700);
    let ended = record(&world);
    assert_eq!((ended.state, is_marked(&world)), (StepState::Cancelled, false), "{ended:?}");
    assert!(ended.message.starts_with("the mark was taken back, since nobody"), "{}", ended.message);
    pass_for(&mut begun, 700);
    let state = record(&begun).state;
    assert_eq!(state, StepState::Started, "its drain has begun, and its boot is to be known for what it is");
}

#[test]
fn where_no_probe_is_left_to_remove_the_mark_the_step_says_so() {
    let mut world = marked(&[mark_for_reboot(), notify()]);
    world.node("n1").probe_runs = false;
    pass_for(&mut world, 1800);
    world.policies[0].suspend = true;
    pass_for(&mut world, 10);
    let ended = record(&world);
    assert_eq!(ended.state, StepState::Cancelled);
    assert!(ended.message.contains("remove /run/reboot-required"), "{}", ended.message);
}

#[test]
fn the_mark_of_a_remediation_that_is_deleted_goes() {
    let mut world = marked(&[mark_for_reboot(), notify()]);
    world.delete_remediations();
    pass_for(&mut world, 30);
    assert!(!is_marked(&world) && world.nodes["n1"].command.is_none());
}

/// The same as `marked` with a cordon of ours before it.
fn cordoned_and_marked() -> World {
    let mut world = sick(&[cordon(), mark_for_reboot(), notify()]);
    world.node("n1").boots.kured = Kured::Waits;
    world.live(4, 5);
    assert!(is_marked(&world) && world.is_cordoned());
    world
}

/// Passes for so many seconds, also when nothing is left to do.
fn pass_for(world: &mut World, seconds: u64) {
    world.live(seconds / 5, 5);
}

/// It goes down and comes back, by whatever hand.
fn boot(world: &mut World) {
    let before = world.nodes["n1"].boots.count;
    world.node("n1").boots.away = Some(3);
    world.without_controller(6, 5);
    assert_eq!(world.nodes["n1"].boots.count, before + 1);
}

#[test]
fn a_mark_whose_command_is_gone_is_not_awaited() {
    // Gone with the NodeCommand, which was made anew.
    let mut vanished = marked(&[mark_for_reboot(), notify()]);
    vanished.node("n1").command = None;
    // Taken back while the answer was on its way.
    let mut late = sick(&[mark_for_reboot(), notify()]).passed(1);
    late.node("n1").command = None;
    late.probe_answers(OutcomeState::Done, OutcomeReason::Executed, "it was there");
    for mut world in [vanished, late] {
        world.pass_after(5);
        assert_eq!((record(&world).state, is_marked(&world)), (StepState::Started, false), "a cache may be behind");
        let lag = world.settings.cache_lag.as_secs();
        pass_for(&mut world, lag + 20);
        let ended = record(&world);
        assert_eq!(ended.state, StepState::Cancelled);
        assert!(ended.message.starts_with("its command was withdrawn"), "{}", ended.message);
        assert!(world.did().contains(&"notify"), "{:?}", world.did());
    }
}

#[test]
fn a_boot_that_comes_after_the_mark_was_taken_back_is_remembered_for_a_day() {
    let mut world = marked(&[mark_for_reboot(), notify()]);
    world.node("n1").sick.clear();
    world.run(secs(60));
    assert_eq!((record(&world).state, world.phase()), (StepState::Cancelled, Phase::Succeeded));
    let mut unbooted = world.clone();
    boot(&mut world);
    for world in [&mut world, &mut unbooted] {
        world.tick(secs(7200));
        world.inject("n1", silent(), None);
    }
    assert_eq!(acts(&unbooted.plan()).len(), 1, "nobody came to it");
    let plan = world.plan();
    assert_eq!((acts(&plan), reasons(&plan)), (Vec::new(), vec![BlockReason::NodeLimit]));
    assert!(plan.blocked[0].message.contains("which did not help"), "{}", plan.blocked[0].message);
    world.tick(secs(86_400));
    assert_eq!(acts(&world.plan()).len(), 1);
}

#[test]
fn the_drain_and_the_shutdown_that_a_mark_asks_for_do_not_take_it_back() {
    let exclusions: Vec<String> = SHUTTING_DOWN.iter().map(|&one| one.to_owned()).collect();
    let mut world = marked(&[mark_for_reboot(), notify()]);
    world.node("n1").view.exclusions.clone_from(&exclusions);
    pass_for(&mut world, 300);
    assert!(is_marked(&world) && record(&world).state == StepState::Started, "{:?}", record(&world));
    let mut other = world.clone();
    other.node("n1").view.exclusions.push("label".into());
    pass_for(&mut other, 20);
    assert_eq!((record(&other).state, is_marked(&other)), (StepState::Cancelled, false));
    boot(&mut world);
    world.node("n1").view.exclusions.clear();
    world.run(secs(120));
    assert_eq!(record(&world).state, StepState::Succeeded);
}

#[test]
fn a_node_is_not_opened_under_the_drain_of_who_has_found_the_mark() {
    let ends: [Change; 2] = [|w| w.node("n1").sick.clear(), |w| w.policies.clear()];
    for end in ends {
        let mut world = cordoned_and_marked();
        end(&mut world);
        pass_for(&mut world, 2300);
        assert!(world.is_cordoned() && !is_marked(&world));
        assert_eq!(record(&world).state, StepState::Cancelled);
        let mut booted = world.clone();
        boot(&mut booted);
        pass_for(&mut booted, 60);
        assert!(!booted.is_cordoned());
        pass_for(&mut world, 300);
        assert!(!world.is_cordoned(), "the wait has an end");
    }
}
