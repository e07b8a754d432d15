//! `StuckDaemonSetPod`: a DaemonSet's pod makes no progress. The controller finds it.

use super::spec::{FaultSpec, Remedy, Reporter};
use crate::fault::{FaultGroup, Severity, SubjectKind};

pub(super) const SPEC: FaultSpec = FaultSpec {
    reporter: Reporter::Controller,
    time_to_confirm: |of| of.stuck_back_off,
    holds_up_pods: true,
    remedy: Remedy { new_pod: Ok(()), ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Pods, Severity::Medium, SubjectKind::Pod)
};
