//! `RemediationPolicy`: what may be done about which fault on which nodes, kept in Git.

#![expect(clippy::doc_markdown, reason = "these sentences are what `kubectl explain` prints")]
#![expect(clippy::duplicated_attributes, reason = "each printed column names its type, and most are strings")]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

mod drain;
mod names;
mod range;
mod selector;
mod status;
mod step;
mod taint;
mod window;

pub use drain::Drain;
pub use names::{in_plain_words, unknown_name};
pub use selector::FaultSelector;
pub use status::{FaultLimitStatus, NodeLimitStatus, PolicyLimitsStatus, RemediationPolicyStatus, StormStatus};
pub(crate) use step::default_timeout;
pub use step::{Cordon, Notify, PolicyStep, ReleaseHungProcess, Verify};
pub use taint::Taint;
pub use window::PolicyWindow;

use super::HumanDuration;
use nrh_core::fault::Severity;
use nrh_core::matching::LABEL_KEY;
use nrh_core::policy::{History, Limits, Mode};
use nrh_core::snapshot::TriState;

/// The name of a namespace, or the beginning of one with a `*`.
const NAMESPACE: &str = r"^[a-z0-9][-a-z0-9]*\*?$";
/// The value of a label, which may be empty.
const LABEL_VALUE: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// Which nodes, which faults, which steps, and how much at once.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "runtimehealth.io",
    version = "v1alpha1",
    kind = "RemediationPolicy",
    plural = "remediationpolicies",
    singular = "remediationpolicy",
    shortname = "rmp",
    category = "runtimehealth",
    status = "RemediationPolicyStatus",
    derive = "PartialEq",
    doc = "Which actions may be executed for which faults on which nodes. Written by people, kept in Git. If several policies have a rule for a fault of a node, one in mode Enforce goes before one in mode DryRun; among those the highest priority decides, then the first name by alphabet. A node has one remediation at a time, for its most urgent fault.",
    label("app.kubernetes.io/part-of", "nrh"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.selectedNodes"),
    printcolumn(name = "Unhealthy", type_ = "integer", json_path = ".status.unhealthyNodes"),
    printcolumn(name = "In-Flight", type_ = "integer", json_path = ".status.inFlight"),
    printcolumn(
        name = "Remediation-Allowed",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="RemediationAllowed")].status"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority", priority = 1)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("self.rules.all(r, self.rules.exists_one(o, o.name == r.name))").message("the names of rules must be unique in a policy"))]
pub struct RemediationPolicySpec {
    /// The nodes that the policy applies to, by their labels. Absent or empty selects all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// If two enforcing policies have a rule for the same fault of a node, the one with the higher priority applies,
    /// then the one whose name comes first. A dry run takes no fault from another policy; it records what it would do
    /// in place of one with a lower priority. -1000 to 1000. Default 0.
    #[serde(default)]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: i32,
    /// DryRun (default) plans and records and changes nothing; Enforce executes.
    #[serde(default)]
    pub mode: Mode,
    /// True stops the policy: nothing starts and no further step is executed. Cleanup goes on.
    #[serde(default)]
    pub suspend: bool,
    /// Reasons to start nothing new, one line each. Running remediations are finished. Empty = not paused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 256)))]
    pub pause_requests: Vec<String>,
    /// When steps may start. Empty = at any time. A running step is finished, except a mark for a reboot: it is
    /// removed when its window closes. Verification and cleanup go on at any time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new(window::ZONES_EXIST).optional_old_self(true).message("timeZone: expected the name of an IANA time zone, such as UTC or Europe/Berlin"))]
    pub windows: Vec<PolicyWindow>,
    /// Which steps to execute for which faults. The first rule that matches a fault applies. 1 to 16.
    #[schemars(length(min = 1, max = 16))]
    pub rules: Vec<PolicyRule>,
    /// How much may happen at once. The defaults are finite.
    #[serde(default)]
    pub limits: Limits,
    /// How long finished remediations are kept.
    #[serde(default)]
    pub history: History,
}

