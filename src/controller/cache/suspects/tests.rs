use super::*;
use crate::controller::cache::DaemonSetRow;
use crate::core::narrow::{PodSeen, PodTraits};
use serde_json::json;

fn state() -> State {
    State::new(Instant::now())
}

fn pod(name: &str, uid: &str, deleted: bool, ready: &str) -> Pod {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "d", "uid": uid,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": "o", "controller": true}]},
        "spec": {"nodeName": "w1", "containers": []},
        "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
    .unwrap();
    if deleted {
        pod.metadata.deletion_timestamp = serde_json::from_value(json!("2025-01-01T00:00:00Z")).unwrap();
    }
    pod
}

fn troubled() -> DaemonSetRow {
    DaemonSetRow { uid: "o".into(), namespace: "d".into(), selector: "app=ds".into(), desired: 3, troubled: true }
}

#[test]
fn only_troubled_sets_are_read_and_not_more_often_than_every_15_s() {
    let (mut state, mut tried, now) = (state(), BTreeMap::new(), Instant::now());
    state.daemon_sets.insert("d/fine".into(), DaemonSetRow { troubled: false, ..troubled() });
    assert!(due(&state, &tried, now).first.is_none());
    state.daemon_sets.insert("d/bad".into(), troubled());
    let first = due(&state, &tried, now).first.unwrap();
    tried.insert(first, now);
    let later = due(&state, &tried, now + Duration::from_secs(14));
    assert!(later.first.is_none());
    assert_eq!(later.next, Some(Duration::from_secs(1)));
    assert!(due(&state, &tried, now + SET_EVERY).first.is_some());
}

#[test]
fn a_pod_that_cannot_be_read_is_not_taken_for_one_that_is_gone_and_hides_no_other_of_its_set() {
    let wall = "2025-01-01T00:01:00Z".parse().unwrap();
    let set = Subject::Set { key: "d/ds".into(), namespace: "d".into(), selector: "a".into(), desired: 1 };
    let node = Subject::Node("w1".into());
    let guarded = |name: &str, start: &str| -> Guarded<Pod> {
        let mut one = serde_json::to_value(pod(name, name, false, "False")).unwrap();
        one["status"]["startTime"] = json!(start);
        serde_json::from_value(one).unwrap()
    };
    let read = |subject: &Subject| {
        let mut found = Found::default();
        found.note(guarded("ds-1", "2025-01-01T00:00:00Z"), subject, wall);
        found.note(guarded("ds-2", "9999-12-31T23:59:59Z"), subject, wall);
        found
    };
    assert!(!read(&node).is_of_use(&node));
    let found = read(&set);
    assert!(found.is_of_use(&set) && found.pods.len() == 1);
    let (lost, why) = &found.lost[0];
    assert_eq!((lost.name.as_str(), lost.uid.as_str()), ("ds-2", "ds-2"));
    assert!(why.starts_with("status.startTime: "), "{why}");
    let mut told = BTreeSet::new();
    tell(&mut told, &found.lost);
    tell(&mut told, &found.lost);
    assert_eq!(told.len(), 1);
}

#[test]
fn a_larger_set_is_read_less_often_and_a_giant_one_not_at_all() {
    let (mut state, mut tried, now) = (state(), BTreeMap::new(), Instant::now());
    state.daemon_sets.insert("d/big".into(), DaemonSetRow { desired: 2_500, ..troubled() });
    tried.insert(due(&state, &tried, now).first.unwrap(), now);
    assert_eq!(due(&state, &tried, now).next, Some(SET_EVERY * 6));
    state.daemon_sets.insert("d/big".into(), DaemonSetRow { desired: 10_001, ..troubled() });
    assert!(due(&state, &tried, now).first.is_none());
}

#[test]
fn a_read_of_the_node_is_the_later_word_on_its_pods() {
    let (mut state, now) = (state(), Instant::now());
    let wall = "2025-01-01T00:01:00Z".parse().unwrap();
    let set = Subject::Set { key: "d/ds".into(), namespace: "d".into(), selector: "a".into(), desired: 1 };
    state.daemon_sets.insert("d/ds".into(), troubled());
    assert!(take(&mut state, &set, &[pod("ds-1", "u1", false, "False")], now, wall));
    state.refresh(now, wall);
    assert_eq!(state.snapshot.pods.len(), 1);
    assert!(state.snapshot.pods_read.is_empty(), "one set is not the whole node");
    state.snapshot.nodes.insert("w1".into(), crate::core::snapshot::NodeView::default());
    let at = now + Duration::from_secs(1);
    let fresh = PodsRead { at, suspects: vec![], terminating: BTreeSet::new() };
    state.pods_of_nodes.insert("w1".into(), fresh);
    state.refresh(now + Duration::from_secs(3), wall);
    assert!(state.snapshot.pods.is_empty());
    assert_eq!(state.snapshot.pods_read.get("w1"), Some(&Duration::from_secs(2)));
}

