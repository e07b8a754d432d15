//! `PlegStalled`: the kubelet reports that it cannot check its pods. The controller finds it.

use super::spec::{FaultSpec, Remedy, ShowsIn};
use crate::fault::{FaultGroup, Severity, SubjectKind};

pub(super) const SPEC: FaultSpec = FaultSpec {
    shows_in: ShowsIn::Ready,
    // The kubelet itself waits three minutes before it reports this.
    pods_cannot_end: true,
    holds_up_pods: true,
    remedy: Remedy { restart: super::kubelet_port::SAME_CONTAINER, ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Kubelet, Severity::High, SubjectKind::Kubelet)
};
