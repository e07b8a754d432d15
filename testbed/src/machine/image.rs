//! The root file system of machines: a stock Debian with its own kernel, made once and kept between runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::Platform;
use crate::layout::Layout;
use crate::realm::{output, output_of};
use crate::{assets, images};

/// A release of Debian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Debian {
    /// 12: Linux 6.1, systemd 252, containerd 1.6, runc 1.1.5
    Bookworm,
    /// 13: Linux 6.12, systemd 257, containerd 1.7, runc 1.1.15, crun 1.21
    Trixie,
}

impl Debian {
    /// As package archives call it.
    pub(crate) const fn suite(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }
}

/// What is installed beside the base system, as debootstrap takes it.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,udev,linux-image-cloud-amd64,containerd,runc,crun,\
                        containernetworking-plugins,apparmor,iproute2,iptables,kmod,procps,openssh-server,libseccomp2";

/// What a platform needs beside it, with a comma before each.
const fn packages_of(platform: &Platform) -> &'static str {
    match platform.layout {
        Layout::Docker => ",docker.io,docker-cli",
        // podman brings conmon, and takes images from archives.
        Layout::CriO => ",podman",
        _ if platform.selinux => ",selinux-policy-default,policycoreutils",
        _ => "",
    }
}

/// Size of a machine's disk. Only what is written takes room on the disk of the bed.
const SIZE: &str = "6G";

/// Gives the machine its name and address at each boot, as its bed has written them.
const UNIT: &str = "\
[Unit]
Description=Settings of the test bed
DefaultDependencies=no
After=local-fs.target systemd-udevd.service
Before=basic.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/etc/bed/set-up
[Install]
WantedBy=multi-user.target
";

/// Folder of the root file system, public key of the bed, folder for the kernel. What a machine must not do by itself is masked.
const SET_UP: &str = r#"
root=$1; key=$2
install -m 0644 /dev/stdin "$root/etc/systemd/system/bed.service"
chroot "$root" systemctl -q enable bed.service ssh.service
ln -s /etc/systemd/system/kubelet.service "$root/etc/systemd/system/multi-user.target.wants/kubelet.service"
chroot "$root" systemctl -q mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
  systemd-timesyncd.service systemd-networkd.service getty@tty1.service \
  modprobe@configfs.service modprobe@drm.service modprobe@efi_pstore.service
# Profiles of programs that are not there; an emulated processor takes half a minute for them.
find "$root/etc/apparmor.d" -maxdepth 1 -type f -delete
mkdir -p -m 0700 "$root/root/.ssh"; cp "$key" "$root/root/.ssh/authorized_keys"
: >"$root/etc/resolv.conf"; : >"$root/etc/machine-id"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
cp -L "$root"/vmlinuz "$root"/initrd.img "$3"
"#;

/// What the operator needs beside Debian's policy.
const POLICY: &str = include_str!("../../../config/selinux/debian.cil");
/// Folder of the root file system. Its files get their labels here: on an emulated machine that takes minutes. Containers are
/// confined. The domains of the runtime and of the kubelet are not, since Debian's policy lacks some of what they need with each
/// other; nor is that of ssh, by which the bed reaches the runtime's socket.
const LABEL: &str = r#"
printf 'SELINUX=enforcing\nSELINUXTYPE=default\n' >"$1/etc/selinux/config"
printf '(typepermissive %s)\n' dockerd_t kubelet_t sshd_t >"$1/root/bed.cil"
chroot "$1" semodule -n -i /root/bed.cil -i /root/nrh.cil
chroot "$1" setfiles -F /etc/selinux/default/contexts/files/file_contexts /
"#;

/// Folder with a root file system, its kernel and initrd, and the key that opens the machine.
#[derive(Debug, Clone)]
pub(crate) struct Image(PathBuf);

impl Image {
    pub(crate) fn disk(&self) -> PathBuf {
        self.0.join("root.img")
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.0.join("vmlinuz")
    }

    pub(crate) fn initrd(&self) -> PathBuf {
        self.0.join("initrd.img")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.0.join("key")
    }

    /// The image of a platform; made when there is none from the same inputs.
    pub(crate) fn ensure(platform: &Platform) -> Result<Self> {
        let packages = format!("{PACKAGES}{}", packages_of(platform));
        let suite = platform.debian.suite();
        let inputs = [suite, &packages, SIZE, UNIT, SET_UP].join("\n");
        let inputs = if platform.selinux { [&inputs, POLICY, LABEL].join("\n") } else { inputs };
        let hash = images::sha256(inputs.as_bytes());
        let name = format!("machine-{suite}-{}", hash.get(..12).unwrap_or(&hash));
        assets::cached(&name, "about two minutes", |scratch, made| make(platform, &packages, scratch, made)).map(Self)
    }
}

fn make(platform: &Platform, packages: &str, scratch: &Path, made: &Path) -> Result<()> {
    let root = scratch.join("root");
    let (include, suite) = (format!("--include={packages}"), platform.debian.suite());
    let mut bootstrap = Command::new("debootstrap");
    bootstrap.args(["--variant=minbase", &include, suite]).arg(&root);
    output(&mut bootstrap).with_context(|| format!("debootstrap {suite}"))?;
    output(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(made.join("key")))?;
    let unit = scratch.join("bed.service");
    fs::write(&unit, UNIT)?;
    let mut set_up = Command::new("sh");
    set_up.args(["-ec", SET_UP, "sh"]).args([&root, &made.join("key.pub"), made]);
    output_of(&mut set_up, File::open(&unit)?).context("set up the machine")?;
    if platform.selinux {
        fs::write(root.join("root/nrh.cil"), POLICY)?;
        output(Command::new("sh").args(["-ec", LABEL, "sh"]).arg(&root)).context("label the files of the machine")?;
    }
    let mut disk = Command::new("mke2fs");
    disk.args(["-q", "-t", "ext4", "-d"]).arg(&root).arg(made.join("root.img")).arg(SIZE);
    output(&mut disk).map(drop).context("write the files into a disk")
}
