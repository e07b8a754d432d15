//! A runtime for tests, on a real socket. It gives the answers that a test sets, also broken ones.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use containerd_client::services::v1::{GetRequest, GetResponse};
use containerd_client::types::v1::Process;
use futures::{Stream, StreamExt, stream};
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
    /// Gives these one after the other, and then starts again with the first.
    InTurn(Vec<Self>),
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

#[derive(Debug, Default)]
struct State {
    /// By method, or `Method:id` for one object.
    says: Mutex<BTreeMap<String, Say>>,
    calls: Mutex<BTreeMap<String, usize>>,
    out: Mutex<BTreeMap<String, Arc<AtomicUsize>>>,
}

/// The running fake. It ends, and its socket with it, when this is dropped.
#[derive(Debug)]
pub(crate) struct Fake {
    state: Arc<State>,
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
        let state = Arc::new(State::default());
        let server = serve(&state, &folder.path().join("runtime.sock"));
        let fake = Self { state, folder, server: Some(server) };
        fake.name("containerd");
        fake.network(true, "", "");
        fake.lists(&[], &[]);
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
        self.server = Some(serve(&self.state, &self.socket()));
    }

    pub(crate) fn name(&self, name: &str) {
        let answer = v1::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: name.to_owned(),
            runtime_version: "1.6.20".to_owned(),
            runtime_api_version: "v1".to_owned(),
        };
        self.say("Version", Say::message(&answer));
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

    /// Sets the answer to `what` from now on: a method, or `Method:id` for one object.
    pub(crate) fn say(&self, what: &str, say: Say) {
        self.state.says.lock().unwrap().insert(what.to_owned(), say);
    }

    /// Ready sandboxes by id, and running containers by id and sandbox.
    pub(crate) fn lists(&self, sandboxes: &[&str], containers: &[(&str, &str)]) {
        self.say("ListPodSandbox", sandboxes_are(sandboxes));
        let containers = containers.iter().map(|(id, sandbox)| container(id, sandbox)).collect();
        self.say("ListContainers", Say::message(&v1::ListContainersResponse { containers }));
    }

    pub(crate) fn calls(&self, what: &str) -> usize {
        self.state.calls.lock().unwrap().get(what).copied().unwrap_or(0)
    }

    pub(crate) fn out(&self, what: &str) -> usize {
        self.state.out.lock().unwrap().get(what).map_or(0, |out| out.load(Ordering::SeqCst))
    }
}

pub(crate) fn sandboxes_are(ids: &[&str]) -> Say {
    let items = ids.iter().map(|id| sandbox(id)).collect();
    Say::message(&v1::ListPodSandboxResponse { items })
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

pub(crate) fn container_status() -> Say {
    let status = Some(v1::ContainerStatus { state: 1, ..v1::ContainerStatus::default() });
    Say::message(&v1::ContainerStatusResponse { status, info: [].into() })
}

pub(crate) fn sandbox_status() -> Say {
    let status = Some(v1::PodSandboxStatus::default());
    Say::message(&v1::PodSandboxStatusResponse { status, ..v1::PodSandboxStatusResponse::default() })
}

/// containerd's answer for a task in this state (0 = unknown, 2 = running).
pub(crate) fn task(status: i32) -> Say {
    Say::message(&GetResponse { process: Some(Process { status, ..Process::default() }) })
}

fn serve(state: &Arc<State>, socket: &Path) -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let state = Arc::clone(state);
    let router = axum::Router::new().fallback(move |request: Request| answer(Arc::clone(&state), request));
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

/// Counts a call as out for as long as it lives.
struct Out(Vec<Arc<AtomicUsize>>);

impl Drop for Out {
    fn drop(&mut self) {
        for out in &self.0 {
            out.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

async fn answer(state: Arc<State>, request: Request) -> Response {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let namespace = request.headers().get("containerd-namespace").cloned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut names = vec![method.clone()];
    names.extend(id_of(&method, &body).map(|id| format!("{method}:{id}")));
    let (mut outs, mut nth) = (Vec::new(), 0);
    for name in &names {
        let mut calls = state.calls.lock().unwrap();
        let calls = calls.entry(name.clone()).or_default();
        (nth, *calls) = (*calls, *calls + 1);
        let out = Arc::clone(state.out.lock().unwrap().entry(name.clone()).or_default());
        out.fetch_add(1, Ordering::SeqCst);
        outs.push(out);
    }
    let out = Out(outs);
    let say = {
        let says = state.says.lock().unwrap();
        names.iter().rev().find_map(|name| says.get(name)).cloned()
    };
    let wrong_namespace =
        matches!(method.as_str(), "Get" | "List") && namespace.as_ref().is_none_or(|value| value != "k8s.io");
    let say = match say {
        _ if wrong_namespace => Say::Error(Code::FailedPrecondition, "namespace is required".to_owned()),
        Some(Say::InTurn(says)) => says[nth % says.len()].clone(),
        Some(say) => say,
        None => Say::Error(Code::Unimplemented, format!("the fake was not told what to say to {names:?}")),
    };
    respond_counted(say, out).await
}

pub(crate) async fn respond(say: Say) -> Response {
    respond_counted(say, Out(Vec::new())).await
}

async fn respond_counted(mut say: Say, out: Out) -> Response {
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
        Say::Never | Say::Late(..) | Say::InTurn(_) => vec![],
    };
    if matches!(say, Say::Never) {
        let _out = out;
        std::future::pending::<()>().await;
        unreachable!("pending ends never")
    }
    let rest =
        if matches!(say, Say::Endless) { stream::pending().left_stream() } else { stream::empty().right_stream() };
    let body = with_guard(stream::iter(frames).chain(rest), out);
    let mut response = Response::new(Body::new(StreamBody::new(body)));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

fn with_guard<S: Stream>(stream: S, out: Out) -> impl Stream<Item = S::Item> {
    stream.map(move |item| {
        let _ = &out;
        item
    })
}

#[expect(clippy::unnecessary_wraps, reason = "one of several frames, of which some are errors")]
fn trailers(code: Code, text: &str) -> Result<Frame<Bytes>, std::io::Error> {
    let mut map = HeaderMap::new();
    map.insert("grpc-status", HeaderValue::from(i32::from(code)));
    map.insert("grpc-message", HeaderValue::from_str(text).unwrap());
    Ok(Frame::trailers(map))
}
