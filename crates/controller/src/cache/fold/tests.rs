use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use nrh_api::RemediationPolicy;
use nrh_api::view::guard::Guarded;

const BEGAN: &str = "2025-01-01T01:00:00Z";

fn node(version: u64, written: &str) -> Node {
    let object = json!({"metadata": {"name": "w1", "uid": "u", "resourceVersion": version.to_string()},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": written}],
                   "images": [{"names": ["a"], "sizeBytes": version}]}});
    serde_json::from_value(object).unwrap()
}

/// The first report is made 100 s after the start, the others 70 s later.
fn report(version: u64, kubelet: &Value) -> NodeRuntimeHealth {
    let beat = if version == 1 { "2025-01-01T01:01:40Z" } else { "2025-01-01T01:02:50Z" };
    serde_json::from_value(json!({
        "apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth",
        "metadata": {"name": "w1", "uid": "n", "resourceVersion": version.to_string(), "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "w1", "uid": "u"}]},
        "spec": {},
        "status": {"probe": {"version": "1", "mode": "Pod", "bootId": "b", "sequence": version, "intervalSeconds": 300,
                             "heartbeatAt": beat,
                             "collectors": [{"name": "kubelet", "state": "Ok", "ageSeconds": 4}]},
                   "kubelet": kubelet}}))
    .unwrap()
}

#[test]
fn a_heartbeat_alone_is_no_news_and_its_time_is_kept() {
    let (mut state, now) = (State::default(), Instant::now());
    assert_eq!(node(1, "2025-01-01T00:00:00Z").fold(&mut state, now), Changed::Matters);
    assert_eq!(node(2, "2025-01-01T00:05:00Z").fold(&mut state, now), Changed::Nothing);
    assert_eq!(state.snapshot.nodes["w1"].status_at, "2025-01-01T00:05:00Z".parse().ok());
}

#[test]
fn the_heartbeat_of_a_probe_that_was_due_is_no_news_that_of_one_that_was_missed_or_asked_for_is() {
    let wall = Timestamp::UNIX_EPOCH;
    // The probe has promised one within 300 s.
    let beat = |after: u64, own_faults: &Value| {
        let (mut state, now) = (State::default(), Instant::now());
        node(1, "2025-01-01T00:58:00Z").fold(&mut state, now);
        assert_eq!(report(1, &json!({})).fold(&mut state, now), Changed::Matters, "its first");
        let later = now + Duration::from_secs(after);
        state.refresh(later, wall);
        let mut next = report(2, &json!({}));
        next.status.as_mut().unwrap().cluster_faults = serde_json::from_value(own_faults.clone()).unwrap();
        next.fold(&mut state, later + Duration::from_secs(1))
    };
    assert_eq!(beat(100, &json!([])), Changed::Nothing);
    assert_eq!(beat(320, &json!([])), Changed::Nothing, "due, and nobody waits for it");
    assert_eq!(beat(451, &json!([])), Changed::Matters, "missed");
    let blocked = json!([{"id": "blocked", "type": "KubeletStartBlocked", "severity": "High", "state": "Confirmed",
        "message": "m", "firstSeen": BEGAN, "subject": {"kind": "Kubelet"}}]);
    assert_eq!(beat(100, &blocked), Changed::Matters, "a fresh look is waited for");
}

fn conditions(version: u64, all: &Value) -> Node {
    serde_json::from_value(json!({"metadata": {"name": "w1", "uid": "u", "resourceVersion": version.to_string()},
        "status": {"conditions": all}}))
    .unwrap()
}

fn deadlock(status: &str, reason: &str, message: &str, beat: &str) -> Value {
    json!([{"type": "KernelDeadlock", "status": status, "reason": reason, "message": message, "lastHeartbeatTime": beat},
           {"type": "Ready", "status": "True", "lastHeartbeatTime": beat}])
}

/// A policy that asks for a deadlock with one of these reasons, or with any.
fn asks(version: u64, reasons: &[&str]) -> RemediationPolicy {
    let mut condition = json!({"type": "KernelDeadlock", "status": "True"});
    if !reasons.is_empty() {
        condition["reasons"] = json!(reasons);
    }
    let rule = json!({"name": "r", "match": {"nodeConditions": [condition]}, "steps": [{"action": "Notify"}]});
    policy_of(version, "p", &json!({"rules": [rule]}))
}

#[test]
fn a_condition_is_news_where_a_policy_asks_for_it_and_its_heartbeat_is_none() {
    let (mut state, now) = (State::default(), Instant::now());
    let beat = |minute: u64| format!("2025-01-01T00:{minute:02}:00Z");
    conditions(1, &deadlock("False", "Fine", "well", &beat(0))).fold(&mut state, now);
    let bad = |minute: u64| deadlock("True", "DockerHung", &format!("hung at {minute}"), &beat(minute));
    let news = conditions(2, &bad(1)).fold(&mut state, now);
    assert_eq!(news, Changed::Nothing, "nobody asks for it");
    state.refresh(now, Timestamp::UNIX_EPOCH);
    assert_eq!(state.snapshot.matched_conditions.len(), 0);
    // It stands there when the policy comes, and counts from then on.
    let later = now + Duration::from_mins(1);
    assert_eq!(asks(3, &[]).fold(&mut state, later), Changed::Matters);
    for minute in 2..5 {
        let news = conditions(2 + minute, &bad(minute)).fold(&mut state, later + Duration::from_mins(minute));
        assert_eq!(news, Changed::Nothing, "a heartbeat with another message");
    }
    let matched_condition = |state: &mut State, seconds: u64| {
        let wall = Timestamp::from_second(i64::try_from(seconds).unwrap()).unwrap();
        state.refresh(now + Duration::from_secs(seconds), wall);
        state.snapshot.matched_conditions.get("w1").map(|all| all[0].clone())
    };
    let first = matched_condition(&mut state, 400).unwrap();
    assert_eq!((first.longest().as_secs(), first.first_seen.as_second()), (340, 60));
    assert_eq!(first.condition.message, "hung at 1", "as it was when the policy found it");
    let again = matched_condition(&mut state, 401).unwrap();
    assert_eq!(again.first_seen, first.first_seen, "the same from pass to pass");
    let news = conditions(9, &deadlock("True", "TaskHung", "m", &beat(9))).fold(&mut state, later);
    assert_eq!(news, Changed::Matters, "another reason");
    assert_eq!(matched_condition(&mut state, 500).unwrap().longest().as_secs(), 440, "whatever the reason");
    // Gone for a moment, and no pass has seen it so.
    let flip = now + Duration::from_secs(510);
    assert_eq!(conditions(10, &deadlock("False", "Fine", "well", &beat(9))).fold(&mut state, flip), Changed::Matters);
    assert_eq!(conditions(11, &bad(9)).fold(&mut state, flip), Changed::Matters);
    assert_eq!(matched_condition(&mut state, 600).unwrap().longest().as_secs(), 90);
    assert_eq!(asks(12, &["TaskHung"]).fold(&mut state, flip), Changed::Matters);
    assert_eq!(matched_condition(&mut state, 601), None, "not for this reason");
}

#[test]
fn nodes_that_stand_alike_share_their_conditions_and_none_is_kept_for_nobody() {
    let (mut state, now) = (State::default(), Instant::now());
    let node = |name: &str, version: u64, reason: &str| -> Node {
        let mut node = conditions(version, &deadlock("False", reason, "m", "2025-01-01T00:00:00Z"));
        node.metadata.name = Some(name.to_owned());
        node
    };
    for name in ["w1", "w2", "w3"] {
        node(name, 1, "Fine").fold(&mut state, now);
    }
    assert_eq!(state.shared.len(), 1);
    node("w1", 2, "Other").fold(&mut state, now);
    assert_eq!(state.shared.len(), 2);
    node("w1", 3, "Fine").fold(&mut state, now);
    assert_eq!(state.shared.len(), 1, "nobody stands so any more");
    for name in ["w1", "w2", "w3"] {
        Node::forget(name, &mut state);
    }
    assert_eq!(state.shared.len(), 0);
}

#[test]
fn what_reports_say_is_kept_once_and_goes_with_the_last_that_says_it() {
    let (mut state, now) = (State::default(), Instant::now());
    let report = |name: &str, version: u64, message: &str| {
        let mut report = report(version, &json!({}));
        report.metadata.name = Some(name.to_owned());
        let conditions = json!([{"type": "RuntimeReady", "status": "True", "reason": "Clean", "message": message,
            "lastTransitionTime": format!("2025-01-01T00:00:0{version}Z")}]);
        report.status.get_or_insert_default().conditions = serde_json::from_value(conditions).unwrap();
        report
    };
    for (name, message) in [("w1", "well"), ("w2", "well"), ("w3", "well"), ("w3", "ill")] {
        let version = if message == "ill" { 2 } else { 1 };
        report(name, version, message).fold(&mut state, now);
    }
    assert_eq!(state.condition_texts.len(), 2);
    let said = |state: &State, node: &str| {
        state.controller_statuses[node].conditions.named("RuntimeReady").unwrap().text.message.clone()
    };
    assert_eq!((said(&state, "w1"), said(&state, "w3")), ("well".to_owned(), "ill".to_owned()));
    for (name, left) in [("w3", 1), ("w1", 1), ("w2", 0)] {
        NodeRuntimeHealth::forget(name, &mut state);
        assert_eq!(state.condition_texts.len(), left, "without {name}");
    }
}

#[test]
fn a_start_is_unfinished_for_as_long_as_it_is_seen_so_and_its_end_is_news() {
    let (mut state, now) = (State::default(), Instant::now());
    let wall = Timestamp::UNIX_EPOCH;
    let of = |state: &State| state.snapshot.reports["w1"].kubelet.clone();
    node(1, "2025-01-01T00:58:00Z").fold(&mut state, now);
    report(1, &json!({"started": true, "startedAt": BEGAN})).fold(&mut state, now);
    assert_eq!(of(&state).unfinished, None, "nobody has counted yet");
    state.refresh(now, wall);
    assert_eq!((of(&state).unfinished, of(&state).age), (Some(Duration::ZERO), Duration::from_secs(100)));
    let later = now + Duration::from_secs(70);
    report(2, &json!({"started": true, "startedAt": BEGAN})).fold(&mut state, later);
    state.refresh(later, wall);
    assert_eq!(of(&state).unfinished, Some(Duration::from_secs(70)));
    assert_eq!(of(&state).checked, Duration::from_secs(4));
    // The kubelet is restarted: another start.
    let again = report(3, &json!({"started": true, "startedAt": "2025-01-01T01:01:00Z"}));
    assert_eq!(again.fold(&mut state, later), Changed::Matters);
    state.refresh(later, wall);
    assert_eq!(of(&state).unfinished, Some(Duration::ZERO));
    // A status of before its start changes nothing, one of after it does.
    assert_eq!(node(2, "2025-01-01T00:59:00Z").fold(&mut state, later), Changed::Nothing);
    assert_eq!(node(3, "2025-01-01T01:02:00Z").fold(&mut state, later), Changed::Matters);
    state.refresh(later, wall);
    assert_eq!(of(&state).unfinished, None);
}

#[test]
fn sandboxes_that_were_made_since_end_a_start_whatever_the_node_says() {
    let (mut state, now) = (State::default(), Instant::now());
    node(1, "2025-01-01T00:58:00Z").fold(&mut state, now);
    report(1, &json!({"startedAt": BEGAN})).fold(&mut state, now);
    state.refresh(now, Timestamp::UNIX_EPOCH);
    assert!(state.snapshot.reports["w1"].kubelet.unfinished.is_some());
    let makes = report(2, &json!({"startedAt": BEGAN, "createsPods": true}));
    assert_eq!(makes.fold(&mut state, now), Changed::Matters);
    state.refresh(now, Timestamp::UNIX_EPOCH);
    assert_eq!(state.snapshot.reports["w1"].kubelet.unfinished, None);
}

#[test]
fn nothing_is_kept_of_a_node_that_is_gone_whatever_its_probe_still_says() {
    let (mut state, now) = (State::default(), Instant::now());
    let mut sick = report(2, &json!({}));
    let fault = json!([{"id": "down", "type": "KubeletDown", "severity": "High", "state": "Confirmed",
        "subject": {"kind": "Kubelet"}, "message": "m", "firstSeen": BEGAN}]);
    sick.status.get_or_insert_default().faults = serde_json::from_value(fault).unwrap();
    node(1, BEGAN).fold(&mut state, now);
    Node::forget("w1", &mut state);
    sick.fold(&mut state, now);
    let kept = |state: &State| format!("{:?} {:?}", state.flaps, state.wakes).matches("w1").count();
    assert_eq!(kept(&state), 2);
    NodeRuntimeHealth::forget("w1", &mut state);
    assert_eq!(kept(&state), 0);
}

/// A policy of one object's history: its spec at that version.
fn policy_of(version: u64, uid: &str, spec: &Value) -> RemediationPolicy {
    let object = serde_json::from_value(json!({
        "apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy",
        "metadata": {"name": "p", "uid": uid, "resourceVersion": version.to_string(), "generation": version},
        "spec": spec}));
    object.unwrap()
}

#[test]
fn what_a_policy_has_said_is_kept_when_it_becomes_unusable() {
    let (mut state, now) = (State::default(), Instant::now());
    let rules = json!([{"name": "r", "match": {"faults": ["HungContainer"]}, "steps": [{"action": "Notify"}]}]);
    let broken = json!({"rules": rules, "priority": 7, "windows": [
        {"type": "Allow", "schedule": "61 22 * * *", "duration": "1h", "timeZone": "UTC"}]});
    policy_of(1, "u1", &json!({"rules": rules, "priority": 3})).fold(&mut state, now);
    assert_eq!(policy_of(2, "u1", &broken).fold(&mut state, now), Changed::Matters);
    let [kept] = state.snapshot.policies.as_slice() else { panic!("{:?}", state.snapshot.policies) };
    assert!(kept.is_broken && kept.priority == 3, "{kept:?}");
    assert!(!state.policies["p"].flaws().is_empty() && state.snapshot.unusable_policies.is_empty());
    // Once more, and with a person's stop in it, which counts.
    let mut stopped = broken.clone();
    stopped["suspend"] = json!(true);
    policy_of(3, "u1", &stopped).fold(&mut state, now);
    assert!(state.snapshot.policies[0].suspend && state.snapshot.policies[0].is_broken);
    policy_of(4, "u1", &json!({"rules": rules, "priority": 5})).fold(&mut state, now);
    let mended = &state.snapshot.policies[0];
    assert!(!mended.is_broken && !mended.suspend && mended.priority == 5);
    // Another object of that name has said nothing yet.
    policy_of(5, "u2", &broken).fold(&mut state, now);
    assert!(state.snapshot.policies.is_empty());
    assert!(state.snapshot.unusable_policies.contains("p"));
}

fn remediation(version: u64, phase: &str, finalizers: &Value) -> Guarded<NodeRemediation> {
    serde_json::from_value(json!({
        "apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRemediation",
        "metadata": {"name": "w1-a", "uid": "e", "resourceVersion": version.to_string(), "finalizers": finalizers,
            "creationTimestamp": BEGAN, "labels": {"runtimehealth.io/node": "w1", "runtimehealth.io/policy": "p"}},
        "spec": {"nodeName": "w1", "nodeUid": "u", "policy": "p", "mode": "Enforce"},
        "status": {"phase": phase, "message": "m"}}))
    .unwrap()
}

#[test]
fn a_remediation_that_cannot_be_read_is_known_by_its_metadata_until_it_can_be_or_is_gone() {
    let (mut state, now) = (State::default(), Instant::now());
    let ours = json!([FINALIZER]);
    assert_eq!(remediation(1, "Running", &ours).fold(&mut state, now), Changed::Matters);
    assert!(state.snapshot.remediations.contains_key("w1-a"));
    assert_eq!(remediation(2, "OfALaterVersion", &ours).fold(&mut state, now), Changed::Matters);
    let known = state.snapshot.unreadable["w1-a"].clone();
    assert_eq!((known.node.as_deref(), known.policy.as_deref(), known.is_open), (Some("w1"), Some("p"), true));
    assert_eq!(known.made_at, BEGAN.parse().ok());
    assert!(known.why.contains("OfALaterVersion"), "{}", known.why);
    assert!(
        state.snapshot.remediations.is_empty() && state.remediations.is_empty(),
        "what was known of it is not true any more"
    );
    assert_eq!(remediation(3, "OfALaterVersion", &ours).fold(&mut state, now), Changed::Nothing);
    assert_eq!(remediation(4, "Running", &ours).fold(&mut state, now), Changed::Matters);
    assert!(state.snapshot.unreadable.is_empty() && state.snapshot.remediations.contains_key("w1-a"));
    remediation(5, "OfALaterVersion", &json!([])).fold(&mut state, now);
    assert!(!state.snapshot.unreadable["w1-a"].is_open);
    assert_eq!(remediation(6, "OfALaterVersion", &json!([])).fold_deletion(&mut state), Changed::Matters);
    assert!(state.snapshot.unreadable.is_empty());
}

#[test]
fn a_new_list_forgets_an_unreadable_remediation_that_it_does_not_show() {
    let (mut state, now) = (State::default(), Instant::now());
    remediation(1, "OfALaterVersion", &json!([FINALIZER])).fold(&mut state, now);
    NodeRemediation::versions(&mut state).begin();
    NodeRemediation::finish_list(&mut state);
    assert!(state.snapshot.unreadable.is_empty());
}

fn daemon_set(version: u64, ready: u32) -> DaemonSet {
    serde_json::from_value(json!({
        "metadata": {"name": "ds", "namespace": "d", "uid": "s", "resourceVersion": version.to_string()},
        "spec": {"selector": {"matchLabels": {"app": "ds"}}, "template": {}},
        "status": {"currentNumberScheduled": 1, "desiredNumberScheduled": 1, "numberMisscheduled": 0, "numberReady": ready}}))
    .unwrap()
}

#[test]
fn of_the_pods_of_a_set_that_is_well_or_gone_nothing_is_kept() {
    let (mut state, now) = (State::default(), Instant::now());
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "ds-1", "namespace": "d", "uid": "p"}})).unwrap();
    let named = BTreeSet::from([nrh_api::view::pods::pod_ref(&pod)]);
    let asked = BTreeSet::from(["app".to_owned()]);
    let known = |state: &State| state.known_pods.seen(now).len();
    for version in [1, 3] {
        daemon_set(version, 0).fold(&mut state, now);
        assert!(state.daemon_sets["d/ds"].has_unready_pods);
        state.known_pods.note_set("d/ds", &named, std::slice::from_ref(&pod), &asked, now);
        assert_eq!(known(&state), 1);
        if version == 1 {
            daemon_set(2, 1).fold(&mut state, now);
            assert_eq!(known(&state), 0, "it is well");
        }
    }
    daemon_set(4, 0).fold_deletion(&mut state);
    assert_eq!(known(&state), 0, "it is gone");
}

#[test]
fn a_node_that_a_new_list_does_not_show_is_not_brought_back_by_a_read_from_before() {
    let (mut state, now) = (State::default(), Instant::now());
    let read = node(1, BEGAN);
    read.clone().fold(&mut state, now);
    Node::versions(&mut state).begin();
    Node::finish_list(&mut state);
    assert_eq!(read.fold(&mut state, now), Changed::Nothing);
    assert!(state.snapshot.nodes.is_empty());
}
