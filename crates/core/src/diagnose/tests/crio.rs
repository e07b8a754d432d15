//! CRI-O: a conmon beside each container, as seen on a real machine (CRI-O 1.37, conmon 2.1.12, runc 1.1.15).

use super::*;
use crate::restart_safety::{RestartSafety, restart_safety};
use crate::tracker::Tracker;
use crate::tri_state::TriState;

/// The conmon of a container of the pod `one`, as `/proc` shows it: a child of process 1.
fn conmon(pid: i32, id: &str, state: char, living_children: u32) -> ProcessSeen {
    let wchan = Some(if state == 'T' { "do_signal_stop" } else { "do_sys_poll" }.to_owned());
    let role = ProcessRole::Monitor { id: id.into(), pod: Some(pod("one")), living_children };
    ProcessSeen { state, wchan, command: "conmon".into(), ..process(pid, role) }
}

/// Each container stands alone with its conmon, and no process of the node is a shim.
pub(super) fn with_crio(node: &mut Node) {
    node.kind = RuntimeKind::CriO;
    node.runtime = done(RuntimeSeen { name: "cri-o".into(), version: "1.37.0".into() });
    node.table().retain(|process| !matches!(process.role, ProcessRole::Shim { .. }));
    for (pid, id) in [(400, WORK), (401, SIDECAR), (402, OTHER_WORK)] {
        node.table().push(conmon(pid, id, 'S', 1));
    }
    for reading in node.tasks.values_mut() {
        *reading = done(TaskAnswer::DaemonAnswered);
    }
}

fn crio() -> Node {
    Node::with(with_crio)
}

/// With this conmon instead of the usual one of the container `work`.
fn with(state: char, living_children: u32) -> Node {
    let mut node = crio();
    node.table().retain(|process| process.pid != 400);
    node.table().push(conmon(400, WORK, state, living_children));
    node
}

#[test]
fn a_container_whose_status_hangs_is_one_fault_without_a_process_to_end() {
    let mut node = crio();
    work(&mut node, hung(9));
    let findings = node.findings();
    let sighting = only(&findings);
    assert_eq!((sighting.kind, sighting.subject.id.as_deref()), (FaultType::HungContainer, Some(WORK)));
    assert_eq!(sighting.message, "container work of default/one does not answer while the runtime does");
    begins(&sighting.evidence[0], "ContainerStatus of aaaa1 is out past its deadline");
    begins(&sighting.evidence[1], "conmon of container aaaa1: process 400");
    assert_eq!((sighting.target.process.as_ref(), sighting.certain), (None, true));
    let clean = clean_at(&findings, FaultType::HungContainer, &format!("uid-one/{SIDECAR}"));
    assert!(clean.is_some(), "its neighbour is well");
}

#[test]
fn a_stopped_conmon_is_its_containers_fault_whatever_crio_answers() {
    let findings = with('T', 1).findings();
    let sighting = only_of(&findings, FaultType::HungContainer, "uid-one/aaaa1");
    assert_eq!(
        sighting.message,
        "the conmon of container work of default/one is stopped, so CRI-O does not hear of its end; its conmon is process 400 (conmon), state T, waits in do_signal_stop"
    );
    let target = &sighting.target;
    assert!(sighting.certain && target.is_conmon());
    assert_eq!(target.process.as_ref().map(|process| (process.pid, process.role)), Some((400, Role::Shim)));
    assert_eq!(target.container_id.as_deref(), Some(WORK));
    assert!(clean_at(&findings, FaultType::LeakedShim, WORK).is_some(), "its container runs");
}

#[test]
fn a_conmon_that_waits_for_a_disk_or_runs_is_no_fault() {
    for state in ['S', 'R', 'D'] {
        assert_eq!(with(state, 1).kinds(), [], "{state}");
    }
    // That of podman serves no container of the kubelet.
    let mut node = crio();
    let role = ProcessRole::Monitor { id: "ffff1".into(), pod: None, living_children: 0 };
    node.table().push(ProcessSeen { state: 'T', command: "conmon".into(), ..process(410, role) });
    assert_eq!(node.kinds(), []);
}

#[test]
fn a_restart_is_safe_beside_a_stopped_conmon_and_not_while_a_status_hangs() {
    for (is_out, safe) in [(false, TriState::True), (true, TriState::False)] {
        let mut node = with('T', 1);
        if is_out {
            work(&mut node, hung(90));
        }
        let (mut tracker, mut safety) = (Tracker::default(), None);
        for at in [1000, 1020, 1040, 1060] {
            let (findings, seen) = check(&mut tracker, &mut node, at);
            assert_eq!(seen.faults.len(), 1);
            safety = Some(restart_safety(&seen.faults, 0, &findings));
        }
        assert_eq!(safety.as_ref().map(RestartSafety::both), Some(safe), "{safety:?}");
    }
}

#[test]
fn a_container_that_has_ended_below_its_conmon_is_lost() {
    for (state, kinds) in [('T', &[FaultType::HungContainer, FaultType::LostTask][..]), ('S', &[FaultType::LostTask])] {
        let mut node = with(state, 0);
        // The containers were listed after this check of the processes.
        aged(&mut node.processes, Duration::from_secs(5));
        let findings = node.findings();
        let mut found: Vec<_> = findings.sightings.iter().map(|sighting| sighting.kind).collect();
        found.sort_unstable();
        assert_eq!(found, kinds, "{state}");
        let lost = first_of(&findings, FaultType::LostTask);
        assert_eq!(
            lost.message,
            "container work of default/one is listed as running, but its task has lost its process"
        );
        assert_eq!(lost.evidence[1], "its conmon: task aaaa1 has lost its process");
        assert!(clean_at(&findings, FaultType::LostTask, SIDECAR).is_some());
    }
    // What may lack processes proves no end.
    let mut node = with('S', 0);
    node.process_table().left_out.processes = Some("3 processes are not read".into());
    assert_eq!(node.kinds(), []);
}

