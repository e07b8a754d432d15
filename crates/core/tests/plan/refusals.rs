//! What holds the engine back.

use std::time::Duration;

use nrh_core::fault::{Fault, FaultState, FaultType, Severity};
use nrh_core::plan::{BlockReason, Health};
use nrh_core::policy::{Amount, FaultLimit, Mode, TopologyLimit};
use nrh_core::snapshot::{Heartbeat, ReportView, Snapshot, TriState};
use nrh_core::window::WindowType;

use crate::samples::{
    clean_up, cont, cordon, creating, delete_pod, fault, hung, kill, names, notify, pod, today, tomorrow,
};
use crate::world::{Change, ClearedBy, World, acts, notification, reasons, secs};

fn report(snapshot: &mut Snapshot) -> &mut ReportView {
    snapshot.reports.get_mut("n1").unwrap()
}

fn heartbeat(snapshot: &mut Snapshot) -> &mut Heartbeat {
    report(snapshot).heartbeat.as_mut().unwrap()
}

/// Everything that says no to a fault that is resolved otherwise, and the reason it gives.
/// Told in kubereboot/kured #976.
#[test]
fn every_doubt_holds() {
    type Case = (&'static str, BlockReason, fn(&mut Snapshot));
    let cases: [Case; 24] = [
        ("no policy", BlockReason::NoPolicy, |s| s.policies.clear()),
        ("a policy suspended", BlockReason::Suspended, |s| s.policies[0].suspend = true),
        ("a policy paused", BlockReason::Paused, |s| s.policies[0].pause_requests.push("release".into())),
        ("a Deny window", BlockReason::OutsideWindow, |s| s.policies[0].windows = vec![today(WindowType::Deny)]),
        ("no Allow window", BlockReason::OutsideWindow, |s| s.policies[0].windows = vec![tomorrow(WindowType::Allow)]),
        ("no rule for the kind", BlockReason::NoRule, |s| {
            s.policies[0].rules[0].faults = [FaultType::LeakedShim].into();
        }),
        ("no rule for the severity", BlockReason::NoRule, |s| s.policies[0].rules[0].min_severity = Severity::Critical),
        ("a rule that waits", BlockReason::MinDurationNotReached, |s| s.policies[0].rules[0].min_duration = secs(600)),
        ("a node deleted", BlockReason::Excluded, |s| s.nodes.get_mut("n1").unwrap().deleting = true),
        ("an exclusion", BlockReason::Excluded, |s| s.nodes.get_mut("n1").unwrap().exclusions.push("excluded".into())),
        ("a suspended node", BlockReason::Suspended, |s| report(s).suspended = Some("me".into())),
        ("an old look", BlockReason::StaleEvidence, |s| report(s).faults[0].checked = secs(46)),
        ("a missed heartbeat", BlockReason::ProbeNotReporting, |s| {
            heartbeat(s).arrived = Duration::from_millis(22_501);
        }),
        ("nobody may act", BlockReason::ActionsDisabled, |s| {
            s.nodes.get_mut("n1").unwrap().ready = TriState::False;
            heartbeat(s).actions_enabled = false;
        }),
        ("kubelet unknown, nobody may act", BlockReason::ActionsDisabled, |s| {
            (heartbeat(s).kubelet_works, heartbeat(s).actions_enabled) = (TriState::Unknown, false);
        }),
        ("no process named", BlockReason::ActionsDisabled, |s| report(s).faults[0].fault.target.process = None),
        ("running pods", BlockReason::PodsRunning, |s| s.policies[0].rules[0].steps = vec![kill(false)]),
        ("no ledger", BlockReason::LedgerUnavailable, |s| s.ledger = None),
        ("no node may be unhealthy", BlockReason::MaxUnhealthyExceeded, |s| {
            s.policies[0].limits.max_unhealthy = Amount::Count(0);
        }),
        ("0 %", BlockReason::MaxUnhealthyExceeded, |s| s.policies[0].limits.max_unhealthy = Amount::Percent(0)),
        ("none in flight", BlockReason::MaxInFlightReached, |s| s.policies[0].limits.max_in_flight = Amount::Count(0)),
        ("no slot in the cluster", BlockReason::ClusterLimit, |s| s.ceiling = 0),
        ("nothing that applies", BlockReason::NoRule, |s| {
            s.policies[0].rules[0].steps = vec![delete_pod(), clean_up()];
        }),
        ("nothing but a cordon", BlockReason::NoRule, |s| s.policies[0].rules[0].steps = vec![cordon()]),
    ];
    let world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    for (name, reason, spoil) in cases {
        let plan = world.plan_with(spoil);
        assert!(plan.effects.is_empty(), "{name}: {:?}", plan.effects);
        assert_eq!(reasons(&plan), [reason], "{name}: {:?}", plan.blocked);
        let blocked = &plan.blocked[0];
        assert!(blocked.message.len() > 20 && blocked.fault_id.is_some(), "{name}: {blocked:?}");
        let status_view = &plan.nodes["n1"];
        assert!(status_view.activity.starts_with("blocked: "), "{name}: {}", status_view.activity);
        assert_eq!(status_view.check_sequence, reason == BlockReason::StaleEvidence, "{name}");
    }
}

#[test]
fn a_report_on_another_node_or_none_is_no_evidence() {
    let world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    for uid in [None, Some("uid-old".to_owned())] {
        let plan = world.plan_with(|snapshot| report(snapshot).node_uid = uid);
        assert!(plan.effects.is_empty());
        assert_eq!(plan.nodes["n1"].health, Health::Unknown);
        assert_eq!(plan.policies["p"].unknown, 1);
    }
    let plan = world.plan_with(|snapshot| snapshot.nodes.clear());
    assert!(plan.effects.is_empty());
    assert_eq!(plan.policies["p"].selected, 0);
}

#[test]
fn suspected_and_clearing_faults_are_not_acted_on() {
    for state in [FaultState::Suspected, FaultState::Clearing] {
        let plan = World::sick(Fault { state, ..hung("log") }, ClearedBy::Cont, &[cont()]).plan();
        assert!(plan.effects.is_empty());
        assert_eq!(plan.nodes["n1"].health, Health::Degraded);
    }
}

#[test]
fn a_probe_has_no_say_in_what_only_the_controller_knows() {
    let mut forged = fault(FaultType::StuckDaemonSetPod, "victim");
    forged.target.pod = Some(pod("victim"));
    let plan = World::sick(forged, ClearedBy::DeletePod, &[delete_pod(), notify()]).plan();
    assert!(plan.effects.is_empty(), "{:?}", plan.effects);
    assert!(plan.nodes["n1"].cluster_faults.is_empty());
}

#[test]
fn evidence_of_exactly_the_longest_age_still_counts() {
    let world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    let plan = world.plan_with(|snapshot| {
        report(snapshot).faults[0].checked = secs(45);
        heartbeat(snapshot).arrived = Duration::from_millis(22_500);
    });
    assert_eq!(acts(&plan).len(), 1);
}

/// Told in medik8s/self-node-remediation #110.
#[test]
fn a_silent_probe_is_told_of_and_nothing_else_is_done() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cordon(), cont(), delete_pod(), notify()]);
    world.node("n1").probe_runs = false;
    world.tick(secs(60));
    let plan = world.plan();
    assert_eq!(acts(&plan), [("n1".to_owned(), "notify".to_owned())]);
    assert_eq!(plan.nodes["n1"].probe_reporting, TriState::False);
    assert_eq!(plan.nodes["n1"].health, Health::Unknown);
    assert!(plan.nodes["n1"].top_fault.starts_with("ProbeNotReporting"), "{}", plan.nodes["n1"].top_fault);
    assert_eq!(plan.policies["p"].unhealthy, 1);
    assert!(reasons(&plan).contains(&BlockReason::ProbeNotReporting), "the hung container is held");
}

