//! Markers that request a reboot by another tool: how long a marker stays, and when it is withdrawn.
//!
//! ```text
//! Scheduled ─► Started: the marker stays as long as the command is active ─► another boot id ─► Verifying, as with a reboot
//!                └ no longer wanted, the fault is gone, or the timeout is over: the command is withdrawn, and the node removes
//!                  the marker
//! ```
//!
//! The marker can be withdrawn until the other tool starts. Each pass therefore checks all conditions again.

use std::time::Duration;

use super::boot::{self, is_carried, last_answer};
use super::node_command::{command, require_named_target, send};
use super::{AttemptContext, Poll, Procedure, StepContext, Verification};
use crate::action::MarkForReboot;
use crate::command::OutcomeReason;
use crate::context::{Block, ClearCheck, NodeContext, ObservedFault, Probe, Requeue, exclusion, of_policy};
use crate::fault::{Daemon, Fault, FaultState};
use crate::moment::since;
use crate::plan::{BlockReason, Operation};
use crate::policy::Policy;
use crate::reboot::MARK_STANDS;
use crate::remediation::{StepRecord, StepState};
use crate::snapshot::{SHUTTING_DOWN, TriState};
use crate::window;

/// How long a node may look as if no tool could drain it before its marker is withdrawn: a machine that goes down looks the same.
const GRACE: Duration = Duration::from_mins(5);

/// How often a marker is checked again: no event reports the end of a window.
const RHYTHM: Duration = Duration::from_mins(1);

impl Procedure for MarkForReboot {
    fn admit(&self, cx: &StepContext<'_>) -> Result<(), Block> {
        let node = cx.node;
        require_named_target(node, &cx.seen.fault)?;
        boot::boot_of(node)?;
        // The tool that reboots a marked node drains it first, through its kubelet. Nothing is known of the kubelet while Ready is
        // Unknown.
        if node.view.is_none_or(|view| view.ready == TriState::Unknown) {
            let message = format!("node {} is not marked for a reboot: whether it is Ready is Unknown", node.name);
            return Err(Block::new(BlockReason::ActionsDisabled, &message));
        }
        boot::admit(node)
    }

    fn operation(&self, cx: &AttemptContext<'_>, fault: &Fault) -> Option<Operation> {
        let seconds = cx.step.and_then(|step| u32::try_from(step.timeout.as_secs()).ok()).unwrap_or(MARK_STANDS);
        let mut command = command(cx, fault);
        command.marker_expires_after_seconds = Some(seconds.clamp(1, MARK_STANDS));
        Some(send(cx.record, command))
    }

    /// Another boot id is awaited until the timeout of the step, and while the conditions still hold.
    fn poll(&self, cx: &AttemptContext<'_>, requeue: &mut Requeue) -> Poll {
        if cx.record.state == StepState::Verifying { Poll::ByAnswer } else { self.poll_marked(cx, requeue) }
    }

    /// The boot may be awaited for hours, the clear check is not.
    fn verification(&self, cx: &AttemptContext<'_>) -> Verification {
        let usual = boot::verification(cx);
        let longest = boot::AWAY.saturating_add(usual.stable_for);
        Verification { timeout: if cx.step.is_some() { usual.timeout.min(longest) } else { usual.timeout }, ..usual }
    }

    /// The command stays after an answer, for as long as the marker.
    fn withdraws_command(&self, record: &StepRecord, is_late: bool, _: bool) -> bool {
        record.reason.is_none() && is_late
    }
}

