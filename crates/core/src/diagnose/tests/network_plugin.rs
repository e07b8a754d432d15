//! A CNI plugin that does not end.

use super::*;

const LOCK: &str = "/var/lib/cni/networks/pods/lock";

#[test]
fn the_holder_is_the_fault_and_its_waiters_are_evidence() {
    let mut node = Node::healthy();
    node.table().push(plugin(400, 90, "s1", &[LOCK], false));
    node.table().push(plugin(401, 80, "s2", &[], true));
    node.table().push(plugin(402, 70, "s3", &[], true));
    node.table().push(plugin(399, 95, "s4", &[], false));
    let findings = node.findings();
    let sighting = only_of(&findings, FaultType::NetworkPluginHung, "s1");
    assert_eq!(sighting.subject.lock.as_deref(), Some(LOCK));
    assert_eq!(sighting.target.process.as_ref().map(|p| (p.pid, p.role)), Some((400, Role::NetworkPlugin)));
    assert!(sighting.evidence.iter().any(|line| line.contains("process 402") && line.contains("waits")));
}

#[test]
fn among_equals_the_oldest_is_the_fault_and_never_the_parent_that_waits_for_its_child() {
    let mut node = Node::healthy();
    node.table().push(plugin(401, 80, "s2", &[], false));
    node.table().push(plugin(400, 90, "s1", &[], false));
    assert_eq!(only(&node.findings()).target.process.as_ref().map(|p| p.pid), Some(400));
    let mut child = plugin(405, 89, "s1", &[], false);
    child.parent = 400;
    node.table().push(child);
    assert_eq!(only(&node.findings()).target.process.as_ref().map(|p| p.pid), Some(401));
}

#[test]
fn young_plugins_are_at_work() {
    let node = Node::with(|node| node.table().push(plugin(400, 59, "s1", &[LOCK], false)));
    assert_eq!(said(&node, FaultType::NetworkPluginHung, LOCK), Clean);
    assert_eq!(clean_at(&node.findings(), FaultType::NetworkPluginHung, LOCK), Some(1000));
}

#[test]
fn waiters_without_a_holder_are_told_but_not_to_be_touched() {
    let findings = Node::with(|node| node.table().push(plugin(401, 80, "s2", &[], true))).findings();
    assert_eq!(only(&findings).target.process, None);
    assert!(only(&findings).message.contains("holder was not found"));
}

#[test]
fn hostile_names_are_bounded() {
    let mut hostile = plugin(400, 90, &"s".repeat(100_000), &[&"/l\n".repeat(100_000)], false);
    hostile.command = "\u{1b}[31m".repeat(10_000);
    hostile.wchan = Some("w".repeat(10_000));
    let findings = Node::with(|node| node.table().push(hostile)).findings();
    let sighting = only(&findings);
    assert!(sighting.message.len() <= MAX_LINE && !sighting.message.contains('\u{1b}'));
    assert!(sighting.evidence.len() <= MAX_EVIDENCE);
    assert!(sighting.evidence.iter().all(|line| line.len() <= MAX_LINE));
    assert!(sighting.subject.lock.as_ref().unwrap().len() <= MAX_LINE);
    assert!(sighting.target.sandbox_id.as_ref().unwrap().len() <= 128);
}

#[test]
fn the_fault_keeps_its_name_while_more_and_less_of_it_is_in_sight() {
    let mut node = Node::healthy();
    node.table().push(plugin(400, 90, "s1", &[], false));
    let alone = only(&node.findings()).key.clone();
    let at = node.table().len() - 1;
    node.table()[at] = plugin(400, 95, "s1", &[LOCK], false);
    assert_eq!((only(&node.findings()).key.as_str(), alone.as_str()), ("s1", "s1"));
    // The next try for the same pod has another sandbox, and meets the same fault.
    for sandbox in ["s1", "s2"] {
        let mut next = plugin(401, 90, sandbox, &[LOCK], false);
        let ProcessRole::NetworkPlugin { pod_uid, .. } = &mut next.role else { panic!("no plugin") };
        *pod_uid = Some("uid-one".into());
        node.table()[at] = next;
        assert_eq!(only(&node.findings()).key, "uid-one");
    }
}

#[test]
fn what_is_old_and_not_blamed_now_is_not_clean() {
    let mut node = Node::healthy();
    node.table().push(plugin(400, 90, "s1", &[], false));
    node.table().push(plugin(401, 80, "s2", &[LOCK], false));
    let findings = node.findings();
    assert_eq!(only(&findings).key, "s2");
    for key in ["s1", "ptp", LOCK] {
        assert_eq!(clean_at(&findings, FaultType::NetworkPluginHung, key), None, "{key}");
    }
    assert_eq!(clean_at(&findings, FaultType::NetworkPluginHung, "s3"), Some(1000));
}

#[test]
fn a_call_that_could_not_be_proven_may_be_the_plugin_that_is_missing() {
    for (possible_role, age, clean) in [
        (PossibleRole::NetworkPlugin, 60, None),
        (PossibleRole::NetworkPlugin, 59, Some(1000)),
        (PossibleRole::Other, 90, Some(1000)),
    ] {
        let mut node = Node::healthy();
        node.unproven("x", possible_role);
        node.process_table().unproven[0].age = Duration::from_secs(age);
        assert_eq!(clean_at(&node.findings(), FaultType::NetworkPluginHung, "s1"), clean, "{possible_role:?} {age}");
    }
}

#[test]
fn the_pod_that_a_call_names_is_shown_and_counts_only_once_the_runtime_lists_it() {
    let called = |name: &str, uid: Option<&str>| {
        let mut one = plugin(400, 90, "s1", &[], false);
        let ProcessRole::NetworkPlugin { pod_uid, pod_name, .. } = &mut one.role else { panic!("no plugin") };
        (*pod_uid, *pod_name) = (uid.map(str::to_owned), Some(name.to_owned()));
        let findings = Node::with(|node| node.table().push(one)).findings();
        let sighting = only(&findings);
        let shown = sighting.message.starts_with(&format!("network plugin ptp of {name} has been at work"));
        assert!(shown, "{}", sighting.message);
        assert_eq!(sighting.subject.pod, sighting.target.pod);
        sighting.target.pod.clone()
    };
    for (name, uid) in [("default/one", None), ("default/one", Some("uid-other")), ("d/new", Some("uid-new"))] {
        assert_eq!(called(name, uid), None, "{name} {uid:?}");
    }
    // The sandbox of an earlier try is still listed.
    assert_eq!(called("default/one", Some("uid-one")), Some(pod("one")));
}
