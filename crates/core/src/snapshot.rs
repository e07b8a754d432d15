//! Everything a decision is made from, at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::command::{ActionCommand, Outcome};
use super::external_condition::{ExternalCondition, ObservedCondition};
use super::fault::{Fault, FaultType, PodRef};
use super::flap::FlapView;
use super::hand_off::{HandOffView, TemplateRef};
use super::kubelet::complaint::Complaint;
use super::manual::OpenManualRequest;
use super::matching::PodSeen;
use super::observation::KubeletSettings;
use super::policy::{Daemon, Policy};
use super::remediation::{Remediation, Stopped};
use super::taint::{KeyedTaint, TaintEffect, TaintMark};

pub use super::tri_state::TriState;

/// Vetoes (`NodeView::vetoes`) that say that the node is being emptied, or goes down: the conditions of KEP-5683 for that.
pub const SHUTTING_DOWN: [&str; 2] = ["condition DrainInProgress", "condition GracefulNodeShutdownInProgress"];

/// A Node as far as a decision needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Uid of the object.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Condition `Ready`.
    pub ready: TriState,
    /// Since when it stands so, by the node's clock.
    pub ready_since: Option<Timestamp>,
    /// What the kubelet complains of in it.
    pub complaint: Option<Complaint>,
    /// When the kubelet last wrote the node's status, by the node's clock: the newest of the times of its conditions.
    pub status_at: Option<Timestamp>,
    /// The kubelet's version.
    pub kubelet_version: Option<String>,
    /// The container runtime with its version, such as `containerd://1.7.24`.
    pub runtime_version: Option<String>,
    /// The image of its operating system, such as `Ubuntu 24.04.2 LTS`.
    pub os_image: Option<String>,
    /// Identity of the boot that the kubelet has told last.
    pub boot_id: Option<String>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Name of the remediation in our cordon mark (annotation), if the node carries one.
    pub cordoned_by: Option<String>,
    /// The taints with our key on it, whoever has put them there.
    pub taints: BTreeSet<KeyedTaint>,
    /// The mark of our taint (annotation), if the node carries one.
    pub tainted_by: Option<TaintMark>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Marks by which others ask that the node be left alone (autoscalers, lifecycle conditions, medik8s
    /// exclusion), each as a short text.
    pub vetoes: Vec<String>,
    /// Why its object cannot be read now, if so: all else is what was known of it before, perhaps nothing. Nothing is done on such
    /// a node.
    pub unreadable: Option<String>,
    /// The conditions that a policy may ask for, in order of their types. Nodes that stand alike share them.
    pub conditions: Arc<[ExternalCondition]>,
}

impl NodeView {
    /// Whether a taint as we put it there, of that effect, is on it.
    pub fn carries(&self, effect: TaintEffect) -> bool {
        self.taints.iter().any(|taint| taint.is_plain(effect))
    }

    /// The taint with our key by which a DaemonSet's pod that ends here has no successor, if there is one.
    pub fn repels_daemon_sets(&self) -> Option<&KeyedTaint> {
        self.taints.iter().find(|taint| taint.repels_daemon_sets())
    }
}

/// The probe's word on a node as far as a decision needs it. Ages are by the controller's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportView {
    /// Uid of the Node in the owner reference: another uid = a report on another node of the same name.
    pub node_uid: Option<String>,
    /// `spec.suspend` with its reason.
    pub suspended: Option<String>,
    /// The last heartbeat; `None` = the probe has never reported.
    pub heartbeat: Option<Heartbeat>,
    /// Faults of the probe, bounded.
    pub faults: Vec<ReportedFault>,
    /// Kinds of fault for which the probe says that it could not look everywhere: that such a fault is not in the
    /// report proves nothing then.
    pub unlooked: BTreeSet<FaultType>,
    /// The kubelet's process.
    pub kubelet: KubeletView,
    /// Whether kubelet and runtime can be restarted, by the probe's word.
    pub restart: RestartView,
    /// The last outcome of an order.
    pub agent: Option<Outcome>,
    /// That a person has stopped a remediation of this node: the controller's own note, which outlives the remediation.
    pub stopped: Option<Stopped>,
}

/// What a node is told to do: its `NodeCommand` as a decision needs it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommandView {
    /// Uid of the Node in the owner reference: another uid = a command to another node of the same name.
    pub node_uid: Option<String>,
    /// The order that stands, if one does.
    pub order: Option<ActionCommand>,
    /// Why the object cannot be read, if so. Nobody knows then whether an order stands: nothing is begun on the node.
    pub unreadable: Option<String>,
}

/// What condition `RestartSafe` says, for each of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartView {
    /// The kubelet.
    pub kubelet: TriState,
    /// The container runtime.
    pub runtime: TriState,
    /// The condition's sentence.
    pub message: String,
    /// For how long the condition has not been True, by the probe's clock, up to its report.
    pub unsafe_for: Duration,
}

