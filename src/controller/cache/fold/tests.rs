use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;

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
                             "lanes": [{"name": "kubelet", "state": "Ok", "ageSeconds": 4}]},
                   "kubelet": kubelet}}))
    .unwrap()
}

fn state() -> State {
    State::new(Instant::now())
}

#[test]
fn a_heartbeat_alone_is_no_news_and_its_time_is_kept() {
    let (mut state, now) = (state(), Instant::now());
    assert_eq!(node(1, "2025-01-01T00:00:00Z").fold(&mut state, now), News::Matters);
    assert_eq!(node(2, "2025-01-01T00:05:00Z").fold(&mut state, now), News::Nothing);
    assert_eq!(state.snapshot.nodes["w1"].status_at, "2025-01-01T00:05:00Z".parse().ok());
}

#[test]
fn a_start_is_unfinished_for_as_long_as_it_is_seen_so_and_its_end_is_news() {
    let (mut state, now) = (state(), Instant::now());
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
    assert_eq!(of(&state).looked, Duration::from_secs(4));
    // The kubelet is restarted: another start.
    let again = report(3, &json!({"started": true, "startedAt": "2025-01-01T01:01:00Z"}));
    assert_eq!(again.fold(&mut state, later), News::Matters);
    state.refresh(later, wall);
    assert_eq!(of(&state).unfinished, Some(Duration::ZERO));
    // A status of before its start changes nothing, one of after it does.
    assert_eq!(node(2, "2025-01-01T00:59:00Z").fold(&mut state, later), News::Nothing);
    assert_eq!(node(3, "2025-01-01T01:02:00Z").fold(&mut state, later), News::Matters);
    state.refresh(later, wall);
    assert_eq!(of(&state).unfinished, None);
}

#[test]
fn sandboxes_that_were_made_since_end_a_start_whatever_the_node_says() {
    let (mut state, now) = (state(), Instant::now());
    node(1, "2025-01-01T00:58:00Z").fold(&mut state, now);
    report(1, &json!({"startedAt": BEGAN})).fold(&mut state, now);
    state.refresh(now, Timestamp::UNIX_EPOCH);
    assert!(state.snapshot.reports["w1"].kubelet.unfinished.is_some());
    let makes = report(2, &json!({"startedAt": BEGAN, "makesPods": true}));
    assert_eq!(makes.fold(&mut state, now), News::Matters);
    state.refresh(now, Timestamp::UNIX_EPOCH);
    assert_eq!(state.snapshot.reports["w1"].kubelet.unfinished, None);
}
