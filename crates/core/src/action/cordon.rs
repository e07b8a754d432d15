//! Marks the node unschedulable.

use std::time::Duration;

use super::params::{ActionParams, Properties};
use super::traits::Traits;

/// The parameters of the step. A cordon keeps pods away and resolves nothing: the next step follows at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cordon {
    /// How long the cordon lasts after the last step. Absent = it ends with the remediation.
    pub quarantine: Option<Quarantine>,
}

/// How long a node stays cordoned whose fault no step of the rule has resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// At most for this time after the cordon.
    pub quarantine_for: Duration,
    /// No longer than until the fault has stayed away for this time, by clear checks.
    pub healthy_delay: Duration,
}

impl Properties for Cordon {
    const TRAITS: Traits = Traits { marks_node: true, ..Traits::contains() };

    fn read(params: &ActionParams) -> Option<Self> {
        Some(params.cordon.clone().unwrap_or_default())
    }

    fn write(&self, params: &mut ActionParams) {
        params.cordon = Some(self.clone());
    }
}
