//! The current conditions of a Node that mirror the controller's.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{self, Node};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::Value;

use nrh_core::node_condition::NodeCondition;

/// Field manager of the mirrored conditions of a Node; no other component writes under this name.
pub const MANAGER: &str = "nrh-node-conditions";
/// The current conditions of a Node of the types that the mirror writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirroredState {
    /// The conditions by type, from any writer.
    pub conditions: BTreeMap<&'static str, Current>,
    /// The types that the mirror owns, alone or with another tool; `None` where its manager name is not on the object.
    pub ours: Option<BTreeSet<&'static str>>,
    /// Those of them that another tool writes too.
    pub shared: BTreeSet<&'static str>,
}

/// One condition, as it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Current {
    /// True, False or Unknown.
    pub status: String,
    /// Why.
    pub reason: String,
    /// The sentence of a True one.
    pub message: String,
    /// When the status last changed.
    pub since: Option<Timestamp>,
}

impl MirroredState {
    pub(crate) fn is_ours(&self, kind: &str) -> bool {
        self.ours.as_ref().is_some_and(|ours| ours.contains(kind))
    }

    /// Whether another tool writes the condition of this type.
    pub(crate) fn is_foreign(&self, kind: &str) -> bool {
        self.conditions.contains_key(kind) && !self.is_ours(kind) || self.shared.contains(kind)
    }
}

/// Reads the state from a Node; `None` where there is nothing.
pub fn read(node: &Node) -> Option<MirroredState> {
    let managers = node.metadata.managed_fields.as_deref().unwrap_or_default();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let current = |one: &v1::NodeCondition| {
        let current = Current {
            status: one.status.clone(),
            reason: one.reason.clone().unwrap_or_default(),
            message: one.message.clone().filter(|_| one.status == "True").unwrap_or_default(),
            since: one.last_transition_time.as_ref().map(|time| time.0),
        };
        Some((NodeCondition::named(&one.type_)?.as_str(), current))
    };
    let is_mirror = |entry: &&ManagedFieldsEntry| entry.manager.as_deref() == Some(MANAGER);
    let ours = managers.iter().find(is_mirror).map(owned);
    let of_others = managers.iter().filter(|entry| !is_mirror(entry)).flat_map(owned);
    let mirrored = MirroredState {
        conditions: conditions.iter().filter_map(current).collect(),
        shared: of_others.filter(|kind| ours.as_ref().is_some_and(|ours| ours.contains(kind))).collect(),
        ours,
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
