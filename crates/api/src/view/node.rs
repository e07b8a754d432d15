//! A Node, reduced to what a decision needs.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};

use super::View;
use super::guard::UnreadableObject;
use crate::{CORDON_ANNOTATION, EXCLUDE_LABEL, TAINT_ANNOTATION};
use nrh_core::external_condition::{ExternalCondition, sorted};
use nrh_core::kubelet::{complaint, unfinished};
use nrh_core::reboot::is_boot_id;
use nrh_core::snapshot::{NodeView, Snapshot, TriState};
use nrh_core::taint::{KeyedTaint, TAINT_KEY, TaintMark};
use nrh_core::text::bounded;

/// Taints by which autoscalers mark a node for removal, and medik8s marks a node in maintenance.
const REMOVAL_TAINTS: [&str; 4] =
    ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption", "medik8s.io/drain"];
/// Conditions by which Kubernetes reports maintenance of the node (KEP-5683).
const LIFECYCLE_CONDITIONS: [&str; 4] =
    ["MaintenancePlanned", "MaintenanceInProgress", "DrainInProgress", "GracefulNodeShutdownInProgress"];

/// The conditions that the kubelet writes. Others (of node-problem-detector, for example) have their own times.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// Longest owner annotation that is read: the name of a remediation, and of an effect.
const LONGEST_MARK: usize = 253 + 1 + "PreferNoSchedule".len();

/// Reads a Node. Images, addresses and similar fields are left out.
pub fn view(node: &Node) -> NodeView {
    let meta = &node.metadata;
    let labels = meta.labels.clone().unwrap_or_default();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let condition = |kind: &str| conditions.iter().find(|c| c.type_ == kind);
    let ready = condition("Ready");
    let of_kubelet = KUBELET_CONDITIONS.iter().filter_map(|kind| condition(kind)?.last_heartbeat_time.as_ref());
    let mut exclusions = Vec::new();
    if let Some(value) = labels.get(EXCLUDE_LABEL)
        && value != "false"
    {
        exclusions.push(format!("label {EXCLUDE_LABEL}"));
    }
    exclusions.extend(maintained(node));
    NodeView {
        uid: meta.uid.clone().unwrap_or_default(),
        ready: match ready.map(|ready| ready.status.as_str()) {
            Some("True") => TriState::True,
            Some("False") => TriState::False,
            _ => TriState::Unknown,
        },
        ready_since: ready.and_then(|ready| ready.last_transition_time.as_ref()).map(|time| time.0),
        complaint: ready.filter(|ready| ready.status == "False").and_then(|ready| {
            complaint(ready.reason.as_deref().unwrap_or_default(), ready.message.as_deref().unwrap_or_default())
        }),
        status_at: of_kubelet.map(|time| time.0).max(),
        kubelet_version: info.and_then(|info| version(&info.kubelet_version, 64)),
        runtime_version: info.and_then(|info| version(&info.container_runtime_version, 96)),
        os_image: info.and_then(|info| version(&info.os_image, 96)),
        boot_id: info.map(|info| info.boot_id.clone()).filter(|id| is_boot_id(id)),
        unschedulable: node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
        cordoned_by: cordoned_by(node),
        taints: keyed_taints(node).map(keyed).collect(),
        tainted_by: tainted_by(node),
        deleting: meta.deletion_timestamp.is_some(),
        labels,
        exclusions,
        unreadable: None,
        conditions: external_conditions(node),
    }
}

/// A change of its conditions alone does not count: which of them a decision reads depends on the policies.
impl View for Node {
    fn store(&self, name: &str, snapshot: &mut Snapshot) -> bool {
        let view = view(self);
        let kubelet = snapshot.reports.get(name).map(|report| &report.kubelet);
        let unfinished = |view: &NodeView| kubelet.and_then(|kubelet| unfinished(view, kubelet));
        let Some(known) = snapshot.nodes.get_mut(name) else {
            snapshot.nodes.insert(name.to_owned(), view);
            return true;
        };
        let before = unfinished(known);
        // Every node sends the time of the kubelet's last status every five minutes. It matters only during an unfinished start
        // of the kubelet. Conditions come with it.
        known.status_at = view.status_at;
        known.conditions = Arc::clone(&view.conditions);
        let is_same = *known == view;
        *known = view;
        !is_same || before != unfinished(known)
    }

    /// What was known of this Node stays valid. One that was never read counts among the nodes that policies select.
    fn store_unreadable(bad: &UnreadableObject, name: &str, snapshot: &mut Snapshot) -> bool {
        let uid = bad.metadata.uid.clone().unwrap_or_default();
        let known = snapshot.nodes.remove(name).filter(|known| known.uid == uid);
        let labels = || bad.metadata.labels.clone().unwrap_or_default();
        let view = NodeView {
            deleting: bad.metadata.deletion_timestamp.is_some(),
            unreadable: Some(bad.why.clone()),
            ..known.clone().unwrap_or_else(|| NodeView { uid, labels: labels(), ..NodeView::default() })
        };
        let changed = known.as_ref() != Some(&view);
        snapshot.nodes.insert(name.to_owned(), view);
        changed
    }

    fn remove(name: &str, snapshot: &mut Snapshot) -> bool {
        snapshot.nodes.remove(name).is_some()
    }
}

