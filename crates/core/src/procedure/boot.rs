//! The boots of a node: where it may be rebooted, by the controller or by another tool, and what proves that it was.
//!
//! ```text
//! Scheduled, for one boot id ─► Started ─► the Node shows another boot id ─► Verifying: the probe of that boot checks again
//!         └ another boot id before anything was recorded: the reboot was done, and is never repeated
//! ```
//!
//! Only the boot id of the Node proves a reboot. An answer of the node does not, and silence does not. While the machine is
//! away, no step is taken on the node, and a fault that shows meanwhile is not new.
//! The command does not stay for as long. The controller removes a command that nobody read in time, or that somebody objected
//! to, so that no node executor acts on it much later.

use std::time::Duration;

use super::{AttemptContext, Verification};
use crate::action::{Action, ActionType};
use crate::command::OutcomeReason;
use crate::context::{Block, NodeContext};
use crate::moment::{after, clock, since};
use crate::plan::BlockReason;
use crate::policy::Step;
use crate::reboot::is_boot_id;
use crate::remediation::{Executor, Remediation, StepRecord, StepState};

/// Least time between two reboots of one node, in any remediation and by any policy.
const APART: Duration = Duration::from_hours(1);

/// The same after a reboot that did not help: a person must see a node that is rebooted again and again in vain.
pub(crate) const RETRY_AFTER_FAILED_REBOOT: Duration = Duration::from_hours(24);

/// How long another boot id is awaited if the policy does not name the step any more: the machine boots anyway.
pub(super) const AWAY: Duration = Duration::from_mins(20);

/// The boot that the Node shows, if the probe reports the same.
pub(super) fn boot_of<'a>(node: &NodeContext<'a>) -> Result<&'a str, Block> {
    let unknown =
        |what: String| Block::new(BlockReason::ActionsDisabled, &format!("node {} is not rebooted: {what}", node.name));
    let shown = node.view.and_then(|view| view.boot_id.as_deref());
    let shown = shown.ok_or_else(|| unknown("its Node shows no boot id".to_owned()))?;
    if !is_boot_id(shown) {
        return Err(unknown(format!("its Node shows {shown:?} where a boot id is expected")));
    }
    match node.own_boot_id() {
        Some(reported) if reported == shown => Ok(shown),
        Some(reported) => Err(unknown(format!("its Node shows boot id {shown}, its probe reports {reported:?}"))),
        None => Err(unknown("its probe reports no boot id".to_owned())),
    }
}

/// Whether the reboot may be done now, as far as the boots of the node are concerned.
pub(super) fn admit(node: &NodeContext<'_>) -> Result<(), Block> {
    boot_of(node)?;
    let now = node.cluster.snapshot.now;
    // Any Node object of that name counts: a recreated Node may stand for the same machine.
    let last = node.remediations().flat_map(begun);
    let free = |step: &StepRecord| {
        let at = done_at(step)?;
        let apart = apart(step, node.view.and_then(|view| view.boot_id.as_deref()));
        let until = after(at, apart);
        // As far as is known, no tool acted on the mark.
        let is_mark = step.action == ActionType::MarkForReboot && step.executed_at.is_none();
        (until > now).then_some((until, at, apart, is_mark))
    };
    let Some((until, at, apart, is_mark)) = last.filter_map(free).max() else { return Ok(()) };
    let what = if is_mark { "marked for a reboot until" } else { "rebooted, or commanded to reboot, at" };
    let how = if apart > APART { ", which did not help" } else { "" };
    let message = format!("node {} was {what} {}{how}: not again before {}", node.name, clock(at), clock(until));
    Err(Block::new(BlockReason::NodeLimit, &message).until(since(until, now)))
}

/// When the reboot was done, as far as is known. A mark stands for hours, and its reboot may begin at its end.
fn done_at(step: &StepRecord) -> Option<jiff::Timestamp> {
    let begun = step.started_at?;
    let last = step.executed_at.or(step.finished_at).filter(|_| step.action == ActionType::MarkForReboot);
    Some(last.unwrap_or(begun))
}

/// Reboots of the remediation that may have begun.
fn begun(remediation: &Remediation) -> impl Iterator<Item = &StepRecord> {
    let is_it = |step: &&StepRecord| step.action.ends_boot() && step.state != StepState::Refused;
    remediation.steps.iter().filter(is_it).filter(|step| step.started_at.is_some())
}

