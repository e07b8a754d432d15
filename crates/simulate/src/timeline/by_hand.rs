//! What people start and cancel by hand, as a timeline writes it.

use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::Offset;
use nrh_core::fault::FaultType;
use nrh_core::policy::ActionType;
use nrh_core::remediation::{Cancel, ManualRequest};

/// For how long a start by hand waits, and the bounds of that.
const WAITS: (Duration, Duration, Duration) =
    (Duration::from_hours(1), Duration::from_mins(1), Duration::from_hours(24));

/// A person wants a step done.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ManualRequestEvent {
    /// Who.
    pub requested_by: String,
    /// For which kind of fault.
    pub fault: FaultType,
    /// Which step.
    pub action: ActionType,
    /// Of which policy; by default of the one that heals such a fault on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// For how long it may wait to begin, 1m to 24h; 1h by default.
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

    /// What is wanted by who has seen this generation of the policy.
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

/// A person ends a remediation.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CancelEvent {
    /// Who.
    pub cancelled_by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl CancelEvent {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.cancelled_by.is_empty(), "cancel.cancelledBy: expected a person's name, found \"\"");
        Ok(())
    }

    /// The no itself.
    pub fn cancel(&self) -> Cancel {
        Cancel { cancelled_by: self.cancelled_by.clone(), reason: self.reason.clone() }
    }
}
