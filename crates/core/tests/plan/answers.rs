//! What nodes answer, and what is believed of it.

use std::time::Duration;

use nrh_core::command::{OutcomeReason, OutcomeState};
use nrh_core::fault::{FaultState, FaultType, MAX_FAULTS, Severity};
use nrh_core::plan::{BlockReason, Effect, Plan, SelfHealing};
use nrh_core::policy::Step;
use nrh_core::remediation::{ActionResult, Executor, Phase, StepRecord, StepState, executed};
use nrh_core::snapshot::TriState;

use crate::pods::stuck;
use crate::samples::{backing_off, cont, cordon, delete_pod, fault, hand_off, hung, kill, notify, plugin};
use crate::world::{COMMAND_CONT, Chaos, ClearedBy, JOB_CONT, JOB_KILL, World, notification, reasons, says, secs};

/// So many passes, none of which asks for the next one at once.
fn live_calmly(world: &mut World, passes: usize) -> Vec<Plan> {
    let pass = |_| {
        let plan = world.pass();
        assert!(plan.next.is_none_or(|next| next >= Duration::from_millis(100)), "a busy loop: {:?}", plan.next);
        world.tick(secs(5));
        plan
    };
    (0..passes).map(pass).collect()
}

/// The attempt is one action, whoever does it, so the limit of the node counts it once.
#[test]
fn a_job_that_does_not_start_makes_room_for_the_agent_with_the_same_operation() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).without_jobs();
    world.policies[0].limits.per_node.max_actions = 1;
    world.run(secs(300));
    assert_eq!(world.did(), [JOB_CONT, COMMAND_CONT]);
    let remediation = world.only_in(Phase::Succeeded);
    assert_eq!((remediation.steps.len(), remediation.steps[0].executor), (1, Executor::Probe));
    assert!(world.jobs.is_empty(), "the Job is taken away");
    assert!(world.nodes["n1"].command.is_none(), "the command is taken back");
    assert_eq!(world.acts.values().copied().collect::<Vec<_>>(), [1]);
}

