//! `nrh status`, on the node: the probe's own view, read from the probe itself without the API server.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::report::{by_probe, calls, collectors, lasting, seen};
use crate::args::StatusArgs;
use nrh_api::health::ProbeMode;
use nrh_api::local::{LocalStatus, SOCKET};
use nrh_terminal::print_as;

/// Deadline for the answer of a probe. A probe that takes longer is stopped or stuck.
const ANSWER: Duration = Duration::from_secs(5);
/// Maximum size of a document that is read. A report is much smaller.
const LARGEST: u64 = 4 << 20;

/// Runs `nrh status`.
///
/// # Errors
/// An error about the probe, where it does not answer.
pub async fn run(args: StatusArgs) -> anyhow::Result<()> {
    let local = ask(&args.state_dir).await?;
    print_as(args.print.output, &local, text)
}

/// Queries the probe of this node.
///
/// # Errors
/// A sentence that says what is wrong with the probe, and where to look next: no probe has run, it has ended, it does
/// not answer, or the caller lacks permission.
async fn ask(folder: &Path) -> anyhow::Result<LocalStatus> {
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
            ErrorKind::ConnectionRefused => bail!("the probe that made {shown} has stopped, and none has replaced it"),
            ErrorKind::PermissionDenied => bail!("may not open {shown}: only root may ask the probe"),
            _ => return Err(error).with_context(|| format!("cannot ask the probe at {shown}")),
        },
        Err(_) => bail!("the probe at {shown} does not answer within {} s: it is stopped or stuck", ANSWER.as_secs()),
    };
    serde_json::from_slice(&text).with_context(|| {
        format!("the answer of the probe at {shown} ({} bytes) is not whole, or of another version", text.len())
    })
}

/// The answer as text for people. A write to a string cannot fail, so its results are ignored.
fn text(local: &LocalStatus) -> String {
    let mut out = String::new();
    let status = &local.status;
    let _ = writeln!(out, "node {}, as its probe sees it", local.node);
    match (&status.probe, local.judged_seconds) {
        (Some(probe), Some(ago)) => {
            let mode = if probe.mode == ProbeMode::Unit { "unit" } else { "pod" };
            let can = if probe.actions_enabled { "actions are enabled" } else { "actions are disabled" };
            let _ = writeln!(
                out,
                "  probe: version {}, a {mode}, {can}; last diagnosis {} ago",
                probe.version,
                lasting(ago)
            );
        }
        _ => {
            let _ = writeln!(out, "  probe: has started, no diagnosis yet: retry in a few seconds");
        }
    }
    let _ = writeln!(out, "  API server: {}", delivery(local));
    if let Some(runtime) = &status.runtime {
        let version = if runtime.version.is_empty() { "has not answered yet" } else { &runtime.version };
        let _ = writeln!(
            out,
            "  runtime: {version} at {}, {} sandboxes, {} containers",
            runtime.endpoint, runtime.sandboxes, runtime.containers
        );
    }
    if let Some(kubelet) = &status.kubelet {
        let started = match kubelet.started {
            Some(true) => "has completed its start",
            Some(false) => "has not completed its start",
            None => "starting, or not checked",
        };
        let since = kubelet.started_at.map_or_else(String::new, |at| format!(", its process began at {at}"));
        let _ = writeln!(out, "  kubelet: {started}{since}");
    }
    collectors(&mut out, status.probe.iter().flat_map(|probe| &probe.collectors));
    calls(&mut out, "calls in flight", &local.calls);
    for line in status.probe.iter().flat_map(|probe| &probe.missing_capabilities) {
        let _ = writeln!(out, "  missing: {line}");
    }
    for condition in &status.conditions {
        let (kind, standing, reason) = (&condition.type_, &condition.status, &condition.reason);
        let _ = writeln!(out, "  {kind:<24} {standing:<8} {reason}: {}", condition.message);
    }
    for fault in &status.faults {
        seen(&mut out, fault, &by_probe(fault));
    }
    if local.judged_seconds.is_some() && status.faults.is_empty() {
        let _ = writeln!(out, "  no fault");
    }
    if let Some(more) = status.faults_omitted {
        let _ = writeln!(out, "  {more} more faults are left out");
    }
    if let Some(outcome) = &status.command_result {
        let _ = writeln!(out, "  last command {}: {:?}: {}", outcome.operation_id, outcome.state, outcome.message);
    }
    out
}

/// The delivery of reports, in one line.
fn delivery(local: &LocalStatus) -> String {
    let taken = local.report_taken_seconds.map_or_else(
        || "has taken no report of this probe yet".to_owned(),
        |ago| format!("took the last report {} ago", lasting(ago)),
    );
    match local.report_failing_seconds {
        Some(seconds) => format!("{taken}; calls have failed for {}: {}", lasting(seconds), local.report_error),
        None => taken,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixListener;

    use super::*;
    use nrh_api::NodeRuntimeHealthStatus;
    use nrh_api::evidence::CallCounts;
    use nrh_api::health::{CollectorState, CollectorStatus, ProbeStatus, RuntimeStatus};
    use nrh_core::examples::fault;
    use nrh_core::fault::FaultType;

    #[test]
    fn a_node_that_has_lost_its_api_server_still_tells_what_is_wrong() {
        let collector = CollectorStatus {
            name: "lists".into(),
            state: CollectorState::Hung,
            age_seconds: None,
            message: "a call has been out for 65 s".into(),
        };
        let local = LocalStatus {
            node: "worker-1".into(),
            judged_seconds: Some(3),
            status: NodeRuntimeHealthStatus {
                probe: Some(ProbeStatus {
                    version: "0.1.0".into(),
                    collectors: vec![collector],
                    ..ProbeStatus::default()
                }),
                runtime: Some(RuntimeStatus { version: "containerd://1.6.20".into(), ..RuntimeStatus::default() }),
                faults: vec![fault(FaultType::HungContainer)],
                ..NodeRuntimeHealthStatus::default()
            },
            calls: CallCounts {
                out: [("lists".into(), 1), ("version".into(), 0)].into(),
                stalled_seconds: [("lists".into(), 2.25), ("status".into(), 0.0)].into(),
                ..CallCounts::default()
            },
            report_failing_seconds: Some(90),
            report_error: "no answer within 10 s".into(),
            ..LocalStatus::default()
        };
        let text = text(&local);
        for part in [
            "node worker-1",
            "last diagnosis 3 s ago",
            "has taken no report of this probe yet; calls have failed for 90 s: no answer within 10 s",
            "containerd://1.6.20",
            "collector lists      Hung         checked never     a call has been out for 65 s",
            "calls in flight: lists 1\n",
            "seconds in which the probe itself was stalled while it waited: lists 2\n",
            "fault HungContainer (Suspected",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        assert!(!text.contains("abandoned") && !text.contains("  no fault"), "{text}");
    }

    #[test]
    fn a_probe_that_has_just_begun_says_so_and_calls_nothing_healthy() {
        let text = text(&LocalStatus { node: "n".into(), ..LocalStatus::default() });
        assert!(text.contains("no diagnosis yet") && !text.contains("no fault"), "{text}");
    }

    #[tokio::test]
    async fn what_is_wrong_with_the_probe_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let error = ask(folder.path()).await.unwrap_err();
        assert!(error.to_string().contains("no probe has run"), "{error}");
        drop(UnixListener::bind(folder.path().join(SOCKET)).unwrap());
        let error = ask(folder.path()).await.unwrap_err();
        assert!(error.to_string().contains("has stopped"), "{error}");
        std::fs::remove_file(folder.path().join(SOCKET)).unwrap();
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
