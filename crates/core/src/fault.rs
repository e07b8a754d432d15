//! What can be wrong with a node, in closed sets: the words that probe, controller, policies and people share.

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod subject;

pub use subject::{ConditionStatus, Daemon, PodRef, ProcessRef, Role, Subject, SubjectKind, Target};

// What is true of each kind stands in its file below `faults/`.
crate::named! {
    /// The kinds of fault that this version can name. Most urgent first among faults of equal severity.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
    // Else the definition shows this text in place of that of each optional field.
    #[schemars(description = "")]
    pub enum FaultType {
        /// A container whose sandbox the runtime no longer knows, and that nothing else will remove.
        OrphanContainer,
        /// A shim process that belongs to no ready sandbox and no running container.
        LeakedShim,
        /// A stopped shim without anything alive below it, beside a runtime that does not answer: it may be what keeps the
        /// runtime from coming up.
        UnresponsiveShim,
        /// One container whose task does not answer while the runtime itself does.
        HungContainer,
        /// A CNI plugin process older than its bound.
        NetworkPluginHung,
        /// `runc create` or its kin at work for longer than anybody waits for it.
        RuntimeClientHung,
        /// The runtime says that its network is not ready.
        NetworkNotReady,
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
        /// A sandbox that is listed and that the runtime does not know when asked for it (Docker).
        GhostSandbox,
        /// A container whose removal has failed (Docker), or that neither starts nor goes.
        ContainerStuck,
        /// Processes in the control group of a pod's container that the runtime does not know.
        UntrackedPodProcess,
        /// No kubelet process completes its start on this node.
        KubeletDown,
        /// A kubelet runs, and its start does not come to an end: it waits for something of the runtime (found by the
        /// controller).
        KubeletStartBlocked,
        /// Kubelets complete their start and end, again and again.
        KubeletCrashLoop,
        /// The kubelet says that it has not been able to relist its pods for minutes (found by the controller).
        PlegStalled,
        /// The kubelet takes long for each relist of its pods, and does not say so.
        PlegSlow,
        /// The kubelet's sync loop stands still, by its own check, while the runtime answers.
        SyncLoopStalled,
        /// A file system of the kubelet's or the runtime's folders takes no writes.
        ReadOnlyFilesystem,
        /// A file system of the kubelet's or the runtime's folders has next to no bytes or inodes left.
        DiskFull,
        /// The file system in memory in which the runtime keeps its sockets and bundles has next to no bytes or inodes left.
        RunFilesystemFull,
        /// The node, its pods together, or a daemon is about to be refused new processes and threads.
        PidExhaustion,
        /// The node or a daemon is about to be refused new open files.
        FdExhaustion,
        /// systemd does not answer over the node's system bus.
        DbusUnresponsive,
        /// A process of the runtime or the kubelet waits in the kernel for something that does not come.
        UninterruptibleProcess,
        /// A container that is being made is frozen, and with it the call that makes it.
        FrozenCgroup,
        /// Ended containers pile up until the runtime's list of them is too large to be read.
        ExitedContainerBacklog,
        /// The certificate by which the kubelet proves who it is was not renewed in time.
        ClientCertificateExpiring,
        /// The node's clock and the API server's are far apart.
        ClockUnsynchronised,
        /// A DaemonSet's pod on this node makes no progress (found by the controller).
        StuckDaemonSetPod,
        /// A condition that another tool writes on the Node stands as a policy asks for it (found by the controller).
        NodeCondition,
        /// The node's `Ready` changes again and again, or the same faults come and go (found by the controller).
        NodeFlapping,
        /// A collector of the probe cannot check.
        ProbeDegraded,
        /// The probe has missed its promised heartbeats (found by the controller).
        ProbeNotReporting,
    }
}

crate::named! {
    /// Kinds of fault that belong together, as policies name them. `NodeCondition` is in none: a policy asks for it by type and status.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FaultGroup {
        /// The container runtime and its network as a whole.
        Runtime,
        /// The kubelet.
        Kubelet,
        /// The node itself, its operating system and its probe.
        Node,
        /// One pod, container or sandbox.
        Pods,
    }
}

impl fmt::Display for FaultType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

crate::named! {
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
}

/// How sure we are of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FaultState {
    /// Seen, not yet confirmed. Nothing may act on it.
    Suspected,
    /// Seen often enough, for long enough, past the grace in which Kubernetes resolves it alone.
    Confirmed,
    /// A clean check after a confirmation; gone when the next clean check agrees.
    Clearing,
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
    /// Identity of the fault on this node: a hash of its type and subject. It does not depend on a process id.
    #[schemars(length(max = 80))]
    pub id: String,
    /// What is wrong, as a word from a closed set.
    #[serde(rename = "type")]
    pub kind: FaultType,
    /// Harm: Low, Medium (one pod, or the next restart of the kubelet), High (pods now) or Critical (the node).
    pub severity: Severity,
    /// How sure we are: Suspected (it starts no action), Confirmed, or Clearing (absent in one check).
    pub state: FaultState,
    /// The object it is about.
    pub subject: Subject,
    /// What an action would change.
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
    pub duration_seconds: u64,
    /// How many checks in a row have seen it.
    #[serde(default)]
    pub confirmations: u32,
    /// Seconds since its last check, at the moment of this report.
    #[serde(default)]
    pub check_age_seconds: u64,
    /// What was seen, one fact a line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 512)))]
    pub evidence: Vec<String>,
    /// Name of the evidence bundle that the probe keeps on the node: `nrh evidence NODE` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 120))]
    pub evidence_bundle: Option<String>,
}

impl fmt::Display for Fault {
    /// What it is and about what, for a sentence: `HungContainer (container log of kube-system/fluentd-x7k2p)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind, self.subject)
    }
}

impl Fault {
    /// The stable id of a fault of this kind about the object named by `key`.
    ///
    /// `key` is the pod uid, container id, sandbox id or lock path: whatever stays the same for as long as
    /// it is the same fault.
    pub fn identity(kind: FaultType, key: &str) -> String {
        format!("{}-{}", kind.as_str().to_ascii_lowercase(), crate::text::short_hash(key))
    }

    /// Whether it is about this pod, as its subject or as what an act would touch.
    pub fn is_about_pod(&self, uid: &str) -> bool {
        [&self.subject.pod, &self.target.pod].into_iter().flatten().any(|pod| pod.uid == uid)
    }

    /// Most severe first, then by kind and id: the order in which faults are shown and resolved.
    pub fn by_urgency(a: &Self, b: &Self) -> std::cmp::Ordering {
        b.severity.cmp(&a.severity).then(a.kind.cmp(&b.kind)).then_with(|| a.id.cmp(&b.id))
    }

    /// The fault that explains another one: the lowest rank, then the most urgent. A fault without a rank explains nothing.
    pub(crate) fn likely_cause<'a>(faults: &[&'a Self], rank: impl Fn(&Self) -> Option<u8>) -> Option<&'a Self> {
        let ranked = faults.iter().filter_map(|fault| Some((rank(fault)?, *fault)));
        ranked.min_by(|a, b| a.0.cmp(&b.0).then_with(|| Self::by_urgency(a.1, b.1))).map(|(_, fault)| fault)
    }

    /// The end of a sentence about a fault with this cause, which `word` introduces.
    pub(crate) fn because(cause: Option<&Self>, word: &str) -> String {
        let Some(cause) = cause else { return "; the probe names no cause on the node".to_owned() };
        let sure = if cause.state == FaultState::Suspected { " (suspected)" } else { "" };
        format!("; {word}: {}: {}{sure}", cause.kind, cause.subject)
    }
}
