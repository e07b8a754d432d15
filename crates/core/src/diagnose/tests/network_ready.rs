//! The runtime's own word on its network.

use super::*;

const KIND: FaultType = FaultType::NetworkNotReady;

fn says(ready: bool, reason: &str) -> Node {
    let network = NetworkSeen { ready, reason: reason.into(), message: "cni plugin not initialized".into() };
    Node { status: done(StatusSeen { network: Some(network) }), ..Node::healthy() }
}

#[test]
fn a_network_that_is_not_ready_is_told_with_the_runtimes_reason() {
    let findings = says(false, "NetworkPluginNotReady").findings();
    let sighting = only(&findings);
    assert_eq!(sighting.message, "the runtime says that its network is not ready (NetworkPluginNotReady)");
    assert_eq!(sighting.evidence, ["NetworkReady is false: cni plugin not initialized"]);
    assert_eq!(sighting.subject.to_string(), "runtime network");
    assert!(says(false, "").kinds().contains(&KIND));
    assert!(clean_at(&says(true, "").findings(), KIND, "network").is_some());
}

#[test]
fn a_runtime_that_says_nothing_of_a_network_or_does_not_answer_is_not_known_to_have_one() {
    for status in [done(StatusSeen::default()), Reading::Never, hung(60)] {
        let node = Node { status, ..Node::healthy() };
        assert_eq!(said(&node, KIND, "network"), Unknown);
    }
}
