//! The signatures as they were measured on real components, and what must not look like one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::core::observation::{
    ContainerSeen, ContainerState, KubeletSeen, ListRound, OrphanRecheck, Part, ProcessTable, RuntimeSeen, SandboxSeen,
    TaskAnswer,
};

pub(crate) const SANDBOX: &str = "aaaa000000000000000000000000000000000000000000000000000000000000";
pub(crate) const OTHER: &str = "bbbb000000000000000000000000000000000000000000000000000000000000";
const WORK: &str = "aaaa1";
const SIDECAR: &str = "aaaa2";
const OTHER_WORK: &str = "bbbb1";

/// A node as the collectors see it, built by hand.
#[derive(Clone)]
pub(crate) struct Node {
    pub now: Duration,
    pub runtime: Look<RuntimeSeen>,
    pub lists: Look<ListRound>,
    pub sandbox_list_hung: bool,
    pub tasks: BTreeMap<String, Look<TaskAnswer>>,
    pub processes: Look<ProcessTable>,
    pub kubelet: Look<KubeletSeen>,
}

pub(crate) fn done<T>(value: T) -> Look<T> {
    Look::Done { value, age: Duration::ZERO, took: Duration::from_millis(5) }
}

fn pod(name: &str) -> PodRef {
    PodRef { namespace: "default".into(), name: name.into(), uid: format!("uid-{name}") }
}

fn sandbox(id: &str, name: &str) -> SandboxSeen {
    SandboxSeen { id: id.into(), ready: true, pod: pod(name), attempt: 0 }
}

fn container(id: &str, sandbox_id: &str, name: &str) -> ContainerSeen {
    ContainerSeen {
        id: id.into(),
        sandbox_id: sandbox_id.into(),
        name: name.into(),
        pod: Some(pod(if sandbox_id == OTHER { "other" } else { "one" })),
        state: ContainerState::Running,
        attempt: 0,
    }
}

fn process(pid: i32, part: Part) -> ProcessSeen {
    ProcessSeen {
        pid,
        parent: 1,
        start_ticks: u64::try_from(pid).unwrap() * 100,
        age: Duration::from_secs(600),
        state: 'S',
        command: "containerd-shim".into(),
        wchan: Some("futex_wait_queue".into()),
        part,
    }
}

fn plugin(pid: i32, age: u64, sandbox_id: &str, holds: &[&str], waits: bool) -> ProcessSeen {
    let part = Part::NetworkPlugin {
        plugin: "ptp".into(),
        sandbox_id: Some(sandbox_id.into()),
        holds: holds.iter().map(|path| (*path).to_owned()).collect(),
        waits,
        waiters: u32::try_from(holds.len()).unwrap() * 2,
    };
    ProcessSeen { age: Duration::from_secs(age), parent: 50, command: "ptp".into(), ..process(pid, part) }
}

impl Node {
    pub(crate) fn healthy() -> Self {
        let lists = ListRound {
            sandboxes: vec![sandbox(SANDBOX, "one"), sandbox(OTHER, "other")],
            containers: vec![
                container(WORK, SANDBOX, "work"),
                container(SIDECAR, SANDBOX, "sidecar"),
                container(OTHER_WORK, OTHER, "work"),
            ],
            sandboxes_again: vec![SANDBOX.into(), OTHER.into()],
            rechecks: BTreeMap::new(),
            round: 1,
        };
        let shim = |pid, id: &str| process(pid, Part::Shim { id: id.into(), living_children: 2 });
        let processes = ProcessTable {
            processes: vec![
                process(50, Part::Runtime),
                shim(100, SANDBOX),
                shim(200, OTHER),
                process(60, Part::Kubelet),
            ],
            round: 1,
        };
        let kubelet = KubeletSeen {
            process: Some((60, 6000, Duration::from_secs(600))),
            healthz: Some(true),
            version: Some("v1.36.3".into()),
            ..KubeletSeen::default()
        };
        let tasks = [WORK, SIDECAR, OTHER_WORK].map(|id| (id.to_owned(), done(TaskAnswer::Answered))).into();
        Self {
            now: Duration::from_secs(1000),
            runtime: done(RuntimeSeen { name: "containerd".into(), version: "1.6.20".into() }),
            lists: done(lists),
            sandbox_list_hung: false,
            tasks,
            processes: done(processes),
            kubelet: done(kubelet),
        }
    }

    /// Nothing that is needed to look is there.
    pub(crate) fn blind() -> Self {
        fn no<T>() -> Look<T> {
            Look::Blind { reason: "no socket".into() }
        }
        Self { runtime: no(), lists: no(), tasks: BTreeMap::new(), processes: no(), kubelet: no(), ..Self::healthy() }
    }

