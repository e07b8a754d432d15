//! The remediation of one node, from the first step to the cleanup: the record and its state machine.

mod ahead;
mod cleanup;
mod executed;
mod fault;
mod manual;
mod naming;
mod step;

use std::collections::BTreeSet;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::command::OutcomeReason;
use super::fault::FaultType;
use super::policy::{ActionType, Mode, Step};
use super::taint::TaintEffect;
use super::text;

pub use ahead::not_ahead;
pub use cleanup::{Cleanup, Marker, MarkerRecord};
pub use executed::{ActionResult, executed, removed, timed_out};
pub use fault::{RemediationFault, Resolution};
pub use manual::{Cancel, ManualRequest};
pub use naming::{operation_id, remediation_name, remediation_of};
pub use step::{Executor, Rounds, StepRecord, StepState};

/// Prefix of the message when a person cancelled a remediation. The engine does not start a new one immediately.
pub const CANCELLED_PREFIX: &str = "cancelled by a person: ";

/// Suffix of the message of a remediation that has resolved its faults while the node still flaps.
pub const STILL_FLAPPING_SUFFIX: &str = "; the node flaps still (condition NodeStable)";

/// A person has cancelled the remediation of a node; kept for when the remediation itself is deleted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CancelledRemediation {
    /// Name of the remediation (a `NodeRemediation`) that was cancelled.
    #[schemars(length(max = 253))]
    pub remediation: String,
    /// What was cancelled and how, in one sentence.
    #[schemars(length(max = 512))]
    pub message: String,
    /// When, by the controller's clock.
    pub at: Timestamp,
}

crate::named! {
    /// Where a remediation stands.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum Phase {
        /// Started; its first step is not scheduled yet.
        #[default]
        Pending,
        /// A step waits until a person has approved it.
        AwaitingApproval,
        /// A step is scheduled or running.
        Running,
        /// A step was executed; the probe's clear check is awaited.
        Verifying,
        /// No step is left and a fault is still present: the node stays cordoned for a bounded time.
        Quarantined,
        /// All its faults are gone, and its cleanup is done.
        Succeeded,
        /// No step is left and a fault is still present.
        Failed,
        /// Ended early: the node is gone or was replaced, or a person cancelled it.
        Cancelled,
        /// Dry run: the first step was planned and recorded, and nothing was changed.
        Simulated,
    }
}

impl Phase {
    /// Whether no further step will be taken in it.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Quarantined | Self::Succeeded | Self::Failed | Self::Cancelled | Self::Simulated)
    }
}

/// A person's approval of one step of a remediation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Approval {
    /// Who approves: your own name, as `kubectl auth whoami` prints it. The API server refuses any other.
    #[schemars(length(min = 1, max = 512))]
    pub approved_by: String,
    /// The approved operation: `operationId` of the attempt in `status.attempts` that awaits approval.
    #[schemars(length(min = 1, max = 63))]
    pub operation_id: String,
}

/// Most faults in one remediation.
pub const MAX_REMEDIATION_FAULTS: usize = 16;
/// Most lines of a timeline; a remediation that would need more fails.
pub const MAX_STEPS: usize = 64;

/// The remediation of one node: spec and status of a `NodeRemediation`, as the engine reads and writes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remediation {
    /// Name of the object.
    pub name: String,
    /// Uid and resource version, `None` until the object exists.
    pub identity: Option<(String, String)>,
    /// The node.
    pub node: String,
    /// Uid of the Node object it was opened for: a node replaced under the same name is another node.
    pub node_uid: String,
    /// The policy in whose name it acts.
    pub policy: String,
    /// Mode of the policy when it was opened.
    pub mode: Mode,
    /// Whether the object is being deleted.
    pub deleting: bool,
    /// What a person has approved last.
    pub approval: Option<Approval>,
    /// That a person has ended it, for good.
    pub cancel: Option<Cancel>,
    /// The manual request that started it, if any.
    pub manual: Option<ManualRequest>,
    /// Where it stands.
    pub phase: Phase,
    /// Why, in one sentence.
    pub message: String,
    /// When it was opened, by the controller's clock.
    pub started_at: Timestamp,
    /// When it came to its end.
    pub finished_at: Option<Timestamp>,
    /// Its faults.
    pub faults: Vec<RemediationFault>,
    /// Its timeline.
    pub steps: Vec<StepRecord>,
    /// The markers that the controller must remove.
    pub cleanup: Cleanup,
}

