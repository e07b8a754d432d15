//! A report before it is sent: what is known, when it was known, and which of it is a fact.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::pace::Pulse;
use crate::api::NodeRuntimeHealthStatus;
use crate::core::fault::{Fault, FaultType};
use crate::node::evidence::Counts;

/// The newest thing to say. An older one is never sent once this exists.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The probe's part of the status. Its ages hold at `made`.
    pub status: NodeRuntimeHealthStatus,
    /// When it was made.
    pub made: Instant,
    /// When something new was last suspected.
    pub suspected: Option<Instant>,
    /// How many requests for a fresh check were answered since the probe began.
    pub answers: u64,
    /// How many faults of each kind were confirmed since the probe began: counted, not reported.
    pub confirmations: BTreeMap<FaultType, u64>,
    /// How many bundles of evidence were kept and lost since the probe began: counted, not reported.
    pub bundles: Counts,
    /// The part of the status whose change is reported at once.
    facts: NodeRuntimeHealthStatus,
}

impl Draft {
    /// Of this status, as of now.
    pub fn new(status: NodeRuntimeHealthStatus, made: Instant, suspected: Option<Instant>, answers: u64) -> Self {
        let facts = facts(&status);
        Self { status, made, suspected, answers, confirmations: BTreeMap::new(), bundles: Counts::default(), facts }
    }

    /// Whether both say the same, apart from ages and figures that change by themselves.
    pub fn same_facts(&self, other: &Self) -> bool {
        self.facts == other.facts
    }

    /// Faults that are healed, or pass. Those of the node itself may stand for weeks on all nodes at once: for them the
    /// rhythm of rest will do.
    fn acute(&self) -> impl Iterator<Item = &Fault> {
        self.status.faults.iter().filter(|fault| !fault.kind.spec().lasting)
    }

    /// What the rhythm of reports depends on.
    pub fn pulse(&self, now: Instant, remediation: bool) -> Pulse {
        Pulse {
            suspected: self.suspected.map(|since| now.saturating_duration_since(since)),
            faults: self.acute().next().is_some(),
            remediation,
        }
    }

    /// The status with every age as of now.
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

    /// The status as it is sent: as of now, with the promise for the next one.
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

/// The status without everything that changes by itself: it goes up with the next heartbeat.
fn facts(status: &NodeRuntimeHealthStatus) -> NodeRuntimeHealthStatus {
    let mut facts = status.clone();
    for fault in &mut facts.faults {
        (fault.duration_seconds, fault.check_age_seconds, fault.confirmations) = (0, 0, 0);
        fault.evidence = Vec::new();
        fault.message = String::new();
        // Its name follows a moment after the fault is confirmed: the next heartbeat tells it.
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
