//! The stand-in of containerd: CRI and `Tasks/Get` over the table and the shims.
//!
//! Lists and statuses come from the table and answer whatever the shims do; everything that needs a shim asks it and
//! waits, as long as the caller does. Each call is written to a log that the bed can read.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use containerd_client::services::v1::{GetRequest, GetResponse};
use containerd_client::types::v1::{Process, Status as TaskStatus};
use jiff::Timestamp;
use k8s_cri::v1 as cri;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use super::mutant::{Lens, Mutation};
use super::settings::{self, Image, Settings};
use super::table::{Config, KILLED, Object, Standing, Table, nanoseconds};
use super::{ROOT, shim};
use crate::images;

/// Name of the program.
pub const NAME: &str = "containerd";
/// The log of all calls, inside the node.
pub const CALLS: &str = "/run/containerd/calls.log";
/// As long as containerd waits for a shim that is asked for its state.
const SHIM: Duration = Duration::from_secs(2);
/// How often the end of a process is checked for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the end of a killed process may take to show.
const KILL: Duration = Duration::from_secs(10);

pub(super) type Answer<T> = Result<T, Status>;

/// The runtime.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(super) table: Table,
    pub(super) lens: Lens,
}

impl Runtime {
    /// What an earlier process left is taken over, as containerd does.
    pub(super) async fn start(mutation: Option<Mutation>) -> Result<Self> {
        let runtime = Self { lens: Lens::new(mutation), ..Self::open()? };
        if mutation.is_none() {
            runtime.load().await?;
        }
        Ok(runtime)
    }

    /// At its start containerd asks each shim, and gives up what is behind a silent one: it cleans up the containers and
    /// leaves the shim.
    async fn load(&self) -> Result<()> {
        for sandbox in self.table.sandboxes() {
            let known = matches!(self.table.standing(&sandbox)?, Standing::Running(_));
            let asked = format!("state {}", sandbox.id);
            if !known || timeout(SHIM, self.shim(&sandbox.id, &asked)).await.is_ok_and(|said| said.is_ok()) {
                continue;
            }
            for object in self.of_sandbox(&sandbox.id).chain([sandbox.clone()]) {
                if let Standing::Running(process) = self.table.standing(&object)? {
                    process.signal(rustix::process::Signal::KILL)?;
                    self.table.ended(&object.id, KILLED)?;
                }
            }
        }
        Ok(())
    }

    /// One line to a shim, one line back; waits for ever if the shim does.
    async fn shim(&self, sandbox: &str, line: &str) -> Answer<String> {
        let gone = |error: std::io::Error| Status::unknown(format!("shim of {sandbox}: {error}"));
        let mut stream = UnixStream::connect(self.table.shim_socket(sandbox)).await.map_err(gone)?;
        stream.write_all(format!("{line}\n").as_bytes()).await.map_err(gone)?;
        let mut said = String::new();
        BufReader::new(stream).read_line(&mut said).await.map_err(gone)?;
        match said.trim_end() {
            "" => Err(Status::unknown(format!("shim of {sandbox} hung up"))),
            text => text.strip_prefix("error ").map_or_else(|| Ok(text.to_owned()), |why| Err(Status::unknown(why))),
        }
    }

    pub(super) fn standing(&self, object: &Object) -> Answer<Standing> {
        self.table.standing(object).map_err(internal)
    }

    pub(super) fn runs(&self, object: &Object) -> Answer<bool> {
        Ok(matches!(self.standing(object)?, Standing::Running(_)))
    }

    pub(super) fn find(&self, id: &str) -> Answer<Object> {
        self.table.find(id).ok_or_else(|| Status::not_found(format!("{id} is not known")))
    }

    /// One line for each call that names an object.
    fn record(method: &str, id: &str) {
        let line = format!("{} {method} {id}\n", Timestamp::now());
        let log = OpenOptions::new().create(true).append(true).open(CALLS);
        if let Err(error) = log.and_then(|mut log| log.write_all(line.as_bytes())) {
            tracing::warn!(%error, "cannot write {CALLS}");
        }
    }

