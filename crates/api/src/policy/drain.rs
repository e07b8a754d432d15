//! Parameters of the step Drain.

#![expect(clippy::doc_markdown, reason = "these sentences are what `kubectl explain` prints")]

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::NAMESPACE;
use crate::HumanDuration;

/// Parameters of Drain.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Drain {
    /// The time that each pod gets to end, in place of its own terminationGracePeriodSeconds: a duration from 1s to
    /// 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<HumanDuration>,
    /// Evict also pods with data in an emptyDir, which deletes that data. Absent or false = such a pod stays, and the
    /// drain fails by its timeout and names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_empty_dir_data: Option<bool>,
    /// Evict also pods that no controller creates again. Absent or false = such a pod stays, and the drain fails by its
    /// timeout and names it. No pod is ever deleted past a PodDisruptionBudget or without a grace period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    /// Evict pods also on a node whose runtime or kubelet cannot end them. Pods of Deployments are created again
    /// elsewhere; all evicted pods stay Terminating until the node works again or is gone, and pods of StatefulSets
    /// come back nowhere before that. Absent or false = the step is skipped on such a node, or blocked if that is only
    /// suspected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_runtime_hang: Option<bool>,
    /// Pods in these namespaces stay, and the drain does not wait for them; each may end with `*`. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63), regex(pattern = NAMESPACE)))]
    pub excluded_namespaces: Vec<String>,
}
