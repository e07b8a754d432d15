//! A no, with its reason and when to ask again.

use std::time::Duration;

use super::{BlockReason, Blocked};
use crate::fault::MAX_LINE;
use crate::text::bounded;

/// Least time until the next look: a decision never chases its own tail.
const SOONEST: Duration = Duration::from_millis(100);

/// Why something is not done now.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub reason: BlockReason,
    message: String,
    until: Option<Duration>,
}

impl Block {
    /// A no that lasts until something happens. The message must not name ages: it is written to objects, and
    /// would change with every look.
    pub fn new(reason: BlockReason, message: &str) -> Self {
        Self { reason, message: bounded(message, MAX_LINE), until: None }
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether it ends with the next look of the probe.
    pub const fn awaits_look(&self) -> bool {
        matches!(self.reason, BlockReason::ProbeNotReporting | BlockReason::StaleEvidence)
    }

    /// Whether nobody can tell which rule the fault is for.
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self.reason, BlockReason::PodUnknown | BlockReason::RuleAmbiguous)
    }

    /// Whether the step may be taken at another time, and nothing else speaks against it: no harsher one replaces it.
    pub const fn waits_for_window(&self) -> bool {
        matches!(self.reason, BlockReason::OutsideWindow | BlockReason::NodeLimit)
    }

    /// Whether waiting for that long is in vain: the node has had its turn, which comes back later than that.
    pub fn outlasts(&self, wait: Duration) -> bool {
        self.reason == BlockReason::NodeLimit && self.until.is_some_and(|until| until > wait)
    }

    /// A no that may end by the passing of time.
    pub fn until(mut self, until: Duration) -> Self {
        self.until = Some(until);
        self
    }

    /// The no as it is told.
    pub fn about(self, node: String, fault: Option<&str>, policy: Option<&str>, wake: &mut Wake) -> Blocked {
        if let Some(until) = self.until {
            wake.at(until);
        }
        Blocked {
            node,
            fault_id: fault.map(ToOwned::to_owned),
            policy: policy.map(ToOwned::to_owned),
            reason: self.reason,
            message: self.message,
        }
    }
}

/// When to decide again, if nothing happens before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wake(Option<Duration>);

impl Wake {
    /// At the latest after `wait`.
    pub fn at(&mut self, wait: Duration) {
        let wait = wait.max(SOONEST);
        self.0 = Some(self.0.map_or(wait, |known| known.min(wait)));
    }

    /// When something of that age passes the limit; not at all if it has.
    pub fn when_past(&mut self, limit: Duration, age: Duration) {
        if age <= limit {
            self.at(limit.saturating_sub(age));
        }
    }

    /// The time to wait.
    pub const fn get(self) -> Option<Duration> {
        self.0
    }
}
