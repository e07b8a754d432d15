//! The input of a decision, at one moment.

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
use super::remediation::{CancelledRemediation, Remediation};
use super::taint::{KeyedTaint, TaintEffect, TaintMark};

pub use super::tri_state::TriState;

/// Exclusions (`NodeView::exclusions`) which say that the node is drained or shuts down: the conditions of KEP-5683.
pub const SHUTTING_DOWN: [&str; 2] = ["condition DrainInProgress", "condition GracefulNodeShutdownInProgress"];

/// A Node, as far as a decision needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Uid of the object.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Status of condition `Ready`.
    pub ready: TriState,
    /// Since when `Ready` has this status, by the node's clock.
    pub ready_since: Option<Timestamp>,
    /// What the kubelet complains of in `Ready`.
    pub complaint: Option<Complaint>,
    /// When the kubelet last wrote the node's status, by the node's clock: the newest of the times of its conditions.
    pub status_at: Option<Timestamp>,
    /// The kubelet's version.
    pub kubelet_version: Option<String>,
    /// The container runtime with its version, such as `containerd://1.7.24`.
    pub runtime_version: Option<String>,
    /// The image of its operating system, such as `Ubuntu 24.04.2 LTS`.
    pub os_image: Option<String>,
    /// The boot id that the kubelet has reported last.
    pub boot_id: Option<String>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Name of the remediation in our owner annotation of the cordon, if the node carries one.
    pub cordoned_by: Option<String>,
    /// The taints with our key, whoever has set them.
    pub taints: BTreeSet<KeyedTaint>,
    /// The owner annotation of our taint, if the node carries one.
    pub tainted_by: Option<TaintMark>,
    /// Whether the Node is being deleted.
    pub deleting: bool,
    /// Exclusions: other tools ask that the node be left alone (autoscalers, lifecycle conditions, medik8s exclusion). Each is a
    /// short text.
    pub exclusions: Vec<String>,
    /// Why the Node cannot be read now, if so. All other fields are what was known before, perhaps nothing. The controller does
    /// nothing on such a node.
    pub unreadable: Option<String>,
    /// The conditions that a policy may ask for, sorted by type. Nodes with equal conditions share them.
    pub conditions: Arc<[ExternalCondition]>,
}

impl NodeView {
    /// Whether the node carries our taint with this effect.
    pub fn carries(&self, effect: TaintEffect) -> bool {
        self.taints.iter().any(|taint| taint.is_plain(effect))
    }

    /// The taint with our key that prevents the successor of a DaemonSet's pod that ends here, if there is one.
    pub fn repels_daemon_sets(&self) -> Option<&KeyedTaint> {
        self.taints.iter().find(|taint| taint.repels_daemon_sets())
    }
}

/// The probe's report on a node, as far as a decision needs it. Ages are by the controller's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportView {
    /// Uid of the Node in the owner reference. Another uid means that the report is about another node of the same name.
    pub node_uid: Option<String>,
    /// `spec.suspend` with its reason.
    pub suspended: Option<String>,
    /// Why the object cannot be read, if so. It is unknown then what it says, so nothing is done on the node.
    pub unreadable: Option<String>,
    /// The last heartbeat. `None`: the probe has never reported.
    pub heartbeat: Option<Heartbeat>,
    /// Faults that the probe reports, bounded.
    pub faults: Vec<ReportedFault>,
    /// Types of fault for which the probe could not check everything. That such a fault is not in the report proves nothing then.
    pub unchecked: BTreeSet<FaultType>,
    /// The kubelet's process.
    pub kubelet: KubeletView,
    /// Whether kubelet and runtime can be restarted, as the probe reports it.
    pub restart: RestartView,
    /// The last outcome of a command.
    pub agent: Option<Outcome>,
    /// Whether a person has stopped a remediation of this node. The controller writes this note, and it outlives the remediation.
    pub stopped: Option<CancelledRemediation>,
}

/// The `NodeCommand` of a node, as far as a decision needs it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommandView {
    /// Uid of the Node in the owner reference. Another uid means that the command is for another node of the same name.
    pub node_uid: Option<String>,
    /// The current command, if there is one.
    pub command: Option<ActionCommand>,
    /// Why the object cannot be read, if so. It is unknown then whether there is a command, so nothing starts on the node.
    pub unreadable: Option<String>,
}

/// What condition `RestartSafe` says about the kubelet and the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartView {
    /// The kubelet.
    pub kubelet: TriState,
    /// The container runtime.
    pub runtime: TriState,
    /// The message of the condition.
    pub message: String,
    /// How long the condition has not been True up to the report, by the probe's clock.
    pub unsafe_for: Duration,
}

impl RestartView {
    /// The value for this daemon.
    pub const fn of(&self, daemon: Daemon) -> TriState {
        match daemon {
            Daemon::Kubelet => self.kubelet,
            Daemon::Runtime => self.runtime,
        }
    }
}

