//! Docker: a shim and a lock for each container, and answers from memory.

use super::*;
use crate::observation::{RemovalSeen, RemovalState};

/// A node with Docker, all well.
pub(super) fn healthy() -> Node {
    let mut node = Node::healthy();
    node.kind = RuntimeKind::Docker;
    node.runtime = done(RuntimeSeen { name: "docker".into(), version: "20.10.24".into() });
    node.list().removals = Some(Vec::new());
    for (pid, id) in [(110, WORK), (120, SIDECAR), (210, OTHER_WORK)] {
        node.table().push(process(pid, ProcessRole::Shim { id: id.into(), living_children: 1 }));
    }
    let ids = [SANDBOX, OTHER, WORK, SIDECAR, OTHER_WORK];
    node.tasks = ids.map(|id| (id.to_owned(), done(TaskAnswer::DaemonAnswered))).into();
    node
}

/// A container whose removal was begun, and what Docker says of it.
pub(super) fn removal(node: &mut Node, state: Option<RemovalState>) {
    let container = ContainerSeen { state: ContainerState::Unknown, ..container(NEW, SANDBOX, "old") };
    node.list().removals = Some(vec![RemovalSeen { container, state }]);
}

fn with_removal(state: Option<RemovalState>) -> Node {
    let mut node = healthy();
    removal(&mut node, state);
    node
}

#[test]
fn an_inspect_that_hangs_names_its_own_container_and_shim_and_no_other() {
    let mut node = healthy();
    work(&mut node, hung(90));
    let findings = node.findings();
    let sighting = only(&findings);
    assert_eq!(
        (sighting.kind, sighting.certain, sighting.key.as_str()),
        (FaultType::HungContainer, true, "uid-one/aaaa1")
    );
    begins(&sighting.message, "container work of default/one does not answer");
    assert!(sighting.message.contains("; its shim is process 110"), "{}", sighting.message);
    begins(&sighting.evidence[0], "inspect of");
    assert_eq!(sighting.target.process.as_ref().map(|process| process.pid), Some(110));
    assert_eq!(sighting.target.container_id.as_deref(), Some(WORK));
    for key in [format!("uid-one/{SIDECAR}"), format!("uid-one/{SANDBOX}"), format!("uid-other/{OTHER_WORK}")] {
        assert_eq!(clean_at(&findings, FaultType::HungContainer, &key), Some(1000), "{key}");
    }
}

#[test]
fn a_sandbox_that_hangs_is_a_fault_of_its_own_though_containers_run_in_it() {
    let mut node = healthy();
    node.tasks.insert(SANDBOX.into(), hung(90));
    let findings = node.findings();
    let sighting = only(&findings);
    assert_eq!((sighting.subject.kind, sighting.subject.sandbox_id.as_deref()), (SubjectKind::Sandbox, Some(SANDBOX)));
    assert_eq!(sighting.target.container_id, None);
    assert_eq!(sighting.target.process.as_ref().map(|process| process.pid), Some(100));
}

/// Docker answers from memory: that outweighs no stopped shim, and a stopped shim alone is no hang.
#[test]
fn a_stopped_shim_for_which_nobody_waits_stays_a_suspicion() {
    let mut node = healthy();
    node.shim(WORK).state = 'T';
    for age in [0, 5, 60] {
        aged(&mut node.processes, Duration::from_secs(age));
        let findings = node.findings();
        let sighting = only(&findings);
        assert_eq!((sighting.kind, sighting.certain), (FaultType::HungContainer, false), "{age} s");
        assert!(sighting.message.contains("Docker still answers for it"), "{}", sighting.message);
        assert_eq!(findings.ask, [WORK]);
    }
    let mut tracker = crate::tracker::Tracker::default();
    for t in (1000..2000).step_by(5) {
        let faults = check(&mut tracker, &mut node, t).1.faults;
        assert_eq!(faults.len(), 1, "at {t}: it comes and goes");
        assert_eq!(faults[0].state, crate::fault::FaultState::Suspected, "at {t}");
    }
    node.shim(WORK).state = 'S';
    assert!(node.kinds().is_empty());
}

#[test]
fn a_container_that_nobody_has_asked_about_is_not_known_to_be_well() {
    let mut node = healthy();
    node.tasks.clear();
    let findings = node.findings();
    assert_eq!(findings.unasked, 5, "each container and each sandbox");
    assert!(findings.coverage[&FaultType::HungContainer].gap().is_some());
    let mut node = healthy();
    for reading in node.tasks.values_mut() {
        *reading = unavailable("no socket of Docker");
    }
    assert_eq!(said(&node, FaultType::HungContainer, &format!("uid-one/{WORK}")), Unknown);
}

#[test]
fn a_process_that_is_gone_is_a_lost_task_where_the_process_table_is_the_nodes() {
    let mut node = healthy();
    let took = Duration::from_millis(3);
    work(&mut node, Reading::Done { value: TaskAnswer::ProcessGone, age: Duration::from_secs(5), took });
    let findings = node.findings();
    only_of(&findings, FaultType::LostTask, WORK);
    assert!(only(&findings).message.contains("has lost its process"), "{}", only(&findings).message);
    node.table().retain(|process| process.role != ProcessRole::Runtime);
    assert!(node.findings().sightings.is_empty(), "no hostPID, no verdict");
    assert_eq!(said(&node, FaultType::LostTask, WORK), Unknown);
}

