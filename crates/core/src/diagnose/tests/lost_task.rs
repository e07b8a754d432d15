//! Listed as running, and nothing runs.

use super::*;

/// The first pod's container has lost its task; the question was answered so many seconds ago.
fn lost(answer: TaskAnswer, age: u64) -> Node {
    let took = Duration::from_millis(3);
    Node::with(|node| work(node, Reading::Done { value: answer, age: Duration::from_secs(age), took }))
}

#[test]
fn a_list_that_is_younger_than_the_answer_makes_it_a_fault() {
    for (answer, words) in [(TaskAnswer::NotFound, "is not there"), (TaskAnswer::Ended, "has ended")] {
        let findings = lost(answer, 5).findings();
        let sighting = only_of(&findings, FaultType::LostTask, WORK);
        let expected = format!("container work of default/one is listed as running, but its task {words}");
        assert_eq!(sighting.message, expected);
        assert_eq!(sighting.checked, Duration::from_secs(995), "the look is that at the task");
        assert_eq!(findings.ask, [WORK], "it is asked again, or it would never be confirmed nor cleared");
        assert!(clean_at(&findings, FaultType::LostTask, SIDECAR).is_some());
    }
}

#[test]
fn a_list_that_was_asked_for_before_the_answer_proves_nothing_though_its_round_ended_later() {
    let mut node = lost(TaskAnswer::Ended, 5);
    node.list().containers_before = Duration::from_secs(6);
    assert!(node.kinds().is_empty());
    node.list().containers_before = Duration::from_secs(4);
    assert_eq!(node.kinds(), [FaultType::LostTask]);
}

#[test]
fn an_answer_that_is_younger_than_the_list_proves_nothing_yet() {
    let node = lost(TaskAnswer::NotFound, 0);
    assert_eq!(said(&node, FaultType::LostTask, WORK), Unknown, "nor that all is well");
    assert_eq!(node.findings().ask, [WORK]);
}

#[test]
fn what_has_ended_for_the_list_too_is_not_lost_and_silence_is_another_fault() {
    let mut node = lost(TaskAnswer::NotFound, 5);
    node.list().containers.iter_mut().filter(|c| c.id == WORK).for_each(|c| c.state = ContainerState::Exited);
    assert!(node.kinds().is_empty());
    let node = lost(TaskAnswer::NoAnswer, 5);
    assert_eq!(node.kinds(), [FaultType::HungContainer]);
    assert_eq!(clean_at(&node.findings(), FaultType::LostTask, WORK), None);
    let mut node = lost(TaskAnswer::NotFound, 5);
    node.list().containers.iter_mut().for_each(|c| c.pod = None);
    assert!(node.kinds().is_empty(), "not the kubelet's");
    for reading in [
        Reading::Never,
        Reading::Done {
            value: TaskAnswer::Answered,
            age: task_max_age(3, RuntimeKind::Containerd) * 2,
            took: Duration::ZERO,
        },
    ] {
        let findings = Node::with(|node| work(node, reading)).findings();
        let named = findings.coverage[&FaultType::LostTask].of(WORK);
        assert!(matches!(named, Verdict::Unknown { reason: ConditionReason::NotYetChecked, .. }), "no gap: {named:?}");
    }
    let unasked = Node { tasks: [].into(), ..Node::healthy() }.findings();
    assert_eq!(clean_at(&unasked, FaultType::LostTask, WORK), None, "who was not asked is not known to be well");
}
