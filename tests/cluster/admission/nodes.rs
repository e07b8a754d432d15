//! What a node may write, in pod mode and in unit mode.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::requests::{Caller, Cases, apply_status, create, delete, get, merge, report};
use crate::objects::{POLICIES, REMEDIATIONS, REPORTS, ours, policy, remediation};

const LEDGER: &str = "/api/v1/namespaces/nrh-system/configmaps/nrh-ledger";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/nrh-system/leases/nrh-controller";
const NOW: &str = "2026-01-01T00:00:00Z";

/// A command as the controller gives it.
pub fn command() -> Value {
    json!({"operationId": "op-1", "epoch": 1, "node": "worker-1", "action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGKILL"}, "faultId": "f",
        "faultType": "HungContainer", "target": {}, "issuedAt": NOW, "ttlSeconds": 60})
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "reason": "Clean", "message": "", "lastTransitionTime": NOW})
}

fn fault(kind: &str) -> Value {
    json!({"id": "f", "type": kind, "severity": "High", "state": "Confirmed", "subject": {"kind": "Container"},
        "message": "m", "firstSeen": NOW})
}

/// A status as a probe applies it.
fn facts(sequence: u64) -> Value {
    json!({
        "probe": {"version": "0.1.0", "mode": "Pod", "bootId": "b", "sequence": sequence, "intervalSeconds": 300},
        "faults": [fault("HungContainer")],
        "commandResult": {"operationId": "op-1", "state": "Refused", "reason": "Recovered", "message": "m", "at": NOW},
        "conditions": [condition("RestartSafe", "False"), condition("RuntimeReady", "True")],
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut status = facts(9);
    status[field] = value;
    status
}

/// What the shipped roles and policies say to both modes.
pub async fn with_the_rights_as_shipped(all: &Callers, cases: &mut Cases) -> Result<()> {
    let ledger = json!({"metadata": {"name": "nrh-ledger"}});
    all.controller.must(&create("/api/v1/namespaces/nrh-system/configmaps", ledger)).await?;
    let lease = json!({"metadata": {"name": "nrh-controller"}, "spec": {"holderIdentity": "a"}});
    all.controller.must(&create("/apis/coordination.k8s.io/v1/namespaces/nrh-system/leases", lease)).await?;
    all.controller.must(&create(REMEDIATIONS, remediation("e", "worker-1"))).await?;

    for (caller, sequence) in [(&all.pod, 1), (&all.unit, 2)] {
        cases.allowed(caller, "apply its own status", apply_status("worker-1", facts(sequence))).await;
        let call = merge(format!("{}/status", report("worker-1")), json!({"status": facts(sequence + 10)}));
        cases.allowed(caller, "merge into its own status", call).await;
        let own = "a node writes only its own NodeRuntimeHealth: expected worker-1, found worker-2";
        cases.denied(caller, "a neighbour's status", apply_status("worker-2", facts(1)), own).await;
        forged_fields(caller, cases).await;
        without_a_right(caller, cases).await;
    }
    cases.allowed(&all.neighbour, "apply its own status", apply_status("worker-2", facts(1))).await;
    let call = apply_status("worker-1", facts(1));
    cases.denied(&all.neighbour, "a neighbour's status", call, "expected worker-2, found worker-1").await;
    let call = apply_status("worker-1", facts(1));
    cases.denied(&all.unbound, "any status", call, "a node's report must come with the name of its node").await;
    let call = apply_status("worker-1", facts(1));
    cases.denied(&all.other_account, "any status", call, "cannot patch resource \"noderuntimehealths/status\"").await;
    Ok(())
}

/// The controller's fields in the status of its own object.
async fn forged_fields(caller: &Caller, cases: &mut Cases) {
    for (field, value) in [
        ("remediation", json!({"policy": "p"})),
        ("clusterFaults", json!([fault("StuckDaemonSetPod")])),
        ("summary", json!({"health": "Healthy"})),
        ("kubeletVersion", json!("v1.23.0")),
        ("observedGeneration", json!(7)),
        (
            "flapping",
            json!({"readyTransitions": 1, "recurrences": 0, "trackedSince": "2026-01-01T00:00:00Z", "lastChangeAt": "2026-01-01T00:00:00Z",
                   "penalty": 1000, "ready": "True"}),
        ),
    ] {
        let sentence = "are the controller's";
        let call = apply_status("worker-1", with(field, value.clone()));
        cases.denied(caller, &format!("status.{field}"), call, sentence).await;
        let path = format!("{}/status", report("worker-1"));
        let call = merge(path, json!({"status": {field: value}}));
        cases.denied(caller, &format!("status.{field} by merge"), call, sentence).await;
    }
    for kind in ["Ready", "ProbeReporting", "NodeStable", "PodsProgressing", "SelfHealing"] {
        let mut status = facts(9);
        status["conditions"].as_array_mut().unwrap().push(condition(kind, "True"));
        cases.denied(caller, kind, apply_status("worker-1", status), "are the controller's").await;
    }
}

/// Requests that no role allows.
async fn without_a_right(caller: &Caller, cases: &mut Cases) {
    for (what, call) in objects_of_others() {
        cases.denied(caller, what, call, "cannot").await;
    }
    cases.denied(caller, "read the ledger", get(LEDGER), "cannot get resource \"configmaps\"").await;
    cases.denied(caller, "read its own report", get(report("worker-1")), "cannot get resource").await;
    cases.denied(caller, "list all reports", get(REPORTS), "cannot list resource").await;
}

/// Writes to everything that is not a node's: its own object but for the status, and the controller's objects.
fn objects_of_others() -> Vec<(&'static str, crate::admission::requests::Call)> {
    let own = report("worker-1");
    let policy = policy("x", "LeakedShim", &json!([{"action": "CleanupOrphans"}]));
    vec![
        ("create a report", create(REPORTS, ours("NodeRuntimeHealth", "x", json!({})))),
        ("its own spec", merge(&own, json!({"spec": {"suspend": true}}))),
        ("its own labels", merge(&own, json!({"metadata": {"labels": {"a": "b"}}}))),
        ("delete its own report", delete(&own, Value::Null)),
        ("create a remediation", create(REMEDIATIONS, remediation("x", "worker-1"))),
        ("change a remediation", merge(format!("{REMEDIATIONS}/e/status"), json!({"status": {"phase": "Succeeded"}}))),
        ("delete a remediation", delete(format!("{REMEDIATIONS}/e"), Value::Null)),
        ("create a policy", create(POLICIES, policy)),
        ("change the ledger", merge(LEDGER, json!({"data": {"ledger.json": "{}"}}))),
        ("take the leader's Lease", merge(LEASE, json!({"spec": {"holderIdentity": "me"}}))),
    ]
}

/// The controller's fields stand beside the node's, and stay when the node applies its own.
pub async fn beside_the_controller(all: &Callers, cases: &mut Cases) -> Result<()> {
    let path = format!("{}/status", report("worker-1"));
    let body = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth", "metadata": {"name": "worker-1"},
        "status": {"summary": {"health": "Unhealthy"}, "remediation": {"policy": "p"},
            "clusterFaults": [fault("StuckDaemonSetPod")], "conditions": [condition("ProbeReporting", "True")]}});
    let ours = crate::admission::requests::apply(format!("{path}?fieldManager=nrh-controller&force=true"), body);
    cases.allowed(&all.controller, "its own part of a status", ours).await;
    for (caller, sequence) in [(&all.pod, 21), (&all.unit, 22)] {
        let call = apply_status("worker-1", facts(sequence));
        cases.allowed(caller, "apply its own status beside the controller's", call).await;
        let call = merge(&path, json!({"status": {"conditions": [condition("RuntimeReady", "True")]}}));
        cases.denied(caller, "remove the controller's conditions", call, "are the controller's").await;
        let call = merge(&path, json!({"status": {"clusterFaults": null}}));
        cases.denied(caller, "remove the controller's faults", call, "are the controller's").await;
    }
    let now = all.admin.must(&get(report("worker-1"))).await?;
    let status = &now["status"];
    ensure!(status["summary"]["health"] == "Unhealthy" && status["probe"]["sequence"] == 22, "both wrote: {now}");
    let suspension = json!({"spec": {"suspend": true, "suspendedBy": "system:serviceaccount:default:olga"}});
    cases.allowed(&all.operator, "suspend a node", merge(report("worker-1"), suspension)).await;
    Ok(())
}

