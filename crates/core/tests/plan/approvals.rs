//! Steps that a person has to approve.

use nrh_core::command::{OutcomeReason, OutcomeState};
use nrh_core::fault::FaultType;
use nrh_core::plan::BlockReason;
use nrh_core::policy::{ApprovalMode, Mode, Step};
use nrh_core::remediation::{Phase, StepRecord, StepState};

use crate::samples::{asked, cont, cordon, hung, kill, notify, plugin, rule};
use crate::world::{ClearedBy, JOB_CONT, JOB_KILL, World, acts, reasons, says, secs};

#[test]
fn nothing_is_done_before_a_person_says_yes_and_then_once() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cordon(), asked(cont()), notify()]).passed(2);
    for _ in 0..60 {
        let plan = world.pass_after(30);
        assert_eq!((acts(&plan), reasons(&plan)), (vec![], vec![BlockReason::AwaitingApproval]));
        assert!(plan.next.unwrap() <= secs(3_600));
    }
    assert_eq!(world.did(), ["cordon"]);
    let waiting = world.only_in(Phase::AwaitingApproval).current_step().unwrap().clone();
    assert!(waiting.target.process.is_some(), "it says what it would touch");
    says(&world.plan().blocked[0].message, &format!("nrh approve n1 --operation {}", waiting.operation_id));
    world.approve("n1", "ann").unwrap();
    world.run(secs(120));
    assert_eq!(world.did(), ["cordon", JOB_CONT, "uncordon"]);
    let step = world.step(1);
    assert_eq!((step.state, step.approved_by.as_deref()), (StepState::Succeeded, Some("ann")));
}

#[test]
fn an_approval_is_for_one_operation_only() {
    let twice = Step { max_attempts: 2, ..asked(cont()) };
    let mut world = World::sick(hung("log"), ClearedBy::Kill, &[twice]).passed(1);
    world.approve("n1", "ann").unwrap();
    world.wait(120, 5);
    assert_eq!(world.did(), [JOB_CONT], "the second attempt asks again");
    assert_eq!(world.phase(), Phase::AwaitingApproval);
}

/// The step that was asked for has another place in the rule, and the one that stands in its place was not tried.
#[test]
fn a_step_that_moves_in_its_rule_is_asked_for_again() {
    let mut world = World::sick(hung("log"), None, &[cont(), asked(kill(true)), notify()]);
    world.until(secs(600), "asked", |world| world.phase() == Phase::AwaitingApproval);
    world.policies[0].rules[0].steps.remove(0);
    world.wait(60, 5);
    assert_eq!((world.phase(), world.did()), (Phase::AwaitingApproval, vec![JOB_CONT]));
    assert_eq!(world.only_remediation().current_step().unwrap().step_index, 0);

    let mut world = World::sick(hung("log"), None, &[cordon(), cont(), kill(true)]).passed(1);
    world.policies[0].rules[0].steps.remove(0);
    world.wait(4, 5);
    assert_eq!(world.did(), ["cordon", JOB_CONT]);
}

/// Each next container meets the same fault with another process.
#[test]
fn an_object_that_changes_again_and_again_gives_no_more_time() {
    let mut world = World::sick(hung("log"), None, &[asked(cont()), kill(true), notify()]);
    for _ in 0..18 {
        world.live(48, 5);
        world.node("n1").sick[0].fault.target.process.as_mut().unwrap().pid += 1;
    }
    assert_eq!(world.did(), ["notify"]);
    assert_eq!(world.only_remediation().phase, Phase::Failed);
}

#[test]
fn at_the_limit_of_steps_people_are_still_notified() {
    let mut world = World::sick(hung("log"), None, &[asked(cont()), notify()]).passed(1);
    let name = world.only_remediation().name.clone();
    let (now, steps) = (world.now, &mut world.remediations.get_mut(&name).unwrap().steps);
    steps[0].finish(StepState::Cancelled, "withdrawn", now);
    let first = steps[0].clone();
    steps.extend((2..=48).map(|number| StepRecord { operation_id: format!("{name}-{number}"), ..first.clone() }));
    world.live(30, 5);
    assert_eq!((world.did(), world.phase()), (vec!["notify"], Phase::Failed));
}

#[test]
fn what_goes_or_changes_meanwhile_ends_the_asking() {
    for change in 0..5 {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[asked(cont())]).passed(1);
        let first = world.only_remediation().current_step().unwrap().operation_id.clone();
        world.approve("n1", "ann").unwrap();
        match change {
            0 => world.node("n1").sick.clear(),
            1 => world.node("n1").sick[0].fault.target.process.as_mut().unwrap().pid += 1,
            2 => world.policies[0].rules[0].steps[0] = kill(true),
            3 => world.policies[0].suspend = true,
            // As any step: approved or not, nothing is done on a node that asks to be left alone.
            _ => world.node("n1").view.exclusions.push("drained".into()),
        }
        let plan = world.report_and_pass_after(20);
        // The other step that the policy has by now needs no approval.
        let by_now = if change == 2 { vec![JOB_KILL] } else { vec![] };
        assert_eq!(acts(&plan).iter().map(|(_, what)| what.as_str()).collect::<Vec<_>>(), by_now, "case {change}");
        let step = world.only_remediation().attempt(&first).unwrap();
        assert_eq!(step.state, StepState::Cancelled, "case {change}: {}", step.message);
    }
}

