//! A small client of the Docker Engine API: the few calls that are cheap, each with the caller's deadline and a bound on
//! what is read.
//!
//! It asks for a version, for lists filtered to the kubelet's containers, and for single containers. It never asks for their
//! size: a size walks the file system. Stats and `exec` reach into the shim. Docker answers a list from memory while a
//! container is locked. `inspect` of a locked container waits for ever, and that is what the probe wants to detect.
//!
//! hyper, which kube needs anyway, does the HTTP. bollard, the usual client, collects whole answers of any size, and models and
//! links the whole API. The probe reads a dozen fields and must stay small. Each call has its own connection: one that hangs
//! does not delay another, and dropping the call ends it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::cri::wire::{Item, ListError};
use crate::cri::{CriError, MAX_ERROR, UNKNOWN_CONTAINER_ID, full_id, open};
use crate::deadline::within;
use crate::http::driven;
use crate::parse_error::ParseError;
use nrh_core::observation::{ContainerSeen, RuntimeSeen, SandboxSeen};
use nrh_core::text::bounded;

#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod seen;
#[cfg(test)]
mod tests;

pub use seen::Inspected;

/// Largest list that this client reads.
const MAX_LIST: usize = 16 << 20;
/// Largest answer about one container that this client reads.
const MAX_INSPECT: usize = 1 << 20;
/// Largest other answer, and largest text of an error.
const MAX_SMALL: usize = 64 << 10;

/// All sandboxes of the kubelet: `{"label":["io.kubernetes.docker.type=podsandbox"]}`.
const SANDBOXES: &str =
    "/containers/json?all=1&filters=%7B%22label%22%3A%5B%22io.kubernetes.docker.type%3Dpodsandbox%22%5D%7D";
/// All containers of the kubelet that are not sandboxes: `{"label":["io.kubernetes.docker.type=container"]}`.
const CONTAINERS: &str =
    "/containers/json?all=1&filters=%7B%22label%22%3A%5B%22io.kubernetes.docker.type%3Dcontainer%22%5D%7D";
/// Those of either kind that are being removed: `{"label":["io.kubernetes.docker.type"],"status":["dead","removing"]}`.
const REMOVALS: &str = "/containers/json?all=1&filters=%7B%22label%22%3A%5B%22io.kubernetes.docker.type%22%5D%2C%22status%22%3A%5B%22dead%22%2C%22removing%22%5D%7D";

/// The Docker daemon behind one socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Docker {
    socket: PathBuf,
}

impl Docker {
    /// The daemon at `socket`. It does not connect yet.
    pub fn at(socket: &Path) -> Self {
        Self { socket: socket.to_path_buf() }
    }

    /// Name and version.
    ///
    /// # Errors
    /// The same for every call here: [`CriError::Missing`], [`CriError::Forbidden`], [`CriError::Unavailable`] and
    /// [`CriError::Unreachable`] when no question can be sent, [`CriError::Deadline`], [`CriError::TooLarge`],
    /// [`CriError::NotKept`] and [`CriError::Cut`] when no complete answer came, [`CriError::Unimplemented`] when the server is
    /// not Docker.
    pub async fn version(&self, deadline: Duration) -> Result<RuntimeSeen, CriError> {
        let answer: seen::Version = self.get("/version", None, MAX_SMALL, deadline).await?;
        Ok(answer.into_seen())
    }

    /// All sandboxes that a kubelet has created, in every state.
    pub async fn sandboxes(&self, deadline: Duration) -> Result<Vec<SandboxSeen>, CriError> {
        self.list(SANDBOXES, deadline).await
    }

    /// The ids of all sandboxes.
    pub async fn sandbox_ids(&self, deadline: Duration) -> Result<Vec<String>, CriError> {
        self.list(SANDBOXES, deadline).await
    }

    /// All containers that a kubelet has created, in every state.
    pub async fn containers(&self, deadline: Duration) -> Result<Vec<ContainerSeen>, CriError> {
        self.list(CONTAINERS, deadline).await
    }

    /// Those of a kubelet's containers and sandboxes whose removal has begun and has not ended.
    pub async fn removals(&self, deadline: Duration) -> Result<Vec<ContainerSeen>, CriError> {
        self.list(REMOVALS, deadline).await
    }

    /// One container or sandbox. It waits for whatever holds the lock of that container.
    ///
    /// # Errors
    /// [`CriError::NotFound`] when Docker says that it has no such container.
    pub async fn inspect(&self, id: &str, deadline: Duration) -> Result<Inspected, CriError> {
        full_id(id)?;
        let path = format!("/containers/{id}/json");
        let answer: seen::Inspection = self.get(&path, Some(id), MAX_INSPECT, deadline).await?;
        answer.into_inspected(id)
    }