impl Remediation {
    /// That a person has stopped it, if so.
    pub fn stopped(&self) -> Option<CancelledRemediation> {
        let is = self.phase == Phase::Cancelled && self.message.starts_with(CANCELLED_PREFIX);
        let at = self.finished_at.filter(|_| is)?;
        Some(CancelledRemediation { remediation: self.name.clone(), message: self.message.clone(), at })
    }

    /// The kinds of fault that it deals with, resolved ones too: they may come back while it runs.
    pub fn kinds(&self) -> BTreeSet<FaultType> {
        self.faults.iter().map(|fault| fault.kind).collect()
    }

    /// That its faults are gone, in one sentence.
    pub fn no_longer_found(&self) -> String {
        let kinds: Vec<&str> = self.kinds().into_iter().map(FaultType::as_str).collect();
        format!("a check no longer finds {}", kinds.join(", "))
    }

    /// Whether it occupies the node: it may still start a step, its cleanup is pending, or its node may still execute a step that
    /// was given to it.
    pub fn is_open(&self) -> bool {
        let is_ended = self.finished_at.is_some() && !self.cleanup.is_pending();
        !self.phase.is_final() || (!is_ended && !self.is_quarantined())
    }

    /// Whether no step has repaired its node, which is kept cordoned for a while: it owes a cleanup and does nothing else, so
    /// another remediation may have the node.
    pub const fn is_quarantined(&self) -> bool {
        matches!(self.phase, Phase::Quarantined)
    }

    /// Whether something is still to be done in its name.
    pub fn is_live(&self) -> bool {
        self.is_open() || self.is_quarantined()
    }

    /// Its faults for which no step is left.
    pub fn exhausted_faults(&self) -> impl Iterator<Item = &RemediationFault> {
        self.faults.iter().filter(|fault| fault.state == Resolution::Exhausted)
    }

    /// Whether it has tried nothing for a fault because nobody could check the node, or act on it, or confirm the fault. That proves
    /// nothing about its steps.
    pub fn was_without_checks(&self, fault_id: &str) -> bool {
        let steps = || self.steps.iter().filter(|step| step.fault_id == fault_id && !step.action.notifies());
        let unchecked = |step: &StepRecord| {
            step.executor == Executor::Controller && step.reason == Some(OutcomeReason::CheckFailed)
        };
        // A cordon or a taint is taken back at the end, and the next remediation needs it anew.
        steps().any(unchecked) && !steps().any(|step| step.action.disturbs() && step.executed_at.is_some())
    }

    /// Whether an attempt for a fault has disturbed the node, or may have.
    pub fn has_tried(&self, fault_id: &str) -> bool {
        let attempts = self.steps.iter().filter(|step| step.fault_id == fault_id && step.action.disturbs());
        attempts.filter(|step| !step.is_free()).any(StepRecord::was_begun)
    }

    /// When it has cordoned its node last, if it has.
    pub fn cordoned_at(&self) -> Option<Timestamp> {
        self.marked_at(ActionType::Cordon)
    }

    /// What the taint does that it has put on its node last, if it has.
    pub fn taint(&self) -> Option<TaintEffect> {
        let done = |step: &&StepRecord| step.action == ActionType::Taint && step.state == StepState::Succeeded;
        Some(self.steps.iter().rev().find(done)?.action.params().taint.unwrap_or_default().effect)
    }

