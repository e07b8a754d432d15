//! Clocks that are set: what was recorded ahead of the clock is waited for no longer than what is recorded now.

use jiff::SignedDuration;
use nrh_core::engine::plan;
use nrh_core::fault::FaultType;
use nrh_core::remediation::{Phase, StepState};
use nrh_core::snapshot::{Ledger, Slot};

use crate::samples::{cont, hung, kill, notify, policy, rule};
use crate::world::{ClearedBy, World, secs};

/// Two hours, and as far as a machine without a battery is off.
const BACK: [SignedDuration; 2] = [SignedDuration::from_hours(2), SignedDuration::from_hours(24 * 365)];

#[test]
fn what_was_done_tomorrow_is_verified_as_soon_as_what_was_done_now() {
    for back in BACK {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), kill(false)]);
        world.pass();
        assert_eq!(world.did(), ["job ReleaseHungProcess(SIGCONT)"]);
        world.now -= back;
        world.run(secs(120));
        let remediation = world.only_remediation();
        assert_eq!(
            (remediation.phase, world.did().len()),
            (Phase::Succeeded, 1),
            "set back by {back:#}: {}",
            remediation.message
        );
        assert!(remediation.steps[0].executed_at.unwrap() <= world.now && remediation.started_at <= world.now);
    }
}

#[test]
fn a_step_of_tomorrow_that_has_not_resolved_is_followed_in_its_time() {
    for back in BACK {
        let mut world = World::sick(hung("log"), None, &[cont(), notify()]);
        world.run(secs(20));
        assert_eq!(world.only_remediation().steps[0].state, StepState::Verifying);
        world.now -= back;
        world.run(cont().timeout + secs(60));
        let phase = world.only_remediation().phase;
        assert_eq!(
            (phase, world.did()),
            (Phase::Failed, vec!["job ReleaseHungProcess(SIGCONT)", "notify"]),
            "set back by {back:#}"
        );
    }
}

/// This clock may be ten minutes ahead, so that all attempts seem to be past their time.
#[test]
fn while_nobody_knows_the_time_nothing_starts_and_nothing_ends() {
    const WHY: &str = "two clocks differ";
    let rules = [rule("r", &[FaultType::HungContainer], &[cont(), kill(false)])];
    let mut world = World::new(&[policy("p", &rules)], &["n1", "n2"]);
    world.inject("n1", hung("log"), None);
    world.run(secs(20));
    assert_eq!(world.only_remediation().steps[0].state, StepState::Verifying);
    world.inject("n2", hung("log"), None);
    world.now += SignedDuration::from_mins(10);
    let mut snapshot = world.snapshot();
    assert_ne!(plan(&snapshot, &world.settings).effects, []);
    snapshot.clock_disputed = Some(WHY.to_owned());
    let held = plan(&snapshot, &world.settings);
    assert_eq!(held.effects, []);
    let shown: Vec<&str> = held.blocked.iter().filter(|one| one.message == WHY).map(|one| one.node.as_str()).collect();
    assert_eq!(shown, ["n1", "n2"], "{:?}", held.blocked);
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
