//! Objects and texts that the controller reads. A decision is made from each: one odd object must not end the controller,
//! which serves all nodes.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::api::suspension::MAX_SUSPENSION_TEXT;
use crate::api::view::{command, node, pods, report};
use crate::api::{NodeCommand, NodeRemediation, NodeRuntimeHealth, RemediationPolicy, convert};
use crate::controller::cache::arrival::ReportArrivals;
use crate::controller::cache::job;
use crate::controller::cache::report::controller_status;
use crate::controller::{ledger as stored, shipped_policy};
use crate::core::engine::plan;
use crate::core::fault::MAX_FAULTS;
use crate::core::plan::PlanSettings;
use crate::core::snapshot::{Heartbeat, Ledger, NodeView, ReportView, Snapshot, TriState};
use crate::node::fuzz::agent;
use crate::node::fuzz::checks::is_bounded;

const NODE: &str = "w1";
/// A report of a container that hangs.
const SICK: &[u8] = include_bytes!("../../fuzz/corpus/health_object/taken-sick.json");

/// The first of October 2026.
fn now() -> Timestamp {
    Timestamp::from_second(1_790_812_800).unwrap_or_default()
}

/// What is written is read back as it was.
fn is_stable<T: Serialize + DeserializeOwned>(value: &T) {
    let written = serde_json::to_string(value).unwrap_or_default();
    let read = serde_json::from_str::<T>(&written);
    assert!(read.is_ok(), "what is written is not read: {written}");
    let again = read.ok().and_then(|value| serde_json::to_string(&value).ok());
    assert_eq!(again.as_ref(), Some(&written));
}

/// The report of this object, as new as can be.
fn reported(object: &NodeRuntimeHealth) -> ReportView {
    let (mut view, start) = (report::view(object), Instant::now());
    let mut arrivals = ReportArrivals::default();
    if let Some(probe) = object.status.as_ref().and_then(|status| status.probe.as_ref()) {
        let (mut before, later) = (probe.clone(), Duration::from_secs(5));
        before.sequence = probe.sequence.wrapping_sub(1);
        arrivals.note(&before, None, false, start, Duration::ZERO);
        arrivals.note(probe, None, false, start + later, later);
    }
    let now = start + Duration::from_secs(6);
    report::age(&mut view, arrivals.age(now), arrivals.is_age_known());
    view
}

/// A node on which a container hangs, under the shipped policy.
fn sick() -> Snapshot {
    static WORLD: LazyLock<Snapshot> = LazyLock::new(|| {
        let policy = shipped_policy::shipped().ok().and_then(|policy| convert::policy(&policy).ok());
        let report = serde_json::from_slice(SICK).map(|object| reported(&object)).unwrap_or_default();
        let mut snapshot = Snapshot {
            now: now(),
            policies: policy.into_iter().collect(),
            ledger: Some(Ledger::default()),
            epoch: 1,
            ceiling: 10,
            ..Snapshot::default()
        };
        place(&mut snapshot, NodeView { ready: TriState::True, ..NodeView::default() }, report);
        snapshot
    });
    WORLD.clone()
}

/// Puts a node with its report into place, as the cache joins them.
fn place(snapshot: &mut Snapshot, mut node: NodeView, report: ReportView) {
    node.uid = report.node_uid.clone().unwrap_or_default();
    snapshot.nodes.insert(NODE.to_owned(), node);
    snapshot.reports.insert(NODE.to_owned(), report);
}

/// Decides, twice the same, and within bounds.
fn decide(snapshot: &Snapshot) {
    let settings = PlanSettings::default();
    let made = plan(snapshot, &settings);
    assert_eq!(made, plan(snapshot, &settings));
    assert!(made.next.is_none_or(|next| !next.is_zero()), "the next look is now");
    assert!(made.effects.len() <= 16 + 4 * snapshot.remediations.len(), "{} effects for one node", made.effects.len());
}

pub(super) fn health_object(data: &[u8]) -> bool {
    let Ok(object) = serde_json::from_slice::<NodeRuntimeHealth>(data) else { return false };
    is_stable(&object);
    let report = reported(&object);
    assert!(report.faults.len() <= MAX_FAULTS);
    let interval = report.heartbeat.as_ref().map_or(1, |Heartbeat { interval, .. }| interval.as_secs());
    assert!((1..=3600).contains(&interval), "the next heartbeat comes within {interval} s");
    assert!(report.suspended.as_ref().is_none_or(|why| is_bounded(why, MAX_SUSPENSION_TEXT)));
    assert!(!report::differs(&report, &report));
    let sequence = report.heartbeat.as_ref().map(|beat| beat.sequence);
    let sequence = sequence.or_else(|| Some(object.status.as_ref()?.probe.as_ref()?.sequence));
    assert_eq!(controller_status(&object).sequence, sequence);
    for ready in [TriState::True, TriState::False, TriState::Unknown] {
        let mut snapshot = sick();
        place(&mut snapshot, NodeView { ready, ..NodeView::default() }, report.clone());
        decide(&snapshot);
    }
    true
}

