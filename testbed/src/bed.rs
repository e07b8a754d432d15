//! A bed: its life from the first namespace to the last removed folder, and how its users reach into it.

use std::{
    fmt::Display,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node as ApiNode;
use kube::{
    Client, Config,
    api::{Api, ListParams},
};
use serde_json::Value;

use crate::{
    assets,
    audit::{self, AuditEntry},
    cgroup,
    client::{config, on_network},
    kwok,
    node::Node,
    process::{self, wait_until},
    realm::{self, Realm, Tether, output, output_of},
    state::{self, State},
    wait::{ENDS, SOON},
};

/// A running bed. Dropping it takes it down, unless it is kept.
#[derive(Debug)]
pub struct Bed {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) tether: Option<Tether>,
    /// The owner's mark on the bed's folder.
    pub(crate) mark: Option<File>,
    pub(crate) down: bool,
}

impl Bed {
    /// Takes hold of a kept bed.
    pub fn attach(name: &str) -> Result<Self> {
        let state = State::load(name)?;
        ensure!(state.realm.init.alive(), "bed {name:?} has ended");
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

    /// Takes the power away from a machine and gives it back; waits until it takes commands.
    ///
    /// # Errors
    /// When there is no such machine, or it does not boot.
    pub fn cut_power(&mut self, name: &str) -> Result<()> {
        let node = self.state.nodes.iter_mut().find(|node| node.name == name);
        node.with_context(|| format!("no node {name:?}"))?.cut_power()?;
        self.state.save(&self.name)
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

    /// The admin's kubeconfig with other credentials.
    pub fn kubeconfig(&self, user: Value) -> Result<Value> {
        let mut config: Value = serde_saphyr::from_str(&fs::read_to_string(self.kubeconfig_path())?)?;
        *config.pointer_mut("/users/0/user").context("a user in the admin's kubeconfig")? = user;
        Ok(config)
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
        output_of(self.command("kubectl").args(args), realm::input(input)?)
    }

    /// Applies a manifest.
    pub fn apply(&self, manifest: &(impl Display + ?Sized)) -> Result<()> {
        self.kubectl_input(&["apply", "-f", "-"], &manifest.to_string()).map(drop)
    }

    /// The answer of `kubectl get`, as JSON.
    pub fn get(&self, what: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.kubectl(&[&["get", "-o", "json"], what].concat())?)?)
    }

    /// All requests to the API server so far, in the order of arrival.
    pub fn audit(&self) -> Result<Vec<AuditEntry>> {
        audit::read(&self.dir().join("audit.log"))
    }

    /// Adds simulated nodes; returns when they are made, not when they are Ready.
    pub fn add_kwok_nodes(&self, count: usize) -> Result<()> {
        assets::ensure(&[assets::KWOK])?;
        let log = self.dir().join("logs/kwok.log");
        if !log.exists() {
            let kubeconfig = self.dir().join("pki/kwok.kubeconfig");
            let stages = self.dir().join("kwok-stages.yaml");
            fs::write(&stages, kwok::STAGES)?;
            self.state.realm.daemon(&log, &kwok::argv(&kubeconfig, &stages))?;
        }
        self.run(async move |client| {
            let nodes: Api<ApiNode> = Api::all(client.clone());
            let present = nodes.list_metadata(&ListParams::default().labels(kwok::SIMULATED)).await?.items.len();
            kwok::create(client, present + 1, count).await
        })
    }

    /// Waits until at least `count` nodes are Ready.
    pub fn wait_ready(&self, count: usize) -> Result<()> {
        let end = Instant::now() + SOON;
        self.run(async move |client| {
            let api: Api<ApiNode> = Api::all(client);
            loop {
                let nodes = api.list(&ListParams::default()).await?;
                let ready = nodes.items.iter().filter(|node| is_ready(node)).count();
                if ready >= count {
                    return Ok(());
                }
                if Instant::now() > end {
                    bail!("{ready} of {count} nodes Ready after {SOON:?}");
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
        self.nodes().iter().for_each(Node::fetch_logs);
        for entry in fs::read_dir(self.dir())?.flatten() {
            let logs = entry.path().join("var-log");
            if !logs.is_dir() {
                continue;
            }
            let own = target.join(entry.file_name());
            fs::create_dir_all(&own)?;
            copy_files(&logs, &own)?;
        }
        Ok(target)
    }

    /// Takes the bed down and checks that nothing of it is left.
    pub fn down(mut self) -> Result<()> {
        self.end()
    }

    pub(crate) fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.down, true) {
            return Ok(());
        }
        // Held open, its identity cannot pass on to a new one; an init that is gone has taken everything along already.
        let init = self.state.realm.init;
        let pinned = File::open(format!("/proc/{}/ns/net", init.pid)).ok().filter(|_| init.alive());
        let network = if pinned.is_some() { self.state.network.as_str() } else { "" };
        cgroup::thaw(&self.name)?;
        self.state.realm.kill()?;
        if let Some(tether) = self.tether.take() {
            tether.cut();
        }
        // The kernel ends them all at once, but not in no time.
        wait_until(ENDS, || process::members("net", network).is_empty());
        cgroup::remove(&self.name)?;
        let left = state::leftovers(&self.name, network);
        ensure!(left.is_empty(), "left behind by bed {}: {}", self.name, left.join(", "));
        state::release(&self.name)
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
        // Who only looks in (`attach`) must not end what belongs to another process.
        if self.down || self.mark.is_none() {
            return;
        }
        if self.state.keep {
            if let Some(tether) = self.tether.take() {
                tether.forget();
            }
            return;
        }
        if std::thread::panicking()
            && let Ok(path) = self.save_logs()
        {
            eprintln!("testbed: logs of bed {} are in {}", self.name, path.display());
        }
        if let Err(error) = self.end() {
            eprintln!("testbed: {error:#}");
        }
        drop(self.mark.take());
    }
}

fn is_ready(node: &ApiNode) -> bool {
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
