//! A bed: its life from the first namespace to the last removed folder, and how its users reach into it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use kube::{Client, Config, api::Api, config::KubeConfigOptions};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{
    assets,
    audit::{self, AuditEntry},
    control_plane::ControlPlane,
    images, kwok, network,
    node::{KubeletStart, Node, Parts},
    packages,
    pki::Pki,
    process::{self, wait_until},
    realm::{self, Realm, Tether, output},
    state::{self, State},
};

/// How long real nodes may take to become Ready; they need a few seconds.
const NODES_READY: Duration = Duration::from_secs(120);

/// What a bed shall have.
#[derive(Debug, Clone)]
pub struct BedOptions {
    /// Name; beds of different processes never meet unless they are kept, when the name must be free.
    pub name: String,
    /// Number of real nodes.
    pub nodes: usize,
    /// No nodes, and none of what they need.
    pub control_plane_only: bool,
    /// Leave it running when its owner ends; end it with `testbed down`.
    pub keep: bool,
    /// Say on stderr what takes time.
    pub progress: bool,
    /// How long a node may be silent before it counts as gone; `None` is Kubernetes' default. Thousands of simulated nodes
    /// on a small machine need minutes.
    pub node_monitor_grace: Option<Duration>,
}

impl Default for BedOptions {
    fn default() -> Self {
        Self {
            name: "bed".into(),
            nodes: 2,
            control_plane_only: false,
            keep: false,
            progress: true,
            node_monitor_grace: None,
        }
    }
}

/// A running bed. Dropping it takes it down, unless it is kept.
#[derive(Debug)]
pub struct Bed {
    name: String,
    state: State,
    tether: Option<Tether>,
    /// The owner's mark on the bed's folder.
    mark: Option<File>,
    down: bool,
}

impl Bed {
    /// Brings a bed up: builds and installs what is missing, starts everything, waits until the nodes are Ready.
    pub fn up(options: BedOptions) -> Result<Self> {
        let nodes = if options.control_plane_only { 0 } else { u8::try_from(options.nodes).context("too many nodes")? };
        if !rustix::process::geteuid().is_root() {
            bail!("a bed needs root: it makes network, mount and pid namespaces and runs a container runtime");
        }
        let said = Progress::new(options.progress);
        packages::ensure(packages::BED, options.progress)?;
        let mut tools = vec![assets::CONTROL_PLANE];
        if nodes > 0 {
            packages::ensure(packages::NODE, options.progress)?;
            tools.push(assets::NODE);
        }
        let path = assets::ensure(&tools, options.progress)?;
        // Made before anything runs: a compiler beside a starting control plane makes both slow.
        let programs = if nodes > 0 { Some(Programs { workload: images::workload_binary(&state::workspace())?, testbed: program()? }) } else { None };
        said.step("programs");

        let name = if options.keep { options.name.clone() } else { format!("{}-{}", options.name, std::process::id()) };
        let mark = state::claim(&name)?;
        let dir = state::folder(&name);
        let (realm, tether) = realm::launch(options.keep, &dir.join("logs/init.log"), &path)?;
        let network = process::namespace(realm.init.pid, "net").context("the bed's network")?;
        let state = State { realm, network, keep: options.keep, nodes: Vec::new(), kubeconfig: PathBuf::new() };
        // From here on an error or a panic takes down what is there.
        let mut bed = Self { name, state, tether: Some(tether), mark: Some(mark), down: false };
        if let Err(error) = bed.start(&options, nodes, programs.as_ref(), &said) {
            let error = bed.failed(error);
            // Half a bed is of no use to anybody.
            bed.end()?;
            return Err(error);
        }
        Ok(bed)
    }

