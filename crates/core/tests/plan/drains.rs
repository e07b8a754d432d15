//! Drains: on a node of our own cordon only, round after round, never past a budget, and always at an end.

use nrh_core::action::Drain;
use nrh_core::drain::RecreatedBy;
use nrh_core::fault::FaultType;
use nrh_core::plan::{BlockReason, Effect, Operation};
use nrh_core::policy::{Action, ActionType, ApprovalMode, Mode, NodeLimit, OnFailure, Step};
use nrh_core::remediation::{Phase, Resolution, StepState};
use nrh_core::snapshot::TriState;

use crate::samples::{cont, cordon, drain, drain_with, fault, hand_off, hung, kept, kill, notify, plugin, secs};
use crate::world::{Change, Chaos, ClearedBy, JOB_KILL, World, acts, reasons, says, written};

/// A node with these pods, whose fault nothing resolves unless said.
fn sick(steps: &[Step], pods: usize) -> World {
    World::sick(hung("x"), ClearedBy::Kill, steps).with_pods(pods)
}

/// A node whose drain has begun, and which has pods left.
fn draining() -> World {
    let world = sick(&[cordon(), drain(), kill(true), notify()], 40).passed(2);
    assert_eq!(world.did(), ["cordon", "drain"]);
    world
}

/// The step of the drain, as it is recorded.
fn drained(world: &World) -> nrh_core::remediation::StepRecord {
    let steps = &world.only_remediation().steps;
    steps.iter().find(|step| step.action == ActionType::Drain).unwrap_or_else(|| panic!("no drain: {steps:#?}")).clone()
}

#[test]
fn a_round_follows_only_after_a_while_and_says_what_is_left() {
    let mut world = sick(&[cordon(), drain(), kill(true), notify()], 30).passed(6);
    assert_eq!(world.did(), ["cordon", "drain"], "one round at a time");
    let started = drained(&world);
    assert_eq!(started.state, StepState::Started);
    assert!(started.message.starts_with("30 pod(s) left; on their way out: "), "{}", started.message);
    says(&started.message, "10 to be evicted next");
    world.tick(secs(5));
    assert!(acts(&world.plan()).is_empty());
    assert_eq!(acts(&world.pass_after(5)), [("n1".to_owned(), "drain".to_owned())]);
    assert!(drained(&world).message.starts_with("10 pod(s) left; on their way out: "), "{}", drained(&world).message);
}

/// Told in kubernetes-sigs/karpenter #2042.
#[test]
fn what_blocks_is_named_and_the_next_step_follows_when_the_time_is_over() {
    let mut world = sick(&[cordon(), drain(), kill(true), notify()], 4);
    let pods = &mut world.node("n1").workloads;
    pods[0].budget = Some("web".into());
    pods[1].pod.has_empty_dir = true;
    pods[2].pod.recreated_by = RecreatedBy::Nobody;
    world.run(secs(600));
    let done = drained(&world);
    assert_eq!(done.state, StepState::TimedOut);
    let expected = "not done within 120s: 3 pod(s) left; not evicted: kube-system/web-0 (PodDisruptionBudget web allows no disruption), \
                    kube-system/web-1 (it has data in an emptyDir (drain.deleteEmptyDirData)), kube-system/web-2 (no controller \
                    recreates it; set drain.force to evict it)";
    assert_eq!(done.message, expected);
    assert_eq!(world.phase(), Phase::Succeeded, "the step after it heals");
    // Each by its own word: what the policy allows is evicted.
    let with = Drain { delete_empty_dir_data: true, force: true, ..Drain::default() };
    let mut world = sick(&[cordon(), drain_with(with), kill(true)], 4);
    let pods = &mut world.node("n1").workloads;
    pods[1].pod.has_empty_dir = true;
    pods[2].pod.recreated_by = RecreatedBy::Nobody;
    world.run(secs(600));
    assert_eq!((drained(&world).state, drained(&world).phrase().as_str()), (StepState::Succeeded, "Drain(force)"));
}

