//! What a remediation has put on its node, and has to remove.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hand_off::HandedOff;

/// The changes to the node that are removed at the end, and whether they are removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cleanup {
    /// The remediation cordoned the node, which was schedulable before, and owns the cordon.
    #[serde(default)]
    pub cordoned: bool,
    /// When the cordon was removed, or found to belong to someone else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncordoned_at: Option<Timestamp>,
    /// The remediation set our taint on the node, and owns it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tainted: bool,
    /// When the taint was removed, or found to belong to someone else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untainted_at: Option<Timestamp>,
    /// Objects by which the node was handed to a remediator. Each is recorded before it is created, and deleted at the
    /// end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub handed_off: Vec<HandedOff>,
}

impl Cleanup {
    /// Whether there is something left to put back.
    pub fn is_owed(&self) -> bool {
        self.owes_cordon() || self.owes_taint() || self.owed_hand_off().is_some()
    }

    /// Whether the cordon is still to be taken back.
    pub const fn owes_cordon(&self) -> bool {
        self.cordoned && self.uncordoned_at.is_none()
    }

    /// Whether the taint is still to be taken off.
    pub const fn owes_taint(&self) -> bool {
        self.tainted && self.untainted_at.is_none()
    }

    /// The first object that is still to be deleted.
    pub fn owed_hand_off(&self) -> Option<&HandedOff> {
        self.handed_off.iter().find(|handed| handed.deleted_at.is_none())
    }

    /// The object of an operation, as long as it is to be deleted.
    pub fn hand_off_of(&self, operation_id: &str) -> Option<&HandedOff> {
        self.handed_off.iter().find(|handed| handed.operation_id == operation_id && handed.deleted_at.is_none())
    }

    /// Nothing was made for this operation.
    pub(super) fn forget_hand_off(&mut self, operation_id: &str) {
        self.handed_off.retain(|handed| handed.operation_id != operation_id);
    }
}
