//! Nodes that flap: one fault and one remediation, whatever the number of changes, and a cordon that goes after a quiet time.

use std::time::Duration;

use nrh_core::action::{CleanupOrphans, DeletePod};
use nrh_core::fault::FaultType;
use nrh_core::moment::since;
use nrh_core::plan::BlockReason;
use nrh_core::policy::{Action, Step};
use nrh_core::remediation::{Phase, Resolution};
use nrh_core::snapshot::{NodeView, TriState};
use nrh_testbed_matrix::{Seen, Way};
use proptest::prelude::*;

use crate::random_worlds::try_few;
use crate::samples::{cont, cordon, hung, kept, notify, rule, soft_taint, step};
use crate::world::{ClearedBy, JOB_CONT, World, acts, reasons, says, secs};

fn keeps(healthy_delay: Duration) -> Step {
    kept(Duration::from_hours(12), healthy_delay)
}

fn asks(steps: &[Step]) -> World {
    World::with_rules(&[rule("flaps", &[FaultType::NodeFlapping], steps)])
}

/// `Ready` changes so many times, so far apart; the node is Ready in the end where the number is even.
fn flap(world: &mut World, times: usize, every: u64) {
    for _ in 0..times {
        let view = &mut world.node("n1").view;
        view.ready = if view.ready == TriState::True { TriState::False } else { TriState::True };
        wait(world, every);
    }
}

fn wait(world: &mut World, seconds: u64) {
    world.live(seconds / 10, 10);
    if !seconds.is_multiple_of(10) {
        world.live(1, seconds % 10);
    }
    world.pass();
}

/// Told in kubernetes/kubernetes #97362.
#[test]
fn a_node_that_flaps_is_one_fault_with_its_count_and_rhythm() {
    let mut world = asks(&[notify()]);
    assert_eq!(world.plan().nodes["n1"].stable, TriState::Unknown, "nobody has watched it yet");
    wait(&mut world, 600);
    assert_eq!(world.plan().nodes["n1"].stable, TriState::True);
    flap(&mut world, 5, 30);
    assert_eq!((world.cluster_faults(), world.plan().nodes["n1"].stable), (vec![], TriState::True));
    flap(&mut world, 55, 30);
    let status_view = &world.plan().nodes["n1"];
    let [fault] = &status_view.cluster_faults[..] else { panic!("{status_view:?}") };
    assert_eq!((fault.kind, status_view.stable), (FaultType::NodeFlapping, TriState::False));
    assert!(fault.message.starts_with("Ready changed ") && fault.message.contains("about every 30s"), "{fault:?}");
    assert_eq!(world.phase(), Phase::Failed, "people were told, once");
    assert_eq!(world.did(), ["notify"]);
    Seen::of("NodeFlapping", "containerd", Way::MadeUp).record();
}

#[test]
fn its_cordon_goes_when_it_was_stable_for_the_healthy_delay_and_not_before() {
    let delay = Duration::from_mins(30);
    let mut world = asks(&[keeps(delay), notify()]);
    wait(&mut world, 60);
    flap(&mut world, 20, 60);
    assert!(world.is_cordoned(), "{:?}", world.remediations);
    // Quiet, and again a few changes: still the same.
    wait(&mut world, 900);
    flap(&mut world, 4, 60);
    wait(&mut world, 900);
    assert!(world.is_cordoned() && world.cluster_faults() == [FaultType::NodeFlapping]);
    assert_eq!(world.remediations.len(), 1, "one remediation, not many");
    let mut waited = 0;
    while !world.cluster_faults().is_empty() {
        wait(&mut world, 60);
        waited += 1;
        assert!(waited < 90);
        assert!(world.is_cordoned());
    }
    wait(&mut world, delay.as_secs() - 60);
    assert!(world.is_cordoned(), "the healthy delay counts from when it is stable");
    wait(&mut world, 120);
    assert!(!world.is_cordoned());
    assert_eq!((world.times("uncordon"), world.did().last()), (1, Some(&"uncordon")), "{:?}", world.did());
}

#[test]
fn a_node_kept_for_another_fault_is_not_opened_while_it_flaps() {
    let mut world = World::alone(hung("log"), None, &[keeps(Duration::from_mins(5)), notify()]);
    wait(&mut world, 60);
    assert!(world.is_cordoned());
    flap(&mut world, 8, 20);
    world.node("n1").sick.clear();
    wait(&mut world, 1_800);
    assert!(world.is_cordoned(), "its fault is gone, and it flaps");
    wait(&mut world, 5_400);
    assert!(!world.is_cordoned());
    assert_eq!(world.did(), ["cordon", "notify", "uncordon"]);
}

