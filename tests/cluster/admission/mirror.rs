//! Conditions that are mirrored to Nodes: those, and nothing else of a status.

use anyhow::{Result, ensure};
use nrh::controller::node_conditions::MANAGER;
use nrh::core::node_condition::NodeCondition;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::requests::{Call, Cases, apply, get, merge, strategic};

const NODE: &str = "/api/v1/nodes/worker-2";

fn status(manager: &str, conditions: &Value) -> Call {
    let mut body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker-2"}});
    if !conditions.is_null() {
        body["status"] = json!({"conditions": conditions});
    }
    apply(format!("{NODE}/status?fieldManager={manager}"), body)
}

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "False", "reason": "NoFaultConfirmed", "message": "x"})
}

/// The controller writes its own conditions, and nothing else.
pub async fn guarded(all: &Callers, cases: &mut Cases) -> Result<()> {
    let by = &all.controller;
    let all_of_them: Vec<Value> = NodeCondition::ALL.map(|kind| condition(kind.as_str())).into();
    let mirror = status(MANAGER, &json!(all_of_them));
    cases.allowed(by, "mirror all conditions", mirror).await;
    let only = "changes those that it mirrors, no other";
    let nothing = "changes the conditions that it mirrors, nothing else";
    for kind in ["Ready", "MemoryPressure", "DrainInProgress", "KernelDeadlock"] {
        let what = format!("write condition {kind}");
        cases.denied(by, &what, status(MANAGER, &json!([condition(kind)])), only).await;
    }
    let capacity = json!({"status": {"capacity": {"example.org/gpu": "8"}}});
    let path = format!("{NODE}/status");
    cases.denied(by, "a capacity", merge(&path, capacity), nothing).await;
    cases.denied(by, "a phase", merge(&path, json!({"status": {"phase": "Terminated"}})), nothing).await;
    let volumes = |list: Value| merge(&path, json!({"status": {"volumesInUse": list}}));
    cases.denied(by, "a field that was not there", volumes(json!(["kubernetes.io/x/y"])), nothing).await;
    all.admin.must(&volumes(json!(["kubernetes.io/x/y"]))).await?;
    cases.denied(by, "a field off", volumes(Value::Null), nothing).await;
    all.admin.must(&volumes(Value::Null)).await?;
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    cases.denied(by, "a label by way of the status", merge(&path, label), nothing).await;
    let annotation = json!({"metadata": {"annotations": {"a": "b"}}});
    cases.denied(by, "an annotation by way of the status", merge(&path, annotation), nothing).await;

    // A condition that another tool has put there stays, and is not written over.
    all.admin.must(&strategic(&path, json!({"status": {"conditions": [condition("KernelDeadlock")]}}))).await?;
    let call = merge(&path, json!({"status": {"conditions": []}}));
    cases.denied(by, "remove the conditions of others", call, only).await;
    let mut theirs = condition("KubeletUnhealthy");
    theirs["reason"] = json!("Theirs");
    all.admin.must(&status("another-tool&force=true", &json!([theirs]))).await?;
    let refused = by.send(&status(MANAGER, &json!(all_of_them))).await;
    let is_conflict = matches!(&refused, Err((409, message)) if message.contains("another-tool"));
    ensure!(is_conflict, "another tool's condition was written over: {refused:?}");

    // One that another tool changes stays as it is, while the others are written.
    let changed = json!({"type": "HostUnhealthy", "reason": "Theirs", "message": "y"});
    let change = json!({"status": {"conditions": [changed]}});
    all.admin.must(&strategic(format!("{path}?fieldManager=third-tool"), change)).await?;
    let refused = by.send(&status(MANAGER, &json!(all_of_them))).await;
    ensure!(matches!(&refused, Err((409, message)) if message.contains("third-tool")), "{refused:?}");
    let is_ours = |one: &&Value| one["type"] != "HostUnhealthy" && one["type"] != "KubeletUnhealthy";
    let mut ours: Vec<Value> = all_of_them.iter().filter(is_ours).cloned().collect();
    ours.push(json!({"type": "HostUnhealthy", "status": "False"}));
    cases.allowed(by, "write the others", status(MANAGER, &json!(ours))).await;
    let node = all.admin.must(&get(NODE)).await?;
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let theirs = conditions.clone().find(|one| one["type"] == "HostUnhealthy").unwrap_or(&Value::Null);
    ensure!(theirs["status"] == "False" && theirs["reason"] == "Theirs", "{theirs}");
    let gone = json!({"status": {"conditions": [{"$patch": "delete", "type": "HostUnhealthy"}]}});
    all.admin.must(&strategic(&path, gone)).await?;

    // What is not wanted any more goes, and our name with it.
    cases.allowed(by, "take all of its own away", status(MANAGER, &Value::Null)).await;
    let node = all.admin.must(&get(NODE)).await?;
    let is_it =
        |kind: &&str| *kind == "KernelDeadlock" || NodeCondition::ALL.iter().any(|known| known.as_str() == *kind);
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let types: Vec<&str> = conditions.filter_map(|one| one["type"].as_str()).filter(is_it).collect();
    ensure!(types.len() == 2 && types.contains(&"KernelDeadlock") && types.contains(&"KubeletUnhealthy"), "{types:?}");
    let mut managers = node["metadata"]["managedFields"].as_array().into_iter().flatten();
    ensure!(managers.all(|entry| entry["manager"] != MANAGER), "our name is still there: {node}");
    Ok(())
}
