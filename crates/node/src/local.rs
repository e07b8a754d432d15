//! What the probe knows, served on the node itself: one document over a socket in the state folder.
//!
//! It needs no API server, no kubelet and no runtime: on a node that has lost all three, a person still has
//! `nrh status`. Each client gets the document and then the end of the stream. Clients send nothing, so nothing has to be
//! refused.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use super::proc::bounded::existing;
use super::report::Delivery;
use super::report::draft::Draft;
use nrh_api::evidence::CallCounts;
use nrh_api::local::{LocalStatus, SOCKET};

/// How long a client that does not read is waited for; the next client waits meanwhile.
const WRITE: Duration = Duration::from_secs(2);

/// The status as of `now`, from the newest draft, the collectors' calls and the reporter's state.
pub fn status(node: &str, draft: Option<&Draft>, calls: CallCounts, delivery: &Delivery, now: Instant) -> LocalStatus {
    let since = |then: Instant| now.saturating_duration_since(then).as_secs();
    let (failing, error) = delivery.failing.clone().or_else(|| delivery.watch_failing.clone()).unzip();
    LocalStatus {
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

/// Serves until the probe ends; `status` creates the document. It serves one client at a time: a client that does not
/// read delays the others by two seconds, and the probe not at all.
///
/// The caller holds the node's lock, so an existing socket was left by a probe that has ended. If no socket can be
/// created, that is logged and the probe continues without one.
pub async fn serve(folder: PathBuf, status: impl Fn() -> LocalStatus) {
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
        let _ = timeout(WRITE, write_status(stream, &status())).await;
    }
}

fn listen(path: &Path) -> std::io::Result<UnixListener> {
    existing(std::fs::remove_file(path))?;
    let listener = UnixListener::bind(path)?;
    // The state folder is already accessible to root only; this also covers a folder that a person created.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn write_status(mut stream: UnixStream, status: &LocalStatus) -> std::io::Result<()> {
    stream.write_all(&serde_json::to_vec(status)?).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use nrh_api::NodeRuntimeHealthStatus;

    fn sample() -> LocalStatus {
        let calls = CallCounts {
            out: [("lists".to_owned(), 1)].into(),
            abandoned: [("tasks".to_owned(), 2)].into(),
            stalled_seconds: [("lists".to_owned(), 2.5)].into(),
        };
        let now = Instant::now();
        let delivery = Delivery { taken: Some(now), failing: Some((now, "refused".into())), watch_failing: None };
        let draft = Draft::new(NodeRuntimeHealthStatus::default(), now, None, 0);
        status("worker-1", Some(&draft), calls, &delivery, now + Duration::from_secs(7))
    }

    async fn ask(folder: &Path) -> std::io::Result<LocalStatus> {
        let mut text = Vec::new();
        UnixStream::connect(folder.join(SOCKET)).await?.read_to_end(&mut text).await?;
        Ok(serde_json::from_slice(&text)?)
    }

    #[tokio::test]
    async fn what_the_probe_knows_is_told_to_whoever_asks() {
        let folder = tempfile::tempdir().unwrap();
        // Left by a probe that has ended.
        drop(UnixListener::bind(folder.path().join(SOCKET)).unwrap());
        let serving = tokio::spawn(serve(folder.path().to_path_buf(), sample));
        for _ in 0..2 {
            let answer = loop {
                match ask(folder.path()).await {
                    Ok(answer) => break answer,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            assert_eq!(answer, sample());
            assert_eq!((answer.judged_seconds, answer.report_failing_seconds), (Some(7), Some(7)));
        }
        let mode = std::fs::metadata(folder.path().join(SOCKET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        serving.abort();
    }
}
