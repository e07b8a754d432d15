//! One attempt at a step, as it is recorded.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::drain::Drain;
use crate::fault::{MAX_LINE, Target};
use crate::hand_off::HandOff;
use crate::order::{OutcomeReason, Restart, Signal};
use crate::policy::ActionType;
use crate::reboot::{MarkForReboot, Reboot};
use crate::taint::TaintEffect;
use crate::text;

/// Where a step is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Executor {
    /// By the controller, through the API.
    Controller,
    /// By a Job on the node: the kubelet can start pods.
    Job,
    /// By the probe on the node: the kubelet cannot.
    Probe,
}

/// How far one attempt of a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StepState {
    /// Recorded under its operation id; nothing is done before a person has approved that.
    AwaitingApproval,
    /// Recorded under its operation id; the act may or may not have happened yet.
    Scheduled,
    /// The act was started.
    Started,
    /// The act was done; its effect is being verified.
    Verifying,
    /// The fault stayed away for as long as the step asks.
    Succeeded,
    /// Tried without effect, or it went wrong.
    Failed,
    /// Not done: the last look disagreed. Nothing was touched; it costs no attempt when only the target
    /// had changed.
    Refused,
    /// No answer in time.
    TimedOut,
    /// Withdrawn before it was done.
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
    /// Identity of the attempt, reserved before the act.
    #[schemars(length(max = 63))]
    pub operation_id: String,
    /// Id of the fault it is meant to heal.
    #[schemars(length(max = 80))]
    pub fault_id: String,
    /// Kind of the action.
    pub action: ActionType,
    /// Signal, for `ReleaseHungProcess`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<Signal>,
    /// Which unit and with how much care, for `RestartKubelet` and `RestartRuntime`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// To whom the node is handed, for `HandOff`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hand_off: Option<HandOff>,
    /// What the taint does, for `Taint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taint: Option<TaintEffect>,
    /// How the node is drained, for `Drain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// With how much care the node is rebooted, for `Reboot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<Reboot>,
    /// By which file another tool is asked to reboot the node, for `MarkForReboot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_for_reboot: Option<MarkForReboot>,
    /// The boot that is to end, for `Reboot` and `MarkForReboot`: the Node's boot id when the attempt was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
    /// Step of the rule's ladder, from 0.
    pub step_index: u32,
    /// Where it is carried out: Controller (through the API), Job (on the node) or Probe (the node's probe).
    pub executor: Executor,
    /// By what evidence that was chosen, and whether it was changed since, where there is a choice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub executor_reason: String,
    /// What it touches.
    #[serde(default)]
    pub target: Target,
    /// How far the attempt is.
    pub state: StepState,
    /// Why it ended as it did, where the node answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<OutcomeReason>,
    /// What came of it, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub message: String,
    /// When it was reserved, by the controller's clock; before that, since when its approval has been awaited.
    pub scheduled_at: Timestamp,
    /// Who approved it, as the API server knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub approved_by: Option<String>,
    /// Uid and generation of the template of a hand-off, as it stood when the attempt was recorded. Nothing is made of
    /// another one once a person has approved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 80))]
    pub template_version: Option<String>,
    /// When the act was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When the other executor was asked, where the first had not begun in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor_changed_at: Option<Timestamp>,
    /// When it was last gone on with, for an act that is done in rounds (`Drain`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continued_at: Option<Timestamp>,
    /// In how many rounds in a row no pod was left (`Drain`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub empty_rounds: u32,
    /// When the act was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executed_at: Option<Timestamp>,
    /// Since when the fault has been seen to be gone, during verification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clear_since: Option<Timestamp>,
    /// When it came to its end.
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