/// Whoever makes a pod writes its `ownerReferences`.
#[test]
fn a_pod_is_of_a_daemon_set_only_by_the_uid_of_one_that_is_listed() {
    let (mut state, now) = (state(), Instant::now());
    let wall = "2025-01-01T00:01:00Z".parse().unwrap();
    let one = pod("ds-1", "u1", false, "False");
    assert_eq!(state.is_of_daemon_set(&one), Tri::False, "none is listed");
    state.daemon_sets.insert("other/ds".into(), troubled());
    assert_eq!(state.is_of_daemon_set(&one), Tri::False, "it is in another namespace");
    state.daemon_sets.insert("d/ds".into(), DaemonSetRow { uid: "another".into(), ..troubled() });
    assert_eq!(state.is_of_daemon_set(&one), Tri::False, "it has another uid");
    state.unread.note("DaemonSet", "d/ds");
    assert_eq!(state.is_of_daemon_set(&one), Tri::Unknown, "what is listed cannot be read any more");
    state.daemon_sets.insert("d/ds".into(), troubled());
    assert_eq!(state.is_of_daemon_set(&one), Tri::True);
    let mut alone = one.clone();
    alone.metadata.owner_references = None;
    assert_eq!(state.is_of_daemon_set(&alone), Tri::False);

    // Of a set that is not believed no pod is a suspect.
    let set = Subject::Set { key: "d/ds".into(), namespace: "d".into(), selector: "a".into(), desired: 1 };
    take(&mut state, &set, std::slice::from_ref(&one), now, wall);
    assert_eq!(state.pods_of_sets["d/ds"].suspects.len(), 1);
    state.daemon_sets.insert("d/ds".into(), DaemonSetRow { uid: "another".into(), ..troubled() });
    take(&mut state, &set, std::slice::from_ref(&one), now, wall);
    assert_eq!(state.pods_of_sets["d/ds"].suspects, []);
}

#[test]
fn pods_that_a_fault_names_and_the_api_has_no_more_are_being_deleted_but_static_ones_are_not() {
    let mut state = state();
    let fault = |name: &str, uid: &str| {
        let fault: crate::core::fault::Fault = serde_json::from_value(json!({
            "id": uid, "type": "HungContainer", "severity": "High", "state": "Confirmed", "message": "m",
            "firstSeen": "2025-01-01T00:00:00Z",
            "subject": {"kind": "Container", "pod": {"namespace": "d", "name": name, "uid": uid}}}))
        .unwrap();
        crate::core::snapshot::ReportedFault { fault, looked: Duration::ZERO }
    };
    let faults = vec![
        fault("gone", "g"),
        fault("etcd-w1", "e"),
        fault("mirror", "hash"),
        fault("deleted", "d"),
        fault("runs", "r"),
    ];
    state.snapshot.reports.insert("w1".into(), crate::core::snapshot::ReportView { faults, ..Default::default() });
    let mut mirror = pod("mirror", "m", false, "True");
    mirror.metadata.annotations = Some([("kubernetes.io/config.hash".to_owned(), "hash".to_owned())].into());
    let pods = [mirror, pod("deleted", "d", true, "True"), pod("runs", "r", false, "True")];
    let found = terminating(&state, "w1", &pods);
    assert_eq!(found.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(), ["deleted", "gone"]);
}

/// A report on w1 with a fault about each of these pods.
fn named_pods(state: &mut State, pods: &[(&str, &str)]) {
    let faults = pods.iter().map(|(name, uid)| {
        let fault: crate::core::fault::Fault = serde_json::from_value(json!({
            "id": uid, "type": "HungContainer", "severity": "High", "state": "Confirmed", "message": "m",
            "firstSeen": "2025-01-01T00:00:00Z",
            "subject": {"kind": "Container", "pod": {"namespace": "d", "name": name, "uid": uid}}}))
        .unwrap();
        crate::core::snapshot::ReportedFault { fault, looked: Duration::ZERO }
    });
    let report = crate::core::snapshot::ReportView { faults: faults.collect(), ..Default::default() };
    state.snapshot.reports.insert("w1".into(), report);
    state.snapshot.nodes.insert("w1".into(), crate::core::snapshot::NodeView::default());
}

