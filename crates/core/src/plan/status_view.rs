//! What the controller writes about each node and each policy.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::blocked::BlockReason;
use crate::fault::{Fault, FaultType};
use crate::flap::FlapRecord;
use crate::remediation::CancelledRemediation;
use crate::tri_state::TriState;
use crate::window;

/// Maximum number of entries shown of each kind.
pub const MAX_SHOWN: usize = 16;

crate::named! {
    /// Overall health of a node, as the first column shows it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum Health {
        /// Nothing confirmed, and the probe reports.
        Healthy,
        /// Something is suspected or confirmed that does not harm pods now.
        Degraded,
        /// A confirmed fault harms pods or the node.
        Unhealthy,
        /// Nobody could check.
        #[default]
        Unknown,
    }
}

/// Whether the faults of a node are remediated, or would be (column REMEDIATION).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelfHealing {
    /// There is nothing to remediate.
    NoFault,
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
            Self::NoFault | Self::Allowed => TriState::True,
            Self::ManualActionRequired => TriState::False,
            Self::DryRun | Self::Suspended | Self::Excluded | Self::Unknown => TriState::Unknown,
        }
    }
}

/// The policy and rule for one fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignedRule {
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
    pub assigned_rules: BTreeMap<String, AssignedRule>,
    /// Open remediation.
    pub remediation: Option<String>,
    /// Whether a person has stopped a remediation here, for as long as that counts.
    pub stopped: Option<CancelledRemediation>,
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
    /// Why the controller does nothing on this node, whatever its faults, where that is for a reason of the node's own.
    pub excluded: Option<String>,
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

/// The room that is left under the limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitsView {
    /// For zones, racks and pools: those with the least room first, at most [`MAX_SHOWN`].
    pub topologies: Vec<TopologyLimitView>,
    /// Number of entries left out.
    pub topologies_left_out: u32,
    /// For kinds of fault, in the order of the spec.
    pub faults: Vec<FaultLimitView>,
    /// Nodes on which no action is allowed for a while, at most [`MAX_SHOWN`]: those with the longest wait first.
    pub spent: Vec<NodeAtLimit>,
    /// Number of entries left out.
    pub spent_left_out: u32,
}

/// A limit for the nodes that share the value of a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyLimitView {
    /// Key of the label.
    #[serde(rename = "topologyKey")]
    #[schemars(length(max = 317))]
    pub key: String,
    /// Its value. Absent = the nodes that have no such label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// How many selected nodes have this value.
    pub nodes: u32,
    /// Remediations in flight on them.
    // One whose node's place is unknown counts as well.
    pub in_flight: u32,
    /// `maxInFlight` as a number now.
    pub max_in_flight: u32,
}

/// The state of a limit for some kinds of fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultLimitView {
    /// The kinds.
    pub faults: Vec<FaultType>,
    /// Remediations in flight for one of these kinds.
    pub in_flight: u32,
    /// Maximum of them.
    pub max_in_flight: u32,
}

/// A node that has reached its limit of actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAtLimit {
    /// Its name.
    pub node: String,
    /// Actions that count now.
    pub actions: u32,
    /// Whether the limit is reached because answers of the node took too long, however few actions there were.
    pub is_slow: bool,
    /// When one more action is allowed.
    pub until: Timestamp,
}

/// The status view of a storm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StormView {
    /// The kind of fault.
    pub fault: FaultType,
    /// How many nodes may be remediated for it at a time; 0 while new ones appear.
    pub max_concurrent: u32,
    /// Nodes on which it is confirmed.
    pub nodes: u32,
    /// Nodes on which it is new, including those that do not show it any more.
    pub new: u32,
    /// The evidence for a storm, in one sentence.
    pub evidence: String,
}
