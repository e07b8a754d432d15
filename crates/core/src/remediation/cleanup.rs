//! What a remediation has put on its node or made for it, and has to remove.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::action::ActionType;
use crate::hand_off::HandedOff;

/// A change that the remediation removes at its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", content = "object")]
#[schemars(with = "Union")]
pub enum Marker {
    /// The node is unschedulable.
    Cordon,
    /// The node has our taint.
    Taint,
    /// The object by which the node was handed to a remediator.
    HandOff(HandedOff),
}

/// The schema of a [`Marker`]: that of a field is the same in all variants.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Union {
    /// The action that created it.
    #[schemars(extend("enum" = ["Cordon", "Taint", "HandOff"]))]
    action: String,
    /// The object that hands the node to a remediator. A cordon and a taint are on the Node itself.
    object: Option<HandedOff>,
}

impl Marker {
    /// The action that leaves it.
    pub const fn action(&self) -> ActionType {
        match self {
            Self::Cordon => ActionType::Cordon,
            Self::Taint => ActionType::Taint,
            Self::HandOff(_) => ActionType::HandOff,
        }
    }

    /// The object of a hand-off.
    pub const fn hand_off(&self) -> Option<&HandedOff> {
        match self {
            Self::HandOff(handed) => Some(handed),
            Self::Cordon | Self::Taint => None,
        }
    }

    fn is_of(&self, action: ActionType, operation_id: &str) -> bool {
        self.action() == action && self.hand_off().is_none_or(|handed| handed.operation_id == operation_id)
    }
}

/// One change, on the Node or as an object for its remediator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(self.action == 'HandOff') == has(self.object)",
    "message": "object is required with action HandOff, and not allowed with others",
}]))]
pub struct MarkerRecord {
    /// What it is.
    #[serde(flatten)]
    pub marker: Marker,
    /// When it was recorded, right before it was created.
    pub created_at: Timestamp,
    /// When it was removed, or found to be gone or to belong to someone else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_at: Option<Timestamp>,
}

/// The markers of a remediation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cleanup(#[schemars(length(max = 64))] pub Vec<MarkerRecord>);

impl Cleanup {
    /// Whether nothing was ever recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The markers that are still to be removed.
    pub fn owed(&self) -> impl Iterator<Item = &Marker> {
        self.0.iter().filter(|record| record.removed_at.is_none()).map(|record| &record.marker)
    }

    /// Whether there is something left to remove.
    pub fn is_pending(&self) -> bool {
        self.owed().next().is_some()
    }

    /// Whether this marker is still to be removed.
    pub fn has_pending(&self, marker: &Marker) -> bool {
        self.owed().any(|owed| owed == marker)
    }

    /// Whether the cordon is still to be removed.
    pub fn has_pending_cordon(&self) -> bool {
        self.has_pending(&Marker::Cordon)
    }

    /// Whether this marker was removed, and not created again since.
    pub fn has_removed(&self, marker: &Marker) -> bool {
        self.0.iter().any(|record| record.marker == *marker && record.removed_at.is_some())
    }

    /// The first object of a hand-off that is still to be deleted.
    pub fn pending_hand_off(&self) -> Option<&HandedOff> {
        self.owed().find_map(Marker::hand_off)
    }

    /// The object of an operation, as long as it is to be deleted.
    pub fn hand_off_of(&self, operation_id: &str) -> Option<&HandedOff> {
        self.owed().filter_map(Marker::hand_off).find(|handed| handed.operation_id == operation_id)
    }

    /// Records a marker that is about to be created.
    pub fn add(&mut self, marker: Marker, created_at: Timestamp) {
        if !self.has_pending(&marker) {
            self.0.retain(|record| record.marker != marker);
            self.0.push(MarkerRecord { marker, created_at, removed_at: None });
        }
    }

    /// Records that a marker is removed.
    pub fn remove(&mut self, marker: &Marker, now: Timestamp) {
        for record in self.0.iter_mut().filter(|record| record.marker == *marker) {
            record.removed_at.get_or_insert(now);
        }
    }

    /// Records that the operation has created no marker.
    pub(super) fn forget(&mut self, action: ActionType, operation_id: &str) {
        self.0.retain(|record| !record.marker.is_of(action, operation_id));
    }
}
