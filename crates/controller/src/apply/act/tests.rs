use super::*;

#[test]
fn an_action_of_the_node_has_the_name_that_policies_give_it_whichever_way_it_goes() {
    let command = nrh_core::examples::command("op-1");
    assert_eq!(action_name(&Operation::RunJob(command.clone())), "ReleaseHungProcess");
    assert_eq!(action_name(&Operation::GiveCommand(command)), "ReleaseHungProcess");
}

/// The API server accepted the deletion, and its answer or the record of it was lost.
#[test]
fn a_deletion_that_an_earlier_call_of_the_attempt_has_made_is_done() {
    let at = |second: i64| Timestamp::from_second(1_900_000_000 + second).unwrap();
    let deleted = |end: i64| -> Pod {
        let meta = json!({"name": "p", "deletionTimestamp": at(end).to_string(), "deletionGracePeriodSeconds": 30});
        serde_json::from_value(json!({"metadata": meta})).unwrap()
    };
    let scheduled = at(0) + jiff::SignedDuration::from_millis(700);
    let is_done = |found: Option<&Pod>, now| is_deleted_already(found, scheduled, at(now));
    assert!(is_done(Some(&deleted(30)), 2), "in the second of the attempt");
    assert!(!is_done(Some(&deleted(29)), 2), "somebody else has deleted it before");
    assert!(!is_done(Some(&Pod::default()), 60), "nobody has");
    assert_eq!((is_done(None, 3), is_done(None, 6)), (false, true), "gone, at the first call and at a later one");
}

#[test]
fn only_a_stuck_daemon_set_pod_of_that_node_is_deleted() {
    let pod = PodRef { namespace: "d".into(), name: "p".into(), uid: "u".into() };
    let now = "2025-01-01T00:00:00Z".parse().unwrap();
    let waits =
        json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}});
    let with = |owner: &str, ready: &str, state: &Value| -> Pod {
        let ended = json!({"terminated": {"exitCode": 1, "finishedAt": "2024-12-31T23:58:00Z"}});
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "creationTimestamp": "2024-12-31T20:00:00Z",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "o", "controller": true}]},
            "spec": {"nodeName": "w1", "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": ready}], "containerStatuses": [{"name": "c", "image": "",
                "imageID": "", "ready": false, "restartCount": 9, "state": state, "lastState": ended}]}}))
        .unwrap()
    };
    let of = |owner: &str, ready: &str| with(owner, ready, &waits);
    let reason = |found: &Pod, node: &str| spared(found, &pod, node, now).map(|(reason, _)| reason);
    assert_eq!(reason(&of("DaemonSet", "False"), "w1"), None);
    // The creator of a pod writes its ownerReferences. So the controller also checks for a listed DaemonSet with that uid.
    let believed = |is_of_set| forged(is_of_set, &pod).map(|(reason, _)| reason);
    assert_eq!(believed(TriState::True), None);
    assert_eq!(believed(TriState::False), Some(OutcomeReason::Protected));
    assert_eq!(believed(TriState::Unknown), Some(OutcomeReason::Protected));
    assert_eq!(reason(&of("DaemonSet", "True"), "w1"), Some(OutcomeReason::Recovered));
    assert_eq!(reason(&of("ReplicaSet", "False"), "w1"), Some(OutcomeReason::Protected));
    assert_eq!(reason(&of("DaemonSet", "False"), "w2"), Some(OutcomeReason::TargetChanged));
    let started = with("DaemonSet", "False", &json!({"running": {}}));
    assert_eq!(reason(&started, "w1"), Some(OutcomeReason::Recovered), "it has just been started again");
}
