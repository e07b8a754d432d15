//! Nodes that flap: their `Ready` changes again and again, or the same fault comes and goes.
//!
//! The figures and their names are those of BGP route-flap damping (RFC 2439, section 4.2). Each change adds to a *penalty*,
//! which decays by half in each *half-life*. From the *cut-off* on the node flaps, until the penalty is below the *reuse*
//! threshold. A *ceiling* limits how long that takes. A history with a penalty below half of the reuse threshold is forgotten.
//! Beyond the RFC, a node is stable again only after a quiet time in which the controller watched it.
//!
//! Moments are seconds since the watcher started, negative for earlier times. They never go back, so no clock of a node or of the
//! controller creates or hides a flap. The wall clock is used only where a history is stored and restored.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fault::{Fault, FaultState, FaultType, MAX_LINE, Severity, Subject, SubjectKind, Target};
use super::text::{bounded, hash};
use super::tri_state::TriState;

/// What one change adds to the penalty.
const PER_CHANGE: u32 = 1_000;
/// Penalty from which a node flaps: six changes in quick succession. Two reboots in a row make no more than five changes. A
/// change every eight minutes reaches it, one every nine minutes never does.
pub const CUT_OFF: u32 = 5_500;
/// Penalty below which a node is stable again.
const REUSE: u32 = 1_500;
/// Highest penalty: eight times the reuse threshold. So a node is stable again three half-lives after its last change.
pub const CEILING: u32 = 12_000;
/// Time in which a penalty decays by half.
pub const HALF_LIFE: Duration = Duration::from_mins(30);
/// Minimum time without a change, watched by one and the same controller, before a node counts as stable.
pub const QUIET: Duration = Duration::from_mins(10);
/// Penalty below which a history is forgotten.
const FORGOTTEN: u32 = REUSE / 2;
/// Minimum number of changes that reach the cut-off.
const FEWEST: u32 = CUT_OFF.div_ceil(PER_CHANGE);
/// How far in the future a stored history may end: two controllers have different clocks, or a clock was set.
const SKEW: SignedDuration = SignedDuration::from_hours(24);
/// How old a stored history may be: ten years, longer than any controller has run.
const OLDEST: SignedDuration = SignedDuration::from_hours(24 * 3_650);
/// 2^(-k/8) in parts of 65,536. Between two of them the decay is linear, with an error below 0.1%.
const EIGHTHS: [u64; 9] = [65_536, 60_097, 55_109, 50_535, 46_341, 42_495, 38_968, 35_734, 32_768];

/// Seconds since the watcher started.
pub type Moment = i64;

/// A change that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The Node's `Ready` has changed its status.
    Ready,
    /// A confirmed fault that was gone has come back.
    Fault,
}

/// The history of one node, of constant size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flap {
    ready: u32,
    faults: u32,
    /// The penalty at `last`.
    penalty: u32,
    since: Moment,
    last: Moment,
    /// Start of the quiet time: the last change, or the moment at which the history was restored.
    quiet_from: Moment,
    /// Since when it flaps.
    flapping: Option<Moment>,
}

fn between(from: Moment, to: Moment) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0)
}

/// What is left of a penalty after this number of seconds.
fn decayed(penalty: u32, seconds: u64) -> u32 {
    let half = HALF_LIFE.as_secs();
    let whole = u32::try_from(seconds / half).ok().and_then(|halvings| penalty.checked_shr(halvings)).unwrap_or(0);
    let eighths = seconds % half * 8;
    let (place, rest) = (usize::try_from(eighths / half).unwrap_or(0), eighths % half);
    let at = |place: usize| EIGHTHS.get(place).copied().unwrap_or(32_768);
    let factor = at(place) - (at(place) - at(place + 1)) * rest / half;
    u32::try_from(u64::from(whole) * factor / 65_536).unwrap_or(whole)
}

impl Flap {
    /// A history with its first change.
    pub fn first(change: Change, now: Moment) -> Self {
        let none = Self { ready: 0, faults: 0, penalty: 0, since: now, last: now, quiet_from: now, flapping: None };
        none.with(change, now)
    }

    /// Adds one change. A moment before the last change counts as that one.
    #[must_use]
    pub fn with(self, change: Change, now: Moment) -> Self {
        let now = now.max(self.last);
        let (ready, fault) = match change {
            Change::Ready => (1, 0),
            Change::Fault => (0, 1),
        };
        let penalty = self.penalty(now).saturating_add(PER_CHANGE).min(CEILING);
        Self {
            ready: self.ready.saturating_add(ready),
            faults: self.faults.saturating_add(fault),
            penalty,
            last: now,
            quiet_from: now.max(self.quiet_from),
            flapping: self.flapping.or_else(|| (penalty >= CUT_OFF).then_some(now)),
            ..self
        }
    }

    /// All changes since the history began.
    pub fn changes(&self) -> u32 {
        self.ready.saturating_add(self.faults)
    }

    /// The penalty now.
    pub fn penalty(&self, now: Moment) -> u32 {
        decayed(self.penalty, between(self.last, now))
    }

    /// Seconds since the last change.
    pub fn unchanged_for(&self, now: Moment) -> Moment {
        now.saturating_sub(self.last).max(0)
    }

    /// Whether the node flaps, as of the last change or [`Flap::settled`].
    pub fn is_flapping(&self) -> bool {
        self.flapping.is_some()
    }

    fn is_calm(&self, now: Moment) -> bool {
        self.penalty(now) < REUSE && between(self.quiet_from, now) >= QUIET.as_secs()
    }