/// The command to a node, as the controller and the probe read it.
pub(super) fn command_object(data: &[u8]) -> bool {
    let read = agent::own_command(data);
    let Ok(object) = serde_json::from_slice::<NodeCommand>(data) else { return read.is_some() };
    is_stable(&object);
    assert_eq!(read.and_then(|command| command.command), object.spec.command, "both read the same command");
    let mut snapshot = sick();
    snapshot.commands.insert(NODE.to_owned(), command::view(&object));
    decide(&snapshot);
    true
}

pub(super) fn policy_object(data: &[u8]) -> bool {
    let Ok(object) = serde_json::from_slice::<RemediationPolicy>(data) else { return false };
    is_stable(&object);
    match convert::policy(&object) {
        Ok(policy) => {
            assert!(!policy.rules.is_empty() && policy.rules.iter().all(|rule| !rule.steps.is_empty()));
            decide(&Snapshot { policies: vec![policy], ..sick() });
            true
        }
        Err(invalid) => {
            assert!(!invalid.0.is_empty(), "refused, and not said why");
            false
        }
    }
}

pub(super) fn remediation_object(data: &[u8]) -> bool {
    let Ok(object) = serde_json::from_slice::<NodeRemediation>(data) else { return false };
    is_stable(&object);
    let mut remediation = convert::remediation(&object);
    is_stable(&convert::remediation_status(&remediation));
    decide(&Snapshot { remediations: BTreeMap::from([(remediation.name.clone(), remediation.clone())]), ..sick() });
    // And as one of this very node.
    let mut snapshot = sick();
    NODE.clone_into(&mut remediation.node);
    remediation.node_uid = snapshot.nodes.get(NODE).map(|node| node.uid.clone()).unwrap_or_default();
    if let Some(policy) = snapshot.policies.first() {
        remediation.policy.clone_from(&policy.name);
    }
    snapshot.remediations.insert(remediation.name.clone(), remediation);
    decide(&snapshot);
    true
}

pub(super) fn node_object(data: &[u8]) -> bool {
    let Ok(object) = serde_json::from_slice::<Node>(data) else { return false };
    let mut snapshot = sick();
    if let Some(report) = snapshot.reports.get(NODE).cloned() {
        place(&mut snapshot, node::view(&object), report);
    }
    decide(&snapshot);
    true
}

pub(super) fn pod_object(data: &[u8]) -> bool {
    let Ok(object) = serde_json::from_slice::<Pod>(data) else { return false };
    let Some(mut suspect) = pods::suspect(&object, now()) else { return false };
    assert!(suspect.waiting.len() <= 16 && suspect.failed.len() <= 16);
    for waiting in &suspect.waiting {
        assert!(is_bounded(&waiting.name, 253) && is_bounded(&waiting.reason, 64));
    }
    assert!(suspect.failed.iter().all(|failed| is_bounded(&failed.name, 253)));
    NODE.clone_into(&mut suspect.node);
    let read = BTreeMap::from([(NODE.to_owned(), Duration::ZERO)]);
    decide(&Snapshot { pods: vec![suspect], pods_read: read, ..sick() });
    true
}

pub(super) fn ledger(data: &[u8]) -> bool {
    let Some(ledger) = std::str::from_utf8(data).ok().and_then(stored::read) else { return false };
    let written = serde_json::to_string(&ledger).unwrap_or_default();
    assert_eq!(stored::read(&written).as_ref(), Some(&ledger));
    decide(&Snapshot { ledger: Some(ledger), ..sick() });
    true
}

pub(super) fn job_outcome(data: &[u8]) -> bool {
    let message = String::from_utf8_lossy(data);
    let outcome = job::outcome(&message, "op-1");
    if let Some(outcome) = &outcome {
        assert!(outcome.operation_id == "op-1" && message.len() <= 4096);
        assert_eq!(job::outcome(&message, "op-2"), None, "it is of one operation");
        is_stable(outcome);
    }
    outcome.is_some()
}