/// How long the node, in its current boot, is not rebooted again after this reboot.
fn apart(step: &StepRecord, booted: Option<&str>) -> Duration {
    // Removal of the mark does not stop a tool that has begun to act on it. A boot that came all the same has not helped either.
    if step.state == StepState::Cancelled && is_carried(step) && booted != step.boot_id.as_deref() {
        return RETRY_AFTER_FAILED_REBOOT;
    }
    let was_made = step.reason != Some(OutcomeReason::RequestFailed);
    let is_in_vain = matches!(step.state, StepState::Failed | StepState::TimedOut) && was_made;
    if is_in_vain { RETRY_AFTER_FAILED_REBOOT } else { APART }
}

/// Whether decisions depend on the record of the remediation for longer than on other records.
pub(crate) fn is_remembered(remediation: &Remediation) -> bool {
    begun(remediation).next().is_some()
}

/// Whether the node has reported that it carries a marker, the controller's own or somebody else's.
pub(super) fn is_carried(step: &StepRecord) -> bool {
    use OutcomeReason as R;
    step.action == ActionType::MarkForReboot
        && matches!(step.reason, Some(R::Executed | R::AlreadyRequested | R::AlreadyExecuted))
}

/// Allows at most one reboot in a remediation: a fault that one reboot did not resolve is not resolved by another.
pub(super) fn require_untried(step: &Step, remediation: &Remediation) -> Result<(), &'static str> {
    let reboots = || remediation.steps.iter().filter(|record| record.action.ends_boot());
    // The request was withdrawn or timed out while it awaited approval: nothing was commanded.
    let is_unanswered =
        |record: &StepRecord| record.started_at.is_none() && record.approved_by.is_none() && step.needs_approval();
    let was_begun = |record: &StepRecord| match record.state {
        state if !state.is_final() => false,
        StepState::Refused | StepState::Simulated => false,
        StepState::Cancelled | StepState::TimedOut => !is_unanswered(record),
        // The API server accepted no command: no node was asked.
        _ => !record.is_refused_call(),
    };
    if reboots().any(was_begun) {
        return Err("the node was rebooted, or commanded to reboot, in this remediation already");
    }
    if reboots().any(|record| record.state == StepState::TimedOut && is_unanswered(record)) {
        return Err("nobody has agreed to a reboot of the node in this remediation, and nobody is asked twice");
    }
    Ok(())
}

/// Whether the machine is away, or not known to be back yet. A fault that shows meanwhile is not new.
pub(crate) fn is_under_way(remediation: &Remediation) -> bool {
    let is_it =
        |step: &StepRecord| step.action.ends_boot() && matches!(step.state, StepState::Started | StepState::Verifying);
    remediation.current_step().is_some_and(is_it)
}

pub(super) fn last_answer(record: &StepRecord) -> &str {
    if record.message.is_empty() { "the node gave no answer" } else { &record.message }
}

/// The only boot in which a node executes an attempt: a boot makes the node forget what it has executed. A reboot ends the boot that
/// the Node shows. All else is for the boot of the probe: where no kubelet works the Node shows an older one.
pub(crate) fn of_attempt(node: &NodeContext<'_>, action: &Action, executor: Executor) -> Option<String> {
    let boot = match executor {
        _ if action.ends_boot() => node.view?.boot_id.as_ref(),
        Executor::Controller => None,
        Executor::Job | Executor::Probe => node.heartbeat().map(|beat| &beat.boot_id),
    };
    boot.filter(|id| is_boot_id(id)).cloned()
}

/// Whether the node is still in the boot that the attempt is to end.
pub(crate) fn is_same(node: &NodeContext<'_>, record: &StepRecord) -> bool {
    record.boot_id.is_some() && node.view.and_then(|view| view.boot_id.as_deref()) == record.boot_id.as_deref()
}

/// Records the proof that the attempt is done: another boot id.
pub(super) fn observe(node: &NodeContext<'_>, record: &mut StepRecord) {
    let now = node.cluster.snapshot.now;
    let is_begun = matches!(record.state, StepState::Scheduled | StepState::Started);
    let booted = node.view.and_then(|view| view.boot_id.as_ref());
    if let (true, Some(before), Some(booted)) = (is_begun, &record.boot_id, booted)
        && before != booted
    {
        record.message = format!("the node has rebooted: its boot id was {before} and is {booted}");
        record.state = StepState::Verifying;
        record.started_at.get_or_insert(now);
        record.executed_at = Some(now);
    }
}

/// How the success of a reboot is verified: only by checks in the new boot.
pub(super) fn verification(cx: &AttemptContext<'_>) -> Verification {
    let before = cx.record.boot_id.as_deref();
    let is_checkable = boot_of(cx.node).is_ok_and(|boot| before.is_some_and(|before| before != boot));
    Verification { is_checkable, ..Verification::of(cx, AWAY) }
}
