//! What a machine runs: a column of the support matrix.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::assets::{self, Tool};
use crate::layout::Layout;
use crate::machine::{Debian, Model};

/// Distribution, runtime and settings of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Platform {
    /// Name, as people and the support matrix call it
    pub name: &'static str,
    pub(crate) debian: Debian,
    /// Version of containerd's Go module; none for the distribution's package.
    pub containerd: Option<&'static str>,
    /// Version of Kubernetes, for the control plane too; none for the bed's own.
    pub kubernetes: Option<&'static str>,
    /// The OCI runtime.
    pub(crate) oci: Oci,
    /// Feature gates that the kubelet has on.
    pub(crate) gates: &'static [&'static str],
    /// With cgroup v1 and the cgroupfs driver.
    pub(crate) cgroup_v1: bool,
    /// `SELinux` enforces Debian's policy, which has types for containers; `AppArmor` is off.
    pub(crate) selinux: bool,
    /// Where its programs are.
    pub(crate) layout: Layout,
}

/// An OCI runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Oci {
    /// The distribution's package of this name.
    Package(&'static str),
    /// This version of runc's Go module.
    Runc(&'static str),
}

impl Oci {
    /// Where it is on a machine.
    pub(crate) fn path(self) -> String {
        match self {
            Self::Package(name) => format!("/usr/bin/{name}"),
            Self::Runc(_) => "/usr/local/sbin/runc".to_owned(),
        }
    }
}

const fn layout(name: &'static str, layout: Layout) -> Platform {
    Platform { layout, ..platform(name, Debian::Trixie, Some("2.4.2")) }
}

const fn platform(name: &'static str, debian: Debian, containerd: Option<&'static str>) -> Platform {
    Platform {
        name,
        debian,
        containerd,
        kubernetes: None,
        oci: Oci::Package("runc"),
        gates: &[],
        cgroup_v1: false,
        selinux: false,
        layout: Layout::Usual,
    }
}

/// All that can be asked for. The first is what machines run unless one is named.
pub const PLATFORMS: [Platform; 20] = [
    platform("containerd-2.4", Debian::Trixie, Some("2.4.2")),
    Platform { oci: Oci::Package("crun"), ..platform("containerd-2.4-crun", Debian::Trixie, Some("2.4.2")) },
    Platform { oci: Oci::Runc("1.5.3"), ..platform("containerd-2.4-runc-1.5", Debian::Trixie, Some("2.4.2")) },
    Platform { gates: &["EventedPLEG"], ..platform("containerd-2.4-evented-pleg", Debian::Trixie, Some("2.4.2")) },
    Platform { selinux: true, ..platform("containerd-2.4-selinux", Debian::Trixie, Some("2.4.2")) },
    platform("containerd-2.3", Debian::Trixie, Some("2.3.7")),
    platform("containerd-2.2", Debian::Trixie, Some("2.2.9")),
    platform("containerd-1.7", Debian::Trixie, None),
    Platform { oci: Oci::Package("crun"), ..platform("containerd-1.7-crun", Debian::Trixie, None) },
    platform("containerd-1.6", Debian::Bookworm, None),
    Platform { cgroup_v1: true, ..platform("containerd-1.6-cgroup-v1", Debian::Bookworm, None) },
    Platform { kubernetes: Some("1.35.4"), ..platform("kubernetes-1.35", Debian::Trixie, Some("2.2.9")) },
    // The oldest that is supported.
    Platform { kubernetes: Some("1.30.14"), ..platform("kubernetes-1.30", Debian::Trixie, None) },
    Platform { layout: Layout::Docker, ..platform("docker", Debian::Trixie, None) },
    Platform { layout: Layout::CriO, ..platform("cri-o", Debian::Trixie, None) },
    layout("layout-k3s", Layout::K3s),
    layout("layout-rke2", Layout::Rke2),
    layout("layout-k0s", Layout::K0s),
    layout("layout-microk8s", Layout::MicroK8s),
    layout("layout-bottlerocket", Layout::Bottlerocket),
];

impl Platform {
    /// The platform with this name.
    ///
    /// # Errors
    /// When there is none: the error names those that there are.
    pub fn named(name: &str) -> Result<Self> {
        let names = || PLATFORMS.map(|platform| platform.name).join(", ");
        let found = PLATFORMS.into_iter().find(|platform| platform.name == name);
        found.with_context(|| format!("no platform {name:?}; there are {}", names()))
    }

    /// Folders that hold these programs, to be searched in this order.
    ///
    /// # Errors
    /// When one that is missing cannot be built.
    pub fn programs(&self, tools: &[&[Tool]]) -> Result<Vec<PathBuf>> {
        let own = self.kubernetes.map(assets::kubernetes).transpose()?;
        Ok(own.into_iter().chain(assets::ensure(tools)?).collect())
    }

    /// Makes what its machines are made from, where that is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn make_machines(self, programs: &[PathBuf]) -> Result<()> {
        Model::ensure(self, programs).map(drop)
    }

    /// Name of the runtime, as the table of faults has it.
    pub const fn runtime(&self) -> &'static str {
        match self.layout {
            Layout::Docker => "Docker",
            Layout::CriO => "CRI-O",
            _ => "containerd",
        }
    }

    /// The script that gives the image of the first argument the name of the second.
    pub const fn tag(&self) -> &'static str {
        self.layout.tag()
    }

    /// Names of the units of the runtime and of the kubelet.
    pub const fn units(&self) -> [&'static str; 2] {
        self.layout.places().units
    }

    /// Whether the runtime and the kubelet are at the places, and units by the names, that Linux distributions give them.
    pub fn has_usual_places(&self) -> bool {
        self.layout.has_usual_places()
    }
}

impl Default for Platform {
    fn default() -> Self {
        PLATFORMS[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_is_found_by_its_name_and_an_unknown_one_is_refused_with_all_names() -> Result<()> {
        assert_eq!(Platform::named("containerd-1.6")?.debian, Debian::Bookworm);
        let refused = Platform::named("containerd-9").expect_err("there is none").to_string();
        assert!(PLATFORMS.iter().all(|platform| refused.contains(platform.name)), "{refused}");
        Ok(())
    }
}
