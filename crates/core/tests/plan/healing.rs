//! From the first step to the verified cure.

use nrh_core::command::ActionCommand;
use nrh_core::fault::FaultType;
use nrh_core::plan::{BlockReason, Effect, Health, Operation, SelfHealing};
use nrh_core::policy::{Amount, Mode, OnFailure, Step};
use nrh_core::remediation::{Phase, Resolution, StepState};
use nrh_core::snapshot::TriState;

use crate::samples::{clean_up, cont, cordon, delete_pod, fault, hung, kill, notify, plugin, pod, rule};
use crate::world::{COMMAND_CONT, ClearedBy, JOB_CONT, JOB_KILL, World, acts, command, reasons, says, secs};

#[test]
fn a_confirmed_fault_is_acted_on_in_one_pass() {
    let plan = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).plan();
    let [Effect::StoreLedger(ledger), Effect::WriteRemediation(remediation), action] = &plan.effects[..] else {
        panic!("{:?}", plan.effects)
    };
    assert_eq!((ledger.slots.len(), remediation.phase, remediation.steps.len()), (1, Phase::Running, 1));
    assert_eq!(remediation.steps[0].state, StepState::Scheduled);
    let Effect::Act { node_uid, operation: Operation::RunJob(command), .. } = action else { panic!("{action:?}") };
    assert_eq!((node_uid.as_str(), command.node.as_str(), command.epoch), ("uid-n1", "n1", 1));
    assert!(plan.blocked.is_empty(), "{:?}", plan.blocked);
}

#[test]
fn it_is_resolved_verified_and_closed_and_its_slot_is_given_back() {
    let world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), kill(false)]).ran(300);
    world.only_in(Phase::Succeeded);
    assert_eq!(world.did(), [JOB_CONT]);
    assert_eq!(world.slots().len(), 0);
    let status_view = &world.plan().nodes["n1"];
    assert_eq!(status_view.health, Health::Healthy);
    assert!(status_view.activity.starts_with("resolved 2026-01-01T01:00:"), "{}", status_view.activity);
    assert!(status_view.activity.ends_with("by ReleaseHungProcess(SIGCONT)"), "{}", status_view.activity);
}

#[test]
fn what_the_probe_has_lost_sight_of_is_not_resolved() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    // As a probe says that has begun anew without its memory.
    world.node("n1").report.unchecked.insert(FaultType::HungContainer);
    world.run(secs(30));
    assert_eq!((world.phase(), world.did().len()), (Phase::Verifying, 1));
    world.node("n1").report.unchecked.clear();
    world.run_to(60, Phase::Succeeded);
}

#[test]
fn each_fault_is_ended_by_its_own_step_and_steps_that_cannot_apply_are_left_out() {
    for (fault, steps, expected) in [
        (fault(FaultType::RuntimeClientHung, "uid-log"), vec![kill(false), notify()], JOB_KILL),
        (fault(FaultType::UnresponsiveShim, "shim"), vec![clean_up(), notify()], "job CleanupOrphans"),
        (hung("log"), vec![delete_pod(), clean_up(), cont()], JOB_CONT),
        (fault(FaultType::LeakedShim, "x"), vec![cont(), clean_up()], "job CleanupOrphans"),
        (fault(FaultType::OrphanContainer, "x"), vec![cont(), clean_up()], "job CleanupOrphans"),
    ] {
        let kind = fault.kind;
        let plan = World::sick(fault, None, &steps).plan();
        assert_eq!(acts(&plan), [("n1".to_owned(), expected.to_owned())], "{kind}");
    }
    // With a runtime that does not answer no Job starts, whatever the node's Ready still says.
    let world = World::sick(fault(FaultType::UnresponsiveShim, "shim"), None, &[clean_up(), notify()]);
    let plan = world.ill(fault(FaultType::RuntimeUnreachable, "runtime"), None).plan();
    assert_eq!(acts(&plan), [("n1".to_owned(), "command CleanupOrphans".to_owned())]);
}

#[test]
fn the_executor_follows_the_kubelet() {
    for (ready, kubelet, expected) in [
        (TriState::True, TriState::True, JOB_CONT),
        (TriState::True, TriState::False, COMMAND_CONT),
        (TriState::True, TriState::Unknown, COMMAND_CONT),
        (TriState::Unknown, TriState::True, COMMAND_CONT),
        (TriState::False, TriState::True, COMMAND_CONT),
    ] {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
        let node = world.node("n1");
        node.view.ready = ready;
        node.report.heartbeat.as_mut().unwrap().kubelet_works = kubelet;
        assert_eq!(acts(&world.plan()), [("n1".to_owned(), expected.to_owned())], "{ready:?} {kubelet:?}");
    }
}

