//! Runtimes of machines that are neither Debian's nor built from a Go module: a variable names their program.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::Files;
use crate::images::PAUSE_IMAGE;
use crate::layout::Layout;

/// A program that the bed does not make, and the variable that names it.
const fn own_program(layout: Layout) -> Option<(&'static str, &'static str)> {
    match layout {
        Layout::Docker => Some(("cri-dockerd", "CRI_DOCKERD")),
        Layout::CriO => Some(("crio", "CRIO")),
        _ => None,
    }
}

/// The program that its variable names, where the layout needs one.
///
/// # Errors
/// When the variable names no file.
pub(super) fn program(layout: Layout) -> Result<Option<PathBuf>> {
    let Some((name, variable)) = own_program(layout) else { return Ok(None) };
    let path = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_file());
    path.map(Some).with_context(|| format!("{variable} has to name a program {name}: no package registry has it"))
}

/// The runtime's settings and its unit.
pub(super) fn set_up(files: &mut Files, layout: Layout, program: &std::path::Path, plugins: &str) -> Result<()> {
    let Some((name, _)) = own_program(layout) else { return Ok(()) };
    let path = format!("/usr/local/bin/{name}");
    files.program(&path, program)?;
    let socket = layout.places().socket;
    let command = if layout == Layout::CriO {
        files.link("/etc/systemd/system/containerd.service", "/dev/null");
        // It is built beside crio.
        files.program("/usr/local/bin/pinns", &program.with_file_name("pinns"))?;
        files.write("/etc/crio/crio.conf.d/10-bed.conf", &crio(plugins))?;
        path
    } else {
        files.write("/etc/docker/daemon.json", DOCKER)?;
        let options = format!(
            "--container-runtime-endpoint=unix://{socket} --pod-infra-container-image={PAUSE_IMAGE} \
                 --network-plugin=cni --cni-bin-dir={plugins} --cni-conf-dir=/etc/cni/net.d"
        );
        format!("{path} {options}")
    };
    let requires = if layout == Layout::Docker { "Requires=docker.service\nAfter=docker.service\n" } else { "" };
    let text = format!(
        "[Unit]\n{requires}[Service]\nType=notify\nExecStart={command}\nRestart=always\nDelegate=yes\nTasksMax=infinity\n\
         [Install]\nWantedBy=multi-user.target\n"
    );
    files.unit(layout.unit("containerd"), &text)
}

/// Pods have their network from plugins, not from Docker.
const DOCKER: &str = r#"{"bridge": "none", "iptables": false, "ip-forward": false}
"#;

fn crio(plugins: &str) -> String {
    format!(
        r#"[crio.runtime]
conmon = "/usr/bin/conmon"
pinns_path = "/usr/local/bin/pinns"
default_runtime = "runc"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
[crio.image]
pause_image = "{PAUSE_IMAGE}"
[crio.network]
plugin_dirs = ["{plugins}"]
"#
    )
}
