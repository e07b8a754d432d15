//! A small client of the container runtime: the few calls that are cheap, each with the caller's deadline.
//!
//! Only calls that were measured to be harmless are here. Stats walk every shim and hang on an unresponsive one. `exec` leaves
//! processes behind. `ListImages` walks the snapshotter. A verbose status asks the shim. None of them exists in this module, so
//! no code can call one by mistake.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::{
    ContainerStatusRequest, PodSandboxStatusRequest, RemoveContainerRequest, StatusRequest, StopContainerRequest,
    VersionRequest,
};
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Response, Status};

use crate::deadline::within;
use nrh_core::observation::{ContainerSeen, ContainerState, RuntimeSeen, SandboxSeen, StatusSeen};
use nrh_core::text::{bounded, is_full_id};

pub mod endpoint;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod labels;
mod made;
mod messages;
pub(crate) mod seen;
pub mod tasks;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub use wire::Listed;
use wire::{ListCodec, ListError};

/// Largest answer that this client reads, the limit the kubelet uses too.
const MAX_ANSWER: usize = 16 << 20;
/// Longest wait for a connection to the socket.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest error text that is kept, in bytes.
pub(crate) const MAX_ERROR: usize = 200;
/// The id of a container that does not exist.
pub(crate) const UNKNOWN_CONTAINER_ID: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Why a call to the runtime, through CRI or otherwise, gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CriError {
    /// The runtime answered that it has no such object.
    #[error("the runtime has no such object")]
    NotFound,
    /// The caller's deadline expired; the call was dropped.
    #[error("no answer from the runtime within {}s", .0.as_secs())]
    Deadline(Duration),
    /// The runtime itself stopped waiting for something behind it and reported that.
    #[error("the runtime gave up waiting for something behind it")]
    DeadlineInside,
    /// The list is smaller than `MAX_ANSWER`, and needs more memory than this client keeps of one. It proves nothing about the
    /// runtime.
    #[error("this probe does not keep so long a list: {0}")]
    NotKept(String),
    /// The answer is larger than `MAX_ANSWER`, or than the runtime wants to send.
    #[error("the runtime's answer is too large to read: {0}")]
    TooLarge(String),
    /// The connection ended, or broke the protocol, before the answer was complete.
    #[error("the runtime's answer was cut off: {0}")]
    Cut(String),
    /// The socket does not exist.
    #[error("no runtime socket: {0}")]
    Missing(String),
    /// The server does not know the call: it is no container runtime, or another kind of one.
    #[error("this is no runtime of the expected kind: {0}")]
    Unimplemented(String),
    /// This process could not connect, for a reason that says nothing about the runtime: it may lack open files or memory.
    #[error("this process could not connect to the runtime: {0}")]
    Unavailable(String),
    /// No process accepts connections at the socket.
    #[error("cannot connect to the runtime: {0}")]
    Unreachable(String),
    /// This process may not open the socket.
    #[error("not allowed to connect to the runtime: {0}")]
    Forbidden(String),
    /// Any other error of the runtime.
    #[error("the runtime answered with an error: {0}")]
    Other(String),
}

impl CriError {
    /// Whether the error means that the runtime gives no answer. A missing socket does not: this process may have been given
    /// another path.
    pub const fn is_silence(&self) -> bool {
        matches!(self, Self::Deadline(_) | Self::Unreachable(_) | Self::Cut(_))
    }