/// What people start by hand is in no list of the kubelet's containers.
#[test]
fn a_shim_of_somebody_elses_container_is_never_left_over() {
    for (state, living_children, age) in
        [('S', 1, 900), ('S', 0, 2), ('S', 0, 900), ('T', 1, 900), ('T', 0, 900), ('Z', 0, 900)]
    {
        let mut node = healthy();
        let shim = process(900, ProcessRole::Shim { id: NEW.into(), living_children });
        node.table().push(ProcessSeen { state, age: Duration::from_secs(age), ..shim });
        for answer in [None, Some(TaskAnswer::NotFound), Some(TaskAnswer::DaemonAnswered), Some(TaskAnswer::Ended)] {
            node.tasks.remove(NEW);
            node.tasks.extend(answer.map(|answer| (NEW.to_owned(), done(answer))));
            assert_eq!(node.kinds(), [], "{state}, {living_children} children, {age} s, {answer:?}");
            assert!(node.findings().ask.is_empty(), "nobody asks about it");
        }
    }
}

/// As measured after a restart of the daemon: stopped, a zombie below it, its container `Exited (255)`.
#[test]
fn a_stopped_shim_whose_listed_container_has_ended_is_left_over() {
    let mut node = healthy();
    let shim = process(900, ProcessRole::Shim { id: NEW.into(), living_children: 0 });
    node.table().push(ProcessSeen { state: 'T', ..shim });
    for state in [ContainerState::Running, ContainerState::Created, ContainerState::Unknown] {
        let mut node = node.clone();
        node.list().containers.push(ContainerSeen { state, ..container(NEW, SANDBOX, "work") });
        assert!(!node.kinds().contains(&FaultType::LeakedShim), "{state:?}");
    }
    node.list().containers.push(ContainerSeen { state: ContainerState::Exited, ..container(NEW, SANDBOX, "work") });
    let findings = node.findings();
    let sighting = only_of(&findings, FaultType::LeakedShim, NEW);
    assert!(sighting.evidence[0].contains("only a container that has ended"), "{:?}", sighting.evidence);
    // Once its container is removed nobody knows whose it was; that clears nothing.
    node.list().containers.retain(|container| container.id != NEW);
    assert_eq!(said(&node, FaultType::LeakedShim, NEW), Unknown);
    node.table().retain(|process| process.pid != 900);
    assert_eq!(clean_at(&node.findings(), FaultType::LeakedShim, NEW), Some(1000));
}

#[test]
fn a_removal_that_has_failed_is_named_with_its_cause() {
    let cause = "unlinkat /var/lib/docker/overlay2/x: operation not permitted";
    let findings = with_removal(Some(RemovalState::Failed(cause.into()))).findings();
    let sighting = only_of(&findings, FaultType::ContainerStuck, NEW);
    assert_eq!(sighting.message, format!("Docker cannot remove container old of default/one: {cause}"));
    assert_eq!(sighting.target.process, None);
}

#[test]
fn a_removal_that_is_under_way_or_not_answered_for_is_none_that_has_failed() {
    for (state, expected) in
        [(Some(RemovalState::NotFailed), Clean), (Some(RemovalState::Gone), Clean), (None, Unknown)]
    {
        assert_eq!(said(&with_removal(state.clone()), FaultType::ContainerStuck, NEW), expected, "{state:?}");
    }
    let mut node = healthy();
    node.list().removals = None;
    assert!(node.findings().coverage[&FaultType::ContainerStuck].gap().is_some(), "Docker was not asked");
    let mut node = Node::healthy();
    assert_eq!(node.findings().coverage[&FaultType::ContainerStuck].gap(), None, "containerd has no such state");
    node.kind = RuntimeKind::Unknown;
    assert!(node.findings().coverage[&FaultType::ContainerStuck].gap().is_some());
}

#[test]
fn of_another_runtime_nothing_is_claimed_that_only_a_single_question_can_tell() {
    for kind in [RuntimeKind::Other, RuntimeKind::Unknown] {
        let mut node = Node { kind, tasks: [].into(), ..Node::healthy() };
        node.shim(SANDBOX).state = 'T';
        let findings = node.findings();
        assert!(findings.sightings.is_empty(), "{kind:?}: {:?}", findings.sightings);
        for fault in [FaultType::HungContainer, FaultType::LostTask, FaultType::LeakedShim] {
            assert!(findings.coverage[&fault].gap().is_some(), "{kind:?}: {fault} is called clean");
        }
        assert_eq!(findings.coverage[&FaultType::OrphanContainer].gap(), None, "lists are lists");
    }
    let node = Node { kind: RuntimeKind::Other, ..Node::healthy() };
    let gap = node.findings().coverage[&FaultType::HungContainer].gap().map(|(_, detail)| detail.to_owned());
    assert_eq!(gap.as_deref(), Some("this runtime has no cheap question about a single container yet"));
}
