//! Whether an open remediation has a slot for its actions. No action starts in a remediation whose slot is not in the ledger.
//!
//! The controller takes the slot before it writes the remediation, so a remediation without a slot is rare. It occurs when the
//! creation took so long that the slot was released meanwhile, perhaps to another node.

use std::collections::BTreeMap;

use super::Ctx;
use crate::budget::Slots;
use crate::context::Block;
use crate::plan::BlockReason;
use crate::policy::Mode;
use crate::remediation::Remediation;
use crate::snapshot::Slot;

/// State of the slot of an open remediation in the ledger.
#[derive(Clone, Debug)]
pub(super) enum SlotReservation {
    /// The slot is stored before any other action.
    Made,
    /// Nothing starts and nothing is repeated before the slot is stored.
    Awaited,
    /// Nothing starts and nothing is repeated: this is why the admission policies are not known to be in force.
    NotEnforced(String),
    /// The remediation has executed nothing, and there is no room for it.
    Refused(String),
}

impl SlotReservation {
    /// That of a remediation that begins in this pass, which stores its slot first.
    pub fn of_new(slots: &Slots) -> Self {
        if slots.is_known() { Self::Made } else { Self::Awaited }
    }

    /// Returns the block if the remediation may execute nothing.
    pub fn require(&self) -> Result<(), Block> {
        match self {
            Self::Made => return Ok(()),
            Self::NotEnforced(not_enforced) => return Err(Block::new(BlockReason::AdmissionNotEnforced, not_enforced)),
            Self::Awaited | Self::Refused(_) => {}
        }
        let message = "the ledger of in-flight slots is missing or unreadable, or has no slot for this remediation yet: no action is executed before its slot is stored";
        Err(Block::new(BlockReason::LedgerUnavailable, message))
    }
}

pub(super) fn take(ctx: Ctx<'_>, slots: &mut Slots, remediation: &Remediation) {
    let slot = Slot {
        node: remediation.node.clone(),
        policy: remediation.policy.clone(),
        taken_at: slots.slot_taken_at(&remediation.name, ctx.snapshot.now, ctx.settings.cache_lag),
        kinds: Some(remediation.kinds()),
    };
    slots.take(&remediation.name, slot, remediation.mode);
}

/// The slot state of each open remediation, by name. Remediations without a slot get one where there is room, the oldest first.
pub(super) fn settle<'a>(ctx: Ctx<'a>, slots: &mut Slots) -> BTreeMap<&'a str, SlotReservation> {
    let open = || ctx.nodes.values().flat_map(|node| &node.open).copied();
    if let Some(not_enforced) = slots.not_enforced() {
        return open()
            .map(|remediation| (remediation.name.as_str(), SlotReservation::NotEnforced(not_enforced.to_owned())))
            .collect();
    }
    let mut reservations = BTreeMap::new();
    for remediation in open() {
        // This very pass stores the slot of a remediation that has begun.
        let is_made = slots.holds(&remediation.name) || (slots.is_known() && remediation.was_begun());
        let slot = if is_made { SlotReservation::Made } else { SlotReservation::Awaited };
        reservations.insert(remediation.name.as_str(), slot);
    }
    for name in slots.without_slot() {
        let Some((name, remediation)) = ctx.snapshot.remediations.get_key_value(&name) else { continue };
        if remediation.phase.is_final() {
            continue;
        }
        match room(ctx, slots, remediation) {
            None => {
                let (node_name, policy) = (remediation.node.clone(), remediation.policy.clone());
                let kinds = Some(remediation.kinds());
                slots.take(name, Slot { node: node_name, policy, taken_at: ctx.snapshot.now, kinds }, Mode::Enforce);
            }
            Some(why) => {
                reservations.insert(name, SlotReservation::Refused(why));
            }
        }
    }
    reservations
}

/// The reason why there is no room for one more remediation of that policy on that node, else `None`.
fn room(ctx: Ctx<'_>, slots: &Slots, remediation: &Remediation) -> Option<String> {
    // Without its node or its policy the remediation ends anyway.
    let (node, scope) = ctx.nodes.get(remediation.node.as_str()).zip(ctx.scopes.get(remediation.policy.as_str()))?;
    let kinds =
        || remediation.kinds().into_iter().find_map(|kind| scope.fault_limit_reached(kind, &remediation.node, slots));
    let (_, why) = slots
        .refuse(&remediation.policy, scope.max_in_flight, Mode::Enforce)
        .or_else(|| scope.topology_limit_reached(node, ctx.nodes, slots))
        .or_else(kinds)?;
    Some(format!("it came so late that its slot was released, and nothing was done in it; {why}"))
}