/// The kubelet's process, as the probe sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletView {
    /// When it started, by the node's clock. `None`: no kubelet runs, or the probe could not check.
    pub began: Option<Timestamp>,
    /// Age of the process when the probe reported it.
    pub reported_age: Duration,
    /// Age of the last check of it when the probe reported it.
    pub reported_check_age: Duration,
    /// Time since it started.
    pub age: Duration,
    /// Whether the runtime has created a sandbox of a pod since then.
    pub creates_pods: bool,
    /// Its settings, as far as the probe knows them.
    pub settings: Option<KubeletSettings>,
    /// Time since the probe checked it.
    pub checked: Duration,
    /// How long this controller has seen that the start of the kubelet is not complete.
    pub unfinished: Option<Duration>,
}

/// Longest heartbeat interval that the controller accepts. A probe at rest reports every five minutes.
pub const LONGEST_INTERVAL: Duration = Duration::from_mins(15);

/// Age above which a heartbeat is missed that the probe promised within `interval`.
pub fn missed_after(interval: Duration) -> Duration {
    interval.min(LONGEST_INTERVAL) * 3 / 2
}

/// Age above which the probe that promised a heartbeat within `interval` has missed three.
pub fn silent_after(interval: Duration) -> Duration {
    interval.min(LONGEST_INTERVAL) * 7 / 2
}

/// The last heartbeat that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Time since it arrived.
    pub arrived: Duration,
    /// Whether that time is known. One that was there before the controller may be of any age.
    pub age_known: bool,
    /// The interval that the probe promises for the next heartbeat.
    pub interval: Duration,
    /// Sequence number.
    pub sequence: u64,
    /// Boot id that the heartbeat is about. Empty where the probe reports none.
    pub boot_id: String,
    /// Whether the probe can execute actions (`--allow-actions` is set and its self-check passed), as it reports.
    pub actions_enabled: bool,
    /// Whether the kubelet can start pods, as the probe sees it.
    pub kubelet_works: TriState,
}

/// A fault with the age of the last check of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportedFault {
    /// The fault.
    pub fault: Fault,
    /// Time since the last check: age when sent, plus time since arrival.
    pub checked: Duration,
}

/// State of a DaemonSet's pod that does not come up, read for suspects only. All times are those of the read. The time that has
/// passed since proves nothing, because the pod may be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspectPod {
    /// Which pod.
    pub pod: PodRef,
    /// Its node.
    pub node: String,
    /// Name of the DaemonSet that controls it. `None`: it is not a DaemonSet's pod.
    pub daemon_set: Option<String>,
    /// Whether it uses the host network. Then no CNI plugin is called for it.
    pub host_network: bool,
    /// Whether it is Ready.
    pub ready: bool,
    /// Time since its creation.
    pub age: Duration,
    /// How long the kubelet has been without a sandbox and a network for it, by condition `PodReadyToStartContainers`. `None`: it
    /// has them, has not started, or does not say. What comes after that, such as an image pull, may take its time.
    pub without_sandbox: Option<Duration>,
    /// Time since its deletion should have been complete (request plus grace period), if it is being deleted.
    pub overdue: Option<Duration>,
    /// Waiting containers, with the reason that the kubelet gives.
    pub waiting: Vec<WaitingContainer>,
    /// Containers that have failed and that the kubelet will restart, before it reports anything else about them.
    pub failed: Vec<FailedContainer>,
    /// Time since it was read.
    pub read: Duration,
}

impl SuspectPod {
    /// Whether it is Ready, and its deletion is not overdue.
    pub const fn is_healthy(&self) -> bool {
        self.ready && self.overdue.is_none()
    }
}

/// A waiting container of a suspect pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingContainer {
    /// Name.
    pub name: String,
    /// `CrashLoopBackOff`, `ContainerCreating`, `PodInitializing` …
    pub reason: String,
    /// The kubelet's back-off, from its message (`back-off 5m0s restarting …`).
    pub back_off: Option<Duration>,
    /// Time since the container last ended.
    pub ended: Option<Duration>,
    /// How often it was restarted.
    pub restarts: u32,
}

/// A container of a suspect pod that ended with an error and that the kubelet will restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedContainer {
    /// Name.
    pub name: String,
    /// Time since it ended.
    pub ended: Duration,
    /// How long it ran before that, where the kubelet says so.
    pub ran: Option<Duration>,
    /// How long the kubelet had waited before that start, where it still reports the time before.
    pub waited: Option<Duration>,
    /// How often it was restarted.
    pub restarts: u32,
}

/// A Job of the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobView {
    /// The operation that the Job executes.
    pub operation_id: String,
    /// Whether its pod has started.
    pub started: bool,
    /// Why the kubelet has rejected its pod, if so. No container of that pod has ever started.
    pub rejected: Option<String>,
    /// Whether it has finished.
    pub finished: bool,
    /// Whether the kubelet has ended its pod. A Job may fail while its pod still runs.
    pub pod_ended: bool,
    /// The termination message of its pod, parsed as an outcome.
    pub outcome: Option<Outcome>,
}

