//! A real node: namespaces of its own with a real containerd and a real kubelet in them, all at their default paths.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::{
    cgroup,
    layout::Layout,
    machine::Machine,
    network, node_config, packages,
    process::{self, Identity},
    realm::{Realm, output_of},
    wait::ENDS,
};

/// The kubelet's credentials, at kubeadm's place.
pub const KUBELET_KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";
const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";
/// How containerd is called, whoever starts it.
pub(crate) const CONTAINERD_COMMAND: [&str; 1] = ["containerd"];

/// A real node of a bed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Node {
    /// Name of the Node object and host name.
    pub name: String,
    /// Its address in the bed's network.
    pub ip: Ipv4Addr,
    pub(crate) number: u8,
    pub(crate) place: Place,
    /// Folder that holds all that it writes.
    pub(crate) dir: PathBuf,
    /// The test bed's own program.
    pub(crate) testbed: PathBuf,
    /// Whether stand-ins play the runtime and the kubelet.
    #[serde(default)]
    pub(crate) stand_in: bool,
    /// Whether systemd runs it.
    #[serde(default)]
    pub(crate) units: bool,
    /// Where its programs are.
    #[serde(default)]
    pub(crate) layout: Layout,
}

/// Where the processes of a node are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Place {
    /// Namespaces of this machine
    Realm(Realm),
    /// A machine of their own
    Machine(Machine),
}

/// How a kubelet is started.
#[derive(Debug, Clone, Copy, Default)]
pub struct KubeletStart {
    /// Puts the stand-in for the start of kubelets ≤ 1.23 in front.
    pub start_check: bool,
}

/// What a node is made from.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) bed: &'a str,
    pub(crate) outer: &'a Realm,
    pub(crate) dir: &'a Path,
    pub(crate) number: u8,
    /// Kubeconfig with the node's own credentials.
    pub(crate) kubeconfig: &'a Path,
    pub(crate) ca: &'a str,
    /// The static program of the workload image; it is also the network plugin in front of the real one.
    pub(crate) workload: &'a Path,
    pub(crate) testbed: &'a Path,
    /// Whether systemd shall run it.
    pub(crate) units: bool,
}

impl Parts<'_> {
    /// The kubelet's files, with this configuration.
    pub(crate) fn kubelet_files(&self, config: String) -> Result<[(&'static str, String); 3]> {
        let kubeconfig = fs::read_to_string(self.kubeconfig)?;
        Ok([
            (KUBELET_CONFIG, config),
            ("/etc/kubernetes/pki/ca.crt", self.ca.to_owned()),
            (KUBELET_KUBECONFIG, kubeconfig),
        ])
    }

    /// A node of these parts, as it is where nothing else is said: real, without units, with programs at the usual places.
    pub(crate) fn node(&self, name: String, place: Place, dir: PathBuf) -> Node {
        Node {
            name,
            ip: network::node_ip(self.number),
            number: self.number,
            place,
            dir,
            testbed: self.testbed.to_owned(),
            stand_in: false,
            units: false,
            layout: Layout::Usual,
        }
    }
}

impl Node {
    /// Whether its runtime is CRI-O, whose conmon answers nothing that CRI-O waits for.
    pub(crate) const fn has_conmon(&self) -> bool {
        matches!(self.layout, Layout::CriO)
    }

    /// Imports a docker-archive into the node's runtime.
    pub fn import(&self, archive: &Path) -> Result<()> {
        // By stdin: the node's own mounts may cover the archive's path.
        let file = fs::File::open(archive).with_context(|| format!("open {}", archive.display()))?;
        let mut import = self.command("sh");
        import.args(["-ec", self.layout.import()]);
        let imported = output_of(&mut import, file).map(drop);
        imported.with_context(|| format!("import {} into node {}", archive.display(), self.name))
    }

    /// Name of the node with this number.
    pub(crate) fn name_of(number: u8) -> String {
        format!("real-{number}")
    }

