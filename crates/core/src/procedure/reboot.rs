//! `Reboot`: the node reboots itself, under the cordon of its remediation.

use std::time::Duration;

use super::boot::{self, last_answer};
use super::node_command::{command, require_named_target, send};
use super::{AttemptContext, Poll, Procedure, StepContext, Verification};
use crate::action::{Action, ActionType, Reboot};
use crate::command::ActionCommand;
use crate::context::{Block, NodeContext, Requeue};
use crate::fault::Fault;
use crate::moment::since;
use crate::plan::{BlockReason, Operation};
use crate::remediation::{Marker, Remediation, StepRecord, StepState};

impl Procedure for Reboot {
    /// The cordon that the reboot needs is not this remediation's, or the node is not drained.
    fn skip_reason(&self, _: &NodeContext<'_>, remediation: &Remediation) -> Option<String> {
        let node = &remediation.node;
        let Some(cordoned) = remediation.pending_since(&Marker::Cordon) else {
            return Some(format!("skipped: node {node} is not cordoned by this remediation"));
        };
        let drained = |record: &StepRecord| {
            record.action == ActionType::Drain
                && record.state == StepState::Succeeded
                && record.finished_at.is_some_and(|at| at >= cordoned)
        };
        let is_drained = !self.require_drain || remediation.steps.iter().any(drained);
        (!is_drained)
            .then(|| format!("skipped: node {node} was not drained by this remediation (reboot.requireDrain is false)"))
    }

    fn admit(&self, cx: &StepContext<'_>) -> Result<(), Block> {
        require_named_target(cx.node, &cx.seen.fault)?;
        boot::admit(cx.node)
    }

    fn require_prepared(&self, node: &NodeContext<'_>, remediation: &Remediation) -> Result<(), Block> {
        if Marker::Cordon.is_own_on(node, remediation) && remediation.cleanup.has_pending_cordon() {
            return Ok(());
        }
        let message =
            format!("node {} does not show the cordon of its remediation (any more): it is not rebooted", node.name);
        Err(Block::new(BlockReason::ActionsDisabled, &message))
    }

    fn operation(&self, cx: &AttemptContext<'_>, fault: &Fault) -> Option<Operation> {
        Some(send(cx.record, ActionCommand { action: Action::Reboot(Self::default()), ..command(cx, fault) }))
    }

    /// The command is given once. Another boot id is awaited for as long as the step says.
    fn poll(&self, cx: &AttemptContext<'_>, requeue: &mut Requeue) -> Poll {
        let (now, node, record) = (cx.node.cluster.snapshot.now, cx.node, cx.record);
        if record.state == StepState::Verifying {
            return Poll::ByAnswer;
        }
        let timeout = self.verification(cx).timeout;
        let age = since(now, cx.began());
        if age < timeout {
            let ttl = Duration::from_secs(cx.node.cluster.settings.command_ttl_seconds.into());
            requeue.when_past(ttl, since(now, record.scheduled_at));
            return Poll::Wait(timeout.saturating_sub(age));
        }
        let reported = node.own_boot_id().filter(|reported| Some(*reported) != record.boot_id.as_deref());
        // The machine is back, and its kubelet is not: that is a different problem, for the person who operates the node.
        let back = reported.map_or_else(String::new, |reported| {
            format!("; its probe reports boot id {reported:?}, its Node does not")
        });
        let (name, timeout) = (node.name, timeout.as_secs());
        let why = format!("node {name} has not rebooted within {timeout}s: {}{back}", last_answer(record));
        Poll::End(StepState::TimedOut, why)
    }

    /// Its time begins at the command, not at the new boot.
    fn verification(&self, cx: &AttemptContext<'_>) -> Verification {
        let usual = boot::verification(cx);
        Verification { from: cx.record.started_at.unwrap_or(usual.from), ..usual }
    }

    /// A probe that could not read the command until then must not act on it later. If it did, its next boot id shows it.
    fn withdraws_command(&self, record: &StepRecord, is_late: bool, is_wanted: bool) -> bool {
        record.reason.is_some() || is_late || !is_wanted
    }
}