    /// The history now, without a change since. `None`: nothing is left to remember.
    pub fn settled(self, now: Moment) -> Option<Self> {
        let flapping = self.flapping.filter(|_| !self.is_calm(now));
        let left = Self { flapping, ..self };
        (flapping.is_some() || self.penalty(now) >= FORGOTTEN).then_some(left)
    }

    /// Time until [`Flap::settled`] returns something else, without a change.
    pub fn settles_in(&self, now: Moment) -> Duration {
        let is_over = |seconds: u64| {
            let then = now.saturating_add_unsigned(seconds);
            if self.is_flapping() { self.is_calm(then) } else { self.penalty(then) < FORGOTTEN }
        };
        // Everything decays: no penalty outlives sixteen half-lives.
        let (mut low, mut high) = (0, 16 * HALF_LIFE.as_secs());
        while low < high {
            let middle = u64::midpoint(low, high);
            if is_over(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Duration::from_secs(low)
    }

    /// How long the node has been flapping.
    pub fn lasted(&self, now: Moment) -> Duration {
        self.flapping.map_or(Duration::ZERO, |since| Duration::from_secs(between(since, now)))
    }

    /// The record to store. `wall` is the wall clock at `now`, `seen` the status of `Ready` and since when.
    pub fn record(&self, now: Moment, wall: Timestamp, seen: ReadySeen) -> FlapRecord {
        let at = |moment: Moment| {
            let then = wall.as_second().saturating_sub(now.saturating_sub(moment));
            Timestamp::from_second(then).unwrap_or(wall)
        };
        FlapRecord {
            ready_transitions: self.ready,
            recurrences: self.faults,
            tracked_since: at(self.since),
            last_change_at: at(self.last),
            penalty: self.penalty,
            flapping_since: self.flapping.map(at),
            ready: seen.0,
            ready_since: seen.1,
        }
    }

    /// The stored history, merged with what this controller has seen since it started to watch. No change counts twice. Where it
    /// is uncertain which changes are in both, the result is the more severe of the two, or the stored one plus one change where
    /// `Ready` differs.
    ///
    /// `first` is `Ready` when this controller first saw the node, `seen` is `Ready` now.
    ///
    /// # Errors
    /// What is wrong with the record, in one sentence. Such a record counts as nothing.
    pub fn restored(
        record: &FlapRecord,
        own: Option<Self>,
        (first, seen): (ReadySeen, ReadySeen),
        now: Moment,
        wall: Timestamp,
    ) -> Result<Self, String> {
        record.check(wall)?;
        // Every stored moment is in the past, whatever the clock says.
        let at = |time: Timestamp| now.min(now.saturating_sub(wall.as_second().saturating_sub(time.as_second())));
        let kept = Self {
            ready: record.ready_transitions,
            faults: record.recurrences,
            penalty: record.penalty,
            since: at(record.tracked_since),
            last: at(record.last_change_at),
            // Nobody has watched in between.
            quiet_from: now,
            flapping: record.flapping_since.map(at),
        };
        let stood = (record.ready, record.ready_since);
        // Compare the status only: some kubelets renew the time with every heartbeat.
        let has_changed = (record.ready == TriState::True) != (seen.0 == TriState::True);
        Ok(match own {
            _ if stood == seen => kept,
            Some(own) if stood == first => kept.and(&own),
            Some(own) => {
                let kept = kept.changed(has_changed, now);
                own.settled(now).map_or(kept, |own| kept.or(&own, now))
            }
            None => kept.changed(has_changed, now),
        })
    }

    fn changed(self, has_changed: bool, now: Moment) -> Self {
        if has_changed { self.with(Change::Ready, now) } else { self }
    }

    /// The more severe of two histories of the same time. A controller on standby has seen what was no longer stored.
    fn or(self, own: &Self, now: Moment) -> Self {
        let last = self.last.max(own.last);
        let (penalty, quiet_from) = if own.penalty(now) > self.penalty(now) {
            (own.penalty(last), own.quiet_from.max(self.last))
        } else {
            (self.penalty(last), self.quiet_from)
        };
        Self {
            ready: self.ready.max(own.ready),
            faults: self.faults.max(own.faults),
            penalty,
            since: self.since.min(own.since),
            last,
            quiet_from,
            flapping: self.flapping.into_iter().chain(own.flapping).min(),
        }
    }

    /// Adds a history that started when this one had ended.
    fn and(self, later: &Self) -> Self {
        let last = later.last.max(self.last);
        let penalty = self.penalty(last).saturating_add(later.penalty(last)).min(CEILING);
        let began = self.flapping.or(later.flapping);
        Self {
            ready: self.ready.saturating_add(later.ready),
            faults: self.faults.saturating_add(later.faults),
            penalty,
            since: self.since,
            last,
            quiet_from: later.quiet_from.max(self.quiet_from),
            flapping: began.or_else(|| (penalty >= CUT_OFF).then_some(last)),
        }
    }
}

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
    fn check(&self, wall: Timestamp) -> Result<(), String> {
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
    pub fn told(&self) -> String {
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
            id: Fault::identity(FaultType::NodeFlapping, node),
            kind: FaultType::NodeFlapping,
            severity: Severity::Medium,
            state: FaultState::Confirmed,
            subject: Subject::of(SubjectKind::Host),
            target: Target::default(),
            message: bounded(&self.told(), MAX_LINE),
            impact:
                "pods are evicted and placed again with each change, and no time for which something lasts is reached"
                    .to_owned(),
            first_seen: self.record.flapping_since.unwrap_or(self.record.last_change_at),
            duration_seconds: lasted.as_secs(),
            confirmations: self.record.changes(),
            check_age_seconds: 0,
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
            evidence_bundle: None,
        })
    }
}

#[cfg(test)]
mod tests;
