//! The decision: a total function from a snapshot to what the controller does, what is blocked and why, and when to decide again.
//! Equal input gives equal output, in any order.

mod advance;
mod ahead;
mod approval;
mod attempt;
mod block;
mod cause;
mod conditions;
mod decide;
mod drain;
mod ending;
mod evidence;
mod executors;
mod hand_off;
mod limits;
mod manual_requests;
mod mark;
mod open;
mod pending_reboot;
mod quarantine;
mod readiness;
mod reboot;
mod recurrence;
mod refused;
mod restart;
mod retention;
mod safeguards;
mod scope;
mod select;
mod slot;
mod stabilization;
mod stale;
mod steps;
mod storm;
mod taint;
mod unreadable;
mod update;
mod views;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::command::ActionCommand;
use super::drain::Drain;
use super::fault::{Fault, FaultType, PodRef};
use super::flap::FlapRecord;
use super::hand_off::{HandOff, HandedOff};
use super::policy::History;
use super::remediation::{Remediation, Stopped};
use super::snapshot::{Ledger, TriState};
use super::taint::TaintEffect;
use super::window;

pub use super::blocked::BlockReason;
pub use decide::plan;
pub use limits::{FaultRoom, LimitsView, MAX_SHOWN, SpentNode, TopologyRoom};
pub use storm::StormView;

use block::{Block, Wake};
use decide::Ctx;

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

/// Something to do. The effects of one node are executed in order. When one fails, the rest of that node waits for the next pass.
/// All are idempotent: after a crash between any two of them, the next pass completes them.
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
    /// Remove our cordon from the node. Read the Node again. Only where the owner annotation still names this remediation, set
    /// the node schedulable and remove the annotation, in one write. Anything else on the node is not ours and stays. Either way
    /// the effect is done: pass the remediation, where it exists, to `remediation::uncordoned` and write it. The remediation may
    /// not exist any more (its owner annotation stays after it was removed by force). With a successor, the node stays cordoned
    /// and the annotation names the successor from then on.
    Uncordon {
        /// Name of the remediation.
        remediation: String,
        /// The node.
        node: String,
        /// Another remediation of the node that still needs the cordon.
        successor: Option<String>,
    },
    /// Remove our taint from the node. Read the Node again. Only where the owner annotation still names this remediation, remove
    /// the annotation and the one taint that it is about, in one write. Either way the effect is done: pass the remediation,
    /// where it exists and that cleanup is pending, to `remediation::untainted` and write it. The remediation may not exist any
    /// more, or be about another machine with that name.
    Untaint {
        /// Name of the remediation.
        remediation: String,
        /// The node.
        node: String,
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
    /// Delete a remediator's object. Read it again, and only where it is still the remediation's, delete it by its uid. Either
    /// way the effect is done: pass the remediation, where it exists, to `remediation::taken_back` and write it.
    TakeBackHandOff {
        /// Name of the remediation.
        remediation: String,
        /// The node.
        node: String,
        /// The object, with its operation.
        handed: HandedOff,
    },
    /// Withdraw the current command from the node's `NodeCommand`.
    WithdrawOrder {
        /// The node.
        node: String,
    },
    /// Delete a Job that did not start in time.
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

/// Overall health of a node, as the first column shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Health {
    /// Nothing confirmed, and the probe reports.
    Healthy,
    /// Something is suspected or confirmed that does not harm pods now.
    Degraded,
    /// A confirmed fault harms pods or the node.
    Unhealthy,
    /// Nobody could look.
    #[default]
    Unknown,
}

/// Whether the faults of a node are remediated, or would be (column REMEDIATION).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelfHealing {
    /// Nothing blocks remediation for longer than a limit or a window does.
    Allowed,
    /// No step is left for a fault, or a person has to decide.
    ManualActionRequired,
    /// A fault has only a dry run.
    DryRun,
    /// A person has suspended the node, the policy for a fault, or all remediation.
    Suspended,
    /// Another tool excludes the node.
    Excluded,
    /// The state could not be checked.
    #[default]
    Unknown,
}

impl SelfHealing {
    /// The status of the condition.
    pub const fn status(self) -> TriState {
        match self {
            Self::Allowed => TriState::True,
            Self::ManualActionRequired => TriState::False,
            Self::DryRun | Self::Suspended | Self::Excluded | Self::Unknown => TriState::Unknown,
        }
    }
}

