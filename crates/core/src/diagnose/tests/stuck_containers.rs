//! Containers that neither start nor go, and sandboxes that are only listed.

use super::*;

const KIND: FaultType = FaultType::ContainerStuck;

fn unfinished(state: ContainerState) -> Node {
    Node::with(|node| node.unfinished(WORK, state, 60))
}

#[test]
fn a_container_that_is_not_started_is_told_while_its_pod_waits_for_it() {
    type Case = (&'static str, fn(&mut Node));
    let mut caught = unfinished(ContainerState::Created);
    caught.list().unfinished.insert(WORK.into(), Duration::from_secs(59));
    assert_eq!(said(&caught, KIND, WORK), Unknown, "it is not clean either");
    let findings = unfinished(ContainerState::Created).findings();
    let sighting = only_of(&findings, KIND, WORK);
    assert_eq!(sighting.message, "container work of default/one stays created and not started");
    // One that stood before is over with each of these.
    let cases: [Case; 3] = [
        ("the kubelet has made another one since: this one goes with the next round", |node| {
            node.list().containers.push(ContainerSeen { attempt: 1, ..container(NEW, SANDBOX, "work") });
            node.tasks.insert(NEW.into(), done(TaskAnswer::Answered));
        }),
        ("another one runs, whichever was made first: Docker lists a failed start as created", |node| {
            node.list().containers.push(container(NEW, SANDBOX, "work"));
            node.tasks.insert(NEW.into(), done(TaskAnswer::Answered));
        }),
        ("its pod is on its way out", |node| node.list().sandboxes.iter_mut().for_each(|one| one.ready = false)),
    ];
    for (name, change) in cases {
        let mut node = unfinished(ContainerState::Created);
        change(&mut node);
        assert_eq!(said(&node, KIND, WORK), Clean, "{name}");
    }
    // It is nobody's of the kubelet.
    let mut node = unfinished(ContainerState::Created);
    node.list().containers.iter_mut().for_each(|container| container.pod = None);
    assert!(!node.kinds().contains(&KIND));
}

/// The kubelet makes no other one where the pod says `restartPolicy: Never`.
#[test]
fn dockers_own_word_tells_a_start_that_has_failed_from_one_that_is_awaited() {
    let node = |answer: Option<Reading<TaskAnswer>>| {
        let mut node = super::docker::healthy();
        node.unfinished(WORK, ContainerState::Created, 60);
        node.tasks.extend(answer.map(|answer| (WORK.to_owned(), answer)));
        node
    };
    let unasked = node(None).findings();
    assert!(!unasked.sightings.iter().any(|one| one.kind == KIND));
    assert_eq!((clean_at(&unasked, KIND, WORK), unasked.ask.as_slice()), (None, &[WORK.to_owned()][..]));
    let failed = node(Some(done(TaskAnswer::Ended))).findings();
    assert!(!failed.sightings.iter().any(|one| one.kind == KIND));
    assert!(clean_at(&failed, KIND, WORK).is_some());
    for answer in [done(TaskAnswer::DaemonAnswered), hung(90)] {
        assert!(node(Some(answer)).kinds().contains(&KIND));
    }
}

#[test]
fn a_state_that_the_runtime_does_not_know_is_told_whichever_attempt_it_is() {
    let mut node = unfinished(ContainerState::Unknown);
    node.list().containers.push(ContainerSeen { attempt: 1, ..container(NEW, SANDBOX, "work") });
    node.tasks.insert(NEW.into(), done(TaskAnswer::Answered));
    let findings = node.findings();
    let told: Vec<_> = findings.sightings.iter().filter(|one| one.kind == KIND).collect();
    assert_eq!((told.len(), told[0].key.as_str()), (1, WORK));
    assert!(told[0].message.ends_with("stays in a state that the runtime does not know"), "{}", told[0].message);
}

pub(super) fn ghost(said: &[Option<bool>]) -> Node {
    let mut node = super::docker::healthy();
    node.list().sandboxes.push(SandboxSeen { ready: false, ..sandbox(NEW, "gone") });
    node.list().sandboxes_again.push(NEW.into());
    node.list().asked_sandboxes.extend(said.iter().map(|said| (NEW.to_owned(), *said)));
    node
}

#[test]
fn a_sandbox_is_a_ghost_only_by_the_runtimes_own_word() {
    let kind = FaultType::GhostSandbox;
    let findings = ghost(&[Some(false)]).findings();
    only_of(&findings, kind, NEW);
    assert!(only(&findings).message.contains("of default/gone is listed"), "{}", only(&findings).message);
    assert_eq!(said(&ghost(&[Some(true)]), kind, NEW), Clean);
    for silence in [&[][..], &[None]] {
        assert_eq!(said(&ghost(silence), kind, NEW), Unknown, "not asked this time, or no answer");
    }
    // One that is ready is the kubelet's to check; and other runtimes list what they have.
    let mut ready = ghost(&[Some(false)]);
    ready.list().sandboxes.last_mut().unwrap().ready = true;
    assert!(!ready.kinds().contains(&kind));
    let other = Node { kind: RuntimeKind::Containerd, ..ghost(&[Some(false)]) };
    assert!(!other.kinds().contains(&kind));
}
