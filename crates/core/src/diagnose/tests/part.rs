//! A process table that has no room for all: what is in it counts, what is not in it proves nothing.

use super::*;
use crate::restart_safety::restart_safety;
use crate::tri_state::TriState;

const WHY: &str = "the process table is too long to be read";

fn cut(node: &mut Node) {
    node.process_table().left_out.processes = Some(WHY.to_owned());
}

#[test]
fn what_is_missing_from_a_part_is_not_gone() {
    let (whole, part) = (Node::healthy(), Node::with(cut));
    assert_eq!(part.kinds(), []);
    for kind in [
        FaultType::LeakedShim,
        FaultType::NetworkPluginHung,
        FaultType::RuntimeClientHung,
        FaultType::UninterruptibleProcess,
    ] {
        assert!(clean_at(&whole.findings(), kind, "anything").is_some(), "{kind}");
        let findings = part.findings();
        assert_eq!(clean_at(&findings, kind, "anything"), None, "{kind}");
        assert_eq!(findings.coverage[&kind].gap(), Some((ConditionReason::CheckFailed, WHY)), "{kind}");
    }
    let safe = |node: &Node| restart_safety(&[], 0, &node.findings()).runtime.safe;
    assert_eq!((safe(&whole), safe(&part)), (TriState::True, TriState::Unknown));
}

#[test]
fn what_is_in_a_part_counts() {
    let mut node = Node::with(cut);
    node.table().push(plugin(400, 90, "s1", &["/lock"], false));
    assert_eq!(only(&node.findings()).kind, FaultType::NetworkPluginHung);
}

#[test]
fn a_shim_may_have_children_that_are_missing() {
    let mut leaked = super::leaked_shim::leaked();
    assert_eq!(leaked.kinds(), [FaultType::LeakedShim]);
    cut(&mut leaked);
    assert_eq!(said(&leaked, FaultType::LeakedShim, NEW), Unknown);

    let mut unresponsive = Node::with(super::unresponsive_shims::unresponsive);
    assert!(unresponsive.kinds().contains(&FaultType::UnresponsiveShim));
    cut(&mut unresponsive);
    assert!(!unresponsive.kinds().contains(&FaultType::UnresponsiveShim));
    assert_eq!(clean_at(&unresponsive.findings(), FaultType::UnresponsiveShim, SANDBOX), None);
}

#[test]
fn a_runtime_that_is_not_in_a_part_may_run() {
    let mut node = Node::healthy();
    node.runtime = failed("refused");
    node.table().retain(|process| process.role != ProcessRole::Runtime);
    let known = Known { host_processes: true, ..Known::default() };
    let gone = |node: &Node| diagnose(node, known, &Thresholds::default()).runtime_gone;
    assert!(gone(&node));
    let mut beside = node.clone();
    beside.table().push(ProcessSeen { command: "dockerd".into(), ..process(51, ProcessRole::Runtime) });
    assert!(gone(&beside), "a Docker beside it is not the kubelet's runtime");
    cut(&mut node);
    assert!(!gone(&node));
    let findings = node.findings();
    let told = first_of(&findings, FaultType::RuntimeUnreachable);
    assert!(told.evidence[0].ends_with(WHY), "{:?}", told.evidence);
    // One that answers and is not seen says why nothing is judged by the table.
    let mut answers = Node::healthy();
    answers.table().retain(|process| process.role != ProcessRole::Runtime);
    cut(&mut answers);
    assert_eq!(answers.findings().coverage[&FaultType::RuntimeClientHung].gap().unwrap().1, WHY);
}

#[test]
fn first_processes_of_containers_that_are_left_out_may_be_frozen() {
    let mut node = Node::healthy();
    assert!(clean_at(&node.findings(), FaultType::FrozenCgroup, "anything").is_some());
    node.process_table().left_out.inits = Some("70 processes are not looked at".to_owned());
    let findings = node.findings();
    assert_eq!(clean_at(&findings, FaultType::FrozenCgroup, "anything"), None);
    assert!(clean_at(&findings, FaultType::RuntimeClientHung, "anything").is_some(), "nothing else is in doubt");
}
