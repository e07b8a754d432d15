//! The state of one collector: its last result, and the call that is out.

use std::time::Duration;

use tokio::time::Instant;

use crate::cri::CriError;
use crate::deadline::Deadline;
use nrh_core::observation::Reading;

/// Why a check gave no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is an answer, but an unusable one: no verdict.
    Failed(String),
    /// Something that the check needs is missing on this node.
    Unavailable(String),
    /// No answer within the long bound; the call was dropped.
    Exhausted(Duration),
}

impl From<CriError> for Failure {
    fn from(error: CriError) -> Self {
        match error {
            CriError::Deadline(after) => Self::Exhausted(after),
            CriError::Forbidden(_) | CriError::Unavailable(_) => Self::Unavailable(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// The state of one collector, or of one object of a collector.
#[derive(Debug)]
pub(super) struct Slot<T> {
    deadline: Duration,
    sent: Option<Sent>,
    outcome: Outcome<T>,
}

/// The call that is out.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    deadline: Deadline,
}

#[derive(Debug)]
enum Outcome<T> {
    Never,
    Done { value: T, at: Instant, took: Duration },
    Failed { error: String, at: Instant },
    Unavailable { reason: String },
}

impl<T> Slot<T> {
    pub(super) const fn new(deadline: Duration) -> Self {
        Self { deadline, sent: None, outcome: Outcome::Never }
    }

    pub(super) fn sent(&mut self, now: Instant) {
        self.sent = Some(Sent { at: now, deadline: Deadline::new(self.deadline, now) });
    }

    /// Records that the call has ended. `took` is the time of the whole check.
    pub(super) fn ended(&mut self, result: Result<T, Failure>, now: Instant, took: Duration) {
        self.sent = None;
        self.outcome = match result {
            Ok(value) => Outcome::Done { value, at: now, took },
            Err(Failure::Failed(error)) => Outcome::Failed { error, at: now },
            Err(Failure::Unavailable(reason)) => Outcome::Unavailable { reason },
            Err(Failure::Exhausted(after)) => {
                Outcome::Failed { error: format!("given up after {} s without an answer", after.as_secs()), at: now }
            }
        };
    }

    /// Records that the node was suspended for `slept`, which [`Instant`] does not count: the last result is that much older.
    pub(super) fn was_suspended(&mut self, slept: Duration) {
        if let Outcome::Done { at, .. } | Outcome::Failed { at, .. } = &mut self.outcome {
            *at = at.checked_sub(slept).unwrap_or(*at);
        }
    }

    /// Updates how long the call has been out. The collector must call it at [`Self::next_count`]. Returns how long this
    /// process was delayed; that time does not count as silence.
    pub(super) fn count(&mut self, now: Instant) -> Duration {
        self.sent.as_mut().map_or(Duration::ZERO, |sent| sent.deadline.count(now))
    }

    /// When to count next: until the deadline has passed.
    pub(super) fn next_count(&self) -> Option<Instant> {
        self.sent.and_then(|sent| sent.deadline.next())
    }

    /// When the call that is out has passed its deadline; `None` as long as it has not.
    pub(super) fn due_since(&self, now: Instant) -> Option<Instant> {
        self.sent.filter(|sent| sent.deadline.is_over(now)).map(|sent| sent.deadline.end())
    }

    /// When the call that is out is dropped, if that is to happen `bound` after it was sent; `None` as long as its deadline has
    /// not passed. After the deadline, clock time counts.
    pub(super) fn abandoned_at(&self, bound: Duration, now: Instant) -> Option<Instant> {
        self.due_since(now).map(|due| due + bound.saturating_sub(self.deadline))
    }

    pub(super) fn sent_at(&self) -> Option<Instant> {
        self.sent.map(|sent| sent.at)
    }

    pub(super) const fn is_out(&self) -> bool {
        self.sent.is_some()
    }

    pub(super) const fn has_never_ended(&self) -> bool {
        matches!(self.outcome, Outcome::Never)
    }

    /// The last value, however old, unless a failure came after it.
    pub(super) const fn value(&self) -> Option<&T> {
        match &self.outcome {
            Outcome::Done { value, .. } => Some(value),
            _ => None,
        }
    }
}

impl<T: Clone> Slot<T> {
    pub(super) fn reading(&self, now: Instant) -> Reading<T> {
        if let Some(sent) = self.sent
            && sent.deadline.is_over(now)
        {
            return Reading::Hung { out: sent.deadline.waited(now) };
        }
        match &self.outcome {
            Outcome::Never => Reading::Never,
            Outcome::Done { value, at, took } => {
                Reading::Done { value: value.clone(), age: now.saturating_duration_since(*at), took: *took }
            }
            Outcome::Failed { error, at } => {
                Reading::Failed { error: error.clone(), age: now.saturating_duration_since(*at) }
            }
            Outcome::Unavailable { reason } => Reading::Unavailable { reason: reason.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(5);

    #[test]
    fn a_call_past_its_deadline_hides_the_older_answer() {
        let start = Instant::now();
        let mut slot = Slot::new(DEADLINE);
        assert_eq!(slot.reading(start), Reading::Never);
        slot.sent(start);
        slot.ended(Ok(7), start + Duration::from_secs(1), Duration::from_secs(1));
        slot.sent(start + Duration::from_secs(10));
        // No code has updated the count: this process did not run, and the call may be answered.
        assert!(matches!(slot.reading(start + Duration::from_mins(1)), Reading::Done { value: 7, .. }));
        for _ in 0..9 {
            slot.count(slot.next_count().unwrap());
        }
        let just_before = start + Duration::from_millis(14_999);
        assert!(matches!(slot.reading(just_before), Reading::Done { value: 7, .. }));
        assert_eq!(slot.reading(start + Duration::from_secs(15)), Reading::Hung { out: DEADLINE });
    }

    #[test]
    fn a_suspension_of_the_node_makes_an_answer_older() {
        let start = Instant::now();
        let mut slot = Slot::new(DEADLINE);
        slot.ended(Ok(7), start, Duration::ZERO);
        slot.was_suspended(Duration::from_mins(10));
        let (age, took) = (Duration::from_secs(603), Duration::ZERO);
        assert_eq!(slot.reading(start + Duration::from_secs(3)), Reading::Done { value: 7, age, took });
    }

    #[test]
    fn a_failure_hides_the_older_answer_too() {
        let start = Instant::now();
        let mut slot = Slot::new(DEADLINE);
        slot.ended(Ok(7), start, Duration::ZERO);
        slot.ended(Err(Failure::Exhausted(Duration::from_mins(1))), start, Duration::ZERO);
        assert!(matches!(slot.reading(start), Reading::Failed { .. }));
        assert_eq!(slot.value(), None);
    }
}
