//! What is different where k3s runs: one executable contains its kubelet and its containerd, and another one all plugins.

use std::path::Path;

use super::{CONTAINERD, is_like};
use crate::proc::RawProcess;

/// The executable that contains the kubelet and containerd. The shim and the OCI runtime are files of their own.
pub(super) const EXECUTABLE: &str = "k3s";
/// The folder of its plugins and its other programs (`blkid`, `mount`), which its kubelet calls.
pub(super) const PROGRAMS: &str = "/var/lib/rancher/k3s/data/*/bin";
const PLUGINS: &str = "cni";

/// Whether this is the name of the process that runs the kubelet and, with `--docker`, cri-dockerd, which calls network plugins.
pub(super) fn is_daemon(command: &str) -> bool {
    ["k3s-server", "k3s-agent"].contains(&command)
}

/// Whether the name of a process of the executable shows which part of it runs.
pub(super) fn names_its_part(process: &RawProcess) -> bool {
    process.command == CONTAINERD || is_daemon(&process.command)
}

/// Whether it is in the folder of the plugins, but none of them.
pub(super) fn is_other_program(exe: &Path) -> bool {
    exe.parent().is_some_and(|folder| is_like(Path::new(PROGRAMS), folder)) && !exe.ends_with(PLUGINS)
}