#[test]
fn killing_a_shim_needs_a_pod_that_goes_or_leave_to_end_it() {
    let allows_running_pods = |world: &World| {
        let allows = |command: &ActionCommand| command.action.params().release_hung_process.unwrap().allow_running_pods;
        command(&world.plan()).map(allows)
    };
    let mut world = World::sick(hung("log"), ClearedBy::Kill, &[kill(false)]);
    assert_eq!(allows_running_pods(&world), None);
    let mut other = pod("log");
    other.uid = "another".into();
    world.terminating.entry("n1".into()).or_default().insert(other);
    assert_eq!(allows_running_pods(&world), None, "another pod of the same name");
    world.terminating.entry("n2".into()).or_default().insert(pod("log"));
    assert_eq!(allows_running_pods(&world), None, "another node says so, which may lie");
    world.terminating.entry("n1".into()).or_default().insert(pod("log"));
    assert_eq!(allows_running_pods(&world), Some(true));
    assert_eq!(acts(&world.plan())[0].1, JOB_KILL);

    let world = World::sick(hung("log"), ClearedBy::Kill, &[kill(true)]);
    assert_eq!(allows_running_pods(&world), Some(true));
    let world = World::sick(plugin(), ClearedBy::Kill, &[kill(false)]);
    assert_eq!(allows_running_pods(&world), Some(false), "a plugin is no pod");
}

#[test]
fn attempts_cool_down_and_after_the_last_step_a_person_is_called() {
    let twice = Step { max_attempts: 2, ..cont() };
    let mut world = World::sick(plugin(), None, &[cordon(), twice, notify()]).ran(1_200);
    assert_eq!(world.did(), ["cordon", JOB_CONT, JOB_CONT, "notify", "uncordon"]);
    let remediation = world.only_in(Phase::Failed);
    assert_eq!(remediation.faults[0].state, Resolution::Exhausted);
    let (first, second) = (&remediation.steps[1], &remediation.steps[2]);
    let pause = second.scheduled_at.duration_since(first.finished_at.unwrap());
    assert!(pause.as_secs() >= 60, "cool-down counts from the end of the attempt: {pause:?}");
    assert!(!world.is_cordoned());

    let plan = world.plan();
    assert_eq!(reasons(&plan), [BlockReason::RecentlyFailed]);
    assert_eq!(plan.nodes["n1"].self_healing, SelfHealing::ManualActionRequired);
    world.tick(secs(3_600));
    assert_eq!(acts(&world.plan()).len(), 1, "after an hour it is tried again");
    let again = world.plan().effects.iter().any(|e| matches!(e, Effect::WriteRemediation(e) if e.name.ends_with("-2")));
    assert!(again, "under a new name");
}

/// Nobody blocks a step during its cool-down, so that time is none of its time blocked.
#[test]
fn a_step_that_is_blocked_right_after_its_cool_down_is_not_given_up() {
    let slow = Step { max_attempts: 2, cooldown: secs(600), ..cont() };
    let mut world = World::sick(hung("log"), None, &[slow, kill(true)]);
    world.until(secs(300), "failed once", |world| world.step(0).state.is_final());
    world.live(118, 5);
    world.node("n1").checked = secs(60);
    world.live(10, 5);
    assert_eq!(world.states().len(), 1, "{:?}", world.only_remediation().steps);
    world.node("n1").checked = secs(0);
    world.live(24, 5);
    assert_eq!(world.did(), [JOB_CONT, JOB_CONT]);
}

/// A step that only notifies people may also stand before the others.
#[test]
fn the_next_notification_is_never_an_earlier_one() {
    let rule = rule("r", &[FaultType::HungContainer], &[notify(), cont(), kill(true), notify(), kill(true)]);
    assert_eq!([0, 1, 4, 9].map(|from| rule.next_notify_step(from)), [0, 3, 5, 9]);
}

#[test]
fn more_urgent_faults_and_nodes_go_first_one_step_a_node() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).ill(plugin(), ClearedBy::Cont);
    let plan = world.plan();
    assert_eq!(acts(&plan).len(), 1);
    assert_eq!(reasons(&plan), [BlockReason::LowerUrgency]);
    let Some(Effect::WriteRemediation(remediation)) = plan.effects.get(1) else { panic!() };
    assert_eq!(remediation.steps[0].fault_id, plugin().id);
    assert_eq!(remediation.faults.len(), 2);

    world.run_to(600, Phase::Succeeded);
    assert_eq!(world.did(), [JOB_CONT, JOB_CONT]);

    let mut world = World::under(&[cont()], &["a", "b", "c"]);
    world.policies[0].limits.max_in_flight = Amount::Count(1);
    world.inject("a", hung("x"), ClearedBy::Cont);
    world.inject("b", plugin(), ClearedBy::Cont);
    world.inject("c", plugin(), ClearedBy::Cont);
    let plan = world.plan();
    assert_eq!(acts(&plan)[0].0, "b");
    assert_eq!(reasons(&plan), [BlockReason::MaxInFlightReached; 2]);
    assert_eq!(plan.policies["p"].blocked.as_ref().unwrap().0, BlockReason::MaxInFlightReached);
}

/// Told in NVIDIA/NVSentinel #1451.
#[test]
fn a_new_fault_joins_the_open_remediation() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).passed(1).ill(plugin(), ClearedBy::Cont);
    let plan = world.pass();
    assert_eq!(reasons(&plan), [BlockReason::InProgress]);
    assert_eq!(world.only_remediation().faults.len(), 2);
    world.run_to(600, Phase::Succeeded);
}

