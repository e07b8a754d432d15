//! Faults of the runtime's own making: an update that blocks its lists, a second sandbox of one pod, no network plugin, a
//! shim that it would wait for.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{Fault, Injection, Victim, freeze_shim};
use crate::node::Node;
use crate::process::wait_until;
use crate::view::{self, Process};
use crate::wait::SOON;

/// How long the blocked call stays out at most; when it is given up the list comes back. Longer than any test waits for the fault.
const UPDATE: Duration = Duration::from_mins(20);
/// How long each of several updates stays out: less than a probe takes for a list that hangs.
const SLOW_UPDATE: Duration = Duration::from_secs(45);
/// An attempt to which no kubelet comes: a name that the pod has had is reserved.
const ATTEMPT: u32 = 100;
/// The configuration of the network plugins, and where it is put away.
const NETWORK: &str = "/etc/cni/net.d/10-nrh.conflist";
const NETWORK_AWAY: &str = "/etc/cni/net.d/10-nrh.conflist.away";
/// How soon a list hangs after the update was sent.
const LIST: Duration = Duration::from_secs(2);

/// Freezes a pod's shim and updates the resources of one of its containers: containerd holds that container's status
/// meanwhile, and every list of containers waits for it. Ends with the process that injects it.
pub fn block_update(node: &Node, pod_uid: &str) -> Result<Injection> {
    send_updates(node, pod_uid, Fault::BlockedUpdate, UPDATE, false)
}

/// As [`block_update`], but each update is given up after 45 s and the next one follows: lists of containers take so long
/// and come back, again and again, and with them each relist of the kubelet. Ends with the shim's stop, or with
/// the process that injects it.
pub fn slow_lists(node: &Node, pod_uid: &str) -> Result<Injection> {
    send_updates(node, pod_uid, Fault::SlowLists, SLOW_UPDATE, true)
}

/// Freezes the shim and sends it an update, which blocks. With `again`, sends the next whenever one was given up, for as long as the
/// shim is frozen.
fn send_updates(node: &Node, pod_uid: &str, fault: Fault, limit: Duration, again: bool) -> Result<Injection> {
    let frozen = freeze_shim(node, pod_uid)?;
    let container = frozen.victim.containers.first().cloned().context("the pod has no running container")?;
    let shim = frozen.victim.process.context("the pod has no shim")?;
    let injection = Injection::now(fault, node, frozen.victim);
    let socket = node.socket();
    let (update, node_of_shim) = (socket.clone(), node.clone());
    thread::spawn(move || {
        loop {
            // It ends with the shim's answer or death, or is given up, which is what is wanted: nobody asks how it went.
            let _ = view::update_container(&update, &container, limit);
            if !again || node_of_shim.state(shim) != Some('T') {
                break;
            }
        }
    });
    let hangs = wait_until(SOON, || view::lists(&socket, LIST).is_err());
    ensure!(hangs, "the list of containers of {} still answers", node.name);
    Ok(injection)
}

/// Stops the kubelet and makes a second sandbox for a pod that has one.
pub fn duplicate_sandbox(node: &Node, pod_uid: &str) -> Result<Injection> {
    // A running kubelet would end one of them at its next sync. It is started again when the fault is lifted.
    node.stop_kubelet()?;
    let socket = node.socket();
    let lists = view::lists(&socket, view::LIMIT)?;
    let first = lists.sandbox_of(pod_uid).with_context(|| format!("pod {pod_uid} has no sandbox"))?;
    let injection = Injection::now(Fault::DuplicateSandbox, node, Victim::default());
    let second = view::run_sandbox(&socket, &first.pod, ATTEMPT, SOON)?;
    let victim = Victim { pod_uid: Some(pod_uid.to_owned()), sandbox: Some(second), ..Victim::default() };
    Ok(Injection { victim, ..injection })
}

/// Takes the configuration of the network plugins away: containerd notices, and says that its network is not ready.
pub fn take_network(node: &Node) -> Result<Injection> {
    let victim = Victim { path: Some(NETWORK.into()), ..Victim::default() };
    let injection = Injection::now(Fault::MissingNetwork, node, victim);
    node.run("mv", &[NETWORK, NETWORK_AWAY])?;
    Ok(injection)
}

/// Brings it back; without effect where it is there.
pub(super) fn bring_network(node: &Node) -> Result<()> {
    node.script(r#"[ ! -e "$1" ] || mv "$1" "$2""#, &[NETWORK_AWAY, NETWORK]).map(drop)
}

/// Stops a pod's shim, kills all that lives below it, and stops containerd: what a start of containerd looks like that waits
/// for such a shim.
pub fn unresponsive_shim(node: &Node, pod_uid: &str) -> Result<Injection> {
    let frozen = freeze_shim(node, pod_uid)?;
    let shim = frozen.victim.process.context("the pod has no shim")?;
    let containerd = node.daemon("containerd").context("no containerd runs")?;
    let injection = Injection::now(Fault::UnresponsiveShim, node, frozen.victim);
    ensure!(node.signal(containerd, Signal::STOP)?, "containerd of {} ended", node.name);
    let living = || -> Result<Vec<Process>> {
        let mut below = node.processes()?;
        below.retain(|process| process.host_ppid == shim.pid && process.state != 'Z');
        Ok(below)
    };
    for process in living()? {
        node.signal(process.identity(), Signal::KILL)?;
    }
    let is_alone = || living().is_ok_and(|below| below.is_empty());
    ensure!(wait_until(SOON, is_alone), "something lives on below shim {}", shim.pid);
    Ok(injection)
}
