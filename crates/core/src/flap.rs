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

use jiff::Timestamp;

use super::tri_state::TriState;

mod record;
mod view;

pub use record::{FlapRecord, ReadySeen};
pub use view::FlapView;

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

    /// The history with one more change, or a new one where nothing is left of it.
    pub fn after(known: Option<Self>, change: Change, now: Moment) -> Self {
        let left = known.and_then(|flap| flap.settled(now));
        left.map_or_else(|| Self::first(change, now), |flap| flap.with(change, now))
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

#[cfg(test)]
mod tests;