#[test]
fn a_fault_that_goes_by_itself_needs_no_act() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).scheduled();
    assert_eq!(world.step(0).state, StepState::Scheduled);
    world.node("n1").sick.clear();
    world.tick(secs(5));
    world.run(secs(60));
    assert!(world.log.is_empty());
    assert_eq!(world.phase(), Phase::Succeeded);
    assert_eq!(world.step(0).state, StepState::Cancelled);
}

#[test]
fn a_suspension_lets_the_step_under_way_finish_but_starts_no_other() {
    let mut world = World::sick(plugin(), None, &[cont(), kill(false)]).passed(1);
    world.pass_after(5);
    assert_eq!(world.phase(), Phase::Verifying);
    world.node("n1").view.exclusions.push("maintenance".into());
    world.pass();
    assert_eq!(world.phase(), Phase::Verifying);
    world.run(secs(600));
    assert_eq!(world.did(), [JOB_CONT]);
    assert_eq!(world.phase(), Phase::Cancelled);
}

#[test]
fn the_outlook_says_what_is_done() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), kill(false)]).passed(1);
    let status_view = world.pass_after(5).nodes.remove("n1").unwrap();
    assert_eq!(status_view.health, Health::Healthy, "the probe sees it gone");
    let activity = &status_view.activity;
    assert!(activity.starts_with("step 1/2 ReleaseHungProcess(SIGCONT) by Job, executed "), "{activity}");
    assert_eq!(status_view.remediation.as_ref(), Some(&world.only_remediation().name));
    let status_view = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).plan().nodes.remove("n1").unwrap();
    assert_eq!(status_view.top_fault, "HungContainer: container log of kube-system/log");
    assert_eq!(status_view.health, Health::Unhealthy);
}

#[test]
fn a_step_that_fails_for_good_may_be_the_last() {
    let mut first = cont();
    (first.max_attempts, first.cooldown, first.on_failure) = (2, secs(10), OnFailure::Stop);
    let world = World::sick(hung("log"), ClearedBy::Kill, &[first, kill(true), notify()]).ran(1200);
    assert_eq!(world.did(), [JOB_CONT, JOB_CONT, "notify"], "nothing harsher, and people are told");
    assert_eq!(world.phase(), Phase::Failed);
    let stop = |step: Step| Step { on_failure: OnFailure::Stop, ..step };
    let world = World::sick(hung("log"), ClearedBy::Cont, &[stop(cont()), kill(true)]).ran(1200);
    assert_eq!(world.phase(), Phase::Succeeded);
    let world = World::sick(hung("log"), ClearedBy::Kill, &[stop(cordon()), kill(true)]).ran(1200);
    assert_eq!(world.phase(), Phase::Succeeded, "a cordon that was made has not failed");
}

#[test]
fn a_step_that_is_a_dry_run_is_recorded_and_passed_over() {
    let shadow = |step: Step| Step { mode: Mode::DryRun, on_failure: OnFailure::Stop, ..step };
    let world = World::sick(hung("log"), ClearedBy::Cont, &[shadow(kill(true)), cont(), notify()]).ran(1200);
    assert_eq!(world.did(), [JOB_CONT], "its failure is none, and nothing waits for it");
    let states = vec![StepState::Simulated, StepState::Succeeded];
    assert_eq!((world.phase(), world.states()), (Phase::Succeeded, states));
    let said = &world.step(0).message;
    assert!(said.starts_with("not executed: the step is a dry run"), "{said}");
    // It would be held: that is recorded, and holds nothing.
    let world = World::sick(hung("log"), ClearedBy::Cont, &[shadow(kill(false)), cont()]).ran(1200);
    says(&world.step(0).message, "would be blocked");
    assert_eq!((world.phase(), world.did()), (Phase::Succeeded, vec![JOB_CONT]));
}

#[test]
fn a_node_is_not_cordoned_for_a_step_that_is_a_dry_run() {
    let shadow = Step { mode: Mode::DryRun, ..cont() };
    let world = World::sick(hung("log"), ClearedBy::Cont, &[cordon(), shadow.clone(), notify()]).ran(600);
    assert_eq!(world.did(), ["cordon", "notify", "uncordon"], "who writes a cordon alone wants it for itself");
    let world = World::sick(hung("log"), ClearedBy::Cont, &[cordon(), shadow, clean_up()]).ran(600);
    assert_eq!(world.did(), Vec::<&str>::new(), "the one step that is done cannot heal it");
}

#[test]
fn a_reserved_step_that_is_made_a_dry_run_is_not_done() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), notify()]).scheduled();
    assert_eq!(world.step(0).state, StepState::Scheduled);
    world.policies[0].rules[0].steps[0].mode = Mode::DryRun;
    world.run(secs(600));
    assert_eq!(world.did(), ["notify"], "{:?}", world.only_remediation().steps);
    assert_eq!(world.step(0).state, StepState::Cancelled);
}
