//! Policies that are tried as a dry run beside one that acts.

use nrh_core::fault::{Fault, FaultType, Severity};
use nrh_core::plan::{BlockReason, SelfHealing};
use nrh_core::policy::{Amount, Mode, Policy};
use nrh_core::remediation::Phase;

use crate::samples::{cont, hung, kill, notify, plugin, secs};
use crate::world::{Change, ClearedBy, JOB_CONT, World, reasons};

/// A node that its policy repairs, and another policy that is tried there.
fn tried(priority: i32, change: impl Fn(&mut Policy)) -> World {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), notify()]);
    let mut trial = world.policies[0].clone();
    (trial.name, trial.mode, trial.priority) = ("trial".into(), Mode::DryRun, priority);
    trial.rules[0].steps = vec![kill(true)];
    change(&mut trial);
    world.policies.push(trial);
    world
}

/// What was recorded of the trial: how its remediations ended, with their steps.
fn recorded(world: &World) -> Vec<(Phase, String)> {
    let of_trial = world.remediations.values().filter(|remediation| remediation.policy == "trial");
    of_trial.map(|remediation| (remediation.phase, remediation.steps[0].phrase())).collect()
}

#[test]
fn what_a_dry_run_would_take_is_recorded_and_resolved_by_the_policy_that_acts() {
    let mut world = tried(10, |_| {});
    let plan = world.pass();
    assert_eq!(reasons(&plan), [], "nothing is held: {:?}", plan.blocked);
    let status_view = &plan.nodes["n1"];
    let found = (status_view.policy.as_deref(), status_view.self_healing);
    assert_eq!(found, (Some("p"), SelfHealing::Allowed), "{}", status_view.activity);
    world.run(secs(300));
    assert_eq!(world.did(), [JOB_CONT]);
    assert_eq!(recorded(&world), [(Phase::Simulated, "ReleaseHungProcess(SIGKILL)".to_owned())], "once");
    let real = world.remediations.values().find(|remediation| remediation.policy == "p").unwrap();
    assert_eq!(real.phase, Phase::Succeeded, "{}", real.message);
}

#[test]
fn the_column_remediation_says_what_stands_in_the_way() {
    let cases: [(SelfHealing, bool, Change); 10] = [
        (SelfHealing::Allowed, true, |_| {}),
        (SelfHealing::NoFault, false, |_| {}),
        (SelfHealing::DryRun, true, |world| world.policies[0].mode = Mode::DryRun),
        (SelfHealing::DryRun, true, |world| {
            world.policies[0].mode = Mode::DryRun;
            world.policies[0].limits.max_unhealthy = Amount::Count(0);
        }),
        (SelfHealing::NoFault, false, |world| world.policies[0].mode = Mode::DryRun),
        (SelfHealing::Suspended, true, |world| world.policies[0].suspend = true),
        (SelfHealing::Suspended, true, |world| world.suspended = Some("by ann".into())),
        (SelfHealing::Excluded, false, |world| world.node("n1").view.exclusions.push("maintenance".into())),
        (SelfHealing::Excluded, true, |world| world.node("n1").view.exclusions.push("maintenance".into())),
        (SelfHealing::ManualActionRequired, true, |world| world.policies.clear()),
    ];
    for (number, (expected, is_sick, change)) in cases.into_iter().enumerate() {
        let mut world = World::under(&[cont()], &["n1"]);
        if is_sick {
            world.inject("n1", hung("log"), None);
        }
        change(&mut world);
        // A dry run records first what it would do.
        world.pass();
        world.tick(secs(5));
        assert_eq!(world.pass().nodes["n1"].self_healing, expected, "case {number}");
    }
}

#[test]
fn it_records_only_what_it_would_really_take() {
    let below = tried(-10, |_| {});
    let without_rule = tried(10, |trial| trial.rules[0].faults.clear());
    let patient = tried(10, |trial| trial.rules[0].min_duration = secs(3_600));
    let suspended = tried(10, |trial| trial.suspend = true);
    for (name, mut world) in [("below", below), ("no rule", without_rule), ("waits", patient), ("suspended", suspended)]
    {
        world.run(secs(300));
        assert_eq!((world.did(), recorded(&world)), (vec![JOB_CONT], Vec::new()), "{name}");
    }
}

#[test]
fn a_dry_run_that_is_alone_with_a_fault_still_says_so() {
    let mut world = tried(10, |_| {});
    world.policies[0].rules[0].faults.clear();
    let plan = world.pass();
    assert_eq!(reasons(&plan), [BlockReason::DryRun]);
    assert_eq!(recorded(&world).len(), 1);
    assert_eq!(world.did(), Vec::<&str>::new());
}

#[test]
fn an_enforcing_policy_that_is_suspended_still_stands_for_its_faults() {
    let mut world = tried(10, |trial| (trial.mode, trial.suspend) = (Mode::Enforce, true));
    let plan = world.pass();
    assert_eq!(reasons(&plan), [BlockReason::Suspended], "who suspends it wants nothing done");
}

#[test]
fn what_a_dry_run_owns_and_what_it_only_tries_are_told_of_apart() {
    let mut world = tried(10, |_| {});
    world.policies[0].rules[0].faults = [FaultType::HungContainer].into();
    world.inject("n1", Fault { severity: Severity::Low, ..plugin() }, None);
    let plan = world.pass();
    assert_eq!(reasons(&plan), [BlockReason::LowerUrgency], "as if it enforced: {:?}", plan.blocked);
    assert_eq!(recorded(&world).len(), 1, "what it only tries: {:?}", recorded(&world));
    world.run(secs(300));
    assert_eq!(world.did(), [JOB_CONT]);
    assert_eq!(recorded(&world).len(), 2, "and what it owns: {:?}", recorded(&world));
    assert_eq!(reasons(&world.plan()), [BlockReason::DryRun]);
}

#[test]
fn of_two_dry_runs_on_a_node_the_second_waits_for_as_long_as_the_first_would_take() {
    let mut world = tried(10, |_| {});
    for policy in &mut world.policies {
        policy.mode = Mode::DryRun;
    }
    world.policies[0].rules[0].faults = [FaultType::HungContainer].into();
    world.policies[1].rules[0].faults = [FaultType::NetworkPluginHung].into();
    world.inject("n1", plugin(), None);
    world.pass();
    assert_eq!(world.remediations.len(), 1, "{:?}", world.remediations);
    for _ in 0..3 {
        let plan = world.pass_after(5);
        assert!(reasons(&plan).contains(&BlockReason::LowerUrgency), "{:?}", plan.blocked);
        assert_eq!(world.remediations.len(), 1, "in earnest it would wait: {:?}", world.remediations);
    }
    world.wait(60, 15);
    assert_eq!(world.remediations.len(), 2, "{:?}", world.remediations);
}
