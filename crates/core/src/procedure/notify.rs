//! `Notify`: what people are told.

use super::{AttemptContext, Procedure};
use crate::action::Notify;
use crate::context::{NodeContext, evidence, stuck_cause};
use crate::fault::Fault;
use crate::plan::Operation;
use crate::remediation::{StepRecord, StepState};

impl Procedure for Notify {
    fn operation(&self, cx: &AttemptContext<'_>, fault: &Fault) -> Option<Operation> {
        let node = cx.node;
        let is_fresh = node.find(&fault.id).is_some_and(|seen| evidence::require_fresh(node, seen).is_ok());
        let unchecked = match is_fresh {
            _ if stuck_cause::was_not_checked(node, fault) => " (nobody has checked its cause)",
            true => "",
            false => " (nobody could check it since)",
        };
        // The message of a policy assumes that its steps were executed.
        let refused = not_executed(node, cx.record);
        let message = refused.as_deref().or(self.message.as_deref());
        Some(Operation::Notify(notice(node.name, fault, message, unchecked)))
    }
}

fn notice(node: &str, fault: &Fault, message: Option<&str>, unchecked: &str) -> String {
    let more = message.map_or_else(String::new, |message| format!(" — {message}"));
    let text = format!("node {node}: {fault}: {}{unchecked}{more}", fault.message);
    crate::text::bounded(&text, crate::fault::MAX_LINE * 2)
}

/// That the controller could not have the last step before this notification executed, skipped steps aside; `None` = it could.
fn not_executed(node: &NodeContext<'_>, notification: &StepRecord) -> Option<String> {
    let steps = node.open.iter().flat_map(|remediation| &remediation.steps);
    let was_skipped = |step: &StepRecord| step.state == StepState::Refused && step.started_at.is_none();
    let mut before = steps
        .filter(|step| step.fault_id == notification.fault_id && !step.action.notifies())
        .filter(|step| !was_skipped(step));
    let refused = before.next_back().filter(|step| step.is_refused_call())?;
    Some(format!("{} was not executed: {}", refused.phrase(), refused.short_message()))
}