    fn start(&mut self, options: &BedOptions, nodes: u8, programs: Option<&Programs>, said: &Progress) -> Result<()> {
        let dir = self.dir();
        self.state.save(&self.name)?;
        network::set_up(&self.state.realm, nodes)?;
        let pki = Pki::create(&dir.join("pki"))?;
        pki.kubeconfig("kwok", "kwok", Some("system:masters"))?;
        let kubeconfigs: Vec<_> = (1..=nodes).map(|n| pki.node_kubeconfig(&Node::name_of(n))).collect::<Result<_>>()?;
        let realm = &self.state.realm;
        let control_plane = ControlPlane { realm, dir: &dir, pki: &pki, node_monitor_grace: options.node_monitor_grace };
        let make = |number: u8, kubeconfig: &Path, made: &Made<'_>| {
            let name = &self.name;
            let node = Node::create(&Parts { bed: name, outer: realm, dir: &dir, number, kubeconfig, ca: &made.ca, workload: made.workload, testbed: &made.testbed })?;
            node.start_containerd()?;
            made.archives.iter().try_for_each(|archive| images::import(&node, archive))?;
            Ok::<_, anyhow::Error>(node)
        };
        let made = programs.map(|programs| Made::new(programs, &dir, &pki)).transpose()?;
        // Runtimes start beside the control plane: it waits more than it works.
        let (control_plane, nodes) = std::thread::scope(|scope| {
            let nodes: Vec<_> = made.iter().flat_map(|made| (1..).zip(&kubeconfigs).map(move |(n, k)| (n, k, made)))
                .map(|(number, kubeconfig, made)| scope.spawn(move || make(number, kubeconfig, made)))
                .collect();
            let control_plane = control_plane.start();
            said.step("control plane");
            let nodes = nodes.into_iter().map(|node| node.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            (control_plane, nodes.collect::<Result<Vec<_>>>())
        });
        self.state.kubeconfig = control_plane?;
        self.state.nodes = nodes?;
        self.state.save(&self.name)?;
        self.nodes().iter().try_for_each(|node| node.start_kubelet(KubeletStart::default()))?;
        self.wait_ready(self.nodes().len(), NODES_READY)?;
        if !self.nodes().is_empty() {
            said.step("nodes");
        }
        Ok(())
    }

    /// Keeps the logs of a bed that did not come up and says where they are.
    fn failed(&self, error: anyhow::Error) -> anyhow::Error {
        match self.save_logs() {
            Ok(path) => error.context(format!("bed {} did not come up, its logs are in {}", self.name, path.display())),
            Err(_) => error,
        }
    }

    /// Takes hold of a kept bed.
    pub fn attach(name: &str) -> Result<Self> {
        let state = State::load(name)?;
        if !state.realm.alive() {
            bail!("bed {name:?} has ended");
        }
        Ok(Self { name: name.into(), state, tether: None, mark: None, down: false })
    }

