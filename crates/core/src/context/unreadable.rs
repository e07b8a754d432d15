//! Objects that exist and that this version cannot read. Remediations: for example after a rollback from a newer version. Their
//! steps may be in progress and their markers on the node. So each keeps its slot, its Job, its markers and its node, and all
//! other work continues.
//!
//! Nodes: their current state is unknown. So everything on them waits as if there were no newer check: their remediations, with
//! their slots, and the pending cleanup.
//!
//! Reports: whether the node is suspended, and its faults, are unknown, so nothing is done on it.
//!
//! `NodeCommand`s: whether a command is active is unknown, so nothing starts on that node.
//!
//! Clocks: while two of them contradict each other, it is unknown what time it is. So all nodes wait like an unreadable one.

use std::collections::BTreeMap;

use super::node::Unreadable;
use super::{Block, NodeContext, Nodes, Requeue};
use crate::blocked::BlockReason;
use crate::plan::Blocked;
use crate::snapshot::{Snapshot, UnreadableRemediation};
use crate::text::short_name;

/// Maximum length of a label value. A label holds the name of the node, shortened where it is longer.
const LABEL: usize = 63;

/// Nodes that unreadable remediations reserve. One without a slot and without the controller's finalizer has nothing left to do.
pub(crate) struct Kept<'a>(BTreeMap<String, Unreadable<'a>>);

impl<'a> Kept<'a> {
    /// Builds the map from the slots, which have the full node names, and from the remediations.
    pub fn of(snapshot: &'a Snapshot) -> Self {
        let slot = |name: &String| snapshot.ledger.as_ref()?.slots.get(name).map(|slot| slot.node.clone());
        let node = |name: &String, remediation: &UnreadableRemediation| {
            slot(name).or_else(|| remediation.node.clone().filter(|_| remediation.is_open))
        };
        let each = snapshot.unreadable.iter();
        let known = each.filter_map(|(name, e)| Some((short_name(&node(name, e)?, LABEL), (name.as_str(), e))));
        Self(known.collect())
    }

    /// The unreadable remediation that reserves the node.
    pub fn on(&self, node: &str) -> Option<Unreadable<'a>> {
        if self.0.is_empty() { None } else { self.0.get(&short_name(node, LABEL)).copied() }
    }
}

/// The message that the Node object, its report, or the `NodeCommand` of the node cannot be read.
pub(crate) fn of_node(node: &NodeContext<'_>) -> Option<String> {
    let name = node.name;
    if let Some(why) = node.report.and_then(|report| report.unreadable.as_ref()) {
        return Some(format!("NodeRuntimeHealth {name} cannot be read ({why}), so nothing is done on the node"));
    }
    if let Some(why) = node.command.and_then(|command| command.unreadable.as_ref()) {
        return Some(format!(
            "NodeCommand {name} cannot be read ({why}): nothing starts on that node until a version runs that can read it, or a \
             person has deleted it (kubectl delete nodecommand {name})"
        ));
    }
    let why = node.view?.unreadable.as_ref()?;
    Some(format!(
        "the Node object of {name} cannot be read ({why}): nothing is done on that node until it can be; see who writes that field \
         (kubectl get node {name} -o yaml --show-managed-fields)"
    ))
}

/// Whether all open work on the node waits because its Node object, or the time, cannot be read.
pub(crate) fn is_frozen(node: &NodeContext<'_>) -> bool {
    node.cluster.snapshot.clock_disputed.is_some() || node.view.is_some_and(|view| view.unreadable.is_some())
}

pub(crate) fn may_begin(node: &NodeContext<'_>) -> Result<(), Block> {
    if let Some(why) = node.cluster.snapshot.clock_disputed.clone().or_else(|| of_node(node)) {
        return Err(Block::new(BlockReason::ActionsDisabled, &why).of_node());
    }
    let Some((name, remediation)) = node.unreadable else { return Ok(()) };
    let message = format!(
        "remediation {name} has node {} and cannot be read by this version of the controller: nothing starts there before a \
         version runs that can read it, or a person has removed it ({})",
        node.name, remediation.why
    );
    Err(Block::new(BlockReason::ActionsDisabled, &message).of_node())
}

/// The blocks to report for the nodes, whether or not a node has a fault. The clocks are reported only where something waits: on all
/// nodes it would be a write to each of them.
pub(crate) fn blocked(nodes: &Nodes<'_>, requeue: &mut Requeue) -> Vec<Blocked> {
    let mut block = |node: &NodeContext<'_>| {
        let is_shown = node.cluster.snapshot.clock_disputed.is_none() || !node.open.is_empty();
        Some(may_begin(node).err().filter(|_| is_shown)?.about(node.name, None, None, requeue))
    };
    nodes.values().filter_map(|node| block(node)).collect()
}