/// A kubelet that shuts its node down, or has no room, fails the pod at once: nothing was touched, so nothing harsher follows on it.
#[test]
fn a_job_whose_pod_the_kubelet_refuses_makes_room_for_the_agent_at_once_and_with_the_same_operation() {
    let mut world = World::sick(plugin(), ClearedBy::Cont, &[cont(), kill(false)]).without_jobs().passed(1);
    for (_, job) in world.jobs.values_mut() {
        (job.rejected, job.finished) = (Some("NodeShutdown".to_owned()), true);
    }
    world.pass_after(1);
    world.pass();
    assert_eq!(world.did(), [JOB_CONT, COMMAND_CONT]);
    let said = "the kubelet refused the Job's pod (NodeShutdown), the probe is asked instead";
    assert_eq!(world.step(0).message, said);
    let remediation = world.run_to(300, Phase::Succeeded);
    assert_eq!((remediation.steps.len(), remediation.steps[0].executor), (1, Executor::Probe));
    assert_eq!(world.acts.values().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_job_that_ended_without_a_result_times_out_since_its_result_may_still_arrive() {
    let mut world = World::sick(plugin(), ClearedBy::Kill, &[cont(), kill(false)]).without_jobs().passed(1);
    for (_, job) in world.jobs.values_mut() {
        (job.started, job.finished) = (true, true);
    }
    world.report_and_pass_after(46);
    let step = world.step(0);
    assert_eq!((step.state, step.executor), (StepState::TimedOut, Executor::Job));
    assert_eq!(step.message, "the Job ended without a result");
}

#[test]
fn a_command_that_was_never_answered_makes_room_for_the_next_one() {
    let mut world = World::sick(plugin(), ClearedBy::Kill, &[cont(), kill(false)]);
    let node = world.node("n1");
    node.view.ready = TriState::False;
    node.probe_runs = false;
    world.pass();
    let wait = |world: &mut World, passes: u64| (0..passes).for_each(|_| drop(world.report_and_pass_after(10)));
    wait(&mut world, 19);
    assert_eq!(world.step(0).state, StepState::TimedOut);
    wait(&mut world, 22);
    // Heartbeats that are missed meanwhile skip no step.
    world.wait(7, 10);
    wait(&mut world, 4);
    assert_eq!(world.did(), [COMMAND_CONT], "the node may still execute it");
    wait(&mut world, 2);
    assert_eq!(world.did(), [COMMAND_CONT, "command ReleaseHungProcess(SIGKILL)"]);
    let command = world.nodes["n1"].command.clone().unwrap();
    assert!(command.operation_id.ends_with("-2"), "{command:?}");
    world.node("n1").probe_runs = true;
    world.run_to(60, Phase::Succeeded);
}

/// What comes back from an act, and how the record stands after it.
#[test]
fn the_result_of_an_act_is_written_into_its_step_alone() {
    let world = World::sick(hung("log"), ClearedBy::Cont, &[cordon(), cont()]).scheduled();
    let (remediation, now) = (world.only_remediation().clone(), world.now);
    let id = remediation.steps[0].operation_id.clone();
    let text = || "why".to_owned();
    let refused = ActionResult::Refused { reason: OutcomeReason::WrongNode, message: text() };
    let cases = [
        (ActionResult::Done { message: text() }, StepState::Succeeded, true),
        (ActionResult::AlreadyCordoned, StepState::Succeeded, false),
        (refused, StepState::Refused, false),
        // The call may have reached the API server all the same.
        (ActionResult::Failed { message: text() }, StepState::Failed, true),
    ];
    for (result, state, is_pending) in cases {
        let next = executed(&remediation, &id, result.clone(), now);
        assert_eq!((next.steps[0].state, next.cleanup.is_pending()), (state, is_pending), "{result:?}");
        assert_eq!(next.steps[0].finished_at, Some(now), "{result:?}");
        assert_eq!(executed(&next, &id, ActionResult::Started, now), next, "a late answer changes nothing");
        assert_eq!(executed(&remediation, "another-1", result, now), remediation, "nor does another operation's");
    }
    let next = executed(&remediation, &id, ActionResult::Started, now);
    assert_eq!((next.steps[0].state, next.phase), (StepState::Started, Phase::Running));
}

/// Our own misconfiguration must not bring the node the harsher step, let alone within milliseconds.
#[test]
fn a_call_that_the_api_server_refuses_waits_and_is_followed_by_a_notification_alone() {
    for (cool_down, wait) in [(secs(0), 10), (secs(60), 60)] {
        let first = Step { cooldown: cool_down, ..cont() };
        let mut world = World::sick(plugin(), ClearedBy::Kill, &[first, kill(false), notify()]);
        world.refuses = true;
        let begin = world.now;
        world.passes(50);
        assert_eq!(world.did(), ["refused job ReleaseHungProcess(SIGCONT)"], "fifty passes at one moment");
        let plan = world.plan();
        assert_eq!(reasons(&plan), [BlockReason::RequestRejected], "{:?}", plan.blocked);
        assert!(plan.blocked[0].message.contains("not allowed here (403)"), "{:?}", plan.blocked);
        let status_view = &plan.nodes["n1"];
        assert_eq!(status_view.self_healing, SelfHealing::ManualActionRequired, "a person is needed");
        assert!(status_view.activity.contains("not allowed here (403)"), "{}", status_view.activity);
        assert!(plan.next.is_some_and(|next| next <= secs(wait)), "{:?}", plan.next);

        let mut text = None;
        while world.only_remediation().is_open() {
            world.tick(secs(1));
            text = notification(&world.pass()).map(str::to_owned).or(text);
        }
        says(&text.unwrap(), "was not executed: creating Job");
        let steps = &world.only_remediation().steps;
        let tried: Vec<_> = steps.iter().map(|step| step.step_index).collect();
        assert_eq!(tried, [0, 0, 0, 2], "never the harsher step");
        let refused = format!("creating Job {} failed: not allowed here (403)", steps[0].operation_id);
        assert_eq!(steps[0].message, refused);
        let notified = steps[3].scheduled_at.duration_since(begin).as_secs();
        assert_eq!(notified, 3 * i64::try_from(wait).unwrap(), "three waits before people are notified");
        assert_eq!(world.phase(), Phase::Failed);
    }
}

/// Every call for a step failed, by an error that is no refusal: a webhook that is down, say.
#[test]
fn a_step_whose_calls_all_failed_is_followed_by_a_notification_alone() {
    let worlds = [
        World::sick(plugin(), ClearedBy::Kill, &[cont(), kill(false), notify()]),
        World::sick(plugin(), ClearedBy::Kill, &[hand_off("Fix"), kill(true), notify()]),
        stuck(&[delete_pod(), hand_off("Fix"), notify()]),
    ];
    for mut world in worlds {
        for _ in 0..400 {
            world.schedule();
            world.tick(secs(5));
        }
        let steps = &world.only_remediation().steps;
        let tried: Vec<_> = steps.iter().map(|step| step.step_index).collect();
        // The notification's own calls fail too.
        assert_eq!(tried[..4], [0, 0, 0, 2], "never the harsher step: {steps:?}");
        assert!(!tried.contains(&1), "{tried:?}");
        assert!(steps[0].is_refused_call(), "{:?}", steps[0]);
    }
}

#[test]
fn the_note_about_a_step_whose_calls_all_failed_says_no_more_than_is_known() {
    let mut world = World::sick(plugin(), ClearedBy::Kill, &[cont(), kill(false), notify()]);
    while world.remediations.is_empty() || world.states() != [StepState::Failed; 3] {
        world.schedule();
        world.tick(secs(5));
    }
    // So the notification waits.
    world.admission_not_enforced = Some("nrh-jobs is missing".to_owned());
    world.wait(24, 5);
    let note = "step 1 ReleaseHungProcess of rule r could not be begun, and nothing harsher follows";
    assert_eq!(world.only_remediation().message, note);
}

/// The controller could not read the answer of the API server, which did what it was asked for.
#[test]
fn what_was_done_unseen_is_no_failed_call() {
    let mut deleted = stuck(&[delete_pod(), notify()]).scheduled();
    let mut successor = backing_off("n1", "agent-2");
    (successor.waiting, successor.ready) = (Vec::new(), true);
    deleted.node("n1").pods = vec![successor];
    deleted.wait(40, 5);
    let remediation = deleted.only_remediation();
    assert_eq!((remediation.phase, remediation.steps[0].state), (Phase::Succeeded, StepState::Cancelled));

    let mut handed = World::sick(plugin(), ClearedBy::HandOff, &[hand_off("Fix"), notify()]);
    handed.disturbed_pass(&Chaos { failing: [3].into(), ..Chaos::default() });
    handed.wait(1, 5);
    let step = handed.step(0);
    assert!(step.started_at.is_some() && !step.is_refused_call(), "{step:?}");
}

#[test]
fn the_last_step_does_not_come_sooner_than_a_refused_call_may_be_repeated() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    world.refuses = true;
    world.live(100, 1);
    assert!(world.only_remediation().is_open());
    world.refuses = false;
    world.run(secs(300));
    assert_eq!(world.phase(), Phase::Succeeded, "one attempt was allowed, and refusals cost none");

    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    world.refuses = true;
    world.run(secs(600));
    assert_eq!((world.phase(), world.states().len()), (Phase::Failed, 3), "every wait has an end");
}

/// A node that tried and failed is no refusal: the object may have been touched.
#[test]
fn a_call_that_failed_on_the_node_costs_an_attempt() {
    let mut world = World::sick(plugin(), ClearedBy::Kill, &[cont(), kill(false)]).without_jobs().passed(1);
    world.jobs_end(OutcomeState::Failed, OutcomeReason::RequestFailed, "kill: not permitted");
    world.pass();
    assert_eq!(world.did(), [JOB_CONT, JOB_KILL]);
    assert!(!world.step(0).is_refused_call());
}

#[test]
fn no_answer_ends_the_attempt() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).without_jobs().passed(1);
    // Switched off after the command was given: nobody takes it up.
    world.heartbeat("n1").actions_enabled = false;
    assert_eq!(world.run_to(600, Phase::Failed).steps[0].state, StepState::TimedOut);
    assert!(world.jobs.is_empty());
}