/// A choice of nodes, or of pods, by labels: all of `matchLabels` and all of `matchExpressions`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeSelector {
    /// Labels it must have, with these values. At most 16.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "label_values")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements on labels. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<NodeRequirement>,
}

/// Labels with their values, both as Kubernetes lets them be: any other would select nothing.
fn label_values(_: &mut SchemaGenerator) -> Schema {
    let rule = format!("self.all(key, key.size() <= 317 && key.matches('{LABEL_KEY}'))");
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
        "x-kubernetes-validations": [{
            "rule": rule,
            "message": "expected the key of a label, such as pool or node.kubernetes.io/instance-type"
        }]
    })
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectorOperator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
}

/// One requirement on a label.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("self.operator in ['In', 'NotIn'] ? (has(self.values) && self.values.size() > 0) : !has(self.values)").message("In and NotIn need values; Exists and DoesNotExist take none"))]
pub struct NodeRequirement {
    /// Key of the label, such as `node.kubernetes.io/instance-type` or `app.kubernetes.io/name`.
    #[schemars(length(min = 1, max = 317), regex(pattern = LABEL_KEY))]
    pub key: String,
    /// In: the label has one of the values; NotIn: it is absent or has none of them; Exists; DoesNotExist.
    pub operator: SelectorOperator,
    /// Values for In and NotIn. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 63), regex(pattern = LABEL_VALUE)))]
    pub values: Vec<String>,
}

/// The faults that a rule applies to, and its steps.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("self.steps.all(s, s.action != 'Notify') || (self.steps.exists_one(s, s.action == 'Notify') && self.steps[self.steps.size() - 1].action == 'Notify')").message("Notify must be the last step, and there may be only one"))]
#[x_kube(validation = Rule::new("self.steps.exists(s, !(s.action in ['Cordon', 'Taint', 'Drain']) || has(s.cordon))").message("a rule with nothing but Cordon, Taint or Drain has no effect: add a step that remediates, or Notify, or cordon.quarantineFor"))]
#[x_kube(validation = Rule::new("self.steps[0].action != 'Drain' && [1, 2, 3, 4, 5, 6, 7].all(i, i >= self.steps.size() || self.steps[i].action != 'Drain' || [0, 1, 2, 3, 4, 5, 6].exists(j, j < i && self.steps[j].action == 'Cordon' && (self.steps[j].mode == 'Enforce' || self.steps[i].mode == 'DryRun')))").message("Drain needs a Cordon step before it, of mode Enforce unless it is a dry run itself, or evicted pods would come back"))]
#[x_kube(validation = Rule::new("self.steps[0].action != 'Reboot' && [1, 2, 3, 4, 5, 6, 7].all(i, i >= self.steps.size() || self.steps[i].action != 'Reboot' || [0, 1, 2, 3, 4, 5, 6].exists(j, j < i && self.steps[j].action == 'Cordon' && (self.steps[j].mode == 'Enforce' || self.steps[i].mode == 'DryRun')))").message("Reboot needs a Cordon step before it, of mode Enforce unless it is a dry run itself"))]
#[x_kube(validation = Rule::new("[0, 1, 2, 3, 4, 5, 6, 7].all(i, i >= self.steps.size() || self.steps[i].action != 'Reboot' || (has(self.steps[i].reboot) && has(self.steps[i].reboot.requireDrain) && !self.steps[i].reboot.requireDrain) || [0, 1, 2, 3, 4, 5, 6].exists(j, j < i && self.steps[j].action == 'Drain' && (self.steps[j].mode == 'Enforce' || self.steps[i].mode == 'DryRun')))").message("Reboot needs a Drain step before it, of mode Enforce unless it is a dry run itself, or reboot.requireDrain: false"))]
#[x_kube(validation = Rule::new("!self.steps.exists(s, s.action == 'DeletePod') || self.steps.all(s, !has(s.taint) || !has(s.taint.effect) || s.taint.effect != 'NoSchedule')").message("taint.effect: under NoSchedule the pod that DeletePod deletes has no successor; in a rule with DeletePod it must be PreferNoSchedule"))]
#[x_kube(validation = Rule::new("self.steps.all(s, s.action != 'Taint' || (has(s.taint) && has(s.taint.effect) && s.taint.effect == 'NoSchedule')) || self.steps.all(s, !has(s.taint) || !has(s.taint.effect) || s.taint.effect != 'NoSchedule')").message("taint.effect: a remediation sets one taint, so the Taint steps of a rule must have the same effect"))]
#[x_kube(validation = Rule::new("!has(self.match.nodeConditions) || (has(self.match.faults) && self.match.faults.size() > 0) || self.steps.all(s, s.action in ['Cordon', 'Taint', 'Drain', 'HandOff', 'Notify'])").message("steps: no probe can check whether a condition of the Node is true, so for nodeConditions alone only Cordon, Taint, Drain, HandOff and Notify are executed; remove the other step, or name its faults in match.faults"))]
#[x_kube(validation = Rule::new("self.steps.exists(s, s.mode == 'Enforce')").message("at least one step must be Enforce; for a dry run of a whole policy use spec.mode"))]
pub struct PolicyRule {
    /// Name, unique in the policy: it stands in remediations and events.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Which faults the rule applies to. All conditions must be met.
    #[serde(rename = "match")]
    pub matches: PolicyMatch,
    /// The steps, the cheapest and safest first. The next step follows if one did not resolve the fault. 1 to 8.
    #[schemars(length(min = 1, max = 8))]
    pub steps: Vec<PolicyStep>,
}

