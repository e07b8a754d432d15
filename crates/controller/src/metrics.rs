//! The metrics, whose names do not change.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry, Unit};

use super::cache::State;
use super::cache::fold::Ingest;
use super::status::is_without_probe;
use nrh_api::health::ProbeMode;
use nrh_api::{NodeCommand, RemediationConfig};
use nrh_core::fault::FaultType;
use nrh_core::plan::{Health, Plan};
use nrh_core::snapshot::TriState;

/// One label with a closed set of values.
type Label<V = &'static str> = [(&'static str, V); 1];

/// The controller's metrics. No label takes a value that somebody outside chooses.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    remediations: Family<Label, Gauge>,
    acts: Family<[(&'static str, &'static str); 2], Counter>,
    holds: Family<Label<String>, Gauge>,
    faults: Family<Label, Gauge>,
    nodes: Family<Label, Gauge>,
    unreadable: Family<Label, Gauge>,
    decisions: Histogram,
    leader: Gauge,
    admission: Gauge,
    suspended: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("nrh");
        let of = &mut registry;
        let remediations = added(of, "remediations", "Remediations by phase");
        let acts = added(of, "actions", "Actions by kind and result");
        let holds = added(of, "blocked", "Steps that are blocked now, by reason");
        let faults = added(of, "faults", "Confirmed faults by type");
        let nodes = added(of, "nodes", "Nodes by health");
        let unreadable = added(of, "unreadable_objects", "Objects that cannot be read or are not valid, by kind");
        let decisions = Histogram::new(exponential_buckets(0.000_25, 4.0, 8));
        of.register_with_unit("plan_duration", "Time of one planning pass", Unit::Seconds, decisions.clone());
        let leader = added(of, "leader", "1 while this replica leads and has listed every kind");
        let admission = added(of, "admission_enforced", "1 while the admission policies are known to be in force");
        let suspended = added(of, "suspended", "1 while a RemediationConfig suspends all remediation");
        Self { registry, remediations, acts, holds, faults, nodes, unreadable, decisions, leader, admission, suspended }
    }
}

/// A new metric, under its name in the registry.
fn added<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

impl Metrics {
    /// The text that is scraped.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Counts an action.
    pub fn act(&self, action: &'static str, outcome: &'static str) {
        self.acts.get_or_create(&[("action", action), ("result", outcome)]).inc();
    }

