//! What a pass decides: what the controller does, what is blocked and why, and when to decide again. Data only.

mod status_view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::action::{Drain, HandOff};
use super::command::{ANSWERED_WITHIN, ActionCommand};
use super::fault::PodRef;
use super::hand_off::HandedOff;
use super::policy::History;
use super::remediation::{Marker, Remediation, StepRecord};
use super::snapshot::Ledger;
use super::taint::TaintEffect;

pub use super::blocked::BlockReason;
pub use status_view::{
    AssignedRule, FaultLimitView, Health, LimitsView, MAX_SHOWN, NodeAtLimit, NodeStatusView, PolicyStatusView,
    SelfHealing, StormView, TopologyLimitView,
};

/// Something that the controller does not do now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocked {
    /// The node.
    pub node: String,
    /// The fault, where it is about one.
    pub fault_id: Option<String>,
    /// The policy, where one applies.
    pub policy: Option<String>,
    /// Why.
    pub reason: BlockReason,
    /// A sentence for people: what is blocked, what was expected, what was found, what would change it.
    pub message: String,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Mark the node unschedulable, with our owner annotation. Refuse when it is unschedulable already.
    Cordon,
    /// Set our taint with this effect, with our owner annotation. Refuse when the node has a taint with our key already.
    Taint(TaintEffect),
    /// One round of evictions of the node's pods, each with its uid as precondition. Refuse when the node does not carry this
    /// remediation's cordon. The operation is repeated until no pod is left.
    Drain(Drain),
    /// Delete this pod with its uid as precondition.
    DeletePod(PodRef),
    /// Run a Job on the node with this command.
    RunJob(ActionCommand),
    /// Write this command to the node's `NodeCommand`.
    GiveCommand(ActionCommand),
    /// Create the remediator's object for the node from its template. Refuse when an object exists that is not ours.
    HandOff(HandOff),
    /// Notify people.
    Notify(String),
}

/// Something to do. The effects of one node are executed in order. When one fails, the rest of that node waits for the next pass;
/// not so after a removal that the API server refuses, perhaps forever. All are idempotent: after a crash between any two of them,
/// the next pass completes them.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a pass has few effects")]
pub enum Effect {
    /// Store this ledger by compare-and-swap, before anything else in this pass. When it fails, no `WriteRemediation` that opens
    /// a remediation may be executed in this pass.
    StoreLedger(Ledger),
    /// Create the remediation (identity `None`; an existing name is a failure) or write its status (only at the resource version
    /// in its identity; a conflict is a failure).
    WriteRemediation(Box<Remediation>),
    /// A manual request starts: write the status of its object, only at the resource version in its identity, with the finalizer.
    /// From then on the object is this remediation. As with a new remediation, its slot is stored before.
    BeginManualRequest(Box<Remediation>),
    /// Report why a manual request has not started: write its message, only at this resource version.
    UpdateManualRequest {
        /// Name of the object.
        name: String,
        /// Its uid and resource version.
        identity: (String, String),
        /// The node.
        node: String,
        /// Why, in one sentence.
        message: String,
    },
    /// Execute the reserved step, after a preflight that reads again everything that may block it. Then pass the last written
    /// remediation and the result to `remediation::executed` and write what that returns. A `Cordon` with its owner annotation
    /// already on the node, or a Job or command of this operation that exists already, counts as done and is no error.
    Act {
        /// Name of the remediation.
        remediation: String,
        /// Identity of the attempt.
        operation_id: String,
        /// The node.
        node: String,
        /// Uid that the node must still have.
        node_uid: String,
        /// What to do.
        operation: Operation,
    },
    /// Remove a marker of a remediation. Read its object again (the Node, or the remediator's object), and remove the marker only
    /// where it is still the remediation's: its owner annotation names it. Anything else is not ours and stays. The cordon goes
    /// with its annotation in one write, the taint as well; a remediator's object is deleted by its uid. Either way the effect is
    /// done: pass the remediation, where it exists and is about this Node, to `remediation::removed` and write it. The remediation
    /// may not exist any more (its owner annotation stays after it was removed by force).
    Remove {
        /// Name of the remediation.
        remediation: String,
        /// The node.
        node: String,
        /// The marker.
        marker: Marker,
        /// Another remediation of the node that still needs the cordon: the node stays cordoned, and the annotation names this
        /// one from then on.
        successor: Option<String>,
    },
    /// Report a timeout to a remediator: set the annotation of the contract on the object, where it is still the remediation's.
    /// Either way the effect is done: pass the remediation to `remediation::timed_out` with `why` and write it.
    TimeOutHandOff {
        /// Name of the remediation.
        remediation: String,
        /// The node.
        node: String,
        /// The object, with its operation.
        handed: HandedOff,
        /// When it timed out.
        at: Timestamp,
        /// Why the attempt ends, in one sentence.
        why: String,
    },
    /// Withdraw the command of this operation from the node's `NodeCommand`, only at the version that was read with it. If another
    /// command is there, nothing is to be done.
    WithdrawCommand {
        /// The node.
        node: String,
        /// The operation that the command is for.
        operation_id: String,
    },
    /// Delete a Job that did not start in time, with its uid as precondition.
    DeleteJob {
        /// The operation that the Job executes.
        operation_id: String,
    },
    /// Delete a finished remediation (history limit or time to live).
    DeleteRemediation {
        /// Its name.
        name: String,
    },
}

