//! One attempt at a step, as it is recorded.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::command::{OutcomeReason, Restart, Signal};
use crate::drain::Drain;
use crate::fault::{MAX_LINE, Target};
use crate::hand_off::HandOff;
use crate::policy::ActionType;
use crate::reboot::{MarkForReboot, Reboot};
use crate::taint::TaintEffect;
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
    /// Kind of the action.
    pub action: ActionType,
    /// Signal, for `ReleaseHungProcess`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<Signal>,
    /// Which unit, and which checks are skipped, for `RestartKubelet` and `RestartRuntime`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// The external remediator that `HandOff` gives the node to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hand_off: Option<HandOff>,
    /// The effect of the taint, for `Taint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taint: Option<TaintEffect>,
    /// How the node is drained, for `Drain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// The parameters of `Reboot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<Reboot>,
    /// The file that requests the reboot, for `MarkForReboot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_for_reboot: Option<MarkForReboot>,
    /// The boot that is to end, for `Reboot` and `MarkForReboot`: the Node's boot id when the attempt was recorded.
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
    /// When the last round was executed, for an action with several rounds (`Drain`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continued_at: Option<Timestamp>,
    /// In how many rounds in a row no pod was left (`Drain`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub empty_rounds: u32,
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl StepRecord {
    /// What is done, in one word: `ReleaseHungProcess(SIGCONT)`, `RestartRuntime(k3s.service, skipSafetyCheck)`,
    /// `HandOff(SelfNodeRemediation)`, `Drain(force)`.
    pub fn phrase(&self) -> String {
        let signal = self.signal.map(|signal| signal.as_str().to_owned());
        let unit = self.restart.as_ref().and_then(|with| with.unit.clone());
        let careless =
            self.restart.as_ref().filter(|with| with.skip_safety_check).map(|_| "skipSafetyCheck".to_owned());
        let stopped = self.restart.as_ref().filter(|with| with.start_if_stopped).map(|_| "startIfStopped".to_owned());
        let kind = self.hand_off.as_ref().map(|with| with.remediation_template.object_kind().to_owned());
        let effect = self.taint.map(|effect| effect.as_str().to_owned());
        let forced = self.drain.as_ref().filter(|with| with.force).map(|_| "force".to_owned());
        let all_the_same = self.drain.as_ref().filter(|with| with.ignore_runtime_hang);
        let all_the_same = all_the_same.map(|_| "ignoreRuntimeHang".to_owned());
        let full = self.reboot.as_ref().filter(|with| !with.require_drain).map(|_| "requireDrain: false".to_owned());
        let path = self.mark_for_reboot.as_ref().map(|with| with.path.clone());
        let care = careless.into_iter().chain(stopped).chain(forced).chain(all_the_same).chain(full);
        let more: Vec<String> =
            signal.into_iter().chain(effect).chain(kind).chain(unit).chain(path).chain(care).collect();
        let action = self.action.as_str();
        if more.is_empty() { action.to_owned() } else { format!("{action}({})", more.join(", ")) }
    }

    /// Ends the attempt.
    pub fn finish(&mut self, state: StepState, message: &str, now: Timestamp) {
        self.state = state;
        self.message = text::bounded(message, MAX_LINE);
        self.finished_at = Some(now);
    }

    /// Whether the API server refused the controller's own call: no node was asked, and nothing was touched.
    pub const fn is_refused_call(&self) -> bool {
        // A node that answered so had the order, which the record tells by its start.
        matches!(self.state, StepState::Failed)
            && matches!(self.reason, Some(OutcomeReason::RequestFailed))
            && self.started_at.is_none()
    }

    /// Whether the attempt came to nothing only because the object had changed or was gone, or because the node
    /// could not look just then: nothing was touched, and it costs nothing.
    pub const fn is_free(&self) -> bool {
        matches!(self.state, StepState::Refused)
            && matches!(
                self.reason,
                Some(
                    OutcomeReason::TargetChanged
                        | OutcomeReason::TargetGone
                        | OutcomeReason::Recovered
                        | OutcomeReason::CheckFailed
                        | OutcomeReason::KubeletBusy
                )
            )
    }
}
