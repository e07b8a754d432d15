//! A real Docker Engine in namespaces of its own, with containers that carry a kubelet's labels. No control plane and no
//! kubelet: what is tested against it is how the probe sees Docker, and what a command does to it.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::faults::wrapper;
use crate::process::{self, Identity, wait_until};
use crate::realm::{self, Realm, Tether};
use crate::wait::SOON;
use crate::{cgroup, images, packages, state, view};

/// The daemon's socket, at its default place.
pub const SOCKET: &str = "/run/docker.sock";
/// The distribution's own client: another one in front of it may be too new for its daemon.
const CLIENT: &str = "/usr/bin/docker";
/// Seconds until a client that is waited for is ended.
const CLIENT_LIMIT: &str = "120";

/// Number of the next engine of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A running engine. Dropping it ends every process and mount of it.
#[derive(Debug)]
pub struct Docker {
    name: String,
    dir: PathBuf,
    realm: Realm,
    tether: Option<Tether>,
    _mark: File,
}

/// What a container is for.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'a> {
    /// A pod's sandbox.
    Sandbox,
    /// A container in this sandbox.
    Work(&'a str),
    /// Started by somebody else: no label of a kubelet's.
    ExternalCondition,
}

/// What the OCI runtime is that hangs.
#[derive(Clone, Copy, Debug)]
pub enum Client {
    /// A program of that name.
    Program,
    /// A shell script around the real one: its executable is the shell.
    Script,
}

impl Docker {
    /// Starts the engine, with the bed's images in it.
    pub fn up() -> Result<Self> {
        packages::ensure(packages::BED)?;
        packages::ensure(packages::DOCKER)?;
        let program = images::workload_binary()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("docker-{}-{number}", std::process::id());
        let mark = state::claim(&name)?;
        let dir = state::folder(&name);
        for folder in ["run", "var-lib", "logs"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        let (outer, tether) = realm::launch(&name, false, &dir.join("logs/init.log"), &[])?;
        let group = cgroup::path(&name, "node");
        let realm = match outer.nest(cgroup::JOIN, &[&group], &dir.join("logs/node.log")) {
            Ok(realm) => realm,
            Err(error) => {
                tether.cut();
                return Err(error);
            }
        };
        let docker = Self { name, dir, realm, tether: Some(tether), _mark: mark };
        docker.realm.script(cgroup::REMOUNT, &[]).context("control groups of the engine")?;
        docker.realm.script(MOUNTS, &[&docker.dir.display().to_string()]).context("mounts of the engine")?;
        docker.start()?;
        for archive in images::bed_images(&program, &docker.dir.join("images"))? {
            // By stdin: the engine's own mounts may cover the archive's path.
            let mut load = docker.command(CLIENT);
            realm::output_of(load.arg("load"), File::open(&archive)?)?;
        }
        Ok(docker)
    }

    /// Starts the daemon and waits until it answers.
    fn start(&self) -> Result<()> {
        let argv: Vec<String> = DAEMON.iter().map(|word| (*word).to_owned()).collect();
        let daemon = self.realm.daemon(Path::new("/run/dockerd.log"), &argv)?;
        if wait_until(SOON, || !daemon.alive() || self.docker(&["version"]).is_ok()) && daemon.alive() {
            fs::write(self.dir.join("dockerd.process"), serde_json::to_string(&daemon)?)?;
            return Ok(());
        }
        let log = fs::read_to_string(self.realm.root_path("/run/dockerd.log")).unwrap_or_default();
        let end: Vec<&str> = log.lines().rev().take(5).collect();
        bail!("dockerd does not answer: {}", end.join(" | "))
    }

    /// Stops the daemon as systemd does, and starts it again. Without live-restore all containers are killed, those that
    /// can be.
    pub fn restart(&self) -> Result<()> {
        let daemon: Identity = serde_json::from_str(&fs::read_to_string(self.dir.join("dockerd.process"))?)?;
        daemon.signal(Signal::TERM)?;
        ensure!(daemon.wait_gone(SOON), "dockerd does not end");
        self.start()
    }

    /// A command inside all namespaces of the engine.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.realm.command(program)
    }

    /// Runs a command of Docker's client to its end and returns what it prints.
    pub fn docker(&self, args: &[&str]) -> Result<String> {
        // A client waits for ever for a container that hangs, which is what is tested.
        self.realm.run("timeout", &[&["--kill-after=5", CLIENT_LIMIT, CLIENT], args].concat())
    }

    /// Starts a command of Docker's client that is not waited for.
    pub fn begin(&self, args: &[&str]) -> Result<Child> {
        let mut command = self.command(CLIENT);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().context("start Docker's client")
    }

