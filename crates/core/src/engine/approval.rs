//! Steps that a person has to approve. The controller records the attempt first, with its operation and what it would touch. An
//! approval is for that operation only, and ends with it.
//!
//! ```text
//! AwaitingApproval ─► approved, all conditions checked again ─► Scheduled ─► …
//!         │ the fault is gone, its object or the policy changes, another fault can be resolved meanwhile, the timeout is over
//!         │   while it is unknown whether the rule applies to the fault ─► Cancelled
//!         └ nobody approves in time ─► TimedOut: people are notified, no harsher step follows
//! ```

use jiff::Timestamp;

use super::update::RemediationUpdate;
use super::{PolicyContext, attempt};
use crate::context::Block;
use crate::human_duration::written;
use crate::moment::{after, clock, since};
use crate::plan::BlockReason;
use crate::policy::Step;
use crate::procedure::{self, boot, executors, pending_operation};
use crate::remediation::{StepRecord, StepState};

/// The message of an attempt that gave way to another fault. Its approval is requested again.
pub(super) const GAVE_WAY: &str = "another fault of the node, which waits for nobody, goes first";

/// Messages of attempts whose object or template has changed. Approval is requested for what there is now.
const OBJECT_CHANGED: &str = "the object has changed since its approval was asked for";
const TEMPLATE_CHANGED: &str = "the template has changed since its approval was asked for";

/// The message of an attempt that timed out while it was unknown which rule applies to the fault.
const UNCERTAIN: &str =
    "its time was over while nobody knew whether the rule applies to the fault; approval is requested again";

/// Records the attempt, and requests its approval.
pub(super) fn ask(update: &mut RemediationUpdate, mut record: StepRecord, step: &Step) {
    record.state = StepState::AwaitingApproval;
    record.scheduled_at = asked_at(update, &record);
    attempt::announce(&mut update.remediation, &record, " awaits approval");
    update.block(&record.fault_id, awaited(update, &record, step));
    update.requeue.after(step.approval_timeout);
    update.remediation.steps.push(record);
}

/// Continues the attempt once it is approved, and ends it after its timeout.
pub(super) fn wait(cx: PolicyContext<'_>, update: &mut RemediationUpdate, record: &StepRecord) {
    let now = cx.snapshot.now;
    let gone = "the fault was gone before the step was approved";
    let Some((open_fault, step)) = attempt::purpose(cx, update, record, gone) else { return };
    if cx.node.find(&open_fault.id).is_some_and(|seen| !seen.fault.target.is_same(&record.target)) {
        return attempt::end(update, StepState::Cancelled, OBJECT_CHANGED, now);
    }
    // While the template is not read yet, as right after a change of leaders, the step is blocked anyway.
    let version = procedure::of(&step.action).template_version(cx.cluster);
    if version.is_some() && version != record.template_version.as_deref() {
        return attempt::end(update, StepState::Cancelled, TEMPLATE_CHANGED, now);
    }
    let by = update.remediation.approved(&record.operation_id).map(ToOwned::to_owned);
    let executor = executors::of(cx.node, &step.action);
    let again = update
        .may_start(open_fault.kind)
        .and_then(|()| attempt::again(cx, &update.remediation, &open_fault, step))
        .and_then(|fault| pending_operation::require_none(cx.node, &update.remediation, executor).map(|()| fault));
    let age = since(now, record.scheduled_at);
    let is_agreed = by.is_some() || !step.needs_approval();
    if age >= step.approval_timeout && again.as_ref().is_err_and(Block::is_ambiguous) {
        // Missing knowledge is not a refusal: a person is asked again once it is known which rule applies to the fault.
        return attempt::end(update, StepState::Cancelled, UNCERTAIN, now);
    }
    if age >= step.approval_timeout && (!is_agreed || again.is_err()) {
        let why = match (&by, &again) {
            (Some(by), Err(block)) => {
                format!("approved by {by}, and blocked until its time was over: {}", block.message())
            }
            _ => format!("nobody approved it within {}", written(step.approval_timeout.as_secs())),
        };
        if let Some(current) = update.remediation.current_step_mut() {
            current.approved_by = by;
        }
        attempt::end(update, StepState::TimedOut, &why, now);
        if let (Some(rule), Some(fault)) =
            (cx.policy.rule(&open_fault.rule), update.remediation.fault_mut(&open_fault.id))
        {
            fault.step_index = rule.next_notify_step(fault.step_index.saturating_add(1));
        }
        return;
    }
    update.requeue.after(step.approval_timeout.saturating_sub(age));
    if !is_agreed {
        let block = awaited(update, record, step);
        return update.block(&record.fault_id, block);
    }
    match again {
        Err(block) => update.block(&record.fault_id, block),
        Ok(fault) => {
            let whose = by.as_deref().map_or_else(String::new, |by| format!(", approved by {by}"));
            attempt::announce(&mut update.remediation, record, &whose);
            let Some(current) = update.remediation.current_step_mut() else { return };
            (current.state, current.scheduled_at, current.approved_by) = (StepState::Scheduled, now, by);
            // The executor that could start pods at the time of the request may not be able to now.
            current.executor = executor;
            current.boot_id = boot::of_attempt(cx.node, &current.action, executor);
            executors::note(cx.node, current);
            let record = current.clone();
            attempt::act(cx, update, &record, fault, step);
        }
    }
}

/// Since when a person has been asked for this step. An attempt that gave way, or whose object has changed, is requested again, and
/// its timeout continues.
fn asked_at(update: &RemediationUpdate, record: &StepRecord) -> Timestamp {
    let is_same =
        |step: &&StepRecord| (step.fault_id.as_str(), step.step_index) == (record.fault_id.as_str(), record.step_index);
    let goes_on = |step: &&StepRecord| [GAVE_WAY, OBJECT_CHANGED, TEMPLATE_CHANGED].contains(&step.message.as_str());
    let last = update.remediation.steps.iter().rev().find(is_same).filter(goes_on);
    last.map_or(record.scheduled_at, |step| step.scheduled_at)
}

fn awaited(update: &RemediationUpdate, record: &StepRecord, step: &Step) -> Block {
    let until = clock(after(record.scheduled_at, step.approval_timeout));
    let (action, how) = (record.phrase(), update.remediation.approve_command(&record.operation_id));
    Block::new(BlockReason::AwaitingApproval, &format!("{action} waits for a person until {until}: {how}"))
}
