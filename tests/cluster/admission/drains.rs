//! Who may have nodes drained, and which pods the controller may evict once it was given the right to.

use anyhow::{Context, Result, bail, ensure};
use nrh::controller::evictions;
use nrh_testbed::Bed;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::reach;
use crate::admission::requests::{Cases, create, delete, get, merge};
use crate::objects::{self, POLICIES};
use crate::plane;

const PODS: &str = "/api/v1/namespaces/default/pods";

pub fn policy(name: &str) -> Value {
    objects::policy(name, "DiskFull", &json!([{"action": "Cordon"}, {"action": "Drain"}, {"action": "Notify"}]))
}

fn rebooting(name: &str) -> Value {
    let steps = json!([{"action": "Cordon"},
        {"action": "Reboot", "reboot": {"requireDrain": false}, "approval": "Manual", "timeout": "20m"}, {"action": "Notify"}]);
    objects::policy(name, "KubeletDown", &steps)
}

/// A policy with one step more, before it tells.
fn stepping(name: &str, fault: &str, step: &Value) -> Value {
    objects::policy(name, fault, &json!([step, {"action": "Notify"}]))
}

/// A policy that ends hung processes by that signal, also below running pods.
fn killing(name: &str, signal: &str, running: bool) -> Value {
    let release = json!({"signal": signal, "allowRunningPods": running});
    stepping(name, "HungContainer", &json!({"action": "ReleaseHungProcess", "releaseHungProcess": release}))
}

/// A policy that restarts a daemon, whatever that does to the node's pods.
fn restarting(name: &str, action: &str, skip_safety_check: bool) -> Value {
    let fault = if action == "RestartKubelet" { "KubeletDown" } else { "RuntimeUnreachable" };
    stepping(name, fault, &json!({"action": action, "restart": {"skipSafetyCheck": skip_safety_check}}))
}

/// Steps that end pods without being made for that: they need the right, and the same steps that spare pods do not.
async fn careless(all: &Callers, cases: &mut Cases, right: &str) -> Result<()> {
    for (name, policy) in [
        ("kill below pods that are deleted", killing("spares", "SIGKILL", false)),
        ("resume below running pods", killing("spares", "SIGCONT", true)),
        ("restart a runtime where that is safe", restarting("spares", "RestartRuntime", false)),
        ("restart a kubelet at once", restarting("spares", "RestartKubelet", true)),
    ] {
        cases.allowed(&all.operator, name, create(POLICIES, policy)).await;
        all.admin.must(&delete(format!("{POLICIES}/spares"), Value::Null)).await?;
    }
    for harsh in [killing("kills", "SIGKILL", true), restarting("restarts", "RestartRuntime", true)] {
        needs_the_right(all, cases, &harsh, &[], right).await?;
    }
    Ok(())
}

type Change = fn(&mut Value);

/// Without the right nobody makes this policy, puts back what it had, or changes its spec in these ways.
async fn needs_the_right(
    all: &Callers,
    cases: &mut Cases,
    harsh: &Value,
    wider: &[(&str, Change)],
    right: &str,
) -> Result<()> {
    let (olga, name) = (&all.operator, harsh["metadata"]["name"].as_str().unwrap_or_default());
    cases.denied(olga, &format!("{name} without the right"), create(POLICIES, harsh.clone()), right).await;
    cases.allowed(&all.admin, &format!("{name}, whoever may"), create(POLICIES, harsh.clone())).await;
    let path = format!("{POLICIES}/{name}");
    let spec = |value: &Value| merge(&path, json!({"spec": value}));
    cases.allowed(olga, &format!("{name}: suspend it"), spec(&json!({"suspend": true}))).await;
    cases.denied(olga, &format!("{name}: have it execute actions"), spec(&json!({"mode": "Enforce"})), right).await;
    for (what, change) in wider {
        let mut changed = harsh["spec"].clone();
        change(&mut changed);
        cases.denied(olga, &format!("{name}: {what}"), spec(&changed), right).await;
    }
    let mut rules = harsh["spec"]["rules"].clone();
    rules[0]["steps"] = json!([{"action": "Notify"}]);
    cases.allowed(olga, &format!("{name}: take it out"), spec(&json!({"rules": rules}))).await;
    cases.denied(olga, &format!("{name}: put it back"), spec(&harsh["spec"]), right).await;
    all.admin.must(&delete(&path, Value::Null)).await?;
    reach::kept(all, cases, harsh, right).await
}