/// A node that flaps, with a remediation that has just resolved its only fault under what this step does.
fn resolved_while_it_flaps(first: Step) -> World {
    let mut world = World::alone(hung("log"), ClearedBy::Cont, &[first, cont(), notify()]);
    // The rule waits for so long, so that it flaps by then.
    world.policies[0].rules[0].min_duration = secs(200);
    for sick in &mut world.node("n1").sick {
        sick.fault.duration_seconds = 0;
    }
    let at = world.now;
    while world.remediations.is_empty() || world.only_remediation().has_work() {
        for sick in &mut world.node("n1").sick {
            sick.fault.duration_seconds += 20;
        }
        assert!(since(world.now, at) < Duration::from_mins(20), "{:?}", world.remediations);
        flap(&mut world, 2, 10);
    }
    assert!(!world.cluster_faults().is_empty());
    world
}

#[test]
fn a_remediation_is_not_at_its_end_before_its_node_was_quiet() {
    let mut world = resolved_while_it_flaps(cordon());
    let plan = world.pass();
    let remediation = world.only_remediation();
    assert_eq!((remediation.phase, world.is_cordoned()), (Phase::Verifying, true), "{remediation:?}");
    assert_eq!(reasons(&plan).iter().filter(|why| **why == BlockReason::NodeFlapping).count(), 1, "{:?}", plan.blocked);
    assert!(plan.next.is_some_and(|next| next <= Duration::from_mins(10)));
    assert!(plan.nodes["n1"].activity.contains("watched until nothing has changed for 10 min"), "{:?}", plan.nodes);
    let written = remediation.message.clone();
    wait(&mut world, 560);
    assert_eq!((world.phase(), &world.only_remediation().message), (Phase::Verifying, &written));
    wait(&mut world, 60);
    assert_eq!((world.phase(), world.is_cordoned()), (Phase::Succeeded, false));
    assert_eq!(world.did(), ["cordon", JOB_CONT, "uncordon"]);
    // It does not flap for as long as its penalty stands: it has been quiet for long enough.
    assert!(!world.cluster_faults().is_empty() && !world.only_remediation().message.contains("flaps still"));
}

#[test]
fn the_wait_for_quiet_has_an_end_whatever_the_node_does() {
    let mut world = resolved_while_it_flaps(cordon());
    let resolved = world.now;
    while world.phase() == Phase::Verifying {
        flap(&mut world, 2, 30);
        assert!(since(world.now, resolved) <= Duration::from_mins(32));
    }
    assert!(since(world.now, resolved) >= Duration::from_mins(28));
    wait(&mut world, 30);
    let remediation = world.remediations.values().min_by_key(|remediation| remediation.started_at).unwrap();
    assert_eq!(remediation.phase, Phase::Succeeded, "{remediation:?}");
    assert!(remediation.message.ends_with("the node flaps still (condition NodeStable)"), "{}", remediation.message);
    assert!(!world.is_cordoned() && world.did().contains(&"uncordon"));
}

#[test]
fn a_fault_that_comes_back_meanwhile_is_taken_up_by_the_same_remediation() {
    let mut world = resolved_while_it_flaps(cordon());
    wait(&mut world, 60);
    world.inject("n1", hung("log"), ClearedBy::Cont);
    wait(&mut world, 60);
    // The step did not help for long: the next one follows, and no other remediation begins.
    assert_eq!(world.only_in(Phase::Failed).faults[0].state, Resolution::Exhausted);
    assert_eq!(world.did(), ["cordon", JOB_CONT, "notify", "uncordon"]);
}

#[test]
fn whoever_stops_the_remediation_or_opens_the_node_ends_the_wait() {
    let mut world = resolved_while_it_flaps(cordon());
    world.policies[0].suspend = true;
    wait(&mut world, 30);
    assert_eq!((world.phase(), world.is_cordoned()), (Phase::Succeeded, false));
    let mut world = resolved_while_it_flaps(cordon());
    world.node("n1").view.unschedulable = false;
    wait(&mut world, 30);
    assert_eq!((world.phase(), world.is_cordoned()), (Phase::Cancelled, false), "{:?}", world.only_remediation());
}

