//! When the probe made a heartbeat, by the controller's clock.
//!
//! A report in the first list may be seconds or hours old. A watch delivers old reports in a burst after an interruption. The
//! node's clock may be wrong, but it runs: the fastest of the last few heartbeats gives the offset of the two clocks, and any
//! heartbeat slower than that was delayed on its way.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use nrh_api::health::ProbeStatus;
use nrh_core::snapshot::silent_after;

/// Number of compared heartbeats.
const COMPARED: usize = 6;
/// A heartbeat reaches the API server within this time. If more has passed there than on the node, the node's clock was set back.
const MOST_LATE: SignedDuration = SignedDuration::from_secs(20);

/// The heartbeats of one node.
#[derive(Debug, Default)]
pub struct ReportArrivals {
    last: Option<(u64, String, Timestamp)>,
    /// When the API server stored it.
    written_at: Option<Timestamp>,
    /// The controller's monotonic time minus the node's clock, per heartbeat, in milliseconds.
    gaps: VecDeque<i128>,
    made: Option<Instant>,
    age_known: bool,
}

impl ReportArrivals {
    /// Records the probe's part of an object that arrived at `now`, `since_start` after this process started. Returns whether
    /// it is a new heartbeat. `was_silent` is what the last controller said of the probe.
    ///
    /// `written_at`: when the API server stored it, by its own clock.
    pub fn note(
        &mut self,
        probe: &ProbeStatus,
        written_at: Option<Timestamp>,
        was_silent: bool,
        now: Instant,
        since_start: Duration,
    ) -> bool {
        let at = probe.heartbeat_at.unwrap_or_default();
        let this = (probe.sequence, probe.boot_id.clone(), at);
        if self.last.as_ref() == Some(&this) {
            return false;
        }
        let is_first = self.last.is_none();
        // The node's clock was set back: the gaps before say nothing about this heartbeat.
        let is_set_back = self.last.as_ref().is_none_or(|(.., before)| {
            let passed = written_at.zip(self.written_at).map(|(this, last)| this.duration_since(last));
            let by_node = at.duration_since(*before);
            by_node.is_negative() || passed.is_some_and(|passed| passed - by_node > MOST_LATE)
        });
        if is_set_back {
            self.gaps.clear();
        }
        (self.last, self.written_at) = (Some(this), written_at);
        let here = i128::try_from(since_start.as_millis()).unwrap_or(i128::MAX);
        let gap = here.saturating_sub(at.as_millisecond().into());
        if self.gaps.len() >= COMPARED {
            self.gaps.pop_front();
        }
        self.gaps.push_back(gap);
        let least = self.gaps.iter().min().copied().unwrap_or(gap);
        let late = u64::try_from(gap.saturating_sub(least)).unwrap_or(u64::MAX);
        self.age_known = !is_set_back && probe.heartbeat_at.is_some();
        let before = |age: Duration| now.checked_sub(age).unwrap_or(now);
        self.made = Some(if is_first && was_silent {
            // The least that this can mean.
            let interval = Duration::from_secs(probe.interval_seconds.into());
            before(silent_after(interval) + Duration::from_secs(1))
        } else {
            // Silence counts from the controller's first reading.
            before(Duration::from_millis(late))
        });
        true
    }

    /// Time since the last heartbeat was made, as far as the controller knows.
    pub fn age(&self, now: Instant) -> Duration {
        self.made.map_or(Duration::MAX, |made| now.saturating_duration_since(made))
    }