/// A policy's author needs the right himself; what stands already needs no new one.
pub async fn by_those_who_may(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let olga = &all.operator;
    let right = "needs the right himself to create pods/eviction in all namespaces";
    let by_force: Change = |spec| spec["rules"][0]["steps"][1]["drain"] = json!({"force": true});
    needs_the_right(all, cases, &policy("drains"), &[("drain by force", by_force)], right).await?;
    // A reboot ends the same pods, and asks no budget.
    let wider: [(&str, Change); 3] = [
        ("have nobody asked", |spec| spec["rules"][0]["steps"][1]["approval"] = json!("Automatic")),
        ("for another fault", |spec| spec["rules"][0]["match"]["faults"] = json!(["KubeletDown", "HungContainer"])),
        ("on other nodes", |spec| spec["nodeSelector"] = json!({"matchLabels": {"a": "b"}})),
    ];
    needs_the_right(all, cases, &rebooting("boots"), &wider, right).await?;
    let mark = json!({"action": "MarkForReboot", "approval": "Manual", "timeout": "4h"});
    needs_the_right(all, cases, &stepping("marks", "RuntimeUnreachable", &mark), &[], right).await?;
    careless(all, cases, right).await?;
    let path = format!("{POLICIES}/drains");
    // The right for one namespace is none for all.
    bed.kubectl(&["create", "clusterrole", "evicts", "--verb=create", "--resource=pods/eviction"])?;
    let to_olga = ["evicts", "--clusterrole=evicts", "--serviceaccount=default:olga"];
    bed.kubectl(&[&["create", "rolebinding", "-n", "default"], &to_olga[..]].concat())?;
    cases.denied(olga, "drain with the right for a namespace", create(POLICIES, policy("drains")), right).await;
    bed.kubectl(&[&["create", "clusterrolebinding"], &to_olga[..]].concat())?;
    olga.until_allowed(&create(POLICIES, policy("drains"))).await?;
    cases.note("drain with the right", true, "");
    olga.until_allowed(&create(POLICIES, rebooting("boots"))).await?;
    cases.note("reboot with the right", true, "");
    all.admin.must(&delete(format!("{POLICIES}/boots"), Value::Null)).await?;
    bed.kubectl(&["delete", "clusterrolebinding,clusterrole", "evicts"])?;
    bed.kubectl(&["delete", "rolebinding", "evicts", "-n", "default"])?;
    all.admin.must(&delete(&path, Value::Null)).await?;
    Ok(())
}

/// A pod of nobody on a node, which the API server does not remove before somebody says that it has ended.
fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": "worker-1", "containers": [{"name": "c", "image": "none.example/c"}]}})
}

fn eviction(name: &str, options: &Value) -> Value {
    json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options})
}

/// None by itself; with the role of the sample each pod by its uid, with time to end, and none of ours.
pub async fn evictions(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let by = &all.controller;
    let uid = all.admin.must(&create(PODS, pod("web"))).await?["metadata"]["uid"].clone();
    let path = format!("{PODS}/web/eviction");
    let named = |grace: Value| eviction("web", &json!({"preconditions": {"uid": uid}, "gracePeriodSeconds": grace}));
    cases.note("no right by itself", !evictions::may(&by.calls()).await?, "the right to evict");
    cases.denied(by, "evict without the right", create(&path, named(json!(30))), "cannot create resource").await;
    let sample = plane::folder("config/samples/drain-rights.yaml");
    bed.kubectl(&["apply", "-f", &sample])?;
    plane::soon(async || {
        ensure!(evictions::may(&by.calls()).await?, "expected the right of the sample to be known");
        Ok(())
    })
    .await?;
    cases.note("the role of the sample gives the right", true, "");
    let bare = create(&path, eviction("web", &json!({})));
    cases.denied(by, "evict without a uid", bare, "only with its uid as precondition").await;
    let call = create(&path, json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}}));
    cases.denied(by, "evict without a word", call, "only with its uid as precondition").await;
    cases.denied(by, "evict by force", create(&path, named(json!(0))), "without a grace period").await;
    let pods = all.admin.must(&get("/api/v1/namespaces/nrh-system/pods")).await?;
    let own = &pods["items"][0]["metadata"];
    let name = own["name"].as_str().unwrap_or("none");
    let of_ours = eviction(name, &json!({"preconditions": {"uid": own["uid"]}}));
    let path_of_ours = format!("/api/v1/namespaces/nrh-system/pods/{name}/eviction");
    cases.denied(by, "evict ourselves", create(path_of_ours, of_ours), "no pod of this project").await;

    let other = eviction("web", &json!({"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}));
    let answer = by.send(&create(&path, other)).await;
    let is_conflict = matches!(&answer, Err((409, _)));
    cases.note("another pod of that name is spared", is_conflict, &format!("{answer:?}"));
    // The pod does not run, and such a one is evicted whatever its budget says: one that does is needed.
    let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    all.admin.must(&merge(format!("{PODS}/web/status"), running)).await?;
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    all.admin.must(&create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)).await?;
    let refused = plane::soon(async || match by.send(&create(format!("{path}?dryRun=All"), named(json!(30)))).await {
        Err((429, message)) => Ok(message),
        other => bail!("expected the budget to say no, found {other:?}"),
    })
    .await?;
    cases.note("a budget is asked", refused.contains("disruption budget"), &refused);
    all.admin.must(&delete("/apis/policy/v1/namespaces/default/poddisruptionbudgets/web", Value::Null)).await?;
    by.until_allowed(&create(&path, named(json!(30)))).await.context("expected to be evicted by uid")?;
    let going = all.admin.must(&get(format!("{PODS}/web"))).await?;
    let is_going = going["metadata"]["deletionTimestamp"].is_string() && going["metadata"]["uid"] == uid;
    cases.note("evicted by its uid", is_going, &going["metadata"].to_string());
    all.admin.must(&delete(format!("{PODS}/web?gracePeriodSeconds=0"), Value::Null)).await?;
    bed.kubectl(&["delete", "-f", &sample])?;
    Ok(())
}