    /// Full name of the bed.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The real nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.state.nodes
    }

    /// The real node with a name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        self.nodes().iter().find(|n| n.name == name).with_context(|| format!("no node {name:?}"))
    }

    /// The bed's outer realm, where the control plane lives.
    pub fn realm(&self) -> &Realm {
        &self.state.realm
    }

    /// Folder of the bed, removed with it.
    pub fn dir(&self) -> PathBuf {
        state::folder(&self.name)
    }

    /// The admin's kubeconfig; its server is reachable from within the bed's network only.
    pub fn kubeconfig_path(&self) -> &Path {
        &self.state.kubeconfig
    }

    /// Configuration of an admin's client, for use inside [`Bed::run`].
    pub async fn client_config(&self) -> Result<Config> {
        config(self.kubeconfig_path()).await
    }

    /// Runs a future with an admin's client on a thread that has entered the bed's network.
    pub fn run<T: Send>(&self, work: impl AsyncFnOnce(Client) -> Result<T> + Send) -> Result<T> {
        on_network(self.state.realm.init.pid, self.kubeconfig_path(), work)
    }

    /// A command in the bed's network, with the caller's files, the bed's programs and the admin's kubeconfig.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.state.realm.network_command(program);
        command.env("KUBECONFIG", self.kubeconfig_path());
        command
    }

    /// Runs `kubectl` to its end and returns what it prints.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        output(self.command("kubectl").args(args))
    }

    /// Runs `kubectl` with a text on its input (`apply -f -`).
    pub fn kubectl_input(&self, args: &[&str], input: &str) -> Result<String> {
        let path = tempfile::NamedTempFile::new()?;
        fs::write(path.path(), input)?;
        let mut command = self.command("kubectl");
        let result = command.args(args).stdin(Stdio::from(File::open(path.path())?)).output()?;
        if result.status.success() {
            return Ok(String::from_utf8_lossy(&result.stdout).into_owned());
        }
        bail!("kubectl {}: {}", args.join(" "), String::from_utf8_lossy(&result.stderr).trim())
    }

    /// All requests to the API server so far, in the order of arrival.
    pub fn audit(&self) -> Result<Vec<AuditEntry>> {
        audit::read(&self.dir().join("audit.log"))
    }

    /// Adds simulated nodes; returns when they are made, not when they are Ready.
    pub fn add_kwok_nodes(&self, count: usize) -> Result<()> {
        assets::ensure(&[assets::KWOK], true)?;
        let log = self.dir().join("logs/kwok.log");
        if !log.exists() {
            let kubeconfig = self.dir().join("pki/kwok.kubeconfig");
            let stages = self.dir().join("kwok-stages.yaml");
            fs::write(&stages, kwok::STAGES)?;
            self.state.realm.daemon(&log, &kwok::argv(&kubeconfig, &stages))?;
        }
        self.run(async move |client| {
            let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client.clone());
            let present = nodes.list_metadata(&kube::api::ListParams::default().labels("type=kwok")).await?.items.len();
            kwok::create(client, present + 1, count).await
        })
    }

    /// Waits until at least `count` nodes are Ready.
    pub fn wait_ready(&self, count: usize, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        self.run(async move |client| {
            let api: Api<k8s_openapi::api::core::v1::Node> = Api::all(client);
            loop {
                let nodes = api.list(&kube::api::ListParams::default()).await?;
                let ready = nodes.items.iter().filter(|node| is_ready(node)).count();
                if ready >= count {
                    return Ok(());
                }
                if Instant::now() > end {
                    bail!("{ready} of {count} nodes Ready after {limit:?}");
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        })
    }

    /// Copies all logs to where they survive the bed.
    pub fn save_logs(&self) -> Result<PathBuf> {
        let target = state::logs(&self.name);
        fs::create_dir_all(&target)?;
        copy_files(&self.dir().join("logs"), &target)?;
        for number in 1..=u8::MAX {
            let node = self.dir().join(Node::name_of(number));
            if !node.exists() {
                break;
            }
            let own = target.join(Node::name_of(number));
            fs::create_dir_all(&own)?;
            copy_files(&node.join("var-log"), &own)?;
        }
        Ok(target)
    }

    /// Takes the bed down and checks that nothing of it is left.
    pub fn down(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.down, true) {
            return Ok(());
        }
        // Held open, its identity cannot pass on to a new one; an init that is gone has taken everything along already.
        let pinned = File::open(format!("/proc/{}/ns/net", self.state.realm.init.pid)).ok().filter(|_| self.state.realm.alive());
        let network = if pinned.is_some() { self.state.network.as_str() } else { "" };
        self.state.realm.kill()?;
        if let Some(tether) = self.tether.take() {
            tether.cut();
        }
        // The kernel ends them all at once, but not in no time.
        wait_until(Duration::from_secs(20), || process::members("net", network).is_empty());
        crate::cgroup::remove(&self.name)?;
        let left = state::leftovers(&self.name, network);
        if !left.is_empty() {
            bail!("left behind by bed {}: {}", self.name, left.join(", "));
        }
        state::remove_folder(&self.dir())
    }

    /// What is left of a bed after its end, for tests: one line each.
    ///
    /// The kernel gives the identity of a network to a new one once nobody holds it open.
    pub fn leftovers(name: &str, network: &str) -> Vec<String> {
        let mut found = state::leftovers(name, network);
        found.extend(state::folder(name).exists().then(|| format!("folder {}", state::folder(name).display())));
        found
    }

    /// The bed's network; as long as it is open its identity is not given to another.
    pub fn network(&self) -> Result<File> {
        File::open(format!("/proc/{}/ns/net", self.state.realm.init.pid)).context("the bed has ended")
    }

    /// Identity of the bed's network, such as `net:[4026532201]`.
    pub fn network_id(&self) -> &str {
        &self.state.network
    }

    /// Names of all beds.
    pub fn names() -> Vec<String> {
        state::names()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if self.down {
            return;
        }
        if self.state.keep {
            if let Some(tether) = self.tether.take() {
                tether.forget();
            }
            return;
        }
        if std::thread::panicking() && let Ok(path) = self.save_logs() {
            eprintln!("testbed: logs of bed {} are in {}", self.name, path.display());
        }
        if let Err(error) = self.end() {
            eprintln!("testbed: {error:#}");
        }
        drop(self.mark.take());
    }
}

