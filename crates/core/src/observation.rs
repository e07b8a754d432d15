//! What the node's collectors saw: plain values, one look per collector. `diagnose` reads nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fault::PodRef;

mod host;
mod port;
mod processes;

pub use host::{
    BusSeen, BusStep, ClockSeen, Credential, DaemonSeen, DisksSeen, FilesystemSeen, FrozenSeen, HostSeen, LimitSeen,
    Owner, Pressure, Space, ThreadWaiting, UntrackedSeen, Usage,
};

pub use port::{PortSeen, RelistsSeen};
pub use processes::{InitSeen, LeftOut, MayBe, Part, ProcessSeen, ProcessTable, Unproven, answers_nobody};

/// The last answer of one collector. Ages are by the node's monotonic clock, at the moment of diagnosis.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading<T> {
    /// Not tried yet.
    Never,
    /// An answer.
    Done {
        /// What was answered.
        value: T,
        /// Time since the answer came.
        age: Duration,
        /// Time it took; of a task that gave no answer, for how long that is certain.
        took: Duration,
    },
    /// The call is still out, past its deadline. Nothing else is sent until it comes back.
    Hung {
        /// Time since it was sent, without what this process was held up before the deadline.
        out: Duration,
    },
    /// It answered with an error, or the answer was cut off or too large: no verdict.
    Failed {
        /// What it said, bounded.
        error: String,
        /// Time since the error.
        age: Duration,
    },
    /// This node lacks what is needed to look (socket missing, permission denied). Unknown, never sick.
    Blind {
        /// What is missing.
        reason: String,
    },
}

impl<T> Reading<T> {
    /// The answer, where there is one.
    pub const fn value(&self) -> Option<&T> {
        match self {
            Self::Done { value, .. } => Some(value),
            _ => None,
        }
    }
}

/// One pod sandbox in the runtime's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxSeen {
    /// Full id.
    pub id: String,
    /// Whether the runtime calls it ready.
    pub ready: bool,
    /// The pod it is for, from its metadata.
    pub pod: PodRef,
    /// Attempt number: a higher one of the same pod is newer.
    pub attempt: u32,
}

/// State of a container in the runtime's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerState {
    /// Made, not started.
    Created,
    /// Running.
    Running,
    /// Ended.
    Exited,
    /// The runtime does not know.
    Unknown,
}

/// One container in the runtime's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSeen {
    /// Full id.
    pub id: String,
    /// Sandbox it says it belongs to.
    pub sandbox_id: String,
    /// Name in its pod.
    pub name: String,
    /// The pod, from the kubelet's labels; `None` for containers that are not the kubelet's.
    pub pod: Option<PodRef>,
    /// State.
    pub state: ContainerState,
    /// Attempt number.
    pub attempt: u32,
}

/// One round of lists: sandboxes, containers, sandboxes again, so that neither order of a race misleads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRound {
    /// First list of sandboxes.
    pub sandboxes: Vec<SandboxSeen>,
    /// List of containers.
    pub containers: Vec<ContainerSeen>,
    /// Time from the moment at which the list of containers was asked for to the end of the round.
    pub containers_before: Duration,
    /// Ids in the second list of sandboxes.
    pub sandboxes_again: Vec<String>,
    /// Size in bytes of the larger of the two answers, sandboxes and containers, as it was sent.
    pub answer_bytes: usize,
    /// Per suspect container (no listed sandbox): what a direct question said.
    pub rechecks: BTreeMap<String, OrphanRecheck>,
    /// Per container that is created or of an unknown state: for how long it has been listed so.
    pub unfinished: BTreeMap<String, Duration>,
    /// Per sandbox that is not ready and that was asked for in this round (Docker): whether the runtime knows it when
    /// asked by id; `None` = no answer.
    pub asked_sandboxes: BTreeMap<String, Option<bool>>,
    /// Containers of the kubelet whose removal was begun and has not ended. `None` where that could not be asked, or the
    /// runtime knows no such state.
    pub removals: Option<Vec<RemovalSeen>>,
    /// Number of the round, rising by one: two diagnoses of one round count once.
    pub round: u64,
}

impl ListRound {
    /// Every id in one of the lists, of containers and sandboxes.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        let sandboxes = self.sandboxes.iter().map(|seen| &seen.id).chain(&self.sandboxes_again);
        self.containers.iter().map(|seen| &seen.id).chain(sandboxes).map(String::as_str)
    }
}

/// What the runtime says when asked for a suspect container and its sandbox by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanRecheck {
    /// The container is there and its sandbox is `NotFound`.
    Confirmed,
    /// The container is gone or the sandbox answers: a gap in the list.
    Refuted,
    /// The question itself failed or timed out.
    NoAnswer,
}

/// A container whose removal was begun and has not ended, as Docker lists it (`removing` or `dead`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalSeen {
    /// The container.
    pub container: ContainerSeen,
    /// What Docker says when asked for it by id; `None` = no answer yet.
    pub said: Option<RemovalSaid>,
}

/// What Docker says of a container whose removal was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalSaid {
    /// The removal has failed, with this cause (`State.Dead` and `State.Error`).
    Failed(String),
    /// It is under way, or the container is there again.
    NotFailed,
    /// The container is gone: it was removed.
    Gone,
}