#[test]
fn nothing_harsher_follows_a_drain_in_vain_where_the_policy_says_stop() {
    let stop = Step { on_failure: OnFailure::Stop, ..drain() };
    let mut world = sick(&[cordon(), stop.clone(), kill(true), notify()], 1);
    world.node("n1").workloads[0].budget = Some("web".into());
    world.run(secs(600));
    assert_eq!(world.did().last(), Some(&"uncordon"));
    assert!(!world.did().contains(&JOB_KILL) && world.did().contains(&"notify"), "{:?}", world.did());
    // One that has done its work is in nobody's way.
    let world = sick(&[cordon(), stop.clone(), kill(true), notify()], 1).ran(600);
    assert_eq!(world.did(), ["cordon", "drain", "drain", "drain", JOB_KILL, "uncordon"]);
    // Nor does anything harsher follow where it cannot be done at all.
    let mut world = sick(&[cordon(), stop, kill(true), notify()], 1).passed(1);
    world.may_evict = TriState::False;
    world.run(secs(900));
    assert_eq!(world.did(), ["cordon", "notify", "uncordon"]);
    // Without that word the next step follows, also where the node is not drained since somebody else has cordoned it.
    let mut world = sick(&[cordon(), drain(), kill(true), notify()], 2);
    world.node("n1").view.unschedulable = true;
    world.run(secs(300));
    assert_eq!((world.did(), world.is_cordoned()), (vec!["cordon", JOB_KILL], true));
}

#[test]
fn the_pod_above_a_hung_process_is_not_evicted() {
    let mut world = sick(&[cordon(), drain(), kill(true), notify()], 1);
    let below = world.nodes["n1"].sick[0].fault.subject.pod.clone().unwrap();
    world.node("n1").workloads[0].pod.pod = below;
    world.run(secs(60));
    says(&drained(&world).message, "(HungContainer below it is to be released first)");
    assert!(world.nodes["n1"].workloads[0].evicted_at.is_none());
}

#[test]
fn a_drain_is_begun_only_when_it_is_known_that_it_may_be() {
    let steps = [cordon(), drain(), kill(true), notify()];
    let decided = |may| {
        let mut world = sick(&steps, 1);
        world.may_evict = may;
        world.pass()
    };
    let blocked = decided(TriState::Unknown);
    assert!(acts(&blocked).is_empty(), "no node is cordoned for a drain of which nobody knows: {:?}", blocked.effects);
    assert_eq!(reasons(&blocked), [BlockReason::ActionsDisabled]);
    says(&blocked.blocked[0].message, "not known yet whether the controller may evict");
    // What is known to be lacking keeps nobody from the other steps.
    let mut world = sick(&steps, 1);
    world.may_evict = TriState::False;
    world.run(secs(300));
    assert_eq!(world.did(), ["cordon", JOB_KILL, "uncordon"]);
    let mut alone = sick(&[cordon(), drain()], 1);
    alone.may_evict = TriState::False;
    let blocked = alone.pass();
    assert!(acts(&blocked).is_empty() && blocked.blocked[0].message.contains("nrh:drain"), "{:?}", blocked.blocked);
}

/// Told in planetlabs/draino #17.
#[test]
fn a_person_who_uncordons_or_suspends_stops_it_at_once() {
    let stops: [Change; 4] = [
        |world| world.node("n1").view.unschedulable = false,
        |world| world.suspended = Some("by ann".into()),
        |world| world.policies[0].suspend = true,
        |world| world.node("n1").report.suspended = Some("hands off".into()),
    ];
    for stop in stops {
        let mut world = draining();
        stop(&mut world);
        let plan = world.pass_after(15);
        assert!(acts(&plan).is_empty(), "{:?}", plan.effects);
        assert_eq!(world.phase(), Phase::Cancelled, "{}", world.only_remediation().message);
    }
}

#[test]
fn no_further_pod_goes_when_the_fault_has_gone() {
    let mut world = draining();
    world.recover("n1");
    world.tick(secs(10));
    world.run(secs(120));
    assert_eq!(world.did(), ["cordon", "drain", "uncordon"]);
    assert_eq!((drained(&world).state, world.phase()), (StepState::Cancelled, Phase::Succeeded));
    assert!(drained(&world).message.starts_with("ended, since the fault is gone; 40 pod(s) left"));
}

#[test]
fn old_evidence_holds_the_next_round_and_the_time_runs() {
    let mut world = draining();
    world.node("n1").probe_runs = false;
    let plan = world.pass_after(50);
    assert!(acts(&plan).is_empty() && reasons(&plan).contains(&BlockReason::ProbeNotReporting), "{:?}", plan.blocked);
    world.pass_after(80);
    assert_eq!(drained(&world).state, StepState::TimedOut);
}

#[test]
fn it_counts_as_an_act_on_the_node_and_goes_on_all_the_same() {
    let mut world = sick(&[cordon(), drain(), kill(true), notify()], 3);
    world.policies[0].limits.per_node = NodeLimit { max_actions: 1, window: secs(7_200) };
    world.run(secs(120));
    assert_eq!(world.did(), ["cordon", "drain", "drain", "drain", "notify", "uncordon"]);
    let killed =
        world.only_remediation().steps.iter().find(|step| step.action == ActionType::ReleaseHungProcess).unwrap();
    assert!(killed.state == StepState::Refused && killed.message.contains("limits.perNode"), "{}", killed.message);
}