impl MarkForReboot {
    fn poll_marked(&self, cx: &AttemptContext<'_>, requeue: &mut Requeue) -> Poll {
        let AttemptContext { node, policy, remediation, record, .. } = *cx;
        let (now, settings) = (node.cluster.snapshot.now, node.cluster.settings);
        let cancel = |why: &str| Poll::End(StepState::Cancelled, self.with_report(node, record, why));
        if let Some(why) = must_stop(cx) {
            return Poll::Stop(self.with_report(node, record, &why));
        }
        let Some(step) = cx.step else { return cancel("the policy has another step in its place") };
        if step.needs_approval() && remediation.approved(&record.operation_id).is_none() {
            return cancel("its approval was withdrawn, or the policy requires one now");
        }
        if let Some(why) = cannot_be(node, record, now).or_else(|| closed_reason(node, policy, record, now)) {
            return Poll::End(StepState::Cancelled, why);
        }
        let begun = cx.began();
        if is_gone(cx, begun) {
            let why = "the fault was gone before the node rebooted: the mark is not wanted any more";
            return Poll::End(StepState::Cancelled, why.to_owned());
        }
        let (age, waited) = (since(now, begun), since(now, record.scheduled_at));
        if record.reason.is_none() && waited >= settings.answer_within {
            let why = "the node did not say in time whether it carries the mark";
            return Poll::End(StepState::TimedOut, why.to_owned());
        }
        let command = node.own_command().filter(|command| command.operation_id == record.operation_id);
        // The command was withdrawn before the answer arrived, or is gone with the `NodeCommand`. The awaited boot would never come.
        if command.is_none() && record.reason.is_some() && age > settings.cache_lag {
            let why = "its command was withdrawn, so the node has removed our file";
            return Poll::End(StepState::Cancelled, why.to_owned());
        }
        // The marker ends at the time in its command, whatever has changed in the policy since.
        let seconds = command.and_then(|command| command.marker_expires_after_seconds);
        let timeout = seconds.map_or(step.timeout, |seconds| step.timeout.min(Duration::from_secs(seconds.into())));
        if age >= timeout {
            let (name, last_answer, timeout) = (node.name, last_answer(record), timeout.as_secs());
            let why = format!("nobody has booted node {name} anew within {timeout}s: {last_answer}");
            return Poll::End(StepState::TimedOut, self.with_report(node, record, &why));
        }
        if record.reason.is_none() {
            requeue.when_past(Duration::from_secs(settings.command_ttl_seconds.into()), waited);
            requeue.after(settings.answer_within.saturating_sub(waited));
        } else {
            requeue.when_past(settings.cache_lag, age);
        }
        Poll::Wait(timeout.saturating_sub(age).min(RHYTHM))
    }

    /// Why the marker ended, and what a person has to do if the node may still carry it and no probe can remove it.
    fn with_report(&self, node: &NodeContext<'_>, record: &StepRecord, why: &str) -> String {
        let is_ours = is_carried(record) && record.reason != Some(OutcomeReason::AlreadyRequested);
        if node.probe == Probe::Reporting || !is_ours {
            return why.to_owned();
        }
        format!(
            "{why}; its probe does not report: if none comes back, the file may still be there: remove {}",
            self.path
        )
    }
}

/// The reason why no tool can drain the node for its marker, else `None`. Only a report from the boot that was to end counts: a
/// missing report may be the boot itself.
fn cannot_be(node: &NodeContext<'_>, record: &StepRecord, now: jiff::Timestamp) -> Option<String> {
    if node.probe != Probe::Reporting || node.own_boot_id() != record.boot_id.as_deref() {
        return None;
    }
    let is_down = |seen: &ObservedFault<'_>| {
        let fault = seen.fault.as_ref();
        fault.kind.spec().down == Some(Daemon::Kubelet) && fault.state == FaultState::Confirmed && seen.lasted >= GRACE
    };
    let view = node.view?;
    let what = if node.seen.iter().any(is_down) {
        "its kubelet is down"
    } else if view.ready == TriState::Unknown && view.ready_since.is_some_and(|at| since(now, at) >= GRACE) {
        "whether it is Ready is Unknown"
    } else {
        return None;
    };
    let name = node.name;
    Some(format!("nobody can drain node {name}, since {what}: the mark makes room for what helps against that"))
}

/// Why no reboot may start now. A reboot that has started, or a node that is already down, is not interrupted.
fn closed_reason(node: &NodeContext<'_>, policy: &Policy, record: &StepRecord, now: jiff::Timestamp) -> Option<String> {
    let is_begun = node.view?.exclusions.iter().any(|one| SHUTTING_DOWN.contains(&one.as_str()));
    if node.probe != Probe::Reporting || is_begun {
        return None;
    }
    let shut = window::shut(&policy.windows, record.action.kind(), now)?;
    Some(format!("the mark was taken back, since nobody has rebooted the node until then: {}", shut.message))
}

/// The reason why the whole remediation ends. A drain or a shutdown of the node is what a marker requests, so it does not end the
/// remediation. A withdrawal at that time would stop nobody, and the boot would belong to no step.
fn must_stop(cx: &AttemptContext<'_>) -> Option<String> {
    let passed: &[&str] = if is_carried(cx.record) { &SHUTTING_DOWN } else { &[] };
    let excluded = exclusion::leave_alone_but(cx.node, passed);
    excluded.or_else(|| of_policy::policy_stops(cx.node, cx.remediation))
}

/// Whether a clean check in the boot that was to end shows that the fault is gone. If the probe reports another boot,
/// the Node will show it.
fn is_gone(cx: &AttemptContext<'_>, begun: jiff::Timestamp) -> bool {
    let Some(fault) = cx.remediation.fault(&cx.record.fault_id) else { return true };
    let is_same = boot::boot_of(cx.node).is_ok_and(|boot| cx.record.boot_id.as_deref() == Some(boot));
    is_same && cx.node.clear_check(fault, Some(begun)) == ClearCheck::Clean
}
