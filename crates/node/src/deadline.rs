//! A deadline that does not count time in which this process did not run.
//!
//! The probe needs little processor time. Beside busy neighbours twenty milliseconds of its work can take seconds, and
//! a paused machine or a frozen control group stalls it for longer. By the clock alone, the probe would mistake its own
//! delay for silence of others. A wait up to a deadline is the sum of short sleeps, each counted at its nominal length.
//! Threads outside that loop can be stalled separately.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Maximum step of a wait of some seconds.
const STEP: Duration = Duration::from_millis(500);
/// Minimum number of steps in a wait of a few seconds, and maximum number in a long one: each step wakes the process
/// once.
const STEPS: (u32, u32) = (10, 64);
/// Lateness that is not reported: timers and busy collectors cause it.
const SLIGHT: Duration = Duration::from_millis(100);

/// The deadline of one wait. Time in which this process did not run (frozen, paused, not scheduled) does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadline {
    limit: Duration,
    step: Duration,
    counted: Duration,
    /// The time up to which it is counted.
    till: Instant,
}

impl Deadline {
    pub(super) fn new(limit: Duration, now: Instant) -> Self {
        let part = |steps: u32| limit.checked_div(steps).unwrap_or_default();
        Self { limit, step: part(STEPS.0).min(STEP).max(part(STEPS.1)), counted: Duration::ZERO, till: now }
    }

    /// Counts the time that has passed. The caller has to call it at [`Self::next`]. Returns how long this process was
    /// stalled.
    pub(super) fn count(&mut self, now: Instant) -> Duration {
        let left = self.left();
        if left.is_zero() {
            return Duration::ZERO;
        }
        let passed = now.saturating_duration_since(self.till);
        let counts = passed.min(self.step);
        if counts >= left {
            // The wait ended when the limit was reached, not when somebody noticed.
            self.till += left;
            self.counted = self.limit;
        } else {
            self.till = now.max(self.till);
            self.counted += counts;
        }
        let late = passed.saturating_sub(self.step);
        if late > SLIGHT { late } else { Duration::ZERO }
    }

    /// Returns the rest of the limit, as far as it is counted.
    pub(super) const fn left(&self) -> Duration {
        self.limit.saturating_sub(self.counted)
    }

    /// Returns how long the wait has lasted. Once the limit is reached, all time counts.
    pub(super) fn waited(&self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.till);
        let left = self.left();
        self.counted + if left.is_zero() { passed } else { passed.min(self.step).min(left) }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.waited(now) >= self.limit
    }

    /// Returns when the wait ends or ended, unless this process is stalled.
    pub(super) fn end(&self) -> Instant {
        self.till + self.left()
    }

    /// Returns when to count next; `None` once the wait is over.
    pub(super) fn next(&self) -> Option<Instant> {
        let left = self.left();
        (!left.is_zero()).then(|| self.till + left.min(self.step))
    }

    /// Waits for a call until the limit is reached. An answer that is already there is taken even after the limit.
    pub(super) async fn wait<T>(&mut self, call: &mut (impl Future<Output = T> + Unpin)) -> Result<T, DeadlineReached> {
        loop {
            tokio::select! {
                biased;
                answer = &mut *call => return Ok(answer),
                () = sleep_until(self.next().unwrap_or_else(Instant::now)) => {}
            }
            self.count(Instant::now());
            if self.left().is_zero() {
                return Err(DeadlineReached);
            }
        }
    }
}

/// No answer within the limit, by time in which this process could run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeadlineReached;

/// Waits for a call up to a limit. For calls whose silence indicates a fault.
pub(super) fn within<T>(
    limit: Duration,
    call: impl Future<Output = T>,
) -> impl Future<Output = Result<T, DeadlineReached>> {
    // Boxed first: a call takes kilobytes, and each layer around it would hold another copy.
    let mut call = Box::pin(call);
    async move { Deadline::new(limit, Instant::now()).wait(&mut call).await }
}

