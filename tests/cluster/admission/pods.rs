//! Who makes pods in nrh-node, and what keeps its image there. Who gets into them: access.yaml.

use anyhow::{Result, ensure};
use nrh_testbed::Bed;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::controller::bare_pod;
use crate::admission::requests::{Caller, Cases, create, delete, get, strategic};
use crate::plane;

const PODS: &str = "/api/v1/namespaces/nrh-node/pods";

/// A pod that is controlled by something, and runs as somebody.
fn pod_of(kind: &str, version: &str, owner: &Value, account: &str, token: bool) -> Value {
    let mut pod = bare_pod("made");
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": version, "kind": kind, "name": owner["name"],
        "uid": owner["uid"], "controller": true}]);
    pod["spec"]["serviceAccountName"] = json!(account);
    pod["spec"]["automountServiceAccountToken"] = json!(token);
    pod
}

/// The probe's pods and those of Jobs, made by the cluster's own controllers; anything else by those alone who may
/// debug.
pub async fn guarded(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let only = "nothing but the pods of DaemonSet nrh-probe and of Jobs is created";
    let set = all.admin.must(&get("/apis/apps/v1/namespaces/nrh-node/daemonsets/nrh-probe")).await?["metadata"].clone();
    let job = json!({"name": "op-2", "uid": "d7a0c0de-0000-4000-8000-000000000000"});
    let of_probe = |account: &str| pod_of("DaemonSet", "apps/v1", &set, account, true);
    let of_job = |account: &str, token: bool| pod_of("Job", "batch/v1", &job, account, token);

    // An administrator of the namespace, with every right that the cluster's own role `admin` gives.
    let account = "--serviceaccount=nrh-node:default";
    let namespaced = ["-n", "nrh-node"];
    let everything = ["create", "rolebinding", "everything", "--clusterrole=admin", account];
    bed.kubectl(&[&everything[..], &namespaced].concat())?;
    let by = &all.other_account;
    by.until_allowed(&get(PODS)).await?;
    cases.denied(by, "a pod that says it is the probe's", create(PODS, of_probe("nrh-probe")), only).await;
    cases.denied(by, "a pod that says it is a Job's", create(PODS, of_job("nrh-act", false)), only).await;

    let probe =
        all.admin.must(&get(format!("{PODS}?fieldSelector=spec.nodeName%3Dworker-2"))).await?["items"][0].clone();
    let name = probe["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let path = format!("{PODS}/{name}");
    begun(all, cases).await?;

    // The controllers themselves make nothing else.
    let call = create(PODS, of_probe("default"));
    cases.denied(&all.sets, "the probe with another account", call, "runs as ServiceAccount nrh-probe").await;
    let other = pod_of("DaemonSet", "apps/v1", &json!({"name": "other", "uid": set["uid"]}), "nrh-probe", true);
    cases.denied(&all.sets, "a pod of another DaemonSet", create(PODS, other), only).await;
    cases.denied(&all.sets, "a Job's pod", create(PODS, of_job("nrh-act", false)), only).await;
    for (what, account, token) in [("the probe's account", "nrh-probe", false), ("a token", "nrh-act", true)] {
        let pod = of_job(account, token);
        cases.denied(&all.jobs, what, create(PODS, pod), "runs as ServiceAccount nrh-act, without a token").await;
    }
    cases.denied(&all.jobs, "the probe's pod", create(PODS, of_probe("nrh-probe")), only).await;
    let deployed = pod_of("ReplicaSet", "apps/v1", &json!({"name": "r", "uid": set["uid"]}), "nrh-probe", true);
    cases.denied(&all.sets, "a Deployment's pod", create(PODS, deployed), only).await;

    cases.allowed(&all.admin, "a pod for debugging", create(PODS, bare_pod("debugger"))).await;

    // The very policy that denies all this lets the cluster make the probe's pod anew.
    let at_once = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    cases.allowed(&all.admin, "take the probe's pod away", delete(&path, at_once)).await;
    successor(&all.admin, &name).await
}

/// A container that runs before the others keeps its image, too.
async fn begun(all: &Callers, cases: &mut Cases) -> Result<()> {
    let by = &all.other_account;
    let keeps = "keeps its containers, and nobody runs a command in it or connects to its ports";
    let mut begins = bare_pod("begins");
    begins["spec"]["initContainers"] = json!([{"name": "first", "image": "i"}]);
    cases.allowed(&all.admin, "a pod with a first container", create(PODS, begins)).await;
    let image = json!({"spec": {"initContainers": [{"name": "first", "image": "example.org/x:1"}]}});
    let other = strategic(format!("{PODS}/begins"), image);
    cases.denied(by, "another image of the first container", other.clone(), keeps).await;
    cases.allowed(&all.admin, "another image of the first container, whoever may debug", other).await;
    all.admin.must(&delete(format!("{PODS}/begins?gracePeriodSeconds=0"), Value::Null)).await?;
    Ok(())
}

/// Waits until the DaemonSet has made another pod for worker-2.
async fn successor(admin: &Caller, name: &str) -> Result<()> {
    let is_it = |pod: &Value| pod["metadata"]["name"] != *name && pod["spec"].to_string().contains("worker-2");
    plane::soon(async || {
        // Not bound yet: the node stands in its affinity.
        let pods = admin.must(&get(format!("{PODS}?labelSelector=app.kubernetes.io%2Fname%3Dnrh-probe"))).await?;
        let is_made = pods["items"].as_array().is_some_and(|pods| pods.iter().any(is_it));
        ensure!(is_made, "the probe's pod on worker-2 was not made anew: {pods:?}");
        Ok(())
    })
    .await
}
