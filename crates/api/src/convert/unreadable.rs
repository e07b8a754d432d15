//! A remediation of which only the metadata can be read.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{FINALIZER, NODE_LABEL, POLICY_LABEL};
use nrh_core::snapshot::UnreadableRemediation;
use nrh_core::text::bounded;

/// Longest reason that is kept of why it cannot be read: a parser names all that it would have taken.
const MAX_WHY: usize = 120;

/// What its labels and its finalizers say, which all versions write alike.
pub fn unreadable_remediation(meta: &ObjectMeta, error: &str) -> UnreadableRemediation {
    let label = |key: &str| meta.labels.as_ref()?.get(key).cloned();
    UnreadableRemediation {
        node: label(NODE_LABEL),
        policy: label(POLICY_LABEL),
        is_open: meta.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER),
        made_at: meta.creation_timestamp.as_ref().map(|time| time.0),
        why: bounded(error, MAX_WHY),
    }
}
