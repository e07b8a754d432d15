//! CRI-O: no shims, and a question that waits for what holds one container.

use super::*;

/// Each container stands alone, and no process of the node is a shim.
pub(super) fn with_crio(node: &mut Node) {
    node.kind = RuntimeKind::CriO;
    node.runtime = done(RuntimeSeen { name: "cri-o".into(), version: "1.33.0".into() });
    node.table().retain(|process| !matches!(process.part, Part::Shim { .. }));
    for look in node.tasks.values_mut() {
        *look = done(TaskAnswer::DaemonAnswered);
    }
}

fn crio() -> Node {
    let mut node = Node::healthy();
    with_crio(&mut node);
    node
}

#[test]
fn a_container_whose_status_hangs_is_one_fault_without_a_process_to_end() {
    let mut node = crio();
    node.tasks.insert(WORK.into(), Reading::Hung { out: Duration::from_secs(9) });
    let findings = node.findings();
    let sighting = only(&findings);
    assert_eq!((sighting.kind, sighting.subject.id.as_deref()), (FaultType::HungContainer, Some(WORK)));
    assert_eq!(sighting.message, "container work of default/one does not answer while the runtime does");
    assert!(sighting.evidence[0].starts_with("ContainerStatus of aaaa1 is out past its deadline"), "{sighting:?}");
    assert_eq!((sighting.target.process.as_ref(), sighting.certain), (None, true));
    let clean = clean_at(&findings, FaultType::HungContainer, &format!("uid-one/{SIDECAR}"));
    assert!(clean.is_some(), "its neighbour is well");
}

#[test]
fn its_monitor_is_named_where_it_is_stopped_and_is_no_target() {
    for (state, named) in [('T', true), ('D', true), ('S', false)] {
        let mut node = crio();
        node.tasks.insert(WORK.into(), Reading::Hung { out: Duration::from_secs(9) });
        for id in [WORK, SIDECAR] {
            let pid = if id == WORK { 400 } else { 401 };
            let part = Part::Monitor { id: id.into() };
            node.table().push(ProcessSeen { state, command: "conmon".into(), ..process(pid, part) });
        }
        let findings = node.findings();
        let sighting = only(&findings);
        assert_eq!(sighting.message.contains("process 400 (conmon)"), named, "{}", sighting.message);
        assert!(sighting.evidence.iter().any(|line| line.starts_with("monitor of container aaaa1: process 400")));
        assert_eq!(sighting.target.process, None);
    }
    // A stopped one alone is no sign: nothing waits for it.
    let mut node = crio();
    node.table().push(ProcessSeen { state: 'T', ..process(400, Part::Monitor { id: WORK.into() }) });
    assert!(node.kinds().is_empty());
}

#[test]
fn a_stopped_conmon_whose_container_is_gone_is_left_over_and_no_target() {
    let left = "dddd000000000000000000000000000000000000000000000000000000000000";
    let with = |state, parent| {
        let mut node = crio();
        let part = Part::Monitor { id: left.into() };
        node.table().push(ProcessSeen { state, parent, command: "conmon".into(), ..process(400, part) });
        node
    };
    let findings = with('T', 1).findings();
    let sighting = only(&findings);
    assert_eq!((sighting.kind, sighting.key.as_str()), (FaultType::LeakedShim, left));
    assert!(sighting.message.starts_with("conmon dddd00000000 serves nothing any more"), "{}", sighting.message);
    assert_eq!(sighting.target.process, None);
    for (state, parent) in [('S', 1), ('T', 50)] {
        assert_eq!(with(state, parent).kinds(), [], "{state} {parent}");
    }
    assert!(clean_at(&crio().findings(), FaultType::LeakedShim, left).is_some(), "it has ended");
}

#[test]
fn a_healthy_node_is_clean_and_what_crio_does_not_tell_is_unknown() {
    let findings = crio().findings();
    assert!(findings.sightings.is_empty() && findings.unasked == 0, "{findings:?}");
    let gap = findings.coverage[&FaultType::HungContainer].gap();
    assert!(gap.unwrap().1.contains("from its memory"), "that it answers proves nothing");
    assert!(findings.coverage[&FaultType::LostTask].gap().unwrap().1.contains("CRI-O"));
    assert!(findings.coverage[&FaultType::LeakedShim].gap().is_some());
    // One that is not there any more has just ended.
    let mut node = crio();
    node.tasks.insert(WORK.into(), done(TaskAnswer::NotFound));
    assert!(node.kinds().is_empty());
}

#[test]
fn while_the_lists_do_not_answer_nothing_is_held_against_a_container() {
    let mut node = crio();
    node.tasks.insert(WORK.into(), Reading::Hung { out: Duration::from_secs(90) });
    node.lists = Reading::Hung { out: Duration::from_secs(10) };
    assert!(!node.kinds().contains(&FaultType::HungContainer));
}
