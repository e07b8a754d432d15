//! Which socket the runtime of this node listens at.
//!
//! The order is: what the operator set, what the running kubelet uses, what its kind brings, the first known socket that exists. Only where somebody
//! named the socket (or where it existed once) can it be missing *and* mean a faulty runtime.
//!
//! Docker does not speak CRI. Kubelets up to 1.23 contain a CRI part for Docker, so there the probe asks Docker's own API. With
//! cri-dockerd the probe asks CRI, and Docker itself for single containers only ([`docker`]).

use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::collect::HostPaths;
use crate::proc::rooted;

/// Default sockets, the most common first.
const KNOWN: [&str; 6] = [
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
];

/// Docker's socket, where no setting names another.
pub const DOCKER: &str = "/run/docker.sock";
/// The socket of the part for Docker in a kubelet up to 1.23. The protocol there is older than CRI v1.
const DOCKERSHIM: &str = "/run/dockershim.sock";

/// The protocol at the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Api {
    /// CRI.
    #[default]
    Cri,
    /// Docker's own.
    Docker,
}

/// Who named the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamedBy {
    /// A flag of the probe.
    Flag,
    /// The kubelet's own flags or configuration.
    Kubelet,
    /// Nobody, but the kubelet is of a kind that brings a runtime of its own (k3s, `MicroK8s`). Settings that are
    /// not read may name another one.
    KubeletKind,
    /// Nobody: it is a default path at which a socket was found.
    Nobody,
}

impl NamedBy {
    /// Whether the socket may not be that of the node's runtime.
    pub const fn is_guess(self) -> bool {
        matches!(self, Self::KubeletKind | Self::Nobody)
    }
}

/// The runtime's socket. It is kept over a restart of the probe: a guess while the kubelet is down may find another runtime,
/// whose lists show none of the faults of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Path, as this process can open it.
    pub socket: PathBuf,
    /// Who named the socket.
    pub named_by: NamedBy,
    /// The protocol there.
    #[serde(default)]
    pub api: Api,
}

/// Sockets that a person has named, with paths as this process sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flags {
    /// The runtime's, which speaks CRI.
    pub runtime: Option<PathBuf>,
    /// Docker's.
    pub docker: Option<PathBuf>,
}

impl Endpoint {
    /// A socket where CRI is spoken.
    pub fn cri(socket: PathBuf, named_by: NamedBy) -> Self {
        Self { socket, named_by, api: Api::Cri }
    }

    /// Docker's socket.
    pub fn docker(socket: PathBuf, named_by: NamedBy) -> Self {
        Self { socket, named_by, api: Api::Docker }
    }

    /// The socket, if somebody has named it.
    pub fn named(&self) -> Option<&Path> {
        (!self.named_by.is_guess()).then_some(&self.socket)
    }

    /// Whether this newly found socket replaces the known one. As a rule, a named socket does and a guess does not. One
    /// exception: Docker was only a guess while no CRI socket existed.
    pub fn replaces(&self, known: &Self) -> bool {
        let docker_beside_cri = (self.api, known.api) == (Api::Docker, Api::Cri) && self.named_by != NamedBy::Kubelet;
        let cri_for_guessed_docker = (self.api, known.api, known.named_by) == (Api::Cri, Api::Docker, NamedBy::Nobody);
        self != known && (cri_for_guessed_docker || (self.named_by != NamedBy::Nobody && !docker_beside_cri))
    }
}