    /// Whether there is an answer at all: that there is no such object is one.
    pub(crate) fn answered<T>(answer: Result<T, Self>) -> Result<(), Self> {
        match answer {
            Ok(_) | Err(Self::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The error that a status means for the object `id` (empty for calls that name none).
    pub(crate) fn of(status: &Status, id: &str) -> Self {
        let text = bounded(&format!("{:?}: {}", status.code(), status.message()), MAX_ERROR);
        // A status that came over the wire has no local source. One that was made from a broken transport has one.
        let source = std::error::Error::source(status);
        if let Some(error @ ListError::TooMany(_)) = source.and_then(|source| source.downcast_ref::<ListError>()) {
            return Self::NotKept(error.to_string());
        }
        let local = source.is_some();
        match status.code() {
            Code::NotFound if !local => Self::NotFound,
            Code::DeadlineExceeded if !local => Self::DeadlineInside,
            Code::Unimplemented => Self::Unimplemented(text),
            Code::OutOfRange | Code::ResourceExhausted => Self::TooLarge(text),
            // cri-dockerd passes on Docker's own text, without a code.
            Code::Unknown if !id.is_empty() && status.message().contains(&format!("No such container: {id}")) => {
                Self::NotFound
            }
            _ if local => Self::Cut(text),
            Code::Internal if status.message().starts_with("Unexpected EOF") => Self::Cut(text),
            Code::Internal if status.message().starts_with("Missing response message") => Self::Cut(text),
            Code::Internal if status.message().starts_with("protocol error") => Self::Cut(text),
            _ => Self::Other(text),
        }
    }
}

const LIST_CONTAINERS: &str = "/runtime.v1.RuntimeService/ListContainers";
const LIST_SANDBOXES: &str = "/runtime.v1.RuntimeService/ListPodSandbox";

/// One connection to the runtime's CRI service. Clones share it.
#[derive(Clone, Debug)]
pub struct Cri {
    channel: Channel,
}

impl Cri {
    /// Connects to `socket`, within `CONNECT_TIMEOUT`.
    ///
    /// # Errors
    /// [`CriError::Missing`] when there is no such socket, [`CriError::Unreachable`] when no process listens there,
    /// [`CriError::Forbidden`] when this process may not open it, [`CriError::Deadline`] when the connection is not accepted in
    /// time.
    pub async fn connect(socket: &Path) -> Result<Self, CriError> {
        Ok(Self { channel: channel(socket).await? })
    }

    fn client(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_ANSWER)
            .max_encoding_message_size(1 << 20)
    }

    /// Name and version of the runtime. The runtime answers from constants: only a dead process fails this call, no other hang
    /// does.
    pub async fn version(&self, deadline: Duration) -> Result<RuntimeSeen, CriError> {
        let answer = ask(deadline, "", self.client().version(VersionRequest { version: "v1".to_owned() })).await?;
        Ok(seen::runtime(&answer))
    }

    /// The runtime's own report on its readiness. The call may wait for the runtime's network plugins.
    pub async fn status(&self, deadline: Duration) -> Result<StatusSeen, CriError> {
        let answer = ask(deadline, "", self.client().status(StatusRequest { verbose: false })).await?;
        Ok(seen::status(answer))
    }

    /// All sandboxes, in every state. The request carries no filter: with one, cri-dockerd hides sandboxes of which only its
    /// own record is left.
    pub async fn sandboxes(&self, deadline: Duration) -> Result<Listed<SandboxSeen>, CriError> {
        self.list(LIST_SANDBOXES, deadline).await
    }

    /// The ids of all sandboxes.
    pub async fn sandbox_ids(&self, deadline: Duration) -> Result<Vec<String>, CriError> {
        Ok(self.list(LIST_SANDBOXES, deadline).await?.items)
    }

    /// All containers, in every state.
    pub async fn containers(&self, deadline: Duration) -> Result<Listed<ContainerSeen>, CriError> {
        self.list(LIST_CONTAINERS, deadline).await
    }

    /// Asks for a list.
    ///
    /// # Errors
    /// [`CriError::NotKept`] when the list needs more memory than [`wire::MAX_KEPT`].
    async fn list<T: wire::Item>(&self, method: &'static str, deadline: Duration) -> Result<Listed<T>, CriError> {
        let mut lists = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER);
        let call = async move {
            lists.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let path = http::uri::PathAndQuery::from_static(method);
            lists.unary(tonic::Request::new(()), path, ListCodec::new()).await
        };
        ask(deadline, "", call).await
    }

    /// State of one container.
    ///
    /// # Errors
    /// [`CriError::NotFound`] when the runtime has no such container.
    pub async fn container_status(&self, id: &str, deadline: Duration) -> Result<ContainerState, CriError> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let answer = ask(deadline, id, self.client().container_status(request)).await?;
        let status = answer.status.ok_or_else(|| CriError::Other("the container's status is empty".to_owned()))?;
        Ok(seen::container_state(status.state))
    }

