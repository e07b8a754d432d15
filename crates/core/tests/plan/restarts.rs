//! Restarts of the kubelet and the runtime: only where the probe says that they do no harm, by the probe alone, the runtime before
//! the kubelet that waits for it.

use nrh_core::action::Restart;
use nrh_core::fault::{FaultType, SubjectKind};
use nrh_core::plan::{BlockReason, Blocked};
use nrh_core::policy::Daemon;
use nrh_core::remediation::{Phase, StepState};
use nrh_core::snapshot::TriState;

use crate::samples::{critical, notify, restart, restart_kubelet, restart_runtime};
use crate::world::{ClearedBy, World, acts, command, reasons, secs};

#[test]
fn never_by_a_job_even_where_one_could_start() {
    let with = Restart { unit: Some("crio.service".into()), skip_safety_check: true, start_if_stopped: false };
    let steps = [restart(Daemon::Runtime, with.clone())];
    let world = World::sick(critical(FaultType::RuntimeListHung), ClearedBy::RestartRuntime, &steps);
    let plan = world.plan();
    assert_eq!(acts(&plan)[0].1, "command RestartRuntime");
    assert_eq!(command(&plan).unwrap().action, restart(Daemon::Runtime, with).action);
}

/// Told in kubernetes/kubernetes #115491.
#[test]
fn not_while_it_does_harm_or_nobody_knows_unless_the_policy_says_so() {
    for (safe, careless, executed) in [
        (TriState::True, false, true),
        (TriState::False, false, false),
        (TriState::Unknown, false, false),
        (TriState::False, true, true),
        (TriState::Unknown, true, true),
    ] {
        for (daemon, kind) in
            [(Daemon::Kubelet, FaultType::KubeletDown), (Daemon::Runtime, FaultType::RuntimeUnreachable)]
        {
            let step = restart(daemon, Restart { skip_safety_check: careless, ..Restart::default() });
            let mut world = World::sick(critical(kind), None, &[step]);
            // What is said of the other is of no account.
            let other = if safe == TriState::True { TriState::False } else { TriState::True };
            let view = &mut world.node("n1").report.restart;
            (view.kubelet, view.runtime) = if daemon == Daemon::Kubelet { (safe, other) } else { (other, safe) };
            view.message = "a shim is stopped".into();
            let plan = world.plan();
            assert_eq!(!acts(&plan).is_empty(), executed, "{daemon:?} {safe:?} {careless}");
            if !executed {
                assert_eq!(reasons(&plan), [BlockReason::RestartUnsafe]);
                let message = &plan.blocked[0].message;
                assert!(message.contains("a shim is stopped") && message.contains("skipSafetyCheck"), "{message}");
            }
        }
    }
}

#[test]
fn people_are_told_of_what_is_not_safe_to_restart_for_long() {
    let world = |lasted: u64, unsafe_for: u64| {
        let mut world = World::sick(critical(FaultType::RuntimeUnreachable), None, &[restart_runtime(false), notify()]);
        world.policies[0].rules[0].min_duration = secs(900);
        let node = world.node("n1");
        node.sick[0].fault.duration_seconds = lasted;
        node.send();
        (node.report.restart.runtime, node.report.restart.unsafe_for) = (TriState::Unknown, secs(unsafe_for));
        world
    };
    // What it was before its rule was to act does not count, nor one bad moment after a long time.
    for (lasted, unsafe_for) in [(1499, 2000), (5000, 599)] {
        assert_eq!(reasons(&world(lasted, unsafe_for).plan()), [BlockReason::RestartUnsafe]);
    }
    assert_eq!(acts(&world(1500, 600).plan())[0].1, "notify");
    // A kubelet waits for its runtime. The rule for the runtime notifies people of that.
    let mut both = World::sick(critical(FaultType::KubeletDown), None, &[restart_kubelet(), notify()]);
    both.inject("n1", critical(FaultType::RuntimeUnreachable), None);
    let node = both.node("n1");
    node.sick[0].fault.duration_seconds = 5000;
    node.send();
    node.report.restart.unsafe_for = secs(5000);
    let blocked = both.plan().blocked;
    let kubelet = blocked.iter().find(|blocked| blocked.message.starts_with("KubeletDown")).unwrap();
    assert_eq!(kubelet.reason, BlockReason::RestartUnsafe);
}

