//! Conditions of Nodes in a timeline.

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};

use super::ClearedBy;
use nrh_core::external_condition::{self, ExternalCondition};
use nrh_core::snapshot::TriState;
use nrh_core::text::bounded;

/// A condition of a Node that another tool writes or removes.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConditionEvent {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its status from now on: True, False or Unknown. Without it, the Node has no such condition any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<TriState>,
    /// The tool's reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The tool's message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What resolves it, each by itself: Reboot, `HandOff`, or both. Then the condition is as it was before. Default: nothing,
    /// because the tool defines the meaning of the condition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cleared_by: Vec<ClearedBy>,
}

impl ConditionEvent {
    /// The condition of this event. `None`: the Node has none.
    pub fn condition(&self) -> Option<ExternalCondition> {
        ExternalCondition::new(&self.kind, self.status?.as_str(), &self.reason, &self.message)
    }

    /// Checks that the event is possible.
    ///
    /// # Errors
    /// No other tool writes its type, or it has a reason or message without a status.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let kind = bounded(&self.kind, 64);
        let is_foreign = external_condition::can_be_asked_for(&self.kind);
        ensure!(is_foreign, "condition: expected a type that another tool writes, found {kind:?}");
        let says = self.status.is_some() || (self.reason.is_empty() && self.message.is_empty());
        ensure!(says, "condition {kind}: reason and message go with a status");
        let stands = self.status.is_some() || self.cleared_by.is_empty();
        ensure!(stands, "condition {kind}: clearedBy goes with a status");
        let other = self.cleared_by.iter().find(|by| !matches!(by, ClearedBy::Reboot | ClearedBy::HandOff));
        if let Some(other) = other {
            bail!(
                "condition {kind}: clearedBy: expected Reboot or HandOff, found {other}: no other step is about a condition"
            );
        }
        Ok(())
    }
}