#[test]
fn a_changed_target_or_a_busy_node_costs_no_attempt_but_not_for_ever() {
    // What could not be tried is followed by a notification alone.
    for (reason, tried) in [
        (OutcomeReason::TargetChanged, vec![0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2]),
        (OutcomeReason::CheckFailed, vec![0, 0, 0, 0, 0, 2]),
        (OutcomeReason::KubeletBusy, vec![0, 0, 0, 0, 0, 2]),
        (OutcomeReason::AlreadyRebooted, vec![0, 0, 0, 0, 0, 2]),
    ] {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), kill(true), notify()]).without_jobs();
        for _ in 0..400 {
            world.pass();
            world.jobs_end(OutcomeState::Refused, reason, "not now");
            world.tick(secs(5));
        }
        let remediation = world.remediations.values().next().unwrap();
        let steps = &remediation.steps;
        assert_eq!(steps.iter().map(|step| step.step_index).collect::<Vec<_>>(), tried, "{reason:?}: {steps:?}");
        let is_refused = |step: &StepRecord| step.state == StepState::Refused || step.action.notifies();
        assert!(steps.iter().all(is_refused), "{steps:?}");
        assert_eq!(remediation.phase, Phase::Failed);
    }
}

#[test]
fn what_another_start_has_claimed_ends_with_the_answer_of_that_start() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).passed(1);
    let id = world.step(0).operation_id.clone();
    world.node("n1").claimed.insert(id, None);
    world.wait(10, 5);
    let step = world.step(0);
    assert_eq!((step.state, step.executed_at, step.reason), (StepState::Started, None, None), "it may still be at it");
    for (state, reason, expected) in [
        (OutcomeState::Refused, OutcomeReason::Expired, StepState::Started),
        (OutcomeState::Failed, OutcomeReason::RequestFailed, StepState::Failed),
        (OutcomeState::Done, OutcomeReason::Executed, StepState::Verifying),
    ] {
        let mut world = world.clone();
        world.probe_answers(state, reason, "");
        world.pass();
        let expected = (expected, (expected != StepState::Started).then_some(reason));
        assert_eq!((world.step(0).state, world.step(0).reason), expected);
    }
}

