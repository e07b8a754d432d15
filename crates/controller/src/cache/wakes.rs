//! Limits how often changes of one node wake the decider: a node whose report or Node changes without end costs the others
//! nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::fold::Changed;

/// Shortest time between two wakes by one node on average.
pub const EACH: Duration = Duration::from_secs(1);
/// Number of wakes that may come at once: the changes of a node that becomes faulty, and the answers to its remediation, never
/// wait.
const AT_ONCE: u32 = 10;

/// The wakes by each node.
#[derive(Debug, Default)]
pub struct Wakes(BTreeMap<String, Instant>);

impl Wakes {
    /// The effect of a change of a node at `now`.
    pub fn news(&mut self, node: &str, matters: bool, now: Instant) -> Changed {
        if !matters {
            return Changed::Nothing;
        }
        // The time at which the node's use is back within its share.
        let even = self.0.get(node).copied().unwrap_or(now).max(now);
        if even.saturating_duration_since(now) > EACH * (AT_ONCE - 1) {
            return Changed::MattersSoon;
        }
        self.0.insert(node.to_owned(), even + EACH);
        Changed::Matters
    }

    /// Forgets a node.
    pub fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_writes_without_end_wakes_the_decider_once_a_second_and_no_other_is_kept_waiting() {
        let (mut wakes, began) = (Wakes::default(), Instant::now());
        let mut at_once = 0;
        for tick in 0..1000_u32 {
            let now = began + Duration::from_millis(20) * tick;
            at_once += u32::from(wakes.news("liar", true, now) == Changed::Matters);
            assert_eq!(wakes.news("liar", false, now), Changed::Nothing);
        }
        assert_eq!(at_once, AT_ONCE + 19, "in 20 s");
        let now = began + Duration::from_secs(20);
        assert_eq!(wakes.news("liar", true, now - Duration::from_millis(1)), Changed::MattersSoon);
        assert_eq!(wakes.news("other", true, now), Changed::Matters);
        let rested = now + EACH * AT_ONCE;
        assert!((0..AT_ONCE).all(|_| wakes.news("liar", true, rested) == Changed::Matters));
        assert_eq!(wakes.news("liar", true, rested), Changed::MattersSoon);
    }
}
