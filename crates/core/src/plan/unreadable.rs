//! Remediations that are there and that this version cannot read, as after a newer one was taken back. Their steps may be under way and
//! their marks on the node: so each keeps its slot, its Job, its marks and its node, and everything else goes on.
//!
//! And Nodes that are there and whose objects cannot be read. What stands on them now nobody knows, so all of it waits as if nobody had
//! looked since: their remediations, with their slots, and what is to be put back there.
//!
//! And `NodeCommand`s that cannot be read: whether an order stands nobody knows, so nothing is begun on that node.

use std::collections::BTreeMap;

use super::evidence::{NodeContext, Nodes};
use super::{Block, BlockReason, Blocked, Wake};
use crate::snapshot::{Snapshot, UnreadableRemediation};
use crate::text::short_name;

/// Longest value of a label: a node's name is known by its label, shortened where it is longer.
const LABEL: usize = 63;

/// Such a remediation, with its name.
pub(super) type Unreadable<'a> = (&'a str, &'a UnreadableRemediation);

/// The nodes that such remediations have to themselves. One without a slot and without our finalizer has nothing left to do.
pub(super) struct Kept<'a>(BTreeMap<String, Unreadable<'a>>);

impl<'a> Kept<'a> {
    /// By the slots, which name the nodes in full, and by what the remediations say.
    pub fn of(snapshot: &'a Snapshot) -> Self {
        let slot = |name: &String| snapshot.ledger.as_ref()?.slots.get(name).map(|slot| slot.node.clone());
        let node = |name: &String, remediation: &UnreadableRemediation| {
            slot(name).or_else(|| remediation.node.clone().filter(|_| remediation.is_open))
        };
        let each = snapshot.unreadable.iter();
        let known = each.filter_map(|(name, e)| Some((short_name(&node(name, e)?, LABEL), (name.as_str(), e))));
        Self(known.collect())
    }

    /// The remediation that has the node.
    pub fn on(&self, node: &str) -> Option<Unreadable<'a>> {
        if self.0.is_empty() { None } else { self.0.get(&short_name(node, LABEL)).copied() }
    }
}

/// That the node's object, or the command to it, cannot be read, in words.
pub(super) fn of_node(facts: &NodeContext<'_>) -> Option<String> {
    let name = facts.name;
    if let Some(why) = facts.command.and_then(|command| command.unreadable.as_ref()) {
        return Some(format!(
            "NodeCommand {name} cannot be read ({why}): nothing is begun on that node until a version runs that can read it, or a \
             person has deleted it (kubectl delete nodecommand {name})"
        ));
    }
    let why = facts.view?.unreadable.as_ref()?;
    Some(format!(
        "the Node object of {name} cannot be read ({why}): nothing is done on that node until it can be; see who writes that field \
         (kubectl get node {name} -o yaml --show-managed-fields)"
    ))
}

/// Whether all that is open on the node waits, since its object cannot be read.
pub(super) fn is_frozen(facts: &NodeContext<'_>) -> bool {
    facts.view.is_some_and(|view| view.unreadable.is_some())
}

/// Whether anything may be begun on the node.
pub(super) fn may_begin(facts: &NodeContext<'_>) -> Result<(), Block> {
    if let Some(why) = of_node(facts) {
        return Err(Block::new(BlockReason::ActionsDisabled, &why));
    }
    let Some((name, remediation)) = facts.unreadable else { return Ok(()) };
    let message = format!(
        "remediation {name} has node {} and cannot be read by this version of the controller: nothing is begun there before a \
         version runs that can read it, or a person has removed it ({})",
        facts.name, remediation.why
    );
    Err(Block::new(BlockReason::ActionsDisabled, &message))
}

/// What is told of the nodes, whether or not there is a fault to heal.
pub(super) fn told(nodes: &Nodes<'_>, wake: &mut Wake) -> Vec<Blocked> {
    let mut block =
        |facts: &NodeContext<'_>| Some(may_begin(facts).err()?.about(facts.name.to_owned(), None, None, wake));
    nodes.values().filter_map(|facts| block(facts)).collect()
}
