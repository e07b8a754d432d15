//! Processes that wait in the kernel, and containers that are frozen while they are made.

use super::*;
use crate::observation::ThreadWaiting;

const KIND: FaultType = FaultType::UninterruptibleProcess;

fn waits(process: &mut ProcessSeen, seconds: u64) {
    process.state = 'D';
    process.wchan = Some("io_schedule".into());
    process.waited = Some(Duration::from_secs(seconds));
}

#[test]
fn a_shim_that_has_not_run_for_long_is_sick_and_one_that_waits_for_a_disk_is_nothing() {
    let key = "100.10000";
    let findings = |seconds| Node::with(|node| waits(node.shim(SANDBOX), seconds)).findings();
    for (seconds, sick) in [(0, false), (59, false), (60, true)] {
        let findings = findings(seconds);
        assert_eq!(findings.sightings.iter().any(|one| one.kind == KIND), sick, "{seconds} s");
        // Neither sick nor clean: a probe that has just begun does not clear what the one before has confirmed.
        assert_eq!(clean_at(&findings, KIND, key), None, "{seconds} s");
        assert!(clean_at(&findings, KIND, "200.20000").is_some());
    }
    let findings = findings(60);
    let sighting = first_of(&findings, KIND);
    assert_eq!(sighting.key, key);
    assert_eq!(sighting.subject.to_string(), "process 100 (containerd-shim, shim) of default/one");
    assert!(sighting.message.contains("has not run for more than 60 s"), "{}", sighting.message);
    assert!(sighting.evidence[0].contains("io_schedule"), "{:?}", sighting.evidence);
    assert_eq!(sighting.target, Target::default(), "no signal is of use");
}

#[test]
fn a_wait_of_a_moment_is_no_gap_of_the_condition() {
    use crate::condition::{ConditionType, of_probe};
    let findings = Node::with(|node| waits(node.shim(SANDBOX), 3)).findings();
    let safety = crate::restart_safety::restart_safety(&[], 0, &findings);
    let host = of_probe(&Tracked::default(), &findings, &safety)
        .into_iter()
        .find(|one| one.kind == ConditionType::HostHealthy);
    assert_eq!(host.unwrap().status, crate::snapshot::TriState::True);
}

#[test]
fn daemons_are_checked_thread_by_thread() {
    let thread =
        ThreadWaiting { thread: 57, waited: Duration::from_mins(2), wchan: Some("rpc_wait_bit_killable".into()) };
    let findings = Node::with(|node| node.host().daemons[1].waiting = Ok(Some(thread))).findings();
    let sighting = only_of(&findings, KIND, "50.5000");
    begins(&sighting.message, "a thread of process 50 (containerd");
    assert!(clean_at(&findings, KIND, "60.6000").is_some());
    // The process table shows its first thread only, and of the whole daemon says nothing.
    let mut node = Node::healthy();
    waits(node.table().iter_mut().find(|process| process.role == ProcessRole::Runtime).unwrap(), 600);
    assert!(node.kinds().is_empty());
    node.host = Reading::Never;
    assert_eq!(clean_at(&node.findings(), KIND, "50.5000"), None);
    let node = Node::with(|node| node.host().daemons[1].waiting = Err("more than 512 threads".into()));
    assert_eq!(clean_at(&node.findings(), KIND, "50.5000"), None);
}

#[test]
fn what_cannot_be_proven_counts_by_what_it_may_be() {
    let mut node = Node::healthy();
    node.unproven("runc", PossibleRole::Other);
    node.process_table().unproven[0].waited = Some(Duration::from_mins(5));
    let findings = node.findings();
    let sighting = first_of(&findings, KIND);
    assert_eq!(
        (sighting.key.as_str(), sighting.subject.name.as_deref()),
        ("700.7", Some("700 (runc, part of the runtime by its name)"))
    );
}