    pub(super) fn version() -> cri::VersionResponse {
        cri::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: NAME.into(),
            runtime_version: concat!("stand-in-", env!("CARGO_PKG_VERSION")).into(),
            runtime_api_version: "v1".into(),
        }
    }

    pub(super) fn status() -> cri::StatusResponse {
        let condition = |name: &str| cri::RuntimeCondition { r#type: name.into(), status: true, ..Default::default() };
        let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
        cri::StatusResponse { status: Some(cri::RuntimeStatus { conditions }), ..Default::default() }
    }

    pub(super) async fn run_sandbox(&self, asked: cri::RunPodSandboxRequest) -> Answer<cri::RunPodSandboxResponse> {
        let config = asked.config.ok_or_else(|| Status::invalid_argument("no config"))?;
        let settings = Settings::read(Path::new(settings::PATH)).map_err(internal)?;
        let id = new_id(&format!("{:?}", config.metadata));
        let object = Object {
            id: id.clone(),
            sandbox: id.clone(),
            created: nanoseconds(),
            ip: self.table.free_address(&settings.addresses).map_err(internal)?,
            argv: settings.pause.command_line(&[], &[]),
            env: Vec::new(),
            config: Config::Sandbox(Box::new(config)),
        };
        Self::record("RunPodSandbox", &id);
        self.table.add(&object).map_err(internal)?;
        let started = async {
            shim::launch(&self.table, &id).await.map_err(internal)?;
            self.shim(&id, &format!("start {id}")).await
        };
        if let Err(error) = started.await {
            self.table.remove(&id).map_err(internal)?;
            return Err(error);
        }
        Ok(cri::RunPodSandboxResponse { pod_sandbox_id: id })
    }

    pub(super) fn create_container(&self, asked: cri::CreateContainerRequest) -> Answer<cri::CreateContainerResponse> {
        let config = asked.config.ok_or_else(|| Status::invalid_argument("no config"))?;
        let sandbox = self.find(&asked.pod_sandbox_id)?;
        let settings = Settings::read(Path::new(settings::PATH)).map_err(internal)?;
        let wanted = config.image.as_ref().map(|image| image.image.as_str()).unwrap_or_default();
        let image: &Image = settings
            .images
            .get(wanted)
            .ok_or_else(|| Status::not_found(format!("nothing stands in for image {wanted:?}")))?;
        let mut env = image.env.clone();
        env.extend(config.envs.iter().map(|pair| (pair.key.clone(), pair.value.clone())));
        let id = new_id(&format!("{} {:?}", sandbox.id, config.metadata));
        let object = Object {
            id: id.clone(),
            sandbox: sandbox.id,
            created: nanoseconds(),
            ip: sandbox.ip,
            argv: image.command_line(&config.command, &config.args),
            env: env.into_iter().collect(),
            config: Config::Container(Box::new(config)),
        };
        Self::record("CreateContainer", &id);
        self.table.add(&object).map_err(internal)?;
        Ok(cri::CreateContainerResponse { container_id: id })
    }

    pub(super) async fn start_container(
        &self,
        asked: cri::StartContainerRequest,
    ) -> Answer<cri::StartContainerResponse> {
        let object = self.find(&asked.container_id)?;
        Self::record("StartContainer", &object.id);
        self.shim(&object.sandbox, &format!("start {}", object.id)).await?;
        Ok(cri::StartContainerResponse {})
    }

    pub(super) async fn stop_container(&self, asked: cri::StopContainerRequest) -> Answer<cri::StopContainerResponse> {
        // What is gone is stopped, as containerd has it.
        let Some(object) = self.reached("StopContainer", &asked.container_id) else {
            return Ok(cri::StopContainerResponse {});
        };
        self.stop(&object, Duration::from_secs(u64::try_from(asked.timeout).unwrap_or_default())).await?;
        Ok(cri::StopContainerResponse {})
    }

    /// What a call that changes a container is about; `None` when there is nothing to do.
    fn reached(&self, method: &str, id: &str) -> Option<Object> {
        let reached = self.lens.reached(&self.table, id);
        Self::record(method, reached.as_deref().unwrap_or("nothing"));
        self.table.find(&reached?)
    }

    async fn stop(&self, object: &Object, grace: Duration) -> Answer<()> {
        for (signal, wait) in [("TERM", grace), ("KILL", KILL)] {
            if wait.is_zero() {
                continue;
            }
            if !self.runs(object)? {
                return Ok(());
            }
            self.shim(&object.sandbox, &format!("kill {} {signal}", object.id)).await?;
            let end = Instant::now() + wait;
            while Instant::now() < end && self.runs(object)? {
                sleep(POLL_INTERVAL).await;
            }
        }
        if self.runs(object)? { Err(Status::deadline_exceeded(format!("{} does not end", object.id))) } else { Ok(()) }
    }

    pub(super) async fn remove_container(
        &self,
        asked: cri::RemoveContainerRequest,
    ) -> Answer<cri::RemoveContainerResponse> {
        if let Some(object) = self.reached("RemoveContainer", &asked.container_id) {
            self.stop(&object, Duration::ZERO).await?;
            self.table.remove(&object.id).map_err(internal)?;
        }
        Ok(cri::RemoveContainerResponse {})
    }

    fn of_sandbox(&self, sandbox: &str) -> impl Iterator<Item = Object> {
        self.table.containers().into_iter().filter(move |container| container.sandbox == sandbox)
    }

    pub(super) async fn stop_sandbox(&self, asked: cri::StopPodSandboxRequest) -> Answer<cri::StopPodSandboxResponse> {
        let Some(object) = self.table.find(&asked.pod_sandbox_id) else { return Ok(cri::StopPodSandboxResponse {}) };
        Self::record("StopPodSandbox", &object.id);
        for container in self.of_sandbox(&object.id) {
            self.stop(&container, Duration::ZERO).await?;
        }
        self.stop(&object, Duration::ZERO).await?;
        Ok(cri::StopPodSandboxResponse {})
    }

    pub(super) async fn remove_sandbox(
        &self,
        asked: cri::RemovePodSandboxRequest,
    ) -> Answer<cri::RemovePodSandboxResponse> {
        let id = asked.pod_sandbox_id;
        self.stop_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: id.clone() }).await?;
        Self::record("RemovePodSandbox", &id);
        for object in self.of_sandbox(&id) {
            self.table.remove(&object.id).map_err(internal)?;
        }
        self.table.remove(&id).map_err(internal)?;
        Ok(cri::RemovePodSandboxResponse {})
    }

    /// `Tasks/Get`: the shim itself answers, or nobody does, and then containerd says that it does not know.
    pub(super) async fn task(&self, asked: GetRequest) -> Answer<GetResponse> {
        let object = self.find(&asked.container_id)?;
        let Standing::Running(process) = self.standing(&object)? else {
            return Err(Status::not_found(format!("task {} not found", object.id)));
        };
        let asked = format!("state {}", object.id);
        let said = if self.lens.tasks_answer() {
            Ok(Ok("running".to_owned()))
        } else {
            timeout(SHIM, self.shim(&object.sandbox, &asked)).await
        };
        let status = match said.as_ref().map(|said| said.as_deref()) {
            Ok(Ok("running")) => TaskStatus::Running,
            Ok(Ok(_)) => TaskStatus::Stopped,
            Ok(Err(_)) | Err(_) => TaskStatus::Unknown,
        };
        let pid = u32::try_from(process.pid).unwrap_or_default();
        let process = Process { id: object.id, pid, status: status as i32, ..Default::default() };
        Ok(GetResponse { process: Some(process) })
    }

    /// As `ctr tasks kill`: one signal, whatever the process makes of it.
    pub(super) async fn kill_task(&self, id: &str) -> Result<()> {
        let object = self.table.find(id).with_context(|| format!("{id}: not found"))?;
        self.shim(&object.sandbox, &format!("kill {id} KILL")).await.map(drop).or_else(|error| {
            // Nothing runs behind a shim that has ended.
            if self.table.standing(&object).is_ok_and(|s| !matches!(s, Standing::Running(_))) {
                return Ok(());
            }
            Err(anyhow::anyhow!("{}", error.message()))
        })
    }

    /// The table, for `ctr`.
    pub(super) fn open() -> Result<Self> {
        Ok(Self { table: Table::open(Path::new(ROOT))?, lens: Lens::default() })
    }
}

/// 64 hexadecimal digits that nothing else has.
fn new_id(of: &str) -> String {
    images::sha256(format!("{of} {}", Timestamp::now().as_nanosecond()).as_bytes())
}

pub(super) fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("{error:#}"))
}