/// The policy and rule for one fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The policy that remediates the fault. Of those that select the node and have a rule for the fault, it has precedence.
    pub policy: String,
    /// Its rule for the fault. `None`: no policy that selects the node has one.
    pub rule: Option<String>,
}

/// What the controller writes about one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeStatusView {
    /// Overall health.
    pub health: Health,
    /// Type of the most urgent fault.
    pub top_fault_type: Option<FaultType>,
    /// The most urgent fault, in one phrase; empty when there is none.
    pub top_fault: String,
    /// What the controller does, or why it does nothing. Empty when there is nothing to do.
    pub activity: String,
    /// Policy that applies.
    pub policy: Option<String>,
    /// The policy and rule for each fault, by its id. Empty for a node that no policy selects.
    pub remedies: BTreeMap<String, Remedy>,
    /// Open remediation.
    pub remediation: Option<String>,
    /// Whether a person has stopped a remediation here, for as long as that counts.
    pub stopped: Option<Stopped>,
    /// The kubelet's version, for the probe, which has no right to read its Node.
    pub kubelet_version: Option<String>,
    /// Faults the controller found.
    pub cluster_faults: Vec<Fault>,
    /// Whether the probe reports as often as it promised.
    pub probe_reporting: TriState,
    /// Whether the probe's report of `RestartSafe` is still valid.
    pub restart_safe_known: bool,
    /// Whether its faults are remediated.
    pub self_healing: SelfHealing,
    /// False when a DaemonSet's pod is stuck here, or the kubelet makes no progress with its pods.
    pub pods_progressing: TriState,
    /// False while the node flaps.
    pub stable: TriState,
    /// Its recent changes, to store in its object.
    pub flap: Option<FlapRecord>,
    /// Whether the controller requests a fresh check from the probe.
    pub check_sequence: bool,
}

/// What the controller writes about one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyStatusView {
    /// Nodes selected (and not being deleted).
    pub selected: u32,
    /// Of those, unhealthy.
    pub unhealthy: u32,
    /// Of those, never reported.
    pub unknown: u32,
    /// Remediations in flight.
    pub in_flight: u32,
    /// `maxUnhealthy` as a number now.
    pub max_unhealthy: u32,
    /// `maxInFlight` as a number now.
    pub max_in_flight: u32,
    /// Whether new remediations may start, and why not.
    pub blocked: Option<(BlockReason, String)>,
    /// Other policies that select some of the same nodes.
    pub overlaps: Vec<String>,
    /// Its narrower limits, as numbers now.
    pub limits: LimitsView,
    /// Its windows, in the order of the spec.
    pub windows: Vec<window::WindowView>,
    /// The current storms, the widest first.
    pub storms: Vec<StormView>,
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

/// Evidence must not be older than this, both at the decision and once more right before the action.
pub const EVIDENCE_MAX_AGE: Duration = Duration::from_secs(45);

/// Limits of the engine that no policy changes.
#[derive(Clone, Debug)]
pub struct PlanSettings {
    /// Evidence must not be older than this for an action.
    pub evidence_max_age: Duration,
    /// How long a fault is not tried again after its remediation failed.
    pub failed_memory: Duration,
    /// Time in which the pod of a Job must start. After it, the node executor gets the command instead of the Job.
    pub job_start: Duration,
    /// Time in which the node executor must answer a command. After it, a Job gets the operation, where the kubelet can start one
    /// by now. It is longer than the preflight may take (`look` in the probe's bounds), because the node executor reports nothing
    /// before it is done. Together with the start time of a Job, it is no longer than `order_ttl_seconds`, which a node counts
    /// from its first read of the operation.
    pub agent_start: Duration,
    /// Seconds within which a command may be started.
    pub order_ttl_seconds: u32,
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

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            evidence_max_age: EVIDENCE_MAX_AGE,
            failed_memory: Duration::from_hours(1),
            job_start: Duration::from_secs(45),
            agent_start: Duration::from_secs(75),
            order_ttl_seconds: 120,
            answer_within: Duration::from_mins(3),
            cache_lag: Duration::from_mins(1),
            settle: Duration::from_mins(1),
            retry: Duration::from_secs(10),
            rebuild_ledger: false,
            history: History { limit: 50, ttl: Duration::from_hours(168) },
        }
    }
}
