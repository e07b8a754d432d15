//! A machine as a node of its bed: a stock kubelet and a stock runtime, both units of its own systemd.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Accelerator, Files, Hardware, Image, Machine, TESTBED, runtime};
use crate::layout::{Layout, called};
use crate::node::{Node, Parts, Place, kubelet_command};
use crate::node_config::{HOST_CONTAINERD, HOST_CONTAINERD_CONFIG};
use crate::platform::Oci;
use crate::systemd;
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
    /// runc, where it is not the distribution's.
    runc: Option<PathBuf>,
    /// The program of another runtime.
    runtime: Option<PathBuf>,
    kubelet: PathBuf,
}

impl Model {
    /// Makes what is missing.
    pub(crate) fn ensure(platform: Platform, programs: &[PathBuf]) -> Result<Self> {
        let runtime = runtime::program(platform.layout)?;
        packages::ensure(packages::MACHINE)?;
        packages::ensure(packages::MACHINE_IMAGE)?;
        let kubelet = assets::find(programs, "kubelet")?;
        let runc = match platform.oci {
            Oci::Runc(version) => Some(assets::runc(version)?),
            Oci::Package(_) => None,
        };
        let image = Image::ensure(&platform)?;
        Ok(Self {
            platform,
            accelerator: Accelerator::best(&image)?,
            image,
            containerd: platform.containerd.map_or(Ok(Vec::new()), assets::containerd)?,
            runc,
            runtime,
            kubelet,
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
            kernel: kernel_settings(&model.platform),
            runtime: model.platform.layout.places().socket,
        })?;
        Ok(Self {
            testbed: TESTBED.into(),
            units: true,
            layout: model.platform.layout,
            ..parts.node(name, Place::Machine(machine), dir)
        })
    }
}

/// For the kernel, beside what all machines get.
fn kernel_settings(platform: &Platform) -> &'static str {
    match (platform.cgroup_v1, platform.selinux) {
        (true, _) => "systemd.unified_cgroup_hierarchy=0",
        // `set-up` has it enforce, once the files that are written into the disk have their labels.
        (_, true) => "security=selinux selinux=1 enforcing=0",
        _ => "",
    }
}

fn files(parts: &Parts<'_>, model: &Model, name: &str) -> Result<Files> {
    let ip = network::node_ip(parts.number);
    let mut files = Files::new(parts.dir, name, &ip.to_string())?;
    files.write("/etc/ssh/sshd_config.d/bed.conf", "UsePAM no\nUseDNS no\n")?;
    files.program(TESTBED, parts.testbed)?;
    let places = model.platform.layout.places();
    files.program(places.kubelet.0, &model.kubelet)?;
    for program in &model.containerd {
        files.program(&places.containerd_program(program)?, program)?;
    }
    if let Some(runc) = &model.runc {
        files.program(&model.platform.oci.path(), runc)?;
    }
    files.program(&format!("{PLUGINS}/nrh-gate"), parts.workload)?;
    files.write("/etc/cni/net.d/10-nrh.conflist", &node_config::cni(&network::pod_subnet(parts.number)))?;
    for (path, text) in parts.kubelet_files(node_config::kubelet_of_machine(&model.platform))? {
        files.write(path, &text)?;
    }
    let mut command = kubelet_command(name, ip);
    command[0] = called(places.kubelet);
    match &model.runtime {
        Some(program) => runtime::set_up(&mut files, model.platform.layout, program, PLUGINS)?,
        None => files.write(
            "/etc/containerd/config.toml",
            &node_config::containerd_of_machine(ip, &model.platform, Path::new(PLUGINS)),
        )?,
    }
    let layout = model.platform.layout;
    if layout == Layout::Bottlerocket {
        host_containerd(&mut files)?;
    }
    if layout.has_usual_places() || matches!(layout, Layout::Docker | Layout::CriO) {
        let unit = kubelet_unit(&command.join(" "));
        files.write("/etc/systemd/system/kubelet.service", &unit)?;
    } else {
        lay_out(&mut files, layout, &command)?;
    }
    Ok(files)
}

fn kubelet_unit(command: &str) -> String {
    format!("{}[Service]\nExecStart={command}\nStandardOutput=append:/var/log/kubelet.log\n", systemd::KUBELET)
}

fn host_containerd(files: &mut Files) -> Result<()> {
    files.write(HOST_CONTAINERD, HOST_CONTAINERD_CONFIG)?;
    let command = format!("[Service]\nExecStart=/usr/bin/containerd --config {HOST_CONTAINERD}\n");
    files.unit("host-containerd", &format!("{}{command}", systemd::CONTAINERD))
}

/// The units and names of a distribution, in place of Debian's.
fn lay_out(files: &mut Files, layout: Layout, kubelet: &[String]) -> Result<()> {
    let places = layout.places();
    let containerd = called(places.containerd);
    for part in [places.kubelet, places.containerd] {
        if called(part) != part.0 {
            files.link(&called(part), part.0);
        }
    }
    let kubelet = format!("{} --root-dir={}", kubelet.join(" "), places.kubelet_root);
    let path = format!("PATH={}:/usr/local/bin:/usr/bin:/usr/sbin", places.programs());
    files.script(
        "/usr/local/bin/ctr",
        &format!("#!/bin/sh\nexec {}/ctr -a {} \"$@\"\n", places.programs(), places.socket),
    )?;
    files.link("/etc/systemd/system/containerd.service", "/dev/null");
    let mut unit = |program: &str, text: &str| files.unit(layout.unit(program), text);
    let Some(runtime_binary) = places.runtime_binary else {
        let settings = systemd::CONTAINERD;
        unit("containerd", &format!("{settings}[Service]\nEnvironment={path}\nExecStart={containerd}\n"))?;
        return unit("kubelet", &kubelet_unit(&kubelet));
    };
    let text = format!(
        "[Service]\nEnvironment={path}\nExecStart={runtime_binary}\nKillMode=process\nDelegate=yes\n\
         Restart=always\nRestartSec=5\nTasksMax=infinity\nStandardOutput=append:/var/log/kubelet.log\n\
         StandardError=inherit\n[Install]\nWantedBy=multi-user.target\n"
    );
    unit("kubelet", &text)?;
    // What is started ends with it, as with k3s and RKE2.
    let end = "setpriv --pdeathsig KILL";
    let kubelet = if layout == Layout::K3s { format!("exec {kubelet}") } else { format!("{end} {kubelet} & wait -n") };
    let socket = places.socket;
    files.script(
        runtime_binary,
        &format!(
            "#!/bin/bash -e\nrm -f {socket}\n{end} {containerd} &\n\
             until [ -S {socket} ]; do kill -0 $!; sleep 0.2; done\n{kubelet}\n"
        ),
    )
}
