//! The labels that the kubelet puts on each of its containers, with any runtime, and the maximum lengths of their values.

use nrh_core::fault::PodRef;
use nrh_core::text::bounded;

pub(crate) const MAX_ID: usize = 128;
pub(crate) const MAX_NAME: usize = 253;
pub(crate) const MAX_NAMESPACE: usize = 63;
pub(crate) const MAX_UID: usize = 64;

pub(crate) const LABEL_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(crate) const LABEL_POD: &str = "io.kubernetes.pod.name";
pub(crate) const LABEL_UID: &str = "io.kubernetes.pod.uid";
pub(crate) const LABEL_CONTAINER: &str = "io.kubernetes.container.name";

/// The pod that the labels name; `None` where they name no uid, because then the container is not the kubelet's.
pub(crate) fn pod_of<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Option<PodRef> {
    let uid = label(LABEL_UID).map(|uid| bounded(uid, MAX_UID)).filter(|uid| !uid.is_empty())?;
    Some(PodRef {
        namespace: bounded(label(LABEL_NAMESPACE).unwrap_or_default(), MAX_NAMESPACE),
        name: bounded(label(LABEL_POD).unwrap_or_default(), MAX_NAME),
        uid,
    })
}