/// While the remediation is only watched nothing that it owes has been begun to be put back: what is off the node, a person has taken
/// off, and that is heard before the fault that comes back is dealt with.
#[test]
fn what_a_person_takes_off_while_it_is_watched_is_that_persons_no() {
    type Case = (Step, fn(&mut NodeView), &'static str);
    let cases: [Case; 4] = [
        (cordon(), |view| view.unschedulable = false, "a person uncordoned node"),
        (cordon(), |view| (view.unschedulable, view.cordoned_by) = (false, None), "a person uncordoned node"),
        (soft_taint(), |view| view.taints.clear(), "a person removed our taint"),
        (soft_taint(), |view| (view.taints, view.tainted_by) = Default::default(), "a person removed our taint"),
    ];
    for (first, change, said) in cases {
        for is_back in [false, true] {
            let mut world = resolved_while_it_flaps(first.clone());
            // The cache is not behind any more.
            wait(&mut world, 120);
            assert_eq!(world.phase(), Phase::Verifying);
            let before = world.did().len();
            change(&mut world.node("n1").view);
            if is_back {
                world.inject("n1", hung("log"), ClearedBy::Cont);
            }
            wait(&mut world, 120);
            says(&world.only_in(Phase::Cancelled).message, said);
            let undone = ["uncordon", "untaint"];
            let acts: Vec<&str> = world.did()[before..].iter().copied().filter(|did| !undone.contains(did)).collect();
            assert!(acts.is_empty() && !world.is_cordoned(), "{acts:?}");
        }
    }
}

#[test]
fn steps_that_do_nothing_about_it_are_left_out() {
    for action in [Action::DeletePod(DeletePod), Action::CleanupOrphans(CleanupOrphans)] {
        let mut world = asks(&[step(action), notify()]);
        flap(&mut world, 10, 30);
        wait(&mut world, 60);
        assert_eq!(world.did(), ["notify"]);
    }
}

#[test]
fn without_a_probe_that_reports_the_node_is_not_touched() {
    let mut world = asks(&[cordon(), notify()]).passed(1);
    world.node("n1").probe_runs = false;
    world.tick(secs(120));
    flap(&mut world, 10, 10);
    let plan = world.plan();
    assert!(!acts(&plan).iter().any(|(_, what)| what == "cordon") && !world.is_cordoned(), "{:?}", acts(&plan));
    assert!(reasons(&plan).contains(&BlockReason::ProbeNotReporting), "{:?}", plan.blocked);
}

/// What `set` sets is there and away in turn, so many seconds each; the turn in which the world did something.
pub fn told_after(
    mut world: World,
    [there, away]: [u64; 2],
    turns: usize,
    mut set: impl FnMut(&mut World, bool),
) -> Option<usize> {
    for turn in 0..turns {
        set(&mut world, true);
        wait(&mut world, there);
        if !world.did().is_empty() {
            return Some(turn);
        }
        set(&mut world, false);
        wait(&mut world, away);
        assert!(world.did().is_empty(), "it is away");
    }
    None
}

/// A rule that asks for ten minutes, about a fault that never stays for longer than three at once.
#[test]
fn a_rule_that_asks_how_long_is_due_on_a_node_that_flaps_and_only_while_the_fault_is_there() {
    let due = |there: u64, away: u64, turns: usize| {
        let mut patient = rule("hung", &[FaultType::HungContainer], &[notify()]);
        patient.min_duration = Duration::from_mins(10);
        let world = World::with_rules(&[patient]);
        told_after(world, [there, away], turns, |world, is_there| {
            if is_there {
                world.inject("n1", hung("log"), None);
            } else {
                world.node("n1").sick.clear();
            }
        })
    };
    // It flaps with the ninth.
    assert_eq!(due(180, 60, 7), None, "not yet a node that flaps");
    assert!(due(180, 60, 20).is_some_and(|turn| turn >= 7));
    assert_eq!(due(100, 140, 20), None, "away for most of the time");
    assert_eq!(due(150, 320, 30), None, "away for too long at once");
}

/// Whatever the rhythm: no more acts than the rule has steps for each time that it is tried, which is once an hour.
#[test]
fn a_flapping_node_gets_no_more_acts_than_its_limits() {
    try_few(file!(), 24, &prop::collection::vec(1_u64..400, 1..60), |gaps| {
        let mut world = asks(&[keeps(Duration::from_mins(10)), notify()]);
        for gap in &gaps {
            flap(&mut world, 1, *gap);
            prop_assert!(world.open() <= 1);
        }
        let hours = usize::try_from(gaps.iter().sum::<u64>() / 3_600).unwrap() + 1;
        prop_assert!(world.times("cordon") <= hours && world.times("notify") <= hours, "{:?}", world.did());
        prop_assert!(world.times("uncordon") <= world.times("cordon"));
        // And after a quiet time nothing is held any more.
        wait(&mut world, 3 * 3_600);
        prop_assert!(!world.is_cordoned(), "{:?}", world.remediations);
        prop_assert!(world.remediations.values().all(|one| !one.is_open() && !one.is_quarantined()));
        prop_assert!(world.cluster_faults().iter().all(|kind| *kind != FaultType::NodeFlapping));
        Ok(())
    });
}