/// The project's own programs that nodes need.
struct Programs {
    workload: PathBuf,
    testbed: PathBuf,
}

/// What all nodes of a bed are made from.
struct Made<'a> {
    workload: &'a Path,
    testbed: PathBuf,
    ca: String,
    archives: Vec<PathBuf>,
}

impl<'a> Made<'a> {
    fn new(programs: &'a Programs, dir: &Path, pki: &Pki) -> Result<Self> {
        let testbed = dir.join("testbed");
        // A copy: the original may be built anew while a kept bed runs.
        fs::copy(&programs.testbed, &testbed)?;
        let archives = images::bed_images(&programs.workload, &dir.join("images"))?;
        Ok(Self { workload: &programs.workload, testbed, ca: fs::read_to_string(pki.path("ca.crt"))?, archives })
    }
}

fn is_ready(node: &k8s_openapi::api::core::v1::Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// Copies the plain files of a folder.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)?.flatten() {
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// The test bed's own program, which nodes run as their supervisor.
fn program() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("CARGO_BIN_EXE_testbed") {
        return Ok(given.into());
    }
    let own = std::env::current_exe()?;
    if own.file_name().is_some_and(|n| n == "testbed") {
        return Ok(own);
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(state::workspace()).args(["build", "--locked", "--package", "nrh-testbed", "--bin", "testbed"]);
    output(&mut cargo).context("build the test bed's own program")?;
    Ok(state::target().join("debug/testbed"))
}

async fn config(kubeconfig: &Path) -> Result<Config> {
    let read = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    // The bed has no way out, so a proxy of the surroundings can only break things.
    config.proxy_url = None;
    Ok(config)
}

/// Runs a future with a client on a thread that has entered the network of a process.
pub(crate) fn on_network<T: Send>(pid: i32, kubeconfig: &Path, work: impl AsyncFnOnce(Client) -> Result<T> + Send) -> Result<T> {
    let namespace = File::open(format!("/proc/{pid}/ns/net")).context("the bed has ended")?;
    let entered = move || -> Result<T> {
        // Only this thread moves; it ends with the work, so nothing has to move back.
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { work(Client::try_from(config(kubeconfig).await?)?).await })
    };
    let result = std::thread::scope(|scope| scope.spawn(entered).join());
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Says on stderr what took how long.
struct Progress {
    shown: bool,
    last: std::cell::Cell<Instant>,
}

impl Progress {
    fn new(shown: bool) -> Self {
        Self { shown, last: std::cell::Cell::new(Instant::now()) }
    }

    fn step(&self, what: &str) {
        let took = self.last.replace(Instant::now()).elapsed();
        if self.shown {
            eprintln!("testbed: {what} ready in {took:.1?}");
        }
    }
}
