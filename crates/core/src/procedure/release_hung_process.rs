//! `ReleaseHungProcess`: which process gets which signal, and what a kill would end beside it.

use super::node_command::{command, require_named_target, send};
use super::{AttemptContext, Procedure, StepContext};
use crate::action::{Action, ReleaseHungProcess, Signal};
use crate::command::ActionCommand;
use crate::context::{Block, NodeContext, pods};
use crate::fault::{Fault, Role};
use crate::matching::pod_of;
use crate::plan::{BlockReason, Operation};

impl Procedure for ReleaseHungProcess {
    fn admit(&self, cx: &StepContext<'_>) -> Result<(), Block> {
        let fault = cx.seen.fault.as_ref();
        require_named_target(cx.node, fault)?;
        require_no_running_pods(cx.node, fault, *self)
    }

    fn operation(&self, cx: &AttemptContext<'_>, fault: &Fault) -> Option<Operation> {
        let allow_running_pods = self.allow_running_pods || pods::is_terminating(cx.node, fault);
        let action = Action::ReleaseHungProcess(Self { allow_running_pods, ..*self });
        Some(send(cx.record, ActionCommand { action, ..command(cx, fault) }))
    }
}

/// Blocks a kill of a shim unless its pod is being deleted or the policy allows it: the kill ends every container of the pod.
fn require_no_running_pods(node: &NodeContext<'_>, fault: &Fault, params: ReleaseHungProcess) -> Result<(), Block> {
    let is_kill = params.signal == Signal::Kill && fault.kind.spec().remedy.hung_process == Ok(Role::Shim);
    let role = fault.target.process.as_ref().map(|process| process.role);
    // No container depends on a `runc create` yet.
    if !is_kill || role == Some(Role::RuntimeClient) || params.allow_running_pods || pods::is_terminating(node, fault) {
        return Ok(());
    }
    let pod = pod_of(fault).map_or_else(|| "its pod".to_owned(), |pod| format!("pod {pod}"));
    let message = format!(
        "{fault}: killing its shim would end all containers of {pod}, which is not being deleted; delete the pod, or \
         set allowRunningPods in the step"
    );
    Err(Block::new(BlockReason::PodsRunning, &message))
}