    /// Whether the runtime answers questions about single containers at all. It asks for a container that does not exist, so
    /// the question waits for no container.
    pub async fn answers(&self, deadline: Duration) -> Result<(), CriError> {
        CriError::answered(self.container_status(UNKNOWN_CONTAINER_ID, deadline).await)
    }

    /// Whether one sandbox is ready.
    ///
    /// # Errors
    /// [`CriError::NotFound`] when the runtime has no such sandbox.
    pub async fn sandbox_ready(&self, id: &str, deadline: Duration) -> Result<bool, CriError> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        let answer = ask(deadline, id, self.client().pod_sandbox_status(request)).await?;
        let status = answer.status.ok_or_else(|| CriError::Other("the sandbox's status is empty".to_owned()))?;
        Ok(seen::is_ready(status.state))
    }

    /// Stops one container, killing it after `grace`. The full id is needed.
    pub async fn stop_container(&self, id: &str, grace: Duration, deadline: Duration) -> Result<(), CriError> {
        full_id(id)?;
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = StopContainerRequest { container_id: id.to_owned(), timeout };
        ask(deadline, id, self.client().stop_container(request)).await.map(drop)
    }

    /// Removes one container. The full id is needed.
    pub async fn remove_container(&self, id: &str, deadline: Duration) -> Result<(), CriError> {
        full_id(id)?;
        let request = RemoveContainerRequest { container_id: id.to_owned() };
        ask(deadline, id, self.client().remove_container(request)).await.map(drop)
    }
}

pub(crate) fn full_id(id: &str) -> Result<(), CriError> {
    if is_full_id(id) {
        return Ok(());
    }
    Err(CriError::Other(bounded(&format!("refused here: a full id of 64 hex digits is needed, got {id:?}"), MAX_ERROR)))
}

/// Opens the socket, within [`CONNECT_TIMEOUT`].
pub(crate) async fn open(socket: &Path) -> Result<UnixStream, CriError> {
    within(CONNECT_TIMEOUT, UnixStream::connect(socket))
        .await
        .map_err(|_| CriError::Deadline(CONNECT_TIMEOUT))?
        .map_err(|error| refused(socket, &error))
}

/// A connection to the socket, with small windows: the probe must not hold megabytes for a slow answer.
async fn channel(socket: &Path) -> Result<Channel, CriError> {
    // This code makes the first attempt itself: its error says whether the socket is missing, closed or forbidden. The
    // transport's own error does not say that.
    let mut first = Some(open(socket).await?);
    let path: PathBuf = socket.to_path_buf();
    let connector = tower::service_fn(move |_: Uri| {
        let (ready, path) = (first.take(), path.clone());
        async move {
            match ready {
                Some(stream) => Ok(TokioIo::new(stream)),
                None => UnixStream::connect(path).await.map(TokioIo::new),
            }
        }
    });
    let endpoint = Endpoint::from_static("http://localhost")
        .connect_timeout(CONNECT_TIMEOUT)
        .buffer_size(16)
        .initial_stream_window_size(256 << 10)
        .initial_connection_window_size(512 << 10);
    within(CONNECT_TIMEOUT, endpoint.connect_with_connector(connector))
        .await
        .map_err(|_| CriError::Deadline(CONNECT_TIMEOUT))?
        .map_err(|error| CriError::Unreachable(bounded(&format!("{}: {error}", socket.display()), MAX_ERROR)))
}

fn refused(socket: &Path, error: &std::io::Error) -> CriError {
    let text = bounded(&format!("{}: {error}", socket.display()), MAX_ERROR);
    match error.kind() {
        ErrorKind::PermissionDenied => CriError::Forbidden(text),
        ErrorKind::NotFound => CriError::Missing(text),
        // `WouldBlock`: too many wait to be accepted already.
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::NotConnected | ErrorKind::WouldBlock => {
            CriError::Unreachable(text)
        }
        _ => CriError::Unavailable(text),
    }
}

/// Waits for one call, at most for `deadline` of time in which this process could run: before an action, the silence of one
/// container is the evidence in question.
async fn ask<T>(
    deadline: Duration,
    id: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CriError> {
    match within(deadline, call).await {
        Err(_) => Err(CriError::Deadline(deadline)),
        Ok(Err(status)) => Err(CriError::of(&status, id)),
        Ok(Ok(answer)) => Ok(answer.into_inner()),
    }
}
