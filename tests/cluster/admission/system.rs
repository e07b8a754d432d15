//! Who makes the controller's pods and tokens. Who gets into its pods: access.yaml.

use anyhow::{Result, ensure};
use nrh_testbed::Bed;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::requests::{Caller, Cases, create, delete, get, merge, strategic};
use crate::plane;

const CORE: &str = "/api/v1/namespaces/nrh-system";
const APPS: &str = "/apis/apps/v1/namespaces/nrh-system";
const MADE: &str = "pods of the controller are made by the cluster's own controllers";
const TOKENS: &str = "go to their pods, by way of kubelets";

/// What runs in a pod that namespace nrh-system admits.
fn spec(account: &str) -> Value {
    json!({"serviceAccountName": account, "nodeName": "worker-1",
        "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "image": "i", "securityContext":
            {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]})
}

/// A pod that namespace nrh-system admits.
pub fn pod(name: &str, account: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": spec(account)})
}

fn workload(kind: &str, name: &str, account: &str) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {"replicas": 0,
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec(account)}}})
}

/// Editors of the namespace brake the controller and are not it; administrators and the cluster's own controllers go on.
pub async fn guarded(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let namespaced = ["-n", "nrh-system"];
    let account = "--serviceaccount=default:patcher";
    let edits = ["create", "rolebinding", "edits", "--clusterrole=edit", account];
    bed.kubectl(&[&edits[..], &namespaced].concat())?;
    all.patcher.until_allowed(&get(format!("{CORE}/pods"))).await?;
    workloads(all, cases).await?;
    pods(all, cases).await?;
    tokens(all, cases).await?;
    upgraded(all, bed, cases).await
}

async fn workloads(all: &Callers, cases: &mut Cases) -> Result<()> {
    let (by, deployments, sets) = (&all.patcher, format!("{APPS}/deployments"), format!("{APPS}/replicasets"));
    let own = format!("{deployments}/nrh-controller");
    let containers = |fields: Value| {
        let mut one = json!({"name": "controller"});
        one.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        strategic(&own, json!({"spec": {"template": {"spec": {"containers": [one]}}}}))
    };
    for (what, fields) in [
        ("another program", json!({"command": ["/bin/sh"]})),
        ("another API server", json!({"env": [{"name": "KUBERNETES_SERVICE_HOST", "value": "198.51.100.1"}]})),
    ] {
        cases.denied(by, &format!("the controller with {what}"), containers(fields), MADE).await;
    }
    let account = json!({"spec": {"template": {"spec": {"serviceAccountName": "default", "serviceAccount": null}}}});
    cases.denied(by, "the controller with another account", strategic(&own, account), MADE).await;
    let anew = workload("Deployment", "nrh-controller", "default");
    cases.denied(by, "a Deployment of the controller's name", create(&deployments, anew), MADE).await;
    let set = workload("ReplicaSet", "other", "nrh-controller");
    cases.denied(by, "a ReplicaSet with its account", create(&sets, set), MADE).await;
    let annotation = json!({"spec": {"template": {"metadata": {"annotations": {"restartedAt": "now"}}}}});
    cases.allowed(by, "restart it", merge(format!("{own}?dryRun=All"), annotation)).await;
    let others = create(format!("{deployments}?dryRun=All"), workload("Deployment", "others", "default"));
    cases.allowed(by, "a Deployment with another account", others).await;
    Ok(())
}

async fn pods(all: &Callers, cases: &mut Cases) -> Result<()> {
    let (by, pods) = (&all.patcher, format!("{CORE}/pods"));
    let mut owned = pod("made", "nrh-controller");
    owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "nrh-controller-1",
        "uid": "d7a0c0de-0000-4000-8000-000000000000", "controller": true}]);
    cases.denied(by, "a pod that says it is the controller's", create(&pods, owned.clone()), MADE).await;
    // What a StatefulSet or a Job with the account would come to.
    cases.denied(&all.jobs, "a Job's pod with the controller's account", create(&pods, owned), MADE).await;
    let call = create(format!("{pods}?dryRun=All"), pod("other", "default"));
    cases.allowed(by, "a pod with another account", call).await;
    cases.allowed(&all.admin, "such a pod, whoever may debug", create(&pods, pod("debugger", "nrh-controller"))).await;
    // It would take a place of the quota, and count as a replica of the controller.
    let node = all.admin.must(&get("/api/v1/nodes/worker-1")).await?;
    let mut mirror = pod("mirror-worker-1", "");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    mirror["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "worker-1",
        "uid": node["metadata"]["uid"], "controller": true}]);
    cases.denied(&all.unit, "a mirror pod of a node", create(&pods, mirror), "make no pods in nrh-system").await;
    Ok(())
}

