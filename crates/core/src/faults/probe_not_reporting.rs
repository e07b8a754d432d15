//! `ProbeNotReporting`: the probe has missed its heartbeats. The controller finds it.

use super::spec::{FaultSpec, NO_RESTART, Remedy, Reporter};
use crate::fault::{FaultGroup, Severity, SubjectKind};

const NOBODY_CHECKS: &str = "no action is executed on a node that nobody can check";

pub(super) const SPEC: FaultSpec = FaultSpec {
    reporter: Reporter::Controller,
    remedy: Remedy {
        hung_process: Err(NOBODY_CHECKS),
        leftover: Err(NOBODY_CHECKS),
        new_pod: Err(NOBODY_CHECKS),
        restart: |_| NO_RESTART,
        fewer_pods: Err(NOBODY_CHECKS),
        new_boot: Err(NOBODY_CHECKS),
        other_machine: Err(NOBODY_CHECKS),
    },
    ..FaultSpec::new(FaultGroup::Node, Severity::Medium, SubjectKind::Probe)
};