    /// Makes the node's namespaces and files; nothing runs in them yet.
    pub(crate) fn create(parts: &Parts<'_>) -> Result<Self> {
        let name = Self::name_of(parts.number);
        let dir = parts.dir.join(&name);
        for folder in ["run", "var-lib", "var-log", "etc", "etc-work", "cni-bin"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        let plugins = packages::cni_plugins()?;
        for plugin in fs::read_dir(&plugins)?.flatten() {
            fs::copy(plugin.path(), dir.join("cni-bin").join(plugin.file_name()))?;
        }
        fs::copy(parts.workload, dir.join("cni-bin/nrh-gate")).context("the network plugin with the gate")?;
        let group = cgroup::path(parts.bed, &name);
        let realm = parts.outer.nest(cgroup::JOIN, &[&group], &dir.join("init.log"))?;
        let mut node = parts.node(name, Place::Realm(realm), dir);
        node.script(cgroup::REMOUNT, &[]).context("control groups of a node")?;
        let folder = node.dir.display().to_string();
        node.script(MOUNTS, &[&folder, &node.name, &plugins.display().to_string()]).context("mounts of a node")?;
        node.write_files(parts, &plugins)?;
        if parts.units {
            node.boot()?;
        }
        Ok(node)
    }

    fn write_files(&self, parts: &Parts<'_>, plugins: &Path) -> Result<()> {
        let subnet = network::pod_subnet(self.number);
        self.write("/etc/containerd/config.toml", &node_config::containerd(self.ip, plugins))?;
        self.write("/etc/cni/net.d/10-nrh.conflist", &node_config::cni(&subnet))?;
        self.write_kubelet_files(parts)
    }

    pub(crate) fn write_kubelet_files(&self, parts: &Parts<'_>) -> Result<()> {
        let config = node_config::kubelet(self.ip, self.healthz_port());
        parts.kubelet_files(config)?.iter().try_for_each(|(path, text)| self.write(path, text))
    }

    /// Whether stand-ins play the runtime and the kubelet: processes are real here too, isolation and images are not.
    pub const fn is_stand_in(&self) -> bool {
        self.stand_in
    }

    /// Port of the kubelet's health check on 127.0.0.1, which all nodes of a bed share. None has the default port, 10248: a kubelet that
    /// answers there would be taken for that of every node.
    pub fn healthz_port(&self) -> u16 {
        10248 + 100 * u16::from(self.number)
    }

    /// Starts the kubelet under a supervisor that starts it again whenever it ends: systemd, where it runs the node.
    pub fn start_kubelet(&self, start: KubeletStart) -> Result<()> {
        if let Some(unit) = self.unit_of("kubelet") {
            self.set_start_check(start.start_check)?;
            // A start check that finds something is a start that fails, again and again.
            if start.start_check {
                return self.systemctl(&["start", "--no-block", &unit]).map(drop);
            }
            return self.unit_start(&unit);
        }
        let mut argv = vec![self.testbed.display().to_string(), "supervise".into()];
        if start.start_check {
            argv.push("--start-check".into());
        }
        argv.extend(["--log".into(), "/var/log/kubelet-starts.log".into(), "--".into()]);
        argv.extend(kubelet_command(&self.name, self.ip));
        self.start("kubelet", &argv).map(drop)
    }

    /// Stops the kubelet and its supervisor; containers live on.
    pub fn stop_kubelet(&self) -> Result<()> {
        self.stop("kubelet")
    }

    /// The process that was started under a name (for the kubelet: its supervisor, unless that is systemd), if it runs.
    pub fn daemon(&self, name: &str) -> Option<Identity> {
        if let Some(unit) = self.unit_of(name) {
            return self.unit_process(&unit);
        }
        let text = fs::read_to_string(self.dir.join(format!("{name}.process"))).ok()?;
        serde_json::from_str::<Identity>(&text).ok().filter(Identity::alive)
    }

    /// What a program of the node has printed.
    pub fn log(&self, name: &str) -> PathBuf {
        self.dir.join("var-log").join(format!("{name}.log"))
    }

    /// Starts a program on the node that runs until [`Node::stop`] or the end of the bed; it prints to [`Node::log`].
    pub fn start(&self, name: &str, argv: &[String]) -> Result<Identity> {
        if let Some(running) = self.daemon(name) {
            bail!("{name} of {} runs already as {}", self.name, running.pid);
        }
        let log = Path::new("/var/log").join(format!("{name}.log"));
        let Place::Realm(realm) = &self.place else { return self.unit_run(name, &log, argv) };
        let identity = realm.daemon(&log, argv)?;
        fs::write(self.dir.join(format!("{name}.process")), serde_json::to_string(&identity)?)?;
        Ok(identity)
    }

    /// Stops a program that was started under this name: SIGTERM, and SIGKILL if it does not listen.
    pub fn stop(&self, name: &str) -> Result<()> {
        if let Some(unit) = self.unit_of(name) {
            return self.unit_stop(&unit);
        }
        let Some(daemon) = self.daemon(name) else { return Ok(()) };
        // The supervisor's child must not survive it: a second kubelet would be started beside it.
        let below: Vec<_> = if name == "kubelet" { process::children(daemon.pid) } else { Vec::new() };
        let below: Vec<Identity> = below.into_iter().filter_map(|pid| Identity::of(pid).ok()).collect();
        daemon.signal(Signal::TERM)?;
        if !daemon.wait_gone(Duration::from_secs(20)) {
            daemon.signal(Signal::KILL)?;
        }
        for child in below {
            if !child.wait_gone(Duration::from_secs(2)) {
                child.signal(Signal::KILL)?;
                ensure!(child.wait_gone(ENDS), "{name} of {} ({}) does not end", self.name, child.pid);
            }
        }
        ensure!(daemon.wait_gone(ENDS), "{name} of {} ({}) does not end", self.name, daemon.pid);
        Ok(())
    }
}

/// How the kubelet of a node is called, whoever starts it.
pub(crate) fn kubelet_command(name: &str, ip: Ipv4Addr) -> Vec<String> {
    let files = [format!("--config={KUBELET_CONFIG}"), format!("--kubeconfig={KUBELET_KUBECONFIG}")];
    let names = [format!("--node-ip={ip}"), format!("--hostname-override={name}")];
    ["kubelet".to_owned()].into_iter().chain(files).chain(names).collect()
}

/// Gives the node folders of its own at all default paths: folder, host name, folder with the network plugins.
///
/// `/etc` is a layer above the machine's, so that users, libraries' configuration and the like are there and nothing is
/// written to them. Mounts are shared inside the node, as on a real one, since volumes may ask for propagation.
const MOUNTS: &str = r#"
dir=$1; hostname "$2"
mount -t overlay -o "lowerdir=/etc,upperdir=$dir/etc,workdir=$dir/etc-work" nrh-etc /etc
mount --bind "$dir/cni-bin" "$3"
mount --bind "$dir/run" /run
mount --bind "$dir/var-log" /var/log
mount --bind "$dir/var-lib" /var/lib
mount --make-rshared /
mkdir -p /run/lock /run/netns /var/lib/kubelet /var/lib/containerd /var/lib/cni /var/log/pods /var/log/containers
echo "$2" >/etc/hostname
"#;
