//! The controller as shipped: its release binary as a process of its own, with the rights of its own account.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::config::AuthInfo;
use kube::{Client, Config};
use nrh_testbed::process::Identity;
use nrh_testbed::{Bed, operator};
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::meters;

/// Who the controller is to the API server.
pub const USER: &str = "system:serviceaccount:nrh-system:nrh-controller";
/// The most that the flag takes: the ledger has so many slots.
pub const CEILING: usize = 1_000;
/// How long it may take to lead: a Lease of one that was killed runs out before.
const LEADS: Duration = Duration::from_mins(1);
/// How long it may take to end when it is told to.
const ENDS: Duration = Duration::from_secs(20);

/// How a controller is started on a bed.
#[derive(Debug)]
pub struct Program {
    nrh: PathBuf,
    kubeconfig: PathBuf,
    token: String,
    /// `NAME=value` of each variable that its Deployment sets to a fixed value.
    variables: Vec<String>,
}

/// One that runs.
#[derive(Debug)]
pub struct Engine {
    process: Identity,
    /// Where it serves its metrics.
    pub port: u16,
    /// When its process was started.
    pub started: Instant,
}

impl Program {
    /// Its program, and a kubeconfig with the token of its account in place of the admin's certificate.
    pub fn new(bed: &Bed, nrh: &Path) -> Result<Self> {
        let token = operator::controllers_token(bed, "bench", operator::IMAGE)?;
        let config = bed.kubeconfig(json!({"token": token}))?;
        let kubeconfig = bed.dir().join("controller.kubeconfig");
        std::fs::write(&kubeconfig, config.to_string())?;
        Ok(Self { nrh: nrh.to_owned(), kubeconfig, token, variables: variables(bed)? })
    }

    /// A client with the controller's rights, inside [`Bed::run`].
    pub fn client(&self, mut config: Config) -> Result<Client> {
        config.auth_info = AuthInfo { token: Some(self.token.clone().into()), ..AuthInfo::default() };
        Ok(Client::try_from(config)?)
    }

    /// Starts one inside the bed, so that it ends with the bed at the latest.
    pub fn start(&self, bed: &Bed, name: &str, port: u16) -> Result<Engine> {
        let started = Instant::now();
        let kubeconfig = format!("KUBECONFIG={}", self.kubeconfig.display());
        let (program, listen) = (self.nrh.display().to_string(), format!("127.0.0.1:{port}"));
        let ceiling = CEILING.to_string();
        let mut argv = vec!["env", &kubeconfig, "NRH_LOG=warn"];
        argv.extend(self.variables.iter().map(String::as_str));
        argv.extend([&program, "controller", "--image", operator::IMAGE, "--listen", &listen, "--identity", name]);
        argv.extend(["--health-listen", "127.0.0.1:0", "--metrics-auth", "false", "--max-in-flight", &ceiling]);
        let argv: Vec<String> = argv.into_iter().map(str::to_owned).collect();
        let log = bed.dir().join(format!("logs/{name}.log"));
        let process = bed.realm().daemon(&log, &argv)?;
        Ok(Engine { process, port, started })
    }
}

impl Engine {
    /// Resident memory in MiB, now and at its peak.
    pub fn memory(&self) -> Result<(f64, f64)> {
        Ok((meters::memory(self.process.pid, "VmRSS")?, meters::memory(self.process.pid, "VmHWM")?))
    }

    /// CPU time in milliseconds since its start.
    pub fn cpu(&self) -> Result<u64> {
        meters::cpu(self.process.pid)
    }

    /// It is told to end, and gives its Lease back.
    pub fn stop(self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        ensure!(self.process.wait_gone(ENDS), "the controller has not ended within {} s of SIGTERM", ENDS.as_secs());
        Ok(())
    }

    /// It dies without a word.
    pub fn kill(self) -> Result<Instant> {
        let at = Instant::now();
        self.process.signal(Signal::KILL)?;
        ensure!(self.process.wait_gone(ENDS), "the controller has not ended within {} s of SIGKILL", ENDS.as_secs());
        Ok(at)
    }

    async fn metrics(&self) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    /// Waits until it has decided once on all of `nodes`; how long that took since its start.
    pub async fn first_plan(&self, nodes: usize) -> Result<Duration> {
        loop {
            let text = self.metrics().await.unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "a count of nodes")]
            if sum(&text, "nrh_nodes") >= nodes as f64 {
                return Ok(self.started.elapsed());
            }
            ensure!(self.process.alive(), "the controller has ended: see its log in the bed's folder");
            let late = format!("the controller has made no plan of {nodes} nodes within {} s", LEADS.as_secs());
            ensure!(self.started.elapsed() < LEADS, late);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// What the Deployment sets in its container, what is taken from the pod aside.
fn variables(bed: &Bed) -> Result<Vec<String>> {
    let deployment = bed.get(&["deployment", "nrh-controller", "-n", "nrh-system"])?;
    let deployment: Deployment = serde_json::from_value(deployment)?;
    let pod = deployment.spec.and_then(|spec| spec.template.spec).context("the Deployment has no pod template")?;
    let all = pod
        .containers
        .into_iter()
        .filter(|container| container.name == "controller")
        .flat_map(|c| c.env.unwrap_or_default());
    let fixed: Vec<String> =
        all.filter_map(|variable| Some(format!("{}={}", variable.name, variable.value?))).collect();
    ensure!(!fixed.is_empty(), "container controller of the Deployment nrh-controller sets no variable");
    Ok(fixed)
}

/// Sum of a metric over its labels.
fn sum(text: &str, name: &str) -> f64 {
    let of = |line: &str| {
        let rest = line.strip_prefix(name)?;
        (rest.starts_with('{') || rest.starts_with(' ')).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
    };
    text.lines().filter_map(of).sum()
}
