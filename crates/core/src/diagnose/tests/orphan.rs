//! A container whose sandbox is gone.

use super::*;

#[test]
fn running_does_harm_always_exited_only_without_a_kubelet() {
    for (state, harm) in [
        (ContainerState::Running, Harm::Always),
        (ContainerState::Exited, Harm::WithoutKubelet),
        (ContainerState::Created, Harm::WithoutKubelet),
        (ContainerState::Unknown, Harm::WithoutKubelet),
    ] {
        let findings = Node::with(|node| node.orphan(state)).findings();
        let sighting = first_of(&findings, FaultType::OrphanContainer);
        assert_eq!((sighting.harm, sighting.key.as_str()), (harm, WORK), "{state:?}");
        assert_eq!(sighting.target.container_id.as_deref(), Some(WORK));
        assert_eq!(sighting.target.sandbox_id.as_deref(), Some(SANDBOX));
        assert_eq!(sighting.target.process, None);
    }
}

#[test]
fn only_a_confirmed_recheck_is_a_sighting() {
    for (recheck, expected) in
        [(Some(OrphanCheck::Refuted), Clean), (Some(OrphanCheck::NoAnswer), Unknown), (None, Unknown)]
    {
        let mut node = Node::with(|node| node.orphan(ContainerState::Running));
        node.list().orphan_checks = recheck.map(|recheck| (WORK.to_owned(), recheck)).into_iter().collect();
        assert_eq!(said(&node, FaultType::OrphanContainer, WORK), expected, "{recheck:?}");
        let checked = clean_at(&node.findings(), FaultType::OrphanContainer, WORK);
        assert_eq!(checked, (expected == Clean).then_some(1000), "{recheck:?}");
    }
}

#[test]
fn a_sandbox_in_either_list_and_a_container_of_others_are_no_orphans() {
    let changes: [fn(&mut ListRound); 2] = [
        |list| list.sandboxes_again.push(SANDBOX.into()),
        |list| list.containers.iter_mut().for_each(|container| container.pod = None),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut node = Node::with(|node| node.orphan(ContainerState::Running));
        change(node.list());
        assert!(!node.kinds().contains(&FaultType::OrphanContainer), "change {number}");
    }
}

#[test]
fn many_at_once_are_a_failed_list() {
    let mut node = Node::healthy();
    node.list().sandboxes.clear();
    node.list().sandboxes_again.clear();
    for (id, sandbox) in [("b2", "e2"), ("b3", "e3")] {
        node.list().containers.push(container(id, sandbox, "more"));
    }
    let all: Vec<String> = node.list().containers.iter().map(|container| container.id.clone()).collect();
    node.list().orphan_checks = all.into_iter().map(|id| (id, OrphanCheck::Confirmed)).collect();
    let findings = node.findings();
    assert!(!node.kinds().contains(&FaultType::OrphanContainer));
    assert_eq!(clean_at(&findings, FaultType::OrphanContainer, WORK), None);
}

#[test]
fn the_containers_of_one_pod_are_no_failed_list() {
    let mut node = Node::with(|node| node.orphan(ContainerState::Running));
    for id in ["b2", "b3", "b4"] {
        node.list().containers.push(container(id, SANDBOX, "more"));
        node.list().orphan_checks.insert(id.into(), OrphanCheck::Confirmed);
    }
    let orphans = node.kinds().iter().filter(|kind| **kind == FaultType::OrphanContainer).count();
    assert_eq!(orphans, 4);
}

#[test]
fn an_old_kubelet_raises_the_severity_only() {
    for (version, severity) in [
        ("v1.23.17", Severity::Critical),
        ("1.9.1", Severity::Critical),
        ("v1.24.0", Severity::Medium),
        ("v1.36.3", Severity::Medium),
        ("v2.1.0", Severity::Medium),
        ("nonsense", Severity::High),
        ("", Severity::High),
    ] {
        let mut node = Node::with(|node| node.orphan(ContainerState::Exited));
        node.kubelet().version = Some(version.into());
        let findings = node.findings();
        assert_eq!(only(&findings).without_kubelet.as_ref().unwrap().severity, severity, "{version}");
    }
}