/// Finds the socket. `kubelet` is the endpoint of the running kubelet (`unix:///…` or a plain path), if known. `usual` is the socket
/// of the runtime that a kubelet of its kind brings.
///
/// `None` when nobody named one and none of the known ones exists. It reads the file system: call it where a stat that hangs
/// does no harm.
pub fn find(flags: &Flags, kubelet: Option<&str>, usual: Option<&str>, host: &HostPaths) -> Option<Endpoint> {
    if let Some(path) = &flags.runtime {
        // A path that a person names is a path as this process sees it.
        return Some(Endpoint::cri(path.clone(), NamedBy::Flag));
    }
    let there = |path: &str| Some(host.socket(Path::new(path))).filter(|path| path.exists());
    let docker = || match &flags.docker {
        Some(path) => Some(Endpoint::docker(path.clone(), NamedBy::Flag)),
        None => there(DOCKER).map(|socket| Endpoint::docker(socket, NamedBy::Nobody)),
    };
    // Some distributions let containerd listen at this path. Others link it to containerd's socket.
    let is_dockershim =
        |path: &Path| host.socket(path).symlink_metadata().is_ok_and(|meta| !meta.file_type().is_symlink());
    if let Some(path) = kubelet.and_then(socket_path) {
        let named = Path::new(DOCKERSHIM).file_name() == path.file_name() && is_dockershim(&path);
        return Some(match docker().filter(|_| named) {
            Some(found) => Endpoint { named_by: NamedBy::Kubelet, ..found },
            None => Endpoint::cri(host.socket(&path), NamedBy::Kubelet),
        });
    }
    if let Some(path) = usual {
        // Whether or not it exists: no other socket is more likely, and a containerd elsewhere is not this kubelet's.
        return Some(Endpoint::cri(host.socket(Path::new(path)), NamedBy::KubeletKind));
    }
    // Docker brings its own containerd, so containerd's socket proves nothing then.
    if is_dockershim(Path::new(DOCKERSHIM))
        && let Some(found) = docker()
    {
        return Some(found);
    }
    let known = KNOWN.iter().find_map(|path| there(path));
    known.map(|socket| Endpoint::cri(socket, NamedBy::Nobody)).or_else(docker)
}

/// Docker's socket, whether or not it exists. Reads the file system, as [`find`] does.
pub fn docker(flags: &Flags, host: &HostPaths) -> PathBuf {
    flags.docker.clone().unwrap_or_else(|| host.socket(Path::new(DOCKER)))
}

