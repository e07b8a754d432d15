//! `NodeRuntimeHealth`: one per node, of the same name; what its probe sees and what is done about it.

#![expect(clippy::doc_markdown, reason = "these sentences are what `kubectl explain` prints")]
#![expect(clippy::duplicated_attributes, reason = "each printed column names its type, and most are strings")]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::command::CHECK_NAME;
use super::flap::WrittenFlap;
use super::suspension::{Suspend, Suspension};
use nrh_core::command::Outcome;
use nrh_core::fault::{Fault, FaultType};
use nrh_core::observation::KubeletSettings;
use nrh_core::plan::Health;
use nrh_core::remediation::CancelledRemediation;
use nrh_core::snapshot::TriState;

/// What people request of a node. The probe and the controller write everything else.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "runtimehealth.io",
    version = "v1alpha1",
    kind = "NodeRuntimeHealth",
    plural = "noderuntimehealths",
    singular = "noderuntimehealth",
    shortname = "nrh",
    category = "runtimehealth",
    status = "NodeRuntimeHealthStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Health of the container runtime and the kubelet of one node, as its probe sees it, and what is being done about it. One per node, of the same name.",
    label("app.kubernetes.io/part-of", "nrh"),
    printcolumn(name = "Health", type_ = "string", json_path = ".status.summary.health"),
    printcolumn(name = "Fault", type_ = "string", json_path = ".status.summary.topFaultType"),
    printcolumn(
        name = "Restart-Safe",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="RestartSafe")].status"#
    ),
    printcolumn(
        name = "Remediation",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="SelfHealing")].reason"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Runtime", type_ = "string", json_path = ".status.runtime.version", priority = 1),
    printcolumn(name = "Probe", type_ = "string", json_path = ".status.probe.version", priority = 1),
    printcolumn(name = "Last-Seen", type_ = "date", json_path = ".status.probe.heartbeatAt", priority = 1),
    printcolumn(name = "Policy", type_ = "string", json_path = ".status.remediation.policy", priority = 1),
    printcolumn(name = "Subject", type_ = "string", json_path = ".status.summary.topFault", priority = 1),
    printcolumn(name = "Activity", type_ = "string", json_path = ".status.summary.activity", priority = 1)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeRuntimeHealthSpec {
    /// True = no step starts on this node. Drains, hand-offs and reboot markers end at once; any other step finishes, then its
    /// remediation is cancelled. Cordon, taint and hand-off are removed; a quarantined node stays cordoned. Checks and reports continue.
    #[serde(default)]
    pub suspend: bool,
    /// Why, for the people who find it suspended. At most 256 characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub reason: String,
    /// Who has written `suspend` and `reason`: the name of the caller, as `kubectl auth whoami` prints it; admission
    /// compares it. `nrh suspend` and `nrh resume` write it. Absent if nobody has suspended the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub suspended_by: Option<String>,
    /// Requests a fresh check: the probe asks every container now. A name of your choice, other than the previous one;
    /// the probe repeats it in `status.probe.checkAnswered`, with a report that is newer than the request. `nrh
    /// restart-safe` writes it and waits for the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = CHECK_NAME))]
    pub check_requested: Option<String>,
}

impl Suspend for NodeRuntimeHealth {
    fn suspension(&self) -> Suspension<'_> {
        Suspension { suspend: self.spec.suspend, by: self.spec.suspended_by.as_deref(), reason: &self.spec.reason }
    }
}

/// What is known of the node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeRuntimeHealthStatus {
    /// Generation of the spec that the controller knows. Written by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The probe itself: version, mode, heartbeat, and how fresh each of its collectors is. Written by the probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeStatus>,
    /// The container runtime. Written by the probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStatus>,
    /// The kubelet. Written by the probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletStatus>,
    /// Version of the kubelet, as the Node reports it: the probe has no right to read Nodes. Written by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub kubelet_version: Option<String>,
    /// Faults seen on the node, most severe first; at most 64, `faultsOmitted` counts the rest. Written by
    /// the probe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub faults: Vec<Fault>,
    /// Faults that did not fit into `faults`. Written by the probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults_omitted: Option<u32>,
    /// Whether kubelet and runtime can each be restarted without harm; condition RestartSafe is the worse of the two, with
    /// the reasons. Written by the probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_safe: Option<RestartSafeStatus>,
    /// The result of the last command, which the NodeCommand or a Job has brought. Written by the probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_result: Option<Outcome>,
    /// Faults that are visible only in the API: stuck DaemonSet pods, a kubelet whose start is blocked or that cannot
    /// relist its pods, conditions of the Node that a policy names, a node that flaps, a probe that does not report.
    /// Written by the controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub cluster_faults: Vec<Fault>,
    /// What is being done about the node, by which policy. Written by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<RemediationStatus>,
    /// The line that `kubectl get` prints. Written by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// How often the node has changed recently, while that is more than a reboot causes. Written by the controller for
    /// its successor, at most every five minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flapping: Option<WrittenFlap>,
    /// All are positive: True = good by a clear check, False = bad on confirmed evidence, Unknown = nobody could check.
    /// RuntimeReady, ContainersResponsive, SandboxesConsistent, NetworkPluginResponsive, NetworkReady, KubeletReady,
    /// SyncLoopRunning, PlegHealthy, HostHealthy, StorageReady, SystemdResponsive, ClientCertificateValid,
    /// ClockSynchronised, ProbeCoverageComplete and RestartSafe are written by the probe; Ready, ProbeReporting, NodeStable,
    /// PodsProgressing and SelfHealing by the controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 24))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// How the probe runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProbeMode {
    /// As a pod of the DaemonSet.
    #[default]
    Pod,
    /// As a plain process or unit, with the kubelet's credentials.
    Unit,
}

