//! Whether a process is one of the node's own, by its namespaces and control groups. Its name and its executable prove nothing:
//! a container that shares the node's process ids can choose any name.

use std::io;
use std::path::Path;

use super::bounded::{invalid, whole_lines};
use super::groups::{CONMON_GROUP, Groups, below};
use super::handle::{Handle, MAX_STATUS, parse_depth};
use nrh_core::text::is_full_id;

/// The mount namespace and control groups of process 1, and so of the node's own processes.
pub(crate) struct ProcessNamespaces {
    mounts: Option<String>,
    /// A node may be a container itself.
    groups: Groups,
}

impl ProcessNamespaces {
    /// The place of process 1 in this `/proc`. Where it cannot be read, only control groups identify a container.
    pub(crate) fn of_first(proc: &Path) -> Self {
        let first = Handle::open(proc, 1).ok();
        let groups = first.as_ref().and_then(|first| first.groups().ok()).unwrap_or_default();
        Self { mounts: first.and_then(|first| mounts(&first)), groups }
    }

    /// Whether root runs the process outside of every container. It is in no PID namespace below the node's. It is also in the
    /// mount namespace of process 1, or in no control group of a pod or a container. A runtime that its unit confines has its
    /// own mount namespace; a shim of a VM may be in the control group of its pod.
    ///
    /// # Errors
    /// When its `status` or its control groups cannot be read.
    pub(crate) fn has(&self, process: &Handle) -> io::Result<bool> {
        // The check that most processes of containers fail comes first; it is also the cheapest.
        Ok(!self.is_in_container(process, is_container)? && is_of_root_outside(process)?)
    }

    /// Whether root runs the process in a container that belongs to no pod and that has the node's own process ids (`docker run
    /// --pid host`).
    pub(crate) fn has_in_container(&self, process: &Handle) -> io::Result<bool> {
        Ok(self.is_in_container(process, is_container)?
            && !self.is_in_container(process, is_of_pods)?
            && is_of_root_outside(process)?)
    }

    fn is_in_container(&self, process: &Handle, is_one: fn(&str) -> bool) -> io::Result<bool> {
        let is_in_mounts = self.mounts.is_some() && mounts(process) == self.mounts;
        Ok(!is_in_mounts && process.groups()?.has_below(&self.groups, is_one))
    }
}

/// Whether it is in no PID namespace below the node's, and is root's.
fn is_of_root_outside(process: &Handle) -> io::Result<bool> {
    let status = process.text("status", MAX_STATUS)?;
    let incomplete = |what| invalid(format!("status of process {}: no {what} line", process.pid()));
    let is_outside = parse_depth(&status).ok_or_else(|| incomplete("NSpid"))? == 1;
    Ok(is_outside && is_trusted(parse_user(&status).ok_or_else(|| incomplete("Uid"))?))
}

fn mounts(process: &Handle) -> Option<String> {
    process.link("ns/mnt").ok()
}

impl Handle {
    /// Whether it is one of the node's own processes; see [`ProcessNamespaces::has`].
    pub fn is_of_node(&self, proc: &Path) -> io::Result<bool> {
        ProcessNamespaces::of_first(proc).has(self)
    }

    /// Whether it is in the control group of one container: something in that container has started it, into whatever namespaces.
    pub fn is_started_by_container(&self, proc: &Path) -> io::Result<bool> {
        Ok(self.groups()?.has_below(&ProcessNamespaces::of_first(proc).groups, is_of_one_container))
    }
}

impl Groups {
    /// Whether the name of one of the groups, or of one above it, is like this. `first` are those of process 1: a node may be a
    /// container itself.
    fn has_below(&self, first: &Self, is_one: fn(&str) -> bool) -> bool {
        self.0.lines().any(|line| {
            let Some((hierarchy, path)) = line.split_once(":/") else { return false };
            let of_first = first.0.lines().find_map(|line| line.strip_prefix(hierarchy)?.strip_prefix(":/"));
            let (own, above) = (below(path), below(of_first.unwrap_or_default()));
            let mut above = above.iter();
            let mut own = own.iter().skip_while(|part| above.next() == Some(*part));
            own.any(|part| part.to_str().is_some_and(is_one))
        })
    }
}

/// `kubepods`, `kubelet-kubepods.slice` and groups below them, `cri-containerd-ID.scope`, `docker-ID.scope`, `crio-ID`, or the
/// id alone.
fn is_container(group: &str) -> bool {
    is_of_pods(group) || is_of_one_container(group)
}

