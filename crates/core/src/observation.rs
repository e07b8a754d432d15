//! What the node's collectors saw: plain values, one reading per collector. `diagnose` reads nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fault::PodRef;
use super::human_duration::seconds;

mod host;
mod port;
mod processes;

pub use host::{
    BusSeen, BusStep, ClockSeen, Credential, DaemonSeen, DisksSeen, FilesystemSeen, FrozenSeen, HostSeen, LimitSeen,
    Owner, Pressure, Space, ThreadWaiting, UntrackedSeen, Usage,
};

pub use port::{PortSeen, RelistsSeen};
pub use processes::{
    InitSeen, LeftOut, PossibleRole, ProcessRole, ProcessSeen, ProcessTable, UnprovenProcess, is_unresponsive_state,
};

/// The last answer of one collector. Ages are by the node's monotonic clock, at the moment of diagnosis.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Reading<T> {
    /// Not tried yet.
    #[default]
    Never,
    /// An answer.
    Done {
        /// What was answered.
        value: T,
        /// Time since the answer came.
        age: Duration,
        /// Time it took. For a task that did not answer: how long that is certain.
        took: Duration,
    },
    /// The call is still pending, past its deadline. The collector sends nothing else until the call returns.
    Hung {
        /// Time since it was sent, without the time for which this process was suspended before the deadline.
        out: Duration,
    },
    /// The call failed, or the answer was cut off or too large. There is no verdict.
    Failed {
        /// The error, bounded.
        error: String,
        /// Time since the error.
        age: Duration,
    },
    /// The node lacks what the check needs (socket missing, permission denied). The result is unknown, never faulty.
    Unavailable {
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
    /// Full ID.
    pub id: String,
    /// Whether the runtime reports it as ready.
    pub ready: bool,
    /// Its pod, from its metadata.
    pub pod: PodRef,
    /// Attempt number. Of two sandboxes of one pod, the higher number is newer.
    pub attempt: u32,
}

/// State of a container in the runtime's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerState {
    /// Created, not started.
    Created,
    /// Running.
    Running,
    /// Ended.
    Exited,
    /// The runtime does not know the state.
    Unknown,
}

/// One container in the runtime's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSeen {
    /// Full ID.
    pub id: String,
    /// Sandbox that the container names.
    pub sandbox_id: String,
    /// Name in its pod.
    pub name: String,
    /// The pod, from the kubelet's labels. `None`: the container is not the kubelet's.
    pub pod: Option<PodRef>,
    /// State.
    pub state: ContainerState,
    /// Attempt number.
    pub attempt: u32,
}

/// One round of lists: sandboxes, containers, sandboxes again. So neither order of a race misleads the diagnosis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRound {
    /// First list of sandboxes.
    pub sandboxes: Vec<SandboxSeen>,
    /// List of containers.
    pub containers: Vec<ContainerSeen>,
    /// Time from the request of the container list to the end of the round.
    pub containers_before: Duration,
    /// Ids in the second list of sandboxes.
    pub sandboxes_again: Vec<String>,
    /// Size in bytes of the larger of the two answers (sandboxes, containers) on the wire.
    pub answer_bytes: usize,
    /// For each suspect container (no listed sandbox): the answer to a direct query.
    pub orphan_checks: BTreeMap<String, OrphanCheck>,
    /// For each container in state created or unknown: how long it has been listed like this.
    pub unfinished: BTreeMap<String, Duration>,
    /// For each sandbox that is not ready and was queried now (Docker): whether the runtime knows it by id. `None`: no answer.
    pub asked_sandboxes: BTreeMap<String, Option<bool>>,
    /// Containers of the kubelet with a removal that has started and not ended. `None`: this could not be queried, or the runtime
    /// has no such state.
    pub removals: Option<Vec<RemovalSeen>>,
    /// Number of the round, increasing by one. Two diagnoses of one round count once.
    pub round: u64,
}

impl ListRound {
    /// Every id in the lists, of containers and sandboxes.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        let sandboxes = self.sandboxes.iter().map(|seen| &seen.id).chain(&self.sandboxes_again);
        self.containers.iter().map(|seen| &seen.id).chain(sandboxes).map(String::as_str)
    }
}

/// The answer of the runtime to a query by id for a suspect container and its sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanCheck {
    /// The container exists and its sandbox is `NotFound`.
    Confirmed,
    /// The container is gone, or the runtime knows the sandbox: the list had a gap.
    Refuted,
    /// The query failed or timed out.
    NoAnswer,
}

/// A container with a removal that has started and not ended, as Docker lists it (`removing` or `dead`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalSeen {
    /// The container.
    pub container: ContainerSeen,
    /// Docker's answer to a query by id. `None`: no answer yet.
    pub state: Option<RemovalState>,
}

/// What Docker says of a container with a started removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalState {
    /// The removal has failed, with this cause (`State.Dead` and `State.Error`).
    Failed(String),
    /// The removal continues, or the container exists again.
    NotFailed,
    /// The container is gone: it was removed.
    Gone,
}

