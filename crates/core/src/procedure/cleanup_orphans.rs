//! `CleanupOrphans`: the node removes the leftover that the fault names.

use super::Procedure;
use crate::action::CleanupOrphans;
use crate::context::NodeContext;
use crate::fault::Fault;

impl Procedure for CleanupOrphans {
    fn addresses(&self, fault: &Fault, _: &NodeContext<'_>) -> Result<(), &'static str> {
        fault.kind.spec().remedy.leftover
    }
}
