//! Records the result of an action in the remediation.

use jiff::Timestamp;

use super::{Marker, Remediation, Resolution, StepRecord, StepState};
use crate::command::OutcomeReason;
use crate::drain::{EMPTY_ROUNDS, QUIET_APART};
use crate::moment::since;
use crate::policy::ActionType;

/// The result of an [`Effect::Act`](crate::plan::Effect::Act), as the shell saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionResult {
    /// The API server has done it: our cordon is on the node, the deletion of the pod was accepted, or people were notified.
    Done {
        /// One sentence.
        message: String,
    },
    /// One round is done, and pods are left. Another round follows.
    InProgress {
        /// One sentence.
        message: String,
    },
    /// One round has found nothing more to do or to wait for. The action is done when another round, a while later, confirms it.
    Quiet {
        /// One sentence.
        message: String,
    },
    /// The Job exists, or the command is in the node's `NodeCommand`. The answer comes later.
    Started,
    /// Somebody else had cordoned the node. Nothing was changed, and no cleanup is ours.
    AlreadyCordoned,
    /// Somebody else's taint with our key is on the node. Nothing was changed, and no cleanup is ours.
    AlreadyTainted,
    /// The pod with that uid is gone. Nothing was changed.
    Gone {
        /// One sentence.
        message: String,
    },
    /// The preflight refused it. Nothing was changed.
    Refused {
        /// Why.
        reason: OutcomeReason,
        /// One sentence.
        message: String,
    },
    /// The call failed, and is not repeated in this attempt. (An error that may pass, such as a timeout or a 5xx, is no result:
    /// leave the step as it is, and the next pass repeats the action.)
    Failed {
        /// One sentence.
        message: String,
    },
}

impl ActionResult {
    /// The sentence about it; nothing is known yet of what was only started.
    pub fn message(&self) -> &str {
        match self {
            Self::Done { message }
            | Self::InProgress { message }
            | Self::Quiet { message }
            | Self::Gone { message }
            | Self::Refused { message, .. }
            | Self::Failed { message } => message,
            Self::AlreadyCordoned => "the node was already unschedulable; nothing changed",
            Self::AlreadyTainted => "another owner's taint is already on the node; nothing changed",
            Self::Started => "",
        }
    }
}

/// The remediation after its reserved step, or one round of it, was executed. An operation that is neither changes nothing.
#[must_use]
pub fn executed(remediation: &Remediation, operation_id: &str, result: ActionResult, now: Timestamp) -> Remediation {
    let mut next = remediation.clone();
    let is_due = |step: &&mut StepRecord| match step.state {
        StepState::Scheduled => true,
        StepState::Started => step.action.traits().evicts_pods,
        _ => false,
    };
    let Some(step) = next.steps.iter_mut().filter(is_due).find(|step| step.operation_id == operation_id) else {
        return next;
    };
    let (action, fault_id) = (step.action.kind(), step.fault_id.clone());
    match result {
        ActionResult::Started => {
            step.state = StepState::Started;
            step.started_at = Some(now);
        }
        ActionResult::InProgress { message } => {
            step.state = StepState::Started;
            step.started_at.get_or_insert(now);
            step.count_round(false, now);
            step.say(&message);
        }
        ActionResult::Quiet { message } => count_empty_round(step, &message, now),
        ActionResult::Done { message } => {
            step.executed_at = Some(now);
            if action.resolves() {
                step.state = StepState::Verifying;
                step.message = message;
            } else {
                // There is no resolution to wait for.
                step.finish(StepState::Succeeded, &message, now);
            }
            if action.notifies()
                && let Some(fault) = next.fault_mut(&fault_id)
            {
                fault.state = Resolution::Exhausted;
            }
        }
        ActionResult::AlreadyCordoned | ActionResult::AlreadyTainted => {
            step.finish(StepState::Succeeded, result.message(), now);
            next.cleanup.forget(action, operation_id);
        }
        ActionResult::Gone { message } => {
            step.reason = Some(OutcomeReason::TargetGone);
            step.finish(StepState::Refused, &message, now);
        }
        ActionResult::Refused { reason, message } => {
            step.reason = Some(reason);
            step.finish(StepState::Refused, &message, now);
            let is_protected = reason == OutcomeReason::Protected;
            let is_unmarked = match action {
                // Its own taint with another effect is on the node, and its cleanup is still pending.
                ActionType::Taint => !is_protected,
                // Somebody else's object exists. None was created for this step.
                ActionType::HandOff => is_protected,
                _ => true,
            };
            if is_unmarked {
                next.cleanup.forget(action, operation_id);
            }
        }
        // The cleanup of a failed cordon or taint stays pending: the call may have reached the API server all the same.
        ActionResult::Failed { message } => {
            step.reason = Some(OutcomeReason::RequestFailed);
            step.finish(StepState::Failed, &message, now);
        }
    }
    next.set_phase();
    next
}

fn count_empty_round(step: &mut StepRecord, message: &str, now: Timestamp) {
    // Rounds of two leaders, or of one that repeats what it has not written, count as one check.
    if step.rounds.is_none_or(|rounds| since(now, rounds.last_at) >= QUIET_APART) {
        step.count_round(true, now);
    }
    step.state = StepState::Started;
    step.started_at.get_or_insert(now);
    if step.rounds.is_some_and(|rounds| rounds.empty >= EMPTY_ROUNDS) {
        step.executed_at = Some(now);
        step.finish(StepState::Succeeded, &format!("drained: {message}"), now);
    } else {
        step.say(&format!("{message}, which is checked once more"));
    }
}

/// The remediation after this marker was removed, or was found to be gone or somebody else's.
#[must_use]
pub fn removed(remediation: &Remediation, marker: &Marker, now: Timestamp) -> Remediation {
    let mut next = remediation.clone();
    next.cleanup.remove(marker, now);
    // An executor may still be at work on the node. The next pass knows, and ends the remediation.
    if marker.hand_off().is_none() {
        next.conclude(now);
    }
    next
}

/// The remediation after its remediator was told that the time is over, or could not be told: the attempt is at its end.
#[must_use]
pub fn timed_out(remediation: &Remediation, operation_id: &str, message: &str, now: Timestamp) -> Remediation {
    let mut next = remediation.clone();
    if let Some(step) = next.current_step_mut().filter(|step| step.operation_id == operation_id) {
        step.finish(StepState::TimedOut, message, now);
    }
    next.set_phase();
    next
}
