//! The processes of interest on a node, and what could not be proven of others.

use std::fmt;
use std::time::Duration;

/// Whether this state letter says that a process answers nobody: it is stopped, or waits uninterruptibly.
pub const fn answers_nobody(state: char) -> bool {
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
    /// Kernel function it waits in.
    pub wchan: Option<String>,
    /// In state D: for how long it has been seen so without having run in between.
    pub waited: Option<Duration>,
    /// For how long it and the processes below it have been seen to make no progress: no processor time, no process that
    /// begins or ends. `None` where that is not followed: it is of [`Part::RuntimeClient`] and [`Part::NetworkPlugin`] only.
    pub still: Option<Duration>,
    /// The part it plays, with what only that part has.
    pub part: Part,
}

/// What a process of interest is, proven from executable, arguments and parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A containerd shim serving one id (`-id`): the sandbox of a pod, or with Docker one container.
    Shim {
        /// The id it serves.
        id: String,
        /// Its children that are not zombies.
        living_children: u32,
    },
    /// A plugin in the CNI directory, a child of the runtime.
    NetworkPlugin {
        /// File name of the plugin.
        plugin: String,
        /// Container (sandbox) id it was called for, from its environment, where readable.
        sandbox_id: Option<String>,
        /// Uid of the pod it was called for, from `CNI_ARGS`, where the runtime passes it on.
        pod_uid: Option<String>,
        /// Files whose lock it holds while others wait for it.
        holds: Vec<String>,
        /// Whether it waits for a lock that another process holds.
        waits: bool,
        /// How many processes wait for a lock it holds.
        waiters: u32,
    },
    /// `runc`/`crun` at work.
    RuntimeClient {
        /// Its verb (`create`, `delete`, `kill` …).
        verb: String,
        /// The container (or sandbox) it works on, from its arguments.
        container_id: Option<String>,
    },
    /// CRI-O's process beside one container (`conmon`).
    Monitor {
        /// The container's id.
        id: String,
    },
    /// The runtime daemon.
    Runtime,
    /// The kubelet.
    Kubelet,
}

/// A process that may play a part which could not be proven: it waits uninterruptibly, say, and its arguments cannot
/// be read. It is neither there nor absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unproven {
    /// Process id in the node's PID namespace.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Time since its start.
    pub age: Duration,
    /// Scheduler state letter.
    pub state: char,
    /// In state D: for how long it has been seen so without having run in between.
    pub waited: Option<Duration>,
    /// Command name: what makes it a candidate.
    pub command: String,
    /// What it may be.
    pub may_be: MayBe,
}

/// What an unproven process may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayBe {
    /// A shim, by its name.
    Shim,
    /// A network plugin, since the runtime has called it.
    NetworkPlugin,
    /// `runc` or its kin, by its name or by what has called it.
    RuntimeClient,
    /// Something that no fault is about.
    Other,
}

/// The first process of a container that is being made: `runc init`, which becomes the container's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitSeen {
    /// Process id in the node's PID namespace.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Time since its start.
    pub age: Duration,
    /// The id that its shim serves.
    pub sandbox_id: String,
}

/// What one look has left out, since there was more than it takes in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Why not all file locks that plugins hold or wait for are known.
    pub locks: Option<String>,
    /// Why processes of the node's own, or children of those, may be missing: none of them is gone because it is not in the table.
    pub processes: Option<String>,
    /// Why first processes of containers that are being made may be missing.
    pub inits: Option<String>,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [&self.processes, &self.inits, &self.locks];
        let all: Vec<&str> = all.into_iter().filter_map(Option::as_deref).collect();
        f.write_str(&all.join("; "))
    }
}

/// One look at the process table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessTable {
    /// Processes of interest only.
    pub processes: Vec<ProcessSeen>,
    /// Candidates that could not be proven.
    pub unproven: Vec<Unproven>,
    /// Containers that are being made for longer than a moment.
    pub inits: Vec<InitSeen>,
    /// What there was no room for.
    pub left_out: LeftOut,
    /// Number of the look, rising by one.
    pub round: u64,
}
