//! DaemonSet pods that make no progress.

use nrh_core::external_condition::{self, ExternalCondition};
use nrh_core::fault::{Fault, FaultState, FaultType};
use nrh_core::plan::{BlockReason, Health, SelfHealing};
use nrh_core::policy::{ActionType, Step};
use nrh_core::remediation::{Phase, StepState};
use nrh_core::snapshot::{SuspectPod, TriState};
use nrh_core::stuck::FRESH;

use crate::samples::{
    backing_off, cont, creating, delete_pod, failed, fault, hand_off, hung, kill, notify, overdue, plugin, policy, rule,
};
use crate::world::{ClearedBy, JOB_CONT, JOB_KILL, World, acts, notification, reasons, says, secs, written};

/// A node under one rule for stuck pods.
fn for_pods(steps: &[Step]) -> World {
    World::with_rules(&[rule("r", &[FaultType::StuckDaemonSetPod], steps)])
}

/// A node with a pod that backs off.
pub fn stuck(steps: &[Step]) -> World {
    World::under(steps, &["n1"]).with_pod(backing_off("n1", "agent-1"))
}

#[test]
fn a_stuck_pod_in_back_off_is_deleted_and_its_successor_verified() {
    let mut world = stuck(&[delete_pod()]);
    let plan = world.pass();
    assert_eq!(acts(&plan), [("n1".to_owned(), "delete agent-1".to_owned())]);
    assert_eq!(plan.nodes["n1"].pods_progressing, TriState::False);
    let mut successor = backing_off("n1", "agent-2");
    successor.waiting.clear();
    successor.age = secs(3);
    world.node("n1").pods.push(successor);
    world.pass_after(10);
    world.pass_after(10);
    assert_eq!(world.phase(), Phase::Verifying, "the successor is not Ready yet");
    world.node("n1").pods[0].ready = true;
    world.run_to(60, Phase::Succeeded);
}

#[test]
fn a_pod_that_nobody_checked_is_not_well() {
    let mut world = stuck(&[delete_pod()]).passed(1);
    world.tick(secs(30));
    let plan = world.plan_with(|snapshot| snapshot.pods_read.clear());
    assert!(plan.effects.is_empty(), "{:?}", plan.effects);
}

#[test]
fn a_stuck_pod_is_not_deleted_under_resource_pressure() {
    let mut world = stuck(&[delete_pod()]);
    for kind in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
        let pressure = |status| external_condition::sorted(ExternalCondition::new(kind, status, "", ""));
        world.node("n1").view.conditions = pressure("True");
        let plan = world.plan();
        assert_eq!((acts(&plan), reasons(&plan)), (Vec::new(), vec![BlockReason::ActionsDisabled]), "{kind}");
        assert!(plan.blocked[0].message.contains(kind), "{:?}", plan.blocked);
        world.node("n1").view.conditions = pressure("False");
        assert_eq!(acts(&world.plan()).len(), 1, "{kind}");
    }
}

#[test]
fn only_daemon_set_pods_that_are_stuck_count() {
    let with = |made: fn(&str, &str) -> SuspectPod, change: fn(&mut SuspectPod)| {
        let mut pod = made("n1", "x");
        change(&mut pod);
        pod
    };
    let cases = [
        ("back-off", true, backing_off("n1", "x")),
        ("creating", true, creating("n1", "x")),
        ("terminating", true, overdue("n1", "x")),
        ("no DaemonSet's", false, with(backing_off, |pod| pod.daemon_set = None)),
        ("short back-off", false, with(backing_off, |pod| pod.waiting[0].back_off = Some(secs(160)))),
        ("ended just now", false, with(backing_off, |pod| pod.waiting[0].ended = Some(secs(59)))),
        ("failed, its back-off not named", true, failed("n1", "x")),
        ("failed just now", false, with(failed, |pod| pod.failed[0].ended = secs(59))),
        ("failed, and should run again", false, with(failed, |pod| pod.failed[0].ended = secs(300))),
        ("failed for the fifth time", false, with(failed, |pod| pod.failed[0].restarts = 5)),
        ("failed often, but over months", false, with(failed, |pod| pod.failed[0].waited = Some(secs(81)))),
        ("failed, nobody knows after which wait", false, with(failed, |pod| pod.failed[0].waited = None)),
        ("failed after a long run", false, with(failed, |pod| pod.failed[0].ran = Some(secs(600)))),
        ("failed, nobody knows how long it ran", false, with(failed, |pod| pod.failed[0].ran = None)),
        ("failed, another container runs and the pod is ready", false, with(failed, |pod| pod.ready = true)),
        ("young", false, with(creating, |pod| pod.without_sandbox = Some(secs(119)))),
        ("pulling an image", false, with(creating, |pod| (pod.age, pod.without_sandbox) = (secs(3_000), None))),
        ("within grace", false, with(overdue, |pod| pod.overdue = Some(secs(119)))),
    ];
    for (name, is_stuck, pod) in cases {
        let world = World::with_rules(&[]).with_pod(pod);
        let faults = &world.plan().nodes["n1"].cluster_faults;
        assert_eq!(faults.len(), usize::from(is_stuck), "{name}: {faults:?}");
    }
}

