//! Faults of a timeline, as the probe confirms them or the controller finds them.

use std::collections::BTreeMap;

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};

use super::{ClearedBy, Offset, is_false};
use nrh_core::fault::{FaultType, Severity};

/// A fault that the probe confirms, or the controller finds.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultEvent {
    /// The type of the fault.
    #[serde(rename = "type")]
    pub kind: FaultType,
    /// Its severity. Default: the one that the probe gives such a fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// Namespace and name of its pod, where the fault is about one. Default: `default/work`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Name of the container, the plugin or whatever the fault is about. For a stuck pod, the name of the DaemonSet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels of that pod, as the controller reads them. Without labels and owner, nothing is known of the pod, and rules that
    /// ask for it are blocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Kind of the owner that controls the pod. None: no owner does. Default: `ReplicaSet`, and `DaemonSet` for a stuck pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_owner: Option<String>,
    /// Whether that pod is being deleted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub terminating: bool,
    /// What resolves the fault, each action by itself. An empty list: no action does. Default: what usually resolves such a
    /// fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared_by: Option<Vec<ClearedBy>>,
    /// The fault disappears by itself after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasts: Option<Offset>,
}

impl FaultEvent {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let instead = match self.kind {
            FaultType::ProbeNotReporting => Some("`probe: Silent`"),
            FaultType::NodeCondition => Some("`condition: {type, status}`"),
            FaultType::NodeFlapping => Some("`flaps: {times, every}`"),
            FaultType::KubeletStartBlocked | FaultType::PlegStalled => Some("a fault that the probe finds"),
            _ => None,
        };
        if let Some(instead) = instead {
            bail!("{} is found by the controller itself: expected {instead}", self.kind);
        }
        let has_pod = self.kind.is_of_a_pod();
        ensure!(has_pod || self.pod.is_none(), "pod: a {} is about none", self.kind);
        ensure!(has_pod || !self.terminating, "terminating: a {} is about no pod", self.kind);
        let is_described = self.pod_labels.is_some() || self.pod_owner.is_some();
        ensure!(has_pod || !is_described, "podLabels, podOwner: a {} is about no pod", self.kind);
        if let Some(pod) = &self.pod {
            ensure!(pod.split('/').count() == 2, "pod: expected namespace/name, found {pod:?}");
        }
        Ok(())
    }
}
