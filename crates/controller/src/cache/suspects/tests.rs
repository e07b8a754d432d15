use serde_json::json;

use super::*;
use crate::cache::daemon_sets::DaemonSetRow;
use crate::cache::fold::Ingest;
use k8s_openapi::api::apps::v1::DaemonSet;
use nrh_core::matching::{PodSeen, PodTraits};

/// 2025-01-01T00:01:00Z.
const WALL: Timestamp = Timestamp::constant(1_735_689_660, 0);

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

fn taken(state: &mut State, subject: &Subject, pods: &[Pod], at: Instant, wall: Timestamp) -> bool {
    let found = Found { pods: pods.to_vec(), ..Found::default() };
    take(state, subject, &found, ReadRequest { at, wall })
}

fn with_unready_pods() -> DaemonSetRow {
    DaemonSetRow {
        uid: "o".into(),
        namespace: "d".into(),
        selector: "app=ds".into(),
        desired: 3,
        has_unready_pods: true,
    }
}

#[test]
fn only_troubled_sets_are_read_and_not_more_often_than_every_15_s() {
    let (mut state, mut tried, now) = (State::default(), BTreeMap::new(), Instant::now());
    state.daemon_sets.insert("d/fine".into(), DaemonSetRow { has_unready_pods: false, ..with_unready_pods() });
    assert!(due(&state, &tried, now).first.is_none());
    state.daemon_sets.insert("d/bad".into(), with_unready_pods());
    let first = due(&state, &tried, now).first.unwrap();
    tried.insert(first, now);
    let later = due(&state, &tried, now + Duration::from_secs(14));
    assert!(later.first.is_none());
    assert_eq!(later.next, Some(Duration::from_secs(1)));
    assert!(due(&state, &tried, now + SET_EVERY).first.is_some());
}

#[test]
fn a_pod_that_cannot_be_read_is_not_taken_for_one_that_is_gone_and_hides_no_other_of_its_set() {
    let set = Subject::Set { key: "d/ds".into(), namespace: "d".into(), selector: "a".into(), desired: 1 };
    let node = Subject::Node("w1".into());
    let guarded = |name: &str, start: &str| -> Guarded<Pod> {
        let mut one = serde_json::to_value(pod(name, name, false, "False")).unwrap();
        one["status"]["startTime"] = json!(start);
        serde_json::from_value(one).unwrap()
    };
    let read = |subject: &Subject| {
        let mut found = Found::default();
        found.note(guarded("ds-1", "2025-01-01T00:00:00Z"), subject, WALL);
        found.note(guarded("ds-2", "9999-12-31T23:59:59Z"), subject, WALL);
        found
    };
    assert!(!read(&node).is_of_use(&node));
    let found = read(&set);
    assert!(found.is_of_use(&set) && found.pods.len() == 1);
    let (lost, why) = &found.lost[0];
    assert_eq!((lost.name.as_str(), lost.uid.as_str()), ("ds-2", "ds-2"));
    assert!(why.starts_with("status.startTime: "), "{why}");
    let mut reported = BTreeSet::new();
    report_unreadable_pods(&mut reported, &found.lost);
    report_unreadable_pods(&mut reported, &found.lost);
    assert_eq!(reported.len(), 1);
}

#[test]
fn a_larger_set_is_read_less_often_and_a_giant_one_not_at_all() {
    let (mut state, mut tried, now) = (State::default(), BTreeMap::new(), Instant::now());
    state.daemon_sets.insert("d/big".into(), DaemonSetRow { desired: 2_500, ..with_unready_pods() });
    tried.insert(due(&state, &tried, now).first.unwrap(), now);
    assert_eq!(due(&state, &tried, now).next, Some(SET_EVERY * 6));
    state.daemon_sets.insert("d/big".into(), DaemonSetRow { desired: 10_001, ..with_unready_pods() });
    assert!(due(&state, &tried, now).first.is_none());
}