#[test]
fn of_the_pods_that_faults_name_the_labels_are_kept_that_a_policy_asks_for() {
    let (mut state, now) = (state(), Instant::now());
    let wall = "2025-01-01T00:01:00Z".parse().unwrap();
    named_pods(&mut state, &[("cart", "c"), ("mirror", "hash"), ("gone", "g"), ("again", "old")]);
    let plain = |name: &str, uid: &str| {
        let mut pod = pod(name, uid, false, "True");
        pod.metadata.owner_references = None;
        pod.metadata.labels = Some([("app".into(), "web".into()), ("secret".into(), "s".into())].into());
        pod
    };
    let mut mirror = plain("mirror", "m");
    mirror.metadata.annotations = Some([("kubernetes.io/config.hash".to_owned(), "hash".to_owned())].into());
    let all = [plain("cart", "c"), mirror, plain("other", "o"), plain("again", "new")];
    let node = Subject::Node("w1".into());
    take(&mut state, &node, &all, now, wall);
    state.refresh(now, wall);
    assert_eq!(state.snapshot.pods_seen, BTreeMap::new(), "nobody asks");

    let policy = serde_json::from_value(json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy",
        "metadata": {"name": "p"}, "spec": {"rules": [{"name": "r", "steps": [{"action": "Notify"}], "match":
            {"faults": ["HungContainer"], "podSelector": {"matchLabels": {"app": "db"}, "matchExpressions": [
                {"key": "tier", "operator": "DoesNotExist"}]}}}]}}))
    .unwrap();
    state.snapshot.policies = vec![crate::api::convert::policy(&policy).unwrap()];
    take(&mut state, &node, &all, now, wall);
    state.refresh(now + Duration::from_secs(7), wall);
    let labels: BTreeMap<_, _> = [("app".to_owned(), Some("web".to_owned())), ("tier".to_owned(), None)].into();
    let read = |gone: bool| {
        let labels = std::sync::Arc::new(labels.clone());
        PodSeen::Read(PodTraits { labels, owner: None, read: Duration::from_secs(7), gone })
    };
    let found = |state: &State| -> Vec<(String, PodSeen)> {
        state.snapshot.pods_seen.iter().map(|(pod, seen)| (pod.name.clone(), seen.clone())).collect()
    };
    let expected = |cart: PodSeen| {
        let gone = |name: &str| (name.to_owned(), PodSeen::Gone);
        // One of the same name is another pod.
        vec![gone("again"), ("cart".to_owned(), cart), gone("gone"), ("mirror".to_owned(), read(false))]
    };
    assert_eq!(found(&state), expected(read(false)));
    // It is deleted: what it was like counts on.
    take(&mut state, &node, &all[1..], now, wall);
    state.refresh(now + Duration::from_secs(7), wall);
    assert_eq!(found(&state), expected(read(true)));
    // Its fault is out of sight for a while, and the node of no interest.
    let report = state.snapshot.reports.insert("w1".into(), crate::core::snapshot::ReportView::default());
    take(&mut state, &node, &all[1..], now, wall);
    state.snapshot.reports.insert("w1".into(), report.unwrap());
    take(&mut state, &node, &all[1..], now, wall);
    state.refresh(now + Duration::from_secs(7), wall);
    assert_eq!(found(&state), expected(read(true)), "it is remembered");
}

#[test]
fn a_fault_that_names_its_pod_in_its_target_alone_has_the_node_read_where_a_policy_asks() {
    let mut state = state();
    named_pods(&mut state, &[("cart", "c")]);
    let fault = &mut state.snapshot.reports.get_mut("w1").unwrap().faults[0].fault;
    fault.target.pod = fault.subject.pod.take();
    assert!(state.nodes_of_interest().is_empty());
    let policy = serde_json::from_value(json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy",
        "metadata": {"name": "p"}, "spec": {"rules": [{"name": "r", "steps": [{"action": "Notify"}],
            "match": {"faults": ["HungContainer"], "ownerKinds": ["Job"]}}]}}))
    .unwrap();
    state.snapshot.policies = vec![crate::api::convert::policy(&policy).unwrap()];
    assert!(state.nodes_of_interest().contains("w1"));
}
