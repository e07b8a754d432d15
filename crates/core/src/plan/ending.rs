//! How a remediation comes to an end before its faults are healed, and how what it did to the node is put back.

use super::evidence::NodeContext;
use super::{Ctx, Effect, Wake, cause, hand_off, pending_reboot, quarantine, readiness, taint};
use crate::moment::since;
use crate::policy::Applicability;
use crate::policy::{ActionType, Mode, Policy};
use crate::remediation::{Phase, Remediation, Resolution, STOPPED_BY_A_PERSON, StepState};
use crate::snapshot::NodeView;

/// The policy in whose name a remediation acts, if it is still there.
pub(super) fn policy_of<'a>(ctx: Ctx<'a>, remediation: &Remediation) -> Option<&'a Policy> {
    ctx.policies.get(remediation.policy.as_str()).copied()
}

/// Why the remediation ends at once, whatever is under way.
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
    if policy_of(ctx, remediation).is_none() {
        let is_there = ctx.snapshot.unusable_policies.contains(&remediation.policy);
        let how = if is_there { "not valid, and what it said before is not known" } else { "gone" };
        return Some(format!("policy {} is {how}", remediation.policy));
    }
    // A dry run that was not written to its end keeps nobody from the node.
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

/// Whether somebody else made the node schedulable again. Our mark on a schedulable node is a sure sign; a node
/// without mark and cordon only after the time that a cache may be behind.
pub(super) fn was_uncordoned(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &Remediation) -> bool {
    let Some(view) = facts.view else { return false };
    // With nothing left to do it was to be put back anyway: by us, perhaps, and only the record of it is missing.
    let is_wanted = remediation.is_quarantined() || remediation.wants_its_marks();
    // It is about to be cordoned, anew after a remediator or the undo had opened it.
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

/// Notes what is off the node already of a remediation with nothing left to do: taken back by us, and only the record of it is
/// missing. What joins the remediation after that must not find something owed that is not there, and take it for a person's no.
/// False as long as nobody knows, since the view may be one of before the marks: then nothing joins.
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

/// Why the remediation takes no further step, once the one under way is at its end.
pub(super) fn must_stop(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &Remediation) -> Option<String> {
    let gives_way = || {
        let policy = policy_of(ctx, remediation).filter(|_| remediation.manual.is_none())?;
        cause::gives_way(ctx, facts, policy, remediation)
    };
    readiness::leave_alone(facts).or_else(|| policy_stops(ctx, facts, remediation)).or_else(gives_way)
}

/// The same, by the policy alone.
pub(super) fn policy_stops(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &Remediation) -> Option<String> {
    let policy = policy_of(ctx, remediation)?;
    if let Some(why) = stopped_reason(policy) {
        return Some(why);
    }
    if !facts.policies.iter().any(|selecting| selecting.name == policy.name) {
        return Some(format!("policy {} does not select node {} any more", policy.name, remediation.node));
    }
    let standing = remediation.faults.iter().filter(|fault| fault.state == Resolution::Open);
    for seen in standing.filter_map(|fault| facts.find(&fault.id)) {
        if let Some(now) = facts.other_for(&seen.fault, policy) {
            return Some(format!(
                "policy {} has taken over {} of node {}",
                now.name, seen.fault.kind, remediation.node
            ));
        }
    }
    // Doubt ends nothing; what is known by now does, and the rule that it is for has its turn.
    let open = remediation.faults.iter().filter(|fault| fault.state == Resolution::Open);
    let ruled = open.filter_map(|fault| Some((facts.find(&fault.id)?.fault.as_ref(), policy.rule(&fault.rule)?)));
    for (fault, rule) in ruled {
        let (what, name) = (format!("{} ({})", fault.kind, fault.subject), &policy.name);
        match policy.still_means(rule, fault, &facts.around) {
            Applicability::Other(other) => {
                let (other, rule) = (&other.name, &rule.name);
                return Some(format!(
                    "{what} is for rule {other} of policy {name} by now, which goes before rule {rule}"
                ));
            }
            Applicability::No(why) => {
                return Some(format!("rule {} of policy {name} is not for {what} any more: {why}", rule.name));
            }
            Applicability::Yes | Applicability::Perhaps(..) => {}
        }
    }
    let lost = remediation.faults.iter().find(|fault| policy.rule(&fault.rule).is_none())?;
    Some(format!("policy {} has no rule {} any more", policy.name, lost.rule))
}

/// That a person has stopped the policy as a whole.
pub(super) fn stopped_reason(policy: &Policy) -> Option<String> {
    if policy.suspend {
        return Some(format!("policy {} is suspended", policy.name));
    }
    (policy.mode != Mode::Enforce).then(|| format!("policy {} is a dry run now", policy.name))
}

/// Stops the remediation; what it did to the node is still put back.
pub(super) fn cancel(ctx: Ctx<'_>, remediation: &mut Remediation, why: &str) {
    if let Some(step) = remediation.current_step_mut() {
        step.finish(StepState::Cancelled, why, ctx.snapshot.now);
    }
    // Who suspends everything says nothing about the remediator: it gets the node again.
    if ctx.snapshot.suspended.is_none() {
        hand_off::give_up(remediation);
    }
    remediation.phase = Phase::Cancelled;
    remediation.say(why);
}

/// Puts back what the remediation did to the node, where nothing else is left to do in it and the policy does not want it kept.
pub(super) fn put_back(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    remediation: &mut Remediation,
    wake: &mut Wake,
) -> Option<Effect> {
    if !remediation.phase.is_final() && remediation.has_work() {
        return None;
    }
    // As long as a remediator is at it, its marks are on the node, and pods have no business there.
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

/// Takes the cordon back, and ends the remediation once nothing is owed.
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
            // Another node, or somebody else's mark: nothing of ours is left there.
            _ => remediation.cleanup.uncordoned_at = Some(ctx.snapshot.now),
        }
    }
    remediation.conclude(ctx.snapshot.now);
    effect
}

/// A mark that no open remediation stands behind: what a forcibly removed remediation left, or a person's uncordon; also one that another
/// tool has saved and put on a new machine of that name, where the mark is taken off alone.
pub(super) fn stray_mark(ctx: Ctx<'_>, facts: &NodeContext<'_>, is_slot: impl Fn(&str) -> bool) -> Option<Effect> {
    let view = facts.view?;
    let mark = view.cordoned_by.as_deref()?;
    is_stray(ctx, view, mark, is_slot).then(|| {
        let successor = quarantine::successor(ctx, facts, None).map(|successor| successor.name.clone());
        Effect::Uncordon { remediation: mark.to_owned(), node: facts.name.to_owned(), successor }
    })
}

/// Whether no remediation stands behind a mark on the node.
fn is_stray(ctx: Ctx<'_>, view: &NodeView, mark: &str, is_slot: impl Fn(&str) -> bool) -> bool {
    match ctx.snapshot.remediations.get(mark) {
        // At once: by the time its record is gone nobody could tell any more that it is of another machine, and whose cordon that is.
        Some(remediation) => !remediation.is_live() || remediation.node_uid != view.uid,
        // Perhaps the cache has not seen it yet: with a slot it is only unseen, without a ledger nobody knows.
        None => ctx.snapshot.ledger.is_some() && !is_slot(mark),
    }
}
