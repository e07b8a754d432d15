//! Kubelets that come and go, and what a young shim tells.

use super::*;
use crate::tracker::Tracker;

const MINUTE: u64 = 60;

/// Faults of the kubelet, with their states, that a tracker names beside these kubelets, at the last second. `age` says
/// how old the kubelet is at each second.
fn tracked(seconds: u64, age: impl Fn(u64) -> Option<u64>) -> Vec<(FaultType, crate::fault::FaultState)> {
    let (mut tracker, mut last) = (Tracker::default(), Vec::new());
    for t in (0..=seconds).step_by(5) {
        let mut node = Node::healthy();
        let age = age(t);
        let began = |age: u64| (1000 + t - age) * 100;
        node.kubelet().process = age.map(|age| (60, began(age), Duration::from_secs(age)));
        node.kubelet().healthz = age.map(|_| true);
        if age.is_none() {
            node.table().retain(|process| process.role != ProcessRole::Kubelet);
        }
        let (_, seen) = check(&mut tracker, &mut node, 1000 + t);
        last = seen.faults.iter().map(|fault| (fault.kind, fault.state)).collect();
        let saved = serde_json::to_string(&tracker).unwrap();
        tracker = serde_json::from_str::<Tracker>(&saved).unwrap().restored(node.now);
    }
    last
}

#[test]
fn kubelets_that_come_up_and_end_again_and_again_are_a_loop_until_one_stays() {
    use crate::fault::FaultState::{Confirmed, Suspected};
    // Each lives for 50 s, and the next begins after 10 s.
    let lives = |t: u64| (t % 60 < 50).then_some(t % 60);
    assert_eq!(tracked(285, lives), []);
    // The sixth completes its start at 320 s.
    assert_eq!(tracked(330, lives), [(FaultType::KubeletCrashLoop, Suspected)]);
    assert_eq!(tracked(400, lives), [(FaultType::KubeletCrashLoop, Confirmed)]);
    let stays_from = |t: u64| if t < 600 { lives(t) } else { Some(t - 600) };
    assert_eq!(tracked(600 + 9 * MINUTE, stays_from), [(FaultType::KubeletCrashLoop, Confirmed)]);
    assert_eq!(tracked(600 + 10 * MINUTE + 5, stays_from), []);
}

#[test]
fn one_that_never_comes_up_is_down_and_the_evidence_tells_how_often_it_tried() {
    // Each lives for 8 s: too short to have completed its start.
    let lives = |t: u64| (t % 20 < 8).then_some(t % 20);
    let found = tracked(10 * MINUTE, lives);
    assert_eq!(found, [(FaultType::KubeletDown, crate::fault::FaultState::Confirmed)]);
    let kubelets = Kubelets { begun: 12, completed: 0, longest: Duration::from_secs(5) };
    let known = Known { host_processes: true, kubelets, ..Known::default() };
    let findings = diagnose(&Node::with(Node::kubelet_gone), known, &Thresholds::default());
    let evidence = &only(&findings).evidence;
    assert!(
        evidence.iter().any(|line| line.starts_with("12 kubelet processes were seen within 30 min")),
        "{evidence:?}"
    );
}

#[test]
fn a_loop_is_neither_seen_nor_excluded_where_nobody_can_check() {
    let kubelets = Kubelets { begun: 9, completed: 9, longest: Duration::from_secs(50) };
    let known = Known { host_processes: true, kubelets, ..Known::default() };
    let findings = diagnose(&Node::unavailable(), known, &Thresholds::default());
    assert!(of_node(&findings).is_empty());
    assert_eq!(clean_at(&findings, FaultType::KubeletCrashLoop, "kubelet"), None);
    let node = Node::with(|node| node.kubelet().process = Some((60, 6000, Duration::from_secs(30))));
    let findings = diagnose(&node, known, &Thresholds::default());
    let sighting = only(&findings);
    assert_eq!(sighting.kind, FaultType::KubeletCrashLoop);
    assert!(!sighting.message.contains('9'), "the count is evidence: it changes by itself: {}", sighting.message);
}

#[test]
fn the_shim_of_a_pod_that_is_younger_than_the_kubelet_proves_that_it_takes_up_pods() {
    let makes = |node: &Node| node.findings().kubelet.creates_pods;
    let mut node = Node::healthy();
    // Shims of a healthy node began at 10,000 and 20,000 ticks.
    for (kubelet, expected) in [(6000, true), (19_800, true), (19_801, false), (90_000, false)] {
        node.kubelet().process = Some((60, kubelet, Duration::from_mins(1)));
        assert_eq!(makes(&node), expected, "{kubelet}");
    }
    node.kubelet().process = Some((60, 6000, Duration::from_mins(10)));
    node.list().sandboxes.clear();
    assert!(!makes(&node), "shims of others prove nothing");
    assert!(!makes(&Node { lists: Reading::Never, ..Node::healthy() }));
    assert!(!makes(&Node { processes: Reading::Never, ..Node::healthy() }));
}