    /// Whether Docker answers questions about single containers at all. It asks for a container that does not exist, so the
    /// question waits for no container.
    pub async fn answers(&self, deadline: Duration) -> Result<(), CriError> {
        CriError::answered(self.inspect(UNKNOWN_CONTAINER_ID, deadline).await)
    }

    async fn list<T: Item + From<seen::Listed>>(&self, path: &str, deadline: Duration) -> Result<Vec<T>, CriError> {
        let list: seen::List<T> = self.get(path, None, MAX_LIST, deadline).await?;
        if list.is_too_large {
            return Err(CriError::NotKept(ListError::TooMany(list.items.len()).to_string()));
        }
        Ok(list.items)
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        id: Option<&str>,
        most: usize,
        deadline: Duration,
    ) -> Result<T, CriError> {
        let (status, body) =
            within(deadline, self.exchange(path, most)).await.map_err(|_| CriError::Deadline(deadline))??;
        understood(path, id, status, &body)
    }

    /// Sends one request and reads its answer. The connection lives as long as this call.
    async fn exchange(&self, path: &str, most: usize) -> Result<(StatusCode, Vec<u8>), CriError> {
        // This is not the deadline of a call that waits for a container: no question was sent yet.
        let stream = open(&self.socket).await.map_err(|error| match error {
            CriError::Deadline(after) => {
                CriError::Unreachable(format!("connection not accepted within {} s", after.as_secs()))
            }
            error => error,
        })?;
        converse(stream, path, most).await
    }
}

/// Sends one request. Returns the status and the body of its answer.
pub(crate) async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    most: usize,
) -> Result<(StatusCode, Vec<u8>), CriError> {
    let mut http = http1::Builder::new();
    let (mut sender, connection) =
        http.max_buf_size(MAX_SMALL).handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
    let request = Request::get(path)
        .header(header::HOST, "docker")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| CriError::Other(bounded(&error.to_string(), MAX_ERROR)))?;
    let call = async move {
        let answer = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let status = answer.status();
        let most = if status == StatusCode::OK { most } else { MAX_SMALL };
        Ok((status, read(answer.into_body(), most).await?))
    };
    driven(connection, call).await
}

/// Parses an answer. `id` is the container that the question was about.
pub(crate) fn understood<T: DeserializeOwned>(
    path: &str,
    id: Option<&str>,
    status: StatusCode,
    body: &[u8],
) -> Result<T, CriError> {
    if status != StatusCode::OK {
        return Err(refusal(status, body, id));
    }
    serde_json::from_slice(body).map_err(|error| {
        let text = bounded(&format!("{path}: {}", ParseError::from(&error)), MAX_ERROR);
        if error.is_eof() { CriError::Cut(text) } else { CriError::Unimplemented(text) }
    })
}

/// The whole body, as long as it is not larger than `most`.
async fn read(mut body: Incoming, most: usize) -> Result<Vec<u8>, CriError> {
    let too_large = || CriError::TooLarge(format!("more than {most} bytes"));
    if body.size_hint().lower() > u64::try_from(most).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(&error))?;
        let Some(data) = frame.data_ref() else { continue };
        if all.len().saturating_add(data.len()) > most {
            return Err(too_large());
        }
        all.extend_from_slice(data);
    }
    Ok(all)
}

fn broken(error: &hyper::Error) -> CriError {
    let text = bounded(&error.to_string(), MAX_ERROR);
    // The answer is not HTTP: another service listens there.
    if error.is_parse() { CriError::Unimplemented(text) } else { CriError::Cut(text) }
}

/// The error that an answer other than 200 means. Only Docker's own text proves that a container does not exist: a 404 may come
/// from any server at the socket.
fn refusal(status: StatusCode, body: &[u8], id: Option<&str>) -> CriError {
    let error: seen::ErrorBody = serde_json::from_slice(body).unwrap_or_default();
    let text = bounded(&format!("{}: {}", status.as_u16(), error.message), MAX_ERROR);
    let nobody = |id: &str| error.message.to_ascii_lowercase().starts_with(&format!("no such container: {id}"));
    match status {
        StatusCode::NOT_FOUND if id.is_some_and(nobody) => CriError::NotFound,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => CriError::Forbidden(text),
        status if status.is_server_error() => CriError::Other(text),
        _ => CriError::Unimplemented(text),
    }
}
