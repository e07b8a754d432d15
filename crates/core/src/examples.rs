//! Observations of a node and faults, as tests need them: made by hand, and sound where nothing else is said.

#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "what is asked for and is not there is a slip in a test"
)]

mod records;

/// A node as the collectors see it, built by hand.
pub use crate::observation::Observations as Node;
pub use records::{CONT, KILL, SAFE_KILL, command, fault, shim};

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::diagnose::diagnose;
use crate::fault::PodRef;
use crate::finding::{Findings, Known};
use crate::observation::{
    BusSeen, ClockSeen, ContainerSeen, ContainerState, Credential, DaemonSeen, DisksSeen, FilesystemSeen, HostSeen,
    KubeletSeen, KubeletSettings, LimitSeen, ListRound, NetworkSeen, OrphanCheck, Owner, PortSeen, PossibleRole,
    ProcessRole, ProcessSeen, ProcessTable, Reading, RelistsSeen, RuntimeKind, RuntimeSeen, SandboxSeen,
    SettingsSource, Space, StatusSeen, TaskAnswer, UnprovenProcess, Usage,
};
use crate::thresholds::Thresholds;
use crate::tracker::{Tracked, Tracker};

/// Id of the sandbox of the pod `one`.
pub const SANDBOX: &str = "aaaa000000000000000000000000000000000000000000000000000000000000";
/// Id of the sandbox of the pod `other`.
pub const OTHER: &str = "bbbb000000000000000000000000000000000000000000000000000000000000";
/// A container of [`SANDBOX`].
pub const WORK: &str = "aaaa1";
/// The other container of [`SANDBOX`].
pub const SIDECAR: &str = "aaaa2";
/// The container of [`OTHER`].
pub const OTHER_WORK: &str = "bbbb1";

/// A check that has just ended.
pub fn done<T>(value: T) -> Reading<T> {
    Reading::Done { value, age: Duration::ZERO, took: Duration::from_millis(5) }
}

/// What was seen, to be changed.
pub fn seen<T>(reading: &mut Reading<T>) -> &mut T {
    match reading {
        Reading::Done { value, .. } => value,
        _ => panic!("nothing was seen"),
    }
}

/// A pod of this name.
pub fn pod(name: &str) -> PodRef {
    PodRef { namespace: "default".into(), name: name.into(), uid: format!("uid-{name}") }
}

/// A sandbox that is ready.
pub fn sandbox(id: &str, name: &str) -> SandboxSeen {
    SandboxSeen { id: id.into(), ready: true, pod: pod(name), attempt: 0 }
}

/// A container that runs.
pub fn container(id: &str, sandbox_id: &str, name: &str) -> ContainerSeen {
    ContainerSeen {
        id: id.into(),
        sandbox_id: sandbox_id.into(),
        name: name.into(),
        pod: Some(pod(if sandbox_id == OTHER { "other" } else { "one" })),
        state: ContainerState::Running,
        attempt: 0,
    }
}

/// A process that sleeps.
pub fn process(pid: i32, role: ProcessRole) -> ProcessSeen {
    ProcessSeen {
        pid,
        parent: 1,
        start_ticks: u64::from(pid.unsigned_abs()) * 100,
        age: Duration::from_mins(10),
        state: 'S',
        command: "containerd-shim".into(),
        wchan: Some("futex_wait_queue".into()),
        waited: None,
        still: None,
        role,
    }
}

/// A network plugin at work for so many seconds, with the files that it holds.
pub fn plugin(pid: i32, age: u64, sandbox_id: &str, holds: &[&str], waits: bool) -> ProcessSeen {
    let role = ProcessRole::NetworkPlugin {
        plugin: "ptp".into(),
        sandbox_id: Some(sandbox_id.into()),
        pod_uid: None,
        pod_name: None,
        holds: holds.iter().map(|path| (*path).to_owned()).collect(),
        waits,
        waiters: u32::try_from(holds.len()).unwrap() * 2,
    };
    ProcessSeen { age: Duration::from_secs(age), parent: 50, command: "ptp".into(), ..process(pid, role) }
}

/// So much of a limit is used.
pub fn limit(owner: Owner, used: u64, limit: u64) -> LimitSeen {
    LimitSeen { owner, usage: Ok(Usage { used, limit }) }
}

/// The runtime of the node.
pub fn containerd() -> Owner {
    Owner::Runtime("containerd".into())
}

/// A node that gives its runtime and its kubelet all they need.
pub fn roomy() -> HostSeen {
    let daemon = |owner, pid: i32| DaemonSeen {
        owner,
        pid,
        start_ticks: u64::from(pid.unsigned_abs()) * 100,
        waiting: Ok(None),
    };
    HostSeen {
        pids: vec![limit(Owner::Node, 900, 32_768), limit(Owner::Pods, 500, 30_000), limit(containerd(), 60, 4915)],
        files: vec![
            limit(Owner::Node, 3000, u64::MAX),
            limit(Owner::Kubelet, 64, 1_000_000),
            limit(containerd(), 256, 1_048_576),
        ],
        daemons: vec![daemon(Owner::Kubelet, 60), daemon(containerd(), 50)],
        frozen: Ok(Vec::new()),
        untracked: Ok(Vec::new()),
        untracked_left_out: 0,
        unseen: None,
    }
}

