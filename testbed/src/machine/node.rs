//! A machine as a node of its bed: a stock kubelet and a stock runtime, both units of its own systemd.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Accelerator, Files, Hardware, Image, Machine, TESTBED};
use crate::node::{Node, Parts, Place, kubelet_command};
use crate::systemd;
use crate::view::SOCKET;
use crate::{Platform, assets, network, node_config, packages};

/// Where Debian has network plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// What all machines of a bed are made from.
#[derive(Debug)]
pub(crate) struct Model {
    platform: Platform,
    image: Image,
    accelerator: Accelerator,
    /// containerd's programs, where they are not the distribution's.
    containerd: Vec<PathBuf>,
    kubelet: PathBuf,
}

impl Model {
    /// Makes what is missing.
    pub(crate) fn ensure(platform: Platform, programs: &[PathBuf], progress: bool) -> Result<Self> {
        packages::ensure(packages::MACHINE, progress)?;
        packages::ensure(packages::MACHINE_IMAGE, progress)?;
        let kubelet = programs.iter().map(|folder| folder.join("kubelet")).find(|path| path.is_file());
        let image = Image::ensure(platform.debian, progress)?;
        Ok(Self {
            platform,
            accelerator: Accelerator::best(&image)?,
            image,
            containerd: platform.containerd.map_or(Ok(Vec::new()), |version| assets::containerd(version, progress))?,
            kubelet: kubelet.context("no kubelet")?,
        })
    }
}

impl Node {
    /// Name of the machine with this number.
    pub(crate) fn machine_name(number: u8) -> String {
        format!("machine-{number}")
    }

    /// Boots a machine; its runtime and its kubelet do not run yet.
    pub(crate) fn create_machine(parts: &Parts<'_>, model: &Model) -> Result<Self> {
        let (name, ip) = (Self::machine_name(parts.number), network::node_ip(parts.number));
        let dir = parts.dir.join(&name);
        fs::create_dir_all(dir.join("var-log"))?;
        let files = files(parts, model, &name)?;
        let machine = Machine::boot(&Hardware {
            outer: parts.outer,
            image: &model.image,
            accelerator: model.accelerator,
            number: parts.number,
            ip,
            dir: &dir,
            files: &files,
            kernel: if model.platform.legacy_groups { "systemd.unified_cgroup_hierarchy=0" } else { "" },
            runtime: SOCKET,
        })?;
        let place = Place::Machine(machine);
        Ok(Self { name, ip, number: parts.number, place, dir, testbed: TESTBED.into(), stand_in: false, units: true })
    }
}

fn files(parts: &Parts<'_>, model: &Model, name: &str) -> Result<Files> {
    let ip = network::node_ip(parts.number);
    let mut files = Files::new(parts.dir, name, &ip.to_string())?;
    files.write("/etc/ssh/sshd_config.d/bed.conf", "UsePAM no\nUseDNS no\n")?;
    files.program(TESTBED, parts.testbed)?;
    files.program("/usr/bin/kubelet", &model.kubelet)?;
    for program in &model.containerd {
        let name = program.file_name().and_then(|name| name.to_str()).context("a program has a name")?;
        files.program(&format!("/usr/bin/{name}"), program)?;
    }
    files.program(&format!("{PLUGINS}/nrh-gate"), parts.workload)?;
    files.write(
        "/etc/containerd/config.toml",
        &node_config::containerd_of_machine(ip, &model.platform, Path::new(PLUGINS)),
    )?;
    files.write("/etc/cni/net.d/10-nrh.conflist", &node_config::cni(&network::pod_subnet(parts.number)))?;
    for (path, text) in parts.kubelet_files(node_config::kubelet_of_machine(&model.platform))? {
        files.write(path, &text)?;
    }
    let command = kubelet_command(name, ip).join(" ");
    let unit = format!(
        "{}[Service]\nExecStart=/usr/bin/{command}\nStandardOutput=append:/var/log/kubelet.log\n",
        systemd::KUBELET
    );
    files.write("/etc/systemd/system/kubelet.service", &unit)?;
    Ok(files)
}