#[test]
fn of_two_answers_the_one_that_acted_counts() {
    let world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).passed(1);
    let id = world.step(0).operation_id.clone();
    let acted = (OutcomeState::Done, OutcomeReason::Executed);
    for (job, agent) in [
        ((OutcomeState::Refused, OutcomeReason::AlreadyExecuted), acted),
        ((OutcomeState::Refused, OutcomeReason::Recovered), acted),
        (acted, (OutcomeState::Failed, OutcomeReason::RequestFailed)),
    ] {
        let answer = |(state, reason)| Some(world.answer(&id, state, reason, ""));
        let plan = world.plan_with(|snapshot| {
            snapshot.jobs.get_mut(&id).unwrap().outcome = answer(job);
            snapshot.reports.get_mut("n1").unwrap().agent = answer(agent);
        });
        let Some(Effect::WriteRemediation(remediation)) = plan.effects.first() else { panic!("{:?}", plan.effects) };
        assert_eq!((remediation.phase, remediation.steps[0].reason), (Phase::Verifying, Some(OutcomeReason::Executed)));
    }
}

#[test]
fn only_a_report_after_the_act_shows_its_effect_and_only_for_long_enough() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).passed(1);
    world.pass_after(5);
    let executed_at = world.step(0).executed_at.unwrap();
    world.now = world.now.checked_add(secs(10)).unwrap();
    world.heartbeat("n1").arrived = secs(11);
    let waiting = world.plan();
    assert!(waiting.effects.is_empty(), "a report from before the act is no cure: {:?}", waiting.effects);
    assert!(waiting.nodes["n1"].check_sequence, "a new one is asked for");

    world.node("n1").send();
    world.pass();
    let step = world.step(0).clone();
    assert_eq!((step.state, step.clear_since), (StepState::Verifying, Some(world.now)));
    world.pass_after(4);
    assert_eq!(world.phase(), Phase::Verifying, "4 s of the 5 s it must stay away");
    world.inject("n1", hung("log"), None);
    world.pass();
    assert_eq!(world.step(0).clear_since, None, "it came back");
    world.node("n1").sick.clear();
    world.pass_after(1);
    world.pass_after(5);
    assert_eq!(world.phase(), Phase::Succeeded);
    assert_eq!(world.step(0).executed_at, Some(executed_at));
}

