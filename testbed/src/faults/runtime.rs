//! Faults of the runtime's own making, by its own calls: an update that blocks its lists, a second sandbox of one pod.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Fault, Injection, SETTLE, Victim, freeze_shim};
use crate::node::Node;
use crate::process::wait_until;
use crate::view;

/// How long the blocked call stays out at most; when it is given up the list comes back.
const UPDATE: Duration = Duration::from_mins(10);
/// How soon a list hangs after the update was sent.
const LIST: Duration = Duration::from_secs(2);

/// Freezes a pod's shim and updates the resources of one of its containers: containerd holds that container's status
/// meanwhile, and every list of containers waits for it. Ends with the process that injects it.
pub fn block_update(node: &Node, pod_uid: &str) -> Result<Injection> {
    let frozen = freeze_shim(node, pod_uid)?;
    let container = frozen.victim.containers.first().cloned().context("the pod has no running container")?;
    let injection = Injection::now(Fault::BlockedUpdate, node, frozen.victim);
    let socket = view::socket(node);
    let update = socket.clone();
    // It ends with the shim's answer or death, which is what is waited for: nobody asks how it went.
    thread::spawn(move || view::update_container(&update, &container, UPDATE));
    let hangs = wait_until(SETTLE, || view::lists(&socket, LIST).is_err());
    ensure!(hangs, "the list of containers of {} still answers", node.name);
    Ok(injection)
}

/// Stops the kubelet and makes a second sandbox for a pod that has one.
pub fn duplicate_sandbox(node: &Node, pod_uid: &str) -> Result<Injection> {
    // A running kubelet would end one of them at its next sync.
    node.stop_kubelet()?;
    let socket = view::socket(node);
    let lists = view::lists(&socket, view::LIMIT)?;
    let first = lists.sandbox_of(pod_uid).with_context(|| format!("pod {pod_uid} has no sandbox"))?;
    let injection = Injection::now(Fault::DuplicateSandbox, node, Victim::default());
    let second = view::run_sandbox(&socket, &first.pod, 1, SETTLE)?;
    let victim = Victim { pod_uid: Some(pod_uid.to_owned()), sandbox: Some(second), ..Victim::default() };
    Ok(Injection { victim, ..injection })
}
