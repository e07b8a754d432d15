//! What can be wrong with a node, in closed sets: the vocabulary that probe, controller, policies and
//! people share.

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kinds of fault this version knows how to name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FaultType {
    /// A container whose sandbox the runtime no longer knows, and that nothing else will remove.
    OrphanContainer,
    /// A shim process that belongs to no ready sandbox and no running container.
    LeakedShim,
    /// One container whose task does not answer while the runtime itself does.
    HungContainer,
    /// A CNI plugin process older than its bound.
    NetworkPluginHung,
    /// The runtime's socket cannot be connected to, or does not answer a version call.
    RuntimeUnreachable,
    /// The runtime answers, but its list of sandboxes does not.
    RuntimeListHung,
    /// The runtime lists its sandboxes, but its list of containers does not come back: one blocked update holds it up.
    RuntimeUpdateBlocked,
    /// A container that is listed as running and whose process is gone.
    LostTask,
    /// More than one ready sandbox of one pod.
    DuplicateSandbox,
    /// A container whose removal has failed and that stays (Docker).
    ContainerStuck,
    /// No kubelet process completes its start on this node.
    KubeletDown,
    /// A kubelet runs, and its start does not come to an end: it waits for something of the runtime (found by the
    /// controller).
    KubeletStartBlocked,
    /// Kubelets complete their start and end, again and again.
    KubeletCrashLoop,
    /// The kubelet says that it has not been able to look at its pods for minutes (found by the controller).
    PlegStalled,
    /// A file system of the kubelet's or the runtime's folders takes no writes.
    ReadOnlyFilesystem,
    /// A file system of the kubelet's or the runtime's folders has next to no bytes or inodes left.
    DiskFull,
    /// The node, its pods together, or a daemon is about to be refused new processes and threads.
    PidExhaustion,
    /// The node or a daemon is about to be refused new open files.
    FdExhaustion,
    /// A process of the runtime or the kubelet waits in the kernel for something that does not come.
    UninterruptibleProcess,
    /// A container that is being made is frozen, and with it the call that makes it.
    FrozenCgroup,
    /// Ended containers pile up until the runtime's list of them is too large to be read.
    ExitedContainerPileUp,
    /// The certificate by which the kubelet proves who it is was not renewed in time.
    ClientCertificateExpiring,
    /// A DaemonSet's pod on this node makes no progress (found by the controller).
    StuckDaemonSetPod,
    /// The probe has missed its promised heartbeats (found by the controller).
    ProbeSilent,
}

impl FaultType {
    /// All kinds, most urgent to look at first when severities are equal.
    pub const ALL: [Self; 24] = [
        Self::OrphanContainer,
        Self::HungContainer,
        Self::NetworkPluginHung,
        Self::LeakedShim,
        Self::LostTask,
        Self::DuplicateSandbox,
        Self::ContainerStuck,
        Self::RuntimeUpdateBlocked,
        Self::RuntimeListHung,
        Self::RuntimeUnreachable,
        Self::KubeletDown,
        Self::KubeletStartBlocked,
        Self::KubeletCrashLoop,
        Self::PlegStalled,
        Self::ReadOnlyFilesystem,
        Self::DiskFull,
        Self::PidExhaustion,
        Self::FdExhaustion,
        Self::UninterruptibleProcess,
        Self::FrozenCgroup,
        Self::ExitedContainerPileUp,
        Self::ClientCertificateExpiring,
        Self::StuckDaemonSetPod,
        Self::ProbeSilent,
    ];

