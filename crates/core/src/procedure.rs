//! How each action proceeds: when its step may start, what starts it, what is awaited, and how its success is verified.
//!
//! The engine calls these methods in the order of an attempt and knows no action by its name. The defaults suit an action that a node
//! carries out and answers.

pub(crate) mod boot;
mod cordon;
mod delete_pod;
mod drain;
pub(crate) mod executors;
pub(crate) mod hand_off;
mod mark_for_reboot;
pub(crate) mod marker;
mod node_command;
mod notify;
pub(crate) mod pending_operation;
mod reboot;
mod release_hung_process;
mod restart;
mod taint;

use std::time::Duration;

use jiff::Timestamp;

use super::action::{Action, CleanupOrphans, ThawCgroup};
use super::context::{Block, ClusterContext, NodeContext, ObservedFault, Requeue, of_policy};
use super::fault::Fault;
use super::faults::Helps;
use super::plan::{Effect, Operation};
use super::policy::{Policy, Rule, Step};
use super::remediation::{Marker, Remediation, StepRecord, StepState};

/// A step that may start for a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepContext<'x> {
    pub node: &'x NodeContext<'x>,
    pub rule: &'x Rule,
    pub step: &'x Step,
    pub seen: &'x ObservedFault<'x>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptContext<'x> {
    pub node: &'x NodeContext<'x>,
    pub policy: &'x Policy,
    pub remediation: &'x Remediation,
    pub record: &'x StepRecord,
    /// The step of the policy that the attempt was made for, if the policy still has it.
    pub step: Option<&'x Step>,
}

impl AttemptContext<'_> {
    /// When the attempt began, as far as is known.
    pub fn began(&self) -> Timestamp {
        self.record.started_at.unwrap_or(self.record.scheduled_at)
    }
}

/// The state of a started attempt.
#[derive(Debug)]
pub(crate) enum Poll {
    /// The answer of the node decides; after that, the check of the fault.
    ByAnswer,
    /// Nothing changes before this time has passed.
    Wait(Duration),
    /// The same, while somebody works on the node: a clear check does not count.
    Working(Duration),
    /// It was executed at that time, with this message. The check of the fault decides from now on.
    Verify(Timestamp, Option<String>),
    End(StepState, String),
    /// Its time is over: its timeout, and the reason.
    Expire(Duration, String),
    /// The whole remediation ends.
    Stop(String),
}

/// What happens to an attempt whose time is over.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a pass has few of them")]
pub(crate) enum Expiry {
    Fails,
    /// It has timed out, with this message.
    TimesOut(String),
    /// This is to be done first.
    First(Effect),
}

/// How the success of an executed attempt is verified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verification {
    /// When its time began.
    pub from: Timestamp,
    pub timeout: Duration,
    /// For how long the fault has to stay away.
    pub stable_for: Duration,
    /// Whether a check of the fault counts at all now.
    pub is_checkable: bool,
}

impl Verification {
    /// The times that the policy says; where it does not name the step any more, the least ones.
    fn of(cx: &AttemptContext<'_>, least: Duration) -> Self {
        let named = cx.step.map(|step| (step.timeout, step.stable_for));
        let (timeout, stable_for) = named.unwrap_or((least, Duration::from_secs(5)));
        let from = cx.record.executed_at.unwrap_or(cx.record.scheduled_at);
        Self { from, timeout, stable_for, is_checkable: true }
    }
}

