//! The bed's own view of nodes and cluster: what the demo's judge believes.
//!
//! Nothing here reads an object of `nrh`. Processes come from the kernel, containers from the runtime, pods and nodes
//! from the API server, each question with a deadline, since the faults of the bed are made to hang such questions.

mod back_off;
pub(crate) mod bounded;
mod cluster;
mod diff;
mod processes;
mod runtime;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};

pub use back_off::back_off;
pub use cluster::{Cluster, Pod, PodContainer, pod, pods};
pub use diff::{Allowed, Change, Counts, What, diff};
pub use processes::{Locks, Process, all as processes, locks, shim, standing};
pub use runtime::{Container, Lists, PodName, SOCKET, Sandbox, lists, tasks_running};
pub(crate) use runtime::{
    connect, containers, remove_container, remove_sandbox, run_sandbox, sandboxes, update_container,
};

use crate::bed::Bed;
use crate::node::Node;

/// How long one question may take.
pub const LIMIT: Duration = Duration::from_mins(2);

/// How long a shim has for the question whether its container runs.
pub const TASK_LIMIT: Duration = Duration::from_secs(3);

/// Cluster and nodes at one time.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Nodes and pods by the API server
    pub cluster: Cluster,
    /// Each real node by kernel and runtime
    pub nodes: BTreeMap<String, NodeView>,
}

/// One node as its kernel and its runtime show it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Processes that stand, not those that pass by
    pub processes: Vec<Process>,
    /// Sandboxes and containers by CRI, which a frozen shim does not hang
    pub lists: Lists,
}

impl Snapshot {
    /// Reads everything.
    pub fn take(bed: &Bed, nodes: &[&Node]) -> Result<Self> {
        let nodes = nodes.iter().map(|node| Ok((node.name.clone(), node_view(node)?)));
        let nodes = nodes.collect::<Result<BTreeMap<_, _>>>()?;
        Ok(Self { cluster: Cluster::read(bed)?, nodes })
    }

    /// Without what the API server says of other nodes: tests that share a cluster have each their own.
    #[must_use]
    pub fn of_its_nodes(mut self) -> Self {
        let Self { cluster, nodes } = &mut self;
        cluster.pods.retain(|pod| pod.node.as_ref().is_some_and(|node| nodes.contains_key(node)));
        cluster.nodes.retain(|name, _| nodes.contains_key(name));
        self
    }
}

/// Reads one node.
pub fn node_view(node: &Node) -> Result<NodeView> {
    let what = || format!("look at node {}", node.name);
    let lists = lists(&node.socket(), LIMIT).with_context(what)?;
    let processes = standing(|| node.processes()).with_context(what)?;
    Ok(NodeView { processes, lists })
}

/// Tells whether a pod is Ready by the API *and* the runtime answers for its sandbox and each of its containers.
/// The inner error is the first failed check.
pub fn pod_runs(bed: &Bed, node: &Node, uid: &str) -> Result<Result<(), String>> {
    let no = |why: String| Ok(Err(why));
    let Some(pod) = pods(bed, Some(&node.name))?.into_iter().find(|pod| pod.uid == uid) else {
        return no(format!("no pod {uid} on {}", node.name));
    };
    if pod.deleting {
        return no(format!("{} is being deleted", pod.name));
    }
    if pod.phase != "Running" || !pod.ready {
        return no(format!("{} is {}, ready: {}", pod.name, pod.phase, pod.ready));
    }
    let socket = node.socket();
    let lists = lists(&socket, LIMIT)?;
    let Some(sandbox) = lists.sandbox_of(uid).filter(|sandbox| sandbox.ready) else {
        return no(format!("{} has no ready sandbox", pod.name));
    };
    let mut ids = vec![sandbox.id.clone()];
    for wanted in &pod.containers {
        // The API may still name the container of an earlier attempt; only what the runtime lists as running counts.
        let Some(id) = wanted.id.as_ref().filter(|id| lists.containers.iter().any(|c| c.id == **id && c.running()))
        else {
            return no(format!("container {} of {} is not in the runtime's list as running", wanted.name, pod.name));
        };
        ids.push(id.clone());
    }
    for (id, answer) in tasks_running(&socket, &ids, TASK_LIMIT)? {
        match answer {
            Ok(true) => {}
            Ok(false) => return no(format!("task {id} does not run")),
            Err(why) => return no(format!("task {id}: {why}")),
        }
    }
    Ok(Ok(()))
}
