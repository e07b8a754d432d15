//! The command by which a node carries an action out.

use super::AttemptContext;
use crate::command::ActionCommand;
use crate::context::{Block, NodeContext};
use crate::fault::Fault;
use crate::plan::{BlockReason, Operation};
use crate::remediation::{Executor, StepRecord};

pub(super) fn command(cx: &AttemptContext<'_>, fault: &Fault) -> ActionCommand {
    let (cluster, record) = (cx.node.cluster, cx.record);
    ActionCommand {
        operation_id: record.operation_id.clone(),
        epoch: cluster.snapshot.epoch,
        node: cx.node.name.to_owned(),
        action: record.action.clone(),
        fault_id: record.fault_id.clone(),
        fault_type: fault.kind,
        target: record.target.clone(),
        boot_id: record.boot_id.clone(),
        marker_expires_after_seconds: None,
        // Every repetition has the same time: a repeated command is the same command.
        issued_at: record.scheduled_at,
        ttl_seconds: cluster.settings.command_ttl_seconds,
    }
}

pub(super) fn send(record: &StepRecord, command: ActionCommand) -> Operation {
    match record.executor {
        Executor::Job => Operation::RunJob(command),
        Executor::Probe | Executor::Controller => Operation::GiveCommand(command),
    }
}

/// Whether the probe says which object to touch.
pub(super) fn require_named_target(node: &NodeContext<'_>, fault: &Fault) -> Result<(), Block> {
    if (fault.kind.spec().names)(&fault.target) {
        return Ok(());
    }
    let message = format!("{fault} on {}: the probe does not say which object to touch", node.name);
    Err(Block::new(BlockReason::ActionsDisabled, &message))
}
