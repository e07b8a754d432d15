//! A shim that nothing needs any more.

use super::*;

fn leaked() -> Node {
    let mut node = Node::healthy();
    node.table().push(ProcessSeen { state: 'T', ..process(900, Part::Shim { id: "cccc".into(), living_children: 0 }) });
    node
}

#[test]
fn a_childless_shim_in_no_list_or_on_a_dead_sandbox_is_leaked() {
    let mut node = leaked();
    assert_eq!(only(&node.findings()).target.process.as_ref().map(|process| process.pid), Some(900));
    node.list().sandboxes.push(SandboxSeen { ready: false, ..sandbox("cccc", "one") });
    let findings = node.findings();
    assert_eq!((only(&findings).key.as_str(), only(&findings).kind), ("cccc", FaultType::LeakedShim));
}

#[test]
fn whatever_may_be_alive_protects_its_shim() {
    let mut cases: Vec<(&str, Node)> = Vec::new();
    let mut node = leaked();
    node.list().sandboxes.push(sandbox("cccc", "one"));
    cases.push(("ready sandbox", node));
    for state in [ContainerState::Running, ContainerState::Created, ContainerState::Unknown] {
        let mut node = leaked();
        node.list().sandboxes_again.push("cccc".into());
        node.list().containers.push(ContainerSeen { state, pod: None, ..container("c1", "cccc", "work") });
        cases.push(("container", node));
    }
    let mut node = leaked();
    node.list().sandboxes_again.push("cccc".into());
    cases.push(("just made", node));
    let mut node = leaked();
    node.table().iter_mut().for_each(|p| p.parent = 50);
    cases.push(("its parent lives", node));
    let mut node = leaked();
    node.shim("cccc").part = Part::Shim { id: "cccc".into(), living_children: 1 };
    cases.push(("a child lives", node));
    let mut node = leaked();
    node.lists = Look::Hung { out: Duration::from_secs(5) };
    cases.push(("no list", node));
    for (name, node) in cases {
        assert!(!node.kinds().contains(&FaultType::LeakedShim), "{name}");
    }
}

#[test]
fn a_shim_that_is_no_process_any_more_is_clean_by_the_process_table_alone() {
    let mut node = Node::healthy();
    if let Look::Done { age, .. } = &mut node.lists {
        *age = Duration::from_secs(25);
    }
    assert_eq!(clean_at(&node.findings(), FaultType::LeakedShim, "cccc"), Some(1000));
    assert_eq!(clean_at(&node.findings(), FaultType::LeakedShim, SANDBOX), Some(975));
}
