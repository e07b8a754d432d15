//! Simulated nodes: thousands of Node objects with leases and heartbeats, and nothing behind them.

use std::{path::Path, sync::Arc};

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::control_plane::flags;

/// Label with which a node is left out of the project's own `DaemonSet`.
pub const LEAVE_OUT: (&str, &str) = ("runtimehealth.io/probe", "disabled");
/// Label of simulated nodes. Not kwok's own, for which the controller makes no objects.
pub const SIMULATED: &str = "nrh-testbed/simulated";
/// What kwok does with nodes and pods; without it, it does nothing.
pub(crate) const STAGES: &str = include_str!("../tools/kwok-stages.yaml");
/// Requests in flight while nodes are made: more brings nothing on two cores.
const PARALLEL: usize = 32;

/// kwok's command line: it keeps to the nodes that are marked as its own, or it would play the real ones as well.
pub(crate) fn argv(kubeconfig: &Path, stages: &Path) -> Vec<String> {
    let flags = flags(&[
        ("config", &stages.display().to_string()),
        ("kubeconfig", &kubeconfig.display().to_string()),
        ("manage-all-nodes", "false"),
        ("manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake"),
        ("node-lease-duration-seconds", "40"),
        ("server-address", "127.0.0.1:10247"),
    ]);
    std::iter::once("kwok".to_owned()).chain(flags).collect()
}

/// Name of the simulated node with this number.
pub fn node_name(number: usize) -> String {
    format!("kwok-{number:05}")
}

/// Makes `count` simulated nodes, counted on from `first`.
pub(crate) async fn create(client: kube::Client, first: usize, count: usize) -> Result<()> {
    let permits = Arc::new(Semaphore::new(PARALLEL));
    let mut tasks = JoinSet::new();
    for number in first..first + count {
        let api: Api<Node> = Api::all(client.clone());
        let node = node(number)?;
        let permit = Arc::clone(&permits).acquire_owned().await?;
        tasks.spawn(async move {
            let result = api.create(&PostParams::default(), &node).await;
            drop(permit);
            result
        });
    }
    while let Some(result) = tasks.join_next().await {
        result??;
    }
    Ok(())
}

fn node(number: usize) -> Result<Node> {
    let name = node_name(number);
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {
                (SIMULATED): "",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                LEAVE_OUT.0: LEAVE_OUT.1,
            },
        },
        // Or the scheduler would put real pods there, and kwok would call them running.
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110"}, "capacity": {"cpu": "32", "memory": "256Gi", "pods": "110"}},
    }))?)
}
