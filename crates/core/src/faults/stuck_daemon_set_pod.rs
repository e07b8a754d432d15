//! `StuckDaemonSetPod`: a DaemonSet's pod makes no progress. The controller finds it.

use std::time::Duration;

use super::spec::{FaultSpec, Remedy, ShowsIn};
use crate::fault::{FaultGroup, Severity, SubjectKind};

/// Time since the container ended from which a DaemonSet pod that waits in `CrashLoopBackOff` at the longest back-off is stuck.
pub const BACK_OFF: Duration = Duration::from_mins(1);

/// Time since the grace period ended from which a DaemonSet pod that still exists is stuck.
pub const TERMINATING: Duration = Duration::from_mins(2);

/// Time from which a DaemonSet pod is stuck whose containers are still being created.
pub const CREATING: Duration = Duration::from_mins(2);

pub(super) const SPEC: FaultSpec = FaultSpec {
    shows_in: ShowsIn::Pod,
    time_to_confirm: Some(|_| BACK_OFF),
    holds_up_pods: true,
    remedy: Remedy { new_pod: Ok(()), ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Pods, Severity::Medium, SubjectKind::Pod)
};
