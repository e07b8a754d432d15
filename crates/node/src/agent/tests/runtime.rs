//! A fake runtime on a socket: the few calls of CRI and of containerd's tasks that the executor makes. It can
//! be told to fail or to hang, call by call, and remembers what it was asked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path as Method, State};
use axum::response::Response;
use axum::routing::post;
use containerd_client::services::v1::{GetRequest, GetResponse};
use containerd_client::types::v1::{Process, Status};
use k8s_cri::v1;
use prost::Message;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Code;

use crate::cri::fake::{Say, labels, pod, respond};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    Fails,
    Hangs,
    /// Answers, but later than the executor waits for most calls.
    Slow,
}

/// What `Tasks/Get` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    Running,
    /// As of an unresponsive shim: containerd waits first.
    Unknown,
    /// As of a shim that answers with an error.
    UnknownAtOnce,
    GaveUp,
    Nothing,
}

#[derive(Debug, Default)]
pub(super) struct World {
    /// How it calls itself; containerd where nothing is said.
    pub(super) name: String,
    pub(super) sandboxes: Vec<v1::PodSandbox>,
    /// The second list of sandboxes, where it differs.
    pub(super) sandboxes_again: Option<Vec<v1::PodSandbox>>,
    /// Sandboxes that are known when asked for, though in no list.
    pub(super) hidden: Vec<String>,
    pub(super) containers: Vec<v1::Container>,
    pub(super) tasks: BTreeMap<String, Says>,
    pub(super) wrong: BTreeMap<String, Wrong>,
    /// Calls in order; those that name an object as `Method id`.
    pub(super) calls: Vec<String>,
}

/// The server; it ends with the test's runtime.
#[derive(Clone, Debug)]
pub(super) struct Runtime {
    pub(super) socket: PathBuf,
    world: Arc<Mutex<World>>,
}

impl Runtime {
    pub(super) fn start(socket: PathBuf) -> Self {
        let world = Arc::new(Mutex::new(World::default()));
        let router = Router::new()
            .route("/runtime.v1.RuntimeService/{method}", post(cri))
            .route("/containerd.services.tasks.v1.Tasks/{method}", post(tasks))
            .with_state(Arc::clone(&world));
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let server = tonic::transport::Server::builder().add_routes(tonic::service::Routes::from(router));
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        Self { socket, world }
    }

    pub(super) fn set<T>(&self, change: impl FnOnce(&mut World) -> T) {
        let _ = change(&mut self.world.lock().unwrap());
    }

    pub(super) fn calls(&self) -> Vec<String> {
        self.world.lock().unwrap().calls.clone()
    }

    /// Calls that change something.
    pub(super) fn writes(&self) -> Vec<String> {
        let mut calls = self.calls();
        calls.retain(|call| call.starts_with("Stop") || call.starts_with("Remove"));
        calls
    }
}

async fn cri(State(world): State<Arc<Mutex<World>>>, Method(method): Method<String>, body: Bytes) -> Response {
    let wrong = world.lock().unwrap().wrong.get(&method).copied();
    if wrong == Some(Wrong::Slow) {
        tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    }
    let say = match wrong {
        Some(Wrong::Hangs) => {
            world.lock().unwrap().calls.push(method);
            Say::Never
        }
        Some(Wrong::Fails) => Say::Error(Code::Internal, format!("{method} is told to fail")),
        Some(Wrong::Slow) | None => world.lock().unwrap().cri(&method, &body[5..]).unwrap_or_else(|error| error),
    };
    respond(say).await
}

