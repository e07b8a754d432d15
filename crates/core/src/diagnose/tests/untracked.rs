//! Processes of which the runtime knows nothing.

use super::*;
use crate::observation::UntrackedSeen;

const KIND: FaultType = FaultType::UntrackedPodProcess;

pub(super) fn lost(node: &mut Node) {
    let group = format!("sys/fs/cgroup/kubepods/pod0a1b/{NEW}");
    let one = UntrackedSeen { id: NEW.into(), pod_uid: "0a1b".into(), group, pids: vec![21, 22] };
    node.host().untracked = Ok(vec![one]);
}

#[test]
fn processes_of_a_container_that_no_list_has_are_told_with_their_group() {
    let findings = Node::with(lost).findings();
    let sighting = only_of(&findings, KIND, NEW);
    assert!(sighting.message.contains("of container cccc00000000 of pod 0a1b"), "{}", sighting.message);
    assert_eq!(sighting.evidence[1], "processes in it: [21, 22]");
    assert_eq!(sighting.target, Target::default(), "nothing is done to them");
}

/// Which of them are told is by chance: one that was told before may be among the others.
#[test]
fn with_more_of_them_than_are_told_no_other_is_clean() {
    let mut node = Node::with(lost);
    assert!(clean_at(&node.findings(), KIND, "another").is_some());
    node.host().untracked_left_out = 3;
    let findings = node.findings();
    assert_eq!(only(&findings).key, NEW);
    assert_eq!(clean_at(&findings, KIND, "another"), None);
    assert!(findings.coverage[&KIND].gap().unwrap().1.starts_with("3 more control groups"));
}

#[test]
fn one_that_is_listed_by_now_is_none_and_without_lists_nobody_knows() {
    let mut node = Node::with(lost);
    node.list().containers.push(ContainerSeen { state: ContainerState::Created, ..container(NEW, SANDBOX, "new") });
    assert!(!node.kinds().contains(&KIND));
    let mut node = Node::with(lost);
    node.list().sandboxes_again.push(NEW.into());
    assert!(!node.kinds().contains(&KIND));
    let changes: [fn(&mut Node); 3] = [
        |node| node.lists = Reading::Never,
        |node| node.host = Reading::Never,
        |node| node.host().untracked = Err("permission denied".into()),
    ];
    for change in changes {
        let mut node = Node::with(lost);
        change(&mut node);
        assert_eq!(said(&node, KIND, NEW), Unknown);
    }
}
