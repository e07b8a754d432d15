//! The signatures as they were measured on real components, and what must not look like one.

mod blind;
mod bus;
mod clients;
mod clock;
mod components;
mod crio;
mod deaf_shims;
mod docker;
mod duplicate_sandbox;
mod host;
mod hung_container;
mod kubelet;
mod leaked_shim;
mod lost_task;
mod network_plugin;
mod network_ready;
mod noise;
mod orphan;
mod port;
mod properties;
mod strangers;
mod stuck_containers;
mod waits;

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::core::fault::{MAX_EVIDENCE, PodRef, Role, SubjectKind};
use crate::core::observation::{
    BusSeen, ClockSeen, ContainerSeen, ContainerState, Credential, DaemonSeen, DisksSeen, FilesystemSeen, HostSeen,
    KubeletSeen, KubeletSettings, LimitSeen, ListRound, MayBe, NetworkSeen, OrphanRecheck, Owner, Part, PortSeen,
    ProcessSeen, ProcessTable, RelistsSeen, RuntimeKind, RuntimeSeen, SandboxSeen, SettingsSource, Space, StatusSeen,
    TaskAnswer, Unproven, Usage,
};

pub(crate) const SANDBOX: &str = "aaaa000000000000000000000000000000000000000000000000000000000000";
pub(crate) const OTHER: &str = "bbbb000000000000000000000000000000000000000000000000000000000000";
const WORK: &str = "aaaa1";
const SIDECAR: &str = "aaaa2";
const OTHER_WORK: &str = "bbbb1";

/// A node as the collectors see it, built by hand.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub now: Duration,
    pub runtime: Look<RuntimeSeen>,
    pub status: Look<StatusSeen>,
    pub kind: RuntimeKind,
    pub lists: Look<ListRound>,
    pub sandbox_list_hung: bool,
    pub list_too_large: bool,
    pub tasks: BTreeMap<String, Look<TaskAnswer>>,
    pub processes: Look<ProcessTable>,
    pub kubelet: Look<KubeletSeen>,
    pub host: Look<HostSeen>,
    pub disks: Look<DisksSeen>,
    pub port: Look<PortSeen>,
    pub bus: Look<BusSeen>,
    pub clock: Look<ClockSeen>,
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
        age: Duration::from_mins(10),
        state: 'S',
        command: "containerd-shim".into(),
        wchan: Some("futex_wait_queue".into()),
        waited: None,
        part,
    }
}

fn plugin(pid: i32, age: u64, sandbox_id: &str, holds: &[&str], waits: bool) -> ProcessSeen {
    let part = Part::NetworkPlugin {
        plugin: "ptp".into(),
        sandbox_id: Some(sandbox_id.into()),
        pod_uid: None,
        holds: holds.iter().map(|path| (*path).to_owned()).collect(),
        waits,
        waiters: u32::try_from(holds.len()).unwrap() * 2,
    };
    ProcessSeen { age: Duration::from_secs(age), parent: 50, command: "ptp".into(), ..process(pid, part) }
}

fn limit(owner: Owner, used: u64, limit: u64) -> LimitSeen {
    LimitSeen { owner, usage: Ok(Usage { used, limit }) }
}

fn containerd() -> Owner {
    Owner::Runtime("containerd".into())
}

/// A node that gives its runtime and its kubelet all they need.
fn roomy() -> HostSeen {
    let daemon =
        |owner, pid: i32| DaemonSeen { owner, pid, start_ticks: u64::try_from(pid).unwrap() * 100, waiting: Ok(None) };
    HostSeen {
        pids: vec![limit(Owner::Node, 900, 32_768), limit(Owner::Pods, 500, 30_000), limit(containerd(), 60, 4915)],
        files: vec![
            limit(Owner::Node, 3000, u64::MAX),
            limit(Owner::Kubelet, 64, 1_000_000),
            limit(containerd(), 256, 1_048_576),
        ],
        daemons: vec![daemon(Owner::Kubelet, 60), daemon(containerd(), 50)],
        frozen: Ok(Vec::new()),
        strangers: Ok(Vec::new()),
        unseen: None,
    }
}

