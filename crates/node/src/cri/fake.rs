//! A runtime for tests, on a real socket. It has the objects that a test sets, and gives other answers, also broken
//! ones, where a test tells it to.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use containerd_client::services::v1::{GetRequest, GetResponse};
use containerd_client::types::v1::Process;
use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use k8s_cri::v1;
use prost::Message;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Code;

/// What the fake does with one call.
#[derive(Clone, Debug)]
pub(crate) enum Say {
    Answer(Vec<u8>),
    Error(Code, String),
    Late(Duration, Box<Self>),
    Never,
    /// Begins an answer and never ends it.
    Endless,
    /// Announces a longer answer than it sends, then ends without an error.
    Short,
    /// Breaks the stream in the middle of an answer.
    Broken,
    /// Announces an answer of 17 MiB, and sends it.
    Huge,
    /// Sends bytes that are not a message.
    Garbage,
}

impl Say {
    pub(crate) fn message(message: &impl Message) -> Self {
        Self::Answer(message.encode_to_vec())
    }
}

/// One call as `Method`, or `Method:id` where it names an object.
#[derive(Debug)]
struct Call {
    name: String,
    /// Lives until its answer has ended or nobody waits for it.
    out: Weak<()>,
}

impl Call {
    fn is(&self, what: &str) -> bool {
        self.name.strip_prefix(what).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }
}

/// The objects of the runtime, the answers that a test has set, and the calls so far.
#[derive(Debug, Default)]
pub(crate) struct World {
    name: String,
    pub(crate) sandboxes: Vec<v1::PodSandbox>,
    /// Swapped with `sandboxes` at each list of containers, and stays so until the next.
    pub(crate) sandboxes_again: Option<Vec<v1::PodSandbox>>,
    pub(crate) containers: Vec<v1::Container>,
    /// By method, or `Method:id` for one object.
    says: BTreeMap<String, Say>,
    calls: Vec<Call>,
}

impl World {
    /// The answer to a call for which no answer is set.
    fn answer(&mut self, method: &str, id: &str) -> Say {
        let not_found = || Say::Error(Code::NotFound, format!("{id} not found"));
        match method {
            "Version" => Say::message(&v1::VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: self.name.clone(),
                runtime_version: "1.6.20".to_owned(),
                runtime_api_version: "v1".to_owned(),
            }),
            "ListPodSandbox" => Say::message(&v1::ListPodSandboxResponse { items: self.sandboxes.clone() }),
            "ListContainers" => {
                if let Some(again) = &mut self.sandboxes_again {
                    std::mem::swap(&mut self.sandboxes, again);
                }
                Say::message(&v1::ListContainersResponse { containers: self.containers.clone() })
            }
            "PodSandboxStatus" => {
                let known = self.sandboxes.iter().find(|sandbox| sandbox.id == id);
                known.map_or_else(not_found, |sandbox| sandbox_status(sandbox.state))
            }
            "ContainerStatus" => {
                let known = self.containers.iter().find(|container| container.id == id);
                known.map_or_else(not_found, |container| container_status(container.state))
            }
            "StopContainer" => Say::message(&v1::StopContainerResponse {}),
            "RemoveContainer" => {
                self.containers.retain(|container| container.id != id);
                Say::message(&v1::RemoveContainerResponse {})
            }
            _ => Say::Error(Code::Unimplemented, format!("no answer is set for {method} {id}")),
        }
    }
}

/// The running fake. It ends, and its socket with it, when this is dropped.
#[derive(Debug)]
pub(crate) struct Fake {
    world: Arc<Mutex<World>>,
    folder: tempfile::TempDir,
    /// Its own async runtime: its end cuts every connection, as the end of a process would.
    server: Option<Runtime>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Fake {
    /// A healthy containerd without pods.
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let world = Arc::new(Mutex::new(World::default()));
        let server = serve(&world, &folder.path().join("runtime.sock"));
        let fake = Self { world, folder, server: Some(server) };
        fake.name("containerd");
        fake.network(true, "", "");
        fake
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("runtime.sock")
    }

