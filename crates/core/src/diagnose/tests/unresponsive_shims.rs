//! Shims for which the runtime may wait at its start.

use super::*;

const KIND: FaultType = FaultType::UnresponsiveShim;

/// A shim is stopped with nothing alive below it, and the runtime's process runs without an answer.
pub(super) fn unresponsive(node: &mut Node) {
    containerd(node).command = "containerd".into();
    let shim = node.shim(SANDBOX);
    (shim.state, shim.role) = ('T', ProcessRole::Shim { id: SANDBOX.into(), living_children: 0 });
    node.runtime = failed("connection refused");
    (node.lists, node.status) = (failed("connection refused"), failed("connection refused"));
    node.tasks.clear();
}

fn containerd(node: &mut Node) -> &mut ProcessSeen {
    node.table().iter_mut().find(|process| process.role == ProcessRole::Runtime).unwrap()
}

fn told(node: &Node) -> Option<Sighting> {
    node.findings().sightings.into_iter().find(|one| one.kind == KIND)
}

#[test]
fn an_unresponsive_shim_beside_a_silent_runtime_is_named_with_its_process() {
    let sighting = told(&Node::with(unresponsive)).unwrap();
    assert_eq!((sighting.key.as_str(), sighting.severity), (SANDBOX, Severity::High));
    assert_eq!(sighting.target.process.as_ref().map(|process| (process.pid, process.role)), Some((100, Role::Shim)));
    assert!(sighting.message.contains("while the runtime runs and does not answer"), "{}", sighting.message);
    let mut silent = Node::with(unresponsive);
    silent.runtime = hung(40);
    // A probe that has begun after it has not been told what the runtime is.
    silent.kind = RuntimeKind::Unknown;
    assert!(told(&silent).is_some());
    // Docker of somebody's own is not what does not answer.
    containerd(&mut silent).command = "dockerd".into();
    assert_eq!(told(&silent), None);
    silent.kind = RuntimeKind::Containerd;
    assert_eq!((told(&silent), clean_at(&silent.findings(), KIND, SANDBOX)), (None, None));
}

#[test]
fn a_shim_with_something_alive_below_it_or_that_runs_is_left_alone() {
    let changes: [fn(&mut ProcessSeen); 4] = [
        |shim| shim.role = ProcessRole::Shim { id: SANDBOX.into(), living_children: 1 },
        |shim| shim.state = 'S',
        |shim| shim.parent = 50,
        |shim| shim.role = ProcessRole::Shim { id: "by-hand".into(), living_children: 0 },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut node = Node::with(unresponsive);
        change(node.shim(SANDBOX));
        assert_eq!(told(&node), None, "change {number}");
    }
}

#[test]
fn while_the_runtime_answers_nothing_waits_for_a_shim() {
    let node = Node { runtime: Node::healthy().runtime, ..Node::with(unresponsive) };
    assert_eq!(told(&node), None);
    assert!(clean_at(&node.findings(), KIND, SANDBOX).is_some());
    // Between two starts of the runtime nothing is known; and what the probe lacks is not the runtime's fault.
    let mut node = Node::with(unresponsive);
    node.table().retain(|process| process.role != ProcessRole::Runtime);
    assert_eq!((told(&node), clean_at(&node.findings(), KIND, SANDBOX)), (None, None));
    let node = Node { runtime: unavailable("not mounted"), ..Node::with(unresponsive) };
    assert_eq!((told(&node), clean_at(&node.findings(), KIND, SANDBOX)), (None, None));
    for kind in [RuntimeKind::Docker, RuntimeKind::CriO, RuntimeKind::Other] {
        let node = Node { kind, ..Node::with(unresponsive) };
        assert_eq!((told(&node), clean_at(&node.findings(), KIND, SANDBOX)), (None, None), "{kind:?}");
    }
}