    /// Whether the age of the last heartbeat is known. The first one may be of any age, and so may the first after the node's clock was
    /// set back.
    pub const fn is_age_known(&self) -> bool {
        self.age_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(sequence: u64, at: &str) -> ProbeStatus {
        ProbeStatus {
            sequence,
            heartbeat_at: Some(at.parse().unwrap()),
            interval_seconds: 60,
            ..ProbeStatus::default()
        }
    }

    /// How old a reading is that was so many seconds old at the last heartbeat, where that is known.
    fn checked(node: &ReportArrivals, age: u64, now: Instant) -> Option<Duration> {
        node.is_age_known().then(|| node.age(now) + secs(age))
    }

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Reported in NVIDIA/NVSentinel #1280.
    #[test]
    fn a_report_from_before_our_start_is_never_fresh_until_the_next_heartbeat() {
        let (mut node, now) = (ReportArrivals::default(), Instant::now() + secs(1000));
        assert!(node.note(&beat(7, "2025-01-01T00:00:00Z"), None, false, now, secs(1)));
        assert_eq!(checked(&node, 0, now), None);
        assert_eq!(node.age(now), secs(0), "silence counts from when we began to look");
        assert!(
            !node.note(&beat(7, "2025-01-01T00:00:00Z"), None, false, now + secs(5), secs(6)),
            "the same one, re-listed"
        );
        assert!(node.note(&beat(8, "2025-01-01T00:00:30Z"), None, false, now + secs(10), secs(11)));
        assert_eq!(checked(&node, 2, now + secs(13)), Some(secs(5)));
    }

    #[test]
    fn a_probe_that_was_silent_before_our_start_stays_silent_until_it_reports() {
        let (mut node, now) = (ReportArrivals::default(), Instant::now() + secs(10_000));
        node.note(&beat(7, "2025-01-01T00:00:00Z"), None, true, now, secs(1));
        assert_eq!(node.age(now), silent_after(secs(60)) + secs(1));
        node.note(&beat(8, "2025-01-01T00:01:00Z"), None, true, now + secs(60), secs(61));
        assert_eq!(checked(&node, 0, now + secs(60)), Some(secs(0)));
    }

    #[test]
    fn heartbeats_that_were_held_up_are_dated_back_whatever_the_nodes_clock_says() {
        let (mut node, now) = (ReportArrivals::default(), Instant::now() + secs(1000));
        node.note(&beat(1, "2031-01-01T00:00:00Z"), None, false, now, secs(0));
        node.note(&beat(2, "2031-01-01T00:01:00Z"), None, false, now + secs(60), secs(60));
        // The watch was interrupted for 200 s, then delivered two reports in a burst.
        node.note(&beat(3, "2031-01-01T00:02:00Z"), None, false, now + secs(260), secs(260));
        assert_eq!(checked(&node, 0, now + secs(260)), Some(secs(140)));
        node.note(&beat(4, "2031-01-01T00:04:20Z"), None, false, now + secs(260), secs(260));
        assert_eq!(checked(&node, 0, now + secs(260)), Some(secs(0)));
    }

    #[test]
    fn a_node_whose_clock_was_set_back_is_not_silent() {
        let (mut node, now) = (ReportArrivals::default(), Instant::now() + secs(10_000));
        node.note(&beat(1, "2025-01-01T02:00:00Z"), None, false, now, secs(0));
        node.note(&beat(2, "2025-01-01T02:01:00Z"), None, false, now + secs(60), secs(60));
        for i in 0..COMPARED as u64 {
            let at = format!("2025-01-01T01:{:02}:00Z", 2 + i);
            node.note(&beat(3 + i, &at), None, false, now + secs(120 + 60 * i), secs(120 + 60 * i));
            assert_eq!(node.age(now + secs(120 + 60 * i)), secs(0), "heartbeat {i}");
            assert_eq!(node.is_age_known(), i > 0, "the first one may have been held up");
        }
    }

    /// At rest heartbeats are minutes apart, and a smaller step back leads to no earlier time.
    #[test]
    fn a_clock_that_is_set_back_by_less_than_an_interval_makes_no_probe_silent() {
        let (mut node, now) = (ReportArrivals::default(), Instant::now() + secs(10_000));
        let start: Timestamp = "2025-01-01T02:00:00Z".parse().unwrap();
        for (by_node, by_server, is_known) in [(0, 0, false), (300, 300, true), (400, 500, false), (415, 515, true)] {
            let probe = beat(by_node, &(start + secs(by_node)).to_string());
            node.note(&probe, Some(start + secs(by_server)), false, now + secs(by_server), secs(by_server));
            assert_eq!(node.age(now + secs(by_server)), secs(0), "{by_server}");
            assert_eq!(node.is_age_known(), is_known, "{by_server}");
        }
    }

    #[test]
    fn a_heartbeat_without_a_time_is_never_fresh() {
        let (mut node, now) = (ReportArrivals::default(), Instant::now());
        node.note(&ProbeStatus::default(), None, false, now, secs(0));
        node.note(&ProbeStatus { sequence: 1, ..ProbeStatus::default() }, None, false, now, secs(0));
        assert_eq!(checked(&node, 0, now), None);
    }
}
