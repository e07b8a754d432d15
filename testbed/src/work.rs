//! Manifests of the bed's own workload.

use serde_json::{Value, json};

use crate::images::WORK_IMAGE;

/// A container of the workload with these arguments.
pub fn container(name: &str, arguments: &[&str]) -> Value {
    json!({"name": name, "image": WORK_IMAGE, "imagePullPolicy": "Never", "args": arguments})
}

/// A pod of one such container, which works, on a node. Without a label, so no workload adopts it.
pub fn pod(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container("work", &["work"])]}})
}

/// A `DaemonSet` or `Deployment` with this pod spec. Its pods have the label `app` with its name.
pub fn workload(kind: &str, name: &str, spec: &Value) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}})
}
