//! `CleanupOrphans`: the node removes the leftover that the fault names.

use super::executors;
use super::node_command::{command, require_named_target, send};
use super::{AttemptContext, Procedure, StepContext};
use crate::action::{Action, CleanupOrphans};
use crate::context::{Block, NodeContext};
use crate::fault::Fault;
use crate::plan::Operation;
use crate::remediation::Executor;

impl Procedure for CleanupOrphans {
    fn addresses(&self, fault: &Fault, _: &NodeContext<'_>) -> Result<(), &'static str> {
        fault.kind.spec().remedy.leftover
    }

    fn admit(&self, cx: &StepContext<'_>) -> Result<Executor, Block> {
        require_named_target(cx.node, &cx.seen.fault)?;
        Ok(executors::choose(cx.node).0)
    }

    fn operation(&self, cx: &AttemptContext<'_>, fault: &Fault) -> Option<Operation> {
        Some(send(cx.record, command(cx, fault, Action::CleanupOrphans(*self))))
    }
}
