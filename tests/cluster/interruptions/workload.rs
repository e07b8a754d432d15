//! Pods of `ReplicaSet`s, one on one node each, that run there until they are evicted. The scheduler's and the kubelet's part in
//! them is played: the first pod of a set is bound to its node, and no successor is.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::interruptions::until_some;

/// Says on pods which node they are for: it has the node's name.
const LABEL: &str = "workload";
const NAMESPACE: &str = "default";

/// Makes the set of a node; returns when its pod is bound there.
pub async fn make(client: &Client, node: &str) -> Result<()> {
    let labels = json!({LABEL: node});
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": node}, "spec": {"replicas": 1,
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "app", "image": "app"}]}}}});
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), NAMESPACE);
    sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let of_node = ListParams::default().labels(&format!("{LABEL}={node}"));
    let pod = until_some(&format!("a pod of ReplicaSet {node}"), async || {
        Ok(pods.list(&of_node).await?.items.first().map(ResourceExt::name_any))
    })
    .await?;
    bind(client, &pod, node).await?;
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    pods.patch_status(&pod, &PatchParams::default(), &Patch::Strategic(&status)).await.context("its status")?;
    Ok(())
}

/// As a scheduler does.
pub async fn bind(client: &Client, pod: &str, node: &str) -> Result<()> {
    let target = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/binding");
    let request = http::Request::post(path).header("content-type", "application/json");
    client.request::<Value>(request.body(target.to_string().into_bytes())?).await?;
    Ok(())
}

pub async fn unmake(client: &Client, node: &str) -> Result<()> {
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), NAMESPACE);
    sets.delete(node, &DeleteParams::background()).await?;
    Ok(())
}

/// As a kubelet does with a pod that is to end.
pub async fn end(pods: &Api<Pod>, name: &str) -> Result<()> {
    pods.delete(name, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
    Ok(())
}

/// Ends the pods that are to end; their names, each of which begins with its node's.
pub async fn round(client: &Client) -> Result<Vec<String>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let mut ended = Vec::new();
    for pod in pods.list(&ListParams::default().labels(LABEL)).await? {
        let name = pod.name_any();
        if pod.metadata.deletion_timestamp.is_some() {
            end(&pods, &name).await?;
            ended.push(name);
        }
    }
    Ok(ended)
}
