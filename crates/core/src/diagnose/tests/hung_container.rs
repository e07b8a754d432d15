//! A container behind a shim that does not answer.

use super::*;

fn stopped() -> Node {
    Node::with(|node| node.freeze(SANDBOX))
}

/// The task did not answer, so many seconds ago.
fn silent(seconds: u64) -> Reading<TaskAnswer> {
    Reading::Done { value: TaskAnswer::NoAnswer, age: Duration::from_secs(seconds), took: Duration::ZERO }
}

#[test]
fn one_shim_is_one_fault_that_names_pod_containers_process_state_and_wchan() {
    let findings = stopped().findings();
    let sighting = only(&findings);
    assert_eq!((sighting.kind, sighting.certain), (FaultType::HungContainer, true));
    assert_eq!(sighting.key, format!("uid-one/{SANDBOX}"));
    for part in ["work, sidecar", "default/one", "process 100", "state T", "do_signal_stop"] {
        assert!(sighting.message.contains(part), "{part}: {}", sighting.message);
    }
    let process = sighting.target.process.as_ref().unwrap();
    assert_eq!((process.role, process.pid, process.start_ticks), (Role::Shim, 100, 10_000));
    assert_eq!(clean_at(&findings, FaultType::HungContainer, &format!("uid-other/{OTHER}")), Some(1000));
}

/// Before containerd 2.3 a shim answers nobody while `runc create` runs: the client is to blame if it hangs, and the shim never is.
#[test]
fn a_shim_that_waits_for_a_client_is_not_proven_to_hang() {
    for (parent, verb, state, certain) in [
        (100, "create", 'S', false),
        (100, "update", 'S', false),
        (100, "checkpoint", 'S', false),
        (100, "exec", 'S', true),
        (1, "create", 'S', true),
        (100, "create", 'T', true),
    ] {
        let mut node = Node::healthy();
        work(&mut node, silent(1));
        node.shim(SANDBOX).state = state;
        node.runtime_client(verb, 5);
        node.table().last_mut().unwrap().parent = parent;
        let findings = node.findings();
        let sighting = only(&findings);
        assert_eq!((sighting.kind, sighting.certain), (FaultType::HungContainer, certain), "{parent} {verb} {state}");
        let waits = format!("the shim waits for `{verb}`: process 300");
        assert_eq!(sighting.message.contains(&waits), !certain, "{}", sighting.message);
    }
}

#[test]
fn a_stopped_shim_not_asked_yet_is_a_first_sign_and_is_asked_at_once() {
    let mut node = stopped();
    for id in [WORK, SIDECAR] {
        let answered_before =
            Reading::Done { value: TaskAnswer::Answered, age: Duration::from_mins(1), took: Duration::ZERO };
        node.tasks.insert(id.into(), answered_before);
    }
    let findings = node.findings();
    assert!(!only(&findings).certain);
    assert_eq!(findings.ask, [WORK, SIDECAR]);
}

#[test]
fn an_answer_after_the_stop_was_seen_outweighs_it() {
    let mut node = Node::healthy();
    node.shim(SANDBOX).state = 'T';
    aged(&mut node.processes, Duration::from_secs(5));
    assert!(node.kinds().is_empty());
}

#[test]
fn a_call_that_is_out_is_checked_by_the_process_table() {
    let mut node = Node::healthy();
    work(&mut node, hung(90));
    aged(&mut node.processes, Duration::from_secs(7));
    assert_eq!(only(&node.findings()).checked, Duration::from_secs(993));
}

#[test]
fn silence_of_a_shim_that_runs_is_as_old_as_the_silence() {
    let mut node = Node::healthy();
    work(&mut node, silent(50));
    let findings = node.findings();
    assert_eq!(only(&findings).checked, Duration::from_secs(950));
    assert!(findings.ask.contains(&WORK.to_owned()), "a resumed shim is asked again at once");
}

#[test]
fn created_exited_and_vanished_containers_are_not_hung() {
    for state in [ContainerState::Created, ContainerState::Exited] {
        let mut node = stopped();
        node.shim(SANDBOX).state = 'S';
        node.list().containers.iter_mut().for_each(|container| container.state = state);
        assert!(!node.kinds().contains(&FaultType::HungContainer), "{state:?}");
    }
    let mut node = stopped();
    node.list().sandboxes.retain(|sandbox| sandbox.id != SANDBOX);
    node.list().containers.retain(|container| container.sandbox_id != SANDBOX);
    let findings = node.findings();
    assert!(!node.kinds().contains(&FaultType::HungContainer));
    assert_eq!(clean_at(&findings, FaultType::HungContainer, &format!("uid-one/{SANDBOX}")), Some(1000));
}

#[test]
fn a_failed_question_is_no_verdict() {
    let node = Node::with(|node| work(node, failed("unimplemented")));
    assert_eq!(said(&node, FaultType::HungContainer, &format!("uid-one/{SANDBOX}")), Unknown);
}

#[test]
fn without_lists_nothing_is_said_of_containers() {
    let node = Node { lists: failed("message larger than max"), ..stopped() };
    assert!(node.findings().sightings.is_empty());
    for kind in [FaultType::HungContainer, FaultType::OrphanContainer, FaultType::LeakedShim] {
        assert_eq!(said(&node, kind, "any"), Unknown, "{kind}");
    }
}

#[test]
fn without_processes_the_fault_is_named_but_nothing_can_be_touched() {
    let node = Node { processes: unavailable("no host pid"), ..stopped() };
    assert_eq!(only(&node.findings()).target.process, None);
}

#[test]
fn on_docker_the_shim_serves_the_container() {
    let mut node = Node::healthy();
    node.shim(SANDBOX).role = ProcessRole::Shim { id: WORK.into(), living_children: 1 };
    work(&mut node, done(TaskAnswer::NoAnswer));
    assert_eq!(only(&node.findings()).target.process.as_ref().map(|process| process.pid), Some(100));
}
