//! Requests for a fresh check, from the arrival of a request to its answer.

use std::time::Duration;

use tokio::time::Instant;

use crate::report::command::Command;
use nrh_core::observation::{Observations, Reading};
use nrh_core::snapshot::TriState;

/// The controller's request is answered after this time even if a collector has not returned.
const SEQUENCE_WITHIN: Duration = Duration::from_secs(3);
/// A person's request also waits for every container. After this time, "not safe" or "unknown" is answered anyway.
const CHECK_WITHIN: Duration = Duration::from_secs(12);

/// One kind of request. A newer request waits until the current one is answered, so that each one is answered or has
/// used its time.
#[derive(Debug, Default)]
struct Request<T> {
    /// When the current request arrived.
    open: Option<Instant>,
    /// The newest request that was started.
    begun: T,
    /// The last request that was answered.
    answered: T,
}

impl<T: Clone + Default + PartialEq> Request<T> {
    /// Reads the current request; returns whether a check starts with it. No request at all means that the object is
    /// gone: in the next object every request is new.
    fn receive(&mut self, wanted: &T, now: Instant) -> bool {
        if *wanted == T::default() {
            *self = Self::default();
        }
        let is_new = *wanted != self.begun && !self.is_young(now);
        if is_new {
            (self.open, self.begun) = (Some(now), wanted.clone());
        }
        is_new
    }

    /// Whether a request is in progress and within its time.
    fn is_young(&self, now: Instant) -> bool {
        self.open.is_some_and(|began| now.saturating_duration_since(began) <= CHECK_WITHIN)
    }

    /// Whether the current request is answered now.
    fn settle(&mut self, now: Instant, is_answered: impl FnOnce(Duration) -> bool) -> bool {
        let since = self.open.map(|began| now.saturating_duration_since(began));
        let is_settled = since.is_some_and(is_answered);
        if is_settled {
            self.answered = self.begun.clone();
            self.open = None;
        }
        is_settled
    }
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    sequences: Request<u64>,
    checks: Request<Option<String>>,
    /// Number of requests answered since the probe started.
    pub answers: u64,
}

impl Requests {
    /// Reads the command of the node; returns whether all collectors have to check now.
    pub(super) fn receive(&mut self, command: &Command, now: Instant) -> bool {
        let (sequence, check) =
            (self.sequences.receive(&command.check_sequence, now), self.checks.receive(&command.check_requested, now));
        sequence || check
    }

    /// Records which requests are answered by these observations, whose ages are relative to `at`, and by their verdict
    /// on a restart.
    pub(super) fn settle(&mut self, seen: &Observations, at: Instant, safe: TriState) {
        let sequence = self.sequences.settle(at, |since| since >= SEQUENCE_WITHIN || checked_since(seen, since));
        let check = self.checks.settle(at, |since| {
            // "Safe" from evidence older than the request would not answer it.
            let is_overdue = since >= CHECK_WITHIN;
            let is_whole = checked(&seen.lists, since) && seen.tasks.values().all(|task| checked(task, since));
            (is_whole && checked_since(seen, since)) || (is_overdue && (is_whole || safe != TriState::True))
        });
        self.answers = self.answers.saturating_add(u64::from(sequence || check));
    }

    /// Whether a request is in progress that can be answered at any moment.
    pub(super) fn is_open(&self) -> bool {
        let now = Instant::now();
        self.sequences.is_young(now) || self.checks.is_young(now)
    }

    /// Returns the last request of a person that was answered.
    pub(super) const fn check_answered(&self) -> Option<&String> {
        self.checks.answered.as_ref()
    }
}

/// Whether a reading was started and has completed within this time, or hangs. A hanging reading is an answer too; an
/// unavailable one never completes.
fn checked<T>(reading: &Reading<T>, since: Duration) -> bool {
    match reading {
        Reading::Done { age, took, .. } => age.saturating_add(*took) <= since,
        Reading::Failed { age, .. } => *age <= since,
        Reading::Hung { .. } | Reading::Unavailable { .. } => true,
        Reading::Never => false,
    }
}

