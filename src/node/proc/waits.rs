//! Who has waited uninterruptibly since when, over several looks.

use std::collections::BTreeMap;
use std::time::Duration;

/// A process or thread: its id and its start.
type Id = (i32, u64);

/// What the last look has seen to wait. A wait goes on as long as a count of the kernel's (of its switches, of its processor
/// time) stands still.
#[derive(Debug, Default)]
pub struct Waits {
    last: BTreeMap<Id, Wait>,
    next: BTreeMap<Id, Wait>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    /// At its beginning.
    count: u64,
    since: Duration,
}

impl Waits {
    /// It waits, at this time since boot, with this count: for how long it has been seen so. `slack` is by how much a count
    /// may differ from that at the beginning.
    pub fn saw(&mut self, id: Id, count: u64, slack: u64, now: Duration) -> Duration {
        let same = self.last.get(&id).filter(|wait| wait.count.abs_diff(count) <= slack);
        let wait = same.copied().unwrap_or(Wait { count, since: now });
        self.next.insert(id, wait);
        now.saturating_sub(wait.since)
    }

    /// The look is over: who was not seen in it does not wait.
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
        let mut look = |id: Id, switches, at: u64| {
            let waited = waits.saw(id, switches, 0, Duration::from_secs(at)).as_secs();
            waits.over();
            waited
        };
        assert_eq!([look((7, 1), 5, 100), look((7, 1), 5, 115), look((7, 1), 5, 190)], [0, 15, 90]);
        assert_eq!(look((7, 1), 6, 205), 0, "it has run");
        assert_eq!(look((7, 2), 6, 220), 0, "another process of that id");
        assert_eq!(look((7, 1), 6, 235), 0, "it was not seen in the look before");
        let mut look = |count, at: u64| {
            let waited = waits.saw((8, 1), count, 2, Duration::from_secs(at)).as_secs();
            waits.over();
            waited
        };
        assert_eq!([look(5, 300), look(6, 310), look(7, 320), look(8, 330)], [0, 10, 20, 0], "beyond the slack");
    }
}