fn is_of_one_container(group: &str) -> bool {
    let name = group.strip_suffix(".scope").unwrap_or(group);
    let id = name.rsplit(['-', ':']).next().unwrap_or_default();
    is_full_id(id) && !name.contains(CONMON_GROUP)
}

fn is_of_pods(group: &str) -> bool {
    group.contains("kubepods")
}

/// Real and effective user.
fn parse_user(status: &str) -> Option<(u32, u32)> {
    let mut users = whole_lines(status).find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace();
    Some((users.next()?.parse().ok()?, users.next()?.parse().ok()?))
}

/// Root, or the user of this process, which is root on a node.
fn is_trusted((real, effective): (u32, u32)) -> bool {
    let own = rustix::process::getuid().as_raw();
    [real, effective].into_iter().all(|user| user == 0 || user == own)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn is_in_container(groups: &str, first: &str) -> bool {
        Groups(groups.to_owned()).has_below(&Groups(first.to_owned()), is_container)
    }

    #[test]
    fn groups_of_pods_and_containers_are_told_from_those_of_the_node() {
        for group in [
            "/kubepods/besteffort/pod9f0c/x",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-ID.scope",
            "/kubelet.slice/kubelet-kubepods.slice/crio-ID.scope",
            "/system.slice/docker-ID.scope",
            "/docker/ID",
            "/k8s.io/ID",
            "/../../kubepods.slice/x",
            "/system.slice/kubepods-burstable-pod1.slice:cri-containerd:ID",
        ] {
            let group = group.replace("ID", ID);
            assert!(is_in_container(&format!("0::{group}\n"), "0::/init.scope\n"), "{group}");
            assert!(is_in_container(&format!("4:pids:/x\n3:cpu,cpuacct:{group}\n"), ""), "{group}");
        }
        for group in
            ["/system.slice/kubelet.service", "/", "/podruntime/runtime", "/user.slice/user-0.slice/session-1.scope"]
        {
            assert!(!is_in_container(&format!("0::{group}\n"), "0::/init.scope\n"), "{group}");
        }
    }

    #[test]
    fn a_node_that_is_a_container_itself_has_processes_of_its_own() {
        let first = format!("0::/docker/{ID}/init.scope\n");
        assert!(!is_in_container(&format!("0::/docker/{ID}/system.slice/kubelet.service\n"), &first));
        let pod = format!("0::/docker/{ID}/kubelet/kubepods/podx/{ID}\n");
        assert!(is_in_container(&pod, &first));
    }

    fn process(proc: &Path, pid: i32, uid: u32, mounts: &str, group: &str) {
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(folder.join("ns")).unwrap();
        fs::write(folder.join("status"), format!("Uid:\t{uid}\t{uid}\t0\t0\nNSpid:\t{pid}\n")).unwrap();
        fs::write(folder.join("cgroup"), format!("0::{group}\n")).unwrap();
        std::os::unix::fs::symlink(mounts, folder.join("ns/mnt")).unwrap();
    }

    #[test]
    fn a_process_is_the_nodes_by_its_user_and_its_mounts_or_its_groups() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 1, 0, "mnt:[1]", "/init.scope");
        let pod = format!("/kubepods/podx/{ID}");
        // Where CRI-O has a mount namespace of its own.
        let conmon = format!("/system.slice/crio-conmon-{ID}.scope");
        for (number, (uid, mounts, group, expected)) in [
            (0, "mnt:[1]", "/system.slice/kubelet.service", true),
            (0, "mnt:[7]", "/system.slice/snap.microk8s.service", true),
            (0, "mnt:[7]", conmon.as_str(), true),
            (0, "mnt:[1]", pod.as_str(), true),
            (0, "mnt:[7]", pod.as_str(), false),
            (65_534, "mnt:[1]", "/system.slice/kubelet.service", false),
            (65_534, "mnt:[7]", pod.as_str(), false),
        ]
        .into_iter()
        .enumerate()
        {
            let pid = 40 + i32::try_from(number).unwrap();
            process(proc.path(), pid, uid, mounts, group);
            let found = Handle::open(proc.path(), pid).unwrap().is_of_node(proc.path()).unwrap();
            assert_eq!(found, expected, "{uid} {mounts} {group}");
        }
        let handle = Handle::open(proc.path(), 40).unwrap();
        fs::write(proc.path().join("40/status"), "NSpid:\t40\t7\nUid:\t0\t0\t0\t0\n").unwrap();
        assert!(!handle.is_of_node(proc.path()).unwrap());
        fs::write(proc.path().join("40/status"), "NSpid:\t40\n").unwrap();
        assert!(handle.is_of_node(proc.path()).unwrap_err().to_string().contains("no Uid line"));
    }
}