    pub(crate) fn seen(&self) -> Observations {
        Observations {
            now: self.now,
            runtime: self.runtime.clone(),
            lists: self.lists.clone(),
            sandbox_list_hung: self.sandbox_list_hung,
            tasks: self.tasks.clone(),
            processes: self.processes.clone(),
            kubelet: self.kubelet.clone(),
        }
    }

    pub(crate) fn list(&mut self) -> &mut ListRound {
        match &mut self.lists {
            Look::Done { value, .. } => value,
            _ => panic!("no list"),
        }
    }

    pub(crate) fn table(&mut self) -> &mut Vec<ProcessSeen> {
        match &mut self.processes {
            Look::Done { value, .. } => &mut value.processes,
            _ => panic!("no table"),
        }
    }

    pub(crate) fn kubelet(&mut self) -> &mut KubeletSeen {
        match &mut self.kubelet {
            Look::Done { value, .. } => value,
            _ => panic!("no kubelet"),
        }
    }

    fn shim(&mut self, wanted: &str) -> &mut ProcessSeen {
        self.table().iter_mut().find(|p| matches!(&p.part, Part::Shim { id, .. } if id == wanted)).unwrap()
    }

    /// SIGSTOP of a shim, as measured: state T, its tasks do not answer, the lists stay green.
    pub(crate) fn freeze(&mut self, id: &str) {
        let shim = self.shim(id);
        shim.state = 'T';
        shim.wchan = Some("do_signal_stop".into());
        let behind: Vec<String> =
            self.list().containers.iter().filter(|c| c.sandbox_id == id).map(|c| c.id.clone()).collect();
        for container in behind {
            self.tasks.insert(container, done(TaskAnswer::NoAnswer));
        }
    }

    /// The sandbox is gone, its container stays in the list.
    pub(crate) fn orphan(&mut self, state: ContainerState) {
        let list = self.list();
        list.sandboxes.retain(|sandbox| sandbox.id != SANDBOX);
        list.sandboxes_again.retain(|id| id != SANDBOX);
        list.containers.retain(|container| container.id != SIDECAR);
        list.containers.iter_mut().filter(|container| container.id == WORK).for_each(|c| c.state = state);
        list.rechecks.insert(WORK.into(), OrphanRecheck::Confirmed);
    }

    pub(crate) fn kubelet_gone(&mut self) {
        let kubelet = self.kubelet();
        (kubelet.process, kubelet.healthz) = (None, None);
    }

    pub(crate) fn runtime_client(&mut self, verb: &str, age: u64) {
        let client = process(300, Part::RuntimeClient { verb: verb.into() });
        self.table().push(ProcessSeen { age: Duration::from_secs(age), ..client });
    }

    fn findings(&self) -> Findings {
        diagnose(&self.seen(), Known::default(), &Thresholds::default())
    }

    /// Kinds that are sighted.
    fn kinds(&self) -> Vec<FaultType> {
        self.findings().sightings.iter().map(|sighting| sighting.kind).collect()
    }
}

fn clean_at(findings: &Findings, kind: FaultType, key: &str) -> Option<u64> {
    match findings.coverage.get(&kind).unwrap().of(key) {
        Verdict::Clean { looked } => Some(looked.as_secs()),
        Verdict::Unknown { .. } => None,
    }
}

fn only(findings: &Findings) -> &Sighting {
    assert_eq!(findings.sightings.len(), 1, "{:?}", findings.sightings);
    &findings.sightings[0]
}

#[test]
fn a_healthy_node_is_cleanly_looked_at_in_every_kind() {
    let findings = Node::healthy().findings();
    assert!(findings.sightings.is_empty(), "{:?}", findings.sightings);
    for kind in PROBE_FAULTS {
        assert_eq!(findings.coverage.get(&kind).and_then(Coverage::gap), None, "{kind}");
    }
    assert_eq!(findings.kubelet.completed, Some(Duration::from_secs(400)));
    assert!(findings.ask.is_empty());
}

#[test]
fn a_blind_probe_sees_nothing_and_clears_nothing() {
    let findings = Node::blind().findings();
    assert!(findings.sightings.is_empty());
    assert!(findings.coverage.values().all(|coverage| coverage.gap().is_some()));
}

mod hung_container {
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