    /// Ends the server: open connections break, and the socket disappears.
    pub(crate) fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
        let _ = std::fs::remove_file(self.socket());
    }

    pub(crate) fn restart(&mut self) {
        self.server = Some(serve(&self.world, &self.socket()));
    }

    pub(crate) fn name(&self, name: &str) {
        self.set(|world| name.clone_into(&mut world.name));
    }

    pub(crate) fn network(&self, status: bool, reason: &str, message: &str) {
        let condition = |kind: &str, status, reason: &str, message: &str| v1::RuntimeCondition {
            r#type: kind.to_owned(),
            status,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let conditions =
            vec![condition("RuntimeReady", true, "", ""), condition("NetworkReady", status, reason, message)];
        let answer =
            v1::StatusResponse { status: Some(v1::RuntimeStatus { conditions }), ..v1::StatusResponse::default() };
        self.say("Status", Say::message(&answer));
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut World)) {
        change(&mut self.world.lock().unwrap());
    }

    /// Sets the answer to `what` from now on: a method, or `Method:id` for one object.
    pub(crate) fn say(&self, what: &str, say: Say) {
        self.world.lock().unwrap().says.insert(what.to_owned(), say);
    }

    /// Takes back what was set with [`Self::say`].
    pub(crate) fn unsay(&self, what: &str) {
        self.world.lock().unwrap().says.remove(what);
    }

    /// Ready sandboxes by id, and running containers by id and sandbox.
    pub(crate) fn lists(&self, sandboxes: &[&str], containers: &[(&str, &str)]) {
        self.set(|world| {
            world.sandboxes = sandboxes.iter().map(|id| sandbox(id)).collect();
            world.containers = containers.iter().map(|(id, sandbox)| container(id, sandbox)).collect();
        });
    }

    pub(crate) fn calls(&self, what: &str) -> usize {
        self.world.lock().unwrap().calls.iter().filter(|call| call.is(what)).count()
    }

    pub(crate) fn out(&self, what: &str) -> usize {
        let is_out = |call: &&Call| call.is(what) && call.out.strong_count() > 0;
        self.world.lock().unwrap().calls.iter().filter(is_out).count()
    }

    /// Calls that change something, in order.
    pub(crate) fn writes(&self) -> Vec<String> {
        let is_write = |call: &&Call| call.is("StopContainer") || call.is("RemoveContainer");
        self.world.lock().unwrap().calls.iter().filter(is_write).map(|call| call.name.clone()).collect()
    }
}

/// What a sandbox says of its pod.
pub(crate) fn pod(name: &str, uid: &str, namespace: &str, attempt: u32) -> v1::PodSandboxMetadata {
    let [name, uid, namespace] = [name, uid, namespace].map(str::to_owned);
    v1::PodSandboxMetadata { name, uid, namespace, attempt }
}

/// The labels that a kubelet gives a container of this pod.
pub(crate) fn labels(pod: &str, uid: &str, namespace: &str, name: &str) -> HashMap<String, String> {
    let all = [("pod.name", pod), ("pod.uid", uid), ("pod.namespace", namespace), ("container.name", name)];
    all.map(|(key, value)| (format!("io.kubernetes.{key}"), value.to_owned())).into()
}

pub(crate) fn sandbox(id: &str) -> v1::PodSandbox {
    let metadata = Some(pod(&format!("pod-of-{id}"), &format!("uid-of-{id}"), "shop", 0));
    v1::PodSandbox { id: id.to_owned(), metadata, state: 0, ..v1::PodSandbox::default() }
}

pub(crate) fn container(id: &str, sandbox: &str) -> v1::Container {
    v1::Container {
        id: id.to_owned(),
        pod_sandbox_id: sandbox.to_owned(),
        state: v1::ContainerState::ContainerRunning as i32,
        labels: labels(&format!("pod-of-{sandbox}"), &format!("uid-of-{sandbox}"), "shop", "app"),
        ..v1::Container::default()
    }
}

fn container_status(state: i32) -> Say {
    let status = Some(v1::ContainerStatus { state, ..v1::ContainerStatus::default() });
    Say::message(&v1::ContainerStatusResponse { status, info: [].into() })
}

/// 0 = ready, 1 = not ready.
pub(crate) fn sandbox_status(state: i32) -> Say {
    let status = Some(v1::PodSandboxStatus { state, ..v1::PodSandboxStatus::default() });
    Say::message(&v1::PodSandboxStatusResponse { status, ..v1::PodSandboxStatusResponse::default() })
}

/// containerd's answer for a task in this state (0 = unknown, 2 = running).
pub(crate) fn task(status: i32) -> Say {
    Say::message(&GetResponse { process: Some(Process { status, ..Process::default() }) })
}