impl JobView {
    /// Whether its pod has started, as far as the API server knows.
    pub const fn has_begun(&self) -> bool {
        self.started || self.finished
    }
}

/// The in-flight slots, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ledger {
    /// Remediation name → its slot.
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
    /// When it was taken. The slot of a remediation that nobody can see is kept for a while, because a cache may lag.
    pub taken_at: Timestamp,
    /// The types of fault that it was taken for, and those that joined later where a policy limits them. They are stored before
    /// they are remediated, so that the next leader counts them. Absent means any type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<BTreeSet<FaultType>>,
}

/// A remediation that exists and cannot be read, because a newer version has written it. These fields are known all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnreadableRemediation {
    /// Its node, from its label (shortened where the name is too long for a label).
    pub node: Option<String>,
    /// Its policy, from its label.
    pub policy: Option<String>,
    /// Whether it still has work or cleanup to do. Then it carries our finalizer.
    pub is_open: bool,
    /// When it was created.
    pub made_at: Option<Timestamp>,
    /// Why it cannot be read.
    pub why: String,
}

/// The input of a decision.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The controller's wall clock: for records and times to live, never for freshness.
    pub now: Timestamp,
    /// `spec.suspend` of the `RemediationConfig`, with who and why. Then nothing starts on any node.
    pub suspended: Option<String>,
    /// All nodes, by name.
    pub nodes: BTreeMap<String, NodeView>,
    /// All reports, by node name.
    pub reports: BTreeMap<String, ReportView>,
    /// All `NodeCommand`s, by node name. A node without an entry has no command.
    pub commands: BTreeMap<String, CommandView>,
    /// All valid policies.
    pub policies: Vec<Policy>,
    /// Names of policies of which only the existence is known. They cannot be used now, and this controller has never read
    /// a usable version of them.
    pub unusable_policies: BTreeSet<String>,
    /// All remediations, by name, including finished ones.
    pub remediations: BTreeMap<String, Remediation>,
    /// Remediations that cannot be read, by name. Each keeps its slot, and no other remediation may use its node.
    pub unreadable: BTreeMap<String, UnreadableRemediation>,
    /// Manual requests that have not started, by name. They are not remediations yet, and hold no slot and no node.
    pub manual_requests: BTreeMap<String, OpenManualRequest>,
    /// Conditions of Nodes that match what some policy asks for, by node. Most nodes have none.
    pub matched_conditions: BTreeMap<String, Vec<ObservedCondition>>,
    /// Histories of nodes that have changed several times recently, by node. Most nodes have none.
    pub flaps: BTreeMap<String, FlapView>,
    /// For how long kubelets have reported that they cannot check their pods, as the controller has seen it, by node.
    pub stalls: BTreeMap<String, Duration>,
    /// How long the nodes have been watched. Before the quiet time has passed, it is unknown whether a node flaps.
    pub watched_for: Duration,
    /// The ledger. `None`: it is missing or unreadable, and nothing new starts.
    pub ledger: Option<Ledger>,
    /// Pods of every suspect DaemonSet as read, with the time since the read.
    pub pods: Vec<SuspectPod>,
    /// Nodes of which all DaemonSet pods were read (successfully), with the time since. A node whose open remediation has a
    /// `StuckDaemonSetPod` must be read until that remediation ends. Without an entry here, the fault never counts as resolved: a
    /// pod that was not checked is not a healthy pod.
    pub pods_read: BTreeMap<String, Duration>,
    /// Whether some DaemonSet lacks pods and nobody could read which. They may be on any node that was not read as a whole.
    pub pods_unread: bool,
    /// Pods of each node with faults that are being deleted. No node speaks for a pod of another one.
    pub terminating: BTreeMap<String, BTreeSet<PodRef>>,
    /// What policies ask about the pods of faults, as far as the controller has read it.
    pub pods_seen: BTreeMap<PodRef, PodSeen>,
    /// Jobs of the controller, by operation id.
    pub jobs: BTreeMap<String, JobView>,
    /// Objects of hand-offs as last read, by operation id. No entry: the object could not be read.
    pub hand_offs: BTreeMap<String, HandOffView>,
    /// Templates for which the controller's permission is not known yet. Such a step is blocked.
    pub unproven: BTreeSet<TemplateRef>,
    /// Those of them that the controller is known to have no permission for, or that do not exist.
    pub lacking: BTreeSet<TemplateRef>,
    /// Uid and generation of the templates that policies name, as last read.
    pub template_versions: BTreeMap<TemplateRef, String>,
    /// Whether the controller may evict pods. Unknown: nobody has answered so far, and a drain is blocked. The controller asks
    /// only where a policy drains nodes.
    pub may_evict: TriState,
    /// Why the admission policies are not known to be in force. Then nothing starts. `None`: they were in force recently.
    pub admission_not_enforced: Option<String>,
    /// Why it is not known what time it is. Then nothing starts, and nothing open goes on or ends.
    pub clock_disputed: Option<String>,
    /// The leader's term.
    pub epoch: u64,
    /// Limit of slots in the whole cluster.
    pub ceiling: u32,
}