#[test]
fn a_full_report_may_have_left_the_fault_out() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).passed(1);
    world.pass_after(5);
    for i in 0..MAX_FAULTS {
        let mut other = fault(FaultType::KubeletDown, &format!("x{i}"));
        other.state = FaultState::Suspected;
        world.node("n1").sick.push(crate::world::injected_fault(other, None));
    }
    world.wait(3, 20);
    assert_eq!(world.phase(), Phase::Verifying);
    world.node("n1").sick.pop();
    world.tick(secs(5));
    world.run_to(20, Phase::Succeeded);
}

#[test]
fn a_report_that_contradicts_itself_is_read_the_same_in_any_order() {
    for severity in [Severity::Low, Severity::High, Severity::Critical] {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
        let mut uncertain = hung("log");
        (uncertain.state, uncertain.severity) = (FaultState::Suspected, severity);
        world.inject("n1", uncertain, ClearedBy::Cont);
        let first = world.plan();
        assert!(first.effects.is_empty(), "the doubt counts");
        world.node("n1").sick.reverse();
        world.node("n1").send();
        assert_eq!(world.plan(), first);
    }
}

#[test]
fn a_probe_that_falls_silent_after_a_refusal_holds_the_slot_for_a_while_only() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cordon(), cont()]).without_jobs().passed(2);
    world.jobs_end(OutcomeState::Refused, OutcomeReason::CheckFailed, "not now");
    world.node("n1").probe_runs = false;
    live_calmly(&mut world, 360);
    let remediation = world.only_remediation();
    assert!(!remediation.is_open(), "{}: {:?}", remediation.message, remediation.steps);
    assert!(!world.is_cordoned(), "and its cordon is taken back");
}

#[test]
fn people_are_told_without_a_fresh_check_after_a_while_and_not_before() {
    // Nobody knows when a check was that no watch has brought; or the probe is always a little late.
    for checked in [secs(86_400), secs(60)] {
        let mut world = World::alone(hung("log"), None, &[cont(), notify()]);
        world.live(10, 5);
        world.node("n1").checked = checked;
        world.until(secs(600), "failed", |world| world.step(0).state == StepState::Failed);
        let told = world.until(secs(600), "told", |world| world.did().contains(&"notify"));
        assert!(told >= 170, "a look may still come: {told}");
    }
}

#[test]
fn without_a_ledger_no_step_is_used_up() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), kill(true), notify()]).scheduled();
    let ledger = world.ledger.take();
    for _ in 0..240 {
        let plan = world.pass();
        let waits = |why: &BlockReason| [BlockReason::LedgerUnavailable, BlockReason::Cooldown].contains(why);
        assert!(reasons(&plan).iter().all(waits) && !plan.blocked.is_empty(), "{:?}", plan.blocked);
        world.tick(secs(5));
    }
    world.ledger = ledger;
    world.run(secs(300));
    assert_eq!(world.did(), [JOB_CONT], "the same step comes first: {:?}", world.only_remediation().steps);
    assert_eq!(world.phase(), Phase::Succeeded);
}

/// Its slot is stored.
#[test]
fn a_step_that_waits_for_the_admission_policies_ends_with_their_message() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), kill(true), notify()]).scheduled();
    world.admission_not_enforced = Some("nrh-jobs is missing".to_owned());
    world.wait(48, 5);
    let step = world.step(0);
    assert_eq!((step.state, step.message.as_str()), (StepState::Cancelled, "nrh-jobs is missing"));
    world.admission_not_enforced = None;
    world.run(secs(300));
    assert_eq!((world.did(), world.phase()), (vec![JOB_CONT], Phase::Succeeded));
}

