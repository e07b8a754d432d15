//! Reboots the machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::params::{ActionParams, Properties};
use super::traits::{RunsOn, Traits};

/// Parameters of the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reboot {
    /// Reboot only a node that a Drain of this remediation has emptied. `false` reboots it with its pods: every pod ends with the
    /// machine, whatever its disruption budget says. Default true; then the rule needs a Drain before the Reboot.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub require_drain: bool,
}

const fn yes() -> bool {
    true
}

impl Default for Reboot {
    fn default() -> Self {
        Self { require_drain: yes() }
    }
}

impl Properties for Reboot {
    const TRAITS: Traits = Traits {
        ends_boot: true,
        under_cordon: true,
        ..Traits::resolves(RunsOn::Probe, |kind| kind.spec().remedy.new_boot)
    };

    fn read(params: &ActionParams) -> Option<Self> {
        Some(params.reboot.clone().unwrap_or_default())
    }

    fn write(&self, params: &mut ActionParams) {
        params.reboot = Some(self.clone());
    }

    fn words(&self) -> Vec<String> {
        if self.require_drain { Vec::new() } else { vec!["requireDrain: false".to_owned()] }
    }
}