/// Waits for a call that has its own deadline, and returns how much of the wait counts, up to `most`.
pub(super) fn timed<T>(most: Duration, call: impl Future<Output = T>) -> impl Future<Output = (T, Duration)> {
    let mut call = Box::pin(call);
    async move {
        let mut deadline = Deadline::new(most, Instant::now());
        match deadline.wait(&mut call).await {
            Ok(answer) => (answer, deadline.waited(Instant::now())),
            Err(DeadlineReached) => (call.await, most),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::thread;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Counts like a loop that is woken late by this time at each step, until the wait is over or the number of steps
    /// is reached. Returns the time that has passed, and the reported lateness.
    fn woken_late(deadline: &mut Deadline, began: Instant, late: Duration, steps: u32) -> (Duration, Duration) {
        let (mut now, mut counted) = (began, Duration::ZERO);
        for _ in 0..steps {
            let Some(next) = deadline.next() else { break };
            now = next + late;
            counted += deadline.count(now);
        }
        (now.saturating_duration_since(began), counted)
    }

    #[test]
    fn on_time_it_is_over_at_its_limit() {
        let began = Instant::now();
        let mut deadline = Deadline::new(LIMIT, began);
        assert!(!deadline.is_over(began));
        assert_eq!(woken_late(&mut deadline, began, Duration::ZERO, 100), (LIMIT, Duration::ZERO));
        assert!(deadline.is_over(began + LIMIT));
        assert_eq!((deadline.next(), deadline.end()), (None, began + LIMIT));
        assert_eq!(deadline.waited(began + ms(60_000)), ms(60_000), "what is over goes on by the clock");
    }

    #[test]
    fn what_holds_up_this_process_does_not_count() {
        let began = Instant::now();
        let mut deadline = Deadline::new(LIMIT, began);
        // The process was frozen for a minute before the first step could be counted.
        let thawed = began + ms(60_000);
        assert_eq!(deadline.waited(thawed), STEP, "whoever looks first sees no more than a step");
        assert_eq!(deadline.count(thawed), ms(59_500));
        assert_eq!(deadline.end(), thawed + ms(4_500));
        let (rest, counted) = woken_late(&mut deadline, thawed, Duration::ZERO, 100);
        assert_eq!((rest, counted), (ms(4_500), Duration::ZERO));
    }

    #[test]
    fn beside_busy_neighbours_it_takes_longer_and_ends() {
        let began = Instant::now();
        let mut deadline = Deadline::new(LIMIT, began);
        let (took, counted) = woken_late(&mut deadline, began, ms(1500), 100);
        assert_eq!((took, counted), (ms(20_000), ms(15_000)));
        assert!(deadline.is_over(began + took));
    }

    #[test]
    fn slight_lateness_is_not_told_and_the_last_step_ends_when_it_ends() {
        let began = Instant::now();
        let mut deadline = Deadline::new(ms(1000), began);
        let (took, counted) = woken_late(&mut deadline, began, ms(40), 100);
        assert_eq!((took, counted), (ms(1400), Duration::ZERO));
        assert_eq!(deadline.end(), began + ms(1360), "it was over before that was counted");
        assert!(Deadline::new(Duration::ZERO, began).is_over(began));
    }

    #[test]
    fn a_long_wait_takes_few_steps() {
        let began = Instant::now();
        for (limit, step) in [(400, 40), (5_000, 500), (32_000, 500), (3_600_000, 56_250)] {
            assert_eq!(Deadline::new(ms(limit), began).next(), Some(began + ms(step)), "{limit} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_waited_for_to_its_limit() {
        let began = Instant::now();
        assert_eq!(within(LIMIT, pending::<()>()).await, Err(DeadlineReached));
        assert_eq!(began.elapsed(), LIMIT);
        assert_eq!(within(LIMIT, tokio::time::sleep(ms(4_900))).await, Ok(()));
    }

    /// The whole process stalls for longer than the limit, and the answer arrives meanwhile.
    #[tokio::test]
    async fn an_answer_to_a_process_that_was_held_up_is_taken_and_came_at_once() {
        let (send, receive) = tokio::sync::oneshot::channel();
        let held_up = async {
            // The only thread sleeps here instead of polling for answers.
            thread::sleep(ms(1500));
            // Simulates an answer that takes some turns of the loop to arrive.
            tokio::time::sleep(ms(20)).await;
            let _ = send.send(7);
        };
        let ((answer, took), ()) = tokio::join!(timed(ms(60_000), within(ms(1000), receive)), held_up);
        assert_eq!(answer, Ok(Ok(7)));
        assert!(took < ms(1200), "it counted {took:?}");
    }
}