/// What kind of runtime the kubelet uses, once it has told its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuntimeKind {
    /// It has not answered yet.
    #[default]
    Unknown,
    /// containerd: one shim carries a whole pod, and can be asked through containerd.
    Containerd,
    /// Docker, behind cri-dockerd or by its own API: each container has a shim and a lock of its own. Docker answers for
    /// a container from its own memory, unless something holds that lock.
    Docker,
    /// CRI-O: it has no shims, and each container has a lock of its own. From 1.18 on it answers for a running container
    /// from its memory whatever holds that lock.
    CriO,
    /// Another one: no cheap question to it is known to reach a single container.
    Other,
}

impl RuntimeKind {
    /// Whether it answers itself, and without a limit of its own, for a single container: each one stands alone then.
    pub const fn answers_itself(self) -> bool {
        matches!(self, Self::Docker | Self::CriO)
    }

    /// The kind of runtime that calls itself by this name.
    pub fn of(name: &str) -> Self {
        match name {
            "" => Self::Unknown,
            "containerd" => Self::Containerd,
            "docker" => Self::Docker,
            "cri-o" => Self::CriO,
            _ => Self::Other,
        }
    }
}

/// Name, version and readiness the runtime reports of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeSeen {
    /// `containerd`, `docker`, `cri-o`.
    pub name: String,
    /// Version as it reports it.
    pub version: String,
}

/// What the runtime says of its own readiness.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusSeen {
    /// Its network; `None` = this runtime does not say.
    pub network: Option<NetworkSeen>,
}

/// What the runtime says of its network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSeen {
    /// Whether it calls it ready.
    pub ready: bool,
    /// Why not, as a word, bounded.
    pub reason: String,
    /// Why not, in its own words, bounded.
    pub message: String,
}

/// Answer of one task: containerd's native `Tasks/Get`, or Docker's `inspect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskAnswer {
    /// The shim answered.
    Answered,
    /// The shim answered that the task's process has ended.
    Ended,
    /// The shim did not answer inside containerd's own bound or ours.
    NoAnswer,
    /// There is no such task (the container has ended or was never started).
    NotFound,
    /// Docker answered from its own memory that the container runs, and its process is there, or CRI-O from its own: nobody
    /// waits for the container. Of its shim that says nothing.
    DaemonAnswered,
    /// Docker answered from its own memory that the container runs, with a process that is not there.
    ProcessGone,
}

/// One look at the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletSeen {
    /// Its process (pid, start ticks, age), if one runs.
    pub process: Option<(i32, u64, Duration)>,
    /// Whether `/healthz` at the address of its own flags and configuration answered 200.
    pub healthz: Option<bool>,
    /// Why `/healthz` could not be asked, or what it said instead.
    pub note: Option<String>,
    /// Its version by the word of the Node object, if known.
    pub version: Option<String>,
    /// Its settings that matter to what is seen; `None` when none runs.
    pub settings: Option<KubeletSettings>,
    /// Number of the look, rising by one.
    pub round: u64,
}

/// The kubelet's own limit for one call to its runtime, where nothing else is set.
pub const RUNTIME_REQUEST_TIMEOUT: Duration = Duration::from_mins(2);

/// The kubelet's settings on which thresholds depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubeletSettings {
    /// How long it waits for one call to its runtime (`runtimeRequestTimeout`).
    pub request_timeout: Duration,
    /// Whether it takes pods' changes from the runtime's events (feature gate `EventedPLEG`), and lists them seldom.
    pub evented_pleg: bool,
    /// How these are known.
    pub source: SettingsSource,
}

impl Default for KubeletSettings {
    fn default() -> Self {
        Self { request_timeout: RUNTIME_REQUEST_TIMEOUT, evented_pleg: false, source: SettingsSource::Assumed }
    }
}

/// How the kubelet's settings are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum SettingsSource {
    /// Its flags or its files could not be read: what every kubelet ships with is taken.
    #[default]
    Assumed,
    /// Its flags and files were read, and name none of them: what it ships with holds.
    Default,
    /// Its configuration file or a drop-in names one.
    File,
    /// Its command line names one.
    Flags,
}

/// Everything the collectors have, at one moment.
#[derive(Clone, Debug)]
pub struct Observations {
    /// The node's monotonic clock (time since boot): all durations in the tracker are differences of it.
    pub now: Duration,
    /// Version call on a fresh connection.
    pub runtime: Reading<RuntimeSeen>,
    /// What the runtime says of its readiness: a call of its own, since it may wait for network plugins.
    pub status: Reading<StatusSeen>,
    /// What kind of runtime has answered last, also while it does not answer now.
    pub kind: RuntimeKind,
    /// The list round.
    pub lists: Reading<ListRound>,
    /// How long the sandbox list of an unfinished round has been out, if that is the call that hangs.
    pub sandbox_list_hung: bool,
    /// Whether the last round failed since a list is larger than what the kubelet and we read.
    pub list_too_large: bool,
    /// Last answer per container id, for the tasks asked so far.
    pub tasks: BTreeMap<String, Reading<TaskAnswer>>,
    /// The process table.
    pub processes: Reading<ProcessTable>,
    /// The kubelet.
    pub kubelet: Reading<KubeletSeen>,
    /// The kernel's limits, and the daemons' threads.
    pub host: Reading<HostSeen>,
    /// What lies on the node's disks.
    pub disks: Reading<DisksSeen>,
    /// The kubelet's own port.
    pub port: Reading<PortSeen>,
    /// The node's system bus, and systemd on it.
    pub bus: Reading<BusSeen>,
    /// The node's clock beside the API server's.
    pub clock: Reading<ClockSeen>,
    /// How long processes wait for the node's resources.
    pub pressure: Pressure,
}
