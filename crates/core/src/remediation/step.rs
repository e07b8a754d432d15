//! One attempt at a step, as it is recorded.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::command::OutcomeReason;
use crate::fault::{MAX_LINE, Target};
use crate::text;

/// Who executes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Executor {
    /// The controller, through the API.
    Controller,
    /// A Job on the node, if the kubelet can start pods.
    Job,
    /// The probe on the node, if the kubelet cannot.
    Probe,
}

/// How far one attempt of a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StepState {
    /// Recorded under its operation id; nothing is executed before a person has approved it.
    AwaitingApproval,
    /// Recorded under its operation id; the action may or may not have been executed yet.
    Scheduled,
    /// The action was started.
    Started,
    /// The action was executed; its effect is being verified.
    Verifying,
    /// The fault was absent for as long as the step asks.
    Succeeded,
    /// Executed without effect, or it went wrong.
    Failed,
    /// Not executed: the preflight refused it. Nothing was changed; it costs no attempt if only the target had changed.
    Refused,
    /// No answer in time.
    TimedOut,
    /// Withdrawn before it was executed.
    Cancelled,
    /// Dry run.
    Simulated,
}

impl StepState {
    /// Whether this attempt is at an end.
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::AwaitingApproval | Self::Scheduled | Self::Started | Self::Verifying)
    }
}

/// One attempt at one step: a line of the timeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepRecord {
    /// Identity of the attempt, stored before the action.
    #[schemars(length(max = 63))]
    pub operation_id: String,
    /// Id of the fault that it is meant to resolve.
    #[schemars(length(max = 80))]
    pub fault_id: String,
    /// What it does, with its parameters.
    #[serde(flatten)]
    pub action: Action,
    /// The only boot in which a node executes the attempt. For `Reboot` and `MarkForReboot` the boot that is to end: the Node's boot id when
    /// the attempt was recorded. Absent if the controller executes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
    /// Index of the step in the rule, from 0.
    pub step_index: u32,
    /// Who executes it: Controller (through the API), Job (on the node) or Probe (on the node).
    pub executor: Executor,
    /// Why this executor was chosen, and whether it was changed since, if there is a choice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub executor_reason: String,
    /// The object that it changes.
    #[serde(default)]
    pub target: Target,
    /// State of the attempt.
    pub state: StepState,
    /// Why it ended so, if the node answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<OutcomeReason>,
    /// The result, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub message: String,
    /// When it was scheduled, by the controller's clock; before that, since when it waits for approval.
    pub scheduled_at: Timestamp,
    /// Who approved it, as the API server knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub approved_by: Option<String>,
    /// Uid and generation of the template of a hand-off when the attempt was recorded. An approval is valid for this
    /// version only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 80))]
    pub template_version: Option<String>,
    /// When the action was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When the other executor was asked, because the first did not start in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor_changed_at: Option<Timestamp>,
    /// Its rounds so far, for an action that takes several (`Drain`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<Rounds>,
    /// When the action was executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executed_at: Option<Timestamp>,
    /// Since when the fault is absent, during verification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clear_since: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

/// The executed rounds of an action that takes several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rounds {
    /// How many were executed.
    pub count: u32,
    /// When the last one was executed.
    pub last_at: Timestamp,
    /// How many in a row found nothing left to do.
    pub empty: u32,
}

impl StepRecord {
    /// What is done, in one word: see [`Action::phrase`].
    pub fn phrase(&self) -> String {
        self.action.phrase()
    }

    /// Whether an answer of the node adds to what is known. A reboot that was commanded stays commanded: a node that has lost its
    /// memory, and refuses the same command, does not revoke that.
    pub fn learns_from(&self, answer: OutcomeReason) -> bool {
        !self.action.ends_boot() || answer.is_delivered() || !self.reason.is_some_and(OutcomeReason::is_delivered)
    }

    /// Whether anything may have been done in it, by its own record.
    pub const fn was_begun(&self) -> bool {
        self.started_at.is_some() || self.executed_at.is_some()
    }

    /// Whether it was given to its node, by its own record.
    pub fn is_given(&self) -> bool {
        self.executor != Executor::Controller && self.started_at.is_some()
    }

    /// Whether it was given to its node and has ended without an answer of it: the node may still execute it.
    pub fn is_unanswered(&self) -> bool {
        // The controller ends an attempt as refused, too, if the node is out of reach.
        let is_over = matches!(self.state, StepState::TimedOut | StepState::Cancelled | StepState::Refused);
        self.is_given() && is_over && self.executed_at.is_none() && self.reason.is_none()
    }

    /// Counts a round that was executed now.
    pub fn count_round(&mut self, is_empty: bool, now: Timestamp) {
        let (count, empty) = self.rounds.map_or((0, 0), |rounds| (rounds.count, rounds.empty));
        let empty = if is_empty { empty.saturating_add(1) } else { 0 };
        self.rounds = Some(Rounds { count: count.saturating_add(1), last_at: now, empty });
    }

    /// The beginning of the message, for another sentence that repeats it.
    pub(crate) fn short_message(&self) -> String {
        text::bounded(&self.message, 320)
    }

    /// Sets the message, bounded.
    pub fn say(&mut self, message: &str) {
        self.message = text::bounded(message, MAX_LINE);
    }

    /// Ends the attempt.
    pub fn finish(&mut self, state: StepState, message: &str, now: Timestamp) {
        // Nobody has agreed to the reboot: no boot was to end.
        if self.state == StepState::AwaitingApproval {
            self.boot_id = None;
        }
        self.state = state;
        self.say(message);
        self.finished_at = Some(now);
    }

    /// Whether the controller could not make its own call, or the API server refused it: no node was asked, and nothing was touched.
    pub const fn is_refused_call(&self) -> bool {
        // A node that answered so had the command, which the record tells by its start.
        matches!(self.state, StepState::Failed)
            && matches!(self.reason, Some(OutcomeReason::RequestFailed))
            && self.started_at.is_none()
    }

    /// Whether the attempt came to nothing only because the object had changed or was gone, or because the node
    /// could not check just then: nothing was touched, and it costs nothing.
    pub const fn is_free(&self) -> bool {
        let has_changed = matches!(
            self.reason,
            Some(OutcomeReason::TargetChanged | OutcomeReason::TargetGone | OutcomeReason::Recovered)
        );
        self.could_not_be_tried() || matches!(self.state, StepState::Refused) && has_changed
    }

    /// Whether the attempt came to nothing because nobody could check the node just then, because it was busy or has booted since, or
    /// because it was not reached in time.
    pub const fn could_not_be_tried(&self) -> bool {
        use OutcomeReason::{AlreadyRebooted, CheckFailed, Expired, KubeletBusy};
        matches!(self.state, StepState::Refused)
            && matches!(self.reason, None | Some(AlreadyRebooted | CheckFailed | Expired | KubeletBusy))
    }
}