    /// Whether a marker with its name on the Node with that uid may be its own: it has one, or is about to put it there.
    pub fn may_own(&self, marker: &Marker, node_uid: &str) -> bool {
        // A quarantined node stays cordoned, not tainted. A taint that appears now is a late write, and nothing waits for it.
        self.node_uid == node_uid && self.is_live() && (!self.is_quarantined() || self.cleanup.has_pending(marker))
    }

    /// When it has created the marker, if that is still to be removed.
    pub fn pending_since(&self, marker: &Marker) -> Option<Timestamp> {
        self.marked_at(marker.action()).filter(|_| self.cleanup.has_pending(marker))
    }

    /// When it has marked its node last in this way.
    pub fn marked_at(&self, how: ActionType) -> Option<Timestamp> {
        let done = |step: &&StepRecord| step.action == how && step.state == StepState::Succeeded;
        self.steps.iter().rev().find(done)?.executed_at
    }

    /// Whether the cordon that `other` has left on the node at its end is this one's, too: it takes the mark over.
    pub fn shares_cordon_of(&self, other: &Self) -> bool {
        other.is_live()
            && other.phase.is_final()
            && self.name != other.name
            && (&self.node, &self.node_uid) == (&other.node, &other.node_uid)
    }

    /// Whether it replaces the quarantined remediation `other`: it includes every fault that `other` has exhausted.
    pub fn succeeds(&self, other: &Self) -> bool {
        self.shares_cordon_of(other)
            && self.policy == other.policy
            && other.exhausted_faults().all(|fault| self.fault(&fault.id).is_some())
    }

    /// Whether nothing is under way in it and nothing of it is left on its node: a step awaits approval, or none has begun.
    pub fn rests(&self) -> bool {
        let is_idle = match self.current_step() {
            Some(step) => step.state == StepState::AwaitingApproval,
            None => !self.was_begun(),
        };
        is_idle && !self.cleanup.is_pending()
    }

    /// Whether anything may have been done in it, by its own record.
    pub fn was_begun(&self) -> bool {
        self.steps.iter().any(StepRecord::was_begun)
    }

    /// The operation that waits for a person, if one does.
    pub fn awaiting(&self) -> Option<&str> {
        let step = self.current_step().filter(|step| step.state == StepState::AwaitingApproval)?;
        Some(&step.operation_id)
    }

    /// The operation that waits for an approval and has none yet.
    pub fn unapproved(&self) -> Option<&str> {
        self.awaiting().filter(|operation| self.approved(operation).is_none())
    }

    /// How a person says yes to an operation of it.
    pub fn approve_command(&self, operation_id: &str) -> String {
        format!("nrh approve {} --operation {operation_id}", self.node)
    }

    /// The attempt under way, if one is.
    pub fn current_step(&self) -> Option<&StepRecord> {
        self.steps.iter().rev().find(|step| !step.state.is_final())
    }

    /// The attempt under way, to be moved on.
    pub fn current_step_mut(&mut self) -> Option<&mut StepRecord> {
        self.steps.iter_mut().rev().find(|step| !step.state.is_final())
    }

    /// The latest attempt that was given to the node.
    pub fn last_given(&self) -> Option<&StepRecord> {
        self.steps.iter().rev().find(|step| step.is_given())
    }

    /// One of its faults.
    pub fn fault(&self, id: &str) -> Option<&RemediationFault> {
        self.faults.iter().find(|fault| fault.id == id)
    }

