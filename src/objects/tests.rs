//! The verbs that change an object, in a cluster where another of that kind cannot be read.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use clap::Parser;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::approve::approve;
use crate::cancel::cancel;
use crate::cli::{Cli, Command};
use crate::remediate::remediate;

fn object(kind: &str, name: &str, more: &Value) -> Value {
    let mut object = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": kind,
        "metadata": {"name": name, "labels": {"runtimehealth.io/node": "w1"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "w1", "uid": "u"}]}});
    object.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    object
}

/// A remediation of w1 that waits for approval. That of another version has a field that is not known here.
fn remediation(name: &str, is_known: bool) -> Value {
    let mut spec = json!({"nodeName": "w1", "nodeUid": "u", "policy": "p", "mode": "Enforce"});
    if !is_known {
        spec["urgency"] = json!("High");
    }
    let time = "2026-01-01T00:00:00Z";
    let fault = json!({"id": "f", "type": "OrphanContainer", "subject": {"kind": "Container", "name": "c"}, "rule": "r",
        "stepIndex": 0, "state": "Open"});
    let attempt = json!({"operationId": "op", "faultId": "f", "action": "CleanupOrphans", "stepIndex": 0, "executor": "Job",
        "target": {"containerId": "abc"}, "state": "AwaitingApproval", "scheduledAt": time});
    let status = json!({"phase": "AwaitingApproval", "startedAt": time, "faults": [fault], "attempts": [attempt]});
    object("NodeRemediation", name, &json!({"spec": spec, "status": status}))
}

fn policy(name: &str, mode: &str) -> Value {
    let step = json!({"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGCONT"}});
    let rule = json!({"name": "r", "match": {"faults": ["HungContainer"]}, "steps": [step]});
    object("RemediationPolicy", name, &json!({"spec": {"mode": mode, "rules": [rule]}}))
}

fn report() -> Value {
    let fault = json!({"id": "h", "type": "HungContainer", "severity": "High", "state": "Confirmed", "message": "m",
        "firstSeen": "2026-01-01T00:00:00Z", "subject": {"kind": "Container", "name": "c"}});
    object("NodeRuntimeHealth", "w1", &json!({"spec": {}, "status": {"faults": [fault]}}))
}

/// The answer to one request, where it is a request of one of the verbs.
fn answer(method: &str, kind: &str, name: Option<&str>, body: Value) -> Value {
    match (method, kind, name) {
        ("GET", "noderemediations", None) => json!({"items": [remediation("other", false), remediation("own", true)]}),
        ("GET", "remediationpolicies", None) => {
            json!({"items": [policy("other", "Cautious"), policy("own", "Enforce")]})
        }
        ("GET", "nodes", Some("w1")) => json!({"metadata": {"name": "w1", "uid": "u"}}),
        ("GET", "noderuntimehealths", Some("w1")) => report(),
        ("POST", "selfsubjectreviews", None) => json!({"metadata": {}, "status": {"userInfo": {"username": "ann"}}}),
        ("POST", "noderemediations", None) => body,
        ("PATCH", "noderemediations", Some(name)) => remediation(name, name == "own"),
        other => panic!("strange request {other:?}"),
    }
}

/// Runs a verb. Returns what it writes: the object and the new part of its spec.
async fn run(line: &[&str]) -> anyhow::Result<Vec<(String, Value)>> {
    let written = Arc::new(Mutex::new(Vec::new()));
    let written_by = written.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let written = written_by.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
            let path: Vec<&str> =
                parts.uri.path().split('/').skip_while(|part| !part.starts_with('v')).skip(1).collect();
            let name = path.get(1).copied();
            if path[0] == "noderemediations" && parts.method != "GET" {
                written.lock().unwrap().push((name.unwrap_or("new").to_owned(), body["spec"].clone()));
            }
            let answer = answer(parts.method.as_str(), path[0], name, body);
            Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
        }
    });
    let client = Client::new(service, "default");
    match Cli::try_parse_from([&["nrh"], line].concat())?.command {
        Command::Cancel(args) => cancel(client, args).await?,
        Command::Approve(args) => approve(client, args).await?,
        Command::Remediate(args) => remediate(client, args).await?,
        _ => panic!(),
    }
    let written = written.lock().unwrap().clone();
    Ok(written)
}

#[tokio::test]
async fn an_object_that_cannot_be_read_keeps_nobody_from_the_others() {
    let cancelled = json!({"cancel": {"cancelledBy": "ann"}});
    assert_eq!(run(&["cancel", "w1"]).await.unwrap(), [("own".to_owned(), cancelled.clone())]);
    let approved = json!({"approval": {"approvedBy": "ann", "operationId": "op"}});
    assert_eq!(run(&["approve", "w1", "--operation", "op"]).await.unwrap(), [("own".to_owned(), approved)]);
    let asked = run(&["remediate", "w1", "--action", "ReleaseHungProcess"]).await.unwrap();
    assert_eq!((asked.len(), &asked[0].1["policy"]), (1, &json!("own")));
    // Its own cancellation needs its name, and nothing else of it.
    assert_eq!(run(&["cancel", "other"]).await.unwrap(), [("other".to_owned(), cancelled)]);
}