    /// Makes every `runc create` hang that begins from now on, until [`Docker::release_clients`].
    pub fn hang_clients(&self, how: Client) -> Result<()> {
        let program = self.root_path(wrapper::SCRIPT);
        match how {
            Client::Program => drop(fs::copy(images::workload_binary()?, program)?),
            Client::Script => {
                fs::write(&program, wrapper::script("exec /run/nrh-real/runc"))?;
                fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
                self.realm.run("mkfifo", &[wrapper::NOBODY_WRITES])?;
            }
        }
        let script = r#"
            real=$(command -v runc)
            mkdir -p /run/nrh-real && cp "$real" /run/nrh-real/runc
            touch /run/nrh-hang-runc
            mount --bind /run/nrh-runc "$real"
        "#;
        self.realm.script(script, &[]).map(drop)
    }

    /// New calls of `runc` are the real one's again. Those that hang stay.
    pub fn release_clients(&self) -> Result<()> {
        Ok(fs::remove_file(self.root_path(wrapper::HANG))?)
    }

    /// The pids, inside the engine, of calls of `runc` for a container.
    pub fn clients(&self, id: &str) -> Vec<i32> {
        let is_client = |pid: &i32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            process::comm(*pid).is_some_and(|comm| comm == "runc")
                && arguments.split(|byte| *byte == 0).any(|word| word == id.as_bytes())
        };
        let found = process::all().into_iter().filter(is_client);
        found.filter_map(|pid| process::host_to_namespace(self.realm.init.pid, pid)).collect()
    }

    /// Runs a container under a pod's labels and returns its id.
    pub fn run(&self, kind: Kind<'_>, name: &str, pod: &str) -> Result<String> {
        self.make(&["run", "-d"], kind, name, pod)
    }

    /// Makes a container under a pod's labels and returns its id; it is not started.
    pub fn create(&self, kind: Kind<'_>, name: &str, pod: &str) -> Result<String> {
        self.make(&["create"], kind, name, pod)
    }

    fn make(&self, how: &[&str], kind: Kind<'_>, name: &str, pod: &str) -> Result<String> {
        let image = if matches!(kind, Kind::Sandbox) { images::PAUSE_IMAGE } else { images::WORK_IMAGE };
        let (role, sandbox) = match kind {
            Kind::ExternalCondition => {
                let args = [how, &["--network=none", "--name", name, image]].concat();
                return Ok(self.docker(&args)?.trim().to_owned());
            }
            Kind::Sandbox => ("podsandbox", ""),
            Kind::Work(sandbox) => ("container", sandbox),
        };
        let uid = format!("uid-{pod}");
        let mut labels = vec![
            format!("io.kubernetes.docker.type={role}"),
            format!("io.kubernetes.pod.name={pod}"),
            "io.kubernetes.pod.namespace=shop".to_owned(),
            format!("io.kubernetes.pod.uid={uid}"),
            format!("io.kubernetes.container.name={name}"),
        ];
        if !sandbox.is_empty() {
            labels.push(format!("io.kubernetes.sandbox.id={sandbox}"));
        }
        let full = format!("k8s_{name}_{pod}_shop_{uid}_0");
        let mut args = [how, &["--network=none", "--name", &full]].concat();
        args.extend(labels.iter().flat_map(|label| ["--label", label.as_str()]));
        args.push(image);
        Ok(self.docker(&args)?.trim().to_owned())
    }

    /// The shim of a container: its identity outside, and its pid inside.
    pub fn shim(&self, id: &str) -> Result<(Identity, i32)> {
        let shim = view::shim(view::processes(self.realm.init.pid)?, id).with_context(|| format!("no shim of {id}"))?;
        Ok((shim.identity(), shim.pid))
    }

    /// A path of the engine as seen from outside.
    pub fn root_path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.realm.root_path(path)
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Some(tether) = self.tether.take() {
            tether.cut();
        }
        self.realm.init.wait_gone(Duration::from_secs(20));
        if let Err(error) = cgroup::remove(&self.name) {
            eprintln!("testbed: {error:#}");
        }
        if let Err(error) = state::release(&self.name) {
            eprintln!("testbed: {error:#}");
        }
    }
}

/// It brings a containerd of its own. The driver needs nothing of the file system below.
const DAEMON: [&str; 9] = [
    "dockerd",
    "--host=unix:///run/docker.sock",
    "--iptables=false",
    "--bridge=none",
    "--ip-forward=false",
    "--storage-driver=vfs",
    "--exec-opt=native.cgroupdriver=cgroupfs",
    // Lower values are refused in some virtual machines.
    "--oom-score-adjust=0",
    "--pidfile=/run/dockerd.pid",
];

/// Folders of its own at all default paths.
const MOUNTS: &str = r#"
dir=$1
ip link set lo up
mount --bind "$dir/run" /run
mount --bind "$dir/var-lib" /var/lib
mount --make-rshared /
mkdir -p /run/lock
"#;
