//! Faults of the node itself: its disks, its open files, its waits in the kernel, its kubelet's certificate.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Resource, Rlimit};

use super::{Fault, Injection, Victim, freeze_shim};
use crate::node::{KUBELET_KUBECONFIG, Node};
use crate::pki;
use crate::process::{self, wait_until};
use crate::wait::SOON;

/// containerd's data, over which a full file system is laid.
const DATA: &str = "/var/lib/containerd";
/// containerd's sockets and bundles.
const RUN: &str = "/run/containerd";
/// The kubelet's kubeconfig while another one is in its place.
const KEPT: &str = "/etc/kubernetes/kubelet.conf.kept";
const FREEZER: &str = "/sys/fs/cgroup/freezer";

/// Lays a small file system without room over containerd's data. What is open already stays as it is.
pub fn full_disk(node: &Node) -> Result<Injection> {
    let script = r#"mount -t tmpfs -o size=1m nrh-full "$1"; mount --make-private "$1"; dd if=/dev/zero of="$1/x" bs=64k 2>/dev/null || true"#;
    cover(node, Fault::FullDisk, DATA, script)
}

/// Lays a small file system without room over the folder of containerd's sockets, with all that is there laid into it: containerd
/// is reached as before.
pub fn full_run(node: &Node) -> Result<Injection> {
    let script = r#"
        below=$(mktemp -d); mount --rbind "$1" "$below"; mount --make-rprivate "$below"
        mount -t tmpfs -o size=64k,mode=711 nrh-full "$1"; mount --make-private "$1"
        for one in "$below"/*; do
            name=$1/${one##*/}
            if [ -d "$one" ]; then mkdir "$name"; else : >"$name"; fi
            mount --rbind "$one" "$name"
        done
        umount -l "$below"; rmdir "$below" 2>/dev/null || true
        dd if=/dev/zero of="$1/x" bs=4k 2>/dev/null || true"#;
    cover(node, Fault::FullRun, RUN, script)
}

/// Makes `/run` read-only for all processes of a node that came before. Sockets can be connected to as before.
pub fn read_only_run(node: &Node) -> Result<Injection> {
    let script = r#"mount --bind "$1" "$1"; mount --make-private "$1"; mount -o remount,bind,ro "$1""#;
    cover(node, Fault::ReadOnlyRun, "/run", script)
}

/// Lays something over a folder by a script.
fn cover(node: &Node, fault: Fault, folder: &str, script: &str) -> Result<Injection> {
    let injection = Injection::now(fault, node, Victim { path: Some(folder.into()), ..Victim::default() });
    node.script(script, &[folder])?;
    Ok(injection)
}

/// Takes back what was laid over a folder.
pub(super) fn uncover(node: &Node, path: &Path) -> Result<()> {
    node.script(r#"umount -l "$1""#, &[&path.display().to_string()]).map(drop)
}

/// Lowers the number of files that containerd may open until nine tenths are in use.
pub fn few_files(node: &Node) -> Result<Injection> {
    let containerd = node.daemon("containerd").context("no containerd runs")?;
    let victim = Victim { process: Some(containerd), ..Victim::default() };
    let count = || Ok::<_, std::io::Error>(fs::read_dir(format!("/proc/{}/fd", containerd.pid))?.count());
    // The least of some seconds: what is open for a moment only is not in use later.
    let mut open = count()?;
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(100));
        open = open.min(count()?);
    }
    let injection = Injection::now(Fault::FewFiles, node, victim);
    limit_files(containerd.pid, Some(u64::try_from(open)?.saturating_mul(10) / 9))?;
    Ok(injection)
}

/// Sets the soft limit of open files; without one, to the hard limit.
pub(super) fn limit_files(pid: i32, soft: Option<u64>) -> Result<()> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = limits.lines().find(|line| line.starts_with("Max open files")).context("no limit of open files")?;
    let hard: u64 = line.split_ascii_whitespace().nth(4).context("no hard limit")?.parse()?;
    let limit = Rlimit { current: Some(soft.unwrap_or(hard)), maximum: Some(hard) };
    rustix::process::prlimit(Pid::from_raw(pid), Resource::Nofile, limit)?;
    Ok(())
}

/// Puts a pod's shim, alone, into a control group of version 1 and freezes it: it waits uninterruptibly and does not run, as
/// behind a dead disk.
pub fn waiting_shim(node: &Node, pod_uid: &str) -> Result<Injection> {
    let frozen = freeze_shim(node, pod_uid)?;
    let shim = frozen.victim.process.context("the pod has no shim")?;
    frozen.lift(node)?;
    let victim = Victim { path: Some(freezer_of(shim.pid)?), ..frozen.victim };
    let injection = Injection::now(Fault::WaitingShim, node, victim);
    let group = group_of(node, shim.pid)?;
    fs::create_dir(&group)?;
    fs::write(group.join("cgroup.procs"), shim.pid.to_string())?;
    fs::write(group.join("freezer.state"), "FROZEN")?;
    ensure!(wait_until(SOON, || process::state(shim.pid) == Some('D')), "shim {} does not wait", shim.pid);
    Ok(injection)
}