#[test]
fn the_cause_of_a_stuck_pod_is_named_and_released_first() {
    let suspected = |fault: Fault| Fault { state: FaultState::Suspected, ..fault };
    let cases = [
        ("own hung container", backing_off("n1", "agent-1"), Some(suspected(hung("agent-1"))), true),
        ("another pod's", backing_off("n1", "agent-1"), Some(hung("other")), false),
        ("plugin, but the pod has its network", backing_off("n1", "agent-1"), Some(plugin()), false),
        ("plugin, and the pod waits for it", creating("n1", "agent-1"), Some(suspected(plugin())), true),
        ("the runtime", creating("n1", "agent-1"), Some(fault(FaultType::RuntimeListHung, "r")), true),
        ("nothing", creating("n1", "agent-1"), None, false),
    ];
    for (name, suspect, cause, is_first) in cases {
        let mut world = for_pods(&[delete_pod()]).with_pod(suspect);
        if let Some(cause) = cause {
            world.inject("n1", cause, ClearedBy::Cont);
        }
        let plan = world.plan();
        assert_eq!(acts(&plan).is_empty(), is_first, "{name}");
        assert_eq!(reasons(&plan).contains(&BlockReason::HungProcessFirst), is_first, "{name}: {:?}", plan.blocked);
        let message = &plan.nodes["n1"].cluster_faults[0].message;
        assert_eq!(message.contains("cause on the node: "), is_first, "{name}: {message}");
    }
    let world = World::sick(hung("agent-1"), ClearedBy::Cont, &[cont(), delete_pod()]);
    let plan = world.with_pod(overdue("n1", "agent-1")).plan();
    assert_eq!(acts(&plan)[0].1, JOB_CONT, "the hung process is released, the pod is left");
}

#[test]
fn a_silent_probe_or_an_old_read_holds_a_stuck_pod() {
    let mut world = for_pods(&[delete_pod()]).with_pod(SuspectPod { read: FRESH, ..backing_off("n1", "agent-1") });
    assert_eq!(acts(&world.plan()).len(), 1);
    let blocked = world.plan_with(|snapshot| snapshot.pods[0].read = FRESH + secs(1));
    let said = &blocked.nodes["n1"];
    assert_eq!((acts(&blocked).len(), said.cluster_faults[0].state), (0, FaultState::Suspected));
    assert_eq!((said.health, said.pods_progressing), (Health::Degraded, TriState::Unknown));
    assert!(!said.check_sequence, "the probe cannot read pods");
    world.node("n1").pods[0].read = secs(1);
    world.heartbeat("n1").arrived = secs(23);
    let blocked = world.plan();
    assert_eq!((acts(&blocked).len(), reasons(&blocked)), (0, vec![BlockReason::ProbeNotReporting]));
}

/// It may be gone since: a read shows whether it is still there, the time that has passed does not.
#[test]
fn a_pod_is_not_stuck_by_the_time_that_has_passed_since_its_read() {
    for read in [0, 10, 20, 99, 100, 101, 120, 121, 10_000] {
        let pod = SuspectPod { overdue: Some(secs(20)), read: secs(read), ..overdue("n1", "agent-1") };
        let plan = World::under(&[delete_pod()], &["n1"]).with_pod(pod).plan();
        assert_eq!(plan.nodes["n1"].cluster_faults, [], "read {read} s ago");
    }
}

