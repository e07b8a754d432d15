//! `NodeCondition`: another tool sets a condition of the node that a policy asks for. The controller finds it.

use super::spec::{FaultSpec, ShowsIn};
use crate::fault::{FaultGroup, Severity, SubjectKind};

/// The condition of another tool says nothing about a restart.
pub(super) const SPEC: FaultSpec = FaultSpec {
    shows_in: ShowsIn::Condition,
    lasting: true,
    group: None,
    ..FaultSpec::new(FaultGroup::Node, Severity::Medium, SubjectKind::Condition)
};
