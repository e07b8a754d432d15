//! The processes of interest on a node, and the candidates that could not be proven.

use std::fmt;
use std::time::Duration;

use crate::fault::PodRef;

/// Whether a process in this state answers nothing: it is stopped, or waits uninterruptibly.
pub const fn is_unresponsive_state(state: char) -> bool {
    matches!(state, 'T' | 't' | 'D')
}

/// One process of interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSeen {
    /// Process id in the node's PID namespace.
    pub pid: i32,
    /// Parent's process id.
    pub parent: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Time since its start.
    pub age: Duration,
    /// Scheduler state letter.
    pub state: char,
    /// Command name.
    pub command: String,
    /// Kernel function that it waits in.
    pub wchan: Option<String>,
    /// In state D: how long it has been seen in this state without running in between.
    pub waited: Option<Duration>,
    /// How long it and its descendants have been seen without progress: no CPU time, no process that starts or ends. `None` where
    /// the probe does not follow that. It does so only for [`ProcessRole::RuntimeClient`] and [`ProcessRole::NetworkPlugin`].
    pub still: Option<Duration>,
    /// Its role, with the data that only this role has.
    pub role: ProcessRole,
}

/// The role of a process of interest, proven from executable, arguments and parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// A containerd shim that serves one id (`-id`): the sandbox of a pod, or with Docker one container.
    Shim {
        /// The id that it serves.
        id: String,
        /// Number of its children that are not zombies.
        living_children: u32,
    },
    /// A plugin in the CNI directory, a child of the runtime.
    NetworkPlugin {
        /// File name of the plugin.
        plugin: String,
        /// Container (sandbox) id that it was called for, from its environment, where readable.
        sandbox_id: Option<String>,
        /// Uid of the pod that it was called for, from `CNI_ARGS`, where the runtime passes it on.
        pod_uid: Option<String>,
        /// Namespace and name of that pod (`namespace/name`), from `CNI_ARGS`. Nothing has confirmed it.
        pod_name: Option<String>,
        /// Files that it holds a lock on while others wait for that lock.
        holds: Vec<String>,
        /// Whether it waits for a lock that another process holds.
        waits: bool,
        /// How many processes wait for a lock that it holds.
        waiters: u32,
    },
    /// `runc` or `crun` that executes a command.
    RuntimeClient {
        /// Its verb (`create`, `delete`, `kill` …).
        verb: String,
        /// The container (or sandbox) that it works on, from its arguments.
        container_id: Option<String>,
    },
    /// `conmon`, which CRI-O runs beside each container, as containerd runs a shim. The container's first process is
    /// its child.
    Monitor {
        /// The container's id.
        id: String,
        /// The container's pod, from the name that CRI-O gives to a container. `None`: it is not CRI-O's (podman has one too).
        pod: Option<PodRef>,
        /// Number of its children that are not zombies.
        living_children: u32,
    },
    /// The runtime daemon.
    Runtime,
    /// The kubelet.
    Kubelet,
}

impl ProcessRole {
    /// The id that a shim serves, or a conmon of CRI-O, with the number of its living children.
    pub fn serves(&self) -> Option<(&str, u32)> {
        match self {
            Self::Shim { id, living_children } | Self::Monitor { id, pod: Some(_), living_children } => {
                Some((id, *living_children))
            }
            _ => None,
        }
    }
}

/// A process whose role could not be proven, for example because it waits uninterruptibly and its arguments cannot be read. It
/// counts neither as present nor as absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnprovenProcess {
    /// Process id in the node's PID namespace.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Time since its start.
    pub age: Duration,
    /// Scheduler state letter.
    pub state: char,
    /// In state D: how long it has been seen in this state without running in between.
    pub waited: Option<Duration>,
    /// Command name, which makes it a candidate.
    pub command: String,
    /// What it may be.
    pub possible_role: PossibleRole,
}

/// What an unproven process may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PossibleRole {
    /// A shim, by its name.
    Shim,
    /// A conmon, by its name.
    Monitor,
    /// A network plugin, because the runtime has called it.
    NetworkPlugin,
    /// `runc` or a similar tool, by its name or by its caller.
    RuntimeClient,
    /// Something that no fault is about.
    Other,
}

/// The first process of a container in creation: `runc init`, which becomes the container's own process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitSeen {
    /// Process id in the node's PID namespace.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Time since its start.
    pub age: Duration,
    /// The id that its shim or its conmon serves.
    pub serves: String,
}

/// What one check has left out, because there was more than it reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Why some file locks that plugins hold or wait for may be unknown.
    pub locks: Option<String>,
    /// Why processes of the node itself, or their children, may be missing. A process that is not in the table may
    /// still exist then.
    pub processes: Option<String>,
    /// Why first processes of containers in creation may be missing.
    pub inits: Option<String>,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [&self.processes, &self.inits, &self.locks];
        let all: Vec<&str> = all.into_iter().filter_map(Option::as_deref).collect();
        f.write_str(&all.join("; "))
    }
}

/// One check of the process table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessTable {
    /// Processes of interest only.
    pub processes: Vec<ProcessSeen>,
    /// Candidates that could not be proven.
    pub unproven: Vec<UnprovenProcess>,
    /// Containers that have been in creation for longer than a moment.
    pub inits: Vec<InitSeen>,
    /// What was left out for lack of room.
    pub left_out: LeftOut,
    /// Number of the check, increasing by one.
    pub round: u64,
}
