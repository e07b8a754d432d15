//! Collectors that cannot check.

use super::*;

const KIND: FaultType = FaultType::ProbeDegraded;

fn degraded(node: &Node) -> Vec<String> {
    node.findings().sightings.into_iter().filter(|one| one.kind == KIND).map(|one| one.key).collect()
}

#[test]
fn each_collector_that_cannot_check_is_named_with_its_reason() {
    let all = ["runtime", "lists", "status", "processes", "kubelet", "host", "disks", "port", "bus"];
    assert_eq!(degraded(&Node::unavailable()), all);
    let mut node = Node::healthy();
    node.host = unavailable("permission denied");
    let findings = node.findings();
    let [sighting] = &findings.sightings[..] else { panic!("{:?}", findings.sightings) };
    assert_eq!(sighting.message, "the probe's collector host cannot check this node");
    assert_eq!(
        (sighting.subject.to_string(), &sighting.evidence),
        ("probe host".into(), &vec!["permission denied".into()])
    );
    assert_eq!(clean_at(&findings, KIND, "host"), None);
    assert!(clean_at(&findings, KIND, "disks").is_some());
}

/// What a runtime does not answer is its own fault; of what the node itself does not answer nobody else tells.
#[test]
fn silence_and_errors_of_the_runtime_are_no_blindness_those_of_the_node_are() {
    let mut node = Node::healthy();
    (node.runtime, node.status) = (hung(90), hung(90));
    node.lists = failed("cut off");
    assert!(degraded(&node).is_empty());
    let mut node = Node::healthy();
    node.disks = hung(90);
    node.processes = failed("too many");
    assert_eq!(degraded(&node), ["processes", "disks"]);
}

#[test]
fn a_collector_that_has_not_checked_yet_is_neither() {
    let node = Node { kubelet: Reading::Never, ..Node::healthy() };
    assert!(degraded(&node).is_empty());
    let findings = node.findings();
    assert_eq!(clean_at(&findings, KIND, "kubelet"), None);
    assert!(findings.coverage[&KIND].gap().is_some());
}
