//! The kubelets of a node, one after another: when each started, how long it was seen, whether it completed its start.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::faults::kubelet::CRASH_LOOP_WINDOW;
use crate::finding::{KubeletStart, Kubelets};

/// Maximum difference between two computed starts of one process. The start is computed from two ages.
pub(super) const SAME_START: Duration = Duration::from_secs(2);
/// Maximum number of remembered processes. A process may live for milliseconds.
const MOST: usize = 32;
/// Age from which the lifetime of a process is no longer followed. Otherwise every check would write the state again.
const LONG: Duration = Duration::from_mins(10);

/// The newest kubelets, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Lives {
    lives: Vec<Life>,
    /// Whether the newest ran at the last check.
    runs: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Life {
    began: Duration,
    /// When it was last seen, up to [`LONG`].
    seen: Duration,
    completed: bool,
}

impl Lives {
    /// The state as saved in this same boot.
    pub(super) fn restored(mut self, now: Duration) -> Self {
        self.lives.retain(|life| life.began <= life.seen && life.seen <= now);
        self.keep_newest();
        self
    }

    /// Records a check. A check that was not possible changes nothing.
    pub(super) fn note(&mut self, kubelet: &KubeletStart) {
        let Some(checked) = kubelet.checked else { return };
        self.runs = kubelet.began.is_some();
        let Some(began) = kubelet.began else { return };
        let completed = kubelet.completed.is_some();
        match self.lives.last_mut().filter(|life| began <= life.began.saturating_add(SAME_START)) {
            Some(life) => {
                life.seen = checked.min(life.began.saturating_add(LONG)).max(life.seen);
                life.completed |= completed;
            }
            None => self.lives.push(Life { began, seen: checked, completed }),
        }
        // The newest is remembered for as long as it lives.
        let newest = self.lives.pop();
        self.lives.retain(|life| life.began.saturating_add(CRASH_LOOP_WINDOW) >= checked);
        self.lives.extend(newest);
        self.keep_newest();
    }

    /// What the diagnosis asks for.
    pub(super) fn lately(&self) -> Kubelets {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let before = self.lives.split_last().map(|(_, before)| before).unwrap_or_default();
        Kubelets {
            begun: count(self.lives.len()),
            completed: count(self.lives.iter().filter(|life| life.completed).count()),
            longest: before.iter().map(|life| life.seen.saturating_sub(life.began)).max().unwrap_or_default(),
        }
    }

    /// Whether the current process, or the one at the last possible check, has completed its start.
    pub(super) fn works_or_hangs(&self) -> bool {
        self.runs && self.lives.last().is_some_and(|life| life.completed)
    }

    fn keep_newest(&mut self) {
        let extra = self.lives.len().saturating_sub(MOST);
        self.lives.drain(..extra);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A check at this second. `began` is the start of the running kubelet. Its start counts as complete at 20 s.
    fn check(lives: &mut Lives, at: u64, began: Option<u64>) {
        let completed = began.filter(|began| at - began >= 20).map(secs);
        let (checked, began) = (Some(secs(at)), began.map(secs));
        lives.note(&KubeletStart { completed, checked, began, ..KubeletStart::default() });
    }

    #[test]
    fn each_process_counts_once_and_for_half_an_hour() {
        let mut lives = Lives::default();
        for at in (1000..1100).step_by(5) {
            check(&mut lives, at, Some(1000 - at % 2));
        }
        assert_eq!(lives.lately(), Kubelets { begun: 1, completed: 1, longest: secs(0) });
        check(&mut lives, 1100, Some(1098));
        assert_eq!(lives.lately(), Kubelets { begun: 2, completed: 1, longest: secs(95) });
        check(&mut lives, 999 + 1800, Some(1098));
        assert_eq!(lives.lately().begun, 2);
        check(&mut lives, 1001 + 1800, Some(1098));
        assert_eq!(lives.lately(), Kubelets { begun: 1, completed: 1, longest: secs(0) });
        let before = lives.clone();
        check(&mut lives, 99_000, Some(1098));
        assert_eq!(lives, before, "the one that runs stays, and the state is not written for it");
    }

    #[test]
    fn thousands_of_starts_are_bounded_also_when_restored() {
        let mut lives = Lives::default();
        for at in 0..1000 {
            check(&mut lives, 10 * at, Some(10 * at));
        }
        assert_eq!(lives.lives.len(), MOST);
        let many = Lives { lives: vec![lives.lives[0]; 1000], runs: true };
        assert_eq!(many.restored(secs(10_000)).lives.len(), MOST);
        assert!(lives.restored(secs(5)).lives.is_empty(), "nothing from the future");
    }

    #[test]
    fn one_that_completed_its_start_may_work_for_as_long_as_it_runs() {
        let mut lives = Lives::default();
        check(&mut lives, 5, Some(0));
        assert!(!lives.works_or_hangs());
        check(&mut lives, 30, Some(0));
        assert!(lives.works_or_hangs());
        lives.note(&KubeletStart::default());
        assert!(lives.works_or_hangs(), "nobody could look");
        check(&mut lives, 50, None);
        assert!(!lives.works_or_hangs());
        check(&mut lives, 60, Some(55));
        assert!(!lives.works_or_hangs());
    }
}
