//! `NodeRemediation`: one episode of healing one node, with its timeline.

#![expect(clippy::doc_markdown, reason = "these sentences are what `kubectl explain` prints")]
#![expect(clippy::duplicated_attributes, reason = "each printed column names its type, and most are strings")]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::core::episode::{Approval, EpisodeFault, Phase, StepRecord, Undo};
use crate::core::policy::Mode;

/// The node and the policy of an episode, written once by the controller, and what a person has approved in it.
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
    doc = "One episode of healing one node: which faults, which steps were taken, what came of them, and what is put back.",
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
#[x_kube(validation = Rule::new("self.nodeName == oldSelf.nodeName && self.nodeUid == oldSelf.nodeUid && self.policy == oldSelf.policy && self.mode == oldSelf.mode").message("an episode's node, policy and mode cannot be changed; cancel it instead"))]
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
    /// Mode of the policy when the episode was opened: Enforce, or DryRun (then it ends in Simulated).
    pub mode: Mode,
    /// A person's yes to the step that awaits it. Needs the verb `approve` on noderemediations; `nrh approve` writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
}

/// How far the episode is.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeRemediationStatus {
    /// Pending, AwaitingApproval, Running, Verifying, Contained, Succeeded, Failed, Cancelled or Simulated.
    #[serde(default)]
    pub phase: Phase,
    /// Why, in one sentence.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub message: String,
    /// When it was opened, by the controller's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<Timestamp>,
    /// When it came to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The faults it heals, each with its place on the ladder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub faults: Vec<EpisodeFault>,
    /// The timeline: one line per attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub steps: Vec<StepRecord>,
    /// What was there before, and whether it has been put back.
    #[serde(default)]
    pub undo: Undo,
    /// Processing and Succeeded, as the medik8s contract names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