    /// The name as it stands in objects, events and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OrphanContainer => "OrphanContainer",
            Self::LeakedShim => "LeakedShim",
            Self::HungContainer => "HungContainer",
            Self::NetworkPluginHung => "NetworkPluginHung",
            Self::RuntimeUnreachable => "RuntimeUnreachable",
            Self::RuntimeListHung => "RuntimeListHung",
            Self::RuntimeUpdateBlocked => "RuntimeUpdateBlocked",
            Self::LostTask => "LostTask",
            Self::DuplicateSandbox => "DuplicateSandbox",
            Self::ContainerStuck => "ContainerStuck",
            Self::KubeletDown => "KubeletDown",
            Self::KubeletStartBlocked => "KubeletStartBlocked",
            Self::KubeletCrashLoop => "KubeletCrashLoop",
            Self::PlegStalled => "PlegStalled",
            Self::ReadOnlyFilesystem => "ReadOnlyFilesystem",
            Self::DiskFull => "DiskFull",
            Self::PidExhaustion => "PidExhaustion",
            Self::FdExhaustion => "FdExhaustion",
            Self::UninterruptibleProcess => "UninterruptibleProcess",
            Self::FrozenCgroup => "FrozenCgroup",
            Self::ExitedContainerPileUp => "ExitedContainerPileUp",
            Self::ClientCertificateExpiring => "ClientCertificateExpiring",
            Self::StuckDaemonSetPod => "StuckDaemonSetPod",
            Self::ProbeSilent => "ProbeSilent",
        }
    }

    /// Whether the runtime as a whole does not answer: nobody can say then what else hangs in it.
    pub const fn is_of_runtime(self) -> bool {
        matches!(self, Self::RuntimeUnreachable | Self::RuntimeListHung | Self::RuntimeUpdateBlocked)
    }

    /// Whether it is about the node itself. Such a thing comes and goes slowly, or stands for days: nothing is looked at
    /// more often because of it.
    pub const fn is_of_host(self) -> bool {
        matches!(
            self,
            Self::ReadOnlyFilesystem
                | Self::DiskFull
                | Self::PidExhaustion
                | Self::FdExhaustion
                | Self::UninterruptibleProcess
                | Self::FrozenCgroup
                | Self::ExitedContainerPileUp
                | Self::ClientCertificateExpiring
        )
    }

    /// Whether the controller finds it (from API state), not the probe.
    pub const fn is_cluster_fault(self) -> bool {
        matches!(self, Self::KubeletStartBlocked | Self::PlegStalled | Self::StuckDaemonSetPod | Self::ProbeSilent)
    }
}

impl fmt::Display for FaultType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How much harm a fault does, lowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Severity {
    /// Worth knowing; nothing is lost yet.
    #[default]
    Low,
    /// One pod is affected, or the next restart of a component will suffer.
    Medium,
    /// Pods of the node are affected now.
    High,
    /// The node cannot do its work.
    Critical,
}

impl Severity {
    /// The name as it stands in objects and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "Low",
            Self::Medium => "Medium",
            Self::High => "High",
            Self::Critical => "Critical",
        }
    }
}

/// How sure we are of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FaultState {
    /// Seen, not yet confirmed. Nothing may act on it.
    Suspected,
    /// Seen often enough, for long enough, past the grace in which Kubernetes heals it alone.
    Confirmed,
    /// A clean look after a confirmation; gone when the next clean look agrees.
    Clearing,
}

/// A pod, by the three things that identify it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// Namespace of the pod.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the pod.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Uid of the pod: a pod of the same name with another uid is another pod.
    #[schemars(length(max = 64))]
    pub uid: String,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What kind of object a fault is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SubjectKind {
    /// A container of a pod.
    Container,
    /// A pod sandbox.
    Sandbox,
    /// A shim process that belongs to no living object.
    Shim,
    /// A CNI plugin process.
    NetworkPlugin,
    /// The container runtime of the node.
    Runtime,
    /// The kubelet of the node.
    Kubelet,
    /// A pod as the API shows it.
    Pod,
    /// The probe of the node.
    Probe,
    /// A file system, by the folders that lie in it.
    Filesystem,
    /// A process that plays a part in the runtime's or the kubelet's work.
    Process,
    /// The node itself.
    Host,
}

/// The object a fault is about. Identity lives here, never in a pid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// What kind of object it is, as a word from a closed set.
    pub kind: SubjectKind,
    /// Full id under the runtime (64 hex digits), where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub id: Option<String>,
    /// Name of the container in its pod, or of the plugin, unit or runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// The pod it belongs to, where it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// Id of the sandbox it belongs to (or belonged to: an orphan's is missing from the runtime).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub sandbox_id: Option<String>,
    /// Path of the file whose lock it holds, where it holds one that others wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub lock: Option<String>,
}

impl Subject {
    /// A subject of this kind with nothing else known yet.
    pub const fn of(kind: SubjectKind) -> Self {
        Self { kind, id: None, name: None, pod: None, sandbox_id: None, lock: None }
    }
}

impl fmt::Display for Subject {
    /// One short phrase for tables and events: `container log of kube-system/fluentd-x7k2p`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            SubjectKind::Container => "container",
            SubjectKind::Sandbox => "sandbox",
            SubjectKind::Shim => "shim",
            SubjectKind::NetworkPlugin => "network plugin",
            SubjectKind::Runtime => "runtime",
            SubjectKind::Kubelet => "kubelet",
            SubjectKind::Pod => "pod",
            SubjectKind::Probe => "probe",
            SubjectKind::Filesystem => "file system of",
            SubjectKind::Process => "process",
            SubjectKind::Host => "host",
        };
        f.write_str(kind)?;
        match (&self.name, &self.id) {
            (Some(name), _) => write!(f, " {name}")?,
            (None, Some(id)) => write!(f, " {}", id.get(..12).unwrap_or(id))?,
            (None, None) => {}
        }
        if let Some(pod) = &self.pod {
            if self.kind == SubjectKind::Pod {
                write!(f, " {pod}")?;
            } else {
                write!(f, " of {pod}")?;
            }
        }
        if let Some(lock) = &self.lock {
            write!(f, " holding {lock}")?;
        }
        Ok(())
    }
}

