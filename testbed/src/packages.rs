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
#[derive(Debug, Clone, Copy)]
pub struct Program {
    name: &'static str,
    package: &'static str,
}

const fn program(name: &'static str, package: &'static str) -> Program {
    Program { name, package }
}

/// What every bed needs.
pub const BED: &[Program] = &[
    program("unshare", "util-linux"),
    program("nsenter", "util-linux"),
    program("setsid", "util-linux"),
    program("mount", "mount"),
    program("ip", "iproute2"),
    program("tini", "tini"),
    program("awk", "mawk"),
];
/// What a real node needs on top.
pub const NODE: &[Program] = &[
    program("containerd", "containerd"),
    program("containerd-shim-runc-v2", "containerd"),
    program("ctr", "containerd"),
    program("runc", "runc"),
    program("ptp", "containernetworking-plugins"),
    program("host-local", "containernetworking-plugins"),
];
/// What a Docker Engine needs on top.
pub const DOCKER: &[Program] = &[
    program("dockerd", "docker.io"),
    program("containerd", "containerd"),
    program("containerd-shim-runc-v2", "containerd"),
    program("runc", "runc"),
];
/// What the benchmark of the probe needs.
pub const BENCH: &[Program] = &[program("strace", "strace")];
/// What a node needs on top that systemd runs. Its package puts it beside another init process, not in its place.
pub const UNITS: &[Program] =
    &[program("systemctl", "systemd"), program("busctl", "systemd"), program("dbus-daemon", "dbus-daemon")];
/// A message bus, on which tests put a systemd that answers or not.
pub const BUS: &[Program] = &[program("dbus-daemon", "dbus-daemon")];
/// What a machine needs on top.
pub const MACHINE: &[Program] = &[program("qemu-system-x86_64", "qemu-system-x86"), program("ssh", "openssh-client")];
/// What making the disks of machines needs.
pub const MACHINE_IMAGE: &[Program] = &[
    program("debootstrap", "debootstrap"),
    program("mke2fs", "e2fsprogs"),
    program("debugfs", "e2fsprogs"),
    program("ssh-keygen", "openssh-client"),
    program("strip", "binutils"),
];
/// What building runc needs.
pub const RUNC: &[Program] = &[
    program("gcc", "gcc"),
    program("/usr/include/stdlib.h", "libc6-dev"),
    program("pkg-config", "pkg-config"),
    program("/usr/include/seccomp.h", "libseccomp-dev"),
];
/// What building the project's own image needs.
pub const BUILD: &[Program] = &[program("buildah", "buildah"), program("protoc", "protobuf-compiler")];

/// Folders with network plugins: the upstream's, then Debian's.
const CNI: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Makes sure that the programs are there. A machine that has them, from wherever, is left alone.
pub fn ensure(programs: &[Program]) -> Result<()> {
    let mut packages: Vec<_> = programs.iter().filter(|p| find(p.name).is_none()).map(|p| p.package).collect();
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
struct NoServices {
    ours: bool,
}

impl NoServices {
    fn forbid() -> Result<Self> {
        // A policy of the machine is the machine's business.
        if Path::new(POLICY).exists() {
            return Ok(Self { ours: false });
        }
        fs::write(POLICY, "#!/bin/sh\nexit 101\n").context(POLICY)?;
        fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        Ok(Self { ours: true })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_file(POLICY);
        }
    }
}
