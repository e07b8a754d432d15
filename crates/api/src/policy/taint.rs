//! Parameters of the step Taint.

#![expect(clippy::doc_markdown, reason = "these sentences are what `kubectl explain` prints")]

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use nrh_core::taint::TaintEffect;

/// Parameters of Taint.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Taint {
    /// What the taint `runtimehealth.io/unhealthy` does to pods that do not tolerate it: PreferNoSchedule (default) lets new ones
    /// come where there is no room elsewhere; NoSchedule keeps them away, those of DaemonSets too, unlike a cordon. Neither ends
    /// a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}