/// Whether every collector has completed a reading within this time, or hangs.
pub(super) fn checked_since(seen: &Observations, since: Duration) -> bool {
    checked(&seen.runtime, since)
        && checked(&seen.lists, since)
        && checked(&seen.status, since)
        && checked(&seen.processes, since)
        && checked(&seen.kubelet, since)
        && checked(&seen.host, since)
        && checked(&seen.disks, since)
        && checked(&seen.port, since)
        && checked(&seen.bus, since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrh_core::examples::Node;
    use nrh_core::observation::TaskAnswer;

    fn received(sequence: u64, check: Option<&str>) -> Command {
        Command { check_sequence: sequence, check_requested: check.map(str::to_owned), ..Command::NONE }
    }

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_request_is_answered_once_and_the_newest_of_those_that_came_meanwhile_after_it() {
        let (mut requests, began, seen) = (Requests::default(), Instant::now(), Node::healthy());
        assert!(!requests.receive(&Command::default(), began) && !requests.receive(&Command::NONE, began));
        assert!(requests.receive(&received(3, None), began) && requests.is_open());
        assert!(
            !requests.receive(&received(4, None), began) && !requests.receive(&received(5, None), began),
            "one is under way"
        );
        requests.settle(&seen, began + SEQUENCE_WITHIN, TriState::True);
        assert_eq!((requests.answers, requests.is_open()), (1, false));
        assert!(requests.receive(&received(5, None), began + secs(3)));
        requests.settle(&seen, began + secs(6), TriState::True);
        assert!(!requests.receive(&received(5, None), began + secs(7)), "it is answered");
        // The object is deleted and created again: its numbers start again.
        assert!(!requests.receive(&Command::NONE, began + secs(8)));
        assert!(requests.receive(&received(1, None), began + secs(9)));
        requests.settle(&seen, began + secs(12), TriState::True);
        assert!(requests.receive(&received(5, None), began + secs(13)));
    }

    #[test]
    fn a_person_waits_for_every_container_and_the_controller_does_not() {
        let (mut requests, began, mut node) = (Requests::default(), Instant::now(), Node::healthy());
        let aged = |seconds: u64| Reading::Done {
            value: TaskAnswer::Answered,
            age: secs(seconds),
            took: Duration::from_millis(5),
        };
        node.tasks.insert("slow".into(), aged(60));
        assert!(requests.receive(&received(1, Some("a")), began));
        requests.settle(&node, began + secs(11), TriState::True);
        assert_eq!((requests.answers, requests.check_answered()), (1, None), "the controller's is answered");
        node.tasks.insert("slow".into(), aged(2));
        requests.settle(&node, began + secs(11), TriState::True);
        assert_eq!((requests.answers, requests.check_answered().map(String::as_str)), (2, Some("a")));
        assert!(!requests.is_open());
        // A round that began before the request says nothing about what was made since.
        let lists = node.lists.clone();
        if let Reading::Done { took, .. } = &mut node.lists {
            *took = secs(12);
        }
        assert!(requests.receive(&received(1, Some("c")), began));
        requests.settle(&node, began + secs(11), TriState::True);
        assert!(requests.is_open());
        node.lists = lists;
        requests.settle(&node, began + secs(11), TriState::True);
        assert!(!requests.is_open());
        // A hanging task has given all it can give; an unavailable one is not waited for.
        node.tasks.insert("slow".into(), Reading::Hung { out: secs(9) });
        assert!(requests.receive(&received(1, Some("b")), began + secs(20)));
        requests.settle(&node, began + secs(22), TriState::True);
        assert_eq!(requests.check_answered().map(String::as_str), Some("b"));
        node.tasks.insert("slow".into(), aged(600));
        assert!(requests.receive(&received(1, Some("a")), began + secs(30)), "the same name as once before");
        requests.settle(&node, began + secs(100), TriState::True);
        requests.settle(&node, began + secs(41), TriState::Unknown);
        assert_eq!(
            requests.check_answered().map(String::as_str),
            Some("b"),
            "a yes waits, and so does a no for a while"
        );
        requests.settle(&node, began + secs(30) + CHECK_WITHIN, TriState::False);
        assert_eq!(requests.check_answered().map(String::as_str), Some("a"));
    }
}
