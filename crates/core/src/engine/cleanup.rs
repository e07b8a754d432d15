//! What the controller removes from a node that it has put there, and when.

use super::quarantine::Over;
use super::update::RemediationUpdate;
use super::{Ctx, quarantine};
use crate::context::{Block, NodeContext, Wake};
use crate::moment::since;
use crate::plan::{BlockReason, Effect};
use crate::procedure::{cordon, hand_off, pending_reboot, taint};
use crate::remediation::{Remediation, STOPPED_BY_A_PERSON};

/// Records the markers that are already off the node of a remediation with no work left. The controller removed them, and only
/// the record of that is missing.
/// A fault that joins the remediation later must not find a pending cleanup of a missing marker and mistake that for a stop by a
/// person.
/// Returns false while this is unknown, because the view may be older than the markers. Then no fault joins.
pub(super) fn record_removed_markers(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation) -> bool {
    cordon::record_removed(ctx.cluster, facts, remediation) & taint::record_removed(ctx.cluster, facts, remediation)
}

/// Cleans up what the remediation did to the node, if no other work is left in it and the policy wants no quarantine.
pub(super) fn put_back(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    remediation: &mut Remediation,
    wake: &mut Wake,
) -> Option<Effect> {
    if !remediation.phase.is_final() && remediation.has_work() {
        return None;
    }
    // While a remediator works on the node, its markers stay on the node and pods must not run there.
    if let Some(back) = hand_off::take_back(ctx.cluster, remediation) {
        return Some(back);
    }
    if let Some(back) = taint::take_back(ctx.cluster, facts, remediation) {
        return Some(back);
    }
    let until =
        quarantine::until(ctx, remediation).filter(|until| !remediation.phase.is_final() && *until > ctx.snapshot.now);
    if let Some(until) = until {
        quarantine::contain(ctx, remediation, until, wake);
        return None;
    }
    cleanup(ctx, facts, remediation)
}

/// Uncordons the node, and ends the remediation once no cleanup is pending.
pub(super) fn cleanup(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation) -> Option<Effect> {
    let mut effect = None;
    if pending_reboot::blocks_uncordon(ctx.cluster, facts, remediation).is_some() {
        return None;
    }
    if remediation.cleanup.owes_cordon() {
        let same_node = facts.view.filter(|view| view.uid == remediation.node_uid);
        match same_node {
            Some(view) if view.cordoned_by.as_deref().is_none_or(|mark| mark == remediation.name) => {
                let successor =
                    quarantine::successor(ctx, facts, Some(remediation)).map(|successor| successor.name.clone());
                effect = Some(Effect::Uncordon {
                    remediation: remediation.name.clone(),
                    node: remediation.node.clone(),
                    successor,
                });
            }
            // Another node, or another owner annotation: nothing of this remediation is left there.
            _ => remediation.cleanup.uncordoned_at = Some(ctx.snapshot.now),
        }
    }
    remediation.conclude(ctx.snapshot.now);
    effect
}
/// Removes an owner annotation that no open remediation stands behind. Either a remediation was removed by force, or a person
/// uncordoned the node, or another tool saved the annotation and put it on a new machine of that name. In the last case only the
/// annotation is removed.
pub(super) fn stray_mark(ctx: Ctx<'_>, facts: &NodeContext<'_>, is_slot: impl Fn(&str) -> bool) -> Option<Effect> {
    let view = facts.view?;
    let mark = view.cordoned_by.as_deref()?;
    cordon::is_stray(ctx.cluster, view, mark, is_slot).then(|| {
        let successor = quarantine::successor(ctx, facts, None).map(|successor| successor.name.clone());
        Effect::Uncordon { remediation: mark.to_owned(), node: facts.name.to_owned(), successor }
    })
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
    turn.effect = cleanup(ctx, facts, &mut turn.remediation);
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
