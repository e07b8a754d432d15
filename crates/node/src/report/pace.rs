//! How often the probe reports if nothing changes, and how long it waits after a failure.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Interval at rest.
const REST: Duration = Duration::from_mins(5);
/// Interval while a new fault is suspected, or a remediation is running.
const ALERT: Duration = Duration::from_secs(15);
/// Interval while a fault is reported and nothing is done about it.
const FAULT_REPORTED: Duration = Duration::from_mins(1);
/// How long a new suspicion keeps the short interval.
const ALERT_FOR: Duration = Duration::from_mins(10);
/// Maximum length of a watch. Its end costs two requests, so an idle fleet sends fewer than three per hour and node.
const WATCH: Duration = Duration::from_hours(1);
/// First wait after a failure; it doubles with each further failure, up to `LONGEST_WAIT`.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What the report interval depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportActivity {
    /// Time since a new fault was last suspected.
    pub suspected: Option<Duration>,
    /// Whether any fault is reported.
    pub faults: bool,
    /// Whether a remediation of this node is running.
    pub remediation: bool,
}

/// Returns the maximum time until the next report. `chance` in 0..1000 spreads the nodes of a fleet: by up to a tenth
/// more or less at rest, and only less otherwise.
pub fn interval(activity: ReportActivity, chance: u32) -> Duration {
    let alert = activity.remediation || activity.suspected.is_some_and(|since| since < ALERT_FOR);
    let (interval, least) = match (alert, activity.faults) {
        (true, _) => (ALERT, 900),
        (false, true) => (FAULT_REPORTED, 900),
        (false, false) => (REST.saturating_mul(11).checked_div(10).unwrap_or(REST), 818),
    };
    spread(interval, least, chance)
}

/// Returns the wait before the next attempt after this many failures in a row.
pub fn wait(failures: u32, chance: u32) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
    spread(doubled.min(LONGEST_WAIT), 700, chance)
}

/// Returns the length of the next watch: 50 minutes to an hour, so that the watches of a fleet do not end together.
pub fn watch(chance: u32) -> Duration {
    spread(WATCH, 833, chance)
}

/// Returns a value between `least` thousandths of `interval` and all of it.
fn spread(interval: Duration, least: u32, chance: u32) -> Duration {
    let thousandths = least.saturating_add((1000 - least).saturating_mul(chance.min(999)) / 999);
    interval.saturating_mul(thousandths).checked_div(1000).unwrap_or(interval)
}

/// Returns a random number in 0..1000.
pub fn chance() -> u32 {
    u32::try_from(RandomState::new().build_hasher().finish().checked_rem(1000).unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rhythm_follows_what_goes_on() {
        let since = |seconds| Some(Duration::from_secs(seconds));
        for (activity, least, most) in [
            (ReportActivity::default(), 269, 330),
            (ReportActivity { suspected: since(0), ..ReportActivity::default() }, 13, 15),
            (ReportActivity { suspected: since(599), faults: true, remediation: false }, 13, 15),
            (ReportActivity { suspected: since(600), faults: true, remediation: false }, 54, 60),
            (ReportActivity { suspected: since(600), faults: true, remediation: true }, 13, 15),
            (ReportActivity { suspected: None, faults: false, remediation: true }, 13, 15),
            (ReportActivity { suspected: since(600), faults: false, remediation: false }, 269, 330),
        ] {
            for chance in 0..1000 {
                let interval = interval(activity, chance);
                assert!(
                    Duration::from_secs(least) <= interval && interval <= Duration::from_secs(most),
                    "{activity:?}"
                );
            }
        }
        assert_ne!(interval(ReportActivity::default(), 0), interval(ReportActivity::default(), 999));
    }

    #[test]
    fn waits_grow_and_end() {
        assert!(wait(1, 999) <= Duration::from_secs(1));
        assert!(wait(1, 0) >= Duration::from_millis(700));
        assert_eq!(wait(3, 999), Duration::from_secs(4));
        for failures in [6, 31, 32, 33, u32::MAX] {
            assert_eq!(wait(failures, 999), LONGEST_WAIT, "{failures}");
        }
    }
}
