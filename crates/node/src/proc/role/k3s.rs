//! The processes of k3s: one executable contains its kubelet and its containerd, and another one all plugins.

use std::path::Path;

use super::{CONTAINERD, is_like};
use crate::proc::RawProcess;

/// The executable that contains the kubelet and containerd. The shim and the OCI runtime are files of their own.
pub(crate) const EXECUTABLE: &str = "k3s";
/// Names of the process that runs the kubelet and, with `--docker`, cri-dockerd, which calls network plugins.
pub(crate) const SERVER: &str = "k3s-server";
pub(crate) const AGENT: &str = "k3s-agent";
/// The folder of its plugins and its other programs (`blkid`, `mount`), which its kubelet calls.
pub(super) const PROGRAMS: &str = "/var/lib/rancher/k3s/data/*/bin";
const PLUGINS: &str = "cni";

pub(super) fn is_daemon(command: &str) -> bool {
    [SERVER, AGENT].contains(&command)
}

/// Whether the name of a process that executes k3s shows which part of k3s it is.
pub(super) fn names_its_part(process: &RawProcess) -> bool {
    process.command == CONTAINERD || is_daemon(&process.command)
}

/// Whether it is a program in the folder of the plugins, but not a plugin.
pub(super) fn is_other_program(exe: &Path) -> bool {
    exe.parent().is_some_and(|folder| is_like(Path::new(PROGRAMS), folder)) && !exe.ends_with(PLUGINS)
}
