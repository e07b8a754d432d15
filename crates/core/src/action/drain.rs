//! Evicts the pods of the node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::params::{ActionParams, Properties};
use super::traits::Traits;

/// How a node is drained. Like a cordon it keeps pods away and resolves nothing: whether it succeeds or fails, the next step follows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Seconds that each pod gets to end by itself, in place of its own time. 1 to 86,400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub grace_period_seconds: Option<u32>,
    /// Evict also pods that use an `emptyDir`, which deletes their data.
    #[serde(default)]
    pub delete_empty_dir_data: bool,
    /// Whether pods are evicted that no controller makes again.
    #[serde(default)]
    pub force: bool,
    /// Whether pods are evicted as well where the node cannot end them, by what is known of its runtime and its kubelet.
    #[serde(default)]
    pub ignore_runtime_hang: bool,
    /// Pods in these namespaces stay; each may end with `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 63)))]
    pub excluded_namespaces: Vec<String>,
}

impl Properties for Drain {
    const TRAITS: Traits = Traits { evicts_pods: true, under_cordon: true, ..Traits::contains() };

    fn read(params: &ActionParams) -> Option<Self> {
        Some(params.drain.clone().unwrap_or_default())
    }

    fn write(&self, params: &mut ActionParams) {
        params.drain = Some(self.clone());
    }

    fn words(&self) -> Vec<String> {
        let flags = [(self.force, "force"), (self.ignore_runtime_hang, "ignoreRuntimeHang")];
        flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word.to_owned()).collect()
    }
}
