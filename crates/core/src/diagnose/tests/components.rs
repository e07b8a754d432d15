//! The runtime, its lists and the kubelet as a whole.

use super::*;

#[test]
fn a_refused_or_hung_version_call_is_sick_what_the_probe_lacks_is_not() {
    for (runtime, expected) in [(hung(6), Sick), (failed("refused"), Sick), (unavailable("no socket"), Unknown)] {
        let node = Node { runtime, ..Node::healthy() };
        assert_eq!(said(&node, FaultType::RuntimeUnreachable, "runtime"), expected, "{:?}", node.runtime);
    }
}

#[test]
fn a_hung_list_names_which_and_needs_a_runtime_that_answers() {
    let mut node = Node::healthy();
    node.lists = hung(60);
    assert!(only(&node.findings()).message.contains("one blocked update"));
    assert_eq!(node.kinds(), [FaultType::RuntimeUpdateBlocked]);
    node.sandbox_list_hung = true;
    assert!(only(&node.findings()).message.contains("sandboxes does not come back"));
    assert_eq!(node.kinds(), [FaultType::RuntimeListHung]);
    for kind in [FaultType::RuntimeListHung, FaultType::RuntimeUpdateBlocked] {
        assert_eq!(clean_at(&node.findings(), kind, "lists"), None, "neither list is known to be well");
    }
    node.lists = hung(59);
    assert!(node.kinds().is_empty());
    node.lists = hung(600);
    node.runtime = hung(60);
    assert_eq!(node.kinds(), [FaultType::RuntimeUnreachable]);
}

#[test]
fn a_failed_list_is_no_verdict() {
    let node = Node { lists: failed("too large"), ..Node::healthy() };
    assert_eq!(clean_at(&node.findings(), FaultType::RuntimeListHung, "lists"), None);
}

#[test]
fn a_kubelet_is_down_starting_or_up() {
    let age = |seconds| Some((60, 1, Duration::from_secs(seconds)));
    let (grace, double) = (Duration::from_mins(1), Duration::from_mins(2));
    for (process, healthz, sighted, started) in [
        (None, None, Some(grace), Some(false)),
        (age(5), Some(true), Some(double), None),
        (age(5), None, Some(double), None),
        (age(20), Some(true), None, Some(true)),
        (age(20), Some(false), Some(grace), Some(false)),
        (age(20), None, None, None),
    ] {
        let change = |node: &mut Node| (node.kubelet().process, node.kubelet().healthz) = (process, healthz);
        let findings = Node::with(change).findings();
        let is = findings.sightings.first().map(|sighting| sighting.confirm.grace_period);
        assert_eq!((is, findings.kubelet.started), (sighted, started), "{process:?} {healthz:?}");
        let clean = clean_at(&findings, FaultType::KubeletDown, "kubelet").is_some();
        assert_eq!(clean, started == Some(true), "{process:?} {healthz:?}");
    }
}

#[test]
fn a_process_table_that_is_not_the_nodes_says_nothing_of_the_kubelet_and_of_shims() {
    let mut node = Node::healthy();
    node.table().clear();
    node.kubelet_gone();
    let findings = node.findings();
    assert!(findings.sightings.is_empty(), "{:?}", findings.sightings);
    assert_eq!(clean_at(&findings, FaultType::LeakedShim, "cccc"), None);
    assert_eq!(clean_at(&findings, FaultType::NetworkPluginHung, "x"), None);
    // The runtime does not answer either: perhaps it does not run, perhaps we see nothing.
    node.runtime = failed("refused");
    assert_eq!(node.kinds(), [FaultType::RuntimeUnreachable]);
    let known = Known { host_processes: true, ..Known::default() };
    let findings = diagnose(&node, known, &Thresholds::default());
    assert!(findings.sightings.iter().any(|sighting| sighting.kind == FaultType::KubeletDown));
}

#[test]
fn an_old_answer_proves_nothing() {
    let node = Node::with(|node| aged(&mut node.kubelet, STALE + Duration::from_secs(1)));
    assert_eq!(clean_at(&node.findings(), FaultType::KubeletDown, "kubelet"), None);
    assert_eq!(node.findings().kubelet, KubeletStart::default());
}
