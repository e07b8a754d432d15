//! Faults of the kubelet: a start that waits for a deaf shim, a process that is stopped, one that is killed.

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::{Fault, Injection, SETTLE, Victim, freeze_shim};
use crate::node::{KubeletStart, Node};
use crate::process::{self, Identity, wait_until};

/// Freezes a pod's shim and restarts the kubelet, which asks for every container behind it twice, 15 s each, before it
/// syncs any pod.
pub fn block_kubelet_start(node: &Node, pod_uid: &str) -> Result<Injection> {
    let frozen = freeze_shim(node, pod_uid)?;
    let injection = Injection::now(Fault::BlockedStart, node, frozen.victim);
    node.stop_kubelet()?;
    node.start_kubelet(KubeletStart::default())?;
    Ok(injection)
}

/// Stops (SIGSTOP) the kubelet: it is there and answers nobody.
pub fn freeze_kubelet(node: &Node) -> Result<Injection> {
    let process = kubelet(node)?;
    let victim = Victim { process: Some(process), ..Victim::default() };
    let injection = Injection::now(Fault::FrozenKubelet, node, victim);
    ensure!(process.signal(Signal::STOP)?, "the kubelet of {} ended", node.name);
    ensure!(wait_until(SETTLE, || process::state(process.pid) == Some('T')), "kubelet {} does not stop", process.pid);
    Ok(injection)
}

/// Kills the kubelet; its supervisor starts the next one 5 s later.
pub fn kill_kubelet(node: &Node) -> Result<()> {
    let process = kubelet(node)?;
    process.signal(Signal::KILL)?;
    ensure!(process.wait_gone(SETTLE), "kubelet {} does not end", process.pid);
    Ok(())
}

/// The process below its supervisor.
fn kubelet(node: &Node) -> Result<Identity> {
    let supervisor = node.daemon("kubelet").with_context(|| format!("no kubelet of {} is supervised", node.name))?;
    match process::children(supervisor.pid).as_slice() {
        [pid] => Identity::of(*pid),
        pids => bail!("expected one kubelet below process {}, found {pids:?}", supervisor.pid),
    }
}
