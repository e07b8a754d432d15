//! Serves `/livez` and `/metrics`, if an address is configured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::collectors::{Collectors, Hints};
use crate::report::draft::Draft;
use nrh_api::evidence::CallCounts;
use nrh_core::fault::{FaultState, FaultType};
use nrh_core::node_condition::NodeCondition;
use nrh_server as server;

/// The probe judges far more often than this; if it does not, something in it is stuck.
const STUCK: Duration = Duration::from_mins(2);
/// Not `OpenMetrics`: that format requires `_total` at the end of every counter, and the established `problem_counter`
/// lacks it.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

type Newest = watch::Receiver<Option<Arc<Draft>>>;

/// Serves until the probe ends. An address that cannot be bound is logged, and the probe continues without the server.
pub(super) async fn serve(address: SocketAddr, collectors: Arc<Collectors>, newest: Newest) {
    let listener = match tokio::net::TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%address, %error, "cannot listen: no metrics are served"),
    };
    let (began, alive) = (tokio::time::Instant::now(), newest.clone());
    let live = move || async move {
        let newest = alive.borrow().as_ref().map_or(began, |draft| draft.made);
        if newest.elapsed() < STUCK {
            (StatusCode::OK, "ok")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "no diagnosis for two minutes")
        }
    };
    let metrics = move || async move {
        let draft = newest.borrow().clone();
        ([(header::CONTENT_TYPE, TEXT)], text(draft.as_deref(), &collectors.call_counts(), collectors.hints()))
            .into_response()
    };
    let app = Router::new().route("/livez", get(live)).route("/metrics", get(metrics));
    // The server ends with the probe.
    server::serve(listener, app, CancellationToken::new()).await;
}

/// Returns all metrics as text. Labels are from closed sets, so nothing needs escaping.
fn text(draft: Option<&Draft>, calls: &CallCounts, hints: Hints) -> String {
    let mut out = String::new();
    let name = "nrh_probe_collector_age_seconds";
    head(&mut out, "gauge", name, "Seconds since the last completed check of a collector.");
    let older = draft.map_or(0, |draft| draft.made.elapsed().as_secs());
    for collector in draft.iter().filter_map(|draft| draft.status.probe.as_ref()).flat_map(|probe| &probe.collectors) {
        if let Some(age) = collector.age_seconds {
            line(&mut out, name, &[("collector", &collector.name)], age.saturating_add(older));
        }
    }
    head(&mut out, "gauge", "nrh_probe_calls_in_flight", "Calls in flight.");
    for (collector, count) in &calls.out {
        line(&mut out, "nrh_probe_calls_in_flight", &[("collector", collector)], *count);
    }
    head(&mut out, "counter", "nrh_probe_calls_abandoned_total", "Calls dropped without an answer.");
    for (collector, count) in &calls.abandoned {
        line(&mut out, "nrh_probe_calls_abandoned_total", &[("collector", collector)], *count);
    }
    let name = "nrh_probe_stalled_seconds_total";
    head(&mut out, "counter", name, "Time in which calls were out and the probe itself could not run.");
    for (collector, seconds) in &calls.stalled_seconds {
        line(&mut out, name, &[("collector", collector)], *seconds);
    }
    let name = "nrh_probe_kernel_records_total";
    head(&mut out, "counter", name, "Records of the kernel's log that were read, or dropped because too many arrived.");
    line(&mut out, name, &[("outcome", "Read")], hints.read);
    line(&mut out, name, &[("outcome", "Dropped")], hints.dropped);
    let name = "nrh_probe_kernel_triggers_total";
    head(&mut out, "counter", name, "Immediate checks because of a line in the kernel's log.");
    line(&mut out, name, &[], hints.checks);
    head(&mut out, "gauge", "nrh_probe_faults", "Current faults, by type and state.");
    let mut faults: BTreeMap<(&str, String), u64> = BTreeMap::new();
    for fault in draft.iter().flat_map(|draft| &draft.status.faults) {
        *faults.entry((fault.kind.as_str(), format!("{:?}", fault.state))).or_default() += 1;
    }
    for ((kind, state), count) in &faults {
        line(&mut out, "nrh_probe_faults", &[("type", kind), ("state", state)], *count);
    }
    if let Some(draft) = draft {
        let name = "nrh_probe_evidence_bundles_total";
        head(&mut out, "counter", name, "Bundles of evidence that were collected, by outcome.");
        line(&mut out, name, &[("outcome", "Kept")], draft.bundles.kept);
        line(&mut out, name, &[("outcome", "Lost")], draft.bundles.lost);
        problems(&mut out, draft);
    }
    out
}