    #[test]
    fn a_stopped_shim_not_asked_yet_is_a_first_sign_and_is_asked_at_once() {
        let mut node = Node::healthy();
        node.freeze(SANDBOX);
        for id in [WORK, SIDECAR] {
            let answered_before =
                Look::Done { value: TaskAnswer::Answered, age: Duration::from_secs(60), took: Duration::ZERO };
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
        if let Look::Done { age, .. } = &mut node.processes {
            *age = Duration::from_secs(5);
        }
        assert!(node.kinds().is_empty());
    }

    #[test]
    fn a_call_that_is_out_is_looked_at_by_the_process_table() {
        let mut node = Node::healthy();
        node.tasks.insert(WORK.into(), Look::Hung { out: Duration::from_secs(90) });
        if let Look::Done { age, .. } = &mut node.processes {
            *age = Duration::from_secs(7);
        }
        assert_eq!(only(&node.findings()).looked, Duration::from_secs(993));
    }

    #[test]
    fn silence_of_a_shim_that_runs_is_as_old_as_the_silence() {
        let mut node = Node::healthy();
        let silent = Look::Done { value: TaskAnswer::NoAnswer, age: Duration::from_secs(50), took: Duration::ZERO };
        node.tasks.insert(WORK.into(), silent);
        let findings = node.findings();
        assert_eq!(only(&findings).looked, Duration::from_secs(950));
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
        node.tasks.insert(WORK.into(), Look::Failed { error: "unimplemented".into(), age: Duration::ZERO });
        let findings = node.findings();
        assert!(findings.sightings.is_empty());
        assert_eq!(clean_at(&findings, FaultType::HungContainer, &format!("uid-one/{SANDBOX}")), None);
    }

    #[test]
    fn without_lists_nothing_is_said_of_containers() {
        let mut node = Node::healthy();
        node.freeze(SANDBOX);
        node.lists = Look::Failed { error: "message larger than max".into(), age: Duration::ZERO };
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
        node.processes = Look::Blind { reason: "no host pid".into() };
        assert_eq!(only(&node.findings()).target.process, None);
    }

    #[test]
    fn on_docker_the_shim_serves_the_container() {
        let mut node = Node::healthy();
        node.shim(SANDBOX).part = Part::Shim { id: WORK.into(), living_children: 1 };
        node.tasks.insert(WORK.into(), done(TaskAnswer::NoAnswer));
        assert_eq!(only(&node.findings()).target.process.as_ref().map(|process| process.pid), Some(100));
    }
}

mod leaked_shim {
    use super::*;

    fn leaked() -> Node {
        let mut node = Node::healthy();
        node.table()
            .push(ProcessSeen { state: 'T', ..process(900, Part::Shim { id: "cccc".into(), living_children: 0 }) });
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
}

mod orphan {
    use super::*;

    #[test]
    fn running_does_harm_always_exited_only_without_a_kubelet() {
        for (state, harm) in [
            (ContainerState::Running, Harm::Always),
            (ContainerState::Exited, Harm::WithoutKubelet),
            (ContainerState::Created, Harm::WithoutKubelet),
            (ContainerState::Unknown, Harm::WithoutKubelet),
        ] {
            let mut node = Node::healthy();
            node.orphan(state);
            let findings = node.findings();
            let sighting =
                findings.sightings.iter().find(|sighting| sighting.kind == FaultType::OrphanContainer).unwrap();
            assert_eq!((sighting.harm, sighting.key.as_str()), (harm, WORK), "{state:?}");
            assert_eq!(sighting.target.container_id.as_deref(), Some(WORK));
            assert_eq!(sighting.target.sandbox_id.as_deref(), Some(SANDBOX));
            assert_eq!(sighting.target.process, None);
        }
    }

    #[test]
    fn only_a_confirmed_recheck_is_a_sighting() {
        for (recheck, clean) in
            [(Some(OrphanRecheck::Refuted), Some(1000)), (Some(OrphanRecheck::NoAnswer), None), (None, None)]
        {
            let mut node = Node::healthy();
            node.orphan(ContainerState::Running);
            node.list().rechecks.clear();
            node.list().rechecks.extend(recheck.map(|recheck| (WORK.to_owned(), recheck)));
            let findings = node.findings();
            assert!(findings.sightings.is_empty(), "{recheck:?}");
            assert_eq!(clean_at(&findings, FaultType::OrphanContainer, WORK), clean, "{recheck:?}");
        }
    }

    #[test]
    fn a_sandbox_in_either_list_and_a_container_of_others_are_no_orphans() {
        let mut node = Node::healthy();
        node.orphan(ContainerState::Running);
        node.list().sandboxes_again.push(SANDBOX.into());
        assert!(!node.kinds().contains(&FaultType::OrphanContainer));
        let mut node = Node::healthy();
        node.orphan(ContainerState::Running);
        node.list().containers.iter_mut().for_each(|container| container.pod = None);
        assert!(!node.kinds().contains(&FaultType::OrphanContainer));
    }