#[test]
fn behind_one_dead_disk_not_everything_is_told() {
    let mut node = Node::healthy();
    for pid in 1000..1100_i32 {
        let mut client = process(pid, ProcessRole::RuntimeClient { verb: "create".into(), container_id: None });
        waits(&mut client, u64::try_from(pid).unwrap());
        node.table().push(client);
    }
    let findings = node.findings();
    let told: Vec<_> = findings.sightings.iter().filter(|one| one.kind == KIND).collect();
    assert_eq!((told.len(), told[0].key.as_str()), (16, "1099.109900"), "who waits for the longest comes first");
    assert_eq!(clean_at(&findings, KIND, "1000.100000"), None);
}

fn frozen(age: u64) -> Node {
    let one = |pid| frozen_init(pid, Duration::from_secs(age), SANDBOX, "sys/fs/cgroup/kubepods/x");
    Node::with(|node| node.host().frozen = Ok(vec![one(800), one(801)]))
}

#[test]
fn a_container_that_is_frozen_while_it_is_made_is_one_fault_of_its_sandbox() {
    let kind = FaultType::FrozenCgroup;
    assert_eq!(said(&frozen(59), kind, SANDBOX), Unknown);
    let findings = frozen(60).findings();
    let sighting = only_of(&findings, kind, SANDBOX);
    assert!(sighting.message.contains("a container of default/one in sandbox aaaa00000000 is frozen"), "{sighting:?}");
    let (process, group) = (sighting.target.process.as_ref().unwrap(), sighting.target.control_group.as_deref());
    assert_eq!((process.role, process.pid, group), (Role::ContainerInit, 800, Some("sys/fs/cgroup/kubepods/x")));
    assert!(clean_at(&findings, kind, OTHER).is_some());
    let mut node = frozen(60);
    node.host().frozen = Err("permission denied".into());
    assert_eq!(said(&node, kind, SANDBOX), Unknown);
}

fn frozen_of(mut node: Node, serves: &str) -> Node {
    node.host().frozen = Ok(vec![frozen_init(800, Duration::from_mins(1), serves, "sys/fs/cgroup/kubepods/x")]);
    node
}

#[test]
fn with_docker_a_frozen_container_is_the_kubelets_only_if_it_is_listed() {
    let kind = FaultType::FrozenCgroup;
    let mut node = frozen_of(super::docker::healthy(), NEW);
    assert_eq!(said(&node, kind, NEW), Clean, "it is somebody else's");
    node.list().containers.push(ContainerSeen { state: ContainerState::Created, ..container(NEW, SANDBOX, "new") });
    let findings = node.findings();
    let sighting = only(&findings);
    assert_eq!((sighting.kind, sighting.key.as_str(), sighting.subject.kind), (kind, NEW, SubjectKind::Container));
    assert_eq!(sighting.message, "container cccc00000000 of default/one is frozen while it is being made");
    let target = &sighting.target;
    assert_eq!((target.container_id.as_deref(), target.sandbox_id.as_deref()), (Some(NEW), Some(SANDBOX)));
    node.lists = Reading::Never;
    assert_eq!(clean_at(&node.findings(), kind, NEW), None, "whose it is is not known");
    // A sandbox is a container of Docker's too.
    let findings = frozen_of(super::docker::healthy(), SANDBOX).findings();
    assert_eq!(only(&findings).target.sandbox_id.as_deref(), Some(SANDBOX));
}

#[test]
fn the_conmon_names_the_pod_of_a_frozen_container_that_crio_does_not_list_yet() {
    let mut node = frozen_of(Node::with(super::crio::with_crio), NEW);
    assert!(node.kinds().is_empty());
    let role = ProcessRole::Monitor { id: NEW.into(), pod: Some(pod("new")), living_children: 1 };
    node.table().push(process(410, role));
    let findings = node.findings();
    let sighting = only(&findings);
    assert_eq!(sighting.message, "container cccc00000000 of default/new is frozen while it is being made");
    let target = &sighting.target;
    assert_eq!((target.container_id.as_deref(), target.sandbox_id.as_deref()), (Some(NEW), None));
    assert!(target.process.is_some() && target.pod == Some(pod("new")));
}
