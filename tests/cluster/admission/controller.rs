//! What the controller may write beside its own kinds.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nrh_testbed::wait::SOON;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::requests::{Caller, Cases, create, delete, get, merge, owned_report, report};
use crate::objects::{POLICIES, REPORTS, ours};

const NODE: &str = "/api/v1/nodes/worker-1";
const PODS: &str = "/api/v1/namespaces/nrh-node/pods";

pub fn bare_pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"nodeName": "worker-1", "containers": [{"name": "c", "image": "i"}]}})
}

fn policy(name: &str, mode: &str) -> Value {
    let rule = json!({"name": "r", "match": {"faults": ["LeakedShim"]}, "steps": [{"action": "CleanupOrphans"}]});
    ours("RemediationPolicy", name, json!({"mode": mode, "rules": [rule]}))
}

pub async fn names(all: &Callers, cases: &mut Cases) {
    let by = &all.controller;
    let named = |name: &str| json!({"metadata": {"name": name}});
    let system = "/api/v1/namespaces/nrh-system";
    let leases = "/apis/coordination.k8s.io/v1/namespaces/nrh-system/leases";
    let deployment = "/apis/apps/v1/namespaces/nrh-system/deployments/nrh-controller";
    cases.denied(by, "change its own image", merge(deployment, json!({})), "cannot patch resource").await;
    let call = create(format!("{system}/configmaps"), named("other"));
    cases.denied(by, "another ConfigMap", call, "creates no ConfigMap but nrh-ledger").await;
    cases.denied(by, "another Lease", create(leases, named("other")), "creates no Lease but nrh-controller").await;
    cases.denied(by, "a Secret", create(format!("{system}/secrets"), named("s")), "cannot create resource").await;
    let unowned = create(REPORTS, ours("NodeRuntimeHealth", "x", json!({})));
    cases.denied(by, "an unowned report", unowned, "is owned by the Node of the same name").await;
    let mut wrong = owned_report("worker-1", &json!("u"));
    wrong["metadata"]["name"] = json!("x");
    let call = create(REPORTS, wrong);
    cases.denied(by, "a report owned by another node", call, "is owned by the Node of the same name").await;
    cases.allowed(by, "delete a report", delete(report("worker-2"), Value::Null)).await;
    let call = create(REPORTS, owned_report("worker-2", &json!("11111111-1111-1111-1111-111111111111")));
    cases.allowed(by, "make it again", call).await;
    let call = create(POLICIES, policy("mine", "DryRun"));
    cases.denied(by, "a policy of its own", call, "creates no policy but dry-run").await;
    let call = create(POLICIES, policy("dry-run", "Enforce"));
    cases.denied(by, "an enforcing policy", call, "creates no policy but dry-run").await;
    cases.allowed(by, "the dry-run policy", create(POLICIES, policy("dry-run", "DryRun"))).await;
    let call = merge(format!("{POLICIES}/dry-run"), json!({"spec": {"mode": "Enforce"}}));
    cases.denied(by, "change a policy", call, "cannot patch resource").await;
    let call = merge(format!("{POLICIES}/dry-run/status"), json!({"status": {"selected": 2}}));
    cases.allowed(by, "a policy's status", call).await;
}

