//! Programs of the distribution that the bed needs, installed only where they are missing.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::realm::{is_root, output};

/// A program, or a file by its path, and the Debian package that brings it.
pub type Program = (&'static str, &'static str);

/// What every bed needs.
pub const BED: &[Program] = &[
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setsid", "util-linux"),
    ("mount", "mount"),
    ("ip", "iproute2"),
    ("tini", "tini"),
    ("awk", "mawk"),
];
/// What a real node needs on top.
pub const NODE: &[Program] = &[
    ("containerd", "containerd"),
    ("containerd-shim-runc-v2", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("ptp", "containernetworking-plugins"),
    ("host-local", "containernetworking-plugins"),
];
/// What a Docker Engine needs on top.
pub const DOCKER: &[Program] = &[
    ("dockerd", "docker.io"),
    ("containerd", "containerd"),
    ("containerd-shim-runc-v2", "containerd"),
    ("runc", "runc"),
];
/// What the benchmark of the probe needs.
pub const BENCH: &[Program] = &[("strace", "strace")];
/// What a node needs on top that systemd runs. Its package puts it beside another init process, not in its place.
pub const UNITS: &[Program] = &[("systemctl", "systemd"), ("busctl", "systemd"), ("dbus-daemon", "dbus-daemon")];
/// A message bus, on which tests put a systemd that answers or not.
pub const BUS: &[Program] = &[("dbus-daemon", "dbus-daemon")];
/// What a machine needs on top.
pub const MACHINE: &[Program] = &[("qemu-system-x86_64", "qemu-system-x86"), ("ssh", "openssh-client")];
/// What making the disks of machines needs.
pub const MACHINE_IMAGE: &[Program] = &[
    ("debootstrap", "debootstrap"),
    ("mke2fs", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("ssh-keygen", "openssh-client"),
    ("strip", "binutils"),
];
/// What building runc needs.
pub const RUNC: &[Program] = &[
    ("gcc", "gcc"),
    ("/usr/include/stdlib.h", "libc6-dev"),
    ("pkg-config", "pkg-config"),
    ("/usr/include/seccomp.h", "libseccomp-dev"),
];
/// What building the project's own image needs.
pub const BUILD: &[Program] = &[("buildah", "buildah"), ("protoc", "protobuf-compiler")];

/// Folders with network plugins: the upstream's, then Debian's.
const CNI: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Makes sure that the programs are there. A machine that has them, from wherever, is left alone.
pub fn ensure(programs: &[Program]) -> Result<()> {
    let mut packages: Vec<_> =
        programs.iter().filter(|(name, _)| find(name).is_none()).map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    if find("apt-get").is_none() || !is_root() {
        bail!("missing programs, to be installed by hand (names of Debian packages): {}", packages.join(" "));
    }
    eprintln!("testbed: installing {}", packages.join(" "));
    let _forbidden = NoServices::forbid()?;
    let install = || {
        let mut apt = Command::new("apt-get");
        apt.args(["install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"]).args(&packages);
        output(apt.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    if install().is_err() {
        output(Command::new("apt-get").args(["update", "-o", "DPkg::Lock::Timeout=120"]))?;
        install().with_context(|| format!("install {}", packages.join(" ")))?;
    }
    Ok(())
}

/// Where a program is.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders =
        path.split(':').chain(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]);
    folders.chain(CNI).map(|d| Path::new(d).join(name)).find(|p| p.is_file())
}

/// Folder with the stock network plugins.
pub(crate) fn cni_plugins() -> Result<PathBuf> {
    let folder = CNI.iter().map(Path::new).find(|d| d.join("ptp").is_file());
    folder.map(Path::to_owned).context("no network plugins")
}

/// As long as it lives, installing a package starts no service: a runtime of the machine must not appear or restart.
struct NoServices;

impl NoServices {
    /// None where the machine has a policy: that is the machine's business.
    fn forbid() -> Result<Option<Self>> {
        if Path::new(POLICY).exists() {
            return Ok(None);
        }
        fs::write(POLICY, "#!/bin/sh\nexit 101\n").context(POLICY)?;
        fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        Ok(Some(Self))
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        let _ = fs::remove_file(POLICY);
    }
}
