//! How much a policy may do at once, and what is kept of it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::fault::FaultType;
use crate::human_duration::{HumanDuration, plain, seconds};
use crate::matching::LABEL_KEY;
use crate::text::bounded;

/// How much may happen at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Nothing new starts while more of the selected nodes than this are unhealthy: a number, or a percent
    /// (rounded down, but at least 1; 0 and 0% mean none). Default 30%.
    pub max_unhealthy: Amount,
    /// Remediations that may run at the same time: a number or a percent, rounded the same way. Default 1.
    pub max_in_flight: Amount,
    /// A limit for each zone, rack or pool. At most 8; all of them apply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub per_topology: Vec<TopologyLimit>,
    /// Limits for kinds of fault, at most 8; all of them apply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub per_fault: Vec<FaultLimit>,
    /// How many actions one node may get.
    pub per_node: NodeLimit,
    /// Many nodes with the same new fault are a storm: nothing starts for it until no more nodes come, then one node is
    /// remediated at a time, then two, four and so on, as long as that helps. Notify is not blocked.
    pub storm: StormLimit,
}

/// How many actions, and for how long, one node may get. After that a person has to find out what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeLimit {
    /// Most actions in the name of this policy, for whichever faults. Cordon, Taint and Notify do not count. 1 to 100.
    /// Default 20.
    #[schemars(range(min = 1, max = 100))]
    pub max_actions: u32,
    /// Within this time: a duration from 1s to 24h. Default 1h. For a quarter of it, or for as long as the longest of the policy's rules
    /// takes if that is more, the policy waits for the node's answers; then the other nodes have their turn.
    #[serde(with = "plain")]
    #[schemars(with = "HumanDuration")]
    pub window: Duration,
}

impl Default for NodeLimit {
    fn default() -> Self {
        Self { max_actions: 20, window: Duration::from_hours(1) }
    }
}

/// From how many nodes on the same new fault is a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StormLimit {
    /// So many of the selected nodes, and at least 5, are a storm: a number or a percent, rounded down. Default 25%.
    /// More than there are nodes = never.
    pub min_nodes: Amount,
    /// A fault is new for this time: a duration from 1s to 24h. Default 10m.
    #[serde(with = "plain")]
    #[schemars(with = "HumanDuration")]
    pub window: Duration,
}

impl Default for StormLimit {
    fn default() -> Self {
        Self { min_nodes: Amount::Percent(25), window: Duration::from_mins(10) }
    }
}

/// A bound for the nodes that share the value of a label, each value for itself; nodes without the label are one group, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TopologyLimit {
    /// Key of the label, such as `topology.kubernetes.io/zone`.
    #[schemars(length(min = 1, max = 317), regex(pattern = LABEL_KEY))]
    #[serde(rename = "topologyKey")]
    pub key: String,
    /// Remediations that may run at the same time on nodes with the same value of this label: a number, or a percent of the selected
    /// nodes with that value (rounded down, at least 1). 0 and 0% allow none.
    pub max_in_flight: Amount,
}

/// How many nodes may be dealt with at the same time for faults of some kinds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultLimit {
    /// Kinds of fault, counted together. 1 to 16.
    #[schemars(with = "Vec<FaultType>", length(min = 1, max = 16))]
    pub faults: BTreeSet<FaultType>,
    /// Remediations with such a fault that may run at the same time: a number, or a percent of the selected nodes (rounded down, but
    /// at least 1; 0 and 0% mean none).
    pub max_in_flight: Amount,
}

impl Default for Limits {
    // Written out: the derived one would be 0, and a policy without limits would never do anything.
    fn default() -> Self {
        Self {
            max_unhealthy: Amount::Percent(30),
            max_in_flight: Amount::Count(1),
            per_topology: Vec::new(),
            per_fault: Vec::new(),
            per_node: NodeLimit::default(),
            storm: StormLimit::default(),
        }
    }
}

/// How long finished remediations are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct History {
    /// Most finished remediations kept for this policy. 1 to 500, default 50.
    #[schemars(range(min = 1, max = 500))]
    pub limit: u32,
    /// Seconds after its end at which a finished remediation is removed. 60 to 31536000, default 604800 (7 days).
    #[serde(rename = "ttlSecondsAfterFinished", with = "seconds")]
    #[schemars(with = "u32", range(min = 60, max = 31_536_000))]
    pub ttl: Duration,
}

impl Default for History {
    fn default() -> Self {
        Self { limit: 50, ttl: Duration::from_hours(7 * 24) }
    }
}

/// A count or a share of the selected nodes: a number, or a percent as a string (`"30%"`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "IntOrText", into = "IntOrText")]
pub enum Amount {
    /// This number.
    Count(u32),
    /// This percentage, 0 to 100. 0 % is none. Any other percentage rounds down, to at least one.
    Percent(u32),
}

impl Amount {
    /// The number of nodes where `total` nodes are selected.
    pub fn of(self, total: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(0) => 0,
            Self::Percent(percent) => {
                let share = u64::from(total).saturating_mul(u64::from(percent.min(100))) / 100;
                u32::try_from(share).unwrap_or(u32::MAX).max(1)
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number from 0, or a percent in quotes such as \"30%\"")]
enum IntOrText {
    Int(u32),
    Text(String),
}

impl TryFrom<IntOrText> for Amount {
    type Error = String;

    fn try_from(raw: IntOrText) -> Result<Self, String> {
        match raw {
            IntOrText::Int(number) => Ok(Self::Count(number)),
            IntOrText::Text(text) => text
                .strip_suffix('%')
                .filter(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|digits| digits.parse().ok())
                .filter(|percent| *percent <= 100)
                .map(Self::Percent)
                .ok_or_else(|| format!("{:?} is neither a number nor a percent from 0% to 100%", bounded(&text, 16))),
        }
    }
}

impl From<Amount> for IntOrText {
    fn from(value: Amount) -> Self {
        match value {
            Amount::Count(number) => Self::Int(number),
            Amount::Percent(percent) => Self::Text(format!("{percent}%")),
        }
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // Kubernetes 1.30 estimates the cost of the rule without the length: a longer pattern is refused in a list.
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 8,
            "x-kubernetes-validations": [{
                "rule": "type(self) == int ? (int(self) >= 0 && int(self) <= 100000) : self == '100%' || self.matches(r'^\\d\\d?%$')",
                "message": "must be a number from 0 to 100000 or a percent from 0% to 100%"
            }]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_round_down_but_never_to_nothing_by_accident() {
        for (amount, total, expected) in [
            (Amount::Count(0), 100, 0),
            (Amount::Count(7), 3, 7),
            (Amount::Percent(0), 100, 0),
            (Amount::Percent(30), 3, 1),
            (Amount::Percent(30), 10, 3),
            (Amount::Percent(30), 0, 1),
            (Amount::Percent(99), 100, 99),
            (Amount::Percent(100), 5, 5),
            (Amount::Percent(100), u32::MAX, u32::MAX),
        ] {
            assert_eq!(amount.of(total), expected, "{amount:?} of {total}");
        }
    }
}