impl RestartView {
    /// Of this daemon.
    pub const fn of(&self, daemon: Daemon) -> TriState {
        match daemon {
            Daemon::Kubelet => self.kubelet,
            Daemon::Runtime => self.runtime,
        }
    }
}

/// The kubelet's process as the probe sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletView {
    /// When it began, by the node's clock; `None` = none runs, or nobody could look.
    pub began: Option<Timestamp>,
    /// Ages at the moment of the report: of the process, and of the last look at it.
    pub sent: (Duration, Duration),
    /// Time since it began.
    pub age: Duration,
    /// Whether a sandbox of a pod has been made since.
    pub creates_pods: bool,
    /// Its settings, as far as the probe knows them.
    pub settings: Option<KubeletSettings>,
    /// Time since the probe looked at it.
    pub looked: Duration,
    /// For how long this controller has seen that its start has not come to an end.
    pub unfinished: Option<Duration>,
}

/// Longest promise of a probe that is believed: it reports every five minutes at rest.
pub const LONGEST_INTERVAL: Duration = Duration::from_mins(15);

/// Age past which the heartbeat that a probe promised within `interval` is missed.
pub fn missed_after(interval: Duration) -> Duration {
    interval.min(LONGEST_INTERVAL) * 3 / 2
}

/// The last heartbeat that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Time since it arrived.
    pub arrived: Duration,
    /// The probe's promise for the next one.
    pub interval: Duration,
    /// Sequence number.
    pub sequence: u64,
    /// Identity of the boot that it is about; empty where the probe tells none.
    pub boot_id: String,
    /// Whether the probe says it can act (`--allow-actions`, and its self-check passed).
    pub actions_enabled: bool,
    /// Whether the kubelet can start pods, as the probe sees it.
    pub kubelet_works: TriState,
}

/// A fault with the age of the last look at it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportedFault {
    /// The fault.
    pub fault: Fault,
    /// Time since the last look at it: age when sent, plus time since arrival.
    pub looked: Duration,
}

/// State of a pod of a DaemonSet that does not come up, read for suspects only. All times are those of the read: what has passed since
/// proves nothing of a pod that may be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspectPod {
    /// Which pod.
    pub pod: PodRef,
    /// Its node.
    pub node: String,
    /// Name of the DaemonSet that controls it; `None` = not a DaemonSet's pod.
    pub daemon_set: Option<String>,
    /// Whether it has the node's own network, for which no CNI plugin is called.
    pub host_network: bool,
    /// Whether it is Ready.
    pub ready: bool,
    /// Time since its creation.
    pub age: Duration,
    /// For how long the kubelet has been without a sandbox and a network for it, by its own word (condition
    /// `PodReadyToStartContainers`); `None` = it has them, has not begun, or does not say. What comes after that, such
    /// as an image that is pulled or an init container that works, may take its time.
    pub without_sandbox: Option<Duration>,
    /// Time since its deletion should have been complete (request + grace), if it is being deleted.
    pub overdue: Option<Duration>,
    /// Containers that wait, with the reason the kubelet gives.
    pub waiting: Vec<WaitingContainer>,
    /// Containers that have failed, that the kubelet will start again, and of which it says no more yet.
    pub failed: Vec<FailedContainer>,
    /// Time since it was read.
    pub read: Duration,
}

impl SuspectPod {
    /// Whether it is Ready, and no deletion of it is overdue.
    pub const fn is_well(&self) -> bool {
        self.ready && self.overdue.is_none()
    }
}

/// A container of a suspect pod that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingContainer {
    /// Name.
    pub name: String,
    /// `CrashLoopBackOff`, `ContainerCreating`, `PodInitializing` …
    pub reason: String,
    /// How long the kubelet's back-off is, from its message (`back-off 5m0s restarting …`).
    pub back_off: Option<Duration>,
    /// Time since the container last ended.
    pub ended: Option<Duration>,
    /// How often it was restarted.
    pub restarts: u32,
}

/// A container of a suspect pod that ended with an error and is started again by the kubelet, sooner or later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedContainer {
    /// Name.
    pub name: String,
    /// Time since it ended.
    pub ended: Duration,
    /// How long it ran that time, where the kubelet says it.
    pub ran: Option<Duration>,
    /// How long the kubelet had waited before it started it that time, where it still tells of the time before.
    pub waited: Option<Duration>,
    /// How often it was restarted.
    pub restarts: u32,
}

/// A Job of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobView {
    /// The operation it was made for.
    pub operation_id: String,
    /// Whether its pod has started.
    pub started: bool,
    /// Why the kubelet has refused its pod, of which no container was ever started, if it has.
    pub rejected: Option<String>,
    /// Whether it is at an end.
    pub finished: bool,
    /// The termination message of its pod, read as an outcome.
    pub outcome: Option<Outcome>,
}

