//! Steps that take several rounds, such as evictions: when the next round begins, and when the step ends.

use super::update::RemediationUpdate;
use super::{PolicyContext, attempt, checks, select};
use crate::context::{Block, ObservedFault, evidence};
use crate::fault::Fault;
use crate::moment::since;
use crate::policy::Step;
use crate::procedure;
use crate::remediation::{Remediation, RemediationFault, StepRecord, StepState};

/// How often the step yields to the release of a hung process and begins again, for one fault.
const GIVES_WAY: usize = 3;

/// Continues a step that takes several rounds: another round, until none is needed or the step's timeout expires.
pub(super) fn go_on(cx: PolicyContext<'_>, update: &mut RemediationUpdate, record: &StepRecord) {
    let now = cx.snapshot.now;
    let gone = format!("ended, since the fault is gone; {}", record.message);
    let Some((open_fault, step)) = attempt::purpose(cx, update, record, &gone) else { return };
    let age = since(now, record.started_at.unwrap_or(record.scheduled_at));
    if age >= step.timeout {
        let why = format!("not done within {}s: {}", step.timeout.as_secs(), record.message);
        return attempt::end(update, StepState::TimedOut, &why, now);
    }
    update.requeue.after(step.timeout.saturating_sub(age));
    if step.needs_approval() && update.remediation.approved(&record.operation_id).is_none() {
        let why = format!("its approval was withdrawn, or the policy requires one now; {}", record.message);
        return attempt::end(update, StepState::Cancelled, &why, now);
    }
    let interrupted = interruption(cx, &update.remediation, &open_fault, record, step);
    if let Some((state, why)) = interrupted {
        return attempt::end(update, state, &format!("{why}; {}", record.message), now);
    }
    let rested = record.rounds.map_or(cx.settings.retry, |rounds| since(now, rounds.last_at));
    if rested < cx.settings.retry {
        return update.requeue.after(cx.settings.retry.saturating_sub(rested));
    }
    match update.slot.require().and_then(|()| may_go_on(cx, &update.remediation, &open_fault, step)) {
        Ok(fault) => attempt::act(cx, update, record, fault, step),
        Err(block) => update.block(&record.fault_id, block),
    }
}

/// Returns why the step ends early: it cannot succeed any more, or a hung process has to be released. The step yields to such a
/// release a few times only, and begins again after it.
fn interruption(
    cx: PolicyContext<'_>,
    remediation: &Remediation,
    open_fault: &RemediationFault,
    record: &StepRecord,
    step: &Step,
) -> Option<(StepState, String)> {
    if let Some(why) = procedure::of(&step.action).end_reason(cx.node) {
        return Some((StepState::Failed, why));
    }
    let is_fresh = |seen: &&ObservedFault<'_>| evidence::require_fresh(cx.node, seen).is_ok();
    let seen = cx.node.find(&open_fault.id).filter(is_fresh)?;
    let first = select::release_first(cx, &seen.fault)?;
    let gave_way = remediation.steps.iter().filter(|other| {
        let is_its = (&other.action, other.step_index) == (&record.action, record.step_index)
            && other.fault_id == record.fault_id;
        is_its && other.state == StepState::Cancelled && other.started_at.is_some()
    });
    let message = format!("it gives way to the release for {}", first.fault);
    (gave_way.count() < GIVES_WAY).then_some((StepState::Cancelled, message))
}

/// Checks that another round may begin. It needs no open window and ignores the node's action limit: the step itself
/// counts towards it.
fn may_go_on<'f>(
    cx: PolicyContext<'f>,
    remediation: &Remediation,
    open_fault: &RemediationFault,
    step: &Step,
) -> Result<&'f Fault, Block> {
    let (seen, rule) = attempt::confirmed(cx, open_fault)?;
    checks::still_asked_for(cx, rule, &seen.fault, step)?;
    evidence::require_fresh(cx.node, seen)?;
    evidence::may_be_touched(cx.node, seen.fault.kind)?;
    procedure::of(&step.action).admit_round(cx.node, remediation)?;
    Ok(&seen.fault)
}
