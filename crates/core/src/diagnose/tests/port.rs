//! What the kubelet says at its own port.

use super::*;

const LOOP: FaultType = FaultType::SyncLoopStalled;
const SLOW: FaultType = FaultType::PlegSlow;

impl Node {
    pub(super) fn port(&mut self) -> &mut PortSeen {
        seen(&mut self.port)
    }

    /// Relists of the kubelet that go like this.
    pub(super) fn relists(&mut self, mean: Option<u64>, idle: u64) {
        let (mean, idle) = (mean.map(Duration::from_secs), Duration::from_secs(idle));
        self.port().relists = Ok(RelistsSeen { begun: true, mean, idle, unmoved: Some(idle) });
    }
}

fn stalled() -> Node {
    Node::with(|node| node.port().sync_loop = Ok(false))
}

/// Neither seen nor clean.
fn held(node: &Node, kind: FaultType) -> String {
    let findings = node.findings();
    assert!(!node.kinds().contains(&kind), "{:?}", findings.sightings);
    findings.coverage[&kind].gap().unwrap().1.to_owned()
}

#[test]
fn a_loop_that_stands_still_beside_a_runtime_that_works_is_told() {
    let findings = stalled().findings();
    let sighting = only(&findings);
    assert_eq!((sighting.kind, sighting.severity), (LOOP, Severity::High));
    assert_eq!(sighting.subject.to_string(), "kubelet kubelet");
    assert!(sighting.evidence[0].contains("/healthz/syncloop"), "{sighting:?}");
    assert!(clean_at(&findings, SLOW, "kubelet").is_some());
}

#[test]
fn a_loop_that_waits_for_the_runtime_is_no_fault_of_its_own() {
    type Change = fn(&mut Node);
    let changes: [(Change, &str); 8] = [
        (|node| node.runtime = failed("refused"), "does not answer"),
        (|node| node.runtime = hung(6), "does not answer"),
        (|node| node.lists = hung(120), "lists do not come back"),
        (|node| node.lists = unavailable("no socket"), "lists do not come back"),
        (|node| node.status = done(StatusSeen { network: Some(NetworkSeen::default()) }), "network is not ready"),
        (|node| node.status = Reading::Never, "is not known"),
        (|node| node.relists(Some(120), 0), "relists its pods slowly"),
        (|node| node.port().relists = Err("403".into()), "is not known"),
    ];
    for (change, why) in changes {
        let mut node = stalled();
        change(&mut node);
        let said = held(&node, LOOP);
        assert!(said.contains(why), "{said}");
        // A loop that goes round does so whatever else is wrong, where it is known to have begun.
        node.port().sync_loop = Ok(true);
        let begun = node.port().relists.is_ok();
        assert_eq!(clean_at(&node.findings(), LOOP, "kubelet").is_some(), begun);
    }
}

#[test]
fn a_loop_that_has_not_begun_does_not_go_round_whatever_its_check_says() {
    let relists = RelistsSeen { unmoved: Some(Duration::ZERO), ..RelistsSeen::default() };
    assert_eq!(said(&Node::with(|node| node.port().relists = Ok(relists)), LOOP, "kubelet"), Unknown);
}

#[test]
fn a_sick_check_of_long_ago_accuses_nobody() {
    for mut node in [stalled(), Node::with(|node| node.relists(Some(120), 0))] {
        assert_eq!(node.kinds().len(), 1);
        aged(&mut node.port, STALE + Duration::from_secs(1));
        assert!(node.kinds().is_empty(), "the runtime beside it is that of now");
    }
}

#[test]
fn what_is_not_told_is_said_and_hides_nothing_else() {
    let mut node = Node::healthy();
    node.port().sync_loop = Err("the kubelet refuses (403)".into());
    assert!(held(&node, LOOP).contains("403"));
    assert!(clean_at(&node.findings(), SLOW, "kubelet").is_some(), "older kubelets tell that");
    let untold = "a probe outside of a pod has none".to_owned();
    node.port = done(PortSeen { sync_loop: Err(untold.clone()), relists: Err(untold) });
    assert!(held(&node, SLOW).contains("outside of a pod"));
    assert!(node.findings().sightings.is_empty(), "and the collector is not blind for it");
}

#[test]
fn checks_of_the_kubelet_are_slow_from_half_a_minute_and_quick_below_a_quarter() {
    for (mean, idle, expected) in [
        (Some(0), 0, Clean),
        (Some(14), 0, Clean),
        (Some(15), 0, Unknown),
        (Some(29), 0, Unknown),
        (Some(30), 0, Sick),
        (Some(120), 0, Sick),
        (None, 0, Unknown),
        (None, 29, Unknown),
        (None, 30, Sick),
        (None, 110, Sick),
    ] {
        let node = Node::with(|node| node.relists(mean, idle));
        assert_eq!(said(&node, SLOW, "kubelet"), expected, "{mean:?} {idle}");
    }
}

#[test]
fn what_is_told_of_slow_checks_does_not_change_with_each_of_them() {
    let told = |mean: u64| {
        let findings = Node::with(|node| node.relists(Some(mean), 0)).findings();
        let sighting = only(&findings);
        (sighting.message.clone(), sighting.evidence.clone())
    };
    assert_eq!(told(121), told(149));
    assert_eq!(told(121).1, ["those that have ended lately took more than 120 s"]);
}

#[test]
fn lists_that_fail_at_once_end_and_are_slow_all_the_same() {
    let mut node = Node::healthy();
    let unmoved = Some(Duration::from_mins(1));
    node.port().relists = Ok(RelistsSeen { begun: true, mean: Some(Duration::ZERO), idle: Duration::ZERO, unmoved });
    assert_eq!(node.kinds(), [SLOW]);
    // The runtime's own lists would show it.
    node.lists = failed("larger than 16 MiB");
    assert!(held(&node, SLOW).contains("lists do not come back"));
    // A loop that stands still does not move that moment either: then it is the loop that is told of.
    let mut node = stalled();
    node.port().relists = Ok(RelistsSeen { begun: true, mean: Some(Duration::ZERO), idle: Duration::ZERO, unmoved });
    assert_eq!(node.kinds(), [LOOP]);
}

#[test]
fn with_events_only_what_has_ended_counts() {
    let mut node = Node::healthy();
    node.kubelet().settings = Some(KubeletSettings { evented_pleg: true, ..KubeletSettings::default() });
    // It relists every five minutes.
    node.relists(None, 290);
    assert_eq!(said(&node, SLOW, "kubelet"), Unknown);
    node.relists(Some(90), 0);
    assert_eq!(node.kinds(), [SLOW]);
    node.relists(Some(1), 0);
    assert!(clean_at(&node.findings(), SLOW, "kubelet").is_some());
}