#[test]
fn a_stopped_conmon_whose_container_is_gone_is_left_over() {
    let with = |state, parent, children| {
        let mut node = crio();
        node.table().push(ProcessSeen { parent, ..conmon(410, NEW, state, children) });
        node
    };
    let findings = with('T', 1, 0).findings();
    let sighting = only_of(&findings, FaultType::LeakedShim, NEW);
    begins(&sighting.message, "conmon cccc00000000 of default/one serves nothing any more");
    assert!(sighting.target.is_conmon());
    for (state, parent, children) in [('S', 1, 0), ('T', 50, 0), ('T', 1, 1), ('S', 1, 1)] {
        assert_eq!(with(state, parent, children).kinds(), [], "{state} {parent} {children}");
    }
    assert!(clean_at(&crio().findings(), FaultType::LeakedShim, NEW).is_some(), "it has ended");
}

#[test]
fn a_create_that_hangs_below_its_conmon_is_its_pods() {
    let client = |parent, verb: &str| {
        let role = ProcessRole::RuntimeClient { verb: verb.into(), container_id: Some(NEW.into()) };
        let (age, still) = (Duration::from_secs(67), Some(Duration::from_mins(1)));
        ProcessSeen { state: 'T', parent, command: "runc".into(), age, still, ..process(420, role) }
    };
    // No list has a container in creation.
    let mut node = crio();
    node.table().push(conmon(410, NEW, 'S', 1));
    node.table().push(client(410, "create"));
    let findings = node.findings();
    let sighting = only_of(&findings, FaultType::RuntimeClientHung, "uid-one");
    begins(&sighting.message, "`create` of container cccc00000000 of default/one has made no progress for 30 s");
    assert_eq!(sighting.target.process.as_ref().map(|process| process.role), Some(Role::RuntimeClient));
    // CRI-O's own child is the kubelet's. What somebody else has called is not.
    let mut runtime = crio();
    let daemon = runtime.table().iter_mut().find(|process| process.role == ProcessRole::Runtime).unwrap();
    daemon.command = "crio".into();
    let pid = daemon.pid;
    for (parent, kinds) in [(pid, &[FaultType::RuntimeClientHung][..]), (1, &[])] {
        let mut node = runtime.clone();
        node.table().push(client(parent, "delete"));
        assert_eq!(node.kinds(), kinds, "{parent}");
    }
    // An interrupted `state` makes CRI-O take a running container as ended.
    runtime.table().push(client(pid, "state"));
    assert_eq!(runtime.kinds(), []);
    assert_eq!(runtime.findings().in_flight.len(), 1);
    // A session that somebody has open.
    runtime.table().push(client(pid, "exec"));
    assert_eq!(runtime.findings().in_flight.len(), 1);
}

#[test]
fn a_healthy_node_is_clean() {
    let findings = crio().findings();
    assert!(findings.sightings.is_empty() && findings.unasked == 0, "{findings:?}");
    for kind in [FaultType::HungContainer, FaultType::LostTask, FaultType::LeakedShim, FaultType::ContainerStuck] {
        assert_eq!(findings.coverage[&kind].gap(), None, "{kind}");
    }
    // One that is not there any more has just ended.
    let mut node = crio();
    work(&mut node, done(TaskAnswer::NotFound));
    assert!(node.kinds().is_empty());
}

#[test]
fn a_container_without_a_conmon_is_unknown_by_name() {
    let mut node = crio();
    node.table().retain(|process| process.pid != 400);
    let findings = node.findings();
    assert_eq!(findings.sightings, []);
    assert_eq!(
        findings.coverage[&FaultType::HungContainer].gap().unwrap().1,
        "no conmon of container work of default/one was seen: CRI-O does not hear of its end without one"
    );
    assert!(clean_at(&findings, FaultType::HungContainer, &format!("uid-one/{SIDECAR}")).is_some());
    node.processes = Reading::Never;
    let findings = node.findings();
    assert!(findings.coverage[&FaultType::HungContainer].gap().unwrap().1.contains("processes: not checked yet"));
}

#[test]
fn while_the_lists_do_not_answer_nothing_is_held_against_a_container() {
    let mut node = with('T', 1);
    work(&mut node, hung(90));
    node.lists = hung(10);
    assert!(!node.kinds().contains(&FaultType::HungContainer));
}

#[test]
fn a_conmon_that_could_not_be_proven_may_be_the_one_that_is_missing() {
    let mut node = crio();
    node.unproven("conmon", PossibleRole::Monitor);
    let findings = node.findings();
    assert_eq!(clean_at(&findings, FaultType::LeakedShim, NEW), None);
    assert!(clean_at(&findings, FaultType::LeakedShim, WORK).is_some(), "this one was proven");
    // Beside containerd it is podman's.
    let mut other = Node::healthy();
    other.unproven("conmon", PossibleRole::Monitor);
    assert!(clean_at(&other.findings(), FaultType::LeakedShim, NEW).is_some());
}
