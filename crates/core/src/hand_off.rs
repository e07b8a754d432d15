//! The hand-off of a node to a tool that reboots or replaces it, by the contract of the medik8s family. The request is an object
//! of the kind that a template names, with the node's name. Its conditions are the answer. Its deletion is the end.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::is_subdomain;
use super::tri_state::TriState;

/// The suffix of a template's kind, which the kind of the created object lacks.
const SUFFIX: &str = "Template";
/// The group of Cluster API's infrastructure providers. `OpenShift` has its Metal3 kinds in it, too.
const OF_MACHINES: &str = "infrastructure.cluster.x-k8s.io";
/// Groups of objects that belong to the cluster or to us. No remediator has its kinds there.
const RESERVED: [&str; 3] = ["k8s.io", "kubernetes.io", "runtimehealth.io"];

/// The template of a remediator's objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TemplateRef {
    /// Group and version of its kind, such as `self-node-remediation.medik8s.io/v1alpha1`. No group of Kubernetes itself.
    #[schemars(
        length(min = 6, max = 253),
        regex(
            pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/v[0-9]+((alpha|beta)[0-9]+)?$"
        )
    )]
    pub api_version: String,
    /// Its kind: that of the object to create, plus `Template`, such as `SelfNodeRemediationTemplate`.
    #[schemars(length(min = 9, max = 63), regex(pattern = r"^[A-Z][A-Za-z0-9]*Template$"))]
    pub kind: String,
    /// Name of the template.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
    /// Namespace of the template, in which the object is made as well.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: String,
}

impl TemplateRef {
    /// The kind of the object that is created from it.
    pub fn object_kind(&self) -> &str {
        self.kind.strip_suffix(SUFFIX).unwrap_or(&self.kind)
    }

    /// Its API group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Whether its remediator works on Machines and learns the Machine from an owner of that kind. No other object gets such an
    /// owner: Self Node Remediation would look up its node by it, and not find it.
    pub fn needs_machine(&self) -> bool {
        self.group() == OF_MACHINES
    }

    /// What is invalid, one sentence each.
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let (group, version) = self.api_version.split_once('/').unwrap_or_default();
        if !is_subdomain(group) || !group.contains('.') || !version.starts_with('v') || version.contains('/') {
            found.push(format!(
                "apiVersion: expected group and version such as self-node-remediation.medik8s.io/v1alpha1, found {:?}",
                self.api_version
            ));
        }
        if RESERVED.iter().any(|own| group == *own || group.strip_suffix(own).is_some_and(|rest| rest.ends_with('.'))) {
            found.push(format!("apiVersion: expected the group of a remediator, found {group}, which is none"));
        }
        let stem = self.kind.strip_suffix(SUFFIX).unwrap_or_default();
        if stem.is_empty() || !self.kind.chars().all(|c| c.is_ascii_alphanumeric()) {
            found.push(format!("kind: expected a kind that ends with Template and is longer, found {:?}", self.kind));
        }
        if !is_subdomain(&self.name) {
            found.push(format!("name: expected the name of an object, found {:?}", self.name));
        }
        if !is_subdomain(&self.namespace) || self.namespace.contains('.') || self.namespace.len() > 63 {
            found.push(format!("namespace: expected the name of a namespace, found {:?}", self.namespace));
        }
        found
    }
}

impl std::fmt::Display for TemplateRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// An object that we made, or were about to make, for a remediator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HandedOff {
    /// Group and version of its kind.
    #[schemars(length(max = 253))]
    pub api_version: String,
    /// Its kind, that of the template without `Template`.
    #[schemars(length(max = 63))]
    pub kind: String,
    /// Its namespace, that of the template.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Its name: that of the node.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The operation that it was made for, which stands in it.
    #[schemars(length(max = 63))]
    pub operation_id: String,
}

impl HandedOff {
    /// The object that is created from this template for the node.
    pub fn new(template: &TemplateRef, node: &str, operation_id: &str) -> Self {
        Self {
            api_version: template.api_version.clone(),
            kind: template.object_kind().to_owned(),
            namespace: template.namespace.clone(),
            name: node.to_owned(),
            operation_id: operation_id.to_owned(),
        }
    }

