//! Clocks that are set: what was recorded ahead of the clock is waited for no longer than what is recorded now.

use jiff::SignedDuration;
use nrh_core::fault::FaultType;
use nrh_core::plan::Effect;
use nrh_core::policy::ActionType;
use nrh_core::remediation::{CancelledRemediation, Phase, StepState};
use nrh_core::snapshot::{Ledger, Slot, TriState};

use crate::manual::manual;
use crate::samples::{cont, hung, kill, notify, policy, rule};
use crate::world::{ClearedBy, JOB_CONT, World, secs};

/// Two hours, and as far as a machine without a battery is off.
const BACK: [SignedDuration; 2] = [SignedDuration::from_hours(2), SignedDuration::from_hours(24 * 365)];

#[test]
fn what_was_done_tomorrow_is_verified_as_soon_as_what_was_done_now() {
    for back in BACK {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), kill(false)]).passed(1);
        assert_eq!(world.did(), [JOB_CONT]);
        world.now -= back;
        world.run_to(120, Phase::Succeeded);
        assert_eq!(world.did(), [JOB_CONT], "set back by {back:#}");
        assert!(world.step(0).executed_at.unwrap() <= world.now && world.only_remediation().started_at <= world.now);
    }
}

#[test]
fn a_step_of_tomorrow_that_has_not_resolved_is_followed_in_its_time() {
    for back in BACK {
        let mut world = World::sick(hung("log"), None, &[cont(), notify()]).ran(20);
        assert_eq!(world.step(0).state, StepState::Verifying);
        world.now -= back;
        world.run(cont().timeout + secs(60));
        let phase = world.phase();
        assert_eq!((phase, world.did()), (Phase::Failed, vec![JOB_CONT, "notify"]), "set back by {back:#}");
    }
}

const WHY: &str = "two clocks differ";

/// This clock may be ten minutes ahead, so that all attempts seem to be past their time.
#[test]
fn while_nobody_knows_the_time_nothing_starts_and_nothing_ends() {
    let rules = [rule("r", &[FaultType::HungContainer], &[cont(), kill(false)])];
    let mut world = World::new(&[policy("p", &rules)], &["n1", "n2"]).ill(hung("log"), None).ran(20);
    assert_eq!(world.step(0).state, StepState::Verifying);
    world.inject("n2", hung("log"), None);
    world.now += SignedDuration::from_mins(10);
    assert_ne!(world.plan().effects, []);
    world.clock_disputed = Some(WHY.to_owned());
    let held = world.plan();
    assert_eq!(held.effects, []);
    let shown: Vec<&str> = held.blocked.iter().filter(|one| one.message == WHY).map(|one| one.node.as_str()).collect();
    assert_eq!(shown, ["n1", "n2"], "{:?}", held.blocked);
}

/// What a wrong clock would make of work that is in time: how far it is off, what is there, and what would be done.
type Case = (SignedDuration, fn(&mut World), fn(&Effect) -> bool);

#[test]
fn while_nobody_knows_the_time_nothing_is_rewritten_withdrawn_or_deleted() {
    let (back, ahead) = (SignedDuration::from_mins(-10), SignedDuration::from_hours(24 * 365));
    let is_write = |effect: &Effect| matches!(effect, Effect::WriteRemediation(_));
    let cases: [Case; 5] = [
        // The times of an open record.
        (back, |world| drop(world.schedule()), is_write),
        // The end of a request that waits.
        (
            ahead,
            |world| {
                world.policies[0].pause_requests.push("release".into());
                world.ask("by-hand", "n1", "p", manual(FaultType::HungContainer, ActionType::ReleaseHungProcess));
            },
            is_write,
        ),
        // A record of the past.
        (ahead, |world| drop(world.run(secs(300))), |effect| matches!(effect, Effect::DeleteRemediation { .. })),
        // A command and a slot whose record has not shown yet.
        (
            ahead,
            |world| {
                let node = world.node("n1");
                (node.view.ready, node.probe_runs) = (TriState::False, false);
                world.pass();
                world.remediations.clear();
            },
            |effect| matches!(effect, Effect::WithdrawCommand { .. }),
        ),
        (
            ahead,
            |world| {
                world.pass();
                world.remediations.clear();
                world.policies.clear();
            },
            |effect| matches!(effect, Effect::StoreLedger(_)),
        ),
    ];
    for (number, (by, begin, is_such)) in cases.into_iter().enumerate() {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
        begin(&mut world);
        world.now += by;
        let done = world.plan().effects;
        assert!(done.iter().any(is_such), "case {number}: {done:?}");
        world.clock_disputed = Some(WHY.to_owned());
        assert_eq!(world.plan().effects, [], "case {number}");
    }
}

#[test]
fn while_nobody_knows_the_time_an_open_record_is_shown_with_its_own_times() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).scheduled();
    world.clock_disputed = Some(WHY.to_owned());
    let shown = |world: &World| world.plan().nodes["n1"].activity.clone();
    let before = shown(&world);
    world.now -= SignedDuration::from_mins(10);
    assert_eq!(shown(&world), before);
}

/// Its record is deleted, so nothing else tells that a person has stopped it.
#[test]
fn while_nobody_knows_the_time_the_note_of_a_persons_stop_stays() {
    let mut world = World::sick(hung("log"), None, &[cont()]);
    let (remediation, message) = ("n1-gone".to_owned(), "cancelled by ann".to_owned());
    let note = Some(CancelledRemediation { remediation, message, at: world.now });
    world.node("n1").report.stopped.clone_from(&note);
    world.now += SignedDuration::from_hours(24);
    assert_eq!(world.plan().nodes["n1"].stopped, None);
    world.clock_disputed = Some(WHY.to_owned());
    assert_eq!(world.plan().nodes["n1"].stopped, note);
}

#[test]
fn a_slot_of_tomorrow_that_nobody_uses_is_given_back() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    world.policies.clear();
    let taken_at = world.now + SignedDuration::from_hours(24);
    let slot = Slot { node: "n1".into(), policy: "p".into(), taken_at, kinds: None };
    world.ledger = Some(Ledger { slots: [("n1-gone".to_owned(), slot)].into() });
    world.pass();
    let lag = world.settings.cache_lag;
    world.tick(lag + secs(1));
    world.pass();
    assert_eq!(world.ledger, Some(Ledger::default()));
}
