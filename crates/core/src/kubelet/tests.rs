use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::examples::fault;
use crate::fault::Severity;

const BEGAN: i64 = 1_700_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A node that is Ready, and whose status was last written so long after the kubelet began.
fn node(ready: TriState, written: i64) -> NodeView {
    NodeView { ready, status_at: Some(at(BEGAN + written)), ..NodeView::default() }
}

/// A kubelet of that age, unfinished for as long as a controller may have seen it.
fn process(age: u64) -> KubeletView {
    KubeletView { began: Some(at(BEGAN)), age: secs(age), unfinished: Some(secs(age)), ..KubeletView::default() }
}

fn blocked(view: &NodeView, kubelet: &KubeletView, faults: &[&Fault]) -> Option<Fault> {
    start_blocked("w1", view, kubelet, faults)
}

#[test]
fn what_the_kubelet_says_is_read_from_a_closed_set() {
    let starting = "container runtime status check may not have completed yet";
    for (message, expected) in [
        (starting, Some(Complaint::StartIncomplete)),
        (
            "[container runtime status check may not have completed yet, PLEG is not healthy: pleg has yet to be successful]",
            Some(Complaint::StartIncomplete),
        ),
        ("PLEG is not healthy: pleg has yet to be successful", Some(Complaint::StartIncomplete)),
        ("PLEG is not healthy: pleg was last seen active 3m0.2s ago; threshold is 3m0s", Some(Complaint::PlegStalled)),
        (
            "[container runtime is down, PLEG is not healthy: pleg was last seen active 5m1s ago; threshold is 3m0s]",
            Some(Complaint::PlegStalled),
        ),
        ("container runtime is down", None),
        ("CSINode is not yet initialized", None),
        ("container runtime network not ready: NetworkReady=false", None),
        ("", None),
    ] {
        assert_eq!(complaint("KubeletNotReady", message), expected, "{message}");
    }
    assert_eq!(complaint("NodeStatusUnknown", starting), None);
}

#[test]
fn a_ready_node_whose_status_is_older_than_its_kubelet_has_a_blocked_one() {
    // As measured: one stopped shim, kubelet 1.36, blocked for 61 s to 152 s, Ready all the time.
    let view = node(TriState::True, -200);
    for age in [0, 30, 89] {
        assert_eq!(blocked(&view, &process(age), &[]), None, "{age}");
    }
    let found = blocked(&view, &process(90), &[]).unwrap();
    assert_eq!((found.kind, found.severity), (FaultType::KubeletStartBlocked, Severity::Critical));
    assert_eq!((found.first_seen, found.duration_seconds), (at(BEGAN), 90));
    assert!(found.message.contains("although the node is Ready; the probe names no cause"), "{}", found.message);
    let later = blocked(&view, &process(400), &[]).unwrap();
    assert_eq!((&found.message, &found.evidence), (&later.message, &later.evidence), "no figure changes by itself");
    // It has written its status: the start is over.
    for written in [0, 1, 60, 500] {
        assert_eq!(blocked(&node(TriState::True, written), &process(600), &[]), None, "{written}");
    }
}

#[test]
fn what_explains_it_is_named_and_only_that() {
    let (hung, plugin) = (fault(FaultType::HungContainer), fault(FaultType::NetworkPluginHung));
    let mut list = fault(FaultType::RuntimeListHung);
    list.severity = Severity::Critical;
    let found = blocked(&node(TriState::True, -200), &process(90), &[&plugin, &list, &hung]).unwrap();
    assert!(found.message.ends_with("; likely cause: HungContainer: container (suspected)"), "{}", found.message);
    let found = blocked(&node(TriState::True, -200), &process(90), &[&plugin]).unwrap();
    assert!(found.message.ends_with("names no cause on the node"), "{}", found.message);
}

#[test]
fn missing_or_contradicting_evidence_is_no_blocked_start() {
    let (view, kubelet) = (node(TriState::True, -200), process(600));
    assert!(blocked(&view, &kubelet, &[]).is_some());
    let cases: [(&str, NodeView, KubeletView); 8] = [
        ("no kubelet runs", view.clone(), KubeletView { began: None, ..kubelet.clone() }),
        ("it makes sandboxes", view.clone(), KubeletView { creates_pods: true, ..kubelet.clone() }),
        (
            "this controller has only just seen it",
            view.clone(),
            KubeletView { unfinished: Some(secs(59)), ..kubelet.clone() },
        ),
        ("and has not counted yet", view.clone(), KubeletView { unfinished: None, ..kubelet.clone() }),
        ("the node was never written", NodeView { status_at: None, ..view.clone() }, kubelet.clone()),
        ("its lease is stale: it has lost more than its start", node(TriState::Unknown, -200), kubelet.clone()),
        ("it is not ready for another reason", node(TriState::False, -200), kubelet.clone()),
        ("a rounded second", node(TriState::True, -3), kubelet.clone()),
    ];
    for (name, view, kubelet) in cases {
        assert_eq!(blocked(&view, &kubelet, &[]), None, "{name}");
    }
}

#[test]
fn an_older_kubelet_says_itself_that_its_start_is_not_complete() {
    // As measured: kubelet 1.30 turned NotReady within a second, and wrote so.
    let says = |written| NodeView { complaint: Some(Complaint::StartIncomplete), ..node(TriState::False, written) };
    assert_eq!(blocked(&says(1), &process(60), &[]), None, "it took 60 s");
    let found = blocked(&says(1), &process(90), &[]).unwrap();
    assert!(found.message.contains("says that its start is not complete"), "{}", found.message);
    assert_eq!(blocked(&says(-30), &process(90), &[]), None, "the kubelet before it has said so");
}

#[test]
fn a_stalled_pleg_is_the_kubelets_own_word_with_what_the_probe_knows() {
    use crate::observation::{KubeletSettings, SettingsSource};
    let stalled = NodeView {
        complaint: Some(Complaint::PlegStalled),
        ready_since: Some(at(BEGAN)),
        ..node(TriState::False, 600)
    };
    let settings = KubeletSettings { request_timeout: secs(900), evented_pleg: true, source: SettingsSource::File };
    let kubelet = KubeletView { settings: Some(settings), ..process(6000) };
    let hung = fault(FaultType::HungContainer);
    let found = pleg_stalled("w1", &stalled, Some(&kubelet), &[&hung]).unwrap();
    assert_eq!((found.kind, found.severity), (FaultType::PlegStalled, Severity::High));
    assert!(found.message.ends_with("likely cause: HungContainer: container (suspected)"), "{}", found.message);
    assert!(found.evidence.iter().any(|line| line.contains("900 s")), "{:?}", found.evidence);
    assert!(pleg_stalled("w1", &stalled, None, &[]).is_some(), "also where no probe reports");
    let ready = NodeView { ready: TriState::True, ..stalled };
    assert_eq!(pleg_stalled("w1", &ready, Some(&kubelet), &[]), None);
}
