//! Without root: the same program once more as root of a user namespace of its own.
//!
//! That root may make network, mount and pid namespaces, so a control plane and nodes of stand-ins run as they are. It
//! may not install packages, and has no control groups of its own, so a real node does not run there.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::packages;
use crate::realm::MAPPED_ROOT;

pub use crate::realm::is_root;

/// Becomes root of a new user namespace by running this program again in it; returns when it is root already.
pub fn become_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    packages::ensure(packages::BED).context("without root nothing can be installed")?;
    // Tried first: the reason is then an error of ours, not a line of a program that has replaced this one.
    let tried = unshare().args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "true"]).output();
    let tried = tried.context("start unshare")?;
    if !tried.status.success() {
        bail!(
            "neither root nor user namespaces: {}\n{}",
            String::from_utf8_lossy(&tried.stderr).trim(),
            "The test bed needs one of them. What forbids user namespaces is usually one of the sysctls \
             user.max_user_namespaces=0, kernel.unprivileged_userns_clone=0 and \
             kernel.apparmor_restrict_unprivileged_userns=1, or, in a container, its seccomp profile or a masked /proc."
        );
    }
    let program = std::env::current_exe()?;
    let error = unshare().arg(program).args(std::env::args_os().skip(1)).env(MAPPED_ROOT, "1").exec();
    Err(error).context("start unshare")
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user"]);
    command
}
