//! How much a policy may do at once, and what is kept of it.

use std::borrow::Cow;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::LABEL_KEY;
use crate::HumanDuration;
use nrh_core::fault::FaultType;

/// How much may happen at once.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyLimits {
    /// Nothing new starts while more of the selected nodes than this are unhealthy: a number, or a percent
    /// (rounded down, but at least 1; 0 and 0% mean none). Default 30%.
    #[serde(default = "default_max_unhealthy")]
    pub max_unhealthy: IntOrPercent,
    /// Remediations that may run at the same time: a number or a percent, rounded the same way. Default 1.
    #[serde(default = "default_max_in_flight")]
    pub max_in_flight: IntOrPercent,
    /// A limit for each zone, rack or pool. At most 8; all of them apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub per_topology: Vec<PolicyTopologyLimit>,
    /// Limits for kinds of fault, at most 8; all of them apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub per_fault: Vec<PolicyFaultLimit>,
    /// How many actions one node may get.
    #[serde(default)]
    pub per_node: PolicyNodeLimit,
    /// Many nodes with the same new fault are a storm: nothing starts for it until no more nodes come, then one node is
    /// remediated at a time, then two, four and so on, as long as that helps. Notify is not blocked.
    #[serde(default)]
    pub storm: PolicyStorm,
}

/// How many actions, and for how long, one node may get. After that a person has to find out what is wrong with it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyNodeLimit {
    /// Most actions in the name of this policy, for whichever faults. Cordon and Notify do not count. 1 to 100. Default
    /// 20.
    #[serde(default = "default_actions")]
    #[schemars(range(min = 1, max = 100))]
    pub max_actions: u32,
    /// Within this time: a duration from 1s to 24h. Default 1h. For a quarter of it, or for as long as the longest of the policy's rules
    /// takes if that is more, the policy waits for the node's answers; then the other nodes have their turn.
    #[serde(default = "default_actions_window")]
    pub window: HumanDuration,
}

const fn default_actions() -> u32 {
    20
}

fn default_actions_window() -> HumanDuration {
    HumanDuration::from_secs(3600)
}

impl Default for PolicyNodeLimit {
    fn default() -> Self {
        Self { max_actions: default_actions(), window: default_actions_window() }
    }
}

/// From how many nodes on the same new fault is a storm.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyStorm {
    /// So many of the selected nodes, and at least 5, are a storm: a number or a percent, rounded down. Default 25%.
    /// More than there are nodes = never.
    #[serde(default = "default_storm_nodes")]
    pub min_nodes: IntOrPercent,
    /// A fault is new for this time: a duration from 1s to 24h. Default 10m.
    #[serde(default = "default_storm_window")]
    pub window: HumanDuration,
}

const fn default_storm_nodes() -> IntOrPercent {
    IntOrPercent::Percent(25)
}

fn default_storm_window() -> HumanDuration {
    HumanDuration::from_secs(600)
}

impl Default for PolicyStorm {
    fn default() -> Self {
        Self { min_nodes: default_storm_nodes(), window: default_storm_window() }
    }
}

/// A bound for the nodes that share the value of a label, each value for itself; nodes without the label are one group, too.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyTopologyLimit {
    /// Key of the label, such as `topology.kubernetes.io/zone`.
    #[schemars(length(min = 1, max = 317), regex(pattern = LABEL_KEY))]
    pub topology_key: String,
    /// Remediations that may run at the same time on nodes with the same value of this label: a number, or a percent of the selected
    /// nodes with that value (rounded down, at least 1). 0 and 0% allow none.
    pub max_in_flight: IntOrPercent,
}

/// How many nodes may be dealt with at the same time for faults of some kinds.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyFaultLimit {
    /// Kinds of fault, counted together. 1 to 16.
    #[schemars(length(min = 1, max = 16))]
    pub faults: Vec<FaultType>,
    /// Remediations with such a fault that may run at the same time: a number, or a percent of the selected nodes (rounded down, but
    /// at least 1; 0 and 0% mean none).
    pub max_in_flight: IntOrPercent,
}

const fn default_max_unhealthy() -> IntOrPercent {
    IntOrPercent::Percent(30)
}

const fn default_max_in_flight() -> IntOrPercent {
    IntOrPercent::Int(1)
}

impl Default for PolicyLimits {
    // Written out: the derived one would be 0, and a policy without limits would never do anything.
    fn default() -> Self {
        Self {
            max_unhealthy: default_max_unhealthy(),
            max_in_flight: default_max_in_flight(),
            per_topology: Vec::new(),
            per_fault: Vec::new(),
            per_node: PolicyNodeLimit::default(),
            storm: PolicyStorm::default(),
        }
    }
}

/// How long finished remediations are kept.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyHistory {
    /// Most finished remediations kept for this policy. 1 to 500, default 50.
    #[serde(default = "default_history")]
    #[schemars(range(min = 1, max = 500))]
    pub limit: u32,
    /// Seconds after its end at which a finished remediation is removed. 60 to 31536000, default 604800 (7 days).
    #[serde(default = "default_ttl")]
    #[schemars(range(min = 60, max = 31_536_000))]
    pub ttl_seconds_after_finished: u32,
}

const fn default_history() -> u32 {
    50
}

const fn default_ttl() -> u32 {
    604_800
}

impl Default for PolicyHistory {
    fn default() -> Self {
        Self { limit: default_history(), ttl_seconds_after_finished: default_ttl() }
    }
}

/// A number, or a percent as a string (`"30%"`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "IntOrText", into = "IntOrText")]
pub enum IntOrPercent {
    /// A number.
    Int(u32),
    /// A percent, 0 to 100.
    Percent(u32),
}

impl Default for IntOrPercent {
    fn default() -> Self {
        Self::Int(0)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number from 0, or a percent in quotes such as \"30%\"")]
enum IntOrText {
    Int(u32),
    Text(String),
}

impl TryFrom<IntOrText> for IntOrPercent {
    type Error = String;

    fn try_from(raw: IntOrText) -> Result<Self, String> {
        match raw {
            IntOrText::Int(number) => Ok(Self::Int(number)),
            IntOrText::Text(text) => text
                .strip_suffix('%')
                .filter(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|digits| digits.parse().ok())
                .filter(|percent| *percent <= 100)
                .map(Self::Percent)
                .ok_or_else(|| {
                    format!(
                        "{:?} is neither a number nor a percent from 0% to 100%",
                        nrh_core::text::bounded(&text, 16)
                    )
                }),
        }
    }
}

impl From<IntOrPercent> for IntOrText {
    fn from(value: IntOrPercent) -> Self {
        match value {
            IntOrPercent::Int(number) => Self::Int(number),
            IntOrPercent::Percent(percent) => Self::Text(format!("{percent}%")),
        }
    }
}

impl JsonSchema for IntOrPercent {
    fn schema_name() -> Cow<'static, str> {
        "IntOrPercent".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 8,
            "x-kubernetes-validations": [{
                "rule": "type(self) == int ? (int(self) >= 0 && int(self) <= 100000) : string(self).matches('^([0-9]|[1-9][0-9]|100)%$')",
                "message": "must be a number from 0 to 100000 or a percent from 0% to 100%"
            }]
        })
    }
}