    #[test]
    fn many_at_once_are_a_failed_list() {
        let mut node = Node::healthy();
        node.list().sandboxes.clear();
        node.list().sandboxes_again.clear();
        node.list().containers.push(container("b2", OTHER, "more"));
        let all: Vec<String> = node.list().containers.iter().map(|container| container.id.clone()).collect();
        node.list().rechecks = all.into_iter().map(|id| (id, OrphanRecheck::Confirmed)).collect();
        let findings = node.findings();
        assert!(!node.kinds().contains(&FaultType::OrphanContainer));
        assert_eq!(clean_at(&findings, FaultType::OrphanContainer, WORK), None);
    }

    #[test]
    fn an_old_kubelet_raises_the_severity_only() {
        for (version, severity) in [
            ("v1.23.17", Severity::Critical),
            ("1.9.1", Severity::Critical),
            ("v1.24.0", Severity::High),
            ("v1.36.3", Severity::High),
            ("v2.1.0", Severity::High),
            ("nonsense", Severity::High),
            ("", Severity::High),
        ] {
            let mut node = Node::healthy();
            node.orphan(ContainerState::Exited);
            node.kubelet().version = Some(version.into());
            let findings = node.findings();
            let sighting = only(&findings);
            assert_eq!(sighting.without_kubelet.as_ref().unwrap().severity, severity, "{version}");
        }
    }
}

mod network_plugin {
    use super::*;

    const LOCK: &str = "/var/lib/cni/networks/pods/lock";

    #[test]
    fn the_holder_is_the_fault_and_its_waiters_are_evidence() {
        let mut node = Node::healthy();
        node.table().push(plugin(400, 90, "s1", &[LOCK], false));
        node.table().push(plugin(401, 80, "s2", &[], true));
        node.table().push(plugin(402, 70, "s3", &[], true));
        node.table().push(plugin(399, 95, "s4", &[], false));
        let findings = node.findings();
        let sighting = only(&findings);
        assert_eq!((sighting.kind, sighting.key.as_str()), (FaultType::NetworkPluginHung, LOCK));
        assert_eq!(sighting.subject.lock.as_deref(), Some(LOCK));
        assert_eq!(sighting.target.process.as_ref().map(|p| (p.pid, p.role)), Some((400, Role::NetworkPlugin)));
        assert!(sighting.evidence.iter().any(|line| line.contains("process 402") && line.contains("waits")));
    }

    #[test]
    fn among_equals_the_oldest_is_the_fault_and_never_the_parent_that_waits_for_its_child() {
        let mut node = Node::healthy();
        node.table().push(plugin(401, 80, "s2", &[], false));
        node.table().push(plugin(400, 90, "s1", &[], false));
        assert_eq!(only(&node.findings()).target.process.as_ref().map(|p| p.pid), Some(400));
        let mut child = plugin(405, 89, "s1", &[], false);
        child.parent = 400;
        node.table().push(child);
        assert_eq!(only(&node.findings()).target.process.as_ref().map(|p| p.pid), Some(401));
    }

    #[test]
    fn young_plugins_are_at_work() {
        let mut node = Node::healthy();
        node.table().push(plugin(400, 59, "s1", &[LOCK], false));
        assert!(node.kinds().is_empty());
        assert_eq!(clean_at(&node.findings(), FaultType::NetworkPluginHung, LOCK), Some(1000));
    }

    #[test]
    fn waiters_without_a_holder_are_told_but_not_to_be_touched() {
        let mut node = Node::healthy();
        node.table().push(plugin(401, 80, "s2", &[], true));
        let findings = node.findings();
        assert_eq!(only(&findings).target.process, None);
        assert!(only(&findings).message.contains("holder was not found"));
    }

    #[test]
    fn hostile_names_are_bounded() {
        let mut node = Node::healthy();
        let mut hostile = plugin(400, 90, &"s".repeat(100_000), &[&"/l\n".repeat(100_000)], false);
        hostile.command = "\u{1b}[31m".repeat(10_000);
        hostile.wchan = Some("w".repeat(10_000));
        node.table().push(hostile);
        let findings = node.findings();
        let sighting = only(&findings);
        assert!(sighting.message.len() <= MAX_LINE && !sighting.message.contains('\u{1b}'));
        assert!(sighting.evidence.len() <= MAX_EVIDENCE);
        assert!(sighting.evidence.iter().all(|line| line.len() <= MAX_LINE));
        assert!(sighting.subject.lock.as_ref().unwrap().len() <= MAX_LINE);
        assert!(sighting.target.sandbox_id.as_ref().unwrap().len() <= 128);
    }
}

mod components {
    use super::*;