fn serve(world: &Arc<Mutex<World>>, socket: &Path) -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let world = Arc::clone(world);
    let router = axum::Router::new().fallback(move |request: Request| answer(Arc::clone(&world), request));
    let service = tonic::service::Routes::from(router);
    let entered = runtime.enter();
    let listener = UnixListener::bind(socket).unwrap();
    drop(entered);
    runtime.spawn(async move {
        let server = tonic::transport::Server::builder().add_routes(service);
        server.serve_with_incoming(UnixListenerStream::new(listener)).await
    });
    runtime
}

/// The id that a request names, if it names one.
fn id_of(method: &str, body: &[u8]) -> Option<String> {
    let message = body.get(5..)?;
    Some(match method {
        "Get" => GetRequest::decode(message).ok()?.container_id,
        "ContainerStatus" => v1::ContainerStatusRequest::decode(message).ok()?.container_id,
        "PodSandboxStatus" => v1::PodSandboxStatusRequest::decode(message).ok()?.pod_sandbox_id,
        "RemoveContainer" => v1::RemoveContainerRequest::decode(message).ok()?.container_id,
        "StopContainer" => v1::StopContainerRequest::decode(message).ok()?.container_id,
        _ => return None,
    })
}

async fn answer(world: Arc<Mutex<World>>, request: Request) -> Response {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let namespace = request.headers().get("containerd-namespace").cloned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let id = id_of(&method, &body).unwrap_or_default();
    let name = if id.is_empty() { method.clone() } else { format!("{method}:{id}") };
    let out = Arc::new(());
    let say = {
        let mut world = world.lock().unwrap();
        let set = world.says.get(&name).or_else(|| world.says.get(&method)).cloned();
        world.calls.push(Call { name, out: Arc::downgrade(&out) });
        // containerd keeps Docker's containers in a namespace of their own.
        let right = if world.name == "docker" { "moby" } else { "k8s.io" };
        if matches!(method.as_str(), "Get" | "List") && namespace.as_ref().is_none_or(|value| value != right) {
            Say::Error(Code::FailedPrecondition, format!("namespace {right} is required"))
        } else {
            set.unwrap_or_else(|| world.answer(&method, &id))
        }
    };
    respond(say, out).await
}

async fn respond(mut say: Say, out: Arc<()>) -> Response {
    while let Say::Late(wait, then) = say {
        tokio::time::sleep(wait).await;
        say = *then;
    }
    let data = |length: usize, bytes: &[u8]| {
        let mut message = vec![0];
        message.extend(u32::try_from(length).unwrap().to_be_bytes());
        message.extend(bytes);
        Ok(Frame::data(Bytes::from(message)))
    };
    let frames: Vec<Result<Frame<Bytes>, std::io::Error>> = match &say {
        Say::Answer(message) => vec![data(message.len(), message), trailers(Code::Ok, "")],
        Say::Error(code, text) => vec![trailers(*code, text)],
        Say::Short => vec![data(1000, b"half"), trailers(Code::Ok, "")],
        Say::Broken => vec![data(1000, b"half"), Err(std::io::Error::other("broken on purpose"))],
        Say::Huge => vec![data(17 << 20, &vec![0; 17 << 20]), trailers(Code::Ok, "")],
        Say::Garbage => vec![data(6, &[0xff; 6]), trailers(Code::Ok, "")],
        Say::Endless => vec![data(1000, b"half")],
        Say::Never | Say::Late(..) => vec![],
    };
    if matches!(say, Say::Never) {
        std::future::pending::<()>().await;
        unreachable!("pending ends never")
    }
    let rest =
        if matches!(say, Say::Endless) { stream::pending().left_stream() } else { stream::empty().right_stream() };
    let body = stream::iter(frames).chain(rest).map(move |frame| {
        let _ = &out;
        frame
    });
    let mut response = Response::new(Body::new(StreamBody::new(body)));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

#[expect(clippy::unnecessary_wraps, reason = "one of several frames, of which some are errors")]
fn trailers(code: Code, text: &str) -> Result<Frame<Bytes>, std::io::Error> {
    let mut map = HeaderMap::new();
    map.insert("grpc-status", HeaderValue::from(i32::from(code)));
    map.insert("grpc-message", HeaderValue::from_str(text).unwrap());
    Ok(Frame::trailers(map))
}
