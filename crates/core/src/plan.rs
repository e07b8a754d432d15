//! The decision: a total function from a snapshot to what is done, what is held and why, and when to look
//! again. Equal input, equal output, in any order.

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

/// Something that is not done now.
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
    /// A sentence for people: what is held, what was expected, what was found, what would change it.
    pub message: String,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Mark the node unschedulable with our annotation; refuse when it is unschedulable already.
    Cordon,
    /// Put our taint with this effect on the node, with our annotation; refuse when one with our key is there already.
    Taint(TaintEffect),
    /// One round of evictions of the node's pods, each with its uid as precondition; refuse when the node does not carry this
    /// remediation's cordon. It is asked for again until no pod is left.
    Drain(Drain),
    /// Delete this pod with its uid as precondition.
    DeletePod(PodRef),
    /// Run a Job on the node with this order.
    RunJob(ActionCommand),
    /// Put this order into the node's own object.
    GiveCommand(ActionCommand),
    /// Make the remediator's object for the node, of its template; refuse when somebody else's is there.
    HandOff(HandOff),
    /// Tell people.
    Notify(String),
}

/// Something to do. Effects of one node are done in order; when one fails, the rest of that node waits for
/// the next pass. All are idempotent: a crash between any two of them is healed by the next pass.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a pass has few effects")]
pub enum Effect {
    /// Store this ledger by compare-and-swap, before anything else of this pass. When it fails, no
    /// `WriteRemediation` that opens a remediation may be done in this pass.
    StoreLedger(Ledger),
    /// Create the remediation (identity `None`; a name that exists already is a failure) or write its status
    /// (only at the resource version in its identity: a conflict is a failure).
    WriteRemediation(Box<Remediation>),
    /// A start by hand begins: write the status of its object, only at the resource version in its identity, with what keeps it
    /// from vanishing. From then on the object is this remediation. As with one that is created, its slot is stored before.
    BeginManualRequest(Box<Remediation>),
    /// Tell the person who waits for a start by hand why it has not begun: its message, only at this resource version.
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
    /// Carry out the reserved step, after a last re-read of everything that may say no; then pass the remediation
    /// as last written, with what came of it, to `remediation::executed` and write the result. A `Cordon` whose mark
    /// is on the node already, a Job or an order of this operation that stands already: done, not an error.
    Act {
        /// Name of the remediation.
        remediation: String,
        /// Identity of the attempt.
        operation_id: String,
        /// The node.
        node: String,
        /// Uid the node must still have.
        node_uid: String,
        /// What to do.
        operation: Operation,
    },
    /// Remove our cordon from the node: re-read it, and only where the mark still names this remediation set it
    /// schedulable and take the mark off, in one write; anything else on the node is someone else's, leave
    /// it. Either way it is done: pass the remediation, where it exists, to `remediation::uncordoned` and write it.
    /// The remediation may not exist any more (a mark left behind by one that was removed by force).
    /// With a successor the node stays cordoned, and the mark names that one from now on.
    Uncordon {
        /// Name of the remediation.
        remediation: String,
        /// The node.
        node: String,
        /// Another remediation of the node for whose sake it stays cordoned.
        successor: Option<String>,
    },
    /// Take our taint off the node: re-read it, and only where the mark still names this remediation take off the mark and the one taint
    /// that it is about, in one write. Either way it is done: pass the remediation, where it exists and owes that taint, to
    /// `remediation::untainted` and write it. The remediation may not exist any more, or be about another machine of that name.
    Untaint {
        /// Name of the remediation.
        remediation: String,
        /// The node.
        node: String,
    },
    /// Tell a remediator that its time is over: put the mark of the contract on the object, where it is still the remediation's.
    /// Either way it is done: pass the remediation to `remediation::timed_out` with `why` and write it.
    TimeOutHandOff {
        /// Name of the remediation.
        remediation: String,
        /// The node.
        node: String,
        /// The object, with its operation.
        handed: HandedOff,
        /// When its time was over.
        at: Timestamp,
        /// Why the attempt ends, in one sentence.
        why: String,
    },
    /// Delete a remediator's object: re-read it, and only where it is still the remediation's delete it, by its uid. Either way it
    /// is done: pass the remediation, where it exists, to `remediation::taken_back` and write it.
    TakeBackHandOff {
        /// Name of the remediation.
        remediation: String,
        /// The node.
        node: String,
        /// The object, with its operation.
        handed: HandedOff,
    },
    /// Take back the order that stands in the node's object.
    WithdrawOrder {
        /// The node.
        node: String,
    },
    /// End a Job that did not start in time.
    DeleteJob {
        /// The operation it was made for.
        operation_id: String,
    },
    /// Remove a finished remediation (history limit or time to live).
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

/// Whether the faults of a node are remediated, or would be: the column REMEDIATION.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelfHealing {
    /// Nothing stands in the way for longer than a limit or a window does.
    Allowed,
    /// No step is left for a fault, or a person has to decide.
    ManualActionRequired,
    /// Only a dry run is for a fault.
    DryRun,
    /// A person has suspended the node, the policy for a fault, or all remediation.
    Suspended,
    /// The node is to be left alone.
    Excluded,
    /// Nobody could check.
    #[default]
    Unknown,
}

