//! Pods that benchmarks put on a node.

use anyhow::Result;
use nrh_testbed::{Bed, Node, work};
use serde_json::json;

/// So many pods of one Deployment on the node.
pub fn apply(bed: &Bed, node: &Node, name: &str, replicas: usize, args: &[&str]) -> Result<()> {
    let spec = json!({"nodeName": node.name, "containers": [work::container("main", args)]});
    let mut deployment = work::workload("Deployment", name, &spec);
    deployment["spec"]["replicas"] = json!(replicas);
    // More than 600 s to start 250 pods is no failure here.
    deployment["spec"]["progressDeadlineSeconds"] = json!(1200);
    bed.apply(&deployment)
}

/// Fills the node with so many pods, and waits until they run.
pub fn fill(bed: &Bed, node: &Node, pods: usize) -> Result<()> {
    apply(bed, node, "fill", pods, &["work"])?;
    bed.kubectl(&["rollout", "status", "deployment/fill", "--timeout=1200s"]).map(drop)
}
