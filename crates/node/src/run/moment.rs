//! One moment on the clocks of the node.

use std::time::Duration;

use tokio::time::Instant;

use crate::proc;

/// Clocks that are read within this time show the same moment.
const APART: Duration = Duration::from_millis(100);
/// Minimum time that counts as a suspension of the node.
const SUSPENDED: Duration = Duration::from_secs(2);

/// One moment. All durations of the diagnosis are differences of `awake`, so that nothing hangs for longer because the node was
/// suspended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Time since boot without suspended time.
    pub awake: Duration,
    /// Suspended time since boot.
    pub suspended: Duration,
    /// The same moment on the collectors' clock.
    pub at: Instant,
}

impl Moment {
    /// Reads the clocks. If they were read far apart, an old reading could look new.
    pub(super) fn now() -> Self {
        proc::at_one_moment(APART, || Self { at: Instant::now(), awake: proc::awake(), suspended: proc::suspended() })
    }

    /// For how long the node was suspended since that moment.
    pub(super) fn slept_since(self, last: Self) -> Option<Duration> {
        Some(self.suspended.saturating_sub(last.suspended)).filter(|slept| *slept > SUSPENDED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_clock_of_all_durations_does_not_count_is_a_suspension() {
        let first = Moment::now();
        let later = |awake_s: u64, suspended_s: u64| Moment {
            awake: first.awake + Duration::from_secs(awake_s),
            suspended: first.suspended + Duration::from_secs(suspended_s),
            at: first.at + Duration::from_secs(awake_s),
        };
        assert_eq!(later(15, 0).slept_since(first), None);
        assert_eq!(later(15, 2).slept_since(first), None, "the reads of the clocks are apart");
        assert_eq!(later(15, 600).slept_since(first), Some(Duration::from_mins(10)));
        assert_eq!(first.slept_since(later(0, 600)), None);
    }
}
