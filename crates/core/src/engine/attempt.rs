//! One attempt at a step: its record, its purpose, whether it may still run, its action, and its end.

use super::select::EvidenceRequirement;
use super::update::RemediationUpdate;
use super::{PolicyContext, ending, scope, select};
use crate::context::{Block, ClearCheck, NodeContext, ObservedFault, of_policy};
use crate::fault::{Fault, FaultState};
use crate::plan::{BlockReason, Effect};
use crate::policy::{Rule, Step};
use crate::procedure::{self, AttemptContext, boot};
use crate::remediation::{Executor, Remediation, RemediationFault, StepRecord, StepState, operation_id};

/// A new attempt, with the next free operation id.
pub(super) fn record(
    node: &NodeContext<'_>,
    remediation: &Remediation,
    open_fault: &RemediationFault,
    step: &Step,
    executor: Executor,
) -> StepRecord {
    StepRecord {
        operation_id: operation_id(&remediation.name, remediation.started_at, remediation.steps.len() + 1),
        fault_id: open_fault.id.clone(),
        action: step.action.recorded(),
        boot_id: boot::of_attempt(node, &step.action, executor),
        step_index: open_fault.step_index,
        executor,
        executor_reason: String::new(),
        target: crate::fault::Target::default(),
        state: StepState::Scheduled,
        reason: None,
        message: String::new(),
        scheduled_at: node.cluster.snapshot.now,
        approved_by: None,
        template_version: procedure::of(&step.action).template_version(node.cluster).map(ToOwned::to_owned),
        started_at: None,
        executor_changed_at: None,
        rounds: None,
        executed_at: None,
        clear_since: None,
        finished_at: None,
    }
}

/// Says in the message of the remediation what the attempt is for, and how it goes on.
pub(super) fn announce(remediation: &mut Remediation, record: &StepRecord, how: &str) {
    if let Some(fault) = remediation.fault(&record.fault_id) {
        let message = format!("{} for {fault}{how}", record.phrase());
        remediation.say(&message);
    }
}

/// The purpose of an attempt that is not known to have begun: its fault, and the step of the policy. `None`: the
/// attempt ends here, because the remediation stops, the fault is gone (message `gone`), the node is in another boot,
/// or the policy has no such step.
pub(super) fn purpose<'p>(
    cx: PolicyContext<'p>,
    update: &mut RemediationUpdate,
    record: &StepRecord,
    gone: &str,
) -> Option<(RemediationFault, &'p Step)> {
    let now = cx.snapshot.now;
    if let Some(why) = ending::must_stop(cx.ctx, cx.node, &update.remediation) {
        ending::cancel(cx.ctx, &mut update.remediation, &why);
        return None;
    }
    let open_fault = update.remediation.fault(&record.fault_id).cloned();
    let (Some(open_fault), Some(step)) = (open_fault, of_policy::step_of(cx.policy, &update.remediation, record))
    else {
        end(update, StepState::Cancelled, "the policy has another step in its place", now);
        return None;
    };
    if record.action.ends_boot() && !boot::is_same(cx.node, record) {
        end(update, StepState::Cancelled, "the node is in another boot than the one that was to end", now);
        return None;
    }
    if cx.node.clear_check(&open_fault, Some(record.scheduled_at)) == ClearCheck::Clean {
        end(update, StepState::Cancelled, gone, now);
        return None;
    }
    Some((open_fault, step))
}

/// The fault as it is observed now, and its rule. The engine does nothing for a fault that is not confirmed.
pub(super) fn confirmed<'f>(
    cx: PolicyContext<'f>,
    open_fault: &RemediationFault,
) -> Result<(&'f ObservedFault<'f>, &'f Rule), Block> {
    let seen = cx.node.find(&open_fault.id);
    let confirmed = seen.filter(|seen| seen.fault.state == FaultState::Confirmed);
    confirmed.zip(cx.policy.rule(&open_fault.rule)).ok_or_else(|| {
        let how = match seen {
            Some(_) => "is not confirmed any more",
            None => "is not observed now, and is not confirmed to be resolved",
        };
        Block::new(BlockReason::NotConfirmed, &format!("{open_fault} on {} {how}", cx.node.name))
    })
}

/// The fault as it is observed now, if the step may be taken on it.
pub(super) fn check<'f>(
    cx: PolicyContext<'f>,
    remediation: &Remediation,
    open_fault: &RemediationFault,
    step: &Step,
    required: EvidenceRequirement,
) -> Result<&'f ObservedFault<'f>, Block> {
    let (seen, rule) = confirmed(cx, open_fault)?;
    select::may_take(cx, Some(remediation), seen, rule, step, required)?;
    select::require_prepared(cx, remediation, open_fault, seen, rule, step)?;
    Ok(seen)
}

/// The fault of a reserved step, if the step may still run.
pub(super) fn again<'f>(
    cx: PolicyContext<'f>,
    remediation: &Remediation,
    open_fault: &RemediationFault,
    step: &Step,
) -> Result<&'f Fault, Block> {
    // The other executor may be about to take over an attempt that has begun.
    if let Some(why) = scope::broken(cx.policy) {
        return Err(Block::new(BlockReason::Paused, &why));
    }
    // A decided notification is sent whether or not the probe still reports.
    let required = if step.action.notifies() { EvidenceRequirement::Any } else { EvidenceRequirement::Fresh };
    Ok(&check(cx, remediation, open_fault, step, required)?.fault)
}

/// The context of an attempt that has started, with its step as its action finds it in the policy.
pub(super) fn context<'x>(
    cx: PolicyContext<'x>,
    remediation: &'x Remediation,
    record: &'x StepRecord,
) -> AttemptContext<'x> {
    let step = procedure::of(&record.action).named_step(cx.policy, remediation, record);
    AttemptContext { node: cx.node, policy: cx.policy, remediation, record, step }
}

/// Starts a reserved step. The cleanup that the action needs is recorded with it: the marker of an earlier remediation of this
/// name may have been removed meanwhile, and this record may say so.
pub(super) fn act(
    cx: PolicyContext<'_>,
    update: &mut RemediationUpdate,
    record: &StepRecord,
    fault: &Fault,
    step: &Step,
) {
    let (procedure, remediation) = (procedure::of(&step.action), &mut update.remediation);
    if let Some(marker) = procedure.marker(remediation, record) {
        remediation.cleanup.add(marker, cx.snapshot.now);
    }
    let attempt = AttemptContext { step: Some(step), ..context(cx, remediation, record) };
    update.effect = procedure.operation(&attempt, fault).map(|operation| Effect::Act {
        remediation: remediation.name.clone(),
        operation_id: record.operation_id.clone(),
        node: remediation.node.clone(),
        node_uid: remediation.node_uid.clone(),
        operation,
    });
    update.requeue.after(cx.settings.retry);
}

pub(super) fn end(update: &mut RemediationUpdate, state: StepState, message: &str, now: jiff::Timestamp) {
    if let Some(step) = update.remediation.current_step_mut() {
        step.finish(state, message, now);
    }
}
