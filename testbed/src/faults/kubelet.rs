//! Faults of the kubelet: a start that waits for an unresponsive shim, a process that is stopped, one that is killed, a sync loop that
//! waits for a dead mount.

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::{Fault, Injection, Victim, freeze_shim};
use crate::node::{KubeletStart, Node};
use crate::process::{self, Identity, wait_until};
use crate::wait::{ENDS, SOON};

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
    ensure!(node.signal(process, Signal::STOP)?, "the kubelet of {} ended", node.name);
    ensure!(wait_until(SOON, || node.state(process) == Some('T')), "kubelet {} does not stop", process.pid);
    Ok(injection)
}

/// A folder that the kubelet takes for one of a pod that is gone: it opens it to tidy up, out of its sync loop.
const GONE: &str = "/var/lib/kubelet/pods/3f0c3c1e-0000-4000-8000-0000000000ff";
/// What the dead mount is called in the table of mounts.
const DEAD: &str = "nrh-dead";

/// Mounts a file system that nobody serves below the folder of a pod that is gone, as a storage server leaves it behind that
/// does not answer: whoever reads it waits uninterruptibly.
pub fn dead_mount(node: &Node) -> Result<Injection> {
    let path = format!("{GONE}/volumes");
    let script = format!(
        r#"mkdir -p "$1"; exec 9<>/dev/fuse; mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 {DEAD} "$1"; exec sleep infinity"#
    );
    let injection = Injection::now(Fault::DeadMount, node, Victim::default());
    let argv = ["sh", "-ec", &script, "sh", &path].map(str::to_owned);
    let process = node.start("nrh-dead", &argv)?;
    ensure!(wait_until(SOON, || is_mounted(node)), "{path} is not mounted");
    Ok(Injection {
        victim: Victim { process: Some(process), path: Some(path.into()), ..Victim::default() },
        ..injection
    })
}

fn is_mounted(node: &Node) -> bool {
    node.read("/proc/mounts").is_ok_and(|mounts| mounts.lines().any(|line| line.starts_with(DEAD)))
}

/// Takes the mount away; who waits for it gets an error when nobody holds it any more.
pub(super) fn bring_mount_down(node: &Node, victim: &Victim) -> Result<()> {
    if is_mounted(node) {
        node.script(r#"umount -l "$1""#, &[&format!("{GONE}/volumes")])?;
    }
    victim.process.map_or(Ok(()), |process| node.signal(process, Signal::KILL).map(drop))
}

/// Kills the kubelet; its supervisor starts the next one 5 s later (systemd: 10 s).
pub fn kill_kubelet(node: &Node) -> Result<()> {
    let process = kubelet(node)?;
    node.signal(process, Signal::KILL)?;
    ensure!(node.wait_gone(process, ENDS), "kubelet {} does not end", process.pid);
    Ok(())
}

/// The process below its supervisor.
fn kubelet(node: &Node) -> Result<Identity> {
    let supervisor = node.daemon("kubelet").with_context(|| format!("no kubelet of {} is supervised", node.name))?;
    if node.has_units() {
        return Ok(supervisor);
    }
    match process::children(supervisor.pid).as_slice() {
        [pid] => Identity::of(*pid),
        pids => bail!("expected one kubelet below process {}, found {pids:?}", supervisor.pid),
    }
}
