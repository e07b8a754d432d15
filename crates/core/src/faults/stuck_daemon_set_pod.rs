//! `StuckDaemonSetPod`: a DaemonSet's pod makes no progress. The controller finds it.

use std::time::Duration;

use super::spec::{FaultSpec, Remedy, ShowsIn};
use crate::fault::{FaultGroup, Severity, SubjectKind};

/// A DaemonSet pod waits in `CrashLoopBackOff` at the longest back-off, its container ended this long
/// ago.
pub const BACK_OFF: Duration = Duration::from_mins(1);

/// A DaemonSet pod is still there this long after its grace period ended.
pub const TERMINATING: Duration = Duration::from_mins(2);

/// A DaemonSet pod's containers are being created for this long.
pub const CREATING: Duration = Duration::from_mins(2);

pub(super) const SPEC: FaultSpec = FaultSpec {
    shows_in: ShowsIn::Pod,
    time_to_confirm: |_| BACK_OFF,
    holds_up_pods: true,
    remedy: Remedy { new_pod: Ok(()), ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Pods, Severity::Medium, SubjectKind::Pod)
};
