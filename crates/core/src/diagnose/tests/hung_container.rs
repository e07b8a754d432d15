//! A container behind a shim that does not answer.

use super::*;

#[test]
fn one_shim_is_one_fault_that_names_pod_containers_process_state_and_wchan() {
    let mut node = Node::healthy();
    node.freeze(SANDBOX);
    let findings = node.findings();
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
    let silent = || Reading::Done { value: TaskAnswer::NoAnswer, age: Duration::from_secs(1), took: Duration::ZERO };
    for (parent, verb, state, certain) in
        [(100, "create", 'S', false), (100, "exec", 'S', true), (1, "create", 'S', true), (100, "create", 'T', true)]
    {
        let mut node = Node::healthy();
        node.tasks.insert(WORK.into(), silent());
        node.shim(SANDBOX).state = state;
        node.runtime_client(verb, 5);
        node.table().last_mut().unwrap().parent = parent;
        let findings = node.findings();
        let sighting = only(&findings);
        assert_eq!((sighting.kind, sighting.certain), (FaultType::HungContainer, certain), "{parent} {verb} {state}");
        assert_eq!(sighting.message.contains("it waits for process 300"), !certain, "{}", sighting.message);
    }
}

#[test]
fn a_stopped_shim_not_asked_yet_is_a_first_sign_and_is_asked_at_once() {
    let mut node = Node::healthy();
    node.freeze(SANDBOX);
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
    if let Reading::Done { age, .. } = &mut node.processes {
        *age = Duration::from_secs(5);
    }
    assert!(node.kinds().is_empty());
}

#[test]
fn a_call_that_is_out_is_checked_by_the_process_table() {
    let mut node = Node::healthy();
    node.tasks.insert(WORK.into(), Reading::Hung { out: Duration::from_secs(90) });
    if let Reading::Done { age, .. } = &mut node.processes {
        *age = Duration::from_secs(7);
    }
    assert_eq!(only(&node.findings()).checked, Duration::from_secs(993));
}

#[test]
fn silence_of_a_shim_that_runs_is_as_old_as_the_silence() {
    let mut node = Node::healthy();
    let silent = Reading::Done { value: TaskAnswer::NoAnswer, age: Duration::from_secs(50), took: Duration::ZERO };
    node.tasks.insert(WORK.into(), silent);
    let findings = node.findings();
    assert_eq!(only(&findings).checked, Duration::from_secs(950));
    assert!(findings.ask.contains(&WORK.to_owned()), "a resumed shim is asked again at once");
}

#[test]
fn created_exited_and_vanished_containers_are_not_hung() {
    for state in [ContainerState::Created, ContainerState::Exited] {
        let mut node = Node::healthy();
        node.freeze(SANDBOX);
        node.shim(SANDBOX).state = 'S';
        node.list().containers.iter_mut().for_each(|container| container.state = state);
        assert!(!node.kinds().contains(&FaultType::HungContainer), "{state:?}");
    }
    let mut node = Node::healthy();
    node.freeze(SANDBOX);
    node.list().sandboxes.retain(|sandbox| sandbox.id != SANDBOX);
    node.list().containers.retain(|container| container.sandbox_id != SANDBOX);
    let findings = node.findings();
    assert!(!node.kinds().contains(&FaultType::HungContainer));
    assert_eq!(clean_at(&findings, FaultType::HungContainer, &format!("uid-one/{SANDBOX}")), Some(1000));
}

#[test]
fn a_failed_question_is_no_verdict() {
    let mut node = Node::healthy();
    node.tasks.insert(WORK.into(), Reading::Failed { error: "unimplemented".into(), age: Duration::ZERO });
    let findings = node.findings();
    assert!(findings.sightings.is_empty());
    assert_eq!(clean_at(&findings, FaultType::HungContainer, &format!("uid-one/{SANDBOX}")), None);
}

#[test]
fn without_lists_nothing_is_said_of_containers() {
    let mut node = Node::healthy();
    node.freeze(SANDBOX);
    node.lists = Reading::Failed { error: "message larger than max".into(), age: Duration::ZERO };
    let findings = node.findings();
    assert!(findings.sightings.is_empty());
    assert_eq!(clean_at(&findings, FaultType::HungContainer, "any"), None);
    assert_eq!(clean_at(&findings, FaultType::OrphanContainer, "any"), None);
    assert_eq!(clean_at(&findings, FaultType::LeakedShim, "any"), None);
}

#[test]
fn without_processes_the_fault_is_named_but_nothing_can_be_touched() {
    let mut node = Node::healthy();
    node.freeze(SANDBOX);
    node.processes = Reading::Unavailable { reason: "no host pid".into() };
    assert_eq!(only(&node.findings()).target.process, None);
}

#[test]
fn on_docker_the_shim_serves_the_container() {
    let mut node = Node::healthy();
    node.shim(SANDBOX).role = ProcessRole::Shim { id: WORK.into(), living_children: 1 };
    node.tasks.insert(WORK.into(), done(TaskAnswer::NoAnswer));
    assert_eq!(only(&node.findings()).target.process.as_ref().map(|process| process.pid), Some(100));
}
