//! One task: what its questions have shown, and when it may be asked for again.

use std::time::Duration;

use tokio::time::Instant;

use super::{SHIM_WAIT, SUSPECT_INTERVAL};
use crate::collectors::pace::{Pace, back_off};
use crate::collectors::slot::{Failure, Slot};
use nrh_core::observation::TaskAnswer;

/// How much later than necessary the collector asks for an answer that counts. The tracker computes the time of an answer from
/// its age, with an error of milliseconds. It ignores an answer that seems too early, and the next one follows many seconds
/// later.
const LATE: Duration = Duration::from_millis(500);
/// Wait before a failed question (a broken connection) is repeated.
const RETRY: Duration = Duration::from_secs(30);

/// One task and when it was asked for last.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) sandbox: String,
    pub(super) slot: Slot<TaskAnswer>,
    pub(super) ended: Option<Instant>,
    pub(super) abandoned: u32,
    /// It did not answer the last question: this collector itself suspects it.
    pub(super) unresponsive: bool,
    /// The last question failed and gave no information about the task.
    failed: bool,
    /// The last answer for all tasks did not contain it.
    pub(super) missing: bool,
    /// Silence seen by the question for all tasks, not yet added to a reading.
    pub(super) silent: Duration,
    /// The newest reading that counts, of a task that gives no answer.
    counted: Option<Instant>,
}

impl Entry {
    pub(super) fn new(sandbox: &str, deadline: Duration) -> Self {
        Self {
            sandbox: sandbox.to_owned(),
            slot: Slot::new(deadline),
            ended: None,
            abandoned: 0,
            unresponsive: false,
            failed: false,
            missing: false,
            silent: Duration::ZERO,
            counted: None,
        }
    }

    /// Minimum time between two questions to a task that is no suspect.
    pub(super) fn own_wait(&self, pace: Pace) -> Duration {
        let wait = if self.failed { RETRY.min(pace.rest) } else { pace.rest };
        back_off(self.abandoned).map_or(wait, |least| wait.max(least))
    }

    /// When a suspect may be asked for again. `asked` is the last time at which a check was requested, `interval` the
    /// time between two readings that both count.
    pub(super) fn suspect_due(
        &self,
        now: Instant,
        asked: Option<Instant>,
        urgent: Duration,
        interval: Duration,
    ) -> Instant {
        let Some(ended) = self.ended.filter(|_| !self.missing) else { return now };
        let wanted = asked.is_some_and(|asked| asked > ended);
        let wait = if wanted { SUSPECT_INTERVAL.min(urgent) } else { urgent };
        let due = ended + back_off(self.abandoned).map_or(wait, |least| wait.max(least));
        // The answer must come when it counts, and no question that was sent too early for that may be out at that time. A task
        // whose question fails is not asked for earlier.
        let counts = self.counted.filter(|_| !self.failed);
        let counts = counts.map(|counted| (counted + interval + LATE).checked_sub(SHIM_WAIT).unwrap_or(now));
        let next = |counts: Instant| {
            let is_early = due + SHIM_WAIT + SUSPECT_INTERVAL <= counts;
            if is_early { due } else { counts.max(ended + SUSPECT_INTERVAL) }
        };
        counts.map_or(due, next)
    }

    /// Records the end of one question. Returns whether anything changed. A task that still answers is no change: on a full
    /// node the collector asks for one every other second.
    pub(super) fn ended(
        &mut self,
        sent: Instant,
        result: Result<TaskAnswer, Failure>,
        now: Instant,
        interval: Duration,
    ) -> bool {
        let still = self.slot.due_since(now).is_none()
            && matches!(&result, Ok(TaskAnswer::Answered | TaskAnswer::DaemonAnswered))
            && self.slot.value() == result.as_ref().ok();
        let abandoned = matches!(result, Err(Failure::Exhausted(_)));
        self.abandoned = if abandoned { self.abandoned.saturating_add(1) } else { 0 };
        self.unresponsive = match &result {
            Ok(answer) => *answer == TaskAnswer::NoAnswer,
            // An error gives no new information about the task.
            Err(_) => self.unresponsive || abandoned,
        };
        self.failed = result.is_err();
        self.ended = Some(now);
        let mut took = now.saturating_duration_since(sent);
        if result == Ok(TaskAnswer::NoAnswer) {
            // The shim may not have caused all of that time: this process, or containerd, may have been delayed.
            took = took.min(SHIM_WAIT) + self.silent;
            self.counted = match self.counted {
                Some(before) if now < before + interval => Some(before),
                Some(_) => Some(now),
                None => now.checked_sub(took),
            };
        } else if result.is_ok() {
            self.counted = None;
        }
        self.silent = Duration::ZERO;
        self.slot.ended(result, now, took);
        !still
    }
}