async fn tokens(all: &Callers, cases: &mut Cases) -> Result<()> {
    let by = &all.patcher;
    let token = |account: &str| format!("{CORE}/serviceaccounts/{account}/token");
    let of_pod = |pod: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": pod}});
    let pod = all.admin.must(&get(format!("{CORE}/pods/debugger"))).await?;
    let bound = of_pod(json!({"apiVersion": "v1", "kind": "Pod", "name": "debugger", "uid": pod["metadata"]["uid"]}));
    let call = create(token("nrh-controller"), bound);
    cases.denied_as_it_is(by, "the token of a pod", call.clone(), TOKENS).await;
    cases.allowed(by, "a token of another account", create(token("default"), json!({"spec": {}}))).await;
    let secret = |account: &str| {
        let name = json!({"kubernetes.io/service-account.name": account});
        let body = json!({"metadata": {"name": format!("of-{account}"), "annotations": name}, "type": "kubernetes.io/service-account-token"});
        create(format!("{CORE}/secrets"), body)
    };
    cases.allowed(by, "a Secret with a token of another account", secret("default")).await;

    // The kubelet gets what its pods need, by Kubernetes' own rules.
    all.unit.until_allowed(&call).await?;
    cases.note("a kubelet asks for the token of a pod that it runs", true, "");
    let loose = create(token("nrh-controller"), json!({"spec": {}}));
    cases.denied_as_it_is(&all.unit, "a token of no pod", loose.clone(), "not bound to a pod").await;
    cases.allowed(&all.admin, "a token, whoever may debug", loose).await;
    // What an administrator makes is filled in by the cluster's own controller.
    cases.allowed(&all.admin, "such a Secret, whoever may debug", secret("nrh-controller")).await;
    let path = format!("{CORE}/secrets/of-nrh-controller");
    until(&all.admin, "a token in the Secret", &path, |secret| secret["data"]["token"].is_string()).await?;
    for name in ["of-nrh-controller", "of-default"] {
        all.admin.must(&delete(format!("{CORE}/secrets/{name}"), Value::Null)).await?;
    }
    all.admin.must(&delete(format!("{CORE}/pods/debugger?gracePeriodSeconds=0"), Value::Null)).await?;
    Ok(())
}

/// A cluster administrator upgrades, and the cluster's own controllers make the new pods.
async fn upgraded(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let image = "controller=example.org/nrh:2";
    bed.kubectl(&["set", "image", "deployment/nrh-controller", "-n", "nrh-system", image])?;
    let is_new = |pods: &Value| {
        let mut pods = pods["items"].as_array().into_iter().flatten();
        pods.any(|pod| pod["spec"]["containers"][0]["image"] == "example.org/nrh:2")
    };
    until(&all.admin, "a pod of the new image", &format!("{CORE}/pods"), is_new).await?;
    cases.note("an upgrade makes new pods", true, "");
    bed.kubectl(&["apply", "-k", &plane::folder("config/default")])?;
    let is_old = |set: &Value| set["spec"]["template"]["spec"]["containers"][0]["image"] == "runtimehealth.io/nrh:dev";
    until(&all.admin, "the shipped image", &format!("{APPS}/deployments/nrh-controller"), is_old).await?;
    cases.note("the manifests are applied again", true, "");
    Ok(())
}

async fn until(admin: &Caller, what: &str, path: &str, is_there: impl Fn(&Value) -> bool) -> Result<()> {
    plane::soon(async || {
        let found = admin.must(&get(path)).await?;
        ensure!(is_there(&found), "expected {what}, found {found}");
        Ok(())
    })
    .await
}
