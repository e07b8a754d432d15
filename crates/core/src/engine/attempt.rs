//! One attempt at a step: its record, its purpose, whether it may still run, its action, and its end.

use super::select::EvidenceRequirement;
use super::update::RemediationUpdate;
use super::{Ctx, drain, ending, hand_off, reboot, select};
use crate::context::{Block, ClearCheck, NodeContext, of_policy};
use crate::fault::{Fault, FaultState};
use crate::plan::{BlockReason, Effect};
use crate::policy::{Action, ActionType, Policy, Step};
use crate::remediation::{Executor, Remediation, RemediationFault, StepRecord, StepState, operation_id};

/// A new attempt, with the next free operation id.
pub(super) fn record(
    ctx: Ctx<'_>,
    remediation: &Remediation,
    standing: &RemediationFault,
    step: &Step,
    executor: Executor,
) -> StepRecord {
    StepRecord {
        operation_id: operation_id(&remediation.name, remediation.started_at, remediation.steps.len() + 1),
        fault_id: standing.id.clone(),
        action: step.action.kind(),
        signal: of_policy::signal(&step.action),
        restart: of_policy::restart_with(&step.action),
        hand_off: step.action.hand_off().cloned(),
        taint: step.action.taint(),
        drain: step.action.drain().cloned(),
        reboot: step.action.reboot().cloned(),
        mark_for_reboot: step.action.mark_for_reboot().cloned(),
        boot_id: reboot::boot(ctx, remediation, &step.action),
        step_index: standing.step_index,
        executor,
        executor_reason: String::new(),
        target: crate::fault::Target::default(),
        state: StepState::Scheduled,
        reason: None,
        message: String::new(),
        scheduled_at: ctx.snapshot.now,
        approved_by: None,
        template_version: template_version(ctx, step).map(ToOwned::to_owned),
        started_at: None,
        executor_changed_at: None,
        continued_at: None,
        empty_rounds: 0,
        executed_at: None,
        clear_since: None,
        finished_at: None,
    }
}

/// Uid and generation of the template of a hand-off, as last read.
pub(super) fn template_version<'a>(ctx: Ctx<'a>, step: &Step) -> Option<&'a str> {
    let template = &step.action.hand_off()?.remediation_template;
    ctx.snapshot.template_versions.get(template).map(String::as_str)
}

/// Records the cleanup that the action needs. It is recorded before the action, so a crash in between leaves nothing behind.
pub(super) fn plan_cleanup(remediation: &mut Remediation, record: &StepRecord) {
    if record.action == ActionType::Cordon {
        (remediation.cleanup.cordoned, remediation.cleanup.uncordoned_at) = (true, None);
    }
    if record.action == ActionType::Taint {
        (remediation.cleanup.tainted, remediation.cleanup.untainted_at) = (true, None);
    }
    hand_off::plan_cleanup(remediation, record);
}

/// The purpose of an attempt that is not known to have begun: its fault, and the step of the policy. `None` if the attempt ends
/// here: the remediation stops, the fault is gone (message `gone`), the node is in another boot, or the policy has no such step
/// any more.
pub(super) fn purpose<'p>(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &'p Policy,
    turn: &mut RemediationUpdate,
    record: &StepRecord,
    gone: &str,
) -> Option<(RemediationFault, &'p Step)> {
    let now = ctx.snapshot.now;
    if let Some(why) = ending::must_stop(ctx, facts, &turn.remediation) {
        ending::cancel(ctx, &mut turn.remediation, &why);
        return None;
    }
    let standing = turn.remediation.fault(&record.fault_id).cloned();
    let (Some(standing), Some(step)) = (standing, of_policy::step_of(policy, &turn.remediation, record)) else {
        end(turn, StepState::Cancelled, "the policy does not name this step any more", now);
        return None;
    };
    if !reboot::is_same_boot(facts, record) {
        end(turn, StepState::Cancelled, "the node is in another boot than the one that was to end", now);
        return None;
    }
    if facts.clear_check(&standing, Some(record.scheduled_at), now, ctx.settings.evidence_max_age) == ClearCheck::Clean
    {
        end(turn, StepState::Cancelled, gone, now);
        return None;
    }
    Some((standing, step))
}

/// Whether the reserved step may still run.
pub(super) fn again<'f>(
    ctx: Ctx<'_>,
    facts: &'f NodeContext<'_>,
    policy: &Policy,
    remediation: &Remediation,
    standing: &RemediationFault,
    step: &Step,
) -> Result<(&'f Fault, Executor), Block> {
    let not_now = || {
        let message = format!("{} ({}) is not confirmed any more", standing.kind, standing.subject);
        Block::new(BlockReason::NotConfirmed, &message)
    };
    let seen = facts.find(&standing.id).filter(|s| s.fault.state == FaultState::Confirmed).ok_or_else(not_now)?;
    let rule = policy.rule(&standing.rule).ok_or_else(not_now)?;
    // A decided notification is sent whether or not the probe still reports.
    let look = if matches!(step.action, Action::Notify { .. }) {
        EvidenceRequirement::Any
    } else {
        EvidenceRequirement::Fresh
    };
    let executor = select::may_take(ctx, facts, policy, seen, rule, step, look)?;
    drain::require_cordon(facts, remediation, step)?;
    drain::require_benefit(ctx, facts, policy, remediation, standing, seen, rule, step)?;
    reboot::require_ready(facts, step)?;
    Ok((&seen.fault, executor))
}

/// The action of a reserved step.
pub(super) fn act(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    remediation: &Remediation,
    record: &StepRecord,
    fault: &Fault,
    step: &Step,
) -> Option<Effect> {
    let operation = select::operation(ctx, facts, record, fault, step)?;
    Some(Effect::Act {
        remediation: remediation.name.clone(),
        operation_id: record.operation_id.clone(),
        node: remediation.node.clone(),
        node_uid: remediation.node_uid.clone(),
        operation,
    })
}

/// Ends the current attempt.
pub(super) fn end(turn: &mut RemediationUpdate, state: StepState, message: &str, now: jiff::Timestamp) {
    if let Some(step) = turn.remediation.current_step_mut() {
        step.finish(state, message, now);
    }
}
