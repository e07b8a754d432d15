//! `NodeFlapping`: `Ready`, or the same faults, come and go. The controller finds it.

use super::spec::{FaultSpec, ShowsIn};
use crate::fault::{FaultGroup, Severity, SubjectKind};

pub(super) const SPEC: FaultSpec = FaultSpec {
    shows_in: ShowsIn::History,
    lasting: true,
    ..FaultSpec::new(FaultGroup::Node, Severity::Medium, SubjectKind::Host)
};
