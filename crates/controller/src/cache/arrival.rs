//! When the probe made a heartbeat, by the controller's clock.
//!
//! A report in the first list may be seconds or hours old. A watch delivers old reports in a burst after an interruption. The
//! node's clock may be wrong, but it runs: the fastest of the last few heartbeats gives the offset of the two clocks, and any
//! heartbeat slower than that was delayed on its way.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use nrh_api::health::ProbeStatus;
use nrh_api::view::report::UNDATED;

/// Number of compared heartbeats; after as many, a step of the node's clock is forgotten.
const COMPARED: usize = 6;

/// The heartbeats of one node.
#[derive(Debug, Default)]
pub struct ReportArrivals {
    last: Option<(u64, String, i128)>,
    /// The controller's monotonic time minus the node's clock, per heartbeat, in milliseconds.
    gaps: VecDeque<i128>,
    made: Option<Instant>,
    dated: bool,
}

impl ReportArrivals {
    /// Records the probe's part of an object that arrived at `now`, `since_start` after this process started. Returns whether
    /// it is a new heartbeat.
    pub fn note(&mut self, probe: &ProbeStatus, now: Instant, since_start: Duration) -> bool {
        let at = probe.heartbeat_at.map_or(0, jiff::Timestamp::as_millisecond).into();
        let this = (probe.sequence, probe.boot_id.clone(), at);
        if self.last.as_ref() == Some(&this) {
            return false;
        }
        let first = self.last.is_none();
        self.last = Some(this);
        let here = i128::try_from(since_start.as_millis()).unwrap_or(i128::MAX);
        let gap = here.saturating_sub(at);
        if self.gaps.len() >= COMPARED {
            self.gaps.pop_front();
        }
        self.gaps.push_back(gap);
        let least = self.gaps.iter().min().copied().unwrap_or(gap);
        let late = u64::try_from(gap.saturating_sub(least)).unwrap_or(u64::MAX);
        // Silence counts from the controller's first reading; a reading of the probe from before that counts as never fresh.
        self.dated = !first && probe.heartbeat_at.is_some();
        self.made = Some(now.checked_sub(Duration::from_millis(late)).unwrap_or(now));
        true
    }

    /// Time since the last heartbeat was made, as far as the controller knows.
    pub fn age(&self, now: Instant) -> Duration {
        self.made.map_or(UNDATED, |made| now.saturating_duration_since(made))
    }

    /// Time since a reading that was `age` old when the last heartbeat was made.
    pub fn check_age(&self, age: Duration, now: Instant) -> Duration {
        if self.dated { self.age(now).saturating_add(age) } else { UNDATED }
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

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Reported in NVIDIA/NVSentinel #1280.
    #[test]
    fn a_report_from_before_our_start_is_never_fresh_until_the_next_heartbeat() {
        let (mut node, now) = (ReportArrivals::default(), Instant::now() + secs(1000));
        assert!(node.note(&beat(7, "2025-01-01T00:00:00Z"), now, secs(1)));
        assert_eq!(node.check_age(secs(0), now), UNDATED);
        assert_eq!(node.age(now), secs(0), "silence counts from when we began to look");
        assert!(!node.note(&beat(7, "2025-01-01T00:00:00Z"), now + secs(5), secs(6)), "the same one, re-listed");
        assert!(node.note(&beat(8, "2025-01-01T00:00:30Z"), now + secs(10), secs(11)));
        assert_eq!(node.check_age(secs(2), now + secs(13)), secs(5));
    }

    #[test]
    fn heartbeats_that_were_held_up_are_dated_back_whatever_the_nodes_clock_says() {
        let (mut node, now) = (ReportArrivals::default(), Instant::now() + secs(1000));
        node.note(&beat(1, "2031-01-01T00:00:00Z"), now, secs(0));
        node.note(&beat(2, "2031-01-01T00:01:00Z"), now + secs(60), secs(60));
        // The watch was interrupted for 200 s, then delivered two reports in a burst.
        node.note(&beat(3, "2031-01-01T00:02:00Z"), now + secs(260), secs(260));
        assert_eq!(node.check_age(secs(0), now + secs(260)), secs(140));
        node.note(&beat(4, "2031-01-01T00:04:20Z"), now + secs(260), secs(260));
        assert_eq!(node.check_age(secs(0), now + secs(260)), secs(0));
    }

    #[test]
    fn a_step_of_the_nodes_clock_is_old_at_first_and_forgotten_after_some_heartbeats() {
        let (mut node, now) = (ReportArrivals::default(), Instant::now() + secs(10_000));
        node.note(&beat(1, "2025-01-01T02:00:00Z"), now, secs(0));
        node.note(&beat(2, "2025-01-01T02:01:00Z"), now + secs(60), secs(60));
        for i in 0..COMPARED as u64 {
            let at = format!("2025-01-01T01:{:02}:00Z", 2 + i);
            node.note(&beat(3 + i, &at), now + secs(120 + 60 * i), secs(120 + 60 * i));
            if i == 0 {
                assert_eq!(node.check_age(secs(0), now + secs(120)), secs(3600));
            }
        }
        assert_eq!(node.check_age(secs(0), now + secs(420)), secs(0));
    }

    #[test]
    fn a_heartbeat_without_a_time_is_never_fresh() {
        let (mut node, now) = (ReportArrivals::default(), Instant::now());
        node.note(&ProbeStatus::default(), now, secs(0));
        node.note(&ProbeStatus { sequence: 1, ..ProbeStatus::default() }, now, secs(0));
        assert_eq!(node.check_age(secs(0), now), UNDATED);
    }
}
