//! Times ahead of the clock. A leader or a node wrote them while its clock was ahead, or before the clock was set back.
//! Unchanged, they would extend every wait since then by the difference.

use jiff::{SignedDuration, Timestamp};

use super::Remediation;

/// How far ahead a time may be without a correction: the clocks of two leaders differ by that much, each in step with the API
/// server's (`controller::clock::AGREE`, twice).
const MAY_BE_AHEAD: SignedDuration = SignedDuration::from_mins(1);

/// `at`, or `now` where `at` is ahead of it by more than a minute.
pub fn not_ahead(at: Timestamp, now: Timestamp) -> Timestamp {
    if at.duration_since(now) > MAY_BE_AHEAD { now } else { at }
}

impl Remediation {
    /// The remediation with every time that is ahead of `now` set [to now](not_ahead), if there is one.
    #[must_use]
    pub fn with_times_until(&self, now: Timestamp) -> Option<Self> {
        let mut next = self.clone();
        next.times().for_each(|at| *at = not_ahead(*at, now));
        (next != *self).then_some(next)
    }

    fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let own = [Some(&mut self.started_at), self.finished_at.as_mut()];
        let faults = self.faults.iter_mut().flat_map(|fault| [fault.since.as_mut(), fault.clear_since.as_mut()]);
        let markers =
            self.cleanup.0.iter_mut().flat_map(|record| [Some(&mut record.created_at), record.removed_at.as_mut()]);
        let steps = self.steps.iter_mut().flat_map(|step| {
            [
                Some(&mut step.scheduled_at),
                step.started_at.as_mut(),
                step.executor_changed_at.as_mut(),
                step.rounds.as_mut().map(|rounds| &mut rounds.last_at),
                step.executed_at.as_mut(),
                step.clear_since.as_mut(),
                step.finished_at.as_mut(),
            ]
        });
        own.into_iter().chain(faults).chain(markers).chain(steps).flatten()
    }
}