/// The cluster's own controller taints a node that is cordoned, a moment later, and takes that off again.
async fn untainted(admin: &Caller) -> Result<()> {
    let ends = Instant::now() + SOON;
    let mut times_seen = 0;
    while times_seen < 10 {
        let taints = admin.must(&get(NODE)).await?["spec"]["taints"].clone();
        times_seen = if taints.is_null() { times_seen + 1 } else { 0 };
        ensure!(Instant::now() < ends, "expected no taints on worker-1 for a second, found {taints}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Our taint and its mark, and no other taint of a Node.
pub async fn taints(all: &Callers, cases: &mut Cases) -> Result<()> {
    untainted(&all.admin).await?;
    let by = &all.controller;
    let ours = |effect: &str| json!({"key": "runtimehealth.io/unhealthy", "effect": effect});
    let theirs = json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"});
    let patch = |taints: &[&Value], mark: Value| {
        let marks = json!({"runtimehealth.io/tainted-by": mark});
        merge(NODE, json!({"metadata": {"annotations": marks}, "spec": {"taints": taints}}))
    };
    let (no, rather_not) = (ours("NoSchedule"), ours("PreferNoSchedule"));
    // With our key, and somebody else's by its value.
    let valued = json!({"key": "runtimehealth.io/unhealthy", "value": "mine", "effect": "PreferNoSchedule"});
    let (hard, soft) = (json!("remediation:NoSchedule"), json!("remediation:PreferNoSchedule"));
    all.admin.must(&merge(NODE, json!({"spec": {"taints": [&theirs]}}))).await?;
    let bare = merge(NODE, json!({"spec": {"taints": [&theirs, &no]}}));
    let puts = "puts one taint runtimehealth.io/unhealthy, NoSchedule or PreferNoSchedule, without a value, on a node that has none";
    let takes = "takes off only the taint runtimehealth.io/unhealthy whose effect stands in the mark";
    let same_write = "only on a node that it taints in the same write";
    let with_it = "takes its mark runtimehealth.io/tainted-by off only with the taint that it is about";
    cases.denied(by, "taint without its mark", bare.clone(), puts).await;
    cases.denied(by, "a mark without the effect", patch(&[&theirs, &no], json!("remediation")), puts).await;
    cases.denied(by, "a mark with another effect", patch(&[&theirs, &no], soft.clone()), puts).await;
    cases.denied(by, "a taint with a value", patch(&[&theirs, &valued], soft.clone()), puts).await;
    cases.denied(by, "two taints", patch(&[&theirs, &no, &rather_not], hard.clone()), puts).await;
    let ends_pods = patch(&[&theirs, &ours("NoExecute")], json!("remediation:NoExecute"));
    cases.denied(by, "a taint that ends pods", ends_pods, puts).await;
    let no_other = "runtimehealth.io/unhealthy, no other";
    cases.denied(by, "somebody's taint off", patch(&[&no], hard.clone()), no_other).await;
    cases.denied(by, "the mark alone", patch(&[&theirs], hard.clone()), same_write).await;
    cases.allowed(by, "taint with its mark", patch(&[&theirs, &no], hard.clone())).await;
    cases.denied(by, "another effect", patch(&[&theirs, &rather_not], soft.clone()), puts).await;
    let another = patch(&[&theirs, &no], json!("another:NoSchedule"));
    cases.denied(by, "make it another remediation's", another, same_write).await;
    let half = merge(NODE, json!({"spec": {"taints": [&theirs]}}));
    cases.denied(by, "the taint without the mark off", half, takes).await;
    cases.denied(by, "the mark without the taint off", patch(&[&theirs, &no], Value::Null), with_it).await;
    // A person puts another one with our key beside it.
    all.admin.must(&merge(NODE, json!({"spec": {"taints": [&theirs, &no, &valued]}}))).await?;
    cases.denied(by, "all with our key off", patch(&[&theirs], Value::Null), takes).await;
    cases.denied(by, "only the other one off", patch(&[&theirs, &no], Value::Null), takes).await;
    cases.allowed(by, "take off its own taint", patch(&[&theirs, &valued], Value::Null)).await;
    cases.denied(by, "a taint beside one with our key", patch(&[&theirs, &valued, &no], hard.clone()), puts).await;
    all.admin.must(&merge(NODE, json!({"spec": {"taints": [&theirs]}}))).await?;
    cases.allowed(by, "a softer one", patch(&[&theirs, &rather_not], soft.clone())).await;
    // A person makes it theirs by a value: the mark means nothing then.
    all.admin.must(&merge(NODE, json!({"spec": {"taints": [&theirs, &valued]}}))).await?;
    cases.denied(by, "what a person has made theirs off", patch(&[&theirs], Value::Null), takes).await;
    cases.allowed(by, "the mark off that is about no taint", patch(&[&theirs, &valued], Value::Null)).await;
    all.admin.must(&bare).await?;
    cases.denied(by, "put its mark on somebody's taint", patch(&[&theirs, &no], hard), same_write).await;
    cases.denied(by, "take off somebody's taint with our key", patch(&[&theirs], Value::Null), takes).await;
    all.admin.must(&merge(NODE, json!({"spec": {"taints": null}}))).await?;
    Ok(())
}

/// Who could write the controller's marks could have it take away what others have put on a Node.
pub async fn marks(all: &Callers, cases: &mut Cases) -> Result<()> {
    let note =
        |key: &str, value: Value| json!({"metadata": {"annotations": {(format!("runtimehealth.io/{key}")): value}}});
    let taints = |taints: Value| merge(NODE, json!({"spec": {"taints": taints}}));
    let ours = json!([{"key": "runtimehealth.io/unhealthy", "effect": "NoSchedule"}]);
    let mark = |value: Value| merge(NODE, note("tainted-by", value));
    let by_status = |key: &str| merge(format!("{NODE}/status"), note(key, json!("x:NoSchedule")));
    let taint = "only the controller sets or alters the mark runtimehealth.io/tainted-by";
    let cordon = "only the controller sets or alters the mark runtimehealth.io/cordoned-by";
    // As a tool does that saves the annotations of a Node and puts them on its successor.
    cases.allowed(&all.admin, "a mark on a node without the taint", mark(json!("old:NoSchedule"))).await;
    cases.allowed(&all.unit, "its own status beside the mark", merge(format!("{NODE}/status"), json!({}))).await;
    cases.allowed(&all.admin, "a taint beside a mark", taints(ours.clone())).await;
    for caller in [&all.admin, &all.unit] {
        cases.denied(caller, "alter the mark of a taint", mark(json!("x:NoSchedule")), taint).await;
        cases.denied(caller, "the same by way of the status", by_status("tainted-by"), taint).await;
    }
    cases.allowed(&all.admin, "another annotation beside the mark", merge(NODE, note("other", json!("x")))).await;
    cases.allowed(&all.admin, "that off again", merge(NODE, note("other", Value::Null))).await;
    cases.allowed(&all.admin, "take the mark off", mark(Value::Null)).await;
    cases.denied(&all.admin, "set the mark of a taint", mark(json!("x:NoSchedule")), taint).await;
    cases.allowed(&all.admin, "take the taint off", taints(Value::Null)).await;

    let cordoned = |is: bool| merge(NODE, json!({"spec": {"unschedulable": is}}));
    all.admin.must(&cordoned(true)).await?;
    cases.denied(&all.admin, "set the mark of a cordon", merge(NODE, note("cordoned-by", json!("x"))), cordon).await;
    cases.denied(&all.unit, "the same by way of the status", by_status("cordoned-by"), cordon).await;
    all.admin.must(&cordoned(false)).await?;
    cases.allowed(&all.admin, "it on a schedulable node", merge(NODE, note("cordoned-by", json!("x")))).await;
    cases.allowed(&all.admin, "cordon that node", cordoned(true)).await;
    cases.allowed(&all.admin, "take that mark off", merge(NODE, note("cordoned-by", Value::Null))).await;
    all.admin.must(&cordoned(false)).await?;
    made_with_marks(all, cases).await;
    Ok(())
}

/// A Node that is made, as a kubelet makes its own, brings no mark for a taint or a cordon that it brings.
async fn made_with_marks(all: &Callers, cases: &mut Cases) {
    let node = |name: &str, mark: Value, spec: Value| {
        let body =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": mark}, "spec": spec});
        create("/api/v1/nodes?dryRun=All", body)
    };
    let cordon = json!({"runtimehealth.io/cordoned-by": "x"});
    let taint = json!({"runtimehealth.io/tainted-by": "x:NoSchedule"});
    let ours = json!({"taints": [{"key": "runtimehealth.io/unhealthy", "effect": "NoSchedule"}]});
    let cordoned = json!({"unschedulable": true});
    let (of_taint, of_cordon) = ("the mark runtimehealth.io/tainted-by", "the mark runtimehealth.io/cordoned-by");
    for (caller, name) in [(&all.admin, "newcomer"), (&all.unit, "worker-1")] {
        let marked = node(name, taint.clone(), ours.clone());
        cases.denied_as_it_is(caller, "a Node made with our taint and its mark", marked, of_taint).await;
        let marked = node(name, cordon.clone(), cordoned.clone());
        cases.denied_as_it_is(caller, "a Node made with a cordon and its mark", marked, of_cordon).await;
    }
    cases.allowed(&all.admin, "a Node made with a taint", node("newcomer", json!({}), ours)).await;
    cases.allowed(&all.admin, "a Node made with a cordon", node("newcomer", json!({}), cordoned)).await;
    cases.allowed(&all.admin, "a Node made with marks of its predecessor", node("newcomer", cordon, json!({}))).await;
}

/// Cordon and uncordon, and nothing else on a Node.
pub async fn node_changes(all: &Callers, cases: &mut Cases) -> Result<()> {
    let by = &all.controller;
    let mark = |name: Value| json!({"metadata": {"annotations": {"runtimehealth.io/cordoned-by": name}}});
    let with = |mut patch: Value, unschedulable: bool| {
        patch["spec"] = json!({"unschedulable": unschedulable});
        patch
    };
    let only = "the controller changes spec.unschedulable, spec.taints and";
    let call = merge(NODE, json!({"spec": {"unschedulable": true}}));
    cases.denied(by, "cordon without its mark", call, "cordons with its mark").await;
    cases.denied(by, "a label", merge(NODE, json!({"metadata": {"labels": {"a": "b"}}})), only).await;
    let call = merge(NODE, json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}));
    cases.denied(by, "a taint", call, "runtimehealth.io/unhealthy, no other").await;
    cases.denied(by, "a provider id", merge(NODE, json!({"spec": {"providerID": "x://y"}})), only).await;
    cases.denied(by, "a finalizer", merge(NODE, json!({"metadata": {"finalizers": ["example.org/x"]}})), only).await;
    let call = merge(NODE, json!({"metadata": {"annotations": {"a": "b"}}}));
    cases.denied(by, "another annotation", call, "no other").await;
    let call = merge(format!("{NODE}/status"), json!({"status": {"phase": "x"}}));
    cases.denied(by, "a node's status", call, "changes the conditions that it mirrors, nothing else").await;
    cases.denied(by, "delete a node", delete(NODE, Value::Null), "cannot delete resource").await;
    cases.allowed(by, "cordon with its mark", merge(NODE, with(mark(json!("remediation")), true))).await;
    cases.allowed(by, "hand its cordon on to another remediation", merge(NODE, mark(json!("another")))).await;
    cases.allowed(by, "take back its own cordon", merge(NODE, with(mark(Value::Null), false))).await;
    somebodys_cordon(all, cases, mark(json!("remediation"))).await?;
    cases.allowed(&all.admin, "whatever an admin does", merge(NODE, json!({"metadata": {"labels": {"a": "b"}}}))).await;
    Ok(())
}

/// The controller leaves alone what somebody else has done to the node.
async fn somebodys_cordon(all: &Callers, cases: &mut Cases, mark: Value) -> Result<()> {
    let by = &all.controller;
    let call = merge(NODE, json!({"spec": {"unschedulable": true}, "metadata": {"annotations": {"a": "b"}}}));
    all.admin.must(&call).await?;
    let same_write = "only on a node that it cordons in the same write";
    cases.denied(by, "put its mark on somebody's cordon", merge(NODE, mark), same_write).await;
    let call = merge(NODE, json!({"spec": {"unschedulable": false}}));
    cases.denied(by, "take back somebody's cordon", call, "takes back only a cordon that carries it").await;
    let call = merge(NODE, json!({"metadata": {"annotations": {"a": "c"}}}));
    cases.denied(by, "change somebody's annotation", call, "no other").await;
    let call = merge(NODE, json!({"metadata": {"annotations": {"a": null}}}));
    cases.denied(by, "remove somebody's annotation", call, "no other").await;
    all.admin.must(&merge(NODE, json!({"spec": {"unschedulable": false}}))).await?;
    Ok(())
}

/// DaemonSet pods only, and exactly the one that was checked.
pub async fn pod_deletion(all: &Callers, cases: &mut Cases) -> Result<()> {
    let by = &all.controller;
    let pods = all.admin.must(&get(format!("{PODS}?labelSelector=app.kubernetes.io%2Fname%3Dnrh-probe"))).await?;
    let pod = &pods["items"][0]["metadata"];
    let path = format!("{PODS}/{}", pod["name"].as_str().unwrap_or_default());
    let with_uid = |uid: &Value| json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});

    let only = "deletes only pods that are controlled by a DaemonSet";
    let bare = all.admin.must(&get(format!("{PODS}/canary"))).await?["metadata"]["uid"].clone();
    cases.denied(by, "a pod of nobody", delete(format!("{PODS}/canary"), with_uid(&bare)), only).await;
    let system = "/api/v1/namespaces/nrh-system/pods";
    let replicas = all.admin.must(&get(system)).await?;
    let replica = &replicas["items"][0]["metadata"];
    let name = replica["name"].as_str().unwrap_or("none");
    cases.denied(by, "a Deployment's pod", delete(format!("{system}/{name}"), with_uid(&replica["uid"])), only).await;
    // Of a DaemonSet that exists, or the cluster's own garbage collection would be faster.
    let owner = all.admin.must(&get("/apis/apps/v1/namespaces/nrh-node/daemonsets/nrh-probe")).await?;
    let mut claimed = bare_pod("claimed");
    claimed["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "nrh-probe",
        "uid": owner["metadata"]["uid"]}]);
    let claimed = all.admin.must(&create(PODS, claimed)).await?["metadata"]["uid"].clone();
    cases.denied(by, "a pod owned, not controlled", delete(format!("{PODS}/claimed"), with_uid(&claimed)), only).await;
    let call = delete(&path, Value::Null);
    cases.denied(by, "a DaemonSet's pod without its uid", call, "only with its uid as precondition").await;
    let forced = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
        "preconditions": {"uid": pod["uid"]}});
    cases.denied(by, "a DaemonSet's pod by force", delete(&path, forced), "never deletes a pod by force").await;
    cases.denied(by, "all pods", delete(PODS, Value::Null), "cannot deletecollection resource").await;
    cases.allowed(by, "a DaemonSet's pod with its uid", delete(&path, with_uid(&pod["uid"]))).await;
    Ok(())
}
