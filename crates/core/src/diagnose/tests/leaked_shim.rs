//! A shim that nothing needs any more.

use super::*;

pub(super) fn leaked() -> Node {
    let shim = process(900, ProcessRole::Shim { id: NEW.into(), living_children: 0 });
    Node::with(|node| node.table().push(ProcessSeen { state: 'T', ..shim }))
}

#[test]
fn a_childless_shim_in_no_list_or_on_a_dead_sandbox_is_leaked() {
    let mut node = leaked();
    assert_eq!(only(&node.findings()).target.process.as_ref().map(|process| process.pid), Some(900));
    node.list().sandboxes.push(SandboxSeen { ready: false, ..sandbox(NEW, "one") });
    let findings = node.findings();
    assert_eq!((only(&findings).key.as_str(), only(&findings).kind), (NEW, FaultType::LeakedShim));
}

#[test]
fn whatever_may_be_alive_protects_its_shim() {
    type Case = (&'static str, fn(&mut Node));
    let cases: [Case; 5] = [
        ("ready sandbox", |node| node.list().sandboxes.push(sandbox(NEW, "one"))),
        ("just made", |node| node.list().sandboxes_again.push(NEW.into())),
        ("its parent lives", |node| node.table().iter_mut().for_each(|process| process.parent = 50)),
        ("a child lives", |node| node.shim(NEW).role = ProcessRole::Shim { id: NEW.into(), living_children: 1 }),
        ("no list", |node| node.lists = hung(5)),
    ];
    for (name, change) in cases {
        let mut node = leaked();
        change(&mut node);
        assert!(!node.kinds().contains(&FaultType::LeakedShim), "{name}");
    }
    for state in [ContainerState::Running, ContainerState::Created, ContainerState::Unknown] {
        let mut node = leaked();
        node.list().sandboxes_again.push(NEW.into());
        node.list().containers.push(ContainerSeen { state, pod: None, ..container("c1", NEW, "work") });
        assert!(!node.kinds().contains(&FaultType::LeakedShim), "{state:?}");
    }
}

#[test]
fn a_shim_that_is_no_process_any_more_is_clean_by_the_process_table_alone() {
    let findings = Node::with(|node| aged(&mut node.lists, Duration::from_secs(25))).findings();
    assert_eq!(clean_at(&findings, FaultType::LeakedShim, NEW), Some(1000));
    assert_eq!(clean_at(&findings, FaultType::LeakedShim, SANDBOX), Some(975));
}

/// A leaked shim that is not stopped: six minutes old, and containerd says this of its task.
fn running(answer: Option<Reading<TaskAnswer>>) -> Node {
    let mut node = leaked();
    let shim = node.shim(NEW);
    (shim.state, shim.age) = ('S', Duration::from_mins(6));
    node.tasks.extend(answer.map(|answer| (NEW.to_owned(), answer)));
    node
}

#[test]
fn a_shim_that_runs_is_leaked_only_when_containerd_does_not_know_its_task() {
    let findings = running(Some(done(TaskAnswer::NotFound))).findings();
    assert_eq!((only(&findings).key.as_str(), findings.ask.as_slice()), (NEW, &[NEW.to_owned()][..]));
    // What `ctr run` leaves when its task has ended, and a VM that takes long to start.
    for answer in [Some(done(TaskAnswer::Answered)), Some(done(TaskAnswer::NoAnswer)), None] {
        let node = running(answer.clone());
        assert!(node.kinds().is_empty(), "{answer:?}");
        assert_eq!(node.findings().ask, [NEW], "{answer:?}");
    }
    assert_eq!(said(&running(Some(failed("broken"))), FaultType::LeakedShim, NEW), Unknown);
}

#[test]
fn a_young_shim_that_runs_may_be_starting_and_a_short_id_is_not_the_kubelets() {
    let mut node = running(Some(done(TaskAnswer::NotFound)));
    node.shim(NEW).age = Duration::from_secs(299);
    assert_eq!(said(&node, FaultType::LeakedShim, NEW), Unknown);
    let mut node = leaked();
    node.shim(NEW).role = ProcessRole::Shim { id: "redis".into(), living_children: 0 };
    assert_eq!(said(&node, FaultType::LeakedShim, "redis"), Clean);
    assert_eq!(clean_at(&node.findings(), FaultType::LeakedShim, "redis"), Some(1000));
}

#[test]
fn a_shim_that_could_not_be_proven_may_be_the_one_that_is_missing() {
    let findings = Node::with(|node| node.unproven("containerd-shim", PossibleRole::Shim)).findings();
    assert!(findings.sightings.is_empty());
    assert_eq!(clean_at(&findings, FaultType::LeakedShim, NEW), None);
    assert_eq!(clean_at(&findings, FaultType::LeakedShim, SANDBOX), Some(1000), "this one was proven");
    assert!(clean_at(&findings, FaultType::NetworkPluginHung, "x").is_some());
}
