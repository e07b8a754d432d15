use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use nrh_core::snapshot::NodeView;

/// What the API server takes and no type here can hold.
const BEYOND: &str = "9999-12-31T23:59:59Z";
const FINE: &str = "2025-01-01T00:00:00Z";

fn guarded<K: Guardable + DeserializeOwned>(object: &Value) -> Guarded<K> {
    serde_json::from_value(object.clone()).unwrap()
}

fn node(version: u64, uid: &str, status: &str, beat: &str) -> Guarded<Node> {
    guarded(&json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "w1", "uid": uid, "resourceVersion": version.to_string(), "labels": {"pool": "a"}},
        "status": {"conditions": [{"type": "Ready", "status": status, "lastHeartbeatTime": beat}]}}))
}

#[test]
fn what_cannot_be_read_is_named_and_the_metadata_is_read_all_the_same() {
    assert!(node(1, "u", "True", FINE).0.is_ok());
    let bad = node(1, "u", "True", BEYOND).0.unwrap_err();
    assert!(bad.why.starts_with("status.conditions[0].lastHeartbeatTime: "), "{}", bad.why);
    assert_eq!((bad.metadata.name.as_deref(), bad.metadata.uid.as_deref()), (Some("w1"), Some("u")));
    // A list of which one item is so is a list.
    let list: Vec<Guarded<Node>> = serde_json::from_value(json!([
        {"metadata": {"name": "w1"}}, {"metadata": {"name": "w2"}, "spec": 7}, {"metadata": {"name": "w3"}}]))
    .unwrap();
    assert_eq!(list.iter().map(|one| one.0.is_ok()).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn nor_do_times_in_the_metadata_hide_it() {
    let managed = json!([{"manager": "kubelet", "operation": "Update", "time": BEYOND}]);
    let mut meta =
        json!({"name": "w1", "uid": "u", "resourceVersion": "7", "labels": {"pool": "a"}, "managedFields": managed});
    let named = |meta: &Value| {
        let bad = guarded::<Node>(&json!({"metadata": meta})).0.unwrap_err().metadata;
        (bad.name, bad.uid, bad.resource_version, bad.labels.unwrap_or_default().len())
    };
    let expected = (Some("w1".to_owned()), Some("u".to_owned()), Some("7".to_owned()), 1);
    assert_eq!(named(&meta), expected);
    meta["creationTimestamp"] = json!(BEYOND);
    assert_eq!(named(&meta), expected);
    meta["name"] = json!(7);
    assert_eq!(guarded::<Node>(&json!({"metadata": meta})).0.unwrap_err().metadata.uid.as_deref(), Some("u"));
    assert!(guarded::<Node>(&json!({"metadata": 7})).0.is_err());
}

#[test]
fn a_node_that_cannot_be_read_is_known_as_it_was_and_held_until_it_can_be() {
    let (mut state, now) = (State::default(), Instant::now());
    node(1, "u", "True", FINE).fold(&mut state, now);
    let before = state.snapshot.nodes["w1"].clone();
    assert_eq!(node(2, "u", "False", BEYOND).fold(&mut state, now), Changed::Matters);
    let held = state.snapshot.nodes["w1"].clone();
    assert!(held.unreadable.as_ref().unwrap().contains("lastHeartbeatTime"));
    assert_eq!(NodeView { unreadable: None, ..held }, before, "its last view");
    assert_eq!(state.unread.count("Node"), 1);
    assert_eq!(node(3, "u", "False", BEYOND).fold(&mut state, now), Changed::Nothing, "told already");
    assert_eq!(node(4, "u", "True", FINE).fold(&mut state, now), Changed::Matters);
    assert_eq!((&state.snapshot.nodes["w1"], state.unread.count("Node")), (&before, 0));
}

#[test]
fn one_that_was_never_read_has_a_row_and_another_object_of_its_name_takes_nothing_over() {
    let (mut state, now) = (State::default(), Instant::now());
    assert_eq!(node(1, "u", "True", BEYOND).fold(&mut state, now), Changed::Matters);
    let view = &state.snapshot.nodes["w1"];
    assert_eq!((view.uid.as_str(), view.labels.len(), view.ready), ("u", 1, nrh_core::snapshot::TriState::Unknown));
    node(2, "u", "True", FINE).fold(&mut state, now);
    assert_eq!(node(3, "other", "True", BEYOND).fold(&mut state, now), Changed::Matters);
    let view = &state.snapshot.nodes["w1"];
    assert_eq!((view.uid.as_str(), view.ready), ("other", nrh_core::snapshot::TriState::Unknown));
    assert!(view.unreadable.is_some() && state.unread.count("Node") == 1);
    // A re-list without it.
    Node::versions(&mut state).begin();
    Guarded::<Node>::finish_list(&mut state);
    assert!(state.snapshot.nodes.is_empty() && state.shared.len() == 0 && state.unread.count("Node") == 0);
}

fn job(version: u64, start: &str) -> Guarded<Job> {
    guarded(&json!({"metadata": {"name": "op-1", "resourceVersion": version.to_string(),
        "labels": {nrh_api::OPERATION_LABEL: "op-1"}}, "status": {"startTime": start, "ready": 1}}))
}

fn pod(version: u64, owner: &str, start: &str) -> Guarded<Pod> {
    guarded(&json!({"metadata": {"name": "op-1-x", "resourceVersion": version.to_string(),
        "labels": {nrh_api::OPERATION_LABEL: "op-1"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": "j", "controller": true}]},
        "status": {"startTime": start}}))
}

#[test]
fn a_job_or_a_pod_that_cannot_be_read_is_there_all_the_same() {
    let (mut state, now) = (State::default(), Instant::now());
    assert_eq!(job(1, BEYOND).fold(&mut state, now), Changed::Matters);
    let shown = |state: &State| state.jobs["op-1"].view("op-1", now + Duration::from_mins(1));
    assert!(state.jobs["op-1"].exists && !shown(&state).started);
    assert_eq!(pod(1, "op-2", BEYOND).fold(&mut state, now), Changed::Nothing, "of another Job");
    assert_eq!(pod(2, "op-1", BEYOND).fold(&mut state, now), Changed::Matters);
    assert!(shown(&state).started && !shown(&state).finished, "it may have started");
    assert_eq!((state.unread.count("Job"), state.unread.count("Pod")), (1, 1));
    assert_eq!(job(2, BEYOND).fold_deletion(&mut state), Changed::Matters);
    assert!(state.jobs.is_empty() && state.unread.count("Job") == 0);
}

#[test]
fn reports_and_policies_are_held_one_by_one_whatever_their_metadata_say() {
    let (mut state, now) = (State::default(), Instant::now());
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "w1", "uid": "u"}]);
    let report: Guarded<NodeRuntimeHealth> =
        guarded(&json!({"metadata": {"name": "w1", "uid": "r", "resourceVersion": "1",
        "creationTimestamp": BEYOND, "ownerReferences": owner}, "spec": {}}));
    assert_eq!(report.fold(&mut state, now), Changed::Matters);
    let held = &state.snapshot.reports["w1"];
    assert!(held.unreadable.is_some() && held.suspended.is_none() && held.node_uid.as_deref() == Some("u"), "{held:?}");
    let policy: Guarded<RemediationPolicy> =
        guarded(&json!({"metadata": {"name": "p", "uid": "p", "resourceVersion": "1"}, "spec": {"rules": 7}}));
    assert_eq!(policy.fold(&mut state, now), Changed::Matters);
    assert!(state.snapshot.unusable_policies.contains("p"));
    let why = &state.policies["p"].errors;
    assert!(why[0].starts_with("spec.rules: "), "{why:?}");
    let counts = |state: &State| (state.unread.count("NodeRuntimeHealth"), state.unread.count("RemediationPolicy"));
    assert_eq!(counts(&state), (1, 1));
    let mended: Guarded<NodeRuntimeHealth> =
        guarded(&json!({"metadata": {"name": "w1", "uid": "r", "resourceVersion": "2",
        "ownerReferences": owner}, "spec": {}}));
    assert_eq!(mended.fold(&mut state, now), Changed::Matters);
    assert!(state.snapshot.reports["w1"].unreadable.is_none());
    let policy = |version: u64, priority: &Value| -> Guarded<RemediationPolicy> {
        guarded(
            &json!({"metadata": {"name": "p", "uid": "p", "resourceVersion": version.to_string()}, "spec": {"priority": priority,
            "rules": [{"name": "r", "match": {"faults": ["DiskFull"]}, "steps": [{"action": "Notify"}]}]}}),
        )
    };
    assert_eq!(policy(2, &json!(3)).fold(&mut state, now), Changed::Matters);
    assert_eq!((counts(&state), state.snapshot.unusable_policies.len()), ((0, 0), 0));
    // What it has said counts on for the faults it was for, and starts nothing.
    assert_eq!(policy(3, &json!("high")).fold(&mut state, now), Changed::Matters);
    let [kept] = state.snapshot.policies.as_slice() else { panic!("{:?}", state.snapshot.policies) };
    assert!(kept.is_broken && kept.priority == 3, "{kept:?}");
    assert_eq!(counts(&state), (0, 1));
    assert_eq!(policy(4, &json!(4)).fold_deletion(&mut state), Changed::Matters);
    assert_eq!(counts(&state), (0, 0));
}

#[test]
fn a_daemon_set_is_known_as_it_was() {
    let set = |version: u64, created: &str, desired: i32| -> Guarded<DaemonSet> {
        let template = json!({"metadata": {"creationTimestamp": created}});
        guarded(&json!({"metadata": {"name": "log", "namespace": "d", "resourceVersion": version.to_string()},
            "spec": {"selector": {"matchLabels": {"app": "log"}}, "template": template},
            "status": {"desiredNumberScheduled": desired, "currentNumberScheduled": 3, "numberReady": 3, "numberMisscheduled": 0}}))
    };
    let (mut state, now) = (State::default(), Instant::now());
    assert_eq!(set(1, FINE, 3).fold(&mut state, now), Changed::Matters);
    assert_eq!(set(2, BEYOND, 4).fold(&mut state, now), Changed::Nothing);
    assert_eq!((state.daemon_sets["d/log"].desired, state.unread.count("DaemonSet")), (3, 1));
}
