//! Two ready sandboxes of one pod.

use super::*;

const SECOND: &str = "cccc000000000000000000000000000000000000000000000000000000000000";

fn doubled() -> Node {
    let mut node = Node::healthy();
    let second = SandboxSeen { attempt: 1, ..sandbox(SECOND, "one") };
    node.list().sandboxes.push(second);
    node.list().sandboxes_again.push(SECOND.into());
    node
}

#[test]
fn two_ready_sandboxes_of_one_pod_are_one_fault_about_the_older() {
    let findings = doubled().findings();
    let sighting = only(&findings);
    assert_eq!((sighting.kind, sighting.key.as_str()), (FaultType::DuplicateSandbox, "uid-one"));
    assert_eq!(sighting.subject.id.as_deref(), Some(SANDBOX), "the kubelet works with the newer");
    assert_eq!(sighting.subject.pod.as_ref().unwrap().name, "one");
    assert!(sighting.message.contains("2 sandboxes of default/one are ready at once"), "{}", sighting.message);
    let of_older = |line: &String| line.contains("aaaa00000000, attempt 0, is ready with 2 running containers");
    assert!(sighting.evidence.iter().any(of_older), "{:?}", sighting.evidence);
    assert!(clean_at(&findings, FaultType::DuplicateSandbox, "uid-other").is_some());
}

#[test]
fn what_comes_or_goes_at_the_moment_of_the_check_is_no_duplicate() {
    let mut node = doubled();
    node.list().sandboxes.last_mut().unwrap().ready = false;
    assert!(node.kinds().is_empty(), "the older of a pod whose sandbox was replaced");
    let mut node = doubled();
    node.list().sandboxes_again.retain(|id| id != SANDBOX);
    assert!(node.kinds().is_empty(), "removed meanwhile");
    let mut node = doubled();
    node.list().sandboxes.last_mut().unwrap().pod.uid = "uid-successor".into();
    assert!(node.kinds().is_empty(), "a pod of the same name with another uid is another pod");
    let mut node = doubled();
    for sandbox in &mut node.list().sandboxes {
        sandbox.pod.uid.clear();
    }
    assert!(node.kinds().is_empty(), "nobody knows whose they are");
}

#[test]
fn without_lists_nothing_is_said() {
    let mut node = doubled();
    node.lists = Reading::Failed { error: "cut off".into(), age: Duration::ZERO };
    assert!(node.kinds().is_empty());
    assert_eq!(clean_at(&node.findings(), FaultType::DuplicateSandbox, "uid-one"), None);
}