#[test]
fn pods_that_a_set_lacks_and_nobody_could_read_are_unread() {
    let (mut state, now) = (State::default(), Instant::now());
    let says = |state: &mut State, wanted: u32, ready: u32, now: Instant| {
        let set = json!({"metadata": {"name": "ds", "namespace": "d", "uid": "o"},
            "spec": {"selector": {"matchLabels": {"app": "ds"}}, "template": {}},
            "status": {"desiredNumberScheduled": wanted, "numberReady": ready, "currentNumberScheduled": wanted,
                "numberMisscheduled": 0}});
        serde_json::from_value::<DaemonSet>(set).unwrap().put("d/ds", state, now);
    };
    let after = |seconds| now + Duration::from_secs(seconds);
    says(&mut state, 3, 2, now);
    says(&mut state, 3, 1, after(30));
    assert!(!are_pods_unread(&state, after(45)) && are_pods_unread(&state, after(46)), "no read has succeeded");
    let subject = due(&state, &BTreeMap::new(), now).first.unwrap();
    taken(&mut state, &subject, &[], after(46), WALL);
    assert!(!are_pods_unread(&state, after(90)));
    let cut = Found { is_cut: true, ..Found::default() };
    take(&mut state, &subject, &cut, ReadRequest { at: after(90), wall: WALL });
    assert!(are_pods_unread(&state, after(92)), "there are more than were read");
    says(&mut state, 3, 3, after(93));
    assert!(!are_pods_unread(&state, after(1_000)), "it lacks none");
    says(&mut state, 10_001, 10_000, after(1_000));
    assert!(are_pods_unread(&state, after(2_000)), "such a set is not read");
}

#[test]
fn a_read_of_the_node_is_the_later_word_on_its_pods() {
    let (mut state, now) = (State::default(), Instant::now());
    let set = Subject::Set { key: "d/ds".into(), namespace: "d".into(), selector: "a".into(), desired: 1 };
    state.daemon_sets.insert("d/ds".into(), with_unready_pods());
    assert!(taken(&mut state, &set, &[pod("ds-1", "u1", false, "False")], now, WALL));
    state.refresh(now, WALL);
    assert_eq!(state.snapshot.pods.len(), 1);
    assert!(state.snapshot.pods_read.is_empty(), "one set is not the whole node");
    state.snapshot.nodes.insert("w1".into(), nrh_core::snapshot::NodeView::default());
    let at = now + Duration::from_secs(1);
    state.pod_reads.note_node("w1", vec![], BTreeSet::new(), at);
    state.refresh(now + Duration::from_secs(3), WALL);
    assert!(state.snapshot.pods.is_empty());
    assert_eq!(state.snapshot.pods_read.get("w1"), Some(&Duration::from_secs(2)));
}

fn going(uid: &str) -> Pod {
    pod("ds-1", uid, true, "True")
}

/// All that is known after these reads, at the end.
fn known(state: &State) -> Vec<&str> {
    state.pod_reads.unhealthy().map(|pod| pod.pod.uid.as_str()).collect()
}

#[test]
fn a_pod_that_is_not_well_is_read_until_a_read_shows_that_it_is_well_or_gone() {
    let (mut state, now) = (State::default(), Instant::now());
    let wall: Timestamp = "2025-01-01T00:00:20Z".parse().unwrap();
    state.snapshot.nodes.insert("w1".into(), nrh_core::snapshot::NodeView::default());
    let set = Subject::Set { key: "d/ds".into(), namespace: "d".into(), selector: "app=ds".into(), desired: 3 };
    let node = Subject::Node("w1".into());
    let one = Subject::Pod(pods::pod_ref(&going("u1")));
    for (by, then) in [(&set, &set), (&set, &node), (&set, &one), (&node, &set), (&node, &node), (&node, &one)] {
        let mut tried = BTreeMap::from([(set.clone(), now), (node.clone(), now)]);
        state.daemon_sets.insert("d/ds".into(), with_unready_pods());
        taken(&mut state, by, &[going("u1")], now, wall);
        // It calls itself well in the moment after.
        state.daemon_sets.insert("d/ds".into(), DaemonSetRow { has_unready_pods: false, ..with_unready_pods() });
        state.settle_set("d/ds");
        let soon = now + Duration::from_secs(6);
        let mut asked = BTreeSet::new();
        while let Some(subject) = due(&state, &tried, soon).first {
            tried.insert(subject.clone(), soon);
            asked.insert(subject);
        }
        assert_eq!(asked, BTreeSet::from([set.clone(), node.clone()]), "{by:?}");
        // Stuck, if nothing has changed: nobody says so until it is read.
        let late = now + Duration::from_secs(101);
        tried.extend([(set.clone(), late), (node.clone(), late)]);
        assert_eq!(due(&state, &tried, late).first, Some(one.clone()), "{by:?}");
        assert!(taken(&mut state, then, &[], late, wall), "{then:?}: that is news");
        assert_eq!(known(&state), Vec::<&str>::new(), "{then:?}");
        assert!(due(&state, &BTreeMap::new(), late).first.is_none());
    }
}