/// Which faults a rule applies to.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("(has(self.faults) && self.faults.size() > 0) || has(self.nodeConditions)").message("match needs at least one of faults and nodeConditions"))]
#[x_kube(validation = Rule::new("!has(self.faults) || !('NodeCondition' in self.faults)").message("a NodeCondition is asked for by its type and status, in nodeConditions"))]
#[x_kube(validation = Rule::new("!has(self.nodeConditions) || self.minSeverity in ['Low', 'Medium']").message("minSeverity: a condition of a Node is of severity Medium, so none would ever match"))]
#[x_kube(validation = Rule::new("!has(self.nodeConditions) || !has(self.namespaces)").message("namespaces: a condition of a Node is about no pod, so none would ever match; nodeConditions need a rule of their own"))]
#[x_kube(validation = Rule::new("!has(self.nodeConditions) || !(has(self.podSelector) || has(self.ownerKinds))").message("podSelector and ownerKinds: a condition of a Node is about no pod, so none would ever match; nodeConditions need a rule without them"))]
#[x_kube(validation = Rule::new("!(has(self.podSelector) || has(self.ownerKinds)) || !has(self.faults) || self.faults.all(f, f in ['Pods', 'HungContainer', 'NetworkPluginHung', 'RuntimeClientHung', 'OrphanContainer', 'LeakedShim', 'LostTask', 'DuplicateSandbox', 'GhostSandbox', 'ContainerStuck', 'FrozenCgroup', 'StuckDaemonSetPod', 'NodeCondition'])").message("podSelector and ownerKinds: among the faults is one that is never about a pod, so it would never match; name it in a rule without them"))]
pub struct PolicyMatch {
    /// Kinds of fault, groups of kinds (`Runtime`, `Kubelet`, `Node`, `Pods`), or `*` for all but `NodeCondition`. The fault must be
    /// one of them, or one of `nodeConditions`. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub faults: Vec<FaultSelector>,
    /// Conditions of the Node that other tools write, such as node-problem-detector. One of them must be present. 1 to
    /// 8. `minDuration` counts from when the controller first saw it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8))]
    pub node_conditions: Vec<PolicyNodeCondition>,
    /// Least severity: Low (default), Medium, High or Critical.
    #[serde(default)]
    pub min_severity: Severity,
    /// Only faults of a pod in one of these namespaces, each of which may end with `*`. Absent = any namespace, and
    /// faults that are about no pod. 1 to 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63), regex(pattern = NAMESPACE)))]
    pub namespaces: Vec<String>,
    /// No faults of a pod in one of these namespaces, each of which may end with `*`. Does not exclude faults that are
    /// about no pod. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63), regex(pattern = NAMESPACE)))]
    pub excluded_namespaces: Vec<String>,
    /// Only faults of a pod with these labels; `{}` = of any pod. While the controller has not read the labels, the
    /// fault is blocked and no later rule takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<NodeSelector>,
    /// Only faults of a pod whose controlling owner has one of these kinds, such as DaemonSet, ReplicaSet, StatefulSet
    /// or Job. Node = static pods, None = a pod without such an owner. Not Deployment or CronJob: their pods are
    /// controlled by a ReplicaSet or a Job. 1 to 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 63), regex(pattern = "^[A-Z][A-Za-z0-9]*$")))]
    #[x_kube(validation = Rule::new("!('Deployment' in self) && !('CronJob' in self)").message("expected what controls the pod itself: pods of a Deployment are controlled by a ReplicaSet, those of a CronJob by a Job"))]
    pub owner_kinds: Vec<String>,
    /// Only on nodes with one of these container runtimes, by `status.nodeInfo` of the Node. 1 to 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8))]
    pub runtimes: Vec<PolicyRuntime>,
    /// Only nodes whose kubelet is within one of these ranges, such as `>=1.29 <1.31`: comparisons with `>=`, `>`,
    /// `<=`, `<` or `=`, separated by spaces, all of which must be true. Vendor suffixes are ignored; `-rc` and the
    /// like come before their release. 1 to 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8), inner(length(min = 2, max = 64), regex(pattern = range::FORM)))]
    #[x_kube(validation = Rule::new(format!("self.all(r, {})", range::holds_something("r"))).message(range::HOLDS_NOTHING))]
    pub kubelet_versions: Vec<String>,
    /// How long the fault must be present before the first step starts, in addition to being confirmed: a duration from
    /// 1s to 24h, such as `90s`. Absent = as soon as it is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_duration: Option<HumanDuration>,
}