/// Somebody has bound far too much to all nodes: the policies hold, with their own sentences.
pub async fn with_too_many_rights(all: &Callers, cases: &mut Cases) -> Result<()> {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let role = json!({"metadata": {"name": "too-much"}, "rules": rules});
    all.admin.must(&create(format!("{rbac}/clusterroles"), role)).await?;
    let group = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name});
    let binding = json!({"metadata": {"name": "too-much"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "too-much"},
        "subjects": [group("system:nodes"), group("system:serviceaccounts:nrh-node")]});
    all.admin.must(&create(format!("{rbac}/clusterrolebindings"), binding)).await?;
    all.other_account.until_allowed(&get(LEDGER)).await?;
    let own = "a node writes nothing but the status of its own NodeRuntimeHealth";
    let nameless = "a node's report must come with the name of its node";
    let others = "nodes and their probes never write policies, remediations, the ledger or the leader's Lease";
    for caller in [&all.pod, &all.unit, &all.unbound, &all.other_account] {
        for (what, call) in crate::admission::commands::forgeries("worker-1") {
            cases.denied(caller, &what, call, "it cannot issue or withdraw a command").await;
        }
        for (what, call) in objects_of_others() {
            let report = what.contains("report") || what.starts_with("its own");
            let sentence = match caller.name {
                name if report && (name == all.pod.name || name == all.unit.name) => own,
                _ if report => nameless,
                // The server's own guard of kubelets is asked before the policies.
                name if name == all.unit.name && what.contains("Lease") => "kube-node-lease",
                _ => others,
            };
            cases.denied(caller, what, call, sentence).await;
        }
    }
    cases.denied(&all.other_account, "any status", apply_status("worker-1", facts(1)), nameless).await;
    cases.denied(&all.unbound, "any status", apply_status("worker-1", facts(1)), nameless).await;
    let lease = json!({"metadata": {"name": "worker-1"}, "spec": {"holderIdentity": "worker-1"}});
    let call = create("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", lease);
    cases.allowed(&all.unit, "renew its own Lease", call).await;
    all.admin.must(&delete(format!("{rbac}/clusterrolebindings/too-much"), Value::Null)).await?;
    all.admin.must(&delete(format!("{rbac}/clusterroles/too-much"), Value::Null)).await?;
    Ok(())
}
