//! `KubeletStartBlocked`: the kubelet runs and does not complete its start. The controller finds it.

use std::time::Duration;

use super::spec::{ByDaemon, FaultSpec, NO_RESTART, Remedy, ShowsIn};
use crate::fault::{FaultGroup, Severity, SubjectKind};

/// Age from which a kubelet should have written the status of its node, or have reported itself that its start is complete. It
/// writes within seconds, and tries again every ten seconds when the API server does not answer.
pub const AGE: Duration = Duration::from_secs(90);

/// For how long the controller itself must have seen the unfinished start. After an outage of the API server all updates arrive
/// at once, and in any order.
pub const SEEN: Duration = Duration::from_mins(1);

pub(super) const SPEC: FaultSpec = FaultSpec {
    shows_in: ShowsIn::KubeletStart,
    time_to_confirm: Some(|_| AGE),
    pods_cannot_end: true,
    holds_up_pods: true,
    remedy: Remedy {
        restart: |_| ByDaemon { kubelet: Err("its start would wait again for what it waits for now"), ..NO_RESTART },
        ..Remedy::USUAL
    },
    ..FaultSpec::new(FaultGroup::Kubelet, Severity::Critical, SubjectKind::Kubelet)
};