async fn tasks(State(world): State<Arc<Mutex<World>>>, Method(method): Method<String>, body: Bytes) -> Response {
    let request = GetRequest::decode(&body[5..]).unwrap();
    let says = {
        let mut world = world.lock().unwrap();
        world.calls.push(format!("Tasks{method} {}", request.container_id));
        world.tasks.get(&request.container_id).copied()
    };
    let status = match says {
        None => return respond(Say::Error(Code::NotFound, "no such task".to_owned())).await,
        Some(Says::GaveUp) => {
            return respond(Say::Error(Code::DeadlineExceeded, "context deadline exceeded".to_owned())).await;
        }
        Some(Says::Nothing) => return respond(Say::Never).await,
        Some(Says::Running) => Status::Running,
        Some(Says::Unknown) => {
            // containerd's own limit by default.
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            Status::Unknown
        }
        Some(Says::UnknownAtOnce) => Status::Unknown,
    };
    let process = Process { id: request.container_id, status: status.into(), ..Process::default() };
    respond(Say::message(&GetResponse { process: Some(process) })).await
}

impl World {
    /// The answer to a call; as an error where the object is not known.
    fn cri(&mut self, method: &str, request: &[u8]) -> Result<Say, Say> {
        match method {
            "Version" => {
                let name = if self.name.is_empty() { "containerd" } else { &self.name };
                Ok(Say::message(&v1::VersionResponse { runtime_name: name.to_owned(), ..Default::default() }))
            }
            "ListPodSandbox" => {
                let again = self.calls.iter().any(|call| call == "ListContainers");
                let items = self.sandboxes_again.clone().filter(|_| again).unwrap_or_else(|| self.sandboxes.clone());
                self.calls.push(method.to_owned());
                Ok(Say::message(&v1::ListPodSandboxResponse { items }))
            }
            "ListContainers" => {
                self.calls.push(method.to_owned());
                Ok(Say::message(&v1::ListContainersResponse { containers: self.containers.clone() }))
            }
            "PodSandboxStatus" => {
                let id = v1::PodSandboxStatusRequest::decode(request).unwrap().pod_sandbox_id;
                let known = self.hidden.contains(&id) || self.sandboxes.iter().any(|sandbox| sandbox.id == id);
                let status = v1::PodSandboxStatus { id: id.clone(), ..Default::default() };
                self.found(method, &id, known)?;
                Ok(Say::message(&v1::PodSandboxStatusResponse { status: Some(status), ..Default::default() }))
            }
            "ContainerStatus" => {
                let id = v1::ContainerStatusRequest::decode(request).unwrap().container_id;
                let known = self.containers.iter().any(|container| container.id == id);
                let status = v1::ContainerStatus { id: id.clone(), ..Default::default() };
                self.found(method, &id, known)?;
                Ok(Say::message(&v1::ContainerStatusResponse { status: Some(status), ..Default::default() }))
            }
            "StopContainer" => {
                let id = v1::StopContainerRequest::decode(request).unwrap().container_id;
                self.found(method, &id, true)?;
                Ok(Say::message(&v1::StopContainerResponse {}))
            }
            "RemoveContainer" => {
                let id = v1::RemoveContainerRequest::decode(request).unwrap().container_id;
                self.found(method, &id, true)?;
                self.containers.retain(|container| container.id != id);
                Ok(Say::message(&v1::RemoveContainerResponse {}))
            }
            other => panic!("the executor must not call {other}"),
        }
    }

    fn found(&mut self, method: &str, id: &str, known: bool) -> Result<(), Say> {
        self.calls.push(format!("{method} {id}"));
        if known { Ok(()) } else { Err(Say::Error(Code::NotFound, format!("{id} not found"))) }
    }
}

pub(super) fn sandbox(id: &str, ready: bool) -> v1::PodSandbox {
    let metadata = Some(pod("p", "uid-1", "d", 0));
    v1::PodSandbox { id: id.to_owned(), metadata, state: i32::from(!ready), created_at: 1, ..Default::default() }
}

/// States: 0 created, 1 running, 2 exited, 3 unknown.
pub(super) fn container(id: &str, sandbox: &str, state: i32) -> v1::Container {
    v1::Container {
        id: id.to_owned(),
        pod_sandbox_id: sandbox.to_owned(),
        state,
        created_at: 1,
        metadata: Some(v1::ContainerMetadata { name: "c".to_owned(), attempt: 0 }),
        labels: labels("p", "uid-1", "d", "c"),
        ..Default::default()
    }
}
