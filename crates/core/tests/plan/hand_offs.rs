//! Hand-offs to a remediator: one at a time, answered or timed out, and always taken back.

use std::collections::BTreeSet;

use nrh_core::command::OutcomeReason;
use nrh_core::fault::FaultType;
use nrh_core::plan::{BlockReason, Effect};
use nrh_core::policy::{Action, NodeLimit, Step};
use nrh_core::remediation::{Marker, Phase, Resolution, StepState};
use nrh_core::snapshot::TriState;
use nrh_simulate::remediator::Remediator;

use crate::samples::{asked, cont, cordon, fault, hand_off, hung, kept, notify, secs};
use crate::world::{Change, Chaos, ClearedBy, World, acts, reasons, removes, written};

fn sick(steps: &[Step]) -> World {
    World::sick(hung("x"), ClearedBy::HandOff, steps)
}

/// The node is handed off, and its step is recorded as started.
fn handed(steps: &[Step], how: Remediator) -> World {
    let mut world = sick(steps);
    world.node("n1").remediator = how;
    world.passes(3);
    world
}

#[test]
fn a_silent_probe_is_no_verdict_while_the_node_reboots() {
    let mut world = handed(&[hand_off("Fix"), notify()], Remediator::Silent);
    world.node("n1").probe_runs = false;
    world.run(secs(1500));
    assert_eq!(world.states(), [StepState::Started], "{:?}", world.only_remediation());
    let node = world.node("n1");
    (node.probe_runs, node.sick) = (true, Vec::new());
    world.run(secs(60));
    assert_eq!((world.phase(), world.states()), (Phase::Succeeded, vec![StepState::Succeeded]));
}

#[test]
fn what_the_remediator_says_of_its_failure_is_told_and_the_next_step_follows() {
    let world = handed(&[hand_off("Fix"), notify()], Remediator::Fails).ran(60);
    assert_eq!(world.states(), [StepState::Failed, StepState::Succeeded]);
    let message = &world.step(0).message;
    assert_eq!(message, "Fix remediators/n1: its remediator has failed: no way to reboot it");
    assert_eq!(world.did(), ["hand off by Fix", "take back", "notify"]);
}

#[test]
fn a_remediator_is_told_that_its_time_is_over_before_anything_else_is_done() {
    let mut world = handed(&[hand_off("Fix"), hand_off("Other"), notify()], Remediator::Silent).ran(1790);
    assert_eq!(world.did(), ["hand off by Fix"]);
    world.run(secs(4000));
    let expected = ["hand off by Fix", "time out", "take back", "hand off by Other", "time out", "take back", "notify"];
    assert_eq!(world.did(), expected);
    assert_eq!(world.states(), [StepState::TimedOut, StepState::TimedOut, StepState::Succeeded]);
    assert!(world.step(0).message.starts_with("not resolved within 1800s; it said last: nothing yet"));
    assert!(world.remediators.objects.is_empty());
}

#[test]
fn what_somebody_else_has_handed_off_is_left_to_them() {
    let world = handed(&[hand_off("Fix"), notify()], Remediator::Taken).ran(60);
    assert_eq!(world.states(), [StepState::Refused, StepState::Succeeded]);
    assert_eq!(world.step(0).reason, Some(OutcomeReason::Protected));
    assert_eq!(world.did(), ["hand off by Fix", "notify"], "nothing is ours to take back");
}

#[test]
fn an_object_that_somebody_deletes_ends_the_attempt() {
    let mut world = handed(&[hand_off("Fix"), notify()], Remediator::Silent);
    world.tick(secs(5));
    world.remediators.objects.clear();
    world.pass();
    assert_eq!(world.states()[0], StepState::Failed);
    assert!(world.step(0).message.contains("was deleted"));
}

/// Told in kubernetes-sigs/cluster-api #7353: a machine that is made anew and sick again is made anew, and again.
#[test]
fn a_machine_that_is_made_anew_in_vain_is_not_made_anew_without_end() {
    let mut world = handed(&[hand_off("Fix"), notify()], Remediator::Silent);
    world.policies[0].limits.per_node = NodeLimit { max_actions: 4, window: secs(24 * 3600) };
    let mut handed_at = Vec::new();
    for minute in 0..23 * 60 {
        if !world.remediators.objects.is_empty() {
            handed_at.push(minute);
            let node = world.node("n1");
            let uid = format!("made-anew-{minute}");
            node.view.uid.clone_from(&uid);
            (node.report.node_uid, node.sick) = (Some(uid), Vec::new());
            world.inject("n1", hung("x"), ClearedBy::HandOff);
        }
        world.live(3, 20);
    }
    assert!(handed_at.windows(2).all(|two| two[1] - two[0] >= 60), "{handed_at:?}");
    // As often as the policy lets it be on one node, and no more that day.
    assert_eq!(handed_at.len(), 4, "{handed_at:?}");
    assert_eq!(reasons(&world.plan()), [BlockReason::NodeLimit]);
}

