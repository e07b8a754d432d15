//! `DaemonSet`s with one pod on one node each. The scheduler's and the kubelet's part in these pods is played: the first pod of a set
//! loops at the longest back-off, and its successor runs.

use anyhow::Result;
use jiff::{Span, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::interruptions::workload;

/// Says on nodes and pods which set they are for: it has the node's name.
pub const LABEL: &str = "daemon";
const NAMESPACE: &str = "default";

/// Makes the set of a node with its label.
pub async fn make(client: &Client, node: &str) -> Result<()> {
    let labels = json!({LABEL: node});
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": node}, "spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"nodeSelector": labels,
            "tolerations": [{"operator": "Exists"}], "containers": [{"name": "app", "image": "app"}]}}}});
    let api: Api<DaemonSet> = Api::namespaced(client.clone(), NAMESPACE);
    api.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
    Ok(())
}

pub async fn unmake(client: &Client, node: &str) -> Result<()> {
    let api: Api<DaemonSet> = Api::namespaced(client.clone(), NAMESPACE);
    api.delete(node, &DeleteParams::default()).await?;
    Ok(())
}

pub async fn loops(client: &Client, node: &str) -> Result<bool> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let pods = pods.list(&ListParams::default().labels(&format!("{LABEL}={node}"))).await?;
    Ok(pods.iter().any(|pod| pod.status.as_ref().is_some_and(|status| status.container_statuses.is_some())))
}

/// Brings all pods of sets on by one move; the nodes of those that have ended, with their names.
pub async fn round(client: &Client, is_sick: impl Fn(&str) -> bool) -> Result<Vec<(String, String)>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let mut ended = Vec::new();
    for pod in pods.list(&ListParams::default().labels(LABEL)).await? {
        let (name, node) = (pod.name_any(), pod.labels().get(LABEL).cloned().unwrap_or_default());
        let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let is_known = pod.status.as_ref().is_some_and(|status| status.container_statuses.is_some());
        if pod.metadata.deletion_timestamp.is_some() {
            workload::end(&pods, &name).await?;
            ended.push((node, name));
        } else if !is_bound {
            workload::bind(client, &name, &node).await?;
        } else if !is_known {
            let status = json!({"status": if is_sick(&node) { looping() } else { running() }});
            pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&status)).await?;
        }
    }
    Ok(ended)
}

fn looping() -> Value {
    let ago =
        |minutes: i64| (Timestamp::now() - Span::new().minutes(minutes)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let message = "back-off 5m0s restarting failed container=app";
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [{"name": "app",
        "image": "", "imageID": "", "ready": false, "restartCount": 9,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": message}},
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": ago(4), "finishedAt": ago(3)}}}]})
}

fn running() -> Value {
    let at = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [{"name": "app",
        "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {"startedAt": at}}}]})
}
