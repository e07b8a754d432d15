//! Which processes and threads have waited uninterruptibly since when, over several readings.

use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(doc)]
use super::AwakeClock;

/// A process or thread: its id and its start.
type Id = (i32, u64);

/// The waits that the last reading has seen. A wait continues while one of the kernel's counts (of context switches, of
/// processor time) does not change.
#[derive(Debug, Default)]
pub struct Waits {
    last: BTreeMap<Id, Wait>,
    next: BTreeMap<Id, Wait>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    /// The count when the wait began.
    count: u64,
    since: Duration,
}

impl Waits {
    /// Records a wait at this time of an [`AwakeClock`], with this count. Returns how long the wait has been seen. `slack` is the maximum
    /// difference between a count and that at the beginning.
    pub fn saw(&mut self, id: Id, count: u64, slack: u64, now: Duration) -> Duration {
        let same = self.last.get(&id).filter(|wait| wait.count.abs_diff(count) <= slack);
        let wait = same.copied().unwrap_or(Wait { count, since: now });
        self.next.insert(id, wait);
        now.saturating_sub(wait.since)
    }

    /// Ends the reading: a process or thread that it did not see does not wait.
    pub fn over(&mut self) {
        self.last = std::mem::take(&mut self.next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_grows_until_the_process_has_run_or_was_not_seen_to_wait() {
        let mut waits = Waits::default();
        let mut check = |id: Id, switches, at: u64| {
            let waited = waits.saw(id, switches, 0, Duration::from_secs(at)).as_secs();
            waits.over();
            waited
        };
        assert_eq!([check((7, 1), 5, 100), check((7, 1), 5, 115), check((7, 1), 5, 190)], [0, 15, 90]);
        assert_eq!(check((7, 1), 6, 205), 0, "it has run");
        assert_eq!(check((7, 2), 6, 220), 0, "another process of that id");
        assert_eq!(check((7, 1), 6, 235), 0, "it was not seen in the look before");
        let mut check = |count, at: u64| {
            let waited = waits.saw((8, 1), count, 2, Duration::from_secs(at)).as_secs();
            waits.over();
            waited
        };
        assert_eq!([check(5, 300), check(6, 310), check(7, 320), check(8, 330)], [0, 10, 20, 0], "beyond the slack");
    }
}