#[test]
fn a_node_that_goes_as_announced_is_said_to() {
    let world = handed(&[hand_off("Fix"), notify()], Remediator::Silent);
    let plan = world.plan_with(|snapshot| {
        snapshot.hand_offs.values_mut().for_each(|view| view.node_goes = true);
        snapshot.nodes.clear();
    });
    let said = "node n1 is gone, as Fix remediators/n1 had announced (PermanentNodeDeletionExpected)";
    assert!(format!("{:?}", plan.effects).contains(said), "{:?}", plan.effects);
}

#[test]
fn nothing_is_handed_off_before_it_is_known_that_it_may_be() {
    let decided = |steps: &[Step], is_known: bool| {
        let mut world = sick(steps);
        let Action::HandOff(with) = hand_off("Fix").action else { panic!() };
        world.lacking.extend(is_known.then(|| with.remediation_template.clone()));
        world.unproven.insert(with.remediation_template);
        world.plan()
    };
    let blocked = decided(&[hand_off("Fix"), notify()], false);
    assert!(acts(&blocked).is_empty(), "{:?}", blocked.effects);
    assert_eq!(blocked.blocked[0].reason, BlockReason::ActionsDisabled);
    assert!(blocked.blocked[0].message.contains("may create Fix in namespace remediators"), "{:?}", blocked.blocked);
    let alone = decided(&[hand_off("Fix")], true);
    assert!(acts(&alone).is_empty(), "{:?}", alone.effects);
    assert_eq!(alone.blocked[0].reason, BlockReason::NoRule);
    assert!(alone.blocked[0].message.contains("may create Fix in namespace remediators"), "{:?}", alone.blocked);
    // What is known to be lacking keeps nobody from being told.
    let told = decided(&[hand_off("Fix"), notify()], true);
    assert_eq!(acts(&told), [("n1".to_owned(), "notify".to_owned())], "{:?}", told.effects);
}

#[test]
fn what_does_not_merit_a_reboot_is_not_handed_off() {
    for kind in FaultType::ALL.into_iter().filter(|kind| !kind.is_cluster_fault()) {
        let is_left_out = matches!(
            kind,
            FaultType::ExitedContainerBacklog
                | FaultType::ClientCertificateExpiring
                | FaultType::ClockUnsynchronised
                | FaultType::GhostSandbox
                | FaultType::ProbeDegraded
                | FaultType::UntrackedPodProcess
        );
        let world = World::sick(fault(kind, "x"), None, &[hand_off("Fix"), notify()]).passed(1);
        let expected = if is_left_out { "notify" } else { "hand off by Fix" };
        assert_eq!(world.did(), [expected], "{kind}");
    }
}

#[test]
fn a_crash_between_the_call_and_its_record_makes_nothing_twice() {
    let mut world = sick(&[hand_off("Fix"), notify()]);
    world.node("n1").remediator = Remediator::Silent;
    for calls in 1..5 {
        world.disturbed_pass(&Chaos { crash_after: Some(calls), ..Chaos::default() });
    }
    // The node reboots before anybody has noted that it was handed off.
    world.node("n1").probe_runs = false;
    world.run(secs(900));
    assert_eq!(world.remediators.made.values().collect::<Vec<_>>(), [&1]);
    assert_eq!(world.states(), [StepState::Started]);
}

#[test]
fn another_fault_is_not_handed_to_the_same_remediator_again() {
    let world = handed(&[cont(), hand_off("Fix"), notify()], Remediator::Fails).ill(hung("y"), None).ran(3000);
    let made: Vec<&str> = world.did().into_iter().filter(|what| what.starts_with("hand off")).collect();
    assert_eq!(made, ["hand off by Fix"], "{:?}", world.did());
    assert!(world.only_remediation().faults.iter().all(|fault| fault.state == Resolution::Exhausted));
}

#[test]
fn a_remediator_that_uncordons_the_node_is_no_person() {
    let mut world = handed(&[cordon(), hand_off("Fix"), notify()], Remediator::Silent);
    world.pass_after(5);
    assert!(world.is_cordoned());
    world.node("n1").view.unschedulable = false;
    world.pass_after(120);
    assert_eq!(world.phase(), Phase::Running, "{:?}", world.only_remediation());
}

#[test]
fn a_person_who_stops_the_remediation_has_the_object_deleted() {
    let mut world = handed(&[hand_off("Fix"), notify()], Remediator::Silent);
    world.tick(secs(5));
    world.delete_remediations();
    world.run(secs(60));
    assert_eq!(world.did(), ["hand off by Fix", "take back"]);
    assert!(world.remediators.objects.is_empty() && world.remediations.is_empty());
}

#[test]
fn a_step_that_asks_makes_nothing_and_owes_nothing_before_the_yes() {
    let asks = asked(hand_off("Fix"));
    let mut world = handed(&[asks, notify()], Remediator::Works);
    assert!(world.remediators.made.is_empty() && !world.only_remediation().cleanup.is_pending());
    world.approve("n1", "ann").unwrap();
    world.run(secs(60));
    assert_eq!(world.did(), ["hand off by Fix", "take back"]);
    assert_eq!(world.phase(), Phase::Succeeded);
}