/// Neither there nor gone: what was done is not called in vain.
#[test]
fn a_step_whose_pod_cannot_be_read_any_more_is_not_called_in_vain_for_it() {
    let mut world = stuck(&[delete_pod()]).passed(1);
    assert_eq!(world.did(), ["delete agent-1"]);
    world.node("n1").pods = vec![SuspectPod { read: secs(30), ..backing_off("n1", "agent-1") }];
    world.wait(60, 5);
    says(&world.step(0).message, "nobody could check the fault");
}

/// That says nothing about the step.
#[test]
fn no_harsher_step_follows_while_the_pods_cannot_be_read() {
    let world = for_pods(&[delete_pod(), hand_off("Fix"), notify()]);
    let mut world = world.with_pod(backing_off("n1", "agent-1")).scheduled();
    world.node("n1").pods[0].read = secs(30);
    world.wait(60, 5);
    world.node("n1").pods[0].read = secs(1);
    let mut again = world.clone();
    again.pass();
    assert_eq!(again.did(), ["delete agent-1"], "{:?}", again.only_remediation().steps);
    world.node("n1").pods[0].read = secs(30);
    world.wait(180, 5);
    let steps = &world.only_remediation().steps;
    assert_eq!(steps[0].state, StepState::Cancelled);
    assert!(steps.iter().all(|step| step.step_index != 1), "{steps:?}");
}

/// A node with a pod that should have gone 130 s ago, under a rule that leaves it to people.
fn with_overdue_pod() -> World {
    let rules = [
        rule("hung", &[FaultType::HungContainer], &[cont(), notify()]),
        rule("pod", &[FaultType::StuckDaemonSetPod], &[delete_pod(), notify()]),
    ];
    World::with_rules(&rules).with_pod(overdue("n1", "agent-1"))
}

#[test]
fn a_stuck_pod_is_not_given_up_before_its_cause_was_checked_for() {
    let mut world = with_overdue_pod();
    // At rest the probe reports every five minutes.
    let heartbeat = world.heartbeat("n1");
    (heartbeat.interval, heartbeat.arrived) = (secs(300), secs(60));
    let blocked = world.plan();
    assert_eq!((acts(&blocked).len(), reasons(&blocked)), (0, vec![BlockReason::StaleEvidence]));
    assert!(blocked.nodes["n1"].check_sequence);
    world.heartbeat("n1").arrived = secs(2);
    let unchecked =
        |kind| world.plan_with(|snapshot| assert!(snapshot.reports.get_mut("n1").unwrap().unchecked.insert(kind)));
    for kind in [FaultType::HungContainer, FaultType::RuntimeClientHung, FaultType::NetworkPluginHung] {
        assert_eq!(reasons(&unchecked(kind)), [BlockReason::StaleEvidence], "{kind}");
    }
    assert!(!written(&unchecked(FaultType::DiskFull)).is_empty());
    // A probe that cannot check everywhere is not waited for without end.
    world.node("n1").pods[0].overdue = Some(secs(120 + 600));
    assert!(!written(&world.plan()).is_empty());
}

/// The pod gets on once its cause is released, and nothing else is done to it.
fn ends_with_the_release(world: &mut World) {
    world.tick(secs(10));
    world.node("n1").pods.clear();
    world.run(secs(120));
    assert_eq!((world.phase(), world.did()), (Phase::Succeeded, vec![JOB_CONT]));
}

#[test]
fn the_cause_of_a_stuck_pod_and_the_pod_are_one_remediation() {
    let mut world = with_overdue_pod();
    world.inject("n1", Fault { state: FaultState::Suspected, ..hung("agent-1") }, ClearedBy::Cont);
    for _ in 0..6 {
        let blocked = world.pass();
        assert_eq!((acts(&blocked).len(), world.remediations.len()), (0, 0), "{:?}", blocked.blocked);
        world.tick(secs(5));
    }
    world.node("n1").sick[0].fault.state = FaultState::Confirmed;
    world.node("n1").send();
    world.pass();
    assert_eq!(world.did(), [JOB_CONT]);
    ends_with_the_release(&mut world);
}

