//! Containers that neither start nor go, and sandboxes that are only listed.

use super::*;

const KIND: FaultType = FaultType::ContainerStuck;
const OLD: &str = "cccc000000000000000000000000000000000000000000000000000000000000";

fn is(state: ContainerState) -> Node {
    let mut node = Node::healthy();
    node.unfinished(WORK, state, 60);
    node
}

#[test]
fn a_container_that_is_not_started_is_told_while_its_pod_waits_for_it() {
    let mut caught = is(ContainerState::Created);
    caught.list().unfinished.insert(WORK.into(), Duration::from_secs(59));
    assert!(caught.kinds().is_empty());
    assert_eq!(clean_at(&caught.findings(), KIND, WORK), None, "it is not clean either");
    let findings = is(ContainerState::Created).findings();
    let sighting = only(&findings);
    assert_eq!((sighting.kind, sighting.key.as_str()), (KIND, WORK));
    assert_eq!(sighting.message, "container work of default/one stays created and not started");
    // The kubelet has made another one since: this one is its last dead instance, or goes with the next round.
    let mut node = is(ContainerState::Created);
    node.list().containers.push(ContainerSeen { attempt: 1, ..container(OLD, SANDBOX, "work") });
    node.tasks.insert(OLD.into(), done(TaskAnswer::Answered));
    assert!(!node.kinds().contains(&KIND));
    assert!(clean_at(&node.findings(), KIND, WORK).is_some(), "a fault that stood before is over");
    // Docker lists one whose start has failed as created. Another one runs, whichever was made first.
    let mut node = is(ContainerState::Created);
    node.list().containers.push(container(OLD, SANDBOX, "work"));
    node.tasks.insert(OLD.into(), done(TaskAnswer::Answered));
    assert!(!node.kinds().contains(&KIND));
    assert!(clean_at(&node.findings(), KIND, WORK).is_some());
    // Its pod is on its way out.
    let mut node = is(ContainerState::Created);
    node.list().sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = false);
    assert!(!node.kinds().contains(&KIND));
    assert!(clean_at(&node.findings(), KIND, WORK).is_some());
    // It is nobody's of the kubelet.
    let mut node = is(ContainerState::Created);
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
    for answer in [done(TaskAnswer::DaemonAnswered), Reading::Hung { out: Duration::from_secs(90) }] {
        assert!(node(Some(answer)).kinds().contains(&KIND));
    }
}

#[test]
fn a_state_that_the_runtime_does_not_know_is_told_whichever_attempt_it_is() {
    let mut node = is(ContainerState::Unknown);
    node.list().containers.push(ContainerSeen { attempt: 1, ..container(OLD, SANDBOX, "work") });
    node.tasks.insert(OLD.into(), done(TaskAnswer::Answered));
    let findings = node.findings();
    let told: Vec<_> = findings.sightings.iter().filter(|one| one.kind == KIND).collect();
    assert_eq!((told.len(), told[0].key.as_str()), (1, WORK));
    assert!(told[0].message.ends_with("stays in a state that the runtime does not know"), "{}", told[0].message);
}

fn ghost(said: &[Option<bool>]) -> Node {
    let mut node = super::docker::healthy();
    node.list().sandboxes.push(SandboxSeen { ready: false, ..sandbox(OLD, "gone") });
    node.list().sandboxes_again.push(OLD.into());
    node.list().asked_sandboxes.extend(said.iter().map(|said| (OLD.to_owned(), *said)));
    node
}

#[test]
fn a_sandbox_is_a_ghost_only_by_the_runtimes_own_word() {
    let kind = FaultType::GhostSandbox;
    let findings = ghost(&[Some(false)]).findings();
    assert_eq!((only(&findings).kind, only(&findings).key.as_str()), (kind, OLD));
    assert!(only(&findings).message.contains("of default/gone is listed"), "{}", only(&findings).message);
    assert!(ghost(&[Some(true)]).kinds().is_empty());
    assert!(clean_at(&ghost(&[Some(true)]).findings(), kind, OLD).is_some());
    for silence in [&[][..], &[None]] {
        assert!(ghost(silence).kinds().is_empty());
        assert_eq!(clean_at(&ghost(silence).findings(), kind, OLD), None, "not asked this time, or no answer");
    }
    // One that is ready is the kubelet's to check; and other runtimes list what they have.
    let mut ready = ghost(&[Some(false)]);
    ready.list().sandboxes.last_mut().unwrap().ready = true;
    assert!(!ready.kinds().contains(&kind));
    let mut other = ghost(&[Some(false)]);
    other.kind = RuntimeKind::Containerd;
    assert!(!other.kinds().contains(&kind));
}
