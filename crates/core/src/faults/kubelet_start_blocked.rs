//! `KubeletStartBlocked`: the kubelet runs and its start does not come to an end. The controller finds it.

use super::spec::{ByDaemon, FaultSpec, NO_RESTART, Remedy, Reporter};
use crate::fault::{FaultGroup, Severity, SubjectKind};

pub(super) const SPEC: FaultSpec = FaultSpec {
    reporter: Reporter::Controller,
    time_to_confirm: |of| of.start_blocked_age,
    pods_cannot_end: true,
    holds_up_pods: true,
    remedy: Remedy {
        restart: |_| ByDaemon { kubelet: Err("its start would wait anew for what it waits for now"), ..NO_RESTART },
        ..Remedy::USUAL
    },
    ..FaultSpec::new(FaultGroup::Kubelet, Severity::Critical, SubjectKind::Kubelet)
};
