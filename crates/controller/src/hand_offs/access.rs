//! Checks whether the controller may use a kind of object, and words the message if it may not.

use k8s_openapi::api::authorization::v1::ResourceAttributes;
use kube::core::ApiResource;

use crate::calls::{CallError, Calls};
use crate::permissions::is_allowed;
use nrh_api::HAND_OFF_LABEL;
use nrh_core::hand_off::TemplateRef;

/// Whether the controller may do this to objects of a kind.
pub(super) async fn may(
    calls: &Calls,
    kind: &ApiResource,
    verb: &str,
    namespace: &str,
    name: Option<&str>,
) -> Result<bool, CallError> {
    let attributes = ResourceAttributes {
        group: Some(kind.group.clone()),
        resource: Some(kind.plural.clone()),
        verb: Some(verb.to_owned()),
        namespace: Some(namespace.to_owned()),
        name: name.map(ToOwned::to_owned),
        ..ResourceAttributes::default()
    };
    is_allowed(calls, attributes).await
}

/// The message for a missing right.
pub(super) fn no_right(template: &TemplateRef, kind: &ApiResource, verbs: &[&str]) -> String {
    format!(
        "handOff to {template}: the controller may not {} {}.{} in namespace {}: give it a ClusterRole with that right and the \
         label {HAND_OFF_LABEL}: \"true\"",
        verbs.join(", "),
        kind.plural,
        kind.group,
        template.namespace
    )
}
