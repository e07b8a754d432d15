//! A Node, stripped to what a decision needs.

use k8s_openapi::api::core::v1::Node;

use crate::api::{CORDON_ANNOTATION, EXCLUDE_LABEL};
use crate::core::snapshot::{NodeView, Tri};
use crate::core::text::bounded;

/// Taints by which autoscalers mark a node that they are about to remove.
const REMOVAL_TAINTS: [&str; 3] =
    ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"];
/// Conditions by which Kubernetes says that somebody is at work on the node (KEP-5683).
const LIFECYCLE_CONDITIONS: [&str; 4] =
    ["MaintenancePlanned", "MaintenanceInProgress", "DrainInProgress", "GracefulNodeShutdownInProgress"];

/// Reads a Node. Heartbeat times, images, addresses and the like are left out, so that two views are equal
/// when nothing that matters has changed.
pub fn view(node: &Node) -> NodeView {
    let meta = &node.metadata;
    let labels = meta.labels.clone().unwrap_or_default();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let status_of = |kind: &str| conditions.iter().find(|c| c.type_ == kind).map(|c| c.status.as_str());
    let mut vetoes = Vec::new();
    if let Some(value) = labels.get(EXCLUDE_LABEL)
        && value != "false"
    {
        vetoes.push(format!("label {EXCLUDE_LABEL}"));
    }
    vetoes.extend(maintained(node));
    NodeView {
        uid: meta.uid.clone().unwrap_or_default(),
        ready: match status_of("Ready") {
            Some("True") => Tri::True,
            Some("False") => Tri::False,
            _ => Tri::Unknown,
        },
        unschedulable: node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
        cordoned_by: cordoned_by(node),
        deleting: meta.deletion_timestamp.is_some(),
        labels,
        vetoes,
    }
}

/// The marks by which others say that they take the node out of service: such a node is left alone, and it stays
/// unschedulable even where the cordon was ours.
pub fn maintained(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let removal = taints.iter().filter(|taint| REMOVAL_TAINTS.contains(&taint.key.as_str()));
    let lifecycle = LIFECYCLE_CONDITIONS
        .iter()
        .filter(|kind| conditions.iter().find(|c| c.type_ == **kind).is_some_and(|c| c.status == "True"));
    removal
        .map(|taint| format!("taint {}", taint.key))
        .chain(lifecycle.map(|kind| format!("condition {kind}")))
        .collect()
}

/// The episode in our cordon mark, if the node carries one.
pub fn cordoned_by(node: &Node) -> Option<String> {
    let annotations = node.metadata.annotations.as_ref()?;
    annotations.get(CORDON_ANNOTATION).map(|episode| bounded(episode, 253))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(value: serde_json::Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_heartbeat_alone_changes_nothing() {
        let at = |time: &str| {
            view(&node(json!({"metadata": {"name": "w1", "uid": "u", "resourceVersion": time},
                "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": time}],
                           "images": [{"names": ["a"], "sizeBytes": 5}]}})))
        };
        assert_eq!(at("2025-01-01T00:00:00Z"), at("2025-01-01T00:05:00Z"));
        assert_eq!(at("2025-01-01T00:00:00Z").ready, Tri::True);
    }

    #[test]
    fn marks_of_others_are_vetoes() {
        let seen = view(&node(json!({
            "metadata": {"name": "w1", "labels": {EXCLUDE_LABEL: ""}, "annotations": {CORDON_ANNOTATION: "e1"}},
            "spec": {"unschedulable": true, "taints": [
                {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "MaintenanceInProgress", "status": "True"},
                                      {"type": "DrainInProgress", "status": "False"}]}})));
        assert_eq!(
            seen.vetoes,
            [
                "label remediation.medik8s.io/exclude-from-remediation",
                "taint ToBeDeletedByClusterAutoscaler",
                "condition MaintenanceInProgress"
            ]
        );
        assert_eq!((seen.unschedulable, seen.cordoned_by.as_deref()), (true, Some("e1")));
        assert_eq!(seen.ready, Tri::Unknown);
    }
}
