//! An attempt that goes on by the other executor.

use nrh_core::command::{OutcomeReason, OutcomeState};
use nrh_core::fault::{Fault, FaultType};
use nrh_core::plan::{Effect, Operation};
use nrh_core::policy::Step;
use nrh_core::remediation::{Executor, Phase, StepState};
use nrh_core::snapshot::TriState;

use crate::samples::{cont, fault, hung, kill, notify, restart_runtime};
use crate::world::{COMMAND_CONT, Change, ClearedBy, JOB_CONT, World};

/// A node whose probe was given a command and takes none; its kubelet works by now.
fn commanded(fault: Fault, step: Step) -> World {
    let mut world = World::sick(fault, ClearedBy::Cont, &[step]);
    let node = world.node("n1");
    (node.view.ready, node.probe_runs) = (TriState::False, false);
    world.pass();
    world.node("n1").view.ready = TriState::True;
    world
}

#[test]
fn a_command_that_is_not_taken_is_withdrawn_before_a_job_does_the_same_operation() {
    let mut world = commanded(hung("log"), cont());
    for _ in 0..3 {
        world.report_and_pass_after(20);
    }
    assert_eq!(world.did(), [COMMAND_CONT], "it is given time");
    let plan = world.report_and_pass_after(15);
    assert_eq!(world.did(), [COMMAND_CONT, JOB_CONT]);
    let withdrawn = plan.effects.iter().position(|effect| matches!(effect, Effect::WithdrawCommand { .. }));
    let is_made = |effect: &Effect| matches!(effect, Effect::Act { operation: Operation::RunJob(_), .. });
    let made = plan.effects.iter().position(is_made);
    assert!(withdrawn.is_some() && withdrawn < made, "{:?}", plan.effects);
    assert!(world.nodes["n1"].command.is_none());
    world.node("n1").probe_runs = true;
    let remediation = world.run_to(300, Phase::Succeeded);
    assert_eq!((remediation.steps.len(), remediation.steps[0].executor), (1, Executor::Job));
    let why = &remediation.steps[0].executor_reason;
    assert_eq!(why, "Probe: the node is not Ready; then Job: the probe has not answered the command within 75s");
    assert_eq!(world.acts.values().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn an_executor_is_changed_once_and_the_job_that_comes_instead_is_given_its_time() {
    let mut world = commanded(hung("log"), cont()).without_jobs();
    for waited in (10..=250).step_by(10) {
        world.report_and_pass_after(10);
        assert_eq!(world.step(0).finished_at, None, "after {waited}s");
    }
    assert_eq!(world.did(), [COMMAND_CONT, JOB_CONT]);
    world.report_and_pass_after(10);
    let step = world.step(0);
    assert_eq!((step.state, step.executor), (StepState::TimedOut, Executor::Job));
    assert!(world.jobs.is_empty(), "what does not begin is taken away");

    // Its pod's last word may come a little later than its end.
    let mut world = commanded(hung("log"), cont()).without_jobs();
    world.report_and_pass_after(75);
    for (_, job) in world.jobs.values_mut() {
        (job.started, job.finished) = (true, true);
    }
    world.report_and_pass_after(40);
    assert_eq!(world.step(0).state, StepState::Started);
    world.report_and_pass_after(5);
    let step = world.step(0);
    assert_eq!((step.state, step.message.as_str()), (StepState::TimedOut, "the Job ended without a result"));
}

#[test]
fn no_job_is_made_where_none_could_start_or_the_command_is_taken_or_only_the_probe_may_do_it() {
    let cases: [(&'static str, Change, u64); 4] = [
        ("none could start", |w| w.node("n1").view.ready = TriState::False, 100),
        ("it is taken", |w| w.probe_answers(OutcomeState::Running, OutcomeReason::Executed, ""), 100),
        ("the probe may not act", |w| w.heartbeat("n1").actions_enabled = false, 60),
        ("so late it is not begun anew", |_| {}, 140),
    ];
    for (name, change, seconds) in cases {
        let mut world = commanded(hung("log"), cont());
        change(&mut world);
        world.report_and_pass_after(seconds);
        assert_eq!((world.did(), world.step(0).executor), (vec![COMMAND_CONT], Executor::Probe), "{name}");
    }

    let mut world = commanded(fault(FaultType::RuntimeListHung, "it"), restart_runtime(true));
    world.report_and_pass_after(100);
    assert_eq!(world.did(), ["command RestartRuntime"], "a Job might end with what it restarts");
}

/// A node without its network has not tried anything: the same step is tried again when it is back, and no harsher one.
#[test]
fn an_attempt_that_never_reached_its_node_costs_nothing() {
    for (passes, remediations) in [(40, 1), (240, 2)] {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), kill(true), notify()]).without_jobs();
        world.pass();
        world.node("n1").probe_runs = false;
        world.live(passes, 5);
        let step = world.remediations.values().next().unwrap().steps[0].clone();
        assert_eq!((step.state, step.reason), (StepState::Refused, None));
        let why = "the action could not be started in time, and the probe of node n1 does not report";
        assert_eq!(step.message, why);
        let node = world.node("n1");
        (node.job_starts, node.probe_runs) = (true, true);
        world.live(100, 5);
        assert_eq!(world.remediations.len(), remediations, "{:#?}", world.remediations);
        assert_eq!(world.remediations.values().last().unwrap().phase, Phase::Succeeded);
        assert!(!world.did().iter().any(|what| what.contains("SIGKILL")), "{:?}", world.did());
    }
}

#[test]
fn a_command_that_reached_its_node_too_late_costs_nothing() {
    let mut world = commanded(hung("log"), cont());
    world.probe_answers(OutcomeState::Refused, OutcomeReason::Expired, "too old");
    world.node("n1").probe_runs = true;
    assert_eq!(world.run_to(300, Phase::Succeeded).steps.len(), 2);
}
