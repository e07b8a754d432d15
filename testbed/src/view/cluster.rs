//! Nodes and pods as the API server shows them, by kubectl.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{LIMIT, bounded};
use crate::bed::Bed;

/// What the API server says of all nodes and pods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cluster {
    /// The spec of each node
    pub nodes: BTreeMap<String, serde_json::Value>,
    /// All pods, by namespace and name
    pub pods: Vec<Pod>,
}

/// A pod as the API server shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Namespace
    pub namespace: String,
    /// Name
    pub name: String,
    /// Uid
    pub uid: String,
    /// Node it is bound to
    pub node: Option<String>,
    /// Name of the controlling object
    pub owner: Option<String>,
    /// Phase
    pub phase: String,
    /// Condition `Ready` is True
    pub ready: bool,
    /// It has a deletion timestamp
    pub deleting: bool,
    /// Its containers that have a status
    pub containers: Vec<PodContainer>,
}

/// A container of a pod as the API server shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodContainer {
    /// Name
    pub name: String,
    /// Id without the runtime's prefix
    pub id: Option<String>,
    /// Restarts
    pub restarts: i32,
    /// Why it waits, such as `CrashLoopBackOff`
    pub waiting: Option<String>,
    /// Why it ended, while it is not started again.
    ///
    /// Kubelet 1.36 reports a container in back-off like this first, and as `CrashLoopBackOff` only when it checks
    /// at the pod again, 60 to 90 s later: in a shorter back-off never.
    pub terminated: Option<String>,
    /// When it ended, which is when its back-off began
    pub finished: Option<Timestamp>,
    /// When that run of it began.
    pub started: Option<Timestamp>,
    /// When the run before that one ended, as long as the kubelet tells.
    pub finished_before: Option<Timestamp>,
}

impl Cluster {
    /// Asks for all nodes and pods.
    pub(super) fn read(bed: &Bed) -> Result<Self> {
        let nodes: Items<core::Node> = get(bed, &["nodes"])?;
        let spec = |node: core::Node| {
            let spec = serde_json::to_value(node.spec.unwrap_or_default()).context("the spec of a node")?;
            Ok((node.metadata.name.unwrap_or_default(), spec))
        };
        Ok(Self { nodes: nodes.items.into_iter().map(spec).collect::<Result<_>>()?, pods: pods(bed, None)? })
    }
}

/// The pods of one node, or all.
pub fn pods(bed: &Bed, node: Option<&str>) -> Result<Vec<Pod>> {
    let selector = node.map(|node| format!("--field-selector=spec.nodeName={node}"));
    let mut arguments = vec!["pods", "--all-namespaces"];
    arguments.extend(selector.as_deref());
    let list: Items<core::Pod> = get(bed, &arguments)?;
    Ok(list.items.into_iter().map(Pod::from).collect())
}

/// One pod by name; `None` when there is none.
pub fn pod(bed: &Bed, namespace: &str, name: &str) -> Result<Option<Pod>> {
    let selector = format!("--field-selector=metadata.name={name}");
    let list: Items<core::Pod> = get(bed, &["pods", "--namespace", namespace, &selector])?;
    Ok(list.items.into_iter().next().map(Pod::from))
}

/// kubectl calls every list a plain `List`, whatever it is a list of.
#[derive(Debug, Deserialize)]
struct Items<T> {
    items: Vec<T>,
}

fn get<T: DeserializeOwned>(bed: &Bed, arguments: &[&str]) -> Result<T> {
    let mut kubectl = bed.command("kubectl");
    kubectl.arg("get").args(arguments).args(["--output", "json", "--request-timeout", "60s"]);
    let text = bounded::output(&mut kubectl, LIMIT)?;
    serde_json::from_str(&text).with_context(|| format!("the answer to get {}", arguments.join(" ")))
}

impl From<core::Pod> for Pod {
    fn from(pod: core::Pod) -> Self {
        let status = pod.status.unwrap_or_default();
        let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        let owners = pod.metadata.owner_references.unwrap_or_default();
        // Init containers come and go by design; what has to run are the others.
        let containers = status.container_statuses.unwrap_or_default();
        let containers = containers.into_iter().map(|status| {
            let state = status.state.unwrap_or_default();
            let ended = state.terminated.unwrap_or_default();
            let before = status.last_state.and_then(|state| state.terminated).unwrap_or_default();
            let id = status.container_id.as_ref();
            PodContainer {
                // Written with the runtime's name in front: `containerd://ID`.
                id: id.and_then(|id| id.rsplit('/').next()).map(str::to_owned),
                restarts: status.restart_count,
                waiting: state.waiting.and_then(|waiting| waiting.reason),
                terminated: ended.reason,
                finished: ended.finished_at.map(|time| time.0),
                started: ended.started_at.map(|time| time.0),
                finished_before: before.finished_at.map(|time| time.0),
                name: status.name,
            }
        });
        Self {
            containers: containers.collect(),
            namespace: pod.metadata.namespace.unwrap_or_default(),
            name: pod.metadata.name.unwrap_or_default(),
            uid: pod.metadata.uid.unwrap_or_default(),
            node: pod.spec.and_then(|spec| spec.node_name),
            owner: owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.name),
            phase: status.phase.unwrap_or_default(),
            ready,
            deleting: pod.metadata.deletion_timestamp.is_some(),
        }
    }
}
