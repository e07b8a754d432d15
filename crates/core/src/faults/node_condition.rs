//! `NodeCondition`: another tool says of the node what a policy asks for. The controller finds it.

use super::spec::{FaultSpec, ShowsIn};
use crate::fault::{FaultGroup, Severity, SubjectKind};

/// What another tool says of the node is no word on a restart.
pub(super) const SPEC: FaultSpec = FaultSpec {
    shows_in: ShowsIn::Condition,
    lasting: true,
    group: None,
    ..FaultSpec::new(FaultGroup::Node, Severity::Medium, SubjectKind::Condition)
};
