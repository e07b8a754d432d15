//! The stored history of a node's changes.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CEILING, CUT_OFF, PER_CHANGE, between};
use crate::tri_state::TriState;

/// Minimum number of changes that reach the cut-off.
const FEWEST: u32 = CUT_OFF.div_ceil(PER_CHANGE);
/// How far in the future a stored history may end: two controllers have different clocks, or a clock was set.
const SKEW: SignedDuration = SignedDuration::from_hours(24);
/// How old a stored history may be: ten years, longer than any controller has run.
const OLDEST: SignedDuration = SignedDuration::from_hours(24 * 3_650);
/// The status of `Ready`, and since when by the node's clock. Together they identify one state.
pub type ReadySeen = (TriState, Option<Timestamp>);

/// The history of a node's changes, so that the next controller knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlapRecord {
    /// How often Ready has changed since the history began.
    pub ready_transitions: u32,
    /// How often a confirmed fault was gone and came back.
    pub recurrences: u32,
    /// When the first of these changes was seen.
    pub tracked_since: Timestamp,
    /// When the last of them was seen.
    pub last_change_at: Timestamp,
    /// The penalty right after the last one: 1000 for each change, half of it gone after 30 minutes.
    #[schemars(range(max = 12_000))]
    pub penalty: u32,
    /// Since when the node flaps; absent = it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flapping_since: Option<Timestamp>,
    /// How Ready stood when this was written: True, False or Unknown.
    pub ready: TriState,
    /// Since when it stood so, by the word of the Node: another time means that it has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_since: Option<Timestamp>,
}

impl FlapRecord {
    /// All changes.
    pub fn changes(&self) -> u32 {
        self.ready_transitions.saturating_add(self.recurrences)
    }

    /// Mean time between two changes, to the second.
    pub fn rhythm(&self) -> Duration {
        let intervals = u64::from(self.changes().saturating_sub(1).max(1));
        Duration::from_secs(between(self.tracked_since.as_second(), self.last_change_at.as_second()) / intervals)
    }

    /// Whether a controller can have written this.
    ///
    /// # Errors
    /// What was expected and what was found, in one sentence.
    pub(super) fn check(&self, wall: Timestamp) -> Result<(), String> {
        let (changes, most) = (self.changes(), CEILING);
        let explained = changes.saturating_mul(PER_CHANGE).min(most);
        if changes == 0 {
            return Err("expected at least one change, found none".to_owned());
        }
        if self.penalty > explained {
            return Err(format!("expected a penalty of at most {explained} for {changes}, found {}", self.penalty));
        }
        if self.tracked_since > self.last_change_at {
            return Err(format!(
                "expected since before last, found {} and {}",
                self.tracked_since, self.last_change_at
            ));
        }
        if self.last_change_at.duration_since(wall) > SKEW {
            return Err(format!("expected a last change before now, found {}", self.last_change_at));
        }
        if wall.duration_since(self.tracked_since) > OLDEST {
            return Err(format!("expected a first change within the last ten years, found {}", self.tracked_since));
        }
        match self.flapping_since {
            Some(_) if changes < FEWEST => {
                Err(format!("expected {FEWEST} changes of a node that flaps, found {changes}"))
            }
            Some(began) if began < self.tracked_since || began > self.last_change_at => {
                Err(format!("expected flappingSince between since and last, found {began}"))
            }
            _ => Ok(()),
        }
    }
}