/// In-flight slots, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ledger {
    /// Remediation name → the slot it holds.
    pub slots: BTreeMap<String, Slot>,
}

/// One in-flight slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    /// The node.
    pub node: String,
    /// The policy.
    pub policy: String,
    /// When it was taken: the slot of a remediation that nobody can see is kept for a while, since a cache may
    /// be behind.
    pub taken_at: Timestamp,
    /// The kinds of fault that it was taken for, and those that have joined since where a policy limits them: noted before they are
    /// dealt with, so that the next leader counts them. Absent = any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<BTreeSet<FaultType>>,
}

/// A remediation that is there and cannot be read, since a newer version has written it: what is known of it all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnreadableRemediation {
    /// Its node, as its label has it (shortened, where the name is too long for a label).
    pub node: Option<String>,
    /// Its policy, in the same way.
    pub policy: Option<String>,
    /// Whether it still has something to do or to put back: then it carries our finalizer.
    pub is_open: bool,
    /// When it was made.
    pub made_at: Option<Timestamp>,
    /// Why it cannot be read.
    pub why: String,
}

/// Everything a decision is made from.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The controller's wall clock: for records and times to live, never for freshness.
    pub now: Timestamp,
    /// `spec.suspend` of the `RemediationConfig`, with who and why: nothing starts on any node.
    pub suspended: Option<String>,
    /// All nodes, by name.
    pub nodes: BTreeMap<String, NodeView>,
    /// All reports, by node name.
    pub reports: BTreeMap<String, ReportView>,
    /// All commands to nodes, by node name. A node without one has no order.
    pub commands: BTreeMap<String, CommandView>,
    /// All valid policies.
    pub policies: Vec<Policy>,
    /// Names of those of which nothing is known but that they are there: they cannot be used, and were not read before they were so.
    pub unusable_policies: BTreeSet<String>,
    /// All remediations, by name, the finished ones too.
    pub remediations: BTreeMap<String, Remediation>,
    /// Remediations that cannot be read, by name: each keeps its slot, and its node to itself.
    pub unreadable: BTreeMap<String, UnreadableRemediation>,
    /// Starts by hand that have not begun, by name: they are no remediations yet, hold no slot and have no node.
    pub manual_requests: BTreeMap<String, OpenManualRequest>,
    /// Conditions that stand on nodes as some policy asks for them, by node; none for most.
    pub noticed: BTreeMap<String, Vec<ObservedCondition>>,
    /// Histories of nodes that have changed several times of late, by node; none for most.
    pub flaps: BTreeMap<String, FlapView>,
    /// For how long the nodes have been watched: for less than the quiet time, nobody can say that one does not flap.
    pub watched: Duration,
    /// The ledger; `None` = missing or unreadable: nothing new starts.
    pub ledger: Option<Ledger>,
    /// Pods of every suspect DaemonSet, as they were read, with the time since.
    pub pods: Vec<SuspectPod>,
    /// Nodes whose DaemonSet pods were all read (successfully), with the time since. A node whose open
    /// remediation holds a `StuckDaemonSetPod` must be read until that remediation ends: without an entry here its
    /// cure is never believed, since a pod that nobody looked at is not a pod that is well.
    pub pods_read: BTreeMap<String, Duration>,
    /// Pods that are being deleted on nodes with faults, for the protection of running pods.
    pub terminating: BTreeSet<PodRef>,
    /// What policies ask about the pods that faults name, as far as they were read.
    pub pods_seen: BTreeMap<PodRef, PodSeen>,
    /// Our Jobs, by operation id.
    pub jobs: BTreeMap<String, JobView>,
    /// Objects of hand-offs as they were read last, by operation id. Nobody could look = no entry.
    pub hand_offs: BTreeMap<String, HandOffView>,
    /// Templates of which nobody knows yet whether the controller may use them: such a step is held.
    pub unproven: BTreeSet<TemplateRef>,
    /// Those of them of which it is known that the controller may not, or that they are not there.
    pub lacking: BTreeSet<TemplateRef>,
    /// Uid and generation of the templates that policies name, as read last.
    pub template_versions: BTreeMap<TemplateRef, String>,
    /// Whether the controller may evict pods. Unknown = nobody has said so far, and a drain is held; it is asked only where a
    /// policy drains nodes.
    pub may_evict: TriState,
    /// Why the admission policies are not known to be in force: then nothing is begun. `None` = they were, lately.
    pub admission_doubt: Option<String>,
    /// Leader term.
    pub epoch: u64,
    /// Cluster-wide ceiling of slots.
    pub ceiling: u32,
}
