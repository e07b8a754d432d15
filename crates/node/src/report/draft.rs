//! A report before it is sent: what the probe knows, since when, and which changes are reported at once.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::pace::ReportActivity;
use crate::evidence::Counts;
use nrh_api::NodeRuntimeHealthStatus;
use nrh_core::fault::FaultType;

/// The newest report. Once it exists, no older one is sent.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The probe's part of the status. Its ages are relative to `made`.
    pub status: NodeRuntimeHealthStatus,
    /// When it was made.
    pub made: Instant,
    /// When a new fault was last suspected.
    pub suspected: Option<Instant>,
    /// Number of requests for a fresh check answered since the probe started.
    pub answers: u64,
    /// Number of faults confirmed per kind since the probe started: counted, not reported.
    pub confirmations: BTreeMap<FaultType, u64>,
    /// Number of bundles of evidence kept and lost since the probe started: counted, not reported.
    pub bundles: Counts,
    /// The part of the status whose changes are reported at once.
    facts: NodeRuntimeHealthStatus,
}

impl Draft {
    /// Creates a draft of this status, as of `made`.
    pub fn new(status: NodeRuntimeHealthStatus, made: Instant, suspected: Option<Instant>, answers: u64) -> Self {
        let facts = facts(&status);
        Self { status, made, suspected, answers, confirmations: BTreeMap::new(), bundles: Counts::default(), facts }
    }

    /// Whether both reports are the same, apart from ages and counts that change by themselves.
    pub fn same_facts(&self, other: &Self) -> bool {
        self.facts == other.facts
    }

    /// Returns what the report interval depends on.
    pub fn activity(&self, now: Instant, remediation: bool) -> ReportActivity {
        ReportActivity {
            suspected: self.suspected.map(|since| now.saturating_duration_since(since)),
            // Faults that are remediated or that pass. A lasting fault of the node itself can persist for weeks on all
            // nodes at once: for it the interval at rest is sufficient.
            faults: self.status.faults.iter().any(|fault| !fault.kind.spec().lasting),
            remediation,
        }
    }

    /// Returns the status with every age as of `now`.
    pub fn as_of(&self, now: Instant) -> NodeRuntimeHealthStatus {
        let older = now.saturating_duration_since(self.made).as_secs();
        let mut status = self.status.clone();
        for fault in &mut status.faults {
            fault.check_age_seconds = fault.check_age_seconds.saturating_add(older);
            fault.duration_seconds = fault.duration_seconds.saturating_add(older);
        }
        for collector in status.probe.iter_mut().flat_map(|probe| &mut probe.collectors) {
            collector.age_seconds = collector.age_seconds.map(|age| age.saturating_add(older));
        }
        status
    }

    /// Returns the status to send: as of `now`, with the interval until the next report.
    pub fn sent(&self, now: Instant, wall: Timestamp, sequence: u64, interval: Duration) -> NodeRuntimeHealthStatus {
        let mut status = self.as_of(now);
        if let Some(probe) = &mut status.probe {
            probe.sequence = sequence;
            probe.heartbeat_at = Some(wall);
            let seconds = interval.as_secs().saturating_add(u64::from(interval.subsec_nanos() > 0));
            probe.interval_seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
        }
        status
    }
}

/// Returns the status without everything that changes by itself: those parts are sent with the next heartbeat.
fn facts(status: &NodeRuntimeHealthStatus) -> NodeRuntimeHealthStatus {
    let mut facts = status.clone();
    for fault in &mut facts.faults {
        (fault.duration_seconds, fault.check_age_seconds, fault.confirmations) = (0, 0, 0);
        fault.evidence = Vec::new();
        fault.message = String::new();
        // The bundle's name becomes known shortly after the confirmation: the next heartbeat reports it.
        fault.evidence_bundle = None;
        if let Some(process) = &mut fault.target.process {
            (process.state, process.wchan) = (String::new(), None);
        }
    }
    if let Some(probe) = &mut facts.probe {
        (probe.sequence, probe.heartbeat_at, probe.interval_seconds) = (0, None, 0);
        for collector in &mut probe.collectors {
            (collector.age_seconds, collector.message) = (None, String::new());
        }
    }
    if let Some(runtime) = &mut facts.runtime {
        (runtime.sandboxes, runtime.containers) = (0, 0);
    }
    for condition in &mut facts.conditions {
        condition.message = String::new();
    }
    facts
}
