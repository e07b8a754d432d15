//! A NodeRemediation, as a decision reads it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nrh_core::snapshot::{Snapshot, UnreadableRemediation};
use nrh_core::text::bounded;

use super::View;
use super::guard::UnreadableObject;
use crate::convert::{manual, remediation};
use crate::{FINALIZER, NODE_LABEL, NodeRemediation, POLICY_LABEL};

/// Longest reason that is kept: a parser names everything that it would have accepted.
const MAX_WHY: usize = 120;

impl View for NodeRemediation {
    fn store(&self, name: &str, snapshot: &mut Snapshot) -> bool {
        snapshot.unreadable.remove(name);
        if let Some(manual) = manual(self) {
            let was_remediation = snapshot.remediations.remove(name).is_some();
            let old = snapshot.manual_requests.insert(name.to_owned(), manual);
            return was_remediation || old.as_ref() != snapshot.manual_requests.get(name);
        }
        snapshot.manual_requests.remove(name);
        let old = snapshot.remediations.insert(name.to_owned(), remediation(self));
        old.as_ref() != snapshot.remediations.get(name)
    }

    /// What was known of it is no longer true. It still keeps its slot, and its node from other remediations.
    fn store_unreadable(bad: &UnreadableObject, name: &str, snapshot: &mut Snapshot) -> bool {
        let view = unreadable(&bad.metadata, &bad.why);
        if snapshot.unreadable.get(name) == Some(&view) {
            return false;
        }
        Self::remove(name, snapshot);
        snapshot.unreadable.insert(name.to_owned(), view);
        true
    }

    fn remove(name: &str, snapshot: &mut Snapshot) -> bool {
        let was_manual = snapshot.manual_requests.remove(name).is_some();
        let was_unreadable = snapshot.unreadable.remove(name).is_some();
        snapshot.remediations.remove(name).is_some() || was_manual || was_unreadable
    }
}

/// What its labels and its finalizers say: all versions write them alike.
fn unreadable(meta: &ObjectMeta, why: &str) -> UnreadableRemediation {
    let label = |key: &str| meta.labels.as_ref()?.get(key).cloned();
    UnreadableRemediation {
        node: label(NODE_LABEL),
        policy: label(POLICY_LABEL),
        is_open: meta.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER),
        made_at: meta.creation_timestamp.as_ref().map(|time| time.0),
        why: bounded(why, MAX_WHY),
    }
}
