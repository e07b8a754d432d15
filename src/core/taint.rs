//! A taint of ours on a node: pods that do not tolerate it stay away, pods that run there stay.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Key of the taint. Nobody else's taint has it; whose it is stands in an annotation beside it.
pub const TAINT_KEY: &str = "runtimehealth.io/unhealthy";

/// What the taint does to pods that do not tolerate it. Never `NoExecute`: that ends pods past their disruption budgets, which a
/// drain asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// No new one comes to the node.
    #[default]
    NoSchedule,
    /// New ones come only where there is no room elsewhere.
    PreferNoSchedule,
}

impl TaintEffect {
    /// The word that stands in the Node.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
        }
    }
}