/// One disk for all, half full, and the kubelet's certificate of a year in its third month.
pub fn sound() -> DisksSeen {
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

/// A kubelet that gets on with its pods.
pub fn quick() -> PortSeen {
    let mean = Some(Duration::from_millis(5));
    PortSeen {
        sync_loop: Ok(true),
        relists: Ok(RelistsSeen { begun: true, mean, unmoved: Some(Duration::ZERO), ..RelistsSeen::default() }),
    }
}

/// One check of everything on this node at this second, with the shipped thresholds.
pub fn check(tracker: &mut Tracker, node: &mut Node, second: u64) -> (Findings, Tracked) {
    node.now = Duration::from_secs(second);
    let thresholds = Thresholds::default();
    let findings = diagnose(node, tracker.known(), &thresholds);
    let stepped = tracker.step(node.now, Timestamp::UNIX_EPOCH, &findings, &thresholds);
    (findings, stepped)
}

impl Node {
    /// All that was asked has answered, and nothing is wrong.
    pub fn healthy() -> Self {
        let lists = ListRound {
            sandboxes: vec![sandbox(SANDBOX, "one"), sandbox(OTHER, "other")],
            containers: vec![
                container(WORK, SANDBOX, "work"),
                container(SIDECAR, SANDBOX, "sidecar"),
                container(OTHER_WORK, OTHER, "work"),
            ],
            sandboxes_again: vec![SANDBOX.into(), OTHER.into()],
            answer_bytes: 3000,
            round: 1,
            ..ListRound::default()
        };
        let shim = |pid, id: &str| process(pid, ProcessRole::Shim { id: id.into(), living_children: 2 });
        let processes = ProcessTable {
            processes: vec![
                process(50, ProcessRole::Runtime),
                shim(100, SANDBOX),
                shim(200, OTHER),
                process(60, ProcessRole::Kubelet),
            ],
            round: 1,
            ..ProcessTable::default()
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
            status: done(StatusSeen { network: Some(NetworkSeen { ready: true, ..NetworkSeen::default() }) }),
            kind: RuntimeKind::Containerd,
            lists: done(lists),
            tasks,
            processes: done(processes),
            kubelet: done(kubelet),
            host: done(roomy()),
            disks: done(sound()),
            port: done(quick()),
            bus: done(BusSeen::Answered),
            clock: done(ClockSeen { most: Duration::from_secs(1), ..ClockSeen::default() }),
            ..Self::default()
        }
    }

    /// A healthy node with this change.
    pub fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut node = Self::healthy();
        change(&mut node);
        node
    }

    /// Nothing that is needed to check is there.
    pub fn unavailable() -> Self {
        fn no<T>() -> Reading<T> {
            Reading::Unavailable { reason: "no socket".into() }
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
            clock: Reading::Never,
            ..Self::healthy()
        }
    }

    /// What is found on it by a probe that has just begun, with the shipped thresholds.
    pub fn findings(&self) -> Findings {
        diagnose(self, Known::default(), &Thresholds::default())
    }

    /// The lists of the runtime, to be changed.
    pub fn list(&mut self) -> &mut ListRound {
        seen(&mut self.lists)
    }

    /// The process table, to be changed.
    pub fn process_table(&mut self) -> &mut ProcessTable {
        seen(&mut self.processes)
    }

    /// The processes, to be changed.
    pub fn table(&mut self) -> &mut Vec<ProcessSeen> {
        &mut self.process_table().processes
    }

    /// A process of that name that waits uninterruptibly, so that nothing of it could be read.
    pub fn unproven(&mut self, command: &str, possible_role: PossibleRole) {
        let age = Duration::from_mins(10);
        let waited = Some(Duration::ZERO);
        let one = UnprovenProcess {
            pid: 700,
            start_ticks: 7,
            age,
            state: 'D',
            waited,
            command: command.into(),
            possible_role,
        };
        self.process_table().unproven.push(one);
    }

    /// What was seen of the kubelet, to be changed.
    pub fn kubelet(&mut self) -> &mut KubeletSeen {
        seen(&mut self.kubelet)
    }

    /// What was seen of the host, to be changed.
    pub fn host(&mut self) -> &mut HostSeen {
        seen(&mut self.host)
    }

    /// What was seen of the disks, to be changed.
    pub fn disks(&mut self) -> &mut DisksSeen {
        seen(&mut self.disks)
    }

    /// The shim of this sandbox, to be changed.
    pub fn shim(&mut self, wanted: &str) -> &mut ProcessSeen {
        self.table().iter_mut().find(|p| matches!(&p.role, ProcessRole::Shim { id, .. } if id == wanted)).unwrap()
    }

    /// SIGSTOP of a shim, as measured: state T, its tasks do not answer, the lists stay green.
    pub fn freeze(&mut self, id: &str) {
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
    pub fn orphan(&mut self, state: ContainerState) {
        let list = self.list();
        list.sandboxes.retain(|sandbox| sandbox.id != SANDBOX);
        list.sandboxes_again.retain(|id| id != SANDBOX);
        list.containers.retain(|container| container.id != SIDECAR);
        list.containers.iter_mut().filter(|container| container.id == WORK).for_each(|c| c.state = state);
        list.orphan_checks.insert(WORK.into(), OrphanCheck::Confirmed);
    }

    /// A container is listed as this for so many seconds, and not as running.
    pub fn unfinished(&mut self, id: &str, state: ContainerState, seconds: u64) {
        let list = self.list();
        list.containers.iter_mut().find(|container| container.id == id).unwrap().state = state;
        list.unfinished.insert(id.into(), Duration::from_secs(seconds));
        self.tasks.remove(id);
    }

    /// The kubelet does not run.
    pub fn kubelet_gone(&mut self) {
        let kubelet = self.kubelet();
        (kubelet.process, kubelet.healthz) = (None, None);
    }

    /// A client of the runtime works on a container for so many seconds.
    pub fn runtime_client(&mut self, verb: &str, age: u64) {
        let client = process(300, ProcessRole::RuntimeClient { verb: verb.into(), container_id: Some(WORK.into()) });
        self.table().push(ProcessSeen { age: Duration::from_secs(age), ..client });
    }
}
