//! Which socket the runtime of this node listens at.
//!
//! In order: what the operator said; what the running kubelet uses; the first known socket that exists. Only a
//! socket that somebody named (or that once was there) can be missing *and* mean a sick runtime.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::node::collect::HostPaths;

/// Default sockets, the most common first.
const KNOWN: [&str; 5] = [
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
];

/// Who named the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamedBy {
    /// A flag of ours.
    Flag,
    /// The kubelet's own flags or configuration.
    Kubelet,
    /// Nobody: it is a default path at which a socket was found.
    Nobody,
}

/// The runtime's socket. It is kept over a restart of the probe: what a guess finds while the kubelet is down may
/// belong to another runtime, in whose lists everything that is wrong here would look clean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Path, as this process can open it.
    pub socket: PathBuf,
    /// Who named it.
    pub named_by: NamedBy,
}

/// Finds the socket. `kubelet` is the endpoint of the running kubelet (`unix:///…` or a plain path), if known.
///
/// `None` when nobody named one and none of the known ones exists. Touches the file system: call it where a stat
/// that hangs does no harm.
pub fn find(flag: Option<&Path>, kubelet: Option<&str>, host: &HostPaths) -> Option<Endpoint> {
    if let Some(path) = flag {
        // A person who names a path means it as this process sees it.
        return Some(Endpoint { socket: path.to_path_buf(), named_by: NamedBy::Flag });
    }
    if let Some(path) = kubelet.and_then(socket_path) {
        return Some(Endpoint { socket: host.file(&path), named_by: NamedBy::Kubelet });
    }
    KNOWN
        .iter()
        .map(|path| host.file(Path::new(path)))
        .find(|path| path.exists())
        .map(|socket| Endpoint { socket, named_by: NamedBy::Nobody })
}

/// Whether there is something at `socket` as the process `pid` sees its files, where that can be told. A pod sees only
/// what is mounted into it. Touches the file system, as [`find`] does.
pub fn is_there_for(pid: i32, socket: &Path, host: &HostPaths) -> Option<bool> {
    let path = socket.strip_prefix(&host.root).ok()?;
    match host.proc.join(pid.to_string()).join("root").join(path).symlink_metadata() {
        Ok(_) => Some(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // Only while the process is there does a missing file mean a missing file.
            host.proc.join(pid.to_string()).join("root").read_link().is_ok().then_some(false)
        }
        Err(_) => None,
    }
}

/// The path in an endpoint such as `unix:///run/x.sock`, `unix:/run/x.sock` or `/run/x.sock`; `None` for others.
fn socket_path(endpoint: &str) -> Option<PathBuf> {
    let path = endpoint.trim();
    let path = path.strip_prefix("unix://").or_else(|| path.strip_prefix("unix:")).unwrap_or(path);
    Some(PathBuf::from(path)).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_then_the_kubelet_then_what_exists() {
        let folder = tempfile::tempdir().unwrap();
        let host = HostPaths { root: folder.path().to_path_buf(), ..HostPaths::default() };
        assert_eq!(find(None, None, &host), None);

        std::fs::create_dir_all(folder.path().join("run/crio")).unwrap();
        std::fs::write(folder.path().join("run/crio/crio.sock"), "").unwrap();
        let found = find(None, None, &host).unwrap();
        assert_eq!((found.socket, found.named_by), (folder.path().join("run/crio/crio.sock"), NamedBy::Nobody));

        let named = find(None, Some("unix:///var/run/containerd/containerd.sock"), &host).unwrap();
        assert_eq!(named.socket, folder.path().join("run/containerd/containerd.sock"));
        assert_eq!(named.named_by, NamedBy::Kubelet);

        let flag = find(Some(Path::new("/x.sock")), Some("unix:///y.sock"), &host).unwrap();
        assert_eq!((flag.socket.as_path(), flag.named_by), (Path::new("/x.sock"), NamedBy::Flag));
    }

    #[test]
    fn endpoints_that_are_no_unix_socket_are_ignored() {
        for endpoint in ["", "tcp://1.2.3.4:5", "npipe:////./pipe/x", "relative.sock"] {
            assert_eq!(socket_path(endpoint), None, "{endpoint}");
        }
        for endpoint in ["unix:///run/a.sock", "unix:/run/a.sock", "/run/a.sock", " /run/a.sock "] {
            assert_eq!(socket_path(endpoint), Some(PathBuf::from("/run/a.sock")), "{endpoint}");
        }
    }
}
