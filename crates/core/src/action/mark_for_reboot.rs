//! Asks another tool of the node for a reboot, by a file that the tool watches.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::params::{ActionParams, Properties};
use super::traits::{RunsOn, Traits};
use crate::fault::FaultType;
use crate::reboot::{MAX_SENTINEL, SENTINEL, SENTINEL_PATTERN};

/// The timeout of the step may be hours. If the file cannot be created at all, people must be notified sooner.
const BLOCK_TIMEOUT: Duration = Duration::from_mins(15);

/// Parameters of the step `MarkForReboot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MarkForReboot {
    /// Path on the node of the file that requests the reboot (kured: `--reboot-sentinel`): directly in /run, and its name contains
    /// `reboot`. Default /run/reboot-required, which kured calls /var/run/reboot-required.
    #[serde(default = "default_sentinel")]
    #[schemars(length(max = MAX_SENTINEL), regex(pattern = SENTINEL_PATTERN))]
    pub path: String,
}

fn default_sentinel() -> String {
    SENTINEL.to_owned()
}

impl Default for MarkForReboot {
    fn default() -> Self {
        Self { path: default_sentinel() }
    }
}

impl Properties for MarkForReboot {
    const TRAITS: Traits = Traits {
        ends_boot: true,
        block_timeout: Some(BLOCK_TIMEOUT),
        ..Traits::resolves(RunsOn::Probe, |kind| match kind {
            FaultType::KubeletDown => {
                Err("who reboots a marked node drains it first, and no pod of it ends while its kubelet is down")
            }
            other => other.spec().remedy.new_boot,
        })
    };

    fn read(params: &ActionParams) -> Option<Self> {
        Some(params.mark_for_reboot.clone().unwrap_or_default())
    }

    fn write(&self, params: &mut ActionParams) {
        params.mark_for_reboot = Some(self.clone());
    }

    fn words(&self) -> Vec<String> {
        vec![self.path.clone()]
    }
}
