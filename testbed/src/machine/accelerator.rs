//! Whether the processor of machines is this machine's own, or emulated.

use std::fs;
use std::process::Command;

use anyhow::Result;

use super::Image;
use crate::assets;

/// What runs a machine's processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accelerator {
    /// The hardware
    Kvm,
    /// Emulation
    Tcg,
}

impl Accelerator {
    /// KVM where it boots the kernel, tried once since this machine has booted; else emulation. Says which.
    ///
    /// `/dev/kvm` may be there and answer, and still boot no stock kernel, where this machine itself is a paravirtual guest.
    pub(super) fn best(image: &Image) -> Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let known = assets::cache_root()?.join("accelerator");
        if let Ok(text) = fs::read_to_string(&known)
            && let Some(name) = text.strip_prefix(boot.trim())
        {
            return Ok(if name.trim() == Self::Kvm.argument() { Self::Kvm } else { Self::Tcg });
        }
        let found = if boots(image) { Self::Kvm } else { Self::Tcg };
        let why = if found == Self::Tcg { " (emulated: KVM boots no kernel here)" } else { "" };
        eprintln!("testbed: processors of machines: {}{why}", found.argument());
        fs::write(&known, format!("{} {}\n", boot.trim(), found.argument()))?;
        Ok(found)
    }

    pub(super) const fn argument(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// How many a machine has. Emulated ones that run side by side see the kernel's changes to its own code half done, and
    /// it panics.
    pub(super) const fn processors(self) -> &'static str {
        match self {
            Self::Kvm => "2",
            Self::Tcg => "1",
        }
    }
}

/// Seconds a kernel has to say its first words.
const LIMIT: &str = "20";

/// Whether the kernel says something under KVM. It finds no root file system and ends.
fn boots(image: &Image) -> bool {
    if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return false;
    }
    let mut qemu = Command::new("timeout");
    qemu.args(["--kill-after=2", LIMIT, "qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot"]);
    qemu.args(["-M", "q35", "-accel", "kvm", "-cpu", "host", "-m", "512", "-serial", "stdio", "-kernel"]);
    qemu.arg(image.kernel()).args(["-append", "console=ttyS0 panic=-1"]).stdin(std::process::Stdio::null());
    qemu.output().is_ok_and(|result| String::from_utf8_lossy(&result.stdout).contains("Linux version"))
}
