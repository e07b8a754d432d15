//! The status of nodes and policies: views of the same plan that the controller carries out.

use std::collections::BTreeMap;
use std::sync::Arc;

use nrh_api::without_probe;
use nrh_core::plan::{NodeStatusView, Plan, PolicyStatusView};
use nrh_core::snapshot::NodeView;
use nrh_core::text::bounded;

mod node;
mod policy;
pub mod writer;

/// Whether the node is to have no probe, by its labels.
pub fn is_without_probe(node: &NodeView) -> bool {
    without_probe::reason(|name| node.labels.get(name).map(String::as_str)).is_some()
}

/// Largest number of blocked lines per node.
const MAX_BLOCKED: usize = 16;

/// The content of one plan for the status writer.
#[derive(Clone, Debug, Default)]
pub struct StatusViews {
    /// By node, with the lines about what is blocked there.
    pub nodes: BTreeMap<String, (Arc<NodeStatusView>, Vec<String>)>,
    /// By policy.
    pub policies: BTreeMap<String, PolicyStatusView>,
}

impl StatusViews {
    /// The views of a plan.
    pub fn of(Plan { blocked, nodes, policies, .. }: Plan) -> Self {
        let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for blocked in blocked {
            let of_node = lines.entry(blocked.node).or_default();
            if of_node.len() < MAX_BLOCKED {
                of_node.push(bounded(&format!("{:?}: {}", blocked.reason, blocked.message), 512));
            }
        }
        let with_lines = |(node, status_view): (String, _)| {
            let blocked = lines.remove(&node).unwrap_or_default();
            (node, (status_view, blocked))
        };
        Self { nodes: nodes.into_iter().map(with_lines).collect(), policies }
    }
}