impl SelfHealing {
    /// As the status of a condition.
    pub const fn status(self) -> TriState {
        match self {
            Self::Allowed => TriState::True,
            Self::ManualActionRequired => TriState::False,
            Self::DryRun | Self::Suspended | Self::Excluded | Self::Unknown => TriState::Unknown,
        }
    }
}

/// What stands ready for one fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The policy that heals it; of those that select the node, the one with a rule for it that goes first.
    pub policy: String,
    /// Its rule for the fault; `None` when no policy that selects the node has one.
    pub rule: Option<String>,
}

/// What the controller writes about one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeStatusView {
    /// Overall health.
    pub health: Health,
    /// Kind of the most urgent fault.
    pub top_fault_type: Option<FaultType>,
    /// The most urgent fault, in one phrase; empty when there is none.
    pub top_fault: String,
    /// What is being done, or why nothing is; empty when there is nothing to do.
    pub activity: String,
    /// Policy that applies.
    pub policy: Option<String>,
    /// What stands ready for each fault, by its id; nothing for a node that no policy selects.
    pub remedies: BTreeMap<String, Remedy>,
    /// Open remediation.
    pub remediation: Option<String>,
    /// That a person has stopped a remediation here, for as long as that counts.
    pub stopped: Option<Stopped>,
    /// The kubelet's version, for the probe, which has no right to read its Node.
    pub kubelet_version: Option<String>,
    /// Faults the controller found.
    pub cluster_faults: Vec<Fault>,
    /// Whether the probe reports as promised.
    pub probe_reporting: TriState,
    /// Whether the probe's word on `RestartSafe` still counts.
    pub restart_safe_known: bool,
    /// Whether its faults are remediated.
    pub self_healing: SelfHealing,
    /// False when a DaemonSet's pod is stuck here, or the kubelet does not get on with its pods.
    pub pods_progressing: TriState,
    /// False while it flaps.
    pub stable: TriState,
    /// Its changes of late, to be kept in its object.
    pub flap: Option<FlapRecord>,
    /// Whether a fresh look is asked of the probe.
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
    /// Whether new remediations may start, and if not why.
    pub blocked: Option<(BlockReason, String)>,
    /// Other policies that select some of the same nodes.
    pub overlaps: Vec<String>,
    /// Its narrower limits, as numbers now.
    pub limits: LimitsView,
    /// Its windows, in the order of the spec.
    pub windows: Vec<window::WindowView>,
    /// The storms that hold now, the widest first.
    pub storms: Vec<StormView>,
}

/// The decision of one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What to do, in order.
    pub effects: Vec<Effect>,
    /// What is not done, and why.
    pub blocked: Vec<Blocked>,
    /// What to write about each node that reports. Nodes on which nothing happens and that stand alike share it.
    pub nodes: BTreeMap<String, Arc<NodeStatusView>>,
    /// What to write about each policy.
    pub policies: BTreeMap<String, PolicyStatusView>,
    /// When to decide again, if nothing happens before.
    pub next: Option<Duration>,
}

/// No act on a look older than this, when it is decided on and once more right before it.
pub const EVIDENCE_MAX_AGE: Duration = Duration::from_secs(45);

/// Bounds of the engine that no policy changes.
#[derive(Clone, Debug)]
pub struct PlanSettings {
    /// No act on evidence older than this.
    pub evidence_max_age: Duration,
    /// For how long a fault that failed to heal is not tried again.
    pub failed_memory: Duration,
    /// A Job whose pod has not started within this time is given up for the agent.
    pub job_start: Duration,
    /// An order that the agent has not answered within this time is given up for a Job, where the kubelet can start one by now: longer
    /// than the look before an act may take (`look` in the probe's bounds), since an agent says nothing before it is done; and with the
    /// time of a Job's start no longer than `order_ttl_seconds`, which a node counts from when it has first read of the operation.
    pub agent_start: Duration,
    /// Seconds for which an order may be started.
    pub order_ttl_seconds: u32,
    /// An act that has given no answer within this time has failed.
    pub answer_within: Duration,
    /// For how long a cache may be behind what was written.
    pub cache_lag: Duration,
    /// How long Kubernetes is given to bring a pod up by itself after an act on its node.
    pub settle: Duration,
    /// When to look at an effect again that has not shown by itself.
    pub retry: Duration,
    /// Whether a missing ledger is rebuilt from the open remediations (set when all of them are known).
    pub rebuild_ledger: bool,
    /// History of remediations whose policy is gone.
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
