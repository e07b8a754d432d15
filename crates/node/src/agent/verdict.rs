//! Refusals and outcomes of the executor.

use jiff::Timestamp;

use crate::reader::Unanswered;
use nrh_core::command::{ActionCommand, Outcome, OutcomeReason, OutcomeState};
use nrh_core::fault::MAX_LINE;
use nrh_core::text::bounded;

/// Why nothing was done; nothing was touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(super) reason: OutcomeReason,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(reason: OutcomeReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// The node could not check: a missing answer counts neither as bad nor as good.
    pub(super) fn cannot_check(message: impl Into<String>) -> Self {
        Self::new(OutcomeReason::CheckFailed, message)
    }

    pub(super) fn malformed(what: &str) -> Self {
        Self::cannot_check(format!("the command cannot be executed: {what}"))
    }

    pub(super) fn outcome(self, command: &ActionCommand) -> Outcome {
        outcome(command, OutcomeState::Refused, self.reason, &self.message)
    }
}

impl From<Unanswered> for Refusal {
    fn from(why: Unanswered) -> Self {
        Self::cannot_check(why.to_string())
    }
}

/// Builds the outcome of `command` as of now, with bounded text.
pub(super) fn outcome(command: &ActionCommand, state: OutcomeState, reason: OutcomeReason, message: &str) -> Outcome {
    Outcome {
        operation_id: bounded(&command.operation_id, 63),
        state,
        reason,
        message: bounded(message, MAX_LINE),
        at: Timestamp::now(),
    }
}
