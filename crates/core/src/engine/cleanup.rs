//! What the controller removes from a node that it has put there, and when.

use super::quarantine::Over;
use super::update::RemediationUpdate;
use super::{Ctx, quarantine};
use crate::context::{Block, NodeContext, Wake};
use crate::moment::since;
use crate::plan::{BlockReason, Effect};
use crate::procedure::{hand_off, pending_reboot};
use crate::remediation::{Marker, Remediation, STOPPED_BY_A_PERSON};

/// Removes the next of these markers of the remediation. Records those of which nothing is left to remove.
pub(super) fn take_back(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    remediation: &mut Remediation,
    which: fn(&Marker) -> bool,
) -> Option<Effect> {
    let owed: Vec<Marker> = remediation.cleanup.owed().filter(|marker| which(marker)).cloned().collect();
    let (gone, left): (Vec<Marker>, Vec<Marker>) =
        owed.into_iter().partition(|marker| marker.is_gone(ctx.cluster, facts, remediation));
    for marker in &gone {
        remediation.cleanup.remove(marker, ctx.snapshot.now);
    }
    let marker = left.into_iter().next()?;
    Some(remove(ctx, facts, &remediation.name, Some(remediation), marker))
}

/// The removal of a marker that names this owner. A cordon goes to the remediation that still needs it.
fn remove(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    owner: &str,
    remediation: Option<&Remediation>,
    marker: Marker,
) -> Effect {
    let successor = || Some(quarantine::successor(ctx, facts, remediation)?.name.clone());
    Effect::Remove {
        remediation: owner.to_owned(),
        node: facts.name.to_owned(),
        successor: marker.is_cordon().then(successor).flatten(),
        marker,
    }
}

/// Removes the markers whose owner annotation no open remediation stands behind. Either a remediation was removed by force, or a
/// person removed the marker, or another tool saved the annotation and put it on a new machine of that name.
pub(super) fn stale_markers(ctx: Ctx<'_>, facts: &NodeContext<'_>, is_slot: impl Fn(&str) -> bool) -> Vec<Effect> {
    let Some(view) = facts.view else { return Vec::new() };
    let is_stale = |marker: &Marker, owner: &str| match ctx.snapshot.remediations.get(owner) {
        // At once: after its record is gone, nothing shows that the annotation is of another machine, or whose marker that is.
        Some(remediation) => !remediation.may_own(marker, &view.uid),
        // The cache may not have seen the remediation yet. With a slot it exists and is only unseen. Without a ledger this is
        // unknown.
        None => ctx.snapshot.ledger.is_some() && !is_slot(owner),
    };
    // Somebody has overwritten the owner annotation of an active remediation with another name. The marker still belongs to the
    // active remediation, and a person has to examine the annotation.
    let is_overwritten = |marker: &Marker, owner: &str| {
        let is_its =
            |open: &&Remediation| open.name != owner && open.node_uid == view.uid && open.owed_since(marker).is_some();
        facts.open.iter().any(is_its)
    };
    let stale = Marker::ON_NODES.into_iter().filter_map(|marker| {
        let owner =
            marker.owner_on(view).filter(|owner| is_stale(&marker, owner) && !is_overwritten(&marker, owner))?;
        Some(remove(ctx, facts, owner, None, marker))
    });
    stale.collect()
}

/// Removes what the remediation did to the node, if no other work is left in it and the policy wants no quarantine.
pub(super) fn clean_up(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    remediation: &mut Remediation,
    wake: &mut Wake,
) -> Option<Effect> {
    if !remediation.phase.is_final() && remediation.has_work() {
        return None;
    }
    // While a remediator works on the node, its markers stay on the node and pods must not run there.
    let first = take_back(ctx, facts, remediation, Marker::is_hand_off)
        .or_else(|| take_back(ctx, facts, remediation, Marker::is_taint));
    if first.is_some() {
        return first;
    }
    let until =
        quarantine::until(ctx, remediation).filter(|until| !remediation.phase.is_final() && *until > ctx.snapshot.now);
    if let Some(until) = until {
        quarantine::contain(ctx, remediation, until, wake);
        return None;
    }
    uncordon(ctx, facts, remediation)
}

/// Uncordons the node, and ends the remediation once no cleanup is pending.
fn uncordon(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation) -> Option<Effect> {
    if pending_reboot::blocks_uncordon(ctx.cluster, facts, remediation).is_some() {
        return None;
    }
    let effect = take_back(ctx, facts, remediation, Marker::is_cordon);
    remediation.conclude(ctx.snapshot.now);
    effect
}

/// Checks a remediation whose node is quarantined: the quarantine continues, or it ends and the cleanup runs.
pub(super) fn watch_quarantine(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    remediation: &Remediation,
    wake: &mut Wake,
) -> RemediationUpdate {
    let mut turn = RemediationUpdate::new(remediation.clone());
    hand_off::note_uncordon(ctx.cluster, facts, &mut turn.remediation);
    quarantine::note_clean(ctx, facts, &mut turn.remediation, wake);
    match quarantine::over(ctx, facts, &turn.remediation, wake) {
        None => return turn,
        // Nothing is left to wait for. The remediation ends like any other resolved one, after the uncordon.
        Some(Over::Resolved) => {}
        Some(Over::Ends(phase, why)) => {
            turn.remediation.phase = phase;
            // The finish time stays that of the steps. A stop by a person counts from now on.
            if why.starts_with(STOPPED_BY_A_PERSON) {
                turn.remediation.finished_at = None;
            }
            turn.remediation.say(&why);
        }
    }
    turn.effect = uncordon(ctx, facts, &mut turn.remediation);
    if turn.effect.is_some() {
        wake.at(ctx.settings.retry);
    }
    note_pending_reboot(ctx, facts, &mut turn, wake);
    turn
}

/// Reports the pending reboot, if there is one.
pub(super) fn note_pending_reboot(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    turn: &mut RemediationUpdate,
    wake: &mut Wake,
) {
    let Some(until) =
        pending_reboot::blocks_uncordon(ctx.cluster, facts, &turn.remediation).filter(|_| turn.effect.is_none())
    else {
        return;
    };
    wake.at(since(until, ctx.snapshot.now));
    let message = pending_reboot::told(&turn.remediation, until);
    turn.block_node(Block::new(BlockReason::InProgress, &message), wake);
}
