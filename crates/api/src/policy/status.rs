//! Observed state of the policy. The controller writes it.

#![expect(clippy::doc_markdown, reason = "these sentences are what `kubectl explain` prints")]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use nrh_core::plan::{FaultLimitView, LimitsView, MAX_SHOWN, NodeAtLimit, StormView, TopologyLimitView};
use nrh_core::text::bounded;
use nrh_core::window::WindowView;

/// Observed state of the policy. The controller writes it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RemediationPolicyStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Nodes that the policy selects, without those being deleted.
    #[serde(default)]
    pub selected_nodes: u32,
    /// Selected nodes that are unhealthy: a confirmed fault that a rule matches, not Ready, an open remediation, a
    /// quarantine, or a probe that stopped reporting.
    #[serde(default)]
    pub unhealthy_nodes: u32,
    /// Selected nodes whose probe has never reported. They are not counted as unhealthy, and get no action.
    #[serde(default)]
    pub unknown_nodes: u32,
    /// Remediations in flight.
    #[serde(default)]
    pub in_flight: u32,
    /// `maxUnhealthy` as a number of nodes now.
    #[serde(default)]
    pub max_unhealthy: u32,
    /// `maxInFlight` as a number now.
    #[serde(default)]
    pub max_in_flight: u32,
    /// What limits.perTopology, perFault and perNode come to now. Absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<PolicyLimitsStatus>,
    /// `windows` of the spec, in its order: whether each is active, and when that changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub windows: Vec<WindowView>,
    /// Storms: fault types that many nodes have at the same time. The controller limits or stops new remediations for them. The
    /// storm with the most nodes is first. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub storms: Vec<StormStatus>,
    /// Other policies that select some of the same nodes, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 253)))]
    pub overlapping_policies: Vec<String>,
    /// Ready (False = the spec has errors, all named; Stalled is True then) and RemediationAllowed (False = nothing new
    /// starts, with the reason).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// What the narrower limits of a policy come to now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyLimitsStatus {
    /// `perTopology`: each value of each label, the fullest first. At most 16; `perTopologyOmitted` counts the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub per_topology: Vec<TopologyLimitView>,
    /// Values of labels that did not fit into `perTopology`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_topology_omitted: Option<u32>,
    /// `perFault`, in the order of the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub per_fault: Vec<FaultLimitStatus>,
    /// `perNode`: the nodes that have reached their limit, those that wait for longest first. At most 16;
    /// `perNodeOmitted` counts the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub per_node: Vec<NodeLimitStatus>,
    /// Nodes that did not fit into `perNode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_node_omitted: Option<u32>,
}

/// A limit for some kinds of fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FaultLimitStatus {
    /// The kinds of fault, counted together.
    // As text here and below: a controller of before, which knows fewer kinds, must be able to read the policy.
    #[schemars(length(max = 16), inner(length(max = 64)))]
    pub faults: Vec<String>,
    /// Remediations in flight for one of them.
    pub in_flight: u32,
    /// `maxInFlight` as a number now.
    pub max_in_flight: u32,
}

impl From<&FaultLimitView> for FaultLimitStatus {
    fn from(room: &FaultLimitView) -> Self {
        Self {
            faults: room.faults.iter().take(MAX_SHOWN).map(|kind| kind.as_str().to_owned()).collect(),
            in_flight: room.in_flight,
            max_in_flight: room.max_in_flight,
        }
    }
}

/// A node that has reached its limit of actions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeLimitStatus {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Actions that count now.
    pub actions: u32,
    /// When one more may start.
    pub until: Timestamp,
}

impl From<&NodeAtLimit> for NodeLimitStatus {
    fn from(spent: &NodeAtLimit) -> Self {
        Self { node: bounded(&spent.node, 253), actions: spent.actions, until: spent.until }
    }
}

impl PolicyLimitsStatus {
    /// The narrower limits; `None` = there are none.
    pub fn of(limits: &LimitsView) -> Option<Self> {
        let left_out = |count: u32| (count > 0).then_some(count);
        let status = Self {
            per_topology: limits.topologies.clone(),
            per_topology_omitted: left_out(limits.topologies_left_out),
            per_fault: limits.faults.iter().map(Into::into).collect(),
            per_node: limits.spent.iter().map(Into::into).collect(),
            per_node_omitted: left_out(limits.spent_left_out),
        };
        (status != Self::default()).then_some(status)
    }
}

/// The same fault on many nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StormStatus {
    /// The kind of fault.
    #[schemars(length(max = 64))]
    pub fault: String,
    /// How many nodes may be remediated at a time. 0 = none, as long as new ones come.
    pub max_concurrent: u32,
    /// Nodes on which it is confirmed.
    pub nodes: u32,
    /// Nodes on which the fault is new, including those on which it is absent again.
    pub new_nodes: u32,
    /// Why this is a storm, and what the nodes have in common.
    #[schemars(length(max = 512))]
    pub message: String,
}

impl From<&StormView> for StormStatus {
    fn from(storm: &StormView) -> Self {
        Self {
            fault: storm.fault.as_str().to_owned(),
            max_concurrent: storm.max_concurrent,
            nodes: storm.nodes,
            new_nodes: storm.new,
            message: bounded(&storm.evidence, 512),
        }
    }
}