    /// The attempts at the present step of one of its faults, in order. Those at another step, which stood at this place before the policy
    /// changed, do not count.
    pub fn attempts_for<'r>(
        &'r self,
        fault: &'r RemediationFault,
        step: &'r Step,
    ) -> impl DoubleEndedIterator<Item = &'r StepRecord> {
        let of_fault = move |record: &&'r StepRecord| record.fault_id == fault.id;
        let here = self.steps.iter().filter(of_fault).filter(move |record| record.step_index == fault.step_index);
        here.filter(move |record| step.action.is_recorded_as(&record.action))
    }

    /// The attempt of this operation.
    pub fn attempt(&self, operation_id: &str) -> Option<&StepRecord> {
        self.steps.iter().find(|step| step.operation_id == operation_id)
    }

    /// The action of one of its attempts, and the fault that it is for.
    pub fn purpose(&self, step: &StepRecord) -> String {
        let fault = self.fault(&step.fault_id);
        let fault = fault.map_or_else(String::new, |fault| format!(" for {fault}"));
        format!("{}{fault}", step.phrase())
    }

    /// One of its faults, to be moved on.
    pub fn fault_mut(&mut self, id: &str) -> Option<&mut RemediationFault> {
        self.faults.iter_mut().find(|fault| fault.id == id)
    }

    /// Sets the message, bounded.
    pub fn say(&mut self, message: &str) {
        self.message = text::bounded(message, super::fault::MAX_LINE);
    }

    /// Sets the phase that the step under way stands for; an end stays an end.
    pub fn set_phase(&mut self) {
        if self.phase.is_final() {
            return;
        }
        self.phase = match self.current_step().map(|step| step.state) {
            Some(StepState::AwaitingApproval) => Phase::AwaitingApproval,
            Some(StepState::Verifying) => Phase::Verifying,
            None if self.steps.is_empty() => Phase::Pending,
            _ => Phase::Running,
        };
    }

    /// Whether it is resolved and only [watched](super::plan::BlockReason::NodeFlapping) since its node flaps. Its cleanup has not
    /// started. If a person removes a marker during this time, the engine treats that as a cancellation.
    pub fn is_watched(&self) -> bool {
        self.phase == Phase::Verifying && self.current_step().is_none()
    }

    /// Whether the remediation still needs its markers (cordon, taint) on the node. While it does, the controller does not remove them.
    pub fn wants_its_marks(&self) -> bool {
        self.has_work() || self.is_watched()
    }

    /// When something was last done in it.
    pub fn last_activity(&self) -> Timestamp {
        self.latest(|_| true)
    }

    /// When a step last started or timed out. A skipped step does not count.
    pub fn last_touched(&self) -> Timestamp {
        self.latest(|step| step.was_begun() || step.state == StepState::TimedOut)
    }

    /// The end of its latest attempt that counts, or its own beginning.
    fn latest(&self, is_counted: impl Fn(&StepRecord) -> bool) -> Timestamp {
        let counted = self.steps.iter().filter(|step| is_counted(step));
        counted.filter_map(|step| step.finished_at.or(step.executed_at)).fold(self.started_at, Timestamp::max)
    }

    /// Whether a step is under way or a fault still to be resolved.
    pub fn has_work(&self) -> bool {
        self.current_step().is_some() || self.faults.iter().any(|fault| fault.state == Resolution::Open)
    }

    /// Brings it to its end when nothing is left to do in it: no step under way, no open fault, no cleanup owed.
    pub fn conclude(&mut self, now: Timestamp) {
        if self.cleanup.is_pending() || (self.finished_at.is_some() && !self.is_quarantined()) {
            return;
        }
        if self.phase.is_final() && !self.is_quarantined() {
            self.finished_at = Some(now);
            return;
        }
        if self.has_work() {
            return;
        }
        self.finished_at = Some(now);
        if self.faults.is_empty() {
            self.phase = Phase::Cancelled;
            self.say("the controller was interrupted before it recorded a fault in it: nothing was done");
            return;
        }
        let given_up: Vec<&str> = self.exhausted_faults().map(|fault| fault.kind.as_str()).collect();
        if given_up.is_empty() {
            self.phase = Phase::Succeeded;
            let flaps = if self.message.ends_with(STILL_FLAPPING_SUFFIX) { STILL_FLAPPING_SUFFIX } else { "" };
            self.say(&format!("resolved: {}{flaps}", self.no_longer_found()));
        } else {
            let message = format!("no step is left, and not resolved: {}; a person is needed", given_up.join(", "));
            self.phase = Phase::Failed;
            self.say(&message);
        }
    }
}