/// The last check before the act has refused it: it is reserved, and nobody has tried.
#[test]
fn a_delete_that_waits_above_a_process_that_begins_to_hang_makes_room_and_costs_no_attempt() {
    let mut world = with_overdue_pod();
    world.node("n1").pods = vec![backing_off("n1", "agent-1")];
    world.pass();
    assert_eq!(world.did(), ["delete agent-1"]);
    world.log.clear();
    let step = &mut world.remediations.values_mut().next().unwrap().steps[0];
    (step.state, step.started_at, step.executed_at) = (StepState::Scheduled, None, None);
    world.node("n1").deleted.clear();
    world.node("n1").pods = vec![backing_off("n1", "agent-1")];
    world.inject("n1", hung("agent-1"), ClearedBy::Cont);
    world.node("n1").send();
    world.run(secs(20));
    let states: Vec<_> = world.only_remediation().steps.iter().map(|step| (step.action.kind(), step.state)).collect();
    assert_eq!(states[0], (ActionType::DeletePod, StepState::Cancelled), "{states:?}");
    assert_eq!(world.did(), [JOB_CONT], "{states:?}");
}

#[test]
fn of_pods_that_nobody_could_read_it_is_not_known_that_they_progress() {
    let world = World::under(&[notify()], &["n1", "n2"]);
    let plan = world.plan_with(|snapshot| {
        snapshot.pods_unread = true;
        snapshot.pods_read.remove("n1");
    });
    let of = |node: &str| plan.nodes[node].pods_progressing;
    assert_eq!((of("n1"), of("n2")), (TriState::Unknown, TriState::True), "the other was read as a whole");
}

/// The API server has accepted the deletion, and its answer was lost.
#[test]
fn a_deletion_that_was_not_recorded_counts_once_the_pod_is_being_deleted() {
    let mut world = with_overdue_pod();
    world.node("n1").pods = vec![backing_off("n1", "agent-1")];
    world.pass();
    let step = &mut world.remediations.values_mut().next().unwrap().steps[0];
    (step.state, step.executed_at) = (StepState::Scheduled, None);
    world.node("n1").deleted.clear();
    world.node("n1").pods = vec![backing_off("n1", "agent-1")];
    world.node("n1").pods[0].overdue = Some(secs(0));
    world.pass_after(5);
    let step = world.step(0);
    assert_eq!((step.state, step.executed_at), (StepState::Verifying, Some(world.now)));
    assert_eq!(world.did(), ["delete agent-1"], "not again");
}

/// The same under two policies: one for the pod, one for what hangs below it.
fn with_overdue_pod_under_two_policies() -> World {
    let pod = rule("pod", &[FaultType::StuckDaemonSetPod], &[delete_pod(), notify()]);
    let hung = rule("hung", &[FaultType::HungContainer], &[cont(), notify()]);
    let mut world = World::new(&[policy("pods", &[pod]), policy("shims", &[hung])], &["n1"]);
    world.node("n1").pods.push(overdue("n1", "agent-1"));
    world
}

#[test]
fn the_cause_of_a_stuck_pod_under_another_policy_goes_first() {
    let mut world = with_overdue_pod_under_two_policies().ill(hung("agent-1"), ClearedBy::Cont);
    let plan = world.pass();
    assert_eq!((world.did(), reasons(&plan)), (vec![JOB_CONT], vec![BlockReason::HungProcessFirst]));
    ends_with_the_release(&mut world);
}

#[test]
fn a_remediation_gives_way_to_a_cause_under_another_policy_and_does_not_fail() {
    let pod = rule("pod", &[FaultType::StuckDaemonSetPod], &[delete_pod(), notify()]);
    let net = rule("net", &[FaultType::NetworkPluginHung], &[kill(false)]);
    let mut world = World::new(&[policy("pods", &[pod]), policy("plugins", &[net])], &["n1"]);
    world.node("n1").pods.push(creating("n1", "agent-1"));
    world.pass();
    assert_eq!(world.did(), ["delete agent-1"]);
    world.node("n1").pods = vec![creating("n1", "agent-2")];
    world.inject("n1", Fault { state: FaultState::Suspected, ..plugin() }, ClearedBy::Kill);
    world.run(secs(400));
    assert!(world.only_remediation().is_open(), "given up above a suspected cause: {:?}", world.only_remediation());
    assert_eq!(world.did(), ["delete agent-1"]);
    world.node("n1").sick[0].fault.state = FaultState::Confirmed;
    world.node("n1").send();
    world.run(secs(60));
    assert_eq!(world.did(), ["delete agent-1", JOB_KILL]);
    world.node("n1").pods[0].ready = true;
    world.run(secs(120));
    let ended: Vec<_> =
        world.remediations.values().map(|remediation| (remediation.policy.as_str(), remediation.phase)).collect();
    assert_eq!(ended, [("pods", Phase::Cancelled), ("plugins", Phase::Succeeded)], "{:?}", world.remediations);
}

