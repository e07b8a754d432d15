//! A remediation that was stopped keeps its slot while its node may still execute the step that was given to it.

use nrh_core::budget::Slots;
use nrh_core::command::{OutcomeReason, OutcomeState};
use nrh_core::fault::FaultType;
use nrh_core::plan::BlockReason;
use nrh_core::policy::{ActionType, Amount, Mode, Step};
use nrh_core::remediation::{Cancel, Executor, Phase, Remediation, StepRecord, StepState};
use nrh_core::tri_state::TriState;

use crate::samples::{self, asked, cordon, critical, mark_for_reboot, policy, restart_kubelet, rule, secs, soft_taint};
use crate::world::{Change, Chaos, World, reasons};

/// The lag of a cache, the time to live of a command, and the time to an answer.
const LONGEST: u64 = 60 + 120 + 170;

/// Two nodes with the same fault, and one slot. The first node was given its step, and its probe is cut off.
fn given(steps: &[Step]) -> World {
    let mut policy = policy("p", &[rule("r", &[FaultType::KubeletDown], steps)]);
    policy.limits.max_in_flight = Amount::Count(1);
    let mut world = World::new(&[policy], &["n1", "n2"]).ill(critical(FaultType::KubeletDown), None);
    world.until(secs(60), "given to n1", |world| world.nodes["n1"].command.is_some());
    world.node("n1").probe_runs = false;
    world.inject("n2", critical(FaultType::KubeletDown), None);
    world.live(2, 5);
    assert!(of(&world, "n2").is_none() && attempt(&world).started_at.is_some());
    world
}

fn of<'w>(world: &'w World, node: &str) -> Option<&'w Remediation> {
    world.remediations.values().find(|remediation| remediation.node == node)
}

fn attempt(world: &World) -> &StepRecord {
    of(world, "n1").unwrap().steps.last().unwrap()
}

fn cancel(world: &mut World) {
    drop(world.cancel("n1", &Cancel { cancelled_by: "ann".into(), reason: None }));
}

/// How many seconds pass until the other node gets the slot.
fn until_next(world: &mut World) -> u64 {
    world.until(secs(1_000), "begun on n2", |world| of(world, "n2").is_some())
}