#[test]
fn a_kubelet_whose_start_waits_is_not_restarted_into_the_same_wait() {
    let mut world = World::sick(critical(FaultType::KubeletDown), None, &[restart_kubelet()]);
    assert_eq!(acts(&world.plan()).len(), 1);
    crate::kubelet::block(&mut world, 600);
    let plan = world.plan();
    assert!(acts(&plan).is_empty());
    let is_it = |one: &Blocked| one.reason == BlockReason::RestartUnsafe && one.message.contains("wait again");
    assert!(plan.blocked.iter().any(is_it));
}

/// Told in bottlerocket-os/bottlerocket #4721.
#[test]
fn of_both_the_runtime_comes_first() {
    let steps = [restart_kubelet(), restart_runtime(false), notify()];
    let no_kubelet = (FaultType::KubeletDown, ClearedBy::RestartKubelet);
    let no_runtime = (FaultType::RuntimeUnreachable, ClearedBy::RestartRuntime);
    for [(first, cleared_by), (second, cure)] in [[no_kubelet, no_runtime], [no_runtime, no_kubelet]] {
        let world = World::sick(critical(first), cleared_by, &steps).ill(critical(second), cure).ran(900);
        assert_eq!(world.did(), ["command RestartRuntime", "command RestartKubelet"], "{first}");
        assert!(world.remediations.values().all(|remediation| remediation.phase == Phase::Succeeded));
    }
}

#[test]
fn what_a_restart_does_not_end_is_not_restarted_for() {
    for kind in FaultType::ALL {
        for daemon in [Daemon::Kubelet, Daemon::Runtime] {
            let mut sick = critical(kind);
            if kind == FaultType::FdExhaustion {
                sick.subject.kind = SubjectKind::Host;
            }
            let mut world = World::sick(sick, None, &[restart(daemon, Restart::default())]);
            let view = &mut world.node("n1").report.restart;
            (view.kubelet, view.runtime) = (TriState::True, TriState::True);
            let resolves = match daemon {
                Daemon::Kubelet => kind == FaultType::KubeletDown,
                Daemon::Runtime => matches!(kind, FaultType::RuntimeUnreachable | FaultType::RuntimeListHung),
            };
            assert_eq!(acts(&world.plan()).len(), usize::from(resolves), "{daemon:?} for {kind}");
        }
    }
    for (of, daemon) in [(SubjectKind::Kubelet, Daemon::Kubelet), (SubjectKind::Runtime, Daemon::Runtime)] {
        for asked in [Daemon::Kubelet, Daemon::Runtime] {
            let mut sick = critical(FaultType::FdExhaustion);
            sick.subject.kind = of;
            let world = World::sick(sick, None, &[restart(asked, Restart::default())]);
            assert_eq!(acts(&world.plan()).len(), usize::from(asked == daemon), "{of:?} {asked:?}");
        }
    }
}

#[test]
fn another_unit_in_the_policy_is_another_step() {
    let mut world = World::sick(critical(FaultType::KubeletDown), None, &[restart_kubelet()]).scheduled();
    assert_eq!(world.step(0).state, StepState::Scheduled);
    let with = Restart { unit: Some("k3s.service".into()), ..Restart::default() };
    world.policies[0].rules[0].steps = vec![restart(Daemon::Kubelet, with.clone())];
    world.run(secs(120));
    let steps = &world.only_remediation().steps;
    assert_eq!((steps[0].state, steps[0].action.params().restart), (StepState::Cancelled, Some(Restart::default())));
    assert_eq!(steps[1].action.params().restart, Some(with));
    assert_eq!(steps[1].phrase(), "RestartKubelet(k3s.service)");
}
