//! What the controller removes from a node that it has put there, and when.

use super::quarantine;
use super::quarantine::QuarantineEnd;
use super::slot::SlotReservation;
use super::update::RemediationUpdate;
use crate::context::{Block, NodeContext};
use crate::moment::since;
use crate::plan::{BlockReason, Effect};
use crate::procedure::hand_off;
use crate::procedure::pending_operation::PendingOperation;
use crate::remediation::{CANCELLED_PREFIX, Marker, Remediation};

/// Removes the next of these markers of the remediation. Records those of which nothing is left to remove.
pub(super) fn remove_next_marker(
    node: &NodeContext<'_>,
    remediation: &mut Remediation,
    which: fn(&Marker) -> bool,
) -> Option<Effect> {
    let owed: Vec<Marker> = remediation.cleanup.owed().filter(|marker| which(marker)).cloned().collect();
    let (gone, left): (Vec<Marker>, Vec<Marker>) =
        owed.into_iter().partition(|marker| marker.is_gone(node, remediation));
    for marker in &gone {
        remediation.cleanup.remove(marker, node.cluster.snapshot.now);
    }
    let marker = left.into_iter().next()?;
    Some(remove(node, &remediation.name, Some(remediation), marker))
}

/// The removal of a marker that names this owner. A cordon goes to the remediation that still needs it.
fn remove(node: &NodeContext<'_>, owner: &str, remediation: Option<&Remediation>, marker: Marker) -> Effect {
    let successor = || Some(quarantine::successor(node, remediation)?.name.clone());
    Effect::Remove {
        remediation: owner.to_owned(),
        node: node.name.to_owned(),
        successor: (marker == Marker::Cordon).then(successor).flatten(),
        marker,
    }
}

/// Removes the markers whose owner annotation no open remediation stands behind. Either a remediation was removed by force, or a
/// person removed the marker, or another tool saved the annotation and put it on a new machine of that name.
pub(super) fn stale_markers(node: &NodeContext<'_>, is_slot: impl Fn(&str) -> bool) -> Vec<Effect> {
    let Some(view) = node.view else { return Vec::new() };
    let is_stale = |marker: &Marker, owner: &str| match node.cluster.snapshot.remediations.get(owner) {
        // At once: after its record is gone, nothing shows that the annotation is of another machine, or whose marker that is.
        Some(remediation) => !remediation.may_own(marker, &view.uid),
        // The cache may not have seen the remediation yet. With a slot it exists and is only unseen. Without a ledger this is
        // unknown.
        None => node.cluster.snapshot.ledger.is_some() && !is_slot(owner),
    };
    // Somebody has overwritten the owner annotation of an active remediation with another name. The marker still belongs to the
    // active remediation, and a person has to examine the annotation.
    let is_overwritten = |marker: &Marker, owner: &str| {
        let is_its = |open: &&Remediation| {
            open.name != owner && open.node_uid == view.uid && open.pending_since(marker).is_some()
        };
        node.open.iter().any(is_its)
    };
    // The cordon goes first: a taint that cannot be removed must not keep it there.
    let stale = Marker::ON_NODES.into_iter().rev().filter_map(|marker| {
        let owner =
            marker.owner_on(view).filter(|owner| is_stale(&marker, owner) && !is_overwritten(&marker, owner))?;
        Some(remove(node, owner, None, marker))
    });
    stale.collect()
}

/// Removes what the remediation did to the node, if no other work is left in it and the policy wants no quarantine.
pub(super) fn clean_up(node: &NodeContext<'_>, update: &mut RemediationUpdate) -> Option<Effect> {
    let remediation = &mut update.remediation;
    if !remediation.phase.is_final() && remediation.has_work() {
        return None;
    }
    // While a remediator works on the node, or its executor may, its markers stay on the node and pods must not run there.
    if let Some(back) = remove_next_marker(node, remediation, |marker| marker.hand_off().is_some()) {
        return Some(back);
    }
    if PendingOperation::of(node, remediation).is_some() {
        return None;
    }
    if let Some(untaint) = remove_next_marker(node, remediation, |marker| *marker == Marker::Taint) {
        return Some(untaint);
    }
    let until = quarantine::until(node, remediation)
        .filter(|until| !remediation.phase.is_final() && *until > node.cluster.snapshot.now);
    if let Some(until) = until {
        quarantine::begin_quarantine(node, update, until);
        return None;
    }
    uncordon(node, remediation)
}

/// Uncordons the node, and ends the remediation once no cleanup is pending.
fn uncordon(node: &NodeContext<'_>, remediation: &mut Remediation) -> Option<Effect> {
    let effect = remove_next_marker(node, remediation, |marker| *marker == Marker::Cordon);
    remediation.conclude(node.cluster.snapshot.now);
    effect
}

/// Checks a remediation whose node is quarantined: the quarantine continues, or it ends and the cleanup runs.
pub(super) fn watch_quarantine(node: &NodeContext<'_>, remediation: &Remediation) -> RemediationUpdate {
    // It begins no step, so it needs no slot.
    let mut update = RemediationUpdate::new(remediation.clone(), SlotReservation::Awaited);
    hand_off::note_uncordon(node, &mut update.remediation);
    quarantine::note_clean(node, &mut update.remediation, &mut update.requeue);
    match quarantine::quarantine_end(node, &update.remediation, &mut update.requeue) {
        None => return update,
        // Nothing is left to wait for. The remediation ends like any other resolved one, after the uncordon.
        Some(QuarantineEnd::Resolved) => {}
        Some(QuarantineEnd::Ends(phase, why)) => {
            update.remediation.phase = phase;
            // The finish time stays that of the steps. A stop by a person counts from now on.
            if why.starts_with(CANCELLED_PREFIX) {
                update.remediation.finished_at = None;
            }
            update.remediation.say(&why);
        }
    }
    if PendingOperation::of(node, &update.remediation).is_none() {
        update.effect = uncordon(node, &mut update.remediation);
    }
    if update.effect.is_some() {
        update.requeue.after(node.cluster.settings.retry);
    }
    note_pending_operation(node, &mut update);
    update
}

pub(super) fn note_pending_operation(node: &NodeContext<'_>, update: &mut RemediationUpdate) {
    let pending = PendingOperation::of(node, &update.remediation).filter(|_| update.effect.is_none());
    let Some(pending) = pending else { return };
    let (until, message) = (pending.until, pending.message());
    update.requeue.after(since(until, node.cluster.snapshot.now));
    update.block_node(Block::new(BlockReason::InProgress, &message));
}
