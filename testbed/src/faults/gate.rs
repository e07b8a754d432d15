//! The gate in front of a node's network plugins: one call hangs with the lock, the others queue up behind it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;

use super::{Fault, Injection, Victim, create, remove};
use crate::node::Node;
use crate::process::{Identity, wait_until};

/// Folder of the gates and of the lock, as the node's network configuration names it.
pub const GATES: &str = "/run/cni-gate";
/// The lock that network plugins of a node queue up for.
pub const GATE_LOCK: &str = "/run/cni-gate/ipam.lock";

/// Makes the next network plugin that adds a pod hang while it holds the lock.
pub fn hang_cni_add(node: &Node) -> Result<Injection> {
    hang(node, "add")
}

/// Makes the next network plugin that takes a pod away hang while it holds the lock.
pub fn hang_cni_del(node: &Node) -> Result<Injection> {
    hang(node, "del")
}

fn hang(node: &Node, gate: &str) -> Result<Injection> {
    // Records of an earlier injection would be mistaken for this one's.
    open(node)?;
    let path = PathBuf::from(GATES).join(gate);
    let victim = Victim { path: Some(path.clone()), ..Victim::default() };
    let injection = Injection::now(Fault::HungNetworkPlugin, node, victim);
    create(&node.root_path(path))?;
    Ok(injection)
}

/// Waits until a network plugin has taken the gate and completes the injection by it: from now on the fault exists.
pub fn await_gate_holder(node: &Node, gate: &Injection, limit: Duration) -> Result<Injection> {
    let mut holder = None;
    let taken = wait_until(limit, || {
        holder = held_gates(node).ok().and_then(|held| held.into_iter().next());
        holder.is_some()
    });
    let (true, Some((path, node_pid))) = (taken, holder) else {
        bail!("no network plugin of {} took the gate within {limit:?}", node.name)
    };
    let host = node.pid_to_host(node_pid).with_context(|| format!("plugin {node_pid} of {} is gone", node.name))?;
    let mut victim = gate.victim.clone();
    victim.process = Some(Identity::of(host)?);
    victim.node_pid = Some(node_pid);
    // The rename set the file's change time, which is the instant of the fault; the poll is a little later.
    let late = changed(&path).and_then(|at| at.elapsed().ok()).unwrap_or_default();
    let (now, instant) = (Timestamp::now(), Instant::now());
    Ok(Injection {
        victim,
        at: now.checked_sub(jiff::SignedDuration::try_from(late)?)?,
        instant: instant.checked_sub(late).unwrap_or(instant),
        ..gate.clone()
    })
}

/// Takes the gates away and lets the process that hangs in it do its work.
pub(super) fn open(node: &Node) -> Result<()> {
    for gate in ["add", "del"] {
        remove(&node.root_path(GATES).join(gate))?;
    }
    // The hanging process waits for the end of this file.
    held_gates(node)?.into_iter().try_for_each(|(path, _)| remove(&path))
}

/// Gates that a process has taken, with that process's pid inside the node.
fn held_gates(node: &Node) -> Result<Vec<(PathBuf, i32)>> {
    let folder = node.root_path(GATES);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("read {}", folder.display()))?,
    };
    let pid = |path: &PathBuf| {
        let (_, pid) = path.file_name()?.to_str()?.split_once(".held.")?;
        pid.parse().ok()
    };
    Ok(entries.flatten().filter_map(|entry| Some((entry.path(), pid(&entry.path())?))).collect())
}

fn changed(path: &Path) -> Option<std::time::SystemTime> {
    use std::os::unix::fs::MetadataExt;
    let data = fs::metadata(path).ok()?;
    let (seconds, nanoseconds) = (u64::try_from(data.ctime()).ok()?, u32::try_from(data.ctime_nsec()).ok()?);
    Some(std::time::UNIX_EPOCH + Duration::new(seconds, nanoseconds))
}
