//! Parameters of the step Taint.

#![expect(clippy::doc_markdown, reason = "these sentences are what `kubectl explain` prints")]

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use nrh_core::taint::TaintEffect;

/// Parameters of Taint.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Taint {
    /// What the taint `runtimehealth.io/unhealthy` does to pods that do not tolerate it: with PreferNoSchedule
    /// (default), the scheduler avoids the node if other nodes have room. With NoSchedule it never uses the node, not even for pods
    /// of DaemonSets, which a cordon allows. Neither evicts a running pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}
