//! Where a distribution of Kubernetes, or a runtime, has a node's programs, and which units run them.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// containerd's socket, at its usual place.
pub const SOCKET: &str = "/run/containerd/containerd.sock";

/// A distribution's places.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Layout {
    /// kubeadm's, with the packages of Linux distributions
    #[default]
    Usual,
    /// k3s's: one process is the kubelet, and containerd is its child and the same executable by another name
    K3s,
    /// RKE2's: one process starts both, at k3s's places
    Rke2,
    /// k0s's: one process starts both
    K0s,
    /// `MicroK8s`': two units of snap
    MicroK8s,
    /// Bottlerocket's: the usual places, and a second containerd for containers of the host
    Bottlerocket,
    /// Docker's behind cri-dockerd, with the packages of Linux distributions
    Docker,
    /// CRI-O's
    CriO,
}

/// Places of one layout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    /// The executable with the kubelet, and the name under which it runs.
    pub(crate) kubelet: (&'static str, &'static str),
    /// The executable with containerd, and the name under which it runs.
    pub(crate) containerd: (&'static str, &'static str),
    /// containerd's socket.
    pub(crate) socket: &'static str,
    /// containerd's folder for what it keeps over a boot.
    pub(crate) root: &'static str,
    /// containerd's folder for what it does not.
    pub(crate) state: &'static str,
    /// The kubelet's folder.
    pub(crate) kubelet_root: &'static str,
    /// Units of containerd and of the kubelet.
    pub(crate) units: [&'static str; 2],
    /// The program that starts both, where one unit runs both.
    pub(crate) runtime_binary: Option<&'static str>,
}

impl Layout {
    /// Whether programs and units have the places and names that Linux distributions give them.
    pub(crate) const fn has_usual_places(self) -> bool {
        matches!(self, Self::Usual | Self::Bottlerocket)
    }

    pub(crate) const fn places(self) -> Places {
        match self {
            Self::Usual | Self::Bottlerocket => Places {
                kubelet: ("/usr/bin/kubelet", "kubelet"),
                containerd: ("/usr/bin/containerd", "containerd"),
                socket: SOCKET,
                root: "/var/lib/containerd",
                state: "/run/containerd",
                kubelet_root: "/var/lib/kubelet",
                units: ["containerd", "kubelet"],
                runtime_binary: None,
            },
            Self::K3s => Places {
                kubelet: ("/var/lib/rancher/k3s/data/agent/bin/k3s", "k3s-agent"),
                containerd: ("/var/lib/rancher/k3s/data/runtime/bin/k3s", "containerd"),
                socket: "/run/k3s/containerd/containerd.sock",
                root: "/var/lib/rancher/k3s/agent/containerd",
                state: "/run/k3s/containerd",
                units: ["k3s-agent", "k3s-agent"],
                runtime_binary: Some("/usr/local/bin/k3s"),
                ..Self::Usual.places()
            },
            Self::Rke2 => Places {
                kubelet: ("/var/lib/rancher/rke2/data/current/bin/kubelet", "kubelet"),
                containerd: ("/var/lib/rancher/rke2/data/current/bin/containerd", "containerd"),
                root: "/var/lib/rancher/rke2/agent/containerd",
                units: ["rke2-agent", "rke2-agent"],
                runtime_binary: Some("/usr/local/bin/rke2"),
                ..Self::K3s.places()
            },
            Self::K0s => Places {
                kubelet: ("/var/lib/k0s/bin/kubelet", "kubelet"),
                containerd: ("/var/lib/k0s/bin/containerd", "containerd"),
                socket: "/run/k0s/containerd.sock",
                root: "/var/lib/k0s/containerd",
                state: "/run/k0s/containerd",
                kubelet_root: "/var/lib/k0s/kubelet",
                units: ["k0sworker", "k0sworker"],
                runtime_binary: Some("/usr/local/bin/k0s"),
            },
            Self::MicroK8s => Places {
                kubelet: ("/snap/microk8s/current/kubelite", "kubelite"),
                containerd: ("/snap/microk8s/current/bin/containerd", "containerd"),
                socket: "/var/snap/microk8s/common/run/containerd.sock",
                root: "/var/snap/microk8s/common/var/lib/containerd",
                state: "/var/snap/microk8s/common/run/containerd",
                kubelet_root: "/var/snap/microk8s/common/var/lib/kubelet",
                units: ["snap.microk8s.daemon-containerd", "snap.microk8s.daemon-kubelite"],
                runtime_binary: None,
            },
            Self::Docker => {
                Places { socket: "/run/cri-dockerd.sock", units: ["cri-docker", "kubelet"], ..Self::Usual.places() }
            }
            Self::CriO => Places { socket: "/run/crio/crio.sock", units: ["crio", "kubelet"], ..Self::Usual.places() },
        }
    }

    /// The script that takes an image from a docker-archive on standard input.
    pub(crate) const fn import(self) -> &'static str {
        match self {
            Self::Docker => "docker load",
            Self::CriO => "podman load -q",
            _ => "ctr -n k8s.io images import -",
        }
    }

    /// The script that gives the image of the first argument the name of the second.
    pub(crate) const fn tag(self) -> &'static str {
        match self {
            Self::Docker => r#"docker tag "$1" "$2""#,
            Self::CriO => r#"podman tag "$1" "$2""#,
            _ => r#"ctr -n k8s.io images tag --force "$1" "$2""#,
        }
    }

    /// Name of the unit that runs a program.
    pub(crate) fn unit(self, program: &str) -> &str {
        match program {
            "containerd" => self.places().units[0],
            "kubelet" => self.places().units[1],
            other => other,
        }
    }
}

impl Places {
    /// Folder of containerd, its shim and `ctr`.
    pub(crate) fn programs(&self) -> &'static str {
        self.containerd.0.rsplit_once('/').map_or("/", |(folder, _)| folder)
    }

    /// Where a program that is built with containerd has to be.
    pub(crate) fn containerd_program(&self, program: &Path) -> Result<String> {
        let name = program.file_name().and_then(|name| name.to_str()).context("a program has a name")?;
        Ok(if name == "containerd" { self.containerd.0.to_owned() } else { format!("{}/{name}", self.programs()) })
    }
}

/// How an executable is called by its name: the link beside it, where it is a part of a larger one.
pub(crate) fn called((executable, name): (&str, &str)) -> String {
    executable.rsplit_once('/').map_or_else(|| name.to_owned(), |(folder, _)| format!("{folder}/{name}"))
}