    /// Records whether this replica leads and decides.
    pub fn leads(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    /// Records one decision and what it saw.
    pub fn decided(&self, state: &State, plan: &Plan, seconds: f64) {
        self.decisions.observe(seconds);
        self.admission.set(state.snapshot.admission_not_enforced.is_none().into());
        self.suspended.set(state.snapshot.suspended.is_some().into());
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.remediations.clear();
        let waiting = state.snapshot.manual_requests.values().map(|_| nrh_core::remediation::Phase::Pending);
        for phase in state.snapshot.remediations.values().map(|remediation| remediation.phase).chain(waiting) {
            self.remediations.get_or_create(&[("phase", phase.as_str())]).inc();
        }
        self.holds.clear();
        for blocked in &plan.blocked {
            self.holds.get_or_create(&[("reason", format!("{:?}", blocked.reason))]).inc();
        }
        let mut faults: BTreeMap<FaultType, usize> = FaultType::ALL.iter().map(|kind| (*kind, 0)).collect();
        let mut nodes = BTreeMap::from(Health::ALL.map(|health| (health, 0)));
        // Of a silent probe the silence counts (ProbeNotReporting), and not what it saw last.
        let speaks = |node: &str| plan.nodes.get(node).is_some_and(|n| n.probe_reporting == TriState::True);
        let reports = state.snapshot.reports.iter().filter(|(node, _)| speaks(node));
        let reported = reports.flat_map(|(_, view)| &view.faults).map(|f| &f.fault);
        let found = plan.nodes.values().flat_map(|status_view| &status_view.cluster_faults);
        for fault in reported.chain(found).filter(|f| f.state == nrh_core::fault::FaultState::Confirmed) {
            *faults.entry(fault.kind).or_default() += 1;
        }
        // Nobody waits for a report of a node that is to have no probe.
        let is_to_have_none = |node: &String| {
            let mode = state.controller_statuses.get(node).and_then(|current| current.probe_mode);
            mode != Some(ProbeMode::Unit) && state.snapshot.nodes.get(node).is_some_and(is_without_probe)
        };
        for (node, status_view) in &plan.nodes {
            if status_view.health != Health::Unknown || !is_to_have_none(node) {
                *nodes.entry(status_view.health).or_default() += 1;
            }
        }
        for (kind, n) in faults {
            self.faults.get_or_create(&[("type", kind.as_str())]).set(count(n));
        }
        for (health, n) in nodes {
            self.nodes.get_or_create(&[("health", health.as_str())]).set(count(n));
        }
        let bad_policies = state.policies.values().filter(|row| !row.flaws().is_empty()).count();
        let bad_reports = state.controller_statuses.values().filter(|current| current.unreadable).count();
        let bad_remediations = state.snapshot.unreadable.len();
        let bad = [
            ("RemediationPolicy", bad_policies),
            ("NodeRuntimeHealth", bad_reports),
            ("NodeRemediation", bad_remediations),
        ];
        let others = [RemediationConfig::KIND, NodeCommand::KIND, Node::KIND, DaemonSet::KIND, Job::KIND, Pod::KIND];
        let others = others.map(|kind| (kind, state.unread.count(kind)));
        for (kind, n) in bad.into_iter().chain(others) {
            self.unreadable.get_or_create(&[("kind", kind)]).set(count(n));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrh_core::plan::NodeStatusView;
    use nrh_core::snapshot::{ReportView, ReportedFault};
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn what_a_silent_probe_saw_last_is_no_fault_of_now() {
        let fault = serde_json::json!({"id": "f", "type": "HungContainer", "severity": "High", "state": "Confirmed",
            "message": "m", "firstSeen": "2025-01-01T00:00:00Z", "subject": {"kind": "Container"}});
        let fault = ReportedFault { fault: serde_json::from_value(fault).unwrap(), checked: Duration::ZERO };
        let view = ReportView { faults: vec![fault], ..ReportView::default() };
        let cache = crate::cache::Cache::default();
        cache.lock().snapshot.reports = ["w1", "w2"].map(|node| (node.to_owned(), view.clone())).into();
        let says = |probe_reporting| Arc::new(NodeStatusView { probe_reporting, ..NodeStatusView::default() });
        let labels = [("runtimehealth.io/probe".to_owned(), "disabled".to_owned())].into();
        let without = nrh_core::snapshot::NodeView { labels, ..Default::default() };
        cache.lock().snapshot.nodes = ["w2", "w3"].map(|node| (node.to_owned(), without.clone())).into();
        let nodes = [("w1", TriState::True), ("w2", TriState::False), ("w3", TriState::Unknown)];
        let nodes = nodes.map(|(node, is)| (node.to_owned(), says(is)));
        let plan = Plan { nodes: nodes.into(), ..Plan::default() };
        let metrics = Metrics::default();
        metrics.decided(&cache.lock(), &plan, 0.0);
        let text = metrics.text().unwrap();
        assert!(text.contains("nrh_faults{type=\"HungContainer\"} 1\n"), "{text}");
        assert!(text.contains("nrh_nodes{health=\"Unknown\"} 1\n"), "{text}");
    }

    #[test]
    fn the_text_names_every_metric_once_something_was_decided() {
        let metrics = Metrics::default();
        metrics.act("Cordon", "Done");
        metrics.leads(true);
        metrics.decided(&crate::cache::Cache::default().lock(), &Plan::default(), 0.001);
        let text = metrics.text().unwrap();
        for line in [
            "nrh_actions_total{action=\"Cordon\",result=\"Done\"} 1",
            "nrh_leader 1",
            "nrh_admission_enforced",
            "nrh_suspended 0",
            "nrh_nodes{health=\"Unhealthy\"} 0",
            "nrh_faults{type=\"HungContainer\"} 0",
            "nrh_plan_duration_seconds_count 1",
            "nrh_unreadable_objects{kind=\"RemediationPolicy\"} 0",
            "nrh_unreadable_objects{kind=\"NodeRemediation\"} 0",
            "nrh_unreadable_objects{kind=\"Node\"} 0",
            "nrh_unreadable_objects{kind=\"NodeCommand\"} 0",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
