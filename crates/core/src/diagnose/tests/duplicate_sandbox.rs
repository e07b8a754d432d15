//! Two ready sandboxes of one pod.

use super::*;

pub(super) fn second_sandbox(node: &mut Node) {
    node.list().sandboxes.push(SandboxSeen { attempt: 1, ..sandbox(NEW, "one") });
    node.list().sandboxes_again.push(NEW.into());
}

#[test]
fn two_ready_sandboxes_of_one_pod_are_one_fault_about_the_older() {
    let findings = Node::with(second_sandbox).findings();
    let sighting = only_of(&findings, FaultType::DuplicateSandbox, "uid-one");
    assert_eq!(sighting.subject.id.as_deref(), Some(SANDBOX), "the kubelet works with the newer");
    assert_eq!(sighting.subject.pod.as_ref().unwrap().name, "one");
    assert!(sighting.message.contains("2 sandboxes of default/one are ready at once"), "{}", sighting.message);
    let of_older = |line: &String| line.contains("aaaa00000000, attempt 0, is ready with 2 running containers");
    assert!(sighting.evidence.iter().any(of_older), "{:?}", sighting.evidence);
    assert!(clean_at(&findings, FaultType::DuplicateSandbox, "uid-other").is_some());
}

#[test]
fn what_comes_or_goes_at_the_moment_of_the_check_is_no_duplicate() {
    type Case = (&'static str, fn(&mut ListRound));
    let cases: [Case; 4] = [
        ("the older of a pod whose sandbox was replaced", |list| list.sandboxes.last_mut().unwrap().ready = false),
        ("removed meanwhile", |list| list.sandboxes_again.retain(|id| id != SANDBOX)),
        ("another pod of the same name", |list| list.sandboxes.last_mut().unwrap().pod.uid = "uid-successor".into()),
        ("nobody knows whose they are", |list| list.sandboxes.iter_mut().for_each(|one| one.pod.uid.clear())),
    ];
    for (name, change) in cases {
        let mut node = Node::with(second_sandbox);
        change(node.list());
        assert_eq!(node.kinds(), [], "{name}");
    }
}

#[test]
fn without_lists_nothing_is_said() {
    let node = Node { lists: failed("cut off"), ..Node::with(second_sandbox) };
    assert_eq!(said(&node, FaultType::DuplicateSandbox, "uid-one"), Unknown);
}