#[test]
fn of_a_template_that_changes_while_a_person_is_asked_nothing_is_made_before_he_is_asked_anew() {
    let asks = asked(hand_off("Fix"));
    let template = asks.action.hand_off().unwrap().remediation_template.clone();
    let mut world = handed(&[asks, notify()], Remediator::Works);
    for version in ["u/1", "u/2"] {
        world.approve("n1", "ann").unwrap();
        world.template_versions.insert(template.clone(), version.to_owned());
        world.run(secs(60));
        assert!(world.remediators.made.is_empty(), "{:?}", world.did());
        let remediation = world.only_remediation();
        let last = remediation.steps.last().unwrap();
        assert_eq!((last.state, last.template_version.as_deref()), (StepState::AwaitingApproval, Some(version)));
    }
    world.approve("n1", "ann").unwrap();
    world.run(secs(60));
    assert_eq!(world.did(), ["hand off by Fix", "take back"]);
    assert!(world.states().starts_with(&[StepState::Cancelled; 2]), "{:?}", world.states());
}

#[test]
fn a_clean_check_is_no_cure_while_the_remediator_says_that_it_is_at_work() {
    let mut world = handed(&[hand_off("Fix"), notify()], Remediator::Silent);
    world.recover("n1");
    world.tick(secs(20));
    let at_work = |world: &World, processing| {
        world.plan_with(|snapshot| snapshot.hand_offs.values_mut().for_each(|view| view.processing = processing))
    };
    assert!(written(&at_work(&world, TriState::True)).is_empty(), "a node that shuts down looks clean, too");
    assert!(!written(&at_work(&world, TriState::Unknown)).is_empty(), "others do not say");
}

#[test]
fn a_person_who_suspends_is_not_kept_waiting_and_what_was_tried_is_not_tried_again_at_once() {
    let stops: [Change; 2] = [
        |world| world.policies[0].suspend = true,
        |world| world.node("n1").report.suspended = Some("hands off".into()),
    ];
    for stop in stops {
        let mut world = handed(&[hand_off("Fix"), notify()], Remediator::Silent);
        stop(&mut world);
        world.run_to(30, Phase::Cancelled);
        assert!(world.remediators.objects.is_empty(), "taken back");
        world.policies[0].suspend = false;
        world.node("n1").report.suspended = None;
        let blocked = world.pass();
        assert_eq!(reasons(&blocked), [BlockReason::RecentlyFailed], "no second reboot");
    }
}

#[test]
fn what_the_remediator_has_opened_is_cordoned_again_by_a_later_step() {
    let kept = kept(secs(7_200), secs(60));
    let world = World::sick(hung("log"), None, &[cordon(), hand_off("Fix"), kept, notify()]).ran(2_400);
    assert!(world.only_remediation().is_quarantined() && world.is_cordoned(), "{:?}", world.log);
    assert_eq!(world.did(), ["cordon", "hand off by Fix", "time out", "take back", "cordon", "notify"]);
}

#[test]
fn an_object_that_cannot_be_deleted_holds_nobody_up_for_long() {
    let mut world = handed(&[hand_off("Fix"), notify()], Remediator::Fails);
    let mut said = BTreeSet::new();
    for _ in 0..90 {
        let is_back = |effect: &Effect| matches!(effect, Effect::Remove { marker: Marker::HandOff(_), .. });
        let plan = world.plan();
        let effects = plan.effects.iter().enumerate();
        let failing: BTreeSet<_> = effects.filter(|(_, effect)| is_back(effect)).map(|(place, _)| place).collect();
        said.extend(plan.blocked.iter().filter(|_| !failing.is_empty()).map(|blocked| blocked.message.clone()));
        world.disturbed_pass(&Chaos { failing, ..Chaos::default() });
        world.tick(secs(10));
    }
    // One sentence for as long as it takes.
    let [said] = Vec::from_iter(said).try_into().unwrap();
    let expected = "Fix remediators/n1 is to be deleted before anything else is done to node n1, and the API server has not \
                    accepted that yet: tried again until ";
    assert!(said.starts_with(expected), "{said}");
    assert!(!world.only_remediation().is_live(), "{:?}", world.only_remediation());
    assert_eq!(world.remediators.objects.len(), 1, "it goes with the remediation, which owns it");
}

/// Ten minutes of trying are no ten minutes of being away.
#[test]
fn a_controller_that_was_away_tries_to_take_back_before_it_gives_up() {
    for (watched, owed) in [(secs(5), true), (secs(600), false)] {
        let mut world = handed(&[hand_off("Fix"), notify()], Remediator::Fails);
        world.until(secs(1_000), "failed", |world| world.states() == [StepState::Failed]);
        let plan = world.plan_with(|snapshot| {
            // As it stood before that was recorded.
            snapshot.remediations.values_mut().for_each(|remediation| remediation.cleanup.0[0].removed_at = None);
            (snapshot.now, snapshot.watched_for) = (snapshot.now + secs(700), watched);
        });
        let tries = removes(&plan, |marker| marker.hand_off().is_some());
        assert_eq!(tries, owed, "after {watched:?}: {:?}", plan.effects);
    }
}