#[test]
fn a_network_plugin_that_hangs_is_no_cause_for_a_pod_with_the_network_of_its_node() {
    for (host_network, expected) in [(false, vec![]), (true, vec!["delete agent-1"])] {
        let pod = SuspectPod { host_network, ..creating("n1", "agent-1") };
        let world = for_pods(&[delete_pod(), notify()]).with_pod(pod).ill(plugin(), None).passed(1);
        assert_eq!(world.did(), expected, "host network: {host_network}");
    }
}

#[test]
fn a_pod_does_not_wait_for_a_cause_that_nobody_remediates() {
    let mut world = with_overdue_pod_under_two_policies();
    world.policies[1].suspend = true;
    world.inject("n1", hung("agent-1"), None);
    let plan = world.pass();
    assert_eq!(reasons(&plan), [BlockReason::Suspended, BlockReason::HungProcessFirst], "{:?}", plan.blocked);
}

#[test]
fn people_hear_that_the_cause_of_a_stuck_pod_was_not_checked_for() {
    let mut world = with_overdue_pod();
    world.node("n1").pods[0].overdue = Some(secs(120 + 600));
    for is_said in [false, true] {
        let mut world = world.clone();
        world.node("n1").report.unchecked.extend(is_said.then_some(FaultType::HungContainer));
        let plan = world.pass();
        let notified = notification(&plan);
        assert_eq!(notified.unwrap().contains("(nobody has checked its cause)"), is_said, "{notified:?}");
    }
}

#[test]
fn after_a_release_kubernetes_is_given_time_to_bring_the_pod_up() {
    let rules = [
        rule("net", &[FaultType::NetworkPluginHung], &[kill(false)]),
        rule("pod", &[FaultType::StuckDaemonSetPod], &[delete_pod()]),
    ];
    let mut world = World::with_rules(&rules).ill(plugin(), ClearedBy::Kill).with_pod(creating("n1", "agent-1"));
    world.live(6, 5);
    assert_eq!(world.did(), [JOB_KILL]);
    world.node("n1").pods[0].ready = true;
    world.run(secs(60));
    assert_eq!(world.did(), [JOB_KILL], "the pod came up by itself");
}

#[test]
fn a_daemon_set_that_loops_is_not_deleted_over_and_over() {
    let mut world = World::under(&[delete_pod()], &["n1"]);
    for turn in 0..12 {
        world.node("n1").pods = vec![backing_off("n1", &format!("agent-{turn}"))];
        world.run(secs(240));
    }
    assert_eq!(world.did(), ["delete agent-0"]);
    let plan = world.plan();
    assert!(reasons(&plan).contains(&BlockReason::RecentlyFailed), "{:?}", plan.blocked);
    assert_eq!(plan.nodes["n1"].self_healing, SelfHealing::ManualActionRequired);
}

#[test]
fn a_deleted_pod_without_a_successor_is_no_cure_yet() {
    let mut world = for_pods(&[delete_pod()]).with_pod(backing_off("n1", "agent-1")).passed(1);
    assert_eq!(world.did(), ["delete agent-1"]);
    world.node("n1").pods.clear();
    for _ in 0..5 {
        world.pass_after(5);
        assert!(world.only_remediation().is_open(), "the DaemonSet's controller may be late");
    }
    let mut successor = backing_off("n1", "agent-2");
    (successor.ready, successor.waiting) = (true, Vec::new());
    world.node("n1").pods.push(successor);
    world.run_to(60, Phase::Succeeded);
}
