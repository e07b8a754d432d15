//! `runc create` and its kin that do not come to an end.

use super::*;

const KIND: FaultType = FaultType::RuntimeClientHung;

/// A client below the shim of the first sandbox.
fn client(verb: &str, age: u64, id: &str) -> ProcessSeen {
    let role = ProcessRole::RuntimeClient { verb: verb.into(), container_id: Some(id.into()) };
    ProcessSeen { age: Duration::from_secs(age), parent: 100, command: "runc".into(), ..process(300, role) }
}

fn with(client: ProcessSeen) -> Node {
    Node::with(|node| node.table().push(client))
}

#[test]
fn an_old_create_is_told_with_its_container_its_pod_and_its_process() {
    assert!(with(client("create", 299, WORK)).kinds().is_empty());
    let findings = with(client("create", 300, WORK)).findings();
    let sighting = only_of(&findings, KIND, "uid-one");
    begins(&sighting.message, "`create` of container work of default/one has been at work for more than 300 s");
    let target = &sighting.target;
    assert_eq!(target.process.as_ref().map(|p| (p.pid, p.role)), Some((300, Role::RuntimeClient)));
    assert_eq!((target.container_id.as_deref(), target.sandbox_id.as_deref()), (Some(WORK), Some(SANDBOX)));
    assert_eq!(clean_at(&findings, KIND, "uid-one"), None);
    assert!(clean_at(&findings, KIND, "uid-other").is_some());
}

#[test]
fn a_create_without_progress_is_told_long_before_it_is_old_and_one_that_works_is_not() {
    let client = |still| ProcessSeen { still: Some(Duration::from_secs(still)), ..client("create", 45, WORK) };
    assert_eq!(with(client(29)).kinds(), []);
    // Nor is its pod clean: a probe that has just started has watched it for no time.
    assert_eq!(clean_at(&with(client(0)).findings(), KIND, "uid-one"), None);
    let findings = with(client(30)).findings();
    let sighting = only_of(&findings, KIND, "uid-one");
    assert!(sighting.message.contains("has made no progress for 30 s: "), "{}", sighting.message);
    assert!(sighting.evidence.iter().any(|line| line.contains("has used a processor for 30 s")), "{sighting:?}");
}

#[test]
fn a_sandbox_that_is_in_no_list_yet_goes_by_its_id_and_is_the_same_when_it_is() {
    let mut making = with(client("create", 400, NEW));
    making.table().push(process(310, ProcessRole::Shim { id: NEW.into(), living_children: 1 }));
    making.table().iter_mut().find(|process| process.pid == 300).unwrap().parent = 310;
    only_of(&making.findings(), KIND, NEW);
    // Its pod becomes known: the fault goes by that, and what was known by the id is not clean meanwhile.
    making.list().sandboxes.push(sandbox(NEW, "born"));
    let findings = making.findings();
    assert_eq!(only(&findings).key, "uid-born");
    assert_eq!(clean_at(&findings, KIND, NEW), None);
}

#[test]
fn what_may_take_long_and_what_is_not_the_kubelets_is_nothing() {
    for verb in ["exec", "run", "events", "init", "pause", "resume", "update"] {
        assert!(with(client(verb, 4000, WORK)).kinds().is_empty(), "{verb}");
    }
    // podman, or Docker beside containerd: no shim of ours above it, and its container is in no list.
    let others = with(ProcessSeen { parent: 1, ..client("create", 4000, NEW) });
    assert_eq!(said(&others, KIND, NEW), Clean);
    // With Docker the shims are anybody's.
    let mut docker = super::docker::healthy();
    docker.table().push(process(310, ProcessRole::Shim { id: NEW.into(), living_children: 1 }));
    docker.table().push(ProcessSeen { parent: 310, ..client("create", 4000, NEW) });
    assert!(docker.kinds().is_empty());
    docker.list().containers.push(ContainerSeen { state: ContainerState::Created, ..container(NEW, SANDBOX, "new") });
    assert!(docker.kinds().contains(&KIND));
    // What stands by the name of a pod is not clean while nobody tells pods.
    let mut listless = with(client("create", 4000, WORK));
    listless.lists = hung(120);
    assert_eq!(clean_at(&listless.findings(), KIND, "uid-one"), None);
    // Nobody lists anything: whose it is cannot be told.
    let mut dark = with(ProcessSeen { parent: 1, ..client("create", 4000, NEW) });
    dark.lists = Reading::Never;
    assert_eq!(said(&dark, KIND, NEW), Unknown);
}

