//! Nodes of a timeline with a flapping `Ready`.

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::Offset;

/// Maximum number of changes of one node: about as many as one node was seen to make in a month.
const MOST: u32 = 10_000;

/// `Ready` changes again and again, the first time at the moment of the event.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FlapsEvent {
    /// Number of changes.
    pub times: u32,
    /// Time between two changes.
    pub every: Offset,
}

impl FlapsEvent {
    /// Time from the first change to the last.
    pub fn lasts(&self) -> std::time::Duration {
        self.every.0.saturating_mul(self.times.saturating_sub(1))
    }

    /// Checks that the event is possible.
    ///
    /// # Errors
    /// There are more changes than a timeline allows, or there is no time between them.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=MOST).contains(&self.times), "flaps: times: expected 1 to {MOST}, found {}", self.times);
        ensure!(!self.every.0.is_zero(), "flaps: every: expected at least 1s, found {}", self.every);
        Ok(())
    }
}