#[test]
fn the_slot_of_a_stopped_remediation_is_kept_for_as_long_as_its_node_may_execute_the_step() {
    let stops: [(&'static str, Change); 3] = [
        ("cancelled", cancel),
        ("deleted", World::delete_remediations),
        ("uncordoned", |world| world.node("n1").view.unschedulable = false),
    ];
    for (name, stop) in stops {
        let mut world = given(&[cordon(), restart_kubelet()]);
        stop(&mut world);
        world.live(4, 5);
        let stopped = of(&world, "n1").unwrap();
        assert_eq!((stopped.phase, stopped.finished_at), (Phase::Cancelled, None), "{name}");
        assert!(world.nodes["n1"].command.is_none(), "{name}: the command is withdrawn at once");
        assert_eq!(world.is_cordoned(), name != "uncordoned", "{name}");
        let plan = world.plan();
        let expected = "node n1 has not answered and may still execute RestartKubelet: ";
        assert!(plan.nodes["n1"].activity.starts_with(expected), "{name}: {}", plan.nodes["n1"].activity);
        assert_eq!(reasons(&plan), [BlockReason::InProgress, BlockReason::MaxInFlightReached], "{name}");
        let waited = 20 + until_next(&mut world);
        assert!((LONGEST..LONGEST + 30).contains(&waited), "{name}: {waited}");
        assert!(of(&world, "n1").is_none_or(|ended| ended.finished_at.is_some()), "{name}");
        assert!(!world.is_cordoned(), "{name}");
    }
}

#[test]
fn an_answer_of_the_node_ends_the_wait() {
    for (state, reason, is_end) in [
        (OutcomeState::Running, OutcomeReason::Executed, false),
        // Who has claimed it may still be at it.
        (OutcomeState::Refused, OutcomeReason::AlreadyExecuted, false),
        (OutcomeState::Done, OutcomeReason::Executed, true),
        (OutcomeState::Refused, OutcomeReason::CheckFailed, true),
        (OutcomeState::Failed, OutcomeReason::RequestFailed, true),
    ] {
        let mut world = given(&[restart_kubelet()]);
        cancel(&mut world);
        world.live(2, 5);
        world.probe_answers(state, reason, "");
        let waited = until_next(&mut world);
        assert_eq!(waited <= 10, is_end, "{reason:?}: {waited}");
    }
}

/// As after a restart of the probe in the midst of the step.
#[test]
fn a_fault_that_is_gone_after_a_step_without_a_result_has_not_recovered_by_itself() {
    let mut world = given(&[restart_kubelet()]);
    world.probe_answers(OutcomeState::Refused, OutcomeReason::AlreadyExecuted, "another start has claimed it");
    world.node("n1").probe_runs = true;
    world.recover("n1");
    world.until(secs(400), "at its end", |world| attempt(world).state == StepState::TimedOut);
    let said = &attempt(&world).message;
    assert!(said.contains("the executor that claimed it has given no result"), "{said}");
    world.until(secs(30), "resolved", |world| of(world, "n1").unwrap().message.contains("KubeletDown is gone now"));
}

/// The API server does not remove the command, so a node that comes back reads it and takes it for timely.
#[test]
fn a_command_that_stands_is_waited_for_until_no_node_takes_it() {
    let mut world = given(&[restart_kubelet()]);
    let command = world.nodes["n1"].command.clone();
    cancel(&mut world);
    let mut waited = 0;
    while of(&world, "n2").is_none() {
        world.node("n1").command.clone_from(&command);
        world.live(1, 10);
        waited += 10;
        assert!(waited < 5_000);
    }
    // Its time to live, an hour for clocks, and the time to an answer, all since it was given.
    assert!((3_800..=3_900).contains(&waited), "{waited}");
}

/// A kubelet that reaches the API server ends the pod of a deleted Job.
#[test]
fn a_job_on_a_ready_node_is_waited_for_only_until_its_pod_has_ended() {
    for (ready, longest) in [(TriState::True, 60 + 30), (TriState::False, LONGEST)] {
        let mut world = World::sick(samples::hung("log"), None, &[samples::cont()]).passed(1);
        assert!(attempt(&world).started_at.is_some() && attempt(&world).executor == Executor::Job);
        cancel(&mut world);
        world.pass();
        world.node("n1").view.ready = ready;
        let ended = |world: &World| of(world, "n1").unwrap().finished_at.is_some();
        let waited = world.until(secs(1_000), "at its end", ended);
        assert!((longest - 10..longest + 20).contains(&waited), "{ready:?}: {waited}");
    }
}

#[test]
fn a_step_that_was_not_given_to_its_node_keeps_no_slot() {
    let mut world = World::alone(critical(FaultType::KubeletDown), None, &[restart_kubelet()]).scheduled();
    assert!(attempt(&world).started_at.is_none());
    cancel(&mut world);
    world.live(2, 5);
    assert!(of(&world, "n1").unwrap().finished_at.is_some(), "{:#?}", of(&world, "n1"));
}

/// The controller died after the call, or its record was refused. The command in place is the proof.
#[test]
fn a_step_whose_start_was_not_recorded_keeps_its_slot_too() {
    let mut world = World::alone(critical(FaultType::KubeletDown), None, &[restart_kubelet()]);
    world.disturbed_pass(&Chaos { crash_after: Some(3), ..Chaos::default() });
    assert!(world.nodes["n1"].command.is_some() && attempt(&world).started_at.is_none(), "{:?}", world.did());
    world.node("n1").probe_runs = false;
    cancel(&mut world);
    world.live(4, 5);
    let stopped = of(&world, "n1").unwrap();
    assert_eq!((stopped.phase, stopped.finished_at), (Phase::Cancelled, None));
    assert!(world.nodes["n1"].command.is_none());
}

#[test]
fn a_ledger_that_was_lost_is_rebuilt_with_that_slot() {
    let mut world = given(&[restart_kubelet()]);
    cancel(&mut world);
    world.live(4, 5);
    world.ledger = None;
    world.settings.rebuild_ledger = true;
    world.live(4, 5);
    assert!(of(&world, "n2").is_none());
    assert_eq!(world.slots().len(), 1);
}

#[test]
fn a_remediation_that_waits_for_its_node_and_for_a_person_does_not_rest() {
    let mut world = given(&[restart_kubelet(), asked(restart_kubelet())]);
    // It reports, and does not come to the command.
    let may_act = |world: &mut World, is_so: bool| {
        world.node("n1").probe_runs = true;
        world.heartbeat("n1").actions_enabled = is_so;
    };
    may_act(&mut world, false);
    world.until(secs(600), "over", |world| attempt(world).finished_at.is_some());
    may_act(&mut world, true);
    world.until(secs(60), "waiting for a person", |world| of(world, "n1").unwrap().awaiting().is_some());
    let rests = |world: &World| {
        let slots = Slots::reconcile(&world.snapshot(), &world.settings);
        slots.at_work_for("p", Mode::Enforce, &[FaultType::KubeletDown].into(), None) == 0
    };
    assert!(!rests(&world));
    world.live(LONGEST / 5 + 1, 5);
    assert!(rests(&world));
}

/// A tool may have reacted to the mark, whenever the controller hears of it.
#[test]
fn a_mark_that_is_answered_late_keeps_the_node_cordoned() {
    let mut world = World::sick(samples::silent(), None, &[cordon(), mark_for_reboot(), samples::notify()]);
    world.until(secs(60), "given", |world| world.nodes["n1"].command.is_some());
    world.node("n1").probe_runs = false;
    world.until(secs(1_000), "over", |world| attempt(world).action == ActionType::Notify);
    let given = &of(&world, "n1").unwrap().steps[1];
    assert_eq!((given.state, given.reason), (StepState::TimedOut, None));
    let set = world.answer(&given.operation_id, OutcomeState::Done, OutcomeReason::Executed, "set");
    world.node("n1").report.agent = Some(set);
    world.live(100, 5);
    assert!(world.is_cordoned());
    let plan = world.plan();
    let expected = "node n1 was marked for a reboot and may still reboot: remediation ";
    assert!(plan.nodes["n1"].activity.starts_with(expected), "{}", plan.nodes["n1"].activity);
    assert!(of(&world, "n1").unwrap().steps[1].message.ends_with("; later answered: set"));
}

#[test]
fn a_reboot_that_awaited_approval_is_not_waited_for_once_its_policy_is_gone() {
    let mut world = World::sick(samples::silent(), None, &[cordon(), asked(samples::reboot())]);
    world.until(secs(60), "waiting for a person", |world| of(world, "n1").unwrap().awaiting().is_some());
    world.policies.clear();
    world.live(4, 5);
    assert!(of(&world, "n1").unwrap().finished_at.is_some() && !world.is_cordoned());
}

/// Its end is what its steps have made of it, whatever becomes of its policy while it waits.
#[test]
fn what_has_only_its_node_to_wait_for_says_so_and_needs_no_policy() {
    let mut world = given(&[soft_taint(), restart_kubelet()]);
    world.until(secs(600), "over", |world| attempt(world).finished_at.is_some());
    world.live(2, 5);
    let activity = world.plan().nodes["n1"].activity.clone();
    let expected = "node n1 has not answered and may still execute RestartKubelet: remediation n1-";
    assert!(activity.starts_with(expected) && activity.contains(" stays open, with its taint, until "), "{activity}");
    world.policies.clear();
    world.live(LONGEST / 5 + 5, 5);
    assert_eq!(of(&world, "n1").unwrap().phase, Phase::Failed);
}

/// The executor that has claimed it may have ended without a result.
#[test]
fn an_attempt_that_another_start_has_claimed_times_out_and_keeps_its_slot_until_nobody_can_be_at_it() {
    let mut world = given(&[restart_kubelet()]);
    let operation_id = attempt(&world).operation_id.clone();
    world.node("n1").claimed.insert(operation_id, None);
    world.node("n1").probe_runs = true;
    world.until(secs(600), "over", |world| attempt(world).finished_at.is_some());
    assert_eq!((attempt(&world).state, attempt(&world).reason), (StepState::TimedOut, None));
    let waited = until_next(&mut world);
    assert!((LONGEST..LONGEST + 30).contains(&waited), "{waited}: {:#?}", of(&world, "n1"));
}

/// Its object stays for ten minutes. On a node that is not Ready its end may be somebody else's word.
#[test]
fn a_finished_job_is_executed_by_nobody_any_more() {
    for (ready, least) in [(TriState::True, 0), (TriState::False, LONGEST - 60)] {
        let mut world = World::sick(samples::hung("log"), None, &[samples::cont()]).without_jobs().passed(1);
        for (_, job) in world.jobs.values_mut() {
            (job.started, job.finished, job.pod_ended) = (true, true, true);
        }
        world.node("n1").view.ready = ready;
        world.until(secs(60), "over", |world| attempt(world).state == StepState::TimedOut);
        let waited = world.until(secs(600), "failed", |world| of(world, "n1").unwrap().phase == Phase::Failed);
        assert!((least..least + 65).contains(&waited), "{ready:?}: {waited}");
        assert_eq!(world.jobs.len(), 1);
    }
}

/// The suspension ends the attempt in the pass in which the probe was to take it over.
#[test]
fn who_was_not_asked_is_not_waited_for() {
    let mut world = World::sick(samples::hung("log"), None, &[samples::cont()]).without_jobs().passed(1);
    world.policies[0].suspend = true;
    world.until(secs(60), "over", |world| attempt(world).state == StepState::Cancelled);
    assert!(attempt(&world).executor_changed_at.is_some(), "{:?}", attempt(&world));
    let waited = world.until(secs(600), "at its end", |world| of(world, "n1").unwrap().finished_at.is_some());
    assert!((60..125).contains(&waited), "the pod of its Job may still run for that long: {waited}");
}

/// Nobody knows whether a node that is out of reach executes what it has read.
#[test]
fn an_attempt_without_an_answer_keeps_its_slot_after_the_last_step() {
    let mut world = given(&[restart_kubelet()]);
    world.until(secs(600), "over", |world| attempt(world).finished_at.is_some());
    let waited = until_next(&mut world);
    assert!((LONGEST..LONGEST + 30).contains(&waited), "{waited}: {:#?}", of(&world, "n1"));
    assert_eq!(of(&world, "n1").unwrap().phase, Phase::Failed);
}
