//! Who has waited uninterruptibly since when, over several looks.

use std::collections::BTreeMap;
use std::time::Duration;

/// A process or thread: its id and its start.
type Id = (i32, u64);

/// What the last look has seen to wait. A wait goes on as long as the kernel's count of its switches stands still: who runs
/// in between, however shortly, adds to it.
#[derive(Debug, Default)]
pub struct Waits {
    last: BTreeMap<Id, Wait>,
    next: BTreeMap<Id, Wait>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    switches: u64,
    since: Duration,
}

impl Waits {
    /// It waits, at this time since boot, after so many switches: for how long it has been seen so.
    pub fn saw(&mut self, id: Id, switches: u64, now: Duration) -> Duration {
        let same = self.last.get(&id).filter(|wait| wait.switches == switches);
        let since = same.map_or(now, |wait| wait.since);
        self.next.insert(id, Wait { switches, since });
        now.saturating_sub(since)
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
            let waited = waits.saw(id, switches, Duration::from_secs(at)).as_secs();
            waits.over();
            waited
        };
        assert_eq!([look((7, 1), 5, 100), look((7, 1), 5, 115), look((7, 1), 5, 190)], [0, 15, 90]);
        assert_eq!(look((7, 1), 6, 205), 0, "it has run");
        assert_eq!(look((7, 2), 6, 220), 0, "another process of that id");
        assert_eq!(look((7, 1), 6, 235), 0, "it was not seen in the look before");
    }
}