/// The type of the kubelet's runtime, once it has reported its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuntimeKind {
    /// It has not answered yet.
    #[default]
    Unknown,
    /// containerd: one shim serves a whole pod, and can be queried through containerd.
    Containerd,
    /// Docker, behind cri-dockerd or by its own API. Each container has its own shim and its own lock. Docker answers for a
    /// container from its memory, unless something holds that lock.
    Docker,
    /// CRI-O. It has no shims, and each container has its own lock. From 1.18 on it answers for a running container from its
    /// memory, whatever holds that lock.
    CriO,
    /// Another runtime. No cheap query is known that reaches a single container.
    Other,
}

impl RuntimeKind {
    /// Whether it answers by itself, without a timeout of its own, for a single container: then each container is independent.
    pub const fn answers_itself(self) -> bool {
        matches!(self, Self::Docker | Self::CriO)
    }

    /// The runtime type with this name.
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

/// Name and version that the runtime reports of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeSeen {
    /// `containerd`, `docker`, `cri-o`.
    pub name: String,
    /// Version as the runtime reports it.
    pub version: String,
}

/// What the runtime reports about its own readiness.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusSeen {
    /// Its network. `None`: this runtime does not report it.
    pub network: Option<NetworkSeen>,
}

/// What the runtime reports about its network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSeen {
    /// Whether it reports the network as ready.
    pub ready: bool,
    /// Why it is not ready, as one word, bounded.
    pub reason: String,
    /// Why it is not ready, in the runtime's words, bounded.
    pub message: String,
}

/// The answer of one task: containerd's native `Tasks/Get`, or Docker's `inspect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskAnswer {
    /// The shim answered.
    Answered,
    /// The shim answered that the task's process has ended.
    Ended,
    /// The shim did not answer within containerd's timeout or ours.
    NoAnswer,
    /// There is no such task (the container has ended or was never started).
    NotFound,
    /// Docker answered from its memory that the container runs, and its process exists; or CRI-O answered from its memory.
    /// Nothing blocks the container. The answer says nothing about its shim.
    DaemonAnswered,
    /// Docker answered from its memory that the container runs, but its process does not exist.
    ProcessGone,
}

/// One check of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletSeen {
    /// Its process (pid, start ticks, age), if one runs.
    pub process: Option<(i32, u64, Duration)>,
    /// Whether `/healthz` answered 200 at the address in the kubelet's flags and configuration.
    pub healthz: Option<bool>,
    /// Why `/healthz` could not be queried, or what it said instead.
    pub note: Option<String>,
    /// Its version from the Node object, if known.
    pub version: Option<String>,
    /// Its settings that thresholds depend on. `None`: no kubelet runs.
    pub settings: Option<KubeletSettings>,
    /// Number of the check, increasing by one.
    pub round: u64,
}

/// The kubelet's timeout for one call to its runtime, unless configured.
pub const RUNTIME_REQUEST_TIMEOUT: Duration = Duration::from_mins(2);

/// Settings of the kubelet on which thresholds depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletSettings {
    /// How they are known: Flags or File name them; Default: neither does; Assumed: neither could be read.
    pub source: SettingsSource,
    /// The kubelet's runtimeRequestTimeout, in seconds.
    #[serde(rename = "requestTimeoutSeconds", with = "seconds")]
    #[schemars(with = "u64")]
    pub request_timeout: Duration,
    /// Whether it takes pods' changes from the runtime's events (feature gate `EventedPLEG`).
    #[serde(default)]
    pub evented_pleg: bool,
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

/// All readings of the collectors, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    /// The node's monotonic clock (time since boot). All durations in the tracker are differences of it.
    pub now: Duration,
    /// Version call on a fresh connection.
    pub runtime: Reading<RuntimeSeen>,
    /// What the runtime reports about its readiness. This is a separate call, because it may wait for network plugins.
    pub status: Reading<StatusSeen>,
    /// The runtime type that has answered last, also while it does not answer now.
    pub kind: RuntimeKind,
    /// The list round.
    pub lists: Reading<ListRound>,
    /// Whether the sandbox list is the call of an unfinished round that hangs.
    pub sandbox_list_hung: bool,
    /// Whether the last round failed because a list is larger than the kubelet and the probe read.
    pub list_too_large: bool,
    /// Last answer for each container id, of the tasks queried so far.
    pub tasks: BTreeMap<String, Reading<TaskAnswer>>,
    /// The process table.
    pub processes: Reading<ProcessTable>,
    /// The kubelet.
    pub kubelet: Reading<KubeletSeen>,
    /// The kernel's limits and the daemons' threads.
    pub host: Reading<HostSeen>,
    /// What the node's disks hold.
    pub disks: Reading<DisksSeen>,
    /// The kubelet's own port.
    pub port: Reading<PortSeen>,
    /// The node's system bus, and systemd on it.
    pub bus: Reading<BusSeen>,
    /// The node's clock, compared to the API server's.
    pub clock: Reading<ClockSeen>,
    /// How long processes wait for the node's resources.
    pub pressure: Pressure,
}
