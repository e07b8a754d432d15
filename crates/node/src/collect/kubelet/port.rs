//! Two questions at the kubelet's own port: whether its sync loop runs, and how its relists of its pods proceed.
//!
//! ```text
//! server::door (blocking: certificates, token) ─► pin::connect (proves who answers) ─► one GET ─► closed
//! ```
//! Each question has its own connection, and nothing of it is kept.

use std::time::Duration;

use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::metrics::{Memory, Parser, Sample};
use super::pin;
use super::server::KubeletEndpoint;
use crate::deadline::within;
use crate::http::driven;
use nrh_core::observation::{PortSeen, RelistsSeen};
use nrh_core::text::bounded;

/// Longest wait for one of the two questions.
pub const DEADLINE: Duration = Duration::from_secs(5);
const SYNC_LOOP: &str = "/healthz/syncloop";
const METRICS: &str = "/metrics";
/// The check's own text when it fails. A kubelet that cannot ask the API server for the probe's permission answers with the
/// same status and another text.
const STALLED: &str = "sync loop took longer than expected";
const NO_RIGHT: &str = "the kubelet refuses its metrics (403): it takes the right to get nodes/metrics";
/// Maximum number of bytes of an answer other than 200.
const MAX_REFUSAL: usize = 1024;
/// Largest head of an answer.
const MAX_HEAD: usize = 16 << 10;

/// Asks both questions, one after the other.
#[derive(Debug, Default)]
pub struct Port {
    memory: Memory,
    refused: bool,
}

impl Port {
    /// One reading. Ends within twice [`DEADLINE`].
    pub async fn check(&mut self, door: &KubeletEndpoint) -> PortSeen {
        let sync_loop = bounded_by(sync_loop(door)).await;
        let relists = self.relists(door).await;
        PortSeen { sync_loop, relists }
    }

    /// Whether permission for the metrics was missing the last time: only a person changes that.
    pub const fn refused(&self) -> bool {
        self.refused
    }

    async fn relists(&mut self, door: &KubeletEndpoint) -> Result<RelistsSeen, String> {
        let asked = Instant::now();
        let sample = bounded_by(sample(door)).await;
        self.refused = sample.as_ref().is_err_and(|why| why == NO_RIGHT);
        let sample = sample?;
        Ok(self.memory.note(door.of, sample, asked, Instant::now()))
    }
}

async fn bounded_by<T>(call: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = || Err(format!("the kubelet's port gives no whole answer within {} s", DEADLINE.as_secs()));
    // On the heap only while it runs: the collector rests for minutes between two calls.
    within(DEADLINE, Box::pin(call)).await.unwrap_or_else(|_| late())
}

async fn sync_loop(door: &KubeletEndpoint) -> Result<bool, String> {
    exchange(door, SYNC_LOOP, async |status, body| match status {
        StatusCode::OK => Ok(true),
        StatusCode::INTERNAL_SERVER_ERROR => {
            let text = refusal(body).await?;
            if text.to_ascii_lowercase().contains(STALLED) {
                return Ok(false);
            }
            Err(bounded(&format!("the kubelet's port answers {SYNC_LOOP} with 500: {text}"), 300))
        }
        StatusCode::FORBIDDEN => Err("the kubelet refuses to report on its sync loop (403): that needs the right to get nodes/healthz, and before kubelet 1.33 a right that no probe has"
            .to_owned()),
        status => Err(refused(SYNC_LOOP, status)),
    })
    .await
}

async fn sample(door: &KubeletEndpoint) -> Result<Sample, String> {
    exchange(door, METRICS, async |status, mut body| match status {
        StatusCode::OK => {
            let mut parser = Parser::default();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| cut(&error))?;
                let Some(data) = frame.data_ref() else { continue };
                if let Some(sample) = parser.push(data)? {
                    return Ok(sample);
                }
            }
            Err("the kubelet's metrics do not report its relists".to_owned())
        }
        StatusCode::FORBIDDEN => Err(NO_RIGHT.to_owned()),
        status => Err(refused(METRICS, status)),
    })
    .await
}

fn refused(path: &str, status: StatusCode) -> String {
    match status {
        StatusCode::UNAUTHORIZED => "the kubelet does not take the probe's token (401)".to_owned(),
        status => format!("the kubelet's port answers {path} with {}", status.as_u16()),
    }
}

fn cut(error: &hyper::Error) -> String {
    bounded(&format!("no whole answer from the kubelet's port: {error}"), 200)
}

/// The start of the text of an answer other than 200.
async fn refusal(mut body: Incoming) -> Result<String, String> {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| cut(&error))?;
        let left = MAX_REFUSAL.saturating_sub(text.len());
        let data = frame.data_ref().map_or(&[][..], AsRef::as_ref);
        text.extend_from_slice(data.get(..left).unwrap_or(data));
        if text.len() >= MAX_REFUSAL {
            break;
        }
    }
    Ok(bounded(String::from_utf8_lossy(&text).trim(), 200))
}

/// Sends one request on its own connection, and applies `read` to the answer. It sends the token only after the server has
/// proven that it is the kubelet.
async fn exchange<T, F>(door: &KubeletEndpoint, path: &str, read: F) -> Result<T, String>
where
    F: AsyncFnOnce(StatusCode, Incoming) -> Result<T, String>,
{
    let stream = pin::connect(door.address, &door.pins).await?;
    let mut http = http1::Builder::new();
    let (mut sender, connection) =
        http.max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await.map_err(|error| cut(&error))?;
    let mut token = HeaderValue::try_from(format!("Bearer {}", door.token))
        .map_err(|_| "the probe's token is no token".to_owned())?;
    token.set_sensitive(true);
    let request = Request::get(path)
        .header(header::HOST, door.address.to_string())
        .header(header::AUTHORIZATION, token)
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| bounded(&error.to_string(), 200))?;
    let call = async move {
        let answer = sender.send_request(request).await.map_err(|error| cut(&error))?;
        read(answer.status(), answer.into_body()).await
    };
    driven(connection, call).await
}

#[cfg(test)]
mod tests;