/// One disk for all, half full, and the kubelet's certificate of a year in its third month.
fn sound() -> DisksSeen {
    let filesystem = |device: &str, folders: &[&str], bytes| FilesystemSeen {
        device: device.into(),
        folders: folders.iter().map(|folder| (*folder).to_owned()).collect(),
        bytes: Space { total: bytes, left: bytes / 2 },
        inodes: Space { total: 1_000_000, left: 900_000 },
        read_only: None,
    };
    let day = Duration::from_hours(24);
    DisksSeen {
        filesystems: vec![
            filesystem("254:0", &["/var/lib/containerd", "/var/lib/kubelet"], 100 << 30),
            filesystem("0:24", &["/run"], 400 << 20),
        ],
        unseen: None,
        credential: Credential::Certificate {
            place: "/var/lib/kubelet/pki/kubelet-client-current.pem".into(),
            lifetime: day * 365,
            left: day * 280,
        },
    }
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
            containers_before: Duration::ZERO,
            answer_bytes: 3000,
            rechecks: BTreeMap::new(),
            unfinished: BTreeMap::new(),
            asked_sandboxes: BTreeMap::new(),
            removals: None,
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
            unproven: Vec::new(),
            inits: Vec::new(),
            round: 1,
        };
        let kubelet = KubeletSeen {
            process: Some((60, 6000, Duration::from_mins(10))),
            healthz: Some(true),
            version: Some("v1.36.3".into()),
            settings: Some(KubeletSettings { source: SettingsSource::File, ..KubeletSettings::default() }),
            ..KubeletSeen::default()
        };
        let tasks = [WORK, SIDECAR, OTHER_WORK].map(|id| (id.to_owned(), done(TaskAnswer::Answered))).into();
        Self {
            now: Duration::from_secs(1000),
            runtime: done(RuntimeSeen { name: "containerd".into(), version: "1.6.20".into() }),
            status: done(StatusSeen {
                network: Some(NetworkSeen { ready: true, reason: String::new(), message: String::new() }),
            }),
            kind: RuntimeKind::Containerd,
            lists: done(lists),
            sandbox_list_hung: false,
            list_too_large: false,
            tasks,
            processes: done(processes),
            kubelet: done(kubelet),
            host: done(roomy()),
            disks: done(sound()),
            port: done(port::quick()),
            bus: done(BusSeen::Answered),
            clock: done(ClockSeen { most: Duration::from_secs(1), ..ClockSeen::default() }),
        }
    }

    /// Nothing that is needed to look is there.
    pub(crate) fn blind() -> Self {
        fn no<T>() -> Look<T> {
            Look::Blind { reason: "no socket".into() }
        }
        Self {
            runtime: no(),
            status: no(),
            lists: no(),
            tasks: BTreeMap::new(),
            processes: no(),
            kubelet: no(),
            host: no(),
            disks: no(),
            port: no(),
            bus: no(),
            clock: Look::Never,
            ..Self::healthy()
        }
    }

    pub(crate) fn seen(&self) -> Observations {
        Observations {
            now: self.now,
            runtime: self.runtime.clone(),
            status: self.status.clone(),
            kind: self.kind,
            lists: self.lists.clone(),
            sandbox_list_hung: self.sandbox_list_hung,
            list_too_large: self.list_too_large,
            tasks: self.tasks.clone(),
            processes: self.processes.clone(),
            kubelet: self.kubelet.clone(),
            host: self.host.clone(),
            disks: self.disks.clone(),
            port: self.port.clone(),
            bus: self.bus.clone(),
            clock: self.clock.clone(),
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

    /// A process of that name that waits uninterruptibly, so that nothing of it could be read.
    fn unproven(&mut self, command: &str, may_be: MayBe) {
        let Look::Done { value, .. } = &mut self.processes else { panic!("no table") };
        let age = Duration::from_mins(10);
        let waited = Some(Duration::ZERO);
        let one = Unproven { pid: 700, start_ticks: 7, age, state: 'D', waited, command: command.into(), may_be };
        value.unproven.push(one);
    }

    pub(crate) fn kubelet(&mut self) -> &mut KubeletSeen {
        match &mut self.kubelet {
            Look::Done { value, .. } => value,
            _ => panic!("no kubelet"),
        }
    }

    fn host(&mut self) -> &mut HostSeen {
        match &mut self.host {
            Look::Done { value, .. } => value,
            _ => panic!("no look at the host"),
        }
    }

    fn disks(&mut self) -> &mut DisksSeen {
        match &mut self.disks {
            Look::Done { value, .. } => value,
            _ => panic!("no look at the disks"),
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

    /// A container is listed as this for so many seconds, and not as running.
    fn unfinished(&mut self, id: &str, state: ContainerState, seconds: u64) {
        let list = self.list();
        list.containers.iter_mut().find(|container| container.id == id).unwrap().state = state;
        list.unfinished.insert(id.into(), Duration::from_secs(seconds));
        self.tasks.remove(id);
    }

    pub(crate) fn kubelet_gone(&mut self) {
        let kubelet = self.kubelet();
        (kubelet.process, kubelet.healthz) = (None, None);
    }

    /// No kubelet runs that could be looked through.
    pub(crate) fn lose_sight_of_the_kubelet(&mut self) {
        self.host().unseen = Some("no kubelet runs that could be looked at".into());
    }

    pub(crate) fn runtime_client(&mut self, verb: &str, age: u64) {
        let client = process(300, Part::RuntimeClient { verb: verb.into(), container_id: Some(WORK.into()) });
        self.table().push(ProcessSeen { age: Duration::from_secs(age), ..client });
    }

    fn findings(&self) -> Findings {
        diagnose(&self.seen(), Known::default(), &Thresholds::default())
    }

    /// Kinds that are sighted.
    fn kinds(&self) -> Vec<FaultType> {
        of_node(&self.findings()).iter().map(|sighting| sighting.kind).collect()
    }
}

fn clean_at(findings: &Findings, kind: FaultType, key: &str) -> Option<u64> {
    match findings.coverage.get(&kind).unwrap().of(key) {
        Verdict::Clean { looked } => Some(looked.as_secs()),
        Verdict::Unknown { .. } => None,
    }
}

/// What is said of the node; that the probe cannot look says nothing of it, and has tests of its own.
fn of_node(findings: &Findings) -> Vec<&Sighting> {
    findings.sightings.iter().filter(|one| one.kind != FaultType::ProbeBlind).collect()
}

fn only(findings: &Findings) -> &Sighting {
    let told = of_node(findings);
    assert_eq!(told.len(), 1, "{told:?}");
    told[0]
}

#[test]
fn a_healthy_node_is_cleanly_looked_at_in_every_kind() {
    let findings = Node::healthy().findings();
    assert!(findings.sightings.is_empty(), "{:?}", findings.sightings);
    for kind in FaultType::ALL.into_iter().filter(|kind| !kind.is_cluster_fault()) {
        assert_eq!(findings.coverage.get(&kind).and_then(Coverage::gap), None, "{kind}");
    }
    assert_eq!(findings.kubelet.completed, Some(Duration::from_secs(400)));
    assert!(findings.ask.is_empty());
}

#[test]
fn a_blind_probe_sees_nothing_and_clears_nothing() {
    let findings = Node::blind().findings();
    assert!(of_node(&findings).is_empty(), "{:?}", findings.sightings);
    assert!(findings.coverage.values().all(|coverage| coverage.gap().is_some()));
}
