//! `/livez` and `/metrics`, where an address was given.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::watch;

use crate::node::lanes::{Lanes, Outstanding};
use crate::node::report::draft::Draft;

/// The probe judges far more often than this; when it does not, something in it is stuck.
const STUCK: Duration = Duration::from_mins(2);
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Newest = watch::Receiver<Option<Arc<Draft>>>;

/// Serves until the probe ends. An address that cannot be bound is told, and the probe goes on without.
pub(super) async fn serve(address: SocketAddr, lanes: Arc<Lanes>, newest: Newest) {
    let listener = match tokio::net::TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%address, %error, "cannot listen: no metrics are served");
            return;
        }
    };
    let (began, alive) = (tokio::time::Instant::now(), newest.clone());
    let live = move || async move {
        let newest = alive.borrow().as_ref().map_or(began, |draft| draft.made);
        if newest.elapsed() < STUCK {
            (StatusCode::OK, "ok")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "nothing was judged for two minutes")
        }
    };
    let metrics = move || async move {
        let draft = newest.borrow().clone();
        ([(header::CONTENT_TYPE, OPENMETRICS)], text(draft.as_deref(), &lanes.outstanding())).into_response()
    };
    let app = Router::new().route("/livez", get(live)).route("/metrics", get(metrics));
    if let Err(error) = axum::serve(listener, app).await {
        tracing::error!(%error, "the metrics server ended");
    }
}

/// Everything as text. Labels are closed sets, so nothing needs escaping.
fn text(draft: Option<&Draft>, calls: &Outstanding) -> String {
    let mut out = String::new();
    gauge(&mut out, "nrh_probe_lane_age_seconds", "Seconds since the last completed look of a lane.");
    let older = draft.map_or(0, |draft| draft.made.elapsed().as_secs());
    for lane in draft.iter().filter_map(|draft| draft.status.probe.as_ref()).flat_map(|probe| &probe.lanes) {
        if let Some(age) = lane.age_seconds {
            line(&mut out, "nrh_probe_lane_age_seconds", &[("lane", &lane.name)], age.saturating_add(older));
        }
    }
    gauge(&mut out, "nrh_probe_calls_out", "Calls that are out now.");
    for (lane, count) in &calls.out {
        line(&mut out, "nrh_probe_calls_out", &[("lane", lane)], *count);
    }
    let _ = writeln!(
        out,
        "# HELP nrh_probe_calls_given_up Calls dropped without an answer.\n# TYPE nrh_probe_calls_given_up counter"
    );
    for (lane, count) in &calls.given_up {
        line(&mut out, "nrh_probe_calls_given_up_total", &[("lane", lane)], *count);
    }
    gauge(&mut out, "nrh_probe_faults", "Faults that stand, by type and state.");
    let mut faults: BTreeMap<(&str, String), u64> = BTreeMap::new();
    for fault in draft.iter().flat_map(|draft| &draft.status.faults) {
        *faults.entry((fault.kind.as_str(), format!("{:?}", fault.state))).or_default() += 1;
    }
    for ((kind, state), count) in &faults {
        line(&mut out, "nrh_probe_faults", &[("type", kind), ("state", state)], *count);
    }
    out.push_str("# EOF\n");
    out
}

fn gauge(out: &mut String, name: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
}

fn line(out: &mut String, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
    let _ = writeln!(out, "{name}{{{}}} {value}", labels.join(","));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::NodeRuntimeHealthStatus;
    use crate::core::fault::FaultType;
    use crate::core::tracker::tests::fault;

    #[tokio::test]
    async fn faults_and_calls_are_counted() {
        let status = NodeRuntimeHealthStatus {
            faults: vec![fault(FaultType::HungContainer), fault(FaultType::HungContainer)],
            ..NodeRuntimeHealthStatus::default()
        };
        let draft = Draft::new(status, tokio::time::Instant::now(), None, 0);
        let calls = Outstanding { out: [("lists", 1)].into(), given_up: [("tasks", 2)].into() };
        let text = text(Some(&draft), &calls);
        assert!(text.contains("nrh_probe_faults{type=\"HungContainer\",state=\"Suspected\"} 2\n"), "{text}");
        assert!(text.contains("nrh_probe_calls_out{lane=\"lists\"} 1\n"));
        assert!(text.contains("nrh_probe_calls_given_up_total{lane=\"tasks\"} 2\n"));
        assert!(text.ends_with("# EOF\n"));
    }
}
