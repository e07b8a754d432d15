//! `Cordon`: when the controller cordons a node.

use super::{AttemptContext, Procedure};
use crate::action::Cordon;
use crate::fault::Fault;
use crate::plan::Operation;
use crate::remediation::{Marker, Remediation, StepRecord};

impl Procedure for Cordon {
    /// A cordon lasts for the whole remediation, unless a remediator has made the node schedulable again.
    fn is_done(&self, remediation: &Remediation) -> bool {
        !remediation.cleanup.has_removed(&Marker::Cordon) && remediation.cordoned_at().is_some()
    }

    fn marker(&self, _: &Remediation, _: &StepRecord) -> Option<Marker> {
        Some(Marker::Cordon)
    }

    fn operation(&self, _: &AttemptContext<'_>, _: &Fault) -> Option<Operation> {
        Some(Operation::Cordon)
    }
}
