//! What comes back from an act, written into the record.

use jiff::Timestamp;

use super::{Remediation, Resolution, StepRecord, StepState};
use crate::command::OutcomeReason;
use crate::drain::{EMPTY_ROUNDS, QUIET_APART};
use crate::fault::MAX_LINE;
use crate::moment::since;
use crate::policy::ActionType;
use crate::text;

/// What came of an [`Effect::Act`](crate::plan::Effect::Act), as the shell saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionResult {
    /// Done by the API server: the node is cordoned by us, the pod's deletion was accepted, people were told.
    Done {
        /// One sentence.
        message: String,
    },
    /// One round of it is done, and another is to follow: pods are left.
    InProgress {
        /// One sentence.
        message: String,
    },
    /// One round of it has found nothing more to do or to wait for: it is done when another one, a while later, agrees.
    Quiet {
        /// One sentence.
        message: String,
    },
    /// The Job exists, or the order stands in the node's object; the answer comes later.
    Started,
    /// Somebody else had cordoned the node; nothing was touched and nothing is ours to undo.
    AlreadyCordoned,
    /// Somebody else's taint with our key is on the node; nothing was touched and nothing is ours to undo.
    AlreadyTainted,
    /// The pod with that uid is gone; nothing was touched.
    Gone {
        /// One sentence.
        message: String,
    },
    /// The last re-read said no; nothing was touched.
    Refused {
        /// Why.
        reason: OutcomeReason,
        /// One sentence.
        message: String,
    },
    /// The call failed, and will not be tried again in this attempt. (An error that may pass, such as a
    /// timeout or a 5xx, is no result: leave the step as it is, the next pass repeats the act.)
    Failed {
        /// One sentence.
        message: String,
    },
}

/// The remediation after its reserved step was carried out, or a round of one that takes several. An operation that is neither changes
/// nothing.
#[must_use]
pub fn executed(remediation: &Remediation, operation_id: &str, result: ActionResult, now: Timestamp) -> Remediation {
    let mut next = remediation.clone();
    let is_due = |step: &&mut StepRecord| match step.state {
        StepState::Scheduled => true,
        StepState::Started => step.action == ActionType::Drain,
        _ => false,
    };
    let Some(step) = next.steps.iter_mut().filter(is_due).find(|step| step.operation_id == operation_id) else {
        return next;
    };
    let (action, fault_id) = (step.action, step.fault_id.clone());
    match result {
        ActionResult::Started => {
            step.state = StepState::Started;
            step.started_at = Some(now);
        }
        ActionResult::InProgress { message } => {
            step.state = StepState::Started;
            step.started_at.get_or_insert(now);
            step.continued_at = Some(now);
            step.empty_rounds = 0;
            step.message = text::bounded(&message, MAX_LINE);
        }
        ActionResult::Quiet { message } => {
            // Two leaders, or one that repeats what it has not written, are one look.
            let is_apart = step.continued_at.is_none_or(|last| since(now, last) >= QUIET_APART);
            step.state = StepState::Started;
            step.started_at.get_or_insert(now);
            if is_apart {
                step.empty_rounds = step.empty_rounds.saturating_add(1);
                step.continued_at = Some(now);
            }
            if step.empty_rounds >= EMPTY_ROUNDS {
                step.executed_at = Some(now);
                step.finish(StepState::Succeeded, &format!("drained: {message}"), now);
            } else {
                step.message = text::bounded(&format!("{message}, which is checked once more"), MAX_LINE);
            }
        }
        ActionResult::Done { message } => {
            step.executed_at = Some(now);
            match action {
                // None of them heals: there is no cure to wait for.
                ActionType::Cordon | ActionType::Taint | ActionType::Drain | ActionType::Notify => {
                    step.finish(StepState::Succeeded, &message, now);
                }
                _ => {
                    step.state = StepState::Verifying;
                    step.message = message;
                }
            }
            if action == ActionType::Notify
                && let Some(fault) = next.fault_mut(&fault_id)
            {
                fault.state = Resolution::Exhausted;
            }
        }
        ActionResult::AlreadyCordoned => {
            step.finish(StepState::Succeeded, "already unschedulable, adopted nothing", now);
            next.cleanup.cordoned = false;
        }
        ActionResult::AlreadyTainted => {
            step.finish(StepState::Succeeded, "somebody else's taint is there already, adopted nothing", now);
            next.cleanup.tainted = false;
        }
        ActionResult::Gone { message } => {
            step.reason = Some(OutcomeReason::TargetGone);
            step.finish(StepState::Refused, &message, now);
        }
        ActionResult::Refused { reason, message } => {
            step.reason = Some(reason);
            step.finish(StepState::Refused, &message, now);
            match action {
                ActionType::Cordon => next.cleanup.cordoned = false,
                // Its own with another effect is there already, and still to be taken back.
                ActionType::Taint if reason == OutcomeReason::Protected => {}
                ActionType::Taint => next.cleanup.tainted = false,
                // Somebody else's is there: nothing was made for it.
                ActionType::HandOff if reason == OutcomeReason::Protected => next.cleanup.forget_hand_off(operation_id),
                _ => {}
            }
        }
        // A failed cordon or taint stays owed: the call may have reached the API server all the same.
        ActionResult::Failed { message } => {
            step.reason = Some(OutcomeReason::RequestFailed);
            step.finish(StepState::Failed, &message, now);
        }
    }
    next.set_phase();
    next
}

/// The remediation after its cordon was removed from the node, or found to be someone else's business.
#[must_use]
pub fn uncordoned(remediation: &Remediation, now: Timestamp) -> Remediation {
    let mut next = remediation.clone();
    if next.cleanup.owes_cordon() {
        next.cleanup.uncordoned_at = Some(now);
    }
    next.conclude(now);
    next
}

/// The remediation after its taint was taken off the node, or found to be someone else's business.
#[must_use]
pub fn untainted(remediation: &Remediation, now: Timestamp) -> Remediation {
    let mut next = remediation.clone();
    if next.cleanup.owes_taint() {
        next.cleanup.untainted_at = Some(now);
    }
    next.conclude(now);
    next
}
