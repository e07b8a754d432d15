//! `ProbeNotReporting`: the probe has missed its heartbeats. The controller finds it.

use std::time::Duration;

use jiff::Timestamp;

use super::spec::{FaultSpec, NO_RESTART, Remedy, ShowsIn};
use crate::fault::{Fault, FaultGroup, FaultType, Severity, SubjectKind};
use crate::moment::begun;

const NOT_CHECKED: &str = "no action is executed on a node that nobody can check";

pub(super) const SPEC: FaultSpec = FaultSpec {
    shows_in: ShowsIn::Heartbeats,
    remedy: Remedy {
        hung_process: Err(NOT_CHECKED),
        leftover: Err(NOT_CHECKED),
        thaw: Err(NOT_CHECKED),
        new_pod: Err(NOT_CHECKED),
        restart: |_| NO_RESTART,
        fewer_pods: Err(NOT_CHECKED),
        new_boot: Err(NOT_CHECKED),
        other_machine: Err(NOT_CHECKED),
    },
    ..FaultSpec::new(FaultGroup::Node, Severity::Medium, SubjectKind::Probe)
};

/// The fault of a probe whose last report arrived `arrived` ago.
pub fn fault(node: &str, now: Timestamp, arrived: Duration) -> Fault {
    Fault {
        message: format!("the probe of node {node} has missed three of its promised heartbeats"),
        impact: "what is wrong on the node is not known, and nothing can be done there".to_owned(),
        first_seen: begun(now, arrived),
        duration_seconds: arrived.as_secs(),
        confirmations: 3,
        ..Fault::new(FaultType::ProbeNotReporting, node)
    }
}
