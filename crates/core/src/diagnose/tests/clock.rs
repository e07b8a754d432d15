//! The node's clock beside the API server's.

use super::*;

const KIND: FaultType = FaultType::ClockUnsynchronised;

pub(super) fn apart(ahead: u64, behind: u64, most: u64) -> ClockSeen {
    let [ahead, behind, most] = [ahead, behind, most].map(Duration::from_secs);
    ClockSeen { ahead, behind, most }
}

fn says(clock: ClockSeen) -> Node {
    Node { clock: done(clock), ..Node::healthy() }
}

#[test]
fn a_clock_is_told_to_be_ahead_or_behind() {
    for (clock, message, evidence) in [
        (apart(31, 0, 33), "the node's clock is ahead of the API server's by more than 30 s", "ahead by 31 s at least"),
        (apart(0, 7200, 7202), "the node's clock is behind the API server's by more than 30 s", "behind by 7200 s"),
    ] {
        let findings = says(clock).findings();
        let sighting = only(&findings);
        assert_eq!((sighting.message.as_str(), sighting.subject.to_string().as_str()), (message, "host clock"));
        assert!(sighting.evidence[0].starts_with(evidence), "{:?}", sighting.evidence);
        assert_eq!(clean_at(&findings, KIND, "clock"), None);
    }
}

#[test]
fn what_a_slow_answer_leaves_open_is_neither_sick_nor_clean() {
    for (clock, expected) in [
        (apart(0, 0, 1), Clean),
        (apart(0, 0, 14), Clean),
        (apart(13, 0, 14), Clean),
        (apart(0, 0, 15), Unknown),
        (apart(0, 0, 3600), Unknown),
        (apart(30, 0, 32), Unknown),
        (apart(0, 30, 90), Unknown),
    ] {
        assert_eq!(said(&says(clock), KIND, "clock"), expected, "{clock:?}");
    }
}

#[test]
fn an_answer_holds_for_longer_than_a_report_takes_to_come_and_not_for_ever() {
    let aged = |minutes: u64| {
        let age = Duration::from_mins(minutes);
        let node = Node { now: Duration::from_hours(2), ..Node::healthy() };
        Node { clock: Reading::Done { value: apart(0, 0, 1), age, took: Duration::ZERO }, ..node }
    };
    assert!(clean_at(&aged(19).findings(), KIND, "clock").is_some());
    for node in [aged(21), Node { clock: Reading::Never, ..Node::healthy() }] {
        assert!(node.kinds().is_empty());
        assert!(node.findings().coverage[&KIND].gap().is_some());
    }
}