/// The decision of one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What to do, in order.
    pub effects: Vec<Effect>,
    /// What the controller does not do, and why.
    pub blocked: Vec<Blocked>,
    /// What to write about each node that reports. Nodes without activity and with equal views share one.
    pub nodes: BTreeMap<String, Arc<NodeStatusView>>,
    /// What to write about each policy.
    pub policies: BTreeMap<String, PolicyStatusView>,
    /// When to decide again, if nothing happens before.
    pub next: Option<Duration>,
}

/// Limits of the engine that no policy changes.
#[derive(Clone, Debug)]
pub struct PlanSettings {
    /// Evidence must not be older than this, both at the decision and once more right before the action.
    pub evidence_max_age: Duration,
    /// How long a fault is not tried again after its remediation failed.
    pub failed_memory: Duration,
    /// Time in which the pod of a Job must start. After it, the node executor gets the command instead of the Job.
    pub job_start: Duration,
    /// Time in which the node executor must answer a command. After it, a Job gets the operation, where the kubelet can start one
    /// by now. It is longer than the preflight may take (`check` in the probe's bounds), because the node executor reports nothing
    /// before it is done. Together with the start time of a Job, it is no longer than `command_ttl_seconds`, which a node counts
    /// from its first read of the operation.
    pub agent_start: Duration,
    /// Seconds within which a command may be started.
    pub command_ttl_seconds: u32,
    /// An action without an answer within this time has failed.
    pub answer_within: Duration,
    /// How long a cache may lag behind a write.
    pub cache_lag: Duration,
    /// How long Kubernetes gets to bring a pod up by itself after an action on its node.
    pub settle: Duration,
    /// When to check again an effect that has not shown by itself.
    pub retry: Duration,
    /// Whether a missing ledger is rebuilt from the open remediations (set when all of them are known).
    pub rebuild_ledger: bool,
    /// History of remediations of deleted policies.
    pub history: History,
}

impl PlanSettings {
    /// When a node can no longer be at work on an attempt that has ended [without an answer](StepRecord::is_unanswered): an
    /// executor that has read the command, and cannot see that it is withdrawn, may begin it within its time to live.
    pub fn latest_execution(&self, step: &StepRecord) -> Option<Timestamp> {
        let ended_at = step.finished_at.filter(|_| step.is_unanswered())?;
        ended_at.checked_add(self.cache_lag.saturating_add(self.execution_time())).ok()
    }

    /// How long an executor that reads a command may take until it has answered.
    pub fn execution_time(&self) -> Duration {
        Duration::from_secs(self.command_ttl_seconds.into()).saturating_add(ANSWERED_WITHIN)
    }
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            evidence_max_age: Duration::from_secs(45),
            failed_memory: Duration::from_hours(1),
            job_start: Duration::from_secs(45),
            agent_start: Duration::from_secs(75),
            command_ttl_seconds: 120,
            answer_within: Duration::from_mins(3),
            cache_lag: Duration::from_mins(1),
            settle: Duration::from_mins(1),
            retry: Duration::from_secs(10),
            rebuild_ledger: false,
            history: History::default(),
        }
    }
}
