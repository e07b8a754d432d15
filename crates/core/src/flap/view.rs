//! What a decision reads of a history, and the fault of a node that flaps.

use std::time::Duration;

use jiff::SignedDuration;

use super::record::FlapRecord;
use super::{HALF_LIFE, QUIET, REUSE};
use crate::fault::{Fault, FaultState, FaultType, MAX_LINE};
use crate::text::{bounded, hash};

/// A history, as a decision sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlapView {
    /// The record that is reported and stored. It is not renewed with every change.
    pub record: FlapRecord,
    /// How long the node has been flapping. `None`: it does not flap now.
    pub flapping: Option<Duration>,
    /// Time since the last change, by the watcher. It is neither reported nor stored.
    pub unchanged: Duration,
    /// How long each confirmed fault was present in total, without short gaps, by the hash of its id. Empty while the node does
    /// not flap.
    pub stayed: Vec<(u64, Duration)>,
}

impl FlapView {
    /// What has happened, in one clause.
    pub fn describe(&self) -> String {
        let record = &self.record;
        let what = match (record.ready_transitions, record.recurrences) {
            (ready, 0) => format!("Ready changed {ready} times"),
            (0, faults) => format!("faults that were gone came again {faults} times"),
            (ready, faults) => {
                format!("Ready changed {ready} times and faults that were gone came again {faults} times")
            }
        };
        let took = SignedDuration::from_secs(
            record.last_change_at.as_second().saturating_sub(record.tracked_since.as_second()),
        );
        let every = SignedDuration::try_from(record.rhythm()).unwrap_or(SignedDuration::ZERO);
        format!("{what} in {took:#}, about every {every:#}, by {}", record.last_change_at)
    }

    /// How long a fault that comes and goes was present, while the node flaps.
    pub fn stayed(&self, fault: &Fault) -> Duration {
        let id = hash(&fault.id);
        let of_fault = self.stayed.iter().find(|(known, _)| *known == id && self.flapping.is_some());
        of_fault.filter(|_| fault.state == FaultState::Confirmed).map_or(Duration::ZERO, |(_, stayed)| *stayed)
    }

    /// The fault, while the node flaps. Its cause may be another fault on the node, or one that nothing detects.
    pub fn fault(&self, node: &str) -> Option<Fault> {
        let lasted = self.flapping?;
        Some(Fault {
            message: bounded(&self.describe(), MAX_LINE),
            impact:
                "pods are evicted and placed again with each change, and no time for which something lasts is reached"
                    .to_owned(),
            first_seen: self.record.flapping_since.unwrap_or(self.record.last_change_at),
            duration_seconds: lasted.as_secs(),
            confirmations: self.record.changes(),
            evidence: vec![
                format!(
                    "first change {}, penalty {} after the last one",
                    self.record.tracked_since, self.record.penalty
                ),
                format!(
                    "stable again below a penalty of {REUSE}, which halves every {} min, and after {} min without a change",
                    HALF_LIFE.as_secs() / 60,
                    QUIET.as_secs() / 60
                ),
            ],
            ..Fault::new(FaultType::NodeFlapping, node)
        })
    }
}