/// Writes the same data under the names that users of node-problem-detector have in their alerts. Each series exists
/// from the first judgement on.
fn problems(out: &mut String, draft: &Draft) {
    let confirmed: BTreeSet<FaultType> =
        draft.status.faults.iter().filter(|fault| fault.state != FaultState::Suspected).map(|f| f.kind).collect();
    let shown = FaultType::ALL.into_iter().filter_map(|kind| Some((kind, NodeCondition::showing(kind)?)));
    head(out, "gauge", "problem_gauge", "Whether a fault of this type is confirmed.");
    for (kind, condition) in shown.clone() {
        let labels = [("type", condition.as_str()), ("reason", kind.as_str())];
        line(out, "problem_gauge", &labels, u8::from(confirmed.contains(&kind)));
    }
    head(out, "counter", "problem_counter", "How many faults of this type were confirmed since the probe began.");
    for (kind, _) in shown {
        let count = draft.confirmations.get(&kind).copied().unwrap_or_default();
        line(out, "problem_counter", &[("reason", kind.as_str())], count);
    }
}

fn head(out: &mut String, kind: &str, name: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let _ = writeln!(out, "{name}{labels} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Counts;
    use nrh_api::NodeRuntimeHealthStatus;
    use nrh_core::examples::fault;

    #[tokio::test]
    async fn faults_and_calls_are_counted() {
        let mut status = NodeRuntimeHealthStatus {
            faults: vec![fault(FaultType::HungContainer), fault(FaultType::HungContainer)],
            ..NodeRuntimeHealthStatus::default()
        };
        status.faults[1].state = FaultState::Confirmed;
        let mut draft = Draft::new(status, tokio::time::Instant::now(), None, 0);
        draft.confirmations.insert(FaultType::HungContainer, 3);
        draft.bundles = Counts { kept: 4, lost: 1 };
        let calls = CallCounts {
            out: [("lists".to_owned(), 1)].into(),
            abandoned: [("tasks".to_owned(), 2)].into(),
            stalled_seconds: [("lists".to_owned(), 2.5)].into(),
        };
        let text = text(Some(&draft), &calls, Hints { read: 7, dropped: 5, checks: 2 });
        assert!(text.contains("nrh_probe_kernel_records_total{outcome=\"Dropped\"} 5\n"), "{text}");
        assert!(text.contains("nrh_probe_kernel_triggers_total 2\n"), "{text}");
        assert!(text.contains("nrh_probe_evidence_bundles_total{outcome=\"Lost\"} 1\n"), "{text}");
        assert!(text.contains("nrh_probe_faults{type=\"HungContainer\",state=\"Suspected\"} 1\n"), "{text}");
        let gauge = "problem_gauge{type=\"ContainersUnresponsive\",reason=\"HungContainer\"} 1\n";
        assert!(text.contains(gauge) && text.contains("problem_counter{reason=\"HungContainer\"} 3\n"), "{text}");
        assert!(text.contains("problem_gauge{type=\"KubeletUnhealthy\",reason=\"KubeletDown\"} 0\n"), "{text}");
        assert!(!text.contains("ProbeNotReporting"), "what the controller finds is not the probe's to count: {text}");
        assert!(text.contains("nrh_probe_calls_in_flight{collector=\"lists\"} 1\n"));
        assert!(text.contains("nrh_probe_calls_abandoned_total{collector=\"tasks\"} 2\n"));
        assert!(text.contains("nrh_probe_stalled_seconds_total{collector=\"lists\"} 2.5\n"));
    }
}