/// Reads everything that a policy may ask for from a Node.
fn external_conditions(node: &Node) -> Arc<[ExternalCondition]> {
    let all = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let word = |text: &Option<String>| text.clone().unwrap_or_default();
    sorted(
        all.iter()
            .filter_map(|one| ExternalCondition::new(&one.type_, &one.status, &word(&one.reason), &word(&one.message))),
    )
}

fn version(text: &str, longest: usize) -> Option<String> {
    (!text.is_empty()).then(|| bounded(text, longest))
}

/// The marks by which other tools take the node out of service. The controller leaves such a node alone, and it stays
/// unschedulable even where the cordon was the controller's.
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

/// The remediation in the owner annotation of the controller's cordon, if the node has one.
pub fn cordoned_by(node: &Node) -> Option<String> {
    mark(node, CORDON_ANNOTATION)
}

/// The owner annotation of the controller's taint, if the node has one.
pub fn tainted_by(node: &Node) -> Option<TaintMark> {
    mark(node, TAINT_ANNOTATION).map(|text| TaintMark::read(&text))
}

/// The effect and value of a taint with the controller's key.
pub fn keyed(taint: &Taint) -> KeyedTaint {
    let value = taint.value.as_deref().unwrap_or_default();
    KeyedTaint { effect: bounded(&taint.effect, 64), value: bounded(value, 64) }
}

/// The taints with the controller's key on the node, whoever has put them there.
fn keyed_taints(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().filter(|taint| taint.key == TAINT_KEY)
}

fn mark(node: &Node, annotation: &str) -> Option<String> {
    let annotations = node.metadata.annotations.as_ref()?;
    annotations.get(annotation).map(|text| bounded(text, LONGEST_MARK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrh_core::snapshot::SHUTTING_DOWN;
    use serde_json::json;

    fn node(value: serde_json::Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_can_be_no_boot_id_is_not_taken_for_one_and_not_cut_to_one() {
        let shown = |id: &str| {
            let info = json!({"kubeletVersion": "", "architecture": "", "bootID": id, "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""});
            view(&node(json!({"metadata": {"name": "w1", "uid": "u"}, "status": {"nodeInfo": info}}))).boot_id
        };
        assert_eq!(
            shown("3f1c7f6e-1d3a-4e0c-9b6c-0a8b1c2d3e4f").as_deref(),
            Some("3f1c7f6e-1d3a-4e0c-9b6c-0a8b1c2d3e4f")
        );
        for hostile in ["", "a b", "a\nb", &"a".repeat(65), &"a".repeat(1 << 16), "\u{202e}a"] {
            assert_eq!(shown(hostile), None, "{} bytes", hostile.len());
        }
    }

    #[test]
    fn the_kubelets_own_conditions_tell_when_it_last_wrote_and_what_it_complains_of() {
        let (early, late) = ("2025-01-01T00:00:00Z", "2025-01-01T00:05:00Z");
        let mut seen = json!({"metadata": {"name": "w1", "uid": "u"},
            "status": {"nodeInfo": {"kubeletVersion": "v1.36.3", "architecture": "", "bootID": "", "containerRuntimeVersion": "containerd://1.7.24",
                    "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""},
                "conditions": [
                    {"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": early},
                    {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": early,
                        "message": "PLEG is not healthy: pleg was last seen active 3m1s ago"},
                    {"type": "KernelDeadlock", "status": "False", "lastHeartbeatTime": late}]}});
        let found = view(&node(seen.clone()));
        assert_eq!((found.ready, found.complaint), (TriState::True, None));
        assert_eq!(found.status_at, early.parse().ok(), "another program's condition is not the kubelet's word");
        assert_eq!(found.kubelet_version.as_deref(), Some("v1.36.3"));
        assert_eq!(found.runtime_version.as_deref(), Some("containerd://1.7.24"));
        let ready = &mut seen["status"]["conditions"][1];
        (ready["status"], ready["reason"], ready["lastHeartbeatTime"]) =
            (json!("False"), json!("KubeletNotReady"), json!(late));
        let found = view(&node(seen));
        assert_eq!((found.ready, found.complaint), (TriState::False, Some(nrh_core::kubelet::Complaint::PlegStalled)));
        assert_eq!(found.status_at, late.parse().ok());
    }

    #[test]
    fn marks_of_others_are_exclusions() {
        let seen = view(&node(json!({
            "metadata": {"name": "w1", "labels": {EXCLUDE_LABEL: ""}, "annotations": {CORDON_ANNOTATION: "e1"}},
            "spec": {"unschedulable": true, "taints": [
                {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"},
                {"key": "medik8s.io/drain", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "MaintenanceInProgress", "status": "True"},
                                      {"type": "DrainInProgress", "status": "False"}]}})));
        assert_eq!(
            seen.exclusions,
            [
                "label remediation.medik8s.io/exclude-from-remediation",
                "taint ToBeDeletedByClusterAutoscaler",
                "taint medik8s.io/drain",
                "condition MaintenanceInProgress"
            ]
        );
        assert_eq!((seen.unschedulable, seen.cordoned_by.as_deref()), (true, Some("e1")));
        assert_eq!(seen.ready, TriState::Unknown);
        let down = view(&node(json!({"metadata": {"name": "w1"}, "status": {"conditions": [
            {"type": "DrainInProgress", "status": "True"}, {"type": "GracefulNodeShutdownInProgress", "status": "True"}]}})));
        assert_eq!(down.exclusions, SHUTTING_DOWN);
    }
}