/// A container runtime and its versions.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyRuntime {
    /// Its name as the Node reports it: `containerd`, `cri-o`, `docker`.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("!(self in ['crio', 'dockerd', 'cri-dockerd', 'moby'])").message("no Node reports this name: expected the one before the :// in status.nodeInfo.containerRuntimeVersion of the Node, such as containerd, cri-o or docker"))]
    pub name: String,
    /// Which versions, as in `kubeletVersions`: `>=1.7.0 <1.7.24`. Absent = all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 64), regex(pattern = range::FORM))]
    #[x_kube(validation = Rule::new(range::holds_something("self")).message(range::HOLDS_NOTHING))]
    pub versions: Option<String>,
}

/// A condition of the Node, as it stands when something is wrong.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyNodeCondition {
    /// Its type, such as KernelDeadlock. Not one that this controller writes itself. 1 to 316 characters.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    #[x_kube(validation = Rule::new("!(self in ['ContainerRuntimeUnhealthy', 'KubeletUnhealthy', 'ContainersUnresponsive', 'SandboxesInconsistent', 'NetworkPluginUnresponsive', 'HostUnhealthy', 'StorageNotReady', 'SystemdUnresponsive', 'ClientCertificateExpiring', 'ClockUnsynchronised', 'RestartUnsafe'])").message("the controller writes this condition on Nodes itself (--node-conditions), which would be a loop; name the fault in faults instead"))]
    pub kind: String,
    /// The status that means trouble: "True", "False" or "Unknown". Tools differ in it, so it has to be said.
    pub status: TriState,
    /// Reasons of the condition that match, each of 1 to 256 characters. Absent = any. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 256)))]
    pub reasons: Vec<String>,
}
