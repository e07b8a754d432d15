use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// An API server with these items in each list.
fn server(items: impl Fn(&str) -> Value + Clone + Send + 'static) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let kind = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items(&kind)});
        async move { Ok::<_, std::convert::Infallible>(Response::new(Body::from(list.to_string().into_bytes()))) }
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn one_live_object_that_cannot_be_read_is_named_and_the_others_are_checked() {
    let named = |name: &str, uid: &str| json!({"name": name, "uid": uid, "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]});
    let ready = json!({"type": "Ready", "status": "True"});
    let client = server(move |kind| match kind {
        "nodes" => {
            json!([{"metadata": named("w1", "u1")}, {"metadata": named("w2", "u2"), "status": {"conditions": [ready]}}, {"metadata": named("w3", "u3"), "spec": 7}])
        }
        "noderuntimehealths" => json!([
            {"metadata": named("w1", "u1"), "spec": {}, "status": {"faults": [{"type": "OfAnotherVersion"}]}},
            {"metadata": named("w2", "u2"), "spec": {}, "status": {"flapping": "often"}},
        ]),
        "nodecommands" => json!([{"metadata": named("w2", "u2"), "spec": {"command": {"action": "ReformatDisk"}}}]),
        "remediationpolicies" => json!([{"metadata": {"name": "p"}, "spec": {"rules": "none"}}]),
        "remediationconfigs" => json!([{"metadata": {"name": "cluster"}, "spec": {"suspend": "perhaps"}}]),
        _ => json!([{"metadata": {"name": "e"}, "spec": {"nodeName": []}}]),
    });
    let objects = Objects::fetch_by(client, Some("w2")).await.unwrap();
    assert_eq!(objects.node_names(), ["w1", "w2", "w3"]);
    let (snapshot, invalid) = objects.snapshot(Timestamp::UNIX_EPOCH);
    assert_eq!(snapshot.nodes.keys().collect::<Vec<_>>(), ["w1", "w2", "w3"]);
    assert!(snapshot.nodes["w3"].unreadable.is_some());
    for said in [
        "Node w3 cannot be used: ",
        "NodeRuntimeHealth w1 cannot be used: ",
        "NodeCommand w2 cannot be used: ",
        "policy p cannot be used: ",
        "RemediationConfig cluster cannot be used: ",
        "NodeRemediation e cannot be used: ",
        "status.flapping of NodeRuntimeHealth w2 is not used: expected a history of changes: ",
    ] {
        assert!(invalid.iter().any(|line| line.starts_with(said)), "{said}: {invalid:?}");
    }
    assert_eq!(invalid.len(), 7);
    // As by the controller: the node is blocked, and no condition counts as clean.
    assert!(snapshot.suspended.as_ref().unwrap().contains("cannot be read"));
    assert!(snapshot.reports["w1"].unreadable.is_some());
    assert!(snapshot.commands["w2"].unreadable.as_ref().unwrap().contains("ReformatDisk"));
    assert!(snapshot.reports["w2"].unreadable.is_none() && snapshot.flaps.is_empty());
}

#[test]
fn what_cannot_be_read_in_a_file_is_named_with_the_reason() {
    let broken = "{apiVersion: runtimehealth.io/v1alpha1, kind: NodeRuntimeHealth, metadata: {name: w1}, spec: {suspend: maybe}}";
    let error = Objects::parse(broken).unwrap_err().to_string();
    assert!(error.contains("NodeRuntimeHealth w1 cannot be used") && error.contains("maybe"), "{error}");
    let list = "{items: [{kind: Node, metadata: {name: w1}}, {kind: ConfigMap, apiVersion: v1, metadata: {name: c}},
        {kind: RemediationPolciy, apiVersion: runtimehealth.io/v1alpha1, metadata: {name: p}}]}";
    let found = Objects::parse(list).unwrap().unusable;
    assert_eq!(found.len(), 1, "{found:?}");
    let documents = "{kind: Node, metadata: {name: w1}}\n---\n{kind: Node, metadata: {name: w2}}\n";
    assert_eq!(Objects::parse(documents).unwrap().node_names(), ["w1", "w2"]);
    // As in a live cluster: the readable part of its metadata is enough to block its node.
    let broken = "{items: [{kind: Node, metadata: {name: w1}}, {kind: NodeRemediation, metadata: {name: e1, creationTimestamp: \
        '9999-12-31T23:59:59Z', labels: {runtimehealth.io/node: w1}, finalizers: [runtimehealth.io/remediation]}}]}";
    let blocked = &Objects::parse(broken).unwrap().read.unreadable["e1"];
    assert_eq!((blocked.node.as_deref(), blocked.is_open), (Some("w1"), true));
    assert!(found[0].starts_with("RemediationPolciy p is skipped: expected"), "{found:?}");
}
