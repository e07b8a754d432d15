//! Stand-ins for containerd, its shims, `ctr` and the kubelet, for machines on which the real ones cannot run.
//!
//! They speak the real protocols at the real paths, and what they run are real processes:
//!
//! ```text
//! kubelet ── CRI ──► containerd ── one line at a time ──► shim (one per sandbox) ──► the containers' processes
//!    └── API: Node, Lease, pods' status        └── table: one folder per object
//! ```
//!
//! So a shim that is stopped by a real SIGSTOP really answers nobody, and a signal or a removal has its real effect.
//! What they lack: isolation, images, a network, resources, probes of containers, back-off, CNI plugins. One program
//! is all of them, told apart by the name it is called by, since the operator proves roles by the names of executables.

pub mod ctr;
pub mod kubelet;
mod lists;
pub mod mutant;
mod node;
mod pod_spec;
mod pod_status;
mod pods;
pub mod runtime;
pub mod settings;
mod shim;
mod table;
mod wire;

use std::path::{Path, PathBuf};

use anyhow::Result;

/// The names by which the stand-ins are called.
pub(crate) const NAMES: [&str; 6] =
    [runtime::NAME, shim::NAME, ctr::NAME, kubelet::NAME, mutant::RUNTIME, mutant::EXECUTOR];

/// Where the stand-in of containerd keeps everything.
const ROOT: &str = "/run/containerd";

/// Runs the stand-in that this program is called as; `None` when it is called as itself.
pub fn by_name() -> Option<Result<()>> {
    let own = std::env::args_os().next().map(PathBuf::from)?;
    match own.file_name()?.to_str()? {
        runtime::NAME | mutant::RUNTIME => Some(wire::run()),
        mutant::EXECUTOR => Some(mutant::run()),
        shim::NAME => Some(shim::run()),
        ctr::NAME => Some(ctr::run()),
        kubelet::NAME => Some(kubelet::run()),
        _ => None,
    }
}

/// Puts the stand-ins into a folder: one copy of this program, under each of their names.
pub(crate) fn install(program: &Path, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    for name in NAMES {
        // Links, since the copy is large; the kernel shows the name that was executed all the same.
        std::fs::hard_link(program, folder.join(name))?;
    }
    Ok(())
}
