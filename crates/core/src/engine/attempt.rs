//! One attempt at a step: its record, its purpose, whether it may still run, its action, and its end.

use super::select::EvidenceRequirement;
use super::update::RemediationUpdate;
use super::{Ctx, ending, scope, select};
use crate::context::{Block, ClearCheck, NodeContext, ObservedFault, of_policy};
use crate::fault::{Fault, FaultState};
use crate::plan::{BlockReason, Effect};
use crate::policy::{Policy, Rule, Step};
use crate::procedure::{self, AttemptContext};
use crate::remediation::{Executor, Remediation, RemediationFault, StepRecord, StepState, operation_id};

/// A new attempt, with the next free operation id.
pub(super) fn record(
    ctx: Ctx<'_>,
    remediation: &Remediation,
    standing: &RemediationFault,
    step: &Step,
    executor: Executor,
) -> StepRecord {
    let mut record = StepRecord {
        operation_id: operation_id(&remediation.name, remediation.started_at, remediation.steps.len() + 1),
        fault_id: standing.id.clone(),
        action: step.action.recorded(),
        boot_id: None,
        step_index: standing.step_index,
        executor,
        executor_reason: String::new(),
        target: crate::fault::Target::default(),
        state: StepState::Scheduled,
        reason: None,
        message: String::new(),
        scheduled_at: ctx.snapshot.now,
        approved_by: None,
        template_version: procedure::of(&step.action).template_version(ctx.cluster).map(ToOwned::to_owned),
        started_at: None,
        executor_changed_at: None,
        rounds: None,
        executed_at: None,
        clear_since: None,
        finished_at: None,
    };
    procedure::of(&step.action).note_attempt(ctx.cluster, remediation, &mut record);
    record
}

/// The purpose of an attempt that is not known to have begun: its fault, and the step of the policy. `None` if the attempt ends
/// here: the remediation stops, the fault is gone (message `gone`), the node is in another boot, or the policy has no such step
/// any more.
pub(super) fn purpose<'p>(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    policy: &'p Policy,
    update: &mut RemediationUpdate,
    record: &StepRecord,
    gone: &str,
) -> Option<(RemediationFault, &'p Step)> {
    let now = ctx.snapshot.now;
    if let Some(why) = ending::must_stop(ctx, node, &update.remediation) {
        ending::cancel(ctx, &mut update.remediation, &why);
        return None;
    }
    let standing = update.remediation.fault(&record.fault_id).cloned();
    let (Some(standing), Some(step)) = (standing, of_policy::step_of(policy, &update.remediation, record)) else {
        end(update, StepState::Cancelled, "the policy does not name this step any more", now);
        return None;
    };
    if !procedure::of(&record.action).is_due(node, record) {
        end(update, StepState::Cancelled, "the node is in another boot than the one that was to end", now);
        return None;
    }
    if node.clear_check(&standing, Some(record.scheduled_at), now, ctx.settings.evidence_max_age) == ClearCheck::Clean {
        end(update, StepState::Cancelled, gone, now);
        return None;
    }
    Some((standing, step))
}

/// The fault of an attempt as it shows now, and its rule.
pub(super) fn confirmed<'f, 'p>(
    node: &'f NodeContext<'_>,
    policy: &'p Policy,
    standing: &RemediationFault,
) -> Result<(&'f ObservedFault<'f>, &'p Rule), Block> {
    let seen = node.find(&standing.id).filter(|seen| seen.fault.state == FaultState::Confirmed);
    seen.zip(policy.rule(&standing.rule)).ok_or_else(|| {
        let message = format!("{} ({}) is not confirmed any more", standing.kind, standing.subject);
        Block::new(BlockReason::NotConfirmed, &message)
    })
}

/// Whether the reserved step may still run.
pub(super) fn again<'f>(
    ctx: Ctx<'_>,
    node: &'f NodeContext<'_>,
    policy: &Policy,
    remediation: &Remediation,
    standing: &RemediationFault,
    step: &Step,
) -> Result<(&'f Fault, Executor), Block> {
    // The other executor may be about to take over an attempt that has begun.
    if let Some(why) = scope::broken(policy) {
        return Err(Block::new(BlockReason::Paused, &why));
    }
    let (seen, rule) = confirmed(node, policy, standing)?;
    // A decided notification is sent whether or not the probe still reports.
    let evidence = if step.action.notifies() { EvidenceRequirement::Any } else { EvidenceRequirement::Fresh };
    let executor = select::may_take(ctx, node, policy, seen, rule, step, evidence)?;
    select::require_prepared(ctx, node, policy, remediation, standing, seen, rule, step)?;
    Ok((&seen.fault, executor))
}

/// The context of an attempt that has started, with its step as its action finds it in the policy.
pub(super) fn context<'x>(
    ctx: Ctx<'x>,
    node: &'x NodeContext<'x>,
    policy: &'x Policy,
    remediation: &'x Remediation,
    record: &'x StepRecord,
) -> AttemptContext<'x> {
    let step = procedure::of(&record.action).named_step(policy, remediation, record);
    AttemptContext { cluster: ctx.cluster, node, policy, remediation, record, step }
}

/// What starts a reserved step. The cleanup that the action needs is recorded with it: the marker of an earlier remediation of this
/// name may have been removed meanwhile, and this record may say so.
pub(super) fn act(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    policy: &Policy,
    remediation: &mut Remediation,
    record: &StepRecord,
    fault: &Fault,
    step: &Step,
) -> Option<Effect> {
    let procedure = procedure::of(&step.action);
    if let Some(marker) = procedure.marker(remediation, record) {
        remediation.cleanup.add(marker, ctx.snapshot.now);
    }
    let cx = AttemptContext { cluster: ctx.cluster, node, policy, remediation, record, step: Some(step) };
    let operation = procedure.operation(&cx, fault)?;
    Some(Effect::Act {
        remediation: remediation.name.clone(),
        operation_id: record.operation_id.clone(),
        node: remediation.node.clone(),
        node_uid: remediation.node_uid.clone(),
        operation,
    })
}

/// Ends the current attempt.
pub(super) fn end(update: &mut RemediationUpdate, state: StepState, message: &str, now: jiff::Timestamp) {
    if let Some(step) = update.remediation.current_step_mut() {
        step.finish(state, message, now);
    }
}
