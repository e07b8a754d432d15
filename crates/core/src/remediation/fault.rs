//! A fault of a remediation, and its present step.

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fault::{FaultType, Subject};

/// The progress of a fault in its remediation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Resolution {
    /// Still to be resolved.
    Open,
    /// Gone, by a clear check.
    Resolved,
    /// No step is left for it.
    Exhausted,
}

/// A fault of a remediation, and its present step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemediationFault {
    /// Id of the fault.
    #[schemars(length(max = 80))]
    pub id: String,
    /// Kind of the fault.
    #[serde(rename = "type")]
    pub kind: FaultType,
    /// The object the fault is about.
    pub subject: Subject,
    /// Since when it was present when it joined the remediation, by the controller's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Name of the rule that applies.
    #[schemars(length(max = 63))]
    pub rule: String,
    /// Index of its present step, from 0.
    pub step_index: u32,
    /// Open, Resolved (gone, by a clear check) or Exhausted (no step is left for it).
    pub state: Resolution,
    /// Since when it is absent, while its node is quarantined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clear_since: Option<Timestamp>,
}

impl fmt::Display for RemediationFault {
    /// The same as of a [`Fault`](crate::fault::Fault).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind, self.subject)
    }
}

impl RemediationFault {
    /// Whether it is gone, and was still open when it went.
    pub fn is_resolved_by_steps(&self) -> bool {
        self.state == Resolution::Resolved && !self.resolved_after_exhaustion()
    }

    /// Whether it is gone, and no step was left for it when it went: no step has resolved it.
    pub fn resolved_after_exhaustion(&self) -> bool {
        self.state == Resolution::Resolved && self.clear_since.is_some()
    }
}