/// Puts a pod's shim, alone, into a control group of version 2 and freezes it: its state is S, as that of a shim whose threads
/// all wait for each other.
pub fn sleeping_shim(node: &Node, pod_uid: &str) -> Result<Injection> {
    let unified = unified().context("no control groups of version 2")?;
    let frozen = freeze_shim(node, pod_uid)?;
    let shim = frozen.victim.process.context("the pod has no shim")?;
    frozen.lift(node)?;
    let victim = Victim { path: Some(unified.join(group_in_unified(shim.pid)?)), ..frozen.victim };
    let injection = Injection::now(Fault::SleepingShim, node, victim);
    let group = sleeping_group(node, &unified, shim.pid)?;
    fs::create_dir(&group)?;
    fs::write(group.join("cgroup.procs"), shim.pid.to_string())?;
    fs::write(group.join("cgroup.freeze"), "1")?;
    let is_frozen = || fs::read_to_string(group.join("cgroup.events")).is_ok_and(|text| text.contains("frozen 1"));
    ensure!(wait_until(SOON, is_frozen), "shim {} is not frozen", shim.pid);
    Ok(injection)
}

/// Lets the shim go on where it was, in version 2.
pub(super) fn thaw_sleeping(node: &Node, victim: &Victim) -> Result<()> {
    let Some(unified) = unified() else { return Ok(()) };
    thaw_in(victim, "cgroup.freeze", "0", |pid| sleeping_group(node, &unified, pid))
}

/// Lets the shim go on where it was, in version 1.
pub(super) fn thaw(node: &Node, victim: &Victim) -> Result<()> {
    thaw_in(victim, "freezer.state", "THAWED", |pid| group_of(node, pid))
}

/// Of a shim that has ended only the group is left; without the node there is no group of it either.
fn thaw_in(victim: &Victim, file: &str, text: &str, group: impl Fn(i32) -> Result<PathBuf>) -> Result<()> {
    let (Some(shim), Some(own)) = (victim.process, &victim.path) else { return Ok(()) };
    let Some(group) = group(shim.pid).ok().filter(|group| group.exists()) else { return Ok(()) };
    fs::write(group.join(file), text)?;
    if shim.alive() {
        fs::write(own.join("cgroup.procs"), shim.pid.to_string())?;
    }
    ensure!(wait_until(SOON, || fs::remove_dir(&group).is_ok()), "{} cannot be removed", group.display());
    Ok(())
}

/// The group in which a process can be frozen.
pub(super) fn group_with_freezer(pid: i32) -> Result<PathBuf> {
    if has_freezer() {
        return freezer_of(pid);
    }
    Ok(unified().context("no control groups of version 2")?.join(group_in_unified(pid)?))
}

/// Freezes or thaws the victim's own group, if it is still there.
pub(super) fn set_frozen(victim: &Victim, frozen: bool) -> Result<()> {
    let Some(group) = victim.path.as_ref().filter(|group| group.exists()) else { return Ok(()) };
    let (file, text) = match (has_freezer(), frozen) {
        (true, true) => ("freezer.state", "FROZEN"),
        (true, false) => ("freezer.state", "THAWED"),
        (false, true) => ("cgroup.freeze", "1"),
        (false, false) => ("cgroup.freeze", "0"),
    };
    fs::write(group.join(file), text).with_context(|| format!("write {text} to {file} of {}", group.display()))
}

/// Where control groups of version 2 are, alone or beside those of version 1.
fn unified() -> Option<PathBuf> {
    let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
    places.into_iter().find(|place| place.join("cgroup.controllers").exists())
}

/// Below the node's own group: the end of the bed finds it there.
fn sleeping_group(node: &Node, unified: &Path, pid: i32) -> Result<PathBuf> {
    Ok(unified.join(group_in_unified(node.realm()?.init.pid)?).join(format!("nrh-sleeping-{pid}")))
}

/// The group of version 2 that a process is in, below its root.
fn group_in_unified(pid: i32) -> Result<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).context("no group of version 2")?;
    Ok(own.to_owned())
}

/// Below the node's own group: the end of the bed finds it there.
fn group_of(node: &Node, pid: i32) -> Result<PathBuf> {
    Ok(freezer_of(node.realm()?.init.pid)?.join(format!("nrh-waiting-{pid}")))
}

/// The group of the freezer that a process is in.
fn freezer_of(pid: i32) -> Result<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let own = groups.lines().find_map(|line| line.split_once(":freezer:")).context("no freezer of version 1")?.1;
    Ok(PathBuf::from(FREEZER).join(own.trim_start_matches('/')))
}

/// Puts a certificate that has expired into the kubelet's kubeconfig. A running kubelet has read its own at its start.
pub fn expired_certificate(node: &Node) -> Result<Injection> {
    let before = node.read(KUBELET_KUBECONFIG)?;
    let mut config: serde_json::Value = serde_json::from_str(&before)?;
    let user = config.pointer_mut("/users/0/user").context("a user in the kubeconfig")?;
    user["client-certificate-data"] = pki::expired_certificate(&node.name)?;
    node.write(KEPT, &before)?;
    let injection = Injection::now(Fault::ExpiredCertificate, node, Victim::default());
    node.write(KUBELET_KUBECONFIG, &serde_json::to_string_pretty(&config)?)?;
    Ok(injection)
}

/// Puts the kubelet's own certificate back.
pub(super) fn renew(node: &Node) -> Result<()> {
    node.script(r#"[ ! -e "$1" ] || mv "$1" "$2""#, &[KEPT, KUBELET_KUBECONFIG]).map(drop)
}

/// Whether this machine has what [`sleeping_shim`] needs.
pub fn has_unified() -> bool {
    unified().is_some()
}

/// Whether this machine has what [`waiting_shim`] needs.
pub fn has_freezer() -> bool {
    Path::new(FREEZER).join("cgroup.procs").exists()
}
