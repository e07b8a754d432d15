//! What other tools write on the Nodes of the small cluster, and what resolves it.

use std::collections::BTreeSet;

use super::WorldNode;
use crate::cleared_by::ClearedBy;
use nrh_core::external_condition::{self, ExternalCondition};

/// A condition that an action resolves. Its tool then writes what it wrote before.
#[derive(Clone, Debug)]
pub struct RestorableCondition {
    kind: String,
    cleared_by: BTreeSet<ClearedBy>,
    /// The condition before. `None`: the Node had none of this type.
    before: Option<ExternalCondition>,
}

impl WorldNode {
    /// Another tool writes a condition on the Node in place of the one with that type, or removes it.
    pub fn set_condition(&mut self, kind: &str, condition: Option<ExternalCondition>) {
        self.restorable.retain(|restorable| restorable.kind != kind);
        let others = self.view.conditions.iter().filter(|other| other.kind != kind).cloned();
        self.view.conditions = external_condition::sorted(others.chain(condition));
    }

    /// The same for a condition that each of these resolves. Where one exists already, the state before that one comes back.
    pub fn set_restorable_condition(
        &mut self,
        kind: &str,
        condition: Option<ExternalCondition>,
        cleared_by: BTreeSet<ClearedBy>,
    ) {
        let known = self
            .restorable
            .iter()
            .find(|restorable| restorable.kind == kind)
            .map(|restorable| restorable.before.clone());
        let stands = || self.view.conditions.iter().find(|other| other.kind == kind).cloned();
        let before = known.unwrap_or_else(stands);
        self.set_condition(kind, condition);
        if !cleared_by.is_empty() {
            self.restorable.push(RestorableCondition { kind: kind.to_owned(), cleared_by, before });
        }
    }

    /// Removes everything that this resolves: faults, and conditions of the Node.
    pub(crate) fn end_all(&mut self, by: ClearedBy) {
        self.sick.retain(|sick| !sick.cleared_by.contains(&by));
        let ended: Vec<RestorableCondition> =
            self.restorable.extract_if(.., |restorable| restorable.cleared_by.contains(&by)).collect();
        for RestorableCondition { kind, before, .. } in ended {
            self.set_condition(&kind, before);
        }
    }
}
