//! Time as the process table counts it, ticks since boot, and how much of it the node was awake.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::PROC;
use super::bounded::{invalid, read_whole};

/// Clocks that are read within this time show the same moment.
const APART: Duration = Duration::from_millis(10);
/// Suspensions that are shorter than this in sum are ignored.
const SHORTEST: Duration = Duration::from_secs(1);
/// Maximum number of suspensions that are remembered.
const MOST: usize = 64;

/// Time since boot, including suspended time, with a precision of a hundredth of a second.
pub fn uptime(root: &Path) -> io::Result<Duration> {
    let text = read_whole(&root.join("uptime"), 256)?;
    parse_uptime(&text).ok_or_else(|| invalid(format!("{}/uptime: no seconds in it", root.display())))
}

/// The identity of this boot (a UUID). Start ticks of two boots cannot be compared.
pub fn boot_id(root: &Path) -> io::Result<String> {
    Ok(read_whole(&root.join("sys/kernel/random/boot_id"), 128)?.trim().to_owned())
}

/// Age of a process that started `start_ticks` after boot, at this uptime; zero where the two disagree.
pub fn age(start_ticks: u64, uptime: Duration) -> Duration {
    uptime.saturating_sub(since_boot(start_ticks))
}

fn since_boot(start_ticks: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let whole = start_ticks.checked_div(per_second).unwrap_or_default();
    let rest = start_ticks.checked_rem(per_second).unwrap_or_default();
    let nanos = rest.saturating_mul(1_000_000_000).checked_div(per_second).unwrap_or_default();
    Duration::from_secs(whole).saturating_add(Duration::from_nanos(nanos))
}

/// Time since boot without suspended time.
pub fn awake() -> Duration {
    of_clock(ClockId::Monotonic)
}

/// For how long the node was suspended since boot, all in all.
pub fn suspended() -> Duration {
    at_one_moment(APART, || of_clock(ClockId::Boottime).saturating_sub(awake()))
}

/// Reads several clocks within this time, so that they show one moment. After eight tries it takes what it has.
pub fn at_one_moment<T>(within: Duration, read: impl Fn() -> T) -> T {
    let mut tries = 8;
    loop {
        let before = awake();
        let clocks = read();
        tries -= 1;
        if awake().saturating_sub(before) < within || tries == 0 {
            return clocks;
        }
    }
}

fn of_clock(clock: ClockId) -> Duration {
    // None of these clocks is ever negative.
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// A clock that stands still while the node is suspended, for the ages of processes and of what they wait for. The kernel counts
/// their starts in time that includes suspensions.
///
/// A process that began before the clock was first read may have begun before or after the suspensions until then. It counts as
/// the younger one of both, and never as younger than the clock.
#[derive(Clone, Debug)]
pub struct AwakeClock {
    suspended: fn() -> Duration,
    uptime: Duration,
    /// The first reading, and the first one after each suspension: time since boot, and suspended time until then.
    readings: Vec<(Duration, Duration)>,
}

impl AwakeClock {
    /// A clock beside the `/proc` at `root`.
    pub fn new(root: &Path) -> Self {
        // This machine's clocks say nothing about a `/proc` of elsewhere.
        Self::with(if root == Path::new(PROC) { suspended } else { Duration::default })
    }

    /// With another source of the suspended time.
    pub(crate) const fn with(suspended: fn() -> Duration) -> Self {
        Self { suspended, uptime: Duration::ZERO, readings: Vec::new() }
    }

    /// Reads the time. All else refers to it.
    pub fn read(&mut self, root: &Path) -> io::Result<()> {
        self.uptime = uptime(root)?;
        let suspended = (self.suspended)();
        if self.readings.last().is_none_or(|(_, last)| suspended >= last.saturating_add(SHORTEST)) {
            self.readings.push((self.uptime, suspended));
        }
        if self.readings.len() > MOST {
            self.readings.remove(0);
        }
        Ok(())
    }

    /// The time since boot without suspended time.
    pub fn now(&self) -> Duration {
        self.at(self.uptime)
    }

    /// Age of a process without suspended time, see [`age`].
    pub fn age(&self, start_ticks: u64) -> Duration {
        self.now().saturating_sub(self.at(since_boot(start_ticks)))
    }

    /// What it showed at this moment since boot, or the most that it can have shown.
    fn at(&self, moment: Duration) -> Duration {
        let next = self.readings.partition_point(|(read, _)| *read <= moment);
        let last = next.checked_sub(1).and_then(|last| self.readings.get(last));
        let most = moment.saturating_sub(last.map_or(Duration::ZERO, |(_, suspended)| *suspended));
        self.readings.get(next).map_or(most, |(read, suspended)| most.min(read.saturating_sub(*suspended)))
    }
}

pub(crate) fn parse_uptime(text: &str) -> Option<Duration> {
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The processor time that this thread has used.
pub fn processor_time() -> Duration {
    of_clock(ClockId::ThreadCPUTime)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn uptime_is_the_first_number() {
        assert_eq!(parse_uptime("12.50 99.0\n"), Some(Duration::from_millis(12_500)));
        assert_eq!(parse_uptime(""), None);
        assert_eq!(parse_uptime("-1 2"), None);
        assert_eq!(parse_uptime("NaN 2"), None);
    }

    #[test]
    fn a_start_after_now_has_no_age() {
        assert_eq!(age(u64::MAX, Duration::from_secs(5)), Duration::ZERO);
        let ticks = rustix::param::clock_ticks_per_second();
        assert_eq!(age(ticks.saturating_mul(2), Duration::from_secs(5)), Duration::from_secs(3));
    }

    #[test]
    fn a_suspension_makes_nothing_older() {
        thread_local!(static SUSPENDED: Cell<u64> = const { Cell::new(0) });
        let root = tempfile::tempdir().unwrap();
        let ticks = rustix::param::clock_ticks_per_second();
        let mut clock = AwakeClock::with(|| Duration::from_secs(SUSPENDED.get()));
        let mut at = |uptime: u64, suspended: u64, starts: [u64; 4]| {
            std::fs::write(root.path().join("uptime"), format!("{uptime}.00 1.0\n")).unwrap();
            SUSPENDED.set(suspended);
            clock.read(root.path()).unwrap();
            let ages = starts.map(|start| clock.age(start * ticks).as_secs());
            (clock.now().as_secs(), ages)
        };
        // Whether the second one began before the suspension or after it is not known.
        assert_eq!(at(2000, 600, [100, 1395, 1990, 2000]), (1400, [1300, 5, 0, 0]));
        assert_eq!(at(2010, 600, [100, 1395, 1990, 2000]), (1410, [1310, 15, 10, 10]));
        // Ten minutes later by the one clock, five seconds by the other. The last one began after it.
        assert_eq!(at(2615, 1200, [100, 1990, 2005, 2614]), (1415, [1315, 15, 10, 0]));
        assert_eq!(at(2625, 1200, [100, 1990, 2005, 2614]), (1425, [1325, 25, 20, 10]));
        assert_eq!(at(2625, 1200, [2620, 2625, 9999, 0]), (1425, [5, 0, 0, 1425]));
        for reading in 0..1000 {
            at(3000 + reading * 2, 1200 + reading * 2, [0; 4]);
        }
        assert_eq!(clock.readings.len(), MOST);
    }

    #[test]
    fn the_real_clocks_agree() {
        let mut clock = AwakeClock::new(Path::new(PROC));
        clock.read(Path::new(PROC)).unwrap();
        let awake = awake();
        assert!(clock.now() <= awake, "{:?} {awake:?}", clock.now());
        assert_eq!(suspended().as_secs(), suspended().as_secs());
    }
}
