//! Three numbers from the kubelet's metrics, and how they change between two readings.

use std::time::Duration;

use tokio::time::Instant;

use nrh_core::observation::RelistsSeen;

/// Maximum number of bytes of metrics that are read.
pub(super) const MAX_BYTES: usize = 4 << 20;
/// Longest line that is kept; the lines of interest are far shorter.
const MAX_LINE: usize = 256;
/// Minimum time over which a mean is taken, unless the readings began later.
const WINDOW: Duration = Duration::from_secs(30);
/// More than any kubelet counts or names: seconds and relists of 30,000 years.
const MAX_VALUE: f64 = 1e12;

const LAST_SEEN: &str = "kubelet_pleg_last_seen_seconds";
const SUM: &str = "kubelet_pleg_relist_duration_seconds_sum";
const COUNT: &str = "kubelet_pleg_relist_duration_seconds_count";

/// The kubelet's counters of its relists of its pods, at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    /// Seconds that they took in total.
    pub(crate) sum: f64,
    /// How many have ended.
    pub(crate) count: f64,
    /// When the last successful list began, by the kubelet's wall clock.
    pub(crate) last_seen: Option<f64>,
}

/// Parses the numbers from a stream of text in pieces of any size. It holds at most one line.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    /// The line is longer than any of interest: the rest of it is skipped.
    over: bool,
    read: usize,
    sum: Option<f64>,
    count: Option<f64>,
    last_seen: Option<f64>,
}

impl Parser {
    /// Takes the next piece. Returns the numbers once they are complete. Only whole lines count.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Result<Option<Sample>, String> {
        self.read = self.read.saturating_add(piece.len());
        if self.read > MAX_BYTES {
            return Err(format!("the kubelet's metrics are larger than {MAX_BYTES} bytes"));
        }
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let (text, ended) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            self.over |= self.line.len().saturating_add(text.len()) > MAX_LINE;
            if !self.over {
                self.line.extend_from_slice(text);
            }
            if ended {
                if !self.over {
                    self.take();
                }
                self.line.clear();
                self.over = false;
            }
        }
        // Where the kubelet reports the moment of the last list, it comes before the two others.
        Ok(self.sample())
    }

    fn take(&mut self) {
        let Some((name, value)) = std::str::from_utf8(&self.line).ok().and_then(|line| line.split_once(' ')) else {
            return;
        };
        let to = match name {
            SUM => &mut self.sum,
            COUNT => &mut self.count,
            LAST_SEEN => &mut self.last_seen,
            _ => return,
        };
        let value: Option<f64> = value.trim_end_matches('\r').parse().ok();
        *to = to.or(value.filter(|value| (0.0..=MAX_VALUE).contains(value)));
    }

    fn sample(&self) -> Option<Sample> {
        Some(Sample { sum: self.sum?, count: self.count?, last_seen: self.last_seen })
    }
}

/// Earlier readings of one kubelet.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    of: Option<(i32, u64)>,
    /// The start of the current mean.
    base: Option<(Sample, Instant)>,
    /// A count, and when it was first read.
    count: Option<(f64, Instant)>,
    /// A moment, and when it was first read.
    last_seen: Option<(f64, Instant)>,
}

impl Memory {
    /// Compares a sample of this kubelet with the earlier ones. The kubelet took it at some time between the question and the
    /// answer, so an unchanged value counts as unchanged only for the time that is certain. The kubelet's wall clock is
    /// compared only with itself, and only for equality.
    pub(crate) fn note(&mut self, of: (i32, u64), sample: Sample, asked: Instant, got: Instant) -> RelistsSeen {
        let goes_on = |(base, _): (Sample, _)| sample.count >= base.count && sample.sum >= base.sum;
        if self.of != Some(of) || !self.base.is_some_and(goes_on) {
            *self = Self { of: Some(of), base: Some((sample, got)), ..Self::default() };
        }
        let since = |kept: &mut Option<(f64, Instant)>, now: f64| {
            let (_, first) = *kept.insert(kept.filter(|(value, _)| same(*value, now)).unwrap_or((now, got)));
            asked.saturating_duration_since(first)
        };
        let idle = since(&mut self.count, sample.count);
        let unmoved = sample.last_seen.map(|moment| since(&mut self.last_seen, moment));
        let (base, from) = self.base.unwrap_or((sample, got));
        let ended = sample.count - base.count;
        let mean = (ended >= 1.0).then(|| (sample.sum - base.sum) / ended);
        if got.saturating_duration_since(from) >= WINDOW {
            self.base = Some((sample, got));
        }
        RelistsSeen {
            begun: sample.count >= 1.0,
            mean: mean.and_then(|mean| Duration::try_from_secs_f64(mean).ok()),
            idle,
            unmoved,
        }
    }
}

/// Whether two numbers are equal: both were parsed from the same kind of text.
fn same(one: f64, other: f64) -> bool {
    one.to_bits() == other.to_bits()
}

#[cfg(test)]
mod tests;
