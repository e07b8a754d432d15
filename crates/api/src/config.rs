//! `RemediationConfig`: one object named `cluster`, which suspends all remediation.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::suspension::{Suspend, Suspension};

/// Name of the only object of this kind.
pub const CONFIG_NAME: &str = "cluster";

/// What applies to all nodes and all policies.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "runtimehealth.io",
    version = "v1alpha1",
    kind = "RemediationConfig",
    plural = "remediationconfigs",
    singular = "remediationconfig",
    shortname = "rmc",
    category = "runtimehealth",
    status = "RemediationConfigStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "What applies to all nodes and all policies: whether remediation is suspended, by whom, and why. One object, named cluster. Without it nothing is suspended.",
    label("app.kubernetes.io/part-of", "nrh"),
    validation = Rule::new("self.metadata.name == 'cluster'").message("metadata.name: expected cluster, the only object of this kind"),
    printcolumn(name = "Suspended", type_ = "boolean", json_path = ".spec.suspend"),
    printcolumn(name = "Active", type_ = "integer", json_path = ".status.activeRemediations"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "By", type_ = "string", json_path = ".spec.suspendedBy", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".spec.reason", priority = 1)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemediationConfigSpec {
    /// True = no step starts in this cluster, whoever requests it. Drains, hand-offs and reboot markers end at once;
    /// any other step finishes, then its remediation is cancelled. Cordons, taints and hand-offs are removed; quarantined
    /// nodes stay cordoned. Checks and reports continue.
    #[serde(default)]
    pub suspend: bool,
    /// Why, for the people who find it suspended. At most 256 characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub reason: String,
    /// Who has written `suspend` and `reason`: the name of the caller, as `kubectl auth whoami` prints it; admission
    /// compares it. `nrh suspend --all` and `nrh resume --all` write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub suspended_by: Option<String>,
}

impl Suspend for RemediationConfig {
    fn suspension(&self) -> Suspension<'_> {
        let RemediationConfigSpec { suspend, reason, suspended_by } = &self.spec;
        Suspension { suspend: *suspend, by: suspended_by.as_deref(), reason }
    }
}

/// What the controller has made of it. Written by the controller.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RemediationConfigStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Remediations of all policies that have not ended, dry runs excluded.
    #[serde(default)]
    pub active_remediations: u32,
    /// Ready: the controller applies the spec. Its reason says whether remediation is suspended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
