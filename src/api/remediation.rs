//! `NodeRemediation`: one remediation of healing one node, with its timeline.

#![expect(clippy::doc_markdown, reason = "these sentences are what `kubectl explain` prints")]
#![expect(clippy::duplicated_attributes, reason = "each printed column names its type, and most are strings")]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::duration::HumanDuration;
use crate::core::fault::FaultType;
use crate::core::policy::{ActionType, Mode};
use crate::core::remediation::{Approval, Cancel, Cleanup, Phase, RemediationFault, StepRecord};

/// The node and the policy of a remediation, written once: by the controller, or by a person who starts one by hand. Beside that what
/// a person has approved in it, and that a person has ended it.
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
    doc = "One remediation of healing one node: which faults, which steps were taken, what came of them, and what is put back.",
    label("app.kubernetes.io/part-of", "nrh"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Fault", type_ = "string", json_path = ".status.faults[0].type"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policy", priority = 1),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode", priority = 1)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("self.nodeName == oldSelf.nodeName && self.nodeUid == oldSelf.nodeUid && self.policy == oldSelf.policy && self.mode == oldSelf.mode").message("a remediation's node, policy and mode cannot be changed; cancel it instead"))]
#[x_kube(validation = Rule::new("has(self.manual) == has(oldSelf.manual) && (!has(self.manual) || self.manual == oldSelf.manual)").message("wish: what a person wanted cannot be changed; cancel it and write another one"))]
#[x_kube(validation = Rule::new("!has(oldSelf.cancel) || (has(self.cancel) && self.cancel == oldSelf.cancel)").message("cancel: what is cancelled stays so; start anew instead (nrh remediate)"))]
#[x_kube(validation = Rule::new("!has(self.manual) || self.mode == 'Enforce'").message("a start by hand is no dry run: expected mode Enforce"))]
pub struct NodeRemediationSpec {
    /// Name of the node.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// Uid of the Node object: a node replaced under the same name is another node.
    #[schemars(length(min = 1, max = 64))]
    pub node_uid: String,
    /// Name of the policy in whose name it acts.
    #[schemars(length(min = 1, max = 253))]
    pub policy: String,
    /// Mode of the policy when the remediation was opened: Enforce, or DryRun (then it ends in Simulated).
    pub mode: Mode,
    /// A person's yes to the step that awaits it. Needs the verb `approve` on noderemediations; `nrh approve` writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// A person's no to the whole remediation, for good: no further step, and what it did to the node is put back. Needs the verb `cancel` on noderemediations; `nrh cancel` writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Cancel>,
    /// What a person wants done who starts the remediation by hand. Needs the verbs `remediate` and `approve` on noderemediations; `nrh remediate` writes it. The controller's own remediations have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manual: Option<ManualRequestSpec>,
}

/// What a person wants done, named by its kind: never by a process, a path or a container, which the probe names.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ManualRequestSpec {
    /// Who wants it: your own name, as `kubectl auth whoami` prints it. The API server refuses any other.
    #[schemars(length(min = 1, max = 512))]
    pub requested_by: String,
    /// Kind of the fault, which has to be confirmed on the node.
    pub fault: FaultType,
    /// Id of the fault, as the node's report tells it (status.faults). Without it the only one of that kind is meant, whichever it is when it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 80))]
    pub fault_id: Option<String>,
    /// What is to be done first: the first such step on the ladder of the policy's rule for that fault. After it the ladder goes on as usual.
    pub action: ActionType,
    /// Generation (metadata.generation) of the policy that was looked at. Its first step counts as approved only while the policy is still that one; otherwise, or without it, a step with approval Manual waits for approval as usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub policy_generation: Option<i64>,
    /// Why, in one sentence for those who read the remediation later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub reason: Option<String>,
    /// For how long it may wait until it can begin; after that it ends as Cancelled, with what it waited for. 1m to 24h, 1h by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1m')").message("must be at least 1m"))]
    pub start_timeout: Option<HumanDuration>,
}

/// How far the remediation is.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeRemediationStatus {
    /// Pending, AwaitingApproval, Running, Verifying, Quarantined, Succeeded, Failed, Cancelled or Simulated.
    #[serde(default)]
    pub phase: Phase,
    /// Why, in one sentence.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub message: String,
    /// When it was opened, by the controller's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it came to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The faults it heals, each with its place on the ladder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub faults: Vec<RemediationFault>,
    /// The timeline: one line per attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub attempts: Vec<StepRecord>,
    /// What was there before, and whether it has been put back.
    #[serde(default)]
    pub cleanup: Cleanup,
    /// Processing and Succeeded, as the medik8s contract names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
