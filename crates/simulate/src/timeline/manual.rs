//! Manual requests by people, as a timeline writes them.

use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::Offset;
use nrh_core::fault::FaultType;
use nrh_core::policy::ActionType;
use nrh_core::remediation::ManualRequest;

/// How long a manual request waits: default, minimum, maximum.
const WAITS: (Duration, Duration, Duration) =
    (Duration::from_hours(1), Duration::from_mins(1), Duration::from_hours(24));

/// A person requests a step.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ManualRequestEvent {
    /// Who.
    pub requested_by: String,
    /// The type of fault.
    pub fault: FaultType,
    /// Which step.
    pub action: ActionType,
    /// The policy. Default: the one that remediates such a fault on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// How long it may wait to start, 1m to 24h. Default: 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timeout: Option<Offset>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl ManualRequestEvent {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.requested_by.is_empty(), "manual.requestedBy: expected a person's name, found \"\"");
        let (_, least, most) = WAITS;
        let is_bounded = self.start_timeout.is_none_or(|timeout| (least..=most).contains(&timeout.0));
        ensure!(
            is_bounded,
            "manual.startTimeout: expected 1m to 24h, found {}",
            self.start_timeout.unwrap_or_default()
        );
        Ok(())
    }

    /// The manual request of a person who has seen this generation of the policy.
    pub fn manual(&self, policy_generation: Option<i64>) -> ManualRequest {
        ManualRequest {
            requested_by: self.requested_by.clone(),
            fault: self.fault,
            fault_id: None,
            action: self.action,
            policy_generation,
            reason: self.reason.clone(),
            timeout: self.start_timeout.map_or(WAITS.0, |timeout| timeout.0),
        }
    }
}