#[test]
fn of_one_pod_the_oldest_is_told() {
    let mut node = with(client("delete", 400, SIDECAR));
    node.table().push(ProcessSeen { pid: 299, start_ticks: 5, ..client("kill", 900, WORK) });
    let findings = node.findings();
    assert_eq!(only(&findings).target.process.as_ref().map(|process| process.pid), Some(299));
    assert_eq!(clean_at(&findings, KIND, SIDECAR), None, "that one has not ended either");
}

/// A script around the OCI runtime waits for it, and so may another script around that.
#[test]
fn what_a_wrapper_has_called_is_told_and_not_the_wrapper() {
    let mut node = with(ProcessSeen { command: "wrapper".into(), ..client("create", 402, NEW) });
    let told = |node: &Node| only(&node.findings()).target.process.as_ref().map(|process| process.pid);
    assert_eq!(told(&node), Some(300), "it has called nothing");
    for (pid, parent, age) in [(301, 300, 401), (302, 301, 400)] {
        node.table().push(ProcessSeen { pid, parent, start_ticks: 1, ..client("create", age, NEW) });
        assert_eq!(told(&node), Some(pid));
        // What is below the shim of ours is ours, in no list yet.
        assert_eq!(only(&node.findings()).target.sandbox_id.as_deref(), Some(SANDBOX));
    }
    // Young as it is, it is what the wrapper waits for.
    node.table().iter_mut().find(|process| process.pid == 302).unwrap().age = Duration::from_secs(3);
    assert_eq!(node.kinds(), []);
    assert_eq!(clean_at(&node.findings(), KIND, NEW), None);
    // A client of another container below it is no reason.
    node.table().iter_mut().find(|process| process.pid == 302).unwrap().role =
        ProcessRole::RuntimeClient { verb: "kill".into(), container_id: Some(WORK.into()) };
    assert_eq!(told(&node), Some(301));
}

#[test]
fn one_that_waits_for_a_frozen_container_is_not_to_be_touched() {
    // With Docker and CRI-O what is frozen goes by the id of the container.
    for serves in [SANDBOX, WORK] {
        let mut node = with(client("create", 400, WORK));
        node.host().frozen = Ok(vec![frozen_init(800, Duration::from_secs(400), serves, "g")]);
        let findings = node.findings();
        let told = first_of(&findings, KIND);
        assert!(told.message.contains("control group is frozen"), "{serves}: {}", told.message);
        assert_eq!(told.target.process, None, "{serves}");
    }
}

#[test]
fn one_that_may_wait_for_a_frozen_container_is_not_proven_to_hang() {
    let mut unreadable = with(client("create", 400, WORK));
    unreadable.host().frozen = Err("permission denied".into());
    let mut never = with(client("create", 400, WORK));
    never.host = Reading::Never;
    let mut stale = with(client("create", 400, WORK));
    aged(&mut stale.host, STALE + Duration::from_secs(1));
    for node in [unreadable, never, stale] {
        assert_eq!(said(&node, KIND, "uid-one"), Unknown);
    }
}

#[test]
fn one_that_cannot_be_proven_is_neither_there_nor_absent() {
    let node = Node::with(|node| node.unproven("runc", PossibleRole::RuntimeClient));
    assert_eq!(clean_at(&node.findings(), KIND, "uid-one"), None);
}
