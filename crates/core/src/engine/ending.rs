//! How a remediation ends before its faults are resolved, and how the controller cleans up what it did to the node.

use super::{Ctx, cause, hand_off, pending_reboot, quarantine, taint};
use crate::context::{NodeContext, Wake, exclusion, of_policy};
use crate::moment::since;
use crate::plan::Effect;
use crate::policy::{ActionType, Mode};
use crate::remediation::{Phase, Remediation, STOPPED_BY_A_PERSON, StepState};
use crate::snapshot::NodeView;

/// Why the remediation ends at once, whatever is in progress.
pub(super) fn must_end(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &Remediation) -> Option<String> {
    let Some(view) = facts.view else {
        return Some(format!("node {} is gone{}", remediation.node, hand_off::on_the_way(ctx, remediation)));
    };
    if view.uid != remediation.node_uid {
        let how = hand_off::on_the_way(ctx, remediation);
        return Some(format!("node {} was replaced by another one of the same name{how}", remediation.node));
    }
    if let Some(cancel) = &remediation.cancel {
        return Some(format!("{STOPPED_BY_A_PERSON}cancelled {}", cancel.told()));
    }
    if remediation.deleting {
        return Some(format!("{STOPPED_BY_A_PERSON}the remediation was deleted"));
    }
    if remediation.mode == Mode::DryRun {
        return Some("a simulated remediation that was not written to its end".to_owned());
    }
    if of_policy::policy_of(ctx.cluster, remediation).is_none() {
        let is_there = ctx.snapshot.unusable_policies.contains(&remediation.policy);
        let how = if is_there { "not valid, and what it said before is not known" } else { "gone" };
        return Some(format!("policy {} is {how}", remediation.policy));
    }
    // A dry run that was not written to its end blocks no other remediation of the node.
    let first = facts.open.iter().find(|open| !open.phase.is_final() && open.mode == Mode::Enforce);
    if !remediation.phase.is_final() && first.is_some_and(|first| first.name != remediation.name) {
        return Some(format!("another remediation of node {} is open", remediation.node));
    }
    if taint::was_removed(ctx, facts, remediation) {
        return Some(format!("{STOPPED_BY_A_PERSON}a person removed our taint from node {}", remediation.node));
    }
    was_uncordoned(ctx, facts, remediation)
        .then(|| format!("{STOPPED_BY_A_PERSON}a person uncordoned node {}", remediation.node))
}

/// Whether somebody else made the node schedulable again. Our owner annotation on a schedulable node is proof. A node without
/// annotation and cordon is proof only after the time that a cache may lag.
pub(super) fn was_uncordoned(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &Remediation) -> bool {
    let Some(view) = facts.view else { return false };
    // With no work left, the cordon was due for cleanup anyway. The controller may have removed it, and only the record of that
    // is missing.
    let is_wanted = remediation.is_quarantined() || remediation.wants_its_marks();
    // The step is about to cordon the node, perhaps again after a remediator or the cleanup uncordoned it.
    let is_cordoning = remediation.current_step().is_some_and(|step| step.action == ActionType::Cordon);
    if !remediation.cleanup.owes_cordon() || view.unschedulable || !is_wanted || is_cordoning {
        return false;
    }
    let Some(executed_at) = remediation.cordoned_at() else { return false };
    match view.cordoned_by.as_deref() {
        Some(mark) => mark == remediation.name,
        None => since(ctx.snapshot.now, executed_at) >= ctx.settings.cache_lag,
    }
}

/// Records the markers that are already off the node of a remediation with no work left. The controller removed them, and only
/// the record of that is missing.
/// A fault that joins the remediation later must not find a pending cleanup of a missing marker and mistake that for a stop by a
/// person.
/// Returns false while this is unknown, because the view may be older than the markers. Then no fault joins.
pub(super) fn record_removed_markers(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation) -> bool {
    record_removed(ctx, facts, remediation) & taint::record_removed(ctx, facts, remediation)
}

/// The same for the cordon alone.
fn record_removed(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation) -> bool {
    let Some(view) = facts.view.filter(|view| view.uid == remediation.node_uid) else { return true };
    if !remediation.cleanup.owes_cordon()
        || remediation.wants_its_marks()
        || view.unschedulable
        || view.cordoned_by.is_some()
    {
        return true;
    }
    let Some(executed_at) = remediation.cordoned_at() else { return true };
    let is_sure = since(ctx.snapshot.now, executed_at) >= ctx.settings.cache_lag;
    if is_sure {
        remediation.cleanup.uncordoned_at = Some(ctx.snapshot.now);
    }
    is_sure
}

/// Why the remediation takes no further step after the current one has ended.
pub(super) fn must_stop(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &Remediation) -> Option<String> {
    let gives_way = || {
        let policy = of_policy::policy_of(ctx.cluster, remediation).filter(|_| remediation.manual.is_none())?;
        cause::gives_way(ctx, facts, policy, remediation)
    };
    exclusion::leave_alone(facts)
        .or_else(|| of_policy::policy_stops(ctx.cluster, facts, remediation))
        .or_else(gives_way)
}

/// Stops the remediation. The cleanup of the node still runs.
pub(super) fn cancel(ctx: Ctx<'_>, remediation: &mut Remediation, why: &str) {
    if let Some(step) = remediation.current_step_mut() {
        step.finish(StepState::Cancelled, why, ctx.snapshot.now);
    }
    // A suspension of all remediation says nothing about the remediator: it gets the node again.
    if ctx.snapshot.suspended.is_none() {
        hand_off::give_up(remediation);
    }
    remediation.phase = Phase::Cancelled;
    remediation.say(why);
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
    if let Some(back) = hand_off::take_back(ctx, remediation) {
        return Some(back);
    }
    if let Some(back) = taint::take_back(ctx, facts, remediation) {
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
    if pending_reboot::blocks_uncordon(ctx, facts, remediation).is_some() {
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
    is_stray(ctx, view, mark, is_slot).then(|| {
        let successor = quarantine::successor(ctx, facts, None).map(|successor| successor.name.clone());
        Effect::Uncordon { remediation: mark.to_owned(), node: facts.name.to_owned(), successor }
    })
}

/// Whether an owner annotation is stale: no remediation stands behind it.
fn is_stray(ctx: Ctx<'_>, view: &NodeView, mark: &str, is_slot: impl Fn(&str) -> bool) -> bool {
    match ctx.snapshot.remediations.get(mark) {
        // At once: after its record is gone, nothing shows that the annotation is of another machine, or whose cordon that is.
        Some(remediation) => !remediation.is_live() || remediation.node_uid != view.uid,
        // The cache may not have seen the remediation yet. With a slot it exists and is only unseen. Without a ledger this is
        // unknown.
        None => ctx.snapshot.ledger.is_some() && !is_slot(mark),
    }
}