#[test]
fn of_two_reads_the_one_that_was_asked_for_later_counts() {
    let (mut state, now) = (State::default(), Instant::now());
    state.daemon_sets.insert("d/ds".into(), with_unready_pods());
    let set = Subject::Set { key: "d/ds".into(), namespace: "d".into(), selector: "app=ds".into(), desired: 3 };
    let one = Subject::Pod(pods::pod_ref(&going("u1")));
    let later = now + Duration::from_secs(1);
    taken(&mut state, &set, &[going("u1")], later, WALL);
    for old in [&set, &Subject::Node("w1".into()), &one] {
        taken(&mut state, old, &[], now, WALL);
        assert_eq!(known(&state), ["u1"], "{old:?}");
    }
    // One of the same name is another pod.
    taken(&mut state, &one, &[], later, WALL);
    assert_eq!(known(&state), Vec::<&str>::new());
}

#[test]
fn many_stuck_pods_share_the_reads_of_a_few() {
    let (mut state, now) = (State::default(), Instant::now());
    let wall = "2025-01-01T01:00:00Z".parse().unwrap();
    state.daemon_sets.insert("d/ds".into(), DaemonSetRow { desired: 10_001, ..with_unready_pods() });
    let pods: Vec<Pod> = (0..1000).map(|at| pod(&format!("ds-{at}"), &format!("u{at}"), true, "True")).collect();
    let set = Subject::Set { key: "d/ds".into(), namespace: "d".into(), selector: "app=ds".into(), desired: 3 };
    taken(&mut state, &set, &pods, now, wall);
    let (mut tried, mut reads) = (BTreeMap::new(), 0);
    for tick in 0..1000_u32 {
        let at = now + APART * tick;
        while let Some(subject) = due(&state, &tried, at).first {
            tried.insert(subject, at);
            reads += 1;
        }
    }
    assert!((900..=1000).contains(&reads), "{reads} in {:?}", APART * 1000);
}

/// Whoever makes a pod writes its `ownerReferences`.
#[test]
fn a_pod_is_of_a_daemon_set_only_by_the_uid_of_one_that_is_listed() {
    let (mut state, now) = (State::default(), Instant::now());
    let one = pod("ds-1", "u1", false, "False");
    assert_eq!(state.is_of_daemon_set(&one), TriState::False, "none is listed");
    state.daemon_sets.insert("other/ds".into(), with_unready_pods());
    assert_eq!(state.is_of_daemon_set(&one), TriState::False, "it is in another namespace");
    state.daemon_sets.insert("d/ds".into(), DaemonSetRow { uid: "another".into(), ..with_unready_pods() });
    assert_eq!(state.is_of_daemon_set(&one), TriState::False, "it has another uid");
    state.unread.note("DaemonSet", "d/ds");
    assert_eq!(state.is_of_daemon_set(&one), TriState::Unknown, "what is listed cannot be read any more");
    state.daemon_sets.insert("d/ds".into(), with_unready_pods());
    assert_eq!(state.is_of_daemon_set(&one), TriState::True);
    let mut alone = one.clone();
    alone.metadata.owner_references = None;
    assert_eq!(state.is_of_daemon_set(&alone), TriState::False);

    // Of a set that is not believed no pod is a suspect.
    let set = Subject::Set { key: "d/ds".into(), namespace: "d".into(), selector: "a".into(), desired: 1 };
    taken(&mut state, &set, std::slice::from_ref(&one), now, WALL);
    assert_eq!(state.pod_reads.unhealthy().count(), 1);
    state.daemon_sets.insert("d/ds".into(), DaemonSetRow { uid: "another".into(), ..with_unready_pods() });
    taken(&mut state, &set, std::slice::from_ref(&one), now, WALL);
    assert_eq!(state.pod_reads.unhealthy().count(), 0);
}