/// The probe's report about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProbeStatus {
    /// Version of the probe.
    #[schemars(length(max = 64))]
    pub version: String,
    /// How it runs: Pod or Unit.
    pub mode: ProbeMode,
    /// Boot id of the node: another one means the node has restarted.
    #[schemars(length(max = 64))]
    pub boot_id: String,
    /// Uid of the Node object that the probe believes to be its own, where it knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub node_uid: Option<String>,
    /// Rises by one with each report of this probe process.
    pub sequence: u64,
    /// When this report was made, by the node's clock (for people; freshness is measured at arrival).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_at: Option<Timestamp>,
    /// Seconds until the next report, at the latest: the probe's promise.
    pub interval_seconds: u32,
    /// Whether the probe executes commands on this node (`--allow-actions`, and its self-check passed).
    #[serde(default)]
    pub actions_enabled: bool,
    /// What checks or actions need, and the node or the probe lacks, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 256)))]
    pub missing_capabilities: Vec<String>,
    /// The last `spec.checkRequested` that this report answers: every container has answered since then, or does not
    /// answer. If some were not asked after 12 seconds, it is answered only if RestartSafe is not True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub check_answered: Option<String>,
    /// Each collector with the age of its last completed check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub collectors: Vec<CollectorStatus>,
}

/// How a collector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CollectorState {
    /// Its last check was completed.
    Ok,
    /// Its call is out past its deadline.
    Hung,
    /// Its last check ended in an error.
    Failed,
    /// The node lacks what it needs.
    Unavailable,
    /// It has not checked yet.
    Starting,
}

/// One collector of the probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CollectorStatus {
    /// Name of the collector: runtime, lists, status, tasks, processes, kubelet, host, disks, port or bus.
    #[schemars(length(max = 32))]
    pub name: String,
    /// Its state. Ok: its last check was completed; Hung: its call has passed its deadline; Failed: its last check
    /// ended in an error; Unavailable: the node lacks what it needs; Starting: it has not checked yet.
    pub state: CollectorState,
    /// Seconds since its last completed check, at the moment of this report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// What it said, where it did not succeed; what it has left out, where there was more than it takes in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub message: String,
}

/// The container runtime.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStatus {
    /// Name and version, as `containerd://1.7.20`.
    #[schemars(length(max = 128))]
    pub version: String,
    /// Socket it is asked through.
    #[schemars(length(max = 256))]
    pub endpoint: String,
    /// Number of pod sandboxes it lists.
    #[serde(default)]
    pub sandboxes: u32,
    /// Number of containers it lists.
    #[serde(default)]
    pub containers: u32,
}

/// The kubelet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletStatus {
    /// Whether a kubelet process runs and has completed its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<bool>,
    /// When its process was started, by the node's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// True = a sandbox of a pod was created since that process was started, so it starts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creates_pods: Option<bool>,
    /// Kubelet settings that thresholds use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<KubeletSettings>,
}

/// Whether kubelet and runtime can be restarted without harm: True by a clear check, False on confirmed evidence,
/// Unknown if nobody could check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartSafeStatus {
    /// Whether the kubelet can be restarted now.
    pub kubelet: TriState,
    /// Whether the container runtime can be restarted now.
    pub runtime: TriState,
}

/// What is being done about the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemediationStatus {
    /// Name of the policy that applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub policy: Option<String>,
    /// Name of the open remediation (a NodeRemediation).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// A person has cancelled the remediation of this node: nothing starts for an hour. Kept here because the
    /// NodeRemediation may be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<CancelledRemediation>,
    /// What is blocked and why, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 512)))]
    pub blocked: Vec<String>,
}

/// One line about the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Healthy: nothing confirmed, and the probe reports. Degraded: something that does not harm pods now. Unhealthy: a
    /// confirmed fault harms pods or the node. Unknown: nobody could check.
    pub health: Health,
    /// Type of the most urgent fault; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_fault_type: Option<FaultType>,
    /// The most urgent fault with its subject; empty if there is none.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub top_fault: String,
    /// What is being done, or why nothing is; empty if there is nothing to do.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub activity: String,
}
