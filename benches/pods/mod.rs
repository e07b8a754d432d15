//! Pods that benchmarks put on a node.

use anyhow::Result;
use nrh_testbed::{Bed, Node, images};
use serde_json::json;

/// So many pods of one Deployment on the node.
pub fn apply(bed: &Bed, node: &Node, name: &str, replicas: usize, args: &[&str]) -> Result<()> {
    let container = json!({"name": "main", "image": images::WORK_IMAGE, "imagePullPolicy": "Never", "args": args});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            // More than 600 s to start 250 pods is no failure here.
            "progressDeadlineSeconds": 1200,
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"nodeName": node.name, "containers": [container]}},
        },
    });
    bed.kubectl_input(&["apply", "-f", "-"], &deployment.to_string()).map(drop)
}

/// Fills the node with so many pods, and waits until they run.
pub fn fill(bed: &Bed, node: &Node, pods: usize) -> Result<()> {
    apply(bed, node, "fill", pods, &["work"])?;
    bed.kubectl(&["rollout", "status", "deployment/fill", "--timeout=1200s"]).map(drop)
}