    #[test]
    fn a_refused_or_hung_version_call_is_sick_a_missing_socket_only_where_one_was() {
        let mut node = Node::healthy();
        for look in [
            Look::Hung { out: Duration::from_secs(6) },
            Look::Failed { error: "connection refused".into(), age: Duration::ZERO },
        ] {
            node.runtime = look;
            assert_eq!(node.kinds(), [FaultType::RuntimeUnreachable]);
        }
        node.runtime = Look::Blind { reason: "no socket".into() };
        assert!(node.kinds().is_empty());
        let known = diagnose(&node.seen(), Known { runtime: true, ..Known::default() }, &Thresholds::default());
        assert_eq!(only(&known).kind, FaultType::RuntimeUnreachable);
    }

    #[test]
    fn a_hung_list_names_which_and_needs_a_runtime_that_answers() {
        let mut node = Node::healthy();
        node.lists = Look::Hung { out: Duration::from_secs(60) };
        assert!(only(&node.findings()).message.contains("one blocked update"));
        node.sandbox_list_hung = true;
        assert!(only(&node.findings()).message.contains("sandboxes does not come back"));
        node.lists = Look::Hung { out: Duration::from_secs(59) };
        assert!(node.kinds().is_empty());
        node.lists = Look::Hung { out: Duration::from_secs(600) };
        node.runtime = Look::Hung { out: Duration::from_secs(60) };
        assert_eq!(node.kinds(), [FaultType::RuntimeUnreachable]);
    }

    #[test]
    fn a_failed_list_is_no_verdict() {
        let mut node = Node::healthy();
        node.lists = Look::Failed { error: "too large".into(), age: Duration::ZERO };
        assert_eq!(clean_at(&node.findings(), FaultType::RuntimeListHung, "lists"), None);
    }

    #[test]
    fn a_kubelet_is_down_starting_or_up() {
        let age = |seconds| Some((60, 1, Duration::from_secs(seconds)));
        let (grace, double) = (Duration::from_secs(60), Duration::from_secs(120));
        for (process, healthz, sighted, started) in [
            (None, None, Some(grace), Some(false)),
            (age(5), Some(true), Some(double), None),
            (age(5), None, Some(double), None),
            (age(20), Some(true), None, Some(true)),
            (age(20), Some(false), Some(grace), Some(false)),
            (age(20), None, None, None),
        ] {
            let mut node = Node::healthy();
            (node.kubelet().process, node.kubelet().healthz) = (process, healthz);
            let findings = node.findings();
            let is = findings.sightings.first().map(|sighting| sighting.confirm.grace);
            assert_eq!((is, findings.kubelet.started), (sighted, started), "{process:?} {healthz:?}");
            let clean = clean_at(&findings, FaultType::KubeletDown, "kubelet").is_some();
            assert_eq!(clean, started == Some(true), "{process:?} {healthz:?}");
        }
    }

    #[test]
    fn a_process_table_that_is_not_the_nodes_says_nothing_of_the_kubelet_and_of_shims() {
        let mut node = Node::healthy();
        node.table().clear();
        node.kubelet_gone();
        let findings = node.findings();
        assert!(findings.sightings.is_empty(), "{:?}", findings.sightings);
        assert_eq!(clean_at(&findings, FaultType::LeakedShim, "cccc"), None);
        assert_eq!(clean_at(&findings, FaultType::NetworkPluginHung, "x"), None);
        // The runtime does not answer either: perhaps it does not run, perhaps we see nothing.
        node.runtime = Look::Failed { error: "refused".into(), age: Duration::ZERO };
        assert_eq!(node.kinds(), [FaultType::RuntimeUnreachable]);
        let known = Known { host_processes: true, ..Known::default() };
        let findings = diagnose(&node.seen(), known, &Thresholds::default());
        assert!(findings.sightings.iter().any(|sighting| sighting.kind == FaultType::KubeletDown));
    }

    #[test]
    fn an_old_answer_proves_nothing() {
        let mut node = Node::healthy();
        if let Look::Done { age, .. } = &mut node.kubelet {
            *age = STALE + Duration::from_secs(1);
        }
        assert_eq!(clean_at(&node.findings(), FaultType::KubeletDown, "kubelet"), None);
        assert_eq!(node.findings().kubelet, KubeletStart::default());
    }
}
