//! The collectors: each turns raw answers of one source into plain values. None of them judges faults.
//!
//! ```text
//! lists      the runtime's lists, three in a row, and direct questions about odd ones   (async)
//! tasks      containerd's own question about one task, or Docker's inspect, CRI's status (async)
//! processes  the process table                                                (blocking: on a thread of its own)
//! kubelet    the kubelet's process and files (blocking), its healthz and its own port (async)
//! host       limits of the kernel, threads of the daemons                     (blocking)
//! pressure   what the node is short of, by the kernel's word              (never waits)
//! disks      file systems, the kubelet's certificate                          (blocking: may hang)
//! ```

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub mod disks;
pub mod host;
pub mod kubelet;
pub mod lists;
pub mod pressure;
pub mod processes;
pub mod tasks;

/// Where the host's files are. In a pod the default host paths may be mounted under a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPaths {
    /// Prefix of the host's files; `/` where they are at their own place.
    pub root: PathBuf,
    /// The host's process table. With `hostPID` the pod's own `/proc` shows it.
    pub proc: PathBuf,
    /// Where a kubelet serves its health check unless it is configured otherwise.
    pub healthz: SocketAddr,
}

impl Default for HostPaths {
    fn default() -> Self {
        Self { root: PathBuf::from("/"), proc: PathBuf::from(crate::proc::PROC), healthz: kubelet::USUAL_HEALTHZ }
    }
}

impl HostPaths {
    /// The path at which this process finds the host's file of this absolute path.
    ///
    /// `/var/run` is a link to `/run` on every current distribution, but the probe's image does not contain that link.
    pub fn file(&self, path: &Path) -> PathBuf {
        let path =
            path.strip_prefix("/var/run").map_or_else(|_| path.to_path_buf(), |rest| Path::new("/run").join(rest));
        self.root.join(path.strip_prefix("/").unwrap_or(&path))
    }

    /// The path at which this process finds the node's socket of this absolute path. It is the direct path. Where the pod has
    /// another folder there than the node, it is the path below the node's root as process 1 has it (which needs the same
    /// permission as reading that process at all). A folder that is mounted into the pod is the node's own. Reads the file
    /// system.
    pub fn socket(&self, path: &Path) -> PathBuf {
        let direct = self.file(path);
        if self.root != Path::new("/") {
            return direct;
        }
        reach(direct, &self.proc)
    }
}

fn reach(direct: PathBuf, proc: &Path) -> PathBuf {
    let folder = |path: &Path| {
        let found = path.parent()?.metadata().ok()?;
        Some((found.dev(), found.ino()))
    };
    let below = proc.join("1/root").join(direct.strip_prefix("/").unwrap_or(&direct));
    match (folder(&direct), folder(&below)) {
        (here, Some(there)) if here != Some(there) => below,
        _ => direct,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_reached_through_process_1_where_the_folder_here_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let (here, proc) = (folder.path().join("run"), folder.path().join("proc"));
        let there = proc.join("1/root").join(here.strip_prefix("/").unwrap());
        let socket = here.join("docker.sock");
        std::fs::create_dir(&here).unwrap();
        assert_eq!(reach(socket.clone(), &proc), socket, "process 1 cannot be looked at");
        std::fs::create_dir_all(&there).unwrap();
        assert_eq!(reach(socket.clone(), &proc), there.join("docker.sock"));
        std::fs::remove_dir(&here).unwrap();
        assert_eq!(reach(socket.clone(), &proc), there.join("docker.sock"), "no such folder here");
        std::fs::create_dir(&here).unwrap();
        std::fs::remove_dir(&there).unwrap();
        std::os::unix::fs::symlink(&here, &there).unwrap();
        assert_eq!(reach(socket.clone(), &proc), socket, "one folder");
    }

    #[test]
    fn host_files_are_found_under_the_prefix() {
        let host = HostPaths { root: PathBuf::from("/host"), ..HostPaths::default() };
        assert_eq!(host.file(Path::new("/run/a.sock")), Path::new("/host/run/a.sock"));
        assert_eq!(host.file(Path::new("/var/run/crio/crio.sock")), Path::new("/host/run/crio/crio.sock"));
        assert_eq!(host.file(Path::new("/var/runner/x")), Path::new("/host/var/runner/x"));
        assert_eq!(HostPaths::default().file(Path::new("/run/a.sock")), Path::new("/run/a.sock"));
    }
}
