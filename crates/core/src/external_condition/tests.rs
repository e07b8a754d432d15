use super::*;

fn condition(kind: &str, status: TriState, reason: &str) -> ExternalCondition {
    ExternalCondition::new(kind, status.as_str(), reason, "what it says").unwrap()
}

fn asking(kind: &str, status: TriState, reasons: &[&str]) -> ConditionMatcher {
    ConditionMatcher { kind: kind.to_owned(), status, reasons: reasons.iter().map(|one| (*one).to_owned()).collect() }
}

fn observed(condition: ExternalCondition) -> ObservedCondition {
    let statuses = [condition.status].into();
    let (first_seen, lasted) = (Timestamp::UNIX_EPOCH, BTreeMap::new());
    ObservedCondition { condition, statuses, first_seen, lasted, flaps: false }
}

#[test]
fn what_nobody_can_ask_for_is_not_kept() {
    for (kind, status) in [
        ("", "True"),
        ("KernelDeadlock", "true"),
        ("KernelDeadlock", ""),
        ("HostUnhealthy", "True"),
        ("KubeletUnhealthy", "False"),
        (&*"x".repeat(MAX_TYPE + 1), "True"),
    ] {
        assert_eq!(ExternalCondition::new(kind, status, "r", "m"), None, "{kind} {status}");
    }
    let long = ExternalCondition::new("A", "Unknown", &"r".repeat(9_999), "a\nb\u{1b}[31m").unwrap();
    assert_eq!((long.reason.len(), long.message.as_str()), (MAX_REASON, "a b [31m"));
    let many = (0..9_999).map(|number| condition(&format!("C{number}"), TriState::True, "r"));
    assert_eq!(sorted(many).len(), MAX_CONDITIONS);
}

#[test]
fn it_is_met_by_type_status_and_reason() {
    let hung = condition("KernelDeadlock", TriState::True, "DockerHung");
    for (matcher, is_met) in [
        (asking("KernelDeadlock", TriState::True, &[]), true),
        (asking("KernelDeadlock", TriState::True, &["TaskHung", "DockerHung"]), true),
        (asking("KernelDeadlock", TriState::True, &["TaskHung"]), false),
        (asking("KernelDeadlock", TriState::False, &[]), false),
        (asking("Kernel", TriState::True, &[]), false),
    ] {
        assert_eq!(matcher.is_met_by(&hung), is_met, "{matcher:?}");
        let fault = observed(hung.clone()).fault("w1", false);
        assert_eq!(matcher.is_for(&fault), is_met, "{matcher:?}");
        // A fault of another kind is none of it, whatever its subject says.
        assert!(!matcher.is_for(&Fault { kind: FaultType::HungContainer, ..fault }));
    }
}

#[test]
fn two_of_one_type_say_nothing() {
    let both = sorted([
        condition("A", TriState::True, "r"),
        condition("A", TriState::False, "r"),
        condition("B", TriState::True, "r"),
    ]);
    assert_eq!(state_of(&both, "A"), ConditionState::Contradictory);
    assert!(matches!(state_of(&both, "B"), ConditionState::As(_)));
    assert_eq!(state_of(&both, "C"), ConditionState::Absent);
    let twice = sorted([condition("A", TriState::True, "r"), condition("A", TriState::True, "r")]);
    assert!(matches!(state_of(&twice, "A"), ConditionState::As(_)), "the same twice is no contradiction");
}

#[test]
fn the_fault_is_the_same_whatever_the_reason_and_quotes_what_was_said() {
    let of = |status, reason: &str| observed(condition("KernelDeadlock", status, reason)).fault("w1", true);
    let hung = of(TriState::True, "DockerHung");
    assert_eq!(hung.message, "condition KernelDeadlock of the Node is True (DockerHung): what it says");
    assert_eq!(hung.subject.to_string(), "condition KernelDeadlock=True");
    assert_eq!(hung.id, of(TriState::True, "TaskHung").id);
    assert_ne!(hung.id, of(TriState::Unknown, "DockerHung").id);
    assert_eq!(hung.evidence.len(), 2);
    let longest = "x".repeat(MAX_TYPE);
    let condition = ExternalCondition::new(&longest, "True", &"r".repeat(500), &"m".repeat(5_000)).unwrap();
    let fault = observed(condition).fault("w1", false);
    assert!(fault.message.len() <= MAX_LINE && fault.evidence.iter().all(|line| line.len() <= MAX_LINE));
    assert_eq!(fault.evidence.len(), 3, "that nobody hears of the kubelet is told");
}

#[test]
fn statuses_that_rules_ask_for_together_are_one_fault() {
    use TriState::{False, True, Unknown};
    let of = |statuses: &[TriState]| statuses.iter().map(|status| asking("Ready", *status, &[])).collect::<Asking>();
    for (askings, status, want) in [
        (vec![], False, vec![False]),
        (vec![of(&[False]), of(&[Unknown])], False, vec![False]),
        (vec![of(&[False, Unknown])], False, vec![False, Unknown]),
        (vec![of(&[False, Unknown])], True, vec![True]),
        (vec![of(&[True, False]), of(&[False, Unknown])], Unknown, vec![True, False, Unknown]),
    ] {
        assert_eq!(statuses_with(status, &askings), want.into_iter().collect(), "{status:?} {askings:?}");
    }
    let observed_as =
        |status| ObservedCondition { statuses: [False, Unknown].into(), ..observed(condition("Ready", status, "r")) };
    assert_eq!(observed_as(False).id("w1"), observed_as(Unknown).id("w1"));
    assert_ne!(observed_as(False).id("w1"), observed(condition("Ready", False, "r")).id("w1"));
}