#[test]
fn a_yes_to_something_that_is_held_waits_and_what_asks_no_more_goes_on() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[asked(cont())]).passed(1);
    world.approve("n1", "ann").unwrap();
    world.node("n1").probe_runs = false;
    world.tick(secs(40));
    assert_eq!((acts(&world.plan()), reasons(&world.plan())), (vec![], vec![BlockReason::ProbeNotReporting]));
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[asked(cont())]).passed(1);
    world.policies[0].rules[0].steps[0].approval = ApprovalMode::Automatic;
    assert_eq!(acts(&world.plan()).len(), 1);
    // And the other way round: what is reserved and not known to be done asks now.
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).scheduled();
    world.policies[0].rules[0].steps[0].approval = ApprovalMode::Manual;
    assert_eq!(acts(&world.pass()), []);
    assert_eq!(world.step(0).state, StepState::Cancelled);
}

/// A step waits for a person, and another rule of the policy does not ask.
fn asked_beside_another_rule() -> World {
    let rules = [
        rule("asks", &[FaultType::HungContainer], &[asked(cont())]),
        rule("maxActions", &[FaultType::NetworkPluginHung], &[kill(false)]),
    ];
    World::with_rules(&rules).ill(hung("log"), ClearedBy::Cont).passed(1)
}

#[test]
fn what_waits_for_a_person_gives_way_to_what_does_not() {
    let mut world = asked_beside_another_rule();
    assert_eq!(world.phase(), Phase::AwaitingApproval);
    world.inject("n1", plugin(), ClearedBy::Kill);
    world.wait(40, 5);
    assert_eq!(world.did(), [JOB_KILL]);
    let remediation = world.only_remediation();
    assert_eq!(remediation.phase, Phase::AwaitingApproval, "then it is asked for again: {:?}", remediation.steps);
    assert_eq!(remediation.steps.iter().filter(|step| step.state == StepState::Cancelled).count(), 1);
    world.approve("n1", "ann").unwrap();
    world.run_to(120, Phase::Succeeded);
}

#[test]
fn what_is_approved_and_held_keeps_its_place() {
    let mut world = asked_beside_another_rule();
    world.approve("n1", "ann").unwrap();
    world.inject("n1", plugin(), ClearedBy::Kill);
    world.pass();
    assert_eq!(world.did(), [JOB_CONT]);
}

#[test]
fn what_changes_of_itself_is_no_other_object() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[asked(cont())]).passed(1);
    let first = world.only_remediation().awaiting().unwrap().to_owned();
    for round in 0..20 {
        let target = &mut world.node("n1").sick[0].fault.target;
        let process = target.process.as_mut().unwrap();
        (process.state, process.wchan) = (["S", "R"][round % 2].into(), Some(format!("wait{round}")));
        target.container_id = if round % 3 == 0 { None } else { target.container_id.clone() };
        world.pass_after(30);
        assert_eq!(world.only_remediation().awaiting(), Some(first.as_str()), "round {round}");
    }
    world.approve("n1", "ann").unwrap();
    world.run_to(120, Phase::Succeeded);
}

#[test]
fn a_yes_that_is_taken_back_leads_to_nothing_harsher() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[asked(cont()), kill(true)]).passed(1);
    world.approve("n1", "ann").unwrap();
    // It is reserved, and the call does not arrive.
    world.schedule();
    assert_eq!(world.step(0).state, StepState::Scheduled);
    world.remediations.values_mut().next().unwrap().approval = None;
    world.wait(120, 5);
    assert_eq!(world.did(), [""; 0]);
    assert_eq!((world.phase(), world.step(0).state), (Phase::AwaitingApproval, StepState::Cancelled));
    assert_eq!(world.step(1).step_index, 0, "the same step is asked for again");
}

#[test]
fn what_is_approved_and_held_until_its_time_is_over_says_so() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[asked(cont()), kill(true), notify()]).passed(1);
    world.approve("n1", "ann").unwrap();
    world.node("n1").checked = secs(60);
    world.wait(800, 5);
    assert_eq!(world.did(), ["notify"]);
    let step = world.step(0);
    assert_eq!((step.state, step.approved_by.as_deref()), (StepState::TimedOut, Some("ann")));
    assert!(step.message.contains("approved by ann, and blocked"), "{}", step.message);
}

#[test]
fn a_dry_run_of_it_waits_for_nobody() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[asked(cont())]);
    world.policies[0].mode = Mode::DryRun;
    world.pass();
    assert_eq!((world.phase(), world.step(0).state), (Phase::Simulated, StepState::Simulated));
}

#[test]
fn a_node_cannot_answer_for_the_person() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[asked(cont())]).passed(1);
    world.probe_answers(OutcomeState::Done, OutcomeReason::Executed, "done");
    world.pass();
    assert_eq!(world.phase(), Phase::AwaitingApproval);
}
