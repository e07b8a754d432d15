//! Remediators as the medik8s family has them: their kinds, and references to their templates.

use nrh::core::hand_off::TemplateRef;
use serde_json::{Value, json};

/// Group and version of Self Node Remediation.
pub const SELF_NODE: &str = "self-node-remediation.medik8s.io/v1alpha1";
/// Group and version of what Metal3 reboots machines by.
pub const METAL: &str = "infrastructure.cluster.x-k8s.io/v1beta1";

/// A template of a remediator, in namespace `medik8s`.
pub fn template(api_version: &str, kind: &str) -> TemplateRef {
    TemplateRef {
        api_version: api_version.into(),
        kind: kind.into(),
        name: "automatic".into(),
        namespace: "medik8s".into(),
    }
}

/// Definitions as a remediator brings them: its objects, and their templates.
pub fn definitions(group: &str, version: &str, kind: &str) -> String {
    let one = |kind: String| {
        let (plural, singular) = (format!("{}s", kind.to_lowercase()), kind.to_lowercase());
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}"),
                // Groups of Kubernetes' own want a word on who has reviewed them.
                "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
            "spec": {"group": group, "scope": "Namespaced",
                "names": {"plural": plural, "singular": singular, "kind": kind, "listKind": format!("{kind}List")},
                "versions": [{"name": version, "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema}}]}})
        .to_string()
    };
    format!("{}\n---\n{}", one(kind.to_owned()), one(format!("{kind}Template")))
}

/// What a user adds so that the controller finds the Machine behind a node.
pub fn machine_rights() -> String {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "hand-off-reads-machines",
            "labels": {"runtimehealth.io/aggregate-to-hand-off": "true"}},
        "rules": [{"apiGroups": ["cluster.x-k8s.io"], "resources": ["machines"], "verbs": ["get"]}]})
    .to_string()
}

/// The role that remediators of the family bring, with a label of their own.
pub fn metal_role() -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "metal-ext",
            "labels": {"rbac.ext-remediation/aggregate-to-ext-remediation": "true"}},
        "rules": [{"apiGroups": ["infrastructure.cluster.x-k8s.io"],
            "resources": ["metal3remediations", "metal3remediationtemplates"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"]}]})
}
