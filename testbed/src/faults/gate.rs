//! The gate in front of a node's network plugins: one call hangs with the lock, the others queue up behind it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use jiff::Timestamp;

use super::{Fault, Injection, Victim};
use crate::node::Node;
use crate::wait::{SOON, last_answer};

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
    node.write(path, "")?;
    Ok(injection)
}

/// Waits until a network plugin has taken the gate and completes the injection by it: from now on the fault exists.
pub fn await_gate_holder(node: &Node, gate: &Injection) -> Result<Injection> {
    let holder = || held_gates(node).ok().and_then(|held| held.into_iter().next());
    let Some((path, node_pid)) = last_answer(SOON, holder, Option::is_some) else {
        bail!("no network plugin of {} took the gate within {SOON:?}", node.name)
    };
    let mut victim = gate.victim.clone();
    victim.process = Some(node.identity(node_pid)?);
    victim.node_pid = Some(node_pid);
    // The rename set the file's change time, which is the instant of the fault; the poll is a little later.
    let late = since_change(node, &path).unwrap_or_default();
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
        node.remove(Path::new(GATES).join(gate))?;
    }
    // The hanging process waits for the end of this file.
    held_gates(node)?.into_iter().try_for_each(|(path, _)| node.remove(path))
}

/// Gates that a process has taken, with that process's pid inside the node.
fn held_gates(node: &Node) -> Result<Vec<(PathBuf, i32)>> {
    let names = node.script(r#"[ ! -d "$1" ] || ls -1 "$1""#, &[GATES])?;
    let pid = |name: &str| name.split_once(".held.")?.1.parse().ok();
    Ok(names.lines().filter_map(|name| Some((Path::new(GATES).join(name), pid(name)?))).collect())
}

/// How long ago a file of the node changed, by the node's clock.
fn since_change(node: &Node, path: &Path) -> Option<Duration> {
    let times = node.script(r#"stat -c %.9Z "$1"; date +%s.%N"#, &[&path.display().to_string()]).ok()?;
    let mut seconds = times.lines().filter_map(|line| line.parse::<f64>().ok());
    let (changed, now) = (seconds.next()?, seconds.next()?);
    Duration::try_from_secs_f64(now - changed).ok()
}
