//! Taints: when that of a remediation is taken back, and what it means that it is gone.
//!
//! A taint lasts as long as its remediation, and no longer: where a node is to be kept from pods after the end of the ladder, that is
//! what a cordon with `quarantineFor` is for. Only one remediation at a time puts a taint on a node, and only one taint, so none is ever
//! handed on or changed.

use super::evidence::NodeContext;
use super::{Ctx, Effect};
use crate::moment::since;
use crate::policy::Step;
use crate::remediation::Remediation;
use crate::snapshot::NodeView;

/// Takes the taint back, if one is owed. None where there is nothing of ours on the node.
pub(super) fn take_back(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation) -> Option<Effect> {
    if !remediation.cleanup.owes_taint() {
        return None;
    }
    let same_node = facts.view.filter(|view| view.uid == remediation.node_uid);
    match same_node {
        Some(view) if view.tainted_by.as_ref().is_none_or(|mark| mark.remediation == remediation.name) => {
            Some(Effect::Untaint { remediation: remediation.name.clone(), node: remediation.node.clone() })
        }
        // Another node, or somebody else's mark: nothing of ours is left there.
        _ => {
            remediation.cleanup.untainted_at = Some(ctx.snapshot.now);
            None
        }
    }
}

/// Whether the node shows the very taint of this remediation: others with our key stand for nothing.
fn is_on(view: &NodeView, remediation: &Remediation) -> bool {
    let mark = view.tainted_by.as_ref().filter(|mark| mark.remediation == remediation.name);
    let effect = mark.and_then(|mark| mark.effect).or_else(|| remediation.taint());
    effect.is_some_and(|effect| view.carries(effect))
}

/// Whether somebody else took the taint off the node. Our mark without it is a sure sign; a node without either only after the
/// time that a cache may be behind.
pub(super) fn was_removed(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &Remediation) -> bool {
    let Some(view) = facts.view else { return false };
    // With nothing left to do it was to be taken back anyway: by us, perhaps, and only the record of it is missing.
    if !remediation.cleanup.owes_taint() || is_on(view, remediation) || !remediation.wants_its_marks() {
        return false;
    }
    let Some(executed_at) = remediation.tainted_at() else { return false };
    match &view.tainted_by {
        Some(mark) => mark.remediation == remediation.name,
        None => since(ctx.snapshot.now, executed_at) >= ctx.settings.cache_lag,
    }
}

/// Notes that the taint of a remediation with nothing left to do is off its node: by us, and only the record of it is missing. What
/// joins the remediation after that must not find a taint owed that is not there, and take it for a person's no. False as long as
/// the view may be one of before the taint.
pub(super) fn record_removed(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation) -> bool {
    let Some(view) = facts.view.filter(|view| view.uid == remediation.node_uid) else { return true };
    let is_marked = view.tainted_by.as_ref().is_some_and(|mark| mark.remediation == remediation.name);
    if !remediation.cleanup.owes_taint() || remediation.wants_its_marks() || is_marked || is_on(view, remediation) {
        return true;
    }
    let Some(executed_at) = remediation.tainted_at() else { return true };
    let is_sure = since(ctx.snapshot.now, executed_at) >= ctx.settings.cache_lag;
    if is_sure {
        remediation.cleanup.untainted_at = Some(ctx.snapshot.now);
    }
    is_sure
}

/// A mark that no open remediation stands behind, also one that another tool has saved and put on a new machine of that name.
pub(super) fn stale_marker(ctx: Ctx<'_>, facts: &NodeContext<'_>, is_slot: impl Fn(&str) -> bool) -> Option<Effect> {
    let view = facts.view?;
    let mark = view.tainted_by.as_ref()?;
    // Somebody has written another name over the mark of a remediation that is at work: the taint is still that one's, and the mark
    // is for people to look at.
    let is_overwritten = |open: &&Remediation| {
        open.name != mark.remediation
            && open.node_uid == view.uid
            && open.cleanup.owes_taint()
            && open.tainted_at().is_some()
    };
    if facts.open.iter().copied().any(|open| is_overwritten(&open)) {
        return None;
    }
    let is_stray = match ctx.snapshot.remediations.get(&mark.remediation) {
        Some(remediation) => !remediation.may_own_taint_of(&view.uid),
        // Perhaps the cache has not seen it yet: with a slot it is only unseen, without a ledger nobody knows.
        None => ctx.snapshot.ledger.is_some() && !is_slot(&mark.remediation),
    };
    is_stray.then(|| Effect::Untaint { remediation: mark.remediation.clone(), node: facts.name.to_owned() })
}

/// Why a taint is not put on a node that has a softer one of the same remediation: a remediation puts on one.
pub(super) fn skip_reason(remediation: &Remediation, step: &Step) -> Option<String> {
    let wanted = step.action.taint()?;
    let on = remediation.taint().filter(|on| remediation.cleanup.owes_taint() && wanted.is_stricter_than(*on))?;
    Some(format!(
        "the node has the taint of this remediation with {} already, and a remediation puts on one: {} is not put in its place",
        on.as_str(),
        wanted.as_str()
    ))
}