#[test]
fn what_no_step_can_resolve_is_neither_cordoned_nor_drained_for() {
    // A kill does nothing about a disk that is full.
    let full = || fault(FaultType::DiskFull, "k");
    let world = World::sick(full(), None, &[cordon(), drain(), kill(true), notify()]).with_pods(1).ran(60);
    assert_eq!(world.did(), ["notify"]);
    // Who keeps the cordon wants it for itself, and so the drain.
    let kept = kept(secs(7_200), secs(60));
    let world = World::sick(full(), None, &[kept, drain(), kill(true), notify()]).with_pods(1).ran(60);
    assert_eq!(world.did(), ["cordon", "drain", "drain", "drain", "notify"]);
    assert!(world.only_remediation().is_quarantined() && world.nodes["n1"].workloads.is_empty());
    // New pods do not make it worse, so the old ones may stay.
    let backlog = fault(FaultType::ExitedContainerBacklog, "c");
    let world = World::sick(backlog, None, &[cordon(), drain(), notify()]).ran(60);
    assert_eq!(world.did(), ["notify"]);
}

#[test]
fn no_node_is_drained_for_a_cure_that_is_held() {
    let mut world = sick(&[cordon(), drain(), kill(false), notify()], 3);
    let plan = world.pass();
    assert!(acts(&plan).is_empty(), "its pod is not being deleted: {:?}", plan.effects);
    assert_eq!(reasons(&plan), [BlockReason::PodsRunning]);
}

#[test]
fn a_node_is_drained_once_for_all_its_faults() {
    let world = sick(&[cordon(), drain(), kill(true), notify()], 2).ill(plugin(), ClearedBy::Kill).ran(600);
    assert_eq!(world.times("drain"), 3, "{:?}", world.did());
    assert!(world.only_remediation().faults.iter().all(|fault| fault.state == Resolution::Resolved));
}

#[test]
fn a_drain_that_asks_evicts_nothing_before_the_yes_and_nothing_after_it_is_taken_back() {
    let asks = Step { approval: ApprovalMode::Manual, timeout: secs(600), ..drain() };
    let mut world = sick(&[cordon(), asks, kill(true), notify()], 60).ran(60);
    assert_eq!(world.did(), ["cordon"]);
    world.approve("n1", "ann").unwrap();
    world.run(secs(10));
    assert_eq!(drained(&world).state, StepState::Started);
    world.remediations.values_mut().for_each(|remediation| remediation.approval = None);
    let plan = world.pass_after(20);
    let drains = |effect: &Effect| matches!(effect, Effect::Act { operation: Operation::Drain(_), .. });
    assert!(!plan.effects.iter().any(drains), "{:?}", plan.effects);
    assert_eq!(drained(&world).state, StepState::Cancelled);
}

#[test]
fn a_dry_run_of_the_step_is_recorded_and_touches_nothing() {
    let shadow = Step { mode: Mode::DryRun, ..drain() };
    let world = sick(&[cordon(), shadow, kill(true), notify()], 3).ran(120);
    assert_eq!(world.did(), ["cordon", JOB_KILL, "uncordon"]);
    let record = drained(&world);
    assert_eq!((record.state, record.message.as_str()), (StepState::Simulated, "not executed: the step is a dry run"));
    assert!(world.nodes["n1"].workloads.iter().all(|one| one.evicted_at.is_none()));
}

#[test]
fn a_crash_between_evictions_and_their_record_is_made_good() {
    let mut world = sick(&[cordon(), drain(), hand_off("Fix"), notify()], 5);
    for calls in 1..8 {
        world.disturbed_pass(&Chaos { crash_after: Some(calls), ..Chaos::default() });
    }
    world.run(secs(300));
    assert_eq!(drained(&world).state, StepState::Succeeded);
    assert!(world.nodes["n1"].workloads.is_empty());
    assert!(!world.is_cordoned());
}

#[test]
fn a_policy_that_asks_for_another_drain_meanwhile_ends_this_one() {
    let mut world = sick(&[cordon(), drain(), cont(), notify()], 40).passed(2);
    let with = Drain { force: true, ..Drain::default() };
    world.policies[0].rules[0].steps[1].action = Action::Drain(with);
    world.tick(secs(15));
    let decided = world.plan();
    let ended = &written(&decided)[0].steps[1];
    assert_eq!(ended.state, StepState::Cancelled);
    assert_eq!(ended.message, "the policy has another step in its place");
}
