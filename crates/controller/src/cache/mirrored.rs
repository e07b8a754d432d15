//! The current conditions of a Node that mirror the controller's.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::Value;

use nrh_core::node_condition::NodeCondition;

/// Field manager of the mirrored conditions of a Node; no other component writes under this name.
pub const MANAGER: &str = "nrh-node-conditions";
/// The current conditions of a Node of the types that the mirror writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirroredState {
    /// Status, reason and transition time, by type, from any writer.
    pub conditions: BTreeMap<&'static str, (String, String, Option<Timestamp>)>,
    /// The types that the mirror owns; `None` where its manager name is not on the object.
    pub ours: Option<BTreeSet<&'static str>>,
}

impl MirroredState {
    pub(crate) fn is_ours(&self, kind: &str) -> bool {
        self.ours.as_ref().is_some_and(|ours| ours.contains(kind))
    }

    /// Whether another tool has written a condition of this type.
    pub(crate) fn is_foreign(&self, kind: &str) -> bool {
        self.conditions.contains_key(kind) && !self.is_ours(kind)
    }
}

/// Reads the state from a Node; `None` where there is nothing.
pub fn read(node: &Node) -> Option<MirroredState> {
    let managers = node.metadata.managed_fields.as_deref().unwrap_or_default();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let mirrored = MirroredState {
        conditions: conditions
            .iter()
            .filter_map(|one| {
                let since = one.last_transition_time.as_ref().map(|time| time.0);
                Some((
                    NodeCondition::named(&one.type_)?.as_str(),
                    (one.status.clone(), one.reason.clone().unwrap_or_default(), since),
                ))
            })
            .collect(),
        ours: managers.iter().find(|entry| entry.manager.as_deref() == Some(MANAGER)).map(owned),
    };
    (mirrored.ours.is_some() || !mirrored.conditions.is_empty()).then_some(mirrored)
}

/// The types of conditions that an entry of the managed fields owns.
fn owned(entry: &ManagedFieldsEntry) -> BTreeSet<&'static str> {
    let fields = entry.fields_v1.as_ref().map(|fields| &fields.0["f:status"]["f:conditions"]);
    let keys = fields.and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key.as_str());
    let kinds = keys.filter_map(|key| key.strip_prefix(r#"k:{"type":""#)?.strip_suffix(r#""}"#));
    kinds.filter_map(NodeCondition::named).map(NodeCondition::as_str).collect()
}