#[test]
fn people_are_told_when_the_probe_falls_silent_before_they_were() {
    for is_told_first in [false, true] {
        let mut world = World::alone(hung("log"), None, &[cont(), notify()]).passed(1);
        if is_told_first {
            world.run(secs(900));
        }
        world.node("n1").probe_runs = false;
        let plans = live_calmly(&mut world, 360);
        assert_eq!(world.did(), [JOB_CONT, "notify"], "told {is_told_first}");
        assert_eq!(world.phase(), Phase::Failed);
        let mut blocked = plans.iter().flat_map(|plan| &plan.blocked);
        let claims = blocked.any(|blocked| blocked.message.contains("and it is still there"));
        assert!(is_told_first || !claims, "nobody knows that");
    }
}

#[test]
fn a_silence_uses_up_no_step_and_what_it_left_undone_follows_once_the_probe_reports() {
    for (silence, did, phases) in [
        (280, vec![JOB_CONT], vec![Phase::Succeeded]),
        (900, vec!["notify", JOB_CONT], vec![Phase::Failed, Phase::Succeeded]),
    ] {
        let mut world = World::alone(hung("log"), ClearedBy::Cont, &[cont(), kill(true), notify()]).scheduled();
        let fresh = std::mem::replace(&mut world.node("n1").checked, secs(60));
        world.node("n1").send();
        world.node("n1").probe_runs = false;
        world.live(silence / 5, 5);
        (world.node("n1").checked, world.node("n1").probe_runs) = (fresh, true);
        world.live(60, 5);
        assert_eq!(world.did(), did, "{silence} s");
        assert_eq!(world.remediations.values().map(|one| one.phase).collect::<Vec<_>>(), phases, "{silence} s");
    }
}

/// For a while nobody knows whether the fault is still there, or the probe's check of itself fails.
#[test]
fn what_nobody_may_try_for_a_while_uses_up_no_step() {
    type Change = fn(&mut World, bool);
    let clearing: Change = |world, is| {
        let state = if is { FaultState::Clearing } else { FaultState::Confirmed };
        world.node("n1").sick[0].fault.state = state;
    };
    let disabled: Change = |world, is| world.heartbeat("n1").actions_enabled = !is;
    for (change, notified) in [(clearing, vec![]), (disabled, vec!["notify"])] {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), kill(true), notify()]).scheduled();
        change(&mut world, true);
        world.node("n1").send();
        let mut forever = world.clone();
        world.live(60, 5);
        change(&mut world, false);
        world.node("n1").send();
        world.run(secs(300));
        assert_eq!(world.phase(), Phase::Succeeded, "{:?}", world.only_remediation());
        assert_eq!(world.did(), [JOB_CONT]);

        forever.live(240, 5);
        assert_eq!(forever.did(), notified, "{:?}", forever.only_remediation());
        assert!(forever.only_remediation().steps.iter().all(|step| step.step_index != 1));
        // No step has failed, so the next remediation does not wait as after a failure.
        change(&mut forever, false);
        forever.node("n1").send();
        forever.live(24, 5);
        let resumed = [notified, vec![JOB_CONT]].concat();
        assert_eq!(forever.did(), resumed, "{:?}", forever.remediations);
    }
}

#[test]
fn a_cordon_that_was_taken_back_is_no_try() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cordon(), cont()]).passed(1);
    world.heartbeat("n1").actions_enabled = false;
    world.live(240, 5);
    assert_eq!(world.did(), ["cordon", "uncordon"], "{:?}", world.remediations);
    world.heartbeat("n1").actions_enabled = true;
    world.live(24, 5);
    let resolved = ["cordon", JOB_CONT, "uncordon"];
    assert_eq!(world.did()[2..], resolved, "{:?}", world.remediations);
}

#[test]
fn what_was_executed_before_a_silence_and_did_not_help_waits_for_an_hour() {
    let mut world = World::alone(hung("log"), None, &[cont(), kill(true), notify()]);
    world.until(secs(600), "executed", |world| {
        world.remediations.values().any(|one| one.steps[0].executed_at.is_some())
    });
    world.tick(secs(5));
    world.node("n1").probe_runs = false;
    world.live(180, 5);
    world.node("n1").probe_runs = true;
    world.live(60, 5);
    assert_eq!(world.did(), [JOB_CONT, "notify"]);
    assert!(reasons(&world.plan()).contains(&BlockReason::RecentlyFailed), "{:?}", world.plan().blocked);
}