/// How an action proceeds.
///
/// Where a precondition belongs, by what follows while it is not met:
///
/// | then | method |
/// |---|---|
/// | the next step follows: this one cannot help | `addresses`, `require_applicable`, `require_progress`, `require_untried` |
/// | the next step follows: this one is done | `is_done` |
/// | a new remediation skips the step; an open one waits | `require_available` |
/// | the step is recorded as skipped, and the next one follows | `skip_reason` |
/// | the step waits, and is skipped after its block timeout | `admit`; for what earlier steps prepare, `require_prepared` |
/// | the next round waits; or no further round follows | `admit_round`; `end_reason` |
pub(crate) trait Procedure {
    /// Whether the action can do anything about this very fault, of a kind that it addresses.
    fn require_applicable(&self, _fault: &Fault, _node: &NodeContext<'_>) -> Result<(), &'static str> {
        Ok(())
    }

    /// Whether it is worth waiting for the action any longer.
    fn require_progress(&self, _fault: &Fault, _node: &NodeContext<'_>, _rule: &Rule) -> Result<(), &'static str> {
        Ok(())
    }

    /// Whether the action was not tried in this remediation yet, where it is tried only once, as every reboot is.
    fn require_untried(&self, step: &Step, remediation: &Remediation) -> Result<(), &'static str> {
        if step.action.ends_boot() { boot::require_untried(step, remediation) } else { Ok(()) }
    }

    /// Whether the remediation has done it already, and does not do it again.
    fn is_done(&self, _remediation: &Remediation) -> bool {
        false
    }

    /// Whether the cluster has what the action needs. Where it is known to lack that, the other steps are taken.
    fn require_available(&self, _node: &NodeContext<'_>) -> Result<(), Block> {
        Ok(())
    }

    /// Why the action has no place in this remediation, so that the next step follows.
    fn skip_reason(&self, _node: &NodeContext<'_>, _: &Remediation) -> Option<String> {
        None
    }

    /// Whether the step may start now.
    fn admit(&self, cx: &StepContext<'_>) -> Result<(), Block> {
        let is_done_on_node = cx.step.action.kind().is_done_on_node();
        if is_done_on_node { node_command::require_named_target(cx.node, &cx.seen.fault) } else { Ok(()) }
    }

    /// Whether the remediation has prepared the node for the action.
    fn require_prepared(&self, _node: &NodeContext<'_>, _remediation: &Remediation) -> Result<(), Block> {
        Ok(())
    }

    /// The version of the template that the action uses. An approval is valid for this version only.
    fn template_version<'x>(&self, _cluster: ClusterContext<'x>) -> Option<&'x str> {
        None
    }

    /// What the action leaves for the remediation to remove. It is recorded first, so a crash in between leaves nothing behind.
    fn marker(&self, _remediation: &Remediation, _record: &StepRecord) -> Option<Marker> {
        None
    }

    /// What starts the action. `None` if there is nothing that it could touch.
    fn operation(&self, cx: &AttemptContext<'_>, fault: &Fault) -> Option<Operation> {
        Some(node_command::send(cx.record, node_command::command(cx, fault)))
    }

    /// Records proof of a start or an end that needs no answer of the node, as another boot id proves a reboot.
    fn observe(&self, node: &NodeContext<'_>, record: &mut StepRecord) {
        if record.action.ends_boot() {
            boot::observe(node, record);
        }
    }

    /// The step of the policy that a started attempt belongs to.
    fn named_step<'p>(&self, policy: &'p Policy, remediation: &Remediation, record: &StepRecord) -> Option<&'p Step> {
        of_policy::step_of(policy, remediation, record)
    }

    /// The state of an attempt that has started.
    fn poll(&self, _cx: &AttemptContext<'_>, _wake: &mut Requeue) -> Poll {
        Poll::ByAnswer
    }

    /// Why no further round follows, where the action takes several.
    fn end_reason(&self, _node: &NodeContext<'_>) -> Option<String> {
        None
    }

    /// Whether another round may start, where the action takes several.
    fn admit_round(&self, _: &NodeContext<'_>, _: &Remediation) -> Result<(), Block> {
        Ok(())
    }

    /// How its success is verified.
    fn verification(&self, cx: &AttemptContext<'_>) -> Verification {
        Verification::of(cx, cx.node.cluster.settings.answer_within)
    }

    /// What happens when its time is over: `timeout` is that time, and `why` what was found.
    fn expire(&self, _cx: &AttemptContext<'_>, _timeout: Duration, _why: &str) -> Expiry {
        Expiry::Fails
    }

    /// Whether the controller withdraws a command of this attempt although its end is still awaited. `is_late`: a node that has not
    /// read it yet would refuse it. `is_wanted`: nobody has objected since.
    fn withdraws_command(&self, _record: &StepRecord, _is_late: bool, _is_wanted: bool) -> bool {
        false
    }
}

impl Procedure for CleanupOrphans {}
impl Procedure for ThawCgroup {}

/// Whether the action can do anything about the fault at all.
///
/// # Errors
/// Why not, for people.
pub(crate) fn addresses(action: &Action, fault: &Fault, node: &NodeContext<'_>) -> Helps {
    (action.traits().addresses)(fault.kind)?;
    of(action).require_applicable(fault, node)
}

pub(crate) fn of(action: &Action) -> &dyn Procedure {
    match action {
        Action::Cordon(params) => params,
        Action::Taint(params) => params,
        Action::Drain(params) => params,
        Action::DeletePod(params) => params,
        Action::CleanupOrphans(params) => params,
        Action::ThawCgroup(params) => params,
        Action::ReleaseHungProcess(params) => params,
        Action::RestartKubelet(params) => params,
        Action::RestartRuntime(params) => params,
        Action::Reboot(params) => params,
        Action::MarkForReboot(params) => params,
        Action::HandOff(params) => params,
        Action::Notify(params) => params,
    }
}
