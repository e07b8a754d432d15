//! `Taint`: when the controller puts its taint on a node.
//!
//! A taint lasts as long as its remediation. A cordon with `quarantineFor` keeps pods away after the last step of the rule. Only one
//! remediation at a time puts a taint on a node, and only one taint. So a taint is never handed over or changed.

use super::{AttemptContext, Procedure};
use crate::action::{ActionType, Taint};
use crate::context::NodeContext;
use crate::fault::Fault;
use crate::plan::Operation;
use crate::remediation::{Marker, Remediation, StepRecord};

impl Procedure for Taint {
    fn require_applicable(&self, fault: &Fault, _: &NodeContext<'_>) -> Result<(), &'static str> {
        if fault.kind.spec().remedy.new_pod.is_ok() && self.effect.repels_daemon_sets() {
            return Err(
                "with NoSchedule no successor of a DaemonSet's pod would come to the node, as one comes with PreferNoSchedule",
            );
        }
        Ok(())
    }

    fn is_done(&self, remediation: &Remediation) -> bool {
        // The record has to say that a stricter taint was wanted.
        remediation.marked_at(ActionType::Taint).is_some() && self.softer(remediation).is_none()
    }

    /// The node has a softer taint of the same remediation, which puts on one taint.
    fn skip_reason(&self, _: &NodeContext<'_>, remediation: &Remediation) -> Option<String> {
        self.softer(remediation)
    }

    fn marker(&self, _: &Remediation, _: &StepRecord) -> Option<Marker> {
        Some(Marker::Taint)
    }

    fn operation(&self, _: &AttemptContext<'_>, _: &Fault) -> Option<Operation> {
        Some(Operation::Taint(self.effect))
    }
}

impl Taint {
    fn softer(self, remediation: &Remediation) -> Option<String> {
        let wanted = self.effect;
        let on = remediation
            .taint()
            .filter(|on| remediation.cleanup.has_pending(&Marker::Taint) && wanted.is_stricter_than(*on))?;
        Some(format!(
            "the node has the taint of this remediation with {} already, and a remediation puts on one: {} is not put in its place",
            on.as_str(),
            wanted.as_str()
        ))
    }
}