fn about_pod(name: &str, uid: &str) -> nrh_core::snapshot::ReportedFault {
    let fault: nrh_core::fault::Fault = serde_json::from_value(json!({
        "id": uid, "type": "HungContainer", "severity": "High", "state": "Confirmed", "message": "m",
        "firstSeen": "2025-01-01T00:00:00Z",
        "subject": {"kind": "Container", "pod": {"namespace": "d", "name": name, "uid": uid}}}))
    .unwrap();
    nrh_core::snapshot::ReportedFault { fault, checked: Duration::ZERO }
}

#[test]
fn pods_that_a_fault_names_and_the_api_has_no_more_are_being_deleted_but_static_ones_are_not() {
    let mut state = State::default();
    let faults = vec![
        about_pod("gone", "g"),
        about_pod("etcd-w1", "e"),
        about_pod("mirror", "hash"),
        about_pod("deleted", "d"),
        about_pod("runs", "r"),
    ];
    state.snapshot.reports.insert("w1".into(), nrh_core::snapshot::ReportView { faults, ..Default::default() });
    let mut mirror = pod("mirror", "m", false, "True");
    mirror.metadata.annotations = Some([("kubernetes.io/config.hash".to_owned(), "hash".to_owned())].into());
    let pods = [mirror, pod("deleted", "d", true, "True"), pod("runs", "r", false, "True")];
    let found = terminating(&state, "w1", &pods);
    assert_eq!(found.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(), ["deleted", "gone"]);
}

/// A report on w1 with a fault about each of these pods.
fn named_pods(state: &mut State, pods: &[(&str, &str)]) {
    let faults = pods.iter().map(|(name, uid)| about_pod(name, uid));
    let report = nrh_core::snapshot::ReportView { faults: faults.collect(), ..Default::default() };
    state.snapshot.reports.insert("w1".into(), report);
    state.snapshot.nodes.insert("w1".into(), nrh_core::snapshot::NodeView::default());
}

#[test]
fn of_the_pods_that_faults_name_the_labels_are_kept_that_a_policy_asks_for() {
    let (mut state, now) = (State::default(), Instant::now());
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
    taken(&mut state, &node, &all, now, WALL);
    state.refresh(now, WALL);
    assert_eq!(state.snapshot.pods_seen, BTreeMap::new(), "nobody asks");

    let policy = serde_json::from_value(json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy",
        "metadata": {"name": "p"}, "spec": {"rules": [{"name": "r", "steps": [{"action": "Notify"}], "match":
            {"faults": ["HungContainer"], "podSelector": {"matchLabels": {"app": "db"}, "matchExpressions": [
                {"key": "tier", "operator": "DoesNotExist"}]}}}]}}))
    .unwrap();
    state.snapshot.policies = vec![nrh_api::convert::policy(&policy).unwrap()];
    taken(&mut state, &node, &all, now, WALL);
    state.refresh(now + Duration::from_secs(7), WALL);
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
    taken(&mut state, &node, &all[1..], now, WALL);
    state.refresh(now + Duration::from_secs(7), WALL);
    assert_eq!(found(&state), expected(read(true)));
    // Its fault is out of sight for a while, and the node of no interest.
    let report = state.snapshot.reports.insert("w1".into(), nrh_core::snapshot::ReportView::default());
    taken(&mut state, &node, &all[1..], now, WALL);
    state.snapshot.reports.insert("w1".into(), report.unwrap());
    taken(&mut state, &node, &all[1..], now, WALL);
    state.refresh(now + Duration::from_secs(7), WALL);
    assert_eq!(found(&state), expected(read(true)), "it is remembered");
}

#[test]
fn a_fault_that_names_its_pod_in_its_target_alone_has_the_node_read_where_a_policy_asks() {
    let mut state = State::default();
    named_pods(&mut state, &[("cart", "c")]);
    let fault = &mut state.snapshot.reports.get_mut("w1").unwrap().faults[0].fault;
    fault.target.pod = fault.subject.pod.take();
    assert!(state.nodes_of_interest().is_empty());
    let policy = serde_json::from_value(json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy",
        "metadata": {"name": "p"}, "spec": {"rules": [{"name": "r", "steps": [{"action": "Notify"}],
            "match": {"faults": ["HungContainer"], "ownerKinds": ["Job"]}}]}}))
    .unwrap();
    state.snapshot.policies = vec![nrh_api::convert::policy(&policy).unwrap()];
    assert!(state.nodes_of_interest().contains("w1"));
}
