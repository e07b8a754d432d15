//! An answer that may be that nobody knows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

crate::named! {
    /// True, False, or nobody knows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum TriState {
        /// Yes, on a clean check.
        True,
        /// No, on confirmed evidence.
        False,
        /// Nobody could check.
        #[default]
        Unknown,
    }
}

impl TriState {
    /// The status of a condition as Kubernetes spells it; Unknown for whatever else stands there.
    pub fn of(status: &str) -> Self {
        match status {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}
