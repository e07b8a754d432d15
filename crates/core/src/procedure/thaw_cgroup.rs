//! `ThawCgroup`: the node thaws the control group that the fault names.

use super::Procedure;
use crate::action::ThawCgroup;
use crate::context::NodeContext;
use crate::fault::Fault;

impl Procedure for ThawCgroup {
    fn addresses(&self, fault: &Fault, _: &NodeContext<'_>) -> Result<(), &'static str> {
        fault.kind.spec().remedy.thaw
    }
}
