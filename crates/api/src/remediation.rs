//! `NodeRemediation`: one remediation of one node, with its timeline.

#![expect(clippy::doc_markdown, reason = "these sentences are what `kubectl explain` prints")]
#![expect(clippy::duplicated_attributes, reason = "each printed column names its type, and most are strings")]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::HumanDuration;
use nrh_core::fault::FaultType;
use nrh_core::policy::{ActionType, Mode};
use nrh_core::remediation::{Approval, Cancel, Cleanup, Phase, RemediationFault, StepRecord};

/// The node and the policy of a remediation, written once: by the controller, or by a person with a manual request. In
/// addition a person's approval and cancellation.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "runtimehealth.io",
    version = "v1alpha1",
    kind = "NodeRemediation",
    plural = "noderemediations",
    singular = "noderemediation",
    shortname = "nrem",
    category = "runtimehealth",
    status = "NodeRemediationStatus",
    derive = "PartialEq",
    doc = "One remediation of one node: its faults, the attempts with their results, and the cleanup.",
    label("app.kubernetes.io/part-of", "nrh"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Fault", type_ = "string", json_path = ".status.faults[0].type"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policy", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("self.nodeName == oldSelf.nodeName && self.nodeUid == oldSelf.nodeUid && self.policy == oldSelf.policy && self.mode == oldSelf.mode").message("the node, policy and mode of a remediation cannot be changed; cancel it instead"))]
#[x_kube(validation = Rule::new("has(self.manual) == has(oldSelf.manual) && (!has(self.manual) || self.manual == oldSelf.manual)").message("manual: a manual request cannot be changed; cancel it and write another one"))]
#[x_kube(validation = Rule::new("!has(oldSelf.cancel) || (has(self.cancel) && self.cancel == oldSelf.cancel)").message("cancel: a cancelled remediation stays cancelled; start a new one (nrh remediate)"))]
#[x_kube(validation = Rule::new("!has(self.manual) || self.mode == 'Enforce'").message("a manual request is no dry run: expected mode Enforce"))]
pub struct NodeRemediationSpec {
    /// Name of the node.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// Uid of the Node object: a node replaced under the same name is another node.
    #[schemars(length(min = 1, max = 64))]
    pub node_uid: String,
    /// Name of the policy.
    #[schemars(length(min = 1, max = 253))]
    pub policy: String,
    /// Mode of the policy when the remediation started: Enforce, or DryRun (then it ends as Simulated).
    pub mode: Mode,
    /// A person's approval of the step that waits for it. Needs the verb `approve` on noderemediations; `nrh approve`
    /// writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// A person cancels the remediation for good: no further step, and its changes to the node are cleaned up. Needs
    /// the verb `cancel` on noderemediations; `nrh cancel` writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Cancel>,
    /// The manual request of a person who starts the remediation. Needs the verbs `remediate` and `approve` on
    /// noderemediations; `nrh remediate` writes it. The controller's own remediations have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manual: Option<ManualRequestSpec>,
}

/// A manual request names a kind of fault and an action, never a process, a path or a container: those are the probe's
/// to name.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ManualRequestSpec {
    /// Who requests it: your own name, as `kubectl auth whoami` prints it. The API server refuses any other.
    #[schemars(length(min = 1, max = 512))]
    pub requested_by: String,
    /// Kind of the fault. It has to be confirmed on the node.
    pub fault: FaultType,
    /// Id of the fault, as in the node's report (status.faults). Absent = the only fault of that kind at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 80))]
    pub fault_id: Option<String>,
    /// The action to start with: the first such step of the policy's rule for that fault. Its next steps follow as
    /// usual.
    pub action: ActionType,
    /// Generation (metadata.generation) of the policy that you have read. The first step counts as approved only while
    /// the policy has that generation; otherwise, or if absent, a step with approval Manual waits for approval as
    /// usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub policy_generation: Option<i64>,
    /// Why, in one sentence for people who read the remediation later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub reason: Option<String>,
    /// How long the request may wait until it can start. After that it ends as Cancelled, with what it waited for. 1m
    /// to 24h. Default 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1m')").message("must be at least 1m"))]
    pub start_timeout: Option<HumanDuration>,
}

/// The progress of the remediation.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeRemediationStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pending, AwaitingApproval, Running, Verifying, Quarantined, Succeeded, Failed, Cancelled or Simulated.
    #[serde(default)]
    pub phase: Phase,
    /// Why, in one sentence.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub message: String,
    /// When it started, by the controller's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Its faults, each with the index of its present step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub faults: Vec<RemediationFault>,
    /// The timeline: one entry per attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub attempts: Vec<StepRecord>,
    /// The changes that are removed when the remediation ends, and whether that is done.
    #[serde(default, skip_serializing_if = "Cleanup::is_empty")]
    pub cleanup: Cleanup,
    /// Processing and Succeeded, as the medik8s contract names them; Ready, Reconciling and Stalled, as kstatus does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