/// Whether `socket` exists in the file system of the process `pid`; `None` where that is unknown. A pod sees only what is
/// mounted into it. Reads the file system, as [`find`] does.
pub fn is_there_for(pid: i32, socket: &Path, host: &HostPaths) -> Option<bool> {
    let node = host.proc.join("1/root");
    let path = socket.strip_prefix(node).or_else(|_| socket.strip_prefix(&host.root)).ok()?;
    let (root, path) = rooted::of_process(&host.proc.join(pid.to_string()), &Path::new("/").join(path)).ok()?;
    match rooted::open(root, &path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC) {
        Ok(_) => Some(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(false),
        Err(_) => None,
    }
}

/// The path in an endpoint such as `unix:///run/x.sock`, `unix:/run/x.sock` or `/run/x.sock`; `None` for others.
pub(crate) fn socket_path(endpoint: &str) -> Option<PathBuf> {
    let path = endpoint.trim();
    let path = path.strip_prefix("unix://").or_else(|| path.strip_prefix("unix:")).unwrap_or(path);
    Some(PathBuf::from(path)).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node with files in place of sockets.
    struct Sockets {
        folder: tempfile::TempDir,
        host: HostPaths,
    }

    impl Sockets {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let host = HostPaths { root: folder.path().to_path_buf(), ..HostPaths::default() };
            Self { folder, host }
        }

        fn at(&self, path: &str) -> PathBuf {
            self.folder.path().join(path)
        }

        fn touch(&self, path: &str) -> PathBuf {
            let path = self.at(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        }

        fn find(&self, flags: &Flags, named: Option<&str>, usual: Option<&str>) -> Option<Endpoint> {
            find(flags, named, usual, &self.host)
        }
    }

    #[test]
    fn the_flag_wins_then_the_kubelet_then_what_exists() {
        let (sockets, none) = (Sockets::new(), Flags::default());
        assert_eq!(sockets.find(&none, None, None), None);

        let crio = sockets.touch("run/crio/crio.sock");
        assert_eq!(sockets.find(&none, None, None), Some(Endpoint::cri(crio, NamedBy::Nobody)));

        let k0s = sockets.touch("run/k0s/containerd.sock");
        assert_eq!(sockets.find(&none, None, None).unwrap().socket, k0s);

        let named = sockets.find(&none, Some("unix:///var/run/containerd/containerd.sock"), None).unwrap();
        assert_eq!(named, Endpoint::cri(sockets.at("run/containerd/containerd.sock"), NamedBy::Kubelet));

        // k3s brings a runtime of its own, and another containerd is not that one.
        let usual = "/run/k3s/containerd/containerd.sock";
        sockets.touch("run/containerd/containerd.sock");
        let guess = sockets.find(&none, None, Some(usual)).unwrap();
        assert_eq!((&guess.socket, guess.named_by), (&sockets.at(&usual[1..]), NamedBy::KubeletKind));
        assert!(guess.named_by.is_guess());
        let other = sockets.find(&none, Some("/run/k3s/cri-dockerd/cri-dockerd.sock"), Some(usual)).unwrap();
        assert_eq!(other.named_by, NamedBy::Kubelet);

        let flags = Flags { runtime: Some(PathBuf::from("/x.sock")), docker: Some(PathBuf::from("/d.sock")) };
        let flag = sockets.find(&flags, Some("unix:///y.sock"), None).unwrap();
        assert_eq!(flag, Endpoint::cri(PathBuf::from("/x.sock"), NamedBy::Flag));
    }

    #[test]
    fn docker_itself_is_asked_only_where_nothing_speaks_cri() {
        let (node, flags) = (Sockets::new(), Flags::default());
        let socket = node.touch("run/docker.sock");
        assert_eq!(node.find(&flags, None, None), Some(Endpoint::docker(socket.clone(), NamedBy::Nobody)));
        let cri = node.touch("run/cri-dockerd.sock");
        assert_eq!(node.find(&flags, None, None), Some(Endpoint::cri(cri, NamedBy::Nobody)));
        let containerd = node.touch("run/containerd/containerd.sock");
        assert_eq!(node.find(&flags, None, None), Some(Endpoint::cri(containerd, NamedBy::Nobody)));
        // This kubelet contains the part for Docker: the containerd is Docker's own.
        node.touch("run/dockershim.sock");
        assert_eq!(node.find(&flags, None, None), Some(Endpoint::docker(socket.clone(), NamedBy::Nobody)));
        let named = node.find(&flags, Some("unix:///var/run/dockershim.sock"), None);
        assert_eq!(named, Some(Endpoint::docker(socket, NamedBy::Kubelet)));
        let flags = Flags { docker: Some(PathBuf::from("/d.sock")), ..flags };
        assert_eq!(node.find(&flags, None, None), Some(Endpoint::docker(PathBuf::from("/d.sock"), NamedBy::Flag)));
        assert_eq!(node.find(&flags, Some("/run/crio/crio.sock"), None).unwrap().api, Api::Cri);
    }

    #[test]
    fn a_containerd_at_the_place_of_dockershim_is_spoken_to_as_such() {
        let node = Sockets::new();
        let named = || node.find(&Flags::default(), Some("unix:///run/dockershim.sock"), None).unwrap();
        // containerd itself listens there, and the node has no Docker.
        let place = node.touch("run/dockershim.sock");
        assert_eq!(named(), Endpoint::cri(place.clone(), NamedBy::Kubelet));
        // The path is a link to containerd's socket, and people use a Docker on the node.
        std::fs::remove_file(&place).unwrap();
        node.touch("run/docker.sock");
        let containerd = node.touch("run/containerd/containerd.sock");
        std::os::unix::fs::symlink(&containerd, place).unwrap();
        assert_eq!(named().api, Api::Cri);
        let guess = node.find(&Flags::default(), None, None);
        assert_eq!(guess, Some(Endpoint::cri(containerd, NamedBy::Nobody)));
    }

    #[test]
    fn what_somebody_names_replaces_what_is_known_and_a_guess_does_not() {
        use NamedBy::{Flag, Kubelet, KubeletKind, Nobody};
        let cri = |named_by| Endpoint::cri(PathBuf::from("/cri.sock"), named_by);
        let docker = |named_by| Endpoint::docker(PathBuf::from("/docker.sock"), named_by);
        for (found, known, expected) in [
            (cri(Kubelet), cri(Nobody), true),
            (cri(KubeletKind), cri(Nobody), true),
            (cri(Kubelet), cri(KubeletKind), true),
            (cri(Nobody), cri(KubeletKind), false),
            (cri(Nobody), cri(Kubelet), false),
            (docker(Nobody), cri(Nobody), false),
            (docker(Flag), cri(Kubelet), false),
            (docker(Kubelet), cri(Nobody), true),
            (cri(Nobody), docker(Nobody), true),
            (cri(Nobody), docker(Flag), false),
            (cri(Kubelet), docker(Flag), true),
            (docker(Flag), docker(Nobody), true),
            (cri(Flag), cri(Flag), false),
        ] {
            assert_eq!(found.replaces(&known), expected, "{found:?} for {known:?}");
        }
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