#[test]
fn texts_do_not_change_with_the_clock_alone() {
    let mut world = World::sick(hung("log"), None, &[kill(false)]).with_pod(creating("n1", "agent-1"));
    world.policies[0].mode = Mode::DryRun;
    world.pass();
    let before = world.plan();
    world.now = world.now.checked_add(secs(3)).unwrap();
    for pod in &mut world.node("n1").pods {
        pod.age += secs(3);
        pod.without_sandbox = pod.without_sandbox.map(|without| without + secs(3));
    }
    let after = world.plan();
    assert_eq!(before.nodes, after.nodes);
    assert_eq!(before.blocked, after.blocked);
}

#[test]
fn a_node_is_not_cordoned_for_a_cure_that_no_step_can_bring() {
    // About a container, so that deleting a pod is no answer to it.
    let planned = |steps: &[_]| World::sick(hung("log"), None, steps).plan();
    let did = |plan: &_| acts(plan).into_iter().map(|(_, act)| act).collect::<Vec<_>>();
    assert_eq!(did(&planned(&[cordon(), delete_pod(), notify()])), ["notify"]);
    assert_eq!(did(&planned(&[cordon(), cont(), notify()])), ["cordon"]);
    assert_eq!(did(&planned(&[cordon(), notify()])), ["cordon"], "wanted for itself");
}