/// The part a process plays, proven from its executable, arguments and parent, never from its name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    /// `containerd-shim-runc-v2` or its kin.
    Shim,
    /// `runc create` and its kin, a child of a shim or of the runtime.
    RuntimeClient,
    /// A plugin binary from the CNI directory, a child of the runtime.
    NetworkPlugin,
}

/// One process at one moment: a pid means nothing without the start time beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRef {
    /// The part it plays: `Shim`, `RuntimeClient` (`runc create` and its kin) or `NetworkPlugin`.
    pub role: Role,
    /// Process id in the node's own PID namespace.
    #[schemars(range(min = 2, max = 4_194_304))]
    pub pid: i32,
    /// Start time in clock ticks since boot (field 22 of /proc/PID/stat).
    pub start_ticks: u64,
    /// Scheduler state letter (R, S, D, T, Z …) when last looked at.
    #[schemars(length(max = 1))]
    pub state: String,
    /// Kernel function it waits in, where the kernel tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub wchan: Option<String>,
    /// Command name (at most 15 bytes, as the kernel keeps it).
    #[schemars(length(max = 64))]
    pub command: String,
}

/// What an act would touch: resolved again by the executor on the node, which has the last word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The one process that holds everything up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRef>,
    /// Full id of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub container_id: Option<String>,
    /// Full id of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub sandbox_id: Option<String>,
    /// The pod, by namespace, name and uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// Path of the file whose lock the process holds: one that let go of it since is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub lock: Option<String>,
}

/// Most evidence lines a fault carries.
pub const MAX_EVIDENCE: usize = 8;
/// Most faults a report carries; the least severe are left out first, and the report says how many.
pub const MAX_FAULTS: usize = 64;
/// Longest message or evidence line in bytes.
pub const MAX_LINE: usize = 512;

/// One fault as reported: what, how sure, since when, on what evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// Stable identity on this node: kind and subject, hashed. It survives a change of pid.
    #[schemars(length(max = 80))]
    pub id: String,
    /// What is wrong, as a word from a closed set.
    #[serde(rename = "type")]
    pub kind: FaultType,
    /// How much harm it does: Low, Medium (one pod, or the next restart), High (pods now) or Critical (the node).
    pub severity: Severity,
    /// How sure we are: Suspected (nothing acts on it), Confirmed, or Clearing (seen clean once).
    pub state: FaultState,
    /// The object it is about.
    pub subject: Subject,
    /// What an act would touch.
    #[serde(default)]
    pub target: Target,
    /// One sentence: what was found, and what it means.
    #[schemars(length(max = 512))]
    pub message: String,
    /// What it does to the node or its pods.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub impact: String,
    /// When it was first seen, by the observer's wall clock (for people; no rule uses it).
    pub first_seen: Timestamp,
    /// Seconds since it was first seen, by the observer's monotonic clock.
    #[serde(default)]
    pub for_seconds: u64,
    /// How many looks in a row have seen it.
    #[serde(default)]
    pub confirmations: u32,
    /// Seconds since the last look at it, at the moment of this report.
    #[serde(default)]
    pub look_age_seconds: u64,
    /// What was seen, one fact a line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 512)))]
    pub evidence: Vec<String>,
    /// Name of the bundle that the probe has collected of it and keeps on the node: `nrh evidence NODE` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 120))]
    pub evidence_bundle: Option<String>,
}

impl Fault {
    /// The stable id of a fault of this kind about the object named by `key`.
    ///
    /// `key` is the pod uid, container id, sandbox id or lock path: whatever stays the same for as long as
    /// it is the same fault.
    pub fn identity(kind: FaultType, key: &str) -> String {
        format!("{}-{}", kind.as_str().to_ascii_lowercase(), crate::core::text::short_hash(key))
    }

    /// Whether it is about this pod, as its subject or as what an act would touch.
    pub fn is_about_pod(&self, uid: &str) -> bool {
        [&self.subject.pod, &self.target.pod].into_iter().flatten().any(|pod| pod.uid == uid)
    }

    /// Most severe first, then by kind and id: the order in which faults are shown and healed.
    pub fn by_urgency(a: &Self, b: &Self) -> std::cmp::Ordering {
        b.severity.cmp(&a.severity).then(a.kind.cmp(&b.kind)).then_with(|| a.id.cmp(&b.id))
    }
}