    /// Whether both refer to one object.
    pub fn is_same_object(&self, other: &Self) -> bool {
        let group = |of: &Self| of.api_version.split('/').next().unwrap_or_default().to_owned();
        (group(self), &self.kind, &self.namespace, &self.name)
            == (group(other), &other.kind, &other.namespace, &other.name)
    }

    /// Whether the object of this operation belongs to the same remediation.
    pub fn is_of_remediation(&self, operation_id: &str) -> bool {
        let remediation = |id: &str| id.rsplit_once('-').map(|(remediation, _)| remediation.to_owned());
        remediation(&self.operation_id).is_some_and(|own| remediation(operation_id) == Some(own))
    }
}

impl std::fmt::Display for HandedOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// The object of a hand-off, as last read. There is no view where it could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandOffView {
    /// Whether it exists and belongs to this very remediation.
    pub exists: bool,
    /// Whether its remediator works on it (condition `Processing`).
    pub processing: TriState,
    /// Whether its remediator is done (condition `Succeeded`). Some kinds never report it.
    pub succeeded: TriState,
    /// Why, in the remediator's words, bounded.
    pub message: String,
    /// Whether the Node will not come back under this uid (condition `PermanentNodeDeletionExpected`).
    pub node_goes: bool,
    /// Time since it was read.
    pub read: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> TemplateRef {
        TemplateRef {
            api_version: "self-node-remediation.medik8s.io/v1alpha1".to_owned(),
            kind: "SelfNodeRemediationTemplate".to_owned(),
            name: "automatic".to_owned(),
            namespace: "medik8s".to_owned(),
        }
    }

    #[test]
    fn the_object_is_named_by_its_template() {
        let handed = HandedOff::new(&template(), "worker-1", "e-1-2");
        assert_eq!(handed.to_string(), "SelfNodeRemediation medik8s/worker-1");
        assert!(
            handed.is_of_remediation("e-1-3") && !handed.is_of_remediation("e-2-2") && !handed.is_of_remediation("x")
        );
        let newer = HandedOff { api_version: "self-node-remediation.medik8s.io/v1".into(), ..handed.clone() };
        assert!(handed.is_same_object(&newer), "another version of the same object");
        let other = HandedOff { namespace: "other".into(), ..handed.clone() };
        assert!(!handed.is_same_object(&other));
    }

    #[test]
    fn what_can_be_no_template_is_named() {
        type Change = fn(&mut TemplateRef);
        assert_eq!(template().problems(), Vec::<String>::new());
        let metal = TemplateRef {
            api_version: "infrastructure.cluster.x-k8s.io/v1beta1".into(),
            kind: "Metal3RemediationTemplate".into(),
            ..template()
        };
        assert_eq!(metal.problems(), Vec::<String>::new());
        assert!(metal.needs_machine() && !template().needs_machine());
        let cases: [(Change, &str); 10] = [
            (|t| t.api_version = "v1".into(), "apiVersion: expected group and version"),
            (|t| t.api_version = "apps/v1".into(), "apiVersion: expected group and version"),
            (|t| t.api_version = "a.b/v1/x".into(), "apiVersion: expected group and version"),
            (|t| t.api_version = "rbac.authorization.k8s.io/v1".into(), "the group of a remediator"),
            (|t| t.api_version = "runtimehealth.io/v1alpha1".into(), "the group of a remediator"),
            (|t| t.kind = "Template".into(), "ends with Template and is longer"),
            (|t| t.kind = "SelfNodeRemediation".into(), "ends with Template and is longer"),
            (|t| t.name = "-x".into(), "the name of an object"),
            (|t| t.namespace = String::new(), "the name of a namespace"),
            (|t| t.namespace = "a.b".into(), "the name of a namespace"),
        ];
        for (change, sentence) in cases {
            let mut bad = template();
            change(&mut bad);
            let problems = bad.problems();
            assert!(problems.iter().any(|problem| problem.contains(sentence)), "{bad:?}: {problems:?}");
        }
    }
}