#[test]
fn a_node_is_cordoned_only_for_what_new_pods_would_make_worse() {
    let steps = [cordon(), notify()];
    for kind in FaultType::ALL.into_iter().filter(|kind| kind.spec().lasting && !kind.is_cluster_fault()) {
        let plan = World::sick(fault(kind, "key"), None, &steps).plan();
        let did: Vec<_> = acts(&plan).into_iter().map(|(_, act)| act).collect();
        let is_told_only = matches!(
            kind,
            FaultType::FrozenCgroup
                | FaultType::ExitedContainerBacklog
                | FaultType::ClientCertificateExpiring
                | FaultType::ClockUnsynchronised
                | FaultType::GhostSandbox
                | FaultType::UntrackedPodProcess
                | FaultType::ProbeDegraded
        );
        assert_eq!(did, [if is_told_only { "notify" } else { "cordon" }], "{kind}");
    }
}

/// A fleet that waits for a window or a slot would else be checked every minute.
#[test]
fn no_check_is_requested_while_something_else_blocks_anyway() {
    let cases: [(BlockReason, Change); 8] = [
        (BlockReason::StaleEvidence, |_| {}),
        (BlockReason::FaultLimit, |world| {
            let faults = [FaultType::HungContainer].into();
            world.policies[0].limits.per_fault = vec![FaultLimit { faults, max_in_flight: Amount::Count(0) }];
        }),
        (BlockReason::TopologyLimit, |world| {
            let limit = TopologyLimit { key: "zone".into(), max_in_flight: Amount::Count(0) };
            world.policies[0].limits.per_topology = vec![limit];
        }),
        (BlockReason::OutsideWindow, |world| world.policies[0].windows = vec![today(WindowType::Deny)]),
        (BlockReason::MaxUnhealthyExceeded, |world| world.policies[0].limits.max_unhealthy = Amount::Count(0)),
        (BlockReason::MaxInFlightReached, |world| world.policies[0].limits.max_in_flight = Amount::Count(0)),
        (BlockReason::ClusterLimit, |world| world.ceiling = 0),
        (BlockReason::DryRun, |world| {
            world.policies[0].mode = Mode::DryRun;
            world.pass();
        }),
    ];
    for (reason, change) in cases {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
        change(&mut world);
        let plan = world.plan_with(|snapshot| report(snapshot).faults[0].checked = secs(600));
        assert_eq!(reasons(&plan), [reason]);
    }
    let mut world = World::under(&[cont()], &names(6));
    world.policies[0].limits.storm.min_nodes = Amount::Count(5);
    world.inject_all(&names(6), &hung("log"), None);
    let plan = world.plan_with(|snapshot| {
        snapshot.reports.values_mut().for_each(|report| report.faults[0].checked = secs(600));
    });
    assert_eq!(reasons(&plan), [BlockReason::Storm; 6]);
}

#[test]
fn where_the_probe_may_not_act_nobody_does_and_a_person_is_notified() {
    for kubelet in [TriState::True, TriState::False] {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cordon(), cont(), notify()]);
        let heartbeat = world.heartbeat("n1");
        (heartbeat.kubelet_works, heartbeat.actions_enabled) = (kubelet, false);
        let plan = world.plan();
        let is_notified = notification(&plan).is_some();
        assert_eq!((acts(&plan).len(), is_notified, reasons(&plan)), (1, true, vec![]), "{kubelet:?}");
        world.live(60, 5);
        assert_eq!((world.did(), reasons(&world.plan())), (vec!["notify"], vec![BlockReason::ActionsDisabled]));
        // Nothing has failed: once the probe may act, nothing is waited for.
        world.heartbeat("n1").actions_enabled = true;
        world.live(60, 5);
        assert!(world.nodes["n1"].sick.is_empty(), "{kubelet:?}: {:?}", world.did());
    }
}
