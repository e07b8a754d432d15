//! What the probe knows, served on the node itself: one document over a socket in the state folder.
//!
//! It needs no API server, no kubelet and no runtime: on a node that has lost all three, a person still has
//! `nrh status`. Each client gets the document and then the end of the stream. Clients send nothing, so nothing has to be
//! refused.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use super::report::Delivery;
use super::report::draft::Draft;
use crate::api::NodeRuntimeHealthStatus;
use crate::api::evidence::Outstanding;

/// Name of the socket in the state folder.
const SOCKET: &str = "status.sock";
/// How long a client that does not read is waited for; the next client waits meanwhile.
const WRITE: Duration = Duration::from_secs(2);
/// Deadline for the answer of a probe. A probe that takes longer is stopped or stuck.
const ANSWER: Duration = Duration::from_secs(5);
/// Maximum size of a document that is read. A report is much smaller.
const LARGEST: u64 = 4 << 20;

/// Everything the probe knows at one moment. Times are seconds before that moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalStatus {
    /// Name of the node.
    pub node: String,
    /// Seconds since the newest judgement; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged_seconds: Option<u64>,
    /// The probe's part of the object's status, as it would be sent now.
    #[serde(default)]
    pub status: NodeRuntimeHealthStatus,
    /// State of the probe's calls.
    #[serde(flatten)]
    pub calls: Outstanding,
    /// Number of live tasks of the probe: a few fixed ones, and one per outstanding call.
    #[serde(default)]
    pub tasks: usize,
    /// Seconds since the API server last accepted a report; absent if it has accepted none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_taken_seconds: Option<u64>,
    /// For how many seconds calls to the API server have failed; absent while they succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_failing_seconds: Option<u64>,
    /// Error of the newest failed call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub report_error: String,
}

impl LocalStatus {
    /// Builds the status as of `now`, from the newest draft, the collectors' calls and the reporter's state.
    pub fn new(node: &str, draft: Option<&Draft>, calls: Outstanding, delivery: &Delivery, now: Instant) -> Self {
        let since = |then: Instant| now.saturating_duration_since(then).as_secs();
        let (failing, error) = delivery.failing.clone().or_else(|| delivery.deaf.clone()).unzip();
        Self {
            node: node.to_owned(),
            judged_seconds: draft.map(|draft| since(draft.made)),
            status: draft.map(|draft| draft.as_of(now)).unwrap_or_default(),
            calls,
            tasks: tokio::runtime::Handle::try_current().map_or(0, |handle| handle.metrics().num_alive_tasks()),
            report_taken_seconds: delivery.taken.map(since),
            report_failing_seconds: failing.map(since),
            report_error: error.unwrap_or_default(),
        }
    }
}

/// Serves until the probe ends; `told` creates the document. It serves one client at a time: a client that does not
/// read delays the others by two seconds, and the probe not at all.
///
/// The caller holds the node's lock, so an existing socket was left by a probe that has ended. If no socket can be
/// created, that is logged and the probe continues without one.
pub async fn serve(folder: PathBuf, told: impl Fn() -> LocalStatus) {
    let path = folder.join(SOCKET);
    let listener = match listen(&path) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "cannot listen: `nrh status` has no answer on this node");
            return;
        }
    };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_secs(1)).await;
            continue;
        };
        let _ = timeout(WRITE, tell(stream, &told())).await;
    }
}

fn listen(path: &Path) -> std::io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // The state folder is already accessible to root only; this also covers a folder that a person created.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn tell(mut stream: UnixStream, told: &LocalStatus) -> std::io::Result<()> {
    stream.write_all(&serde_json::to_vec(told)?).await?;
    stream.shutdown().await
}

/// Queries the probe of this node.
///
/// # Errors
/// A sentence that says what is wrong with the probe, and where to look next: no probe has run, it has ended, it does
/// not answer, or the caller lacks permission.
pub async fn ask(folder: &Path) -> anyhow::Result<LocalStatus> {
    let path = folder.join(SOCKET);
    let shown = path.display();
    let answer = timeout(ANSWER, async {
        let mut text = Vec::new();
        UnixStream::connect(&path).await?.take(LARGEST).read_to_end(&mut text).await?;
        std::io::Result::Ok(text)
    });
    let text = match answer.await {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => match error.kind() {
            ErrorKind::NotFound => bail!(
                "no probe has run on this node since it booted: {shown} is not there. `kubectl get pods -A -o wide -l \
                 app.kubernetes.io/name=nrh-probe` shows whether one should; as a unit, `systemctl status nrh-probe`"
            ),
            ErrorKind::ConnectionRefused => bail!("the probe that made {shown} has ended, and no other has begun"),
            ErrorKind::PermissionDenied => bail!("may not open {shown}: only root may ask the probe"),
            _ => return Err(error).with_context(|| format!("cannot ask the probe at {shown}")),
        },
        Err(_) => bail!("the probe at {shown} does not answer within {} s: it is stopped or stuck", ANSWER.as_secs()),
    };
    serde_json::from_slice(&text).with_context(|| {
        format!("the answer of the probe at {shown} ({} bytes) is not whole, or of another version", text.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> LocalStatus {
        let calls = Outstanding {
            out: [("lists".to_owned(), 1)].into(),
            given_up: [("tasks".to_owned(), 2)].into(),
            held_up_seconds: [("lists".to_owned(), 2.5)].into(),
        };
        let now = Instant::now();
        let delivery = Delivery { taken: Some(now), failing: Some((now, "refused".into())), deaf: None };
        let draft = Draft::new(NodeRuntimeHealthStatus::default(), now, None, 0);
        LocalStatus::new("worker-1", Some(&draft), calls, &delivery, now + Duration::from_secs(7))
    }

    #[tokio::test]
    async fn what_the_probe_knows_is_told_to_whoever_asks() {
        let folder = tempfile::tempdir().unwrap();
        // Left by a probe that has ended.
        drop(UnixListener::bind(folder.path().join(SOCKET)).unwrap());
        let error = ask(folder.path()).await.unwrap_err();
        assert!(error.to_string().contains("has ended"), "{error}");
        let serving = tokio::spawn(serve(folder.path().to_path_buf(), told));
        for _ in 0..2 {
            let answer = loop {
                match ask(folder.path()).await {
                    Ok(answer) => break answer,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            assert_eq!(answer, told());
            assert_eq!((answer.judged_seconds, answer.report_failing_seconds), (Some(7), Some(7)));
        }
        let mode = std::fs::metadata(folder.path().join(SOCKET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        serving.abort();
    }

    #[tokio::test]
    async fn what_is_wrong_with_the_probe_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let error = ask(folder.path()).await.unwrap_err();
        assert!(error.to_string().contains("no probe has run"), "{error}");
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let cut = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"{\"node\": \"wor").await.unwrap();
        };
        let (answer, ()) = tokio::join!(ask(folder.path()), cut);
        assert!(answer.unwrap_err().to_string().contains("not whole"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_does_not_answer_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let _listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let error = ask(folder.path()).await.unwrap_err();
        assert!(error.to_string().contains("stopped or stuck"), "{error}");
    }
}
