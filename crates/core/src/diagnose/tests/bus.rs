//! systemd on the system bus.

use super::*;
use crate::observation::BusStep;

const KIND: FaultType = FaultType::DbusUnresponsive;

fn says(bus: BusSeen) -> Node {
    Node { bus: done(bus), ..Node::healthy() }
}

#[test]
fn silence_is_told_with_how_far_the_question_got() {
    for (step, message) in [
        (BusStep::Connect, "the system bus does not answer"),
        (BusStep::Login, "the system bus does not answer"),
        (BusStep::Hello, "the system bus does not answer"),
        (BusStep::Ping, "systemd does not answer over it"),
    ] {
        let findings = says(BusSeen::Silent { step, how: "no answer within 5 s".into() }).findings();
        let sighting = only(&findings);
        assert_eq!((sighting.kind, sighting.subject.to_string().as_str()), (KIND, "process systemd"));
        assert!(sighting.message.contains(message), "{}", sighting.message);
        assert_eq!(sighting.evidence, [format!("{step}: no answer within 5 s")]);
        assert_eq!(clean_at(&findings, KIND, "systemd"), None);
        assert_eq!(sighting.severity, Severity::High);
    }
    // An error comes at once, and root has another way then.
    let findings =
        says(BusSeen::Refused { step: BusStep::Hello, how: "the bus says LimitsExceeded".into() }).findings();
    let sighting = only(&findings);
    assert_eq!(sighting.severity, Severity::Medium);
    assert!(sighting.message.contains("takes nobody") && sighting.impact.contains("another way"), "{sighting:?}");
}

#[test]
fn a_node_without_systemd_lacks_nothing_and_a_bus_without_it_tells_nothing() {
    for (seen, expected) in [(BusSeen::Answered, Clean), (BusSeen::NoBus, Clean), (BusSeen::NotOnIt, Unknown)] {
        assert_eq!(said(&says(seen.clone()), KIND, "systemd"), expected, "{seen:?}");
    }
}
