//! Faults that come back after they were resolved.

use nrh_core::plan::SelfHealing;
use nrh_core::policy::{ActionType, OnFailure, Step};
use nrh_core::remediation::{Phase, StepRecord};
use nrh_core::snapshot::TriState;

use crate::samples::{asked, cont, cordon, drain, hung, kill, notify, secs};
use crate::world::{Change, ClearedBy, World};

/// All steps that were done, in the order of the remediations.
fn steps(world: &World) -> impl Iterator<Item = &StepRecord> {
    let mut remediations: Vec<_> = world.remediations.values().collect();
    remediations.sort_by_key(|remediation| remediation.started_at);
    remediations.into_iter().flat_map(|remediation| &remediation.steps)
}

/// Signals of what was released.
fn signals(world: &World) -> Vec<String> {
    steps(world)
        .filter_map(|step| Some(step.action.params().release_hung_process?.signal.as_str().to_owned()))
        .collect()
}

/// The same fault once more, five minutes later, which each of the two signals ends for a while.
fn again(world: &mut World) {
    world.tick(secs(300));
    world.inject("n1", hung("log"), ClearedBy::Cont);
    if let Some(sick) = world.node("n1").sick.first_mut() {
        sick.cleared_by.insert(ClearedBy::Kill);
    }
    world.node("n1").send();
    world.run(secs(120));
}

fn sick(steps: &[Step]) -> World {
    let world = World::sick(hung("log"), ClearedBy::Cont, steps).ran(120);
    assert_eq!(world.phase(), Phase::Succeeded);
    world
}

#[test]
fn what_comes_back_is_met_with_the_next_step_that_resolves() {
    let mut world = sick(&[cont(), kill(true)]);
    again(&mut world);
    assert_eq!(signals(&world), ["SIGCONT", "SIGKILL"]);
    let last = world.remediations.values().max_by_key(|remediation| remediation.started_at).unwrap();
    assert_eq!(last.phase, Phase::Succeeded, "{}", last.message);
    // There is no harsher one: the last is done once more, and then it is a person's.
    again(&mut world);
    again(&mut world);
    assert_eq!(signals(&world), ["SIGCONT", "SIGKILL", "SIGKILL"], "three times within an hour, no loop");
    assert_eq!(world.plan().nodes["n1"].self_healing, SelfHealing::ManualActionRequired);
}

/// What keeps pods away is gone with its remediation, so it is done again before what resolves.
#[test]
fn the_node_is_cordoned_anew() {
    use ActionType::{Cordon, ReleaseHungProcess as Release};
    let mut world = sick(&[cordon(), cont(), kill(true)]);
    again(&mut world);
    let kinds: Vec<ActionType> = steps(&world).map(|step| step.action.kind()).collect();
    assert_eq!(kinds, [Cordon, Release, Cordon, Release]);
    assert_eq!(signals(&world), ["SIGCONT", "SIGKILL"]);
}

/// Each time that it comes back it is met with one step.
#[test]
fn what_comes_back_is_met_with_the_same_step_or_the_next() {
    let twice = Step { max_attempts: 2, ..cont() };
    let last = Step { on_failure: OnFailure::Stop, ..cont() };
    let cases: [(&'static str, Vec<Step>, Change, &[&str]); 7] = [
        ("more attempts are for it too", vec![twice, kill(true)], |_| {}, &["SIGCONT", "SIGCONT", "SIGKILL"]),
        ("an hour later it is new", vec![cont(), kill(true)], |world| world.tick(secs(3600)), &["SIGCONT", "SIGCONT"]),
        // What another policy did, or the same one when it said something else, is not what this step did.
        (
            "it was another step then",
            vec![cont(), kill(true), notify()],
            |world| world.policies[0].rules[0].steps.swap(0, 1),
            &["SIGCONT", "SIGKILL"],
        ),
        ("no harsher step resolves", vec![cont(), notify()], |_| {}, &["SIGCONT", "SIGCONT"]),
        ("nothing harsher is to follow", vec![last, kill(true)], |_| {}, &["SIGCONT", "SIGCONT"]),
        ("the pod runs, so it may not be killed", vec![cont(), kill(false), notify()], |_| {}, &["SIGCONT", "SIGCONT"]),
        ("at night nobody answers", vec![cont(), asked(kill(true))], |_| {}, &["SIGCONT", "SIGCONT"]),
    ];
    for (name, steps, change, expected) in cases {
        let mut world = sick(&steps);
        change(&mut world);
        for _ in 1..expected.len() {
            again(&mut world);
        }
        assert_eq!(signals(&world), expected, "{name}");
        assert!(world.remediations.values().all(|one| one.phase == Phase::Succeeded), "{name}");
    }
}

/// Nor one behind a drain that cannot be.
#[test]
fn what_comes_behind_a_drain_that_cannot_be_is_no_next_step() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), drain(), kill(true)]);
    world.may_evict = TriState::False;
    world.run(secs(120));
    again(&mut world);
    assert_eq!(signals(&world), ["SIGCONT", "SIGCONT"]);
}

/// Nor does what another step did in this very remediation use up the one that stands in its place.
#[test]
fn a_step_that_was_changed_meanwhile_has_its_own_attempts() {
    let mut world = World::sick(hung("log"), ClearedBy::Kill, &[cont(), notify()]);
    let is_done = |world: &World| world.remediations.values().any(|one| one.phase == Phase::Verifying);
    world.until(secs(60), "executed", is_done);
    world.policies[0].rules[0].steps[0] = kill(true);
    world.run_to(600, Phase::Succeeded);
    assert_eq!(signals(&world), ["SIGCONT", "SIGKILL"]);
}
