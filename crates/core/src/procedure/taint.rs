//! `Taint`: when the controller puts its taint on a node, when it removes the taint, and what a missing taint means.
//!
//! A taint lasts as long as its remediation, and no longer. A cordon with `quarantineFor` keeps pods away from a node after the
//! last step of the rule. Only one remediation at a time puts a taint on a node, and only one taint. So a taint is never handed
//! over or changed.

use super::{AttemptContext, Procedure, StepContext};
use crate::action::{ActionType, Taint};
use crate::context::{Block, ClusterContext, NodeContext};
use crate::fault::Fault;
use crate::moment::since;
use crate::plan::{Effect, Operation};
use crate::remediation::{Executor, Remediation, StepRecord};
use crate::snapshot::NodeView;

impl Procedure for Taint {
    fn addresses(&self, fault: &Fault, _: &NodeContext<'_>) -> Result<(), &'static str> {
        let remedy = &fault.kind.spec().remedy;
        if remedy.new_pod.is_ok() && self.effect.repels_daemon_sets() {
            return Err(
                "with NoSchedule no successor of a DaemonSet's pod would come to the node, as one comes with PreferNoSchedule",
            );
        }
        remedy.fewer_pods
    }

    fn is_done(&self, remediation: &Remediation) -> bool {
        // The record has to say that a stricter taint was wanted.
        remediation.marked_at(ActionType::Taint).is_some() && self.softer(remediation).is_none()
    }

    /// The node has a softer taint of the same remediation, which puts on one taint.
    fn skip_reason(&self, _: ClusterContext<'_>, _: &NodeContext<'_>, remediation: &Remediation) -> Option<String> {
        self.softer(remediation)
    }

    fn admit(&self, _: &StepContext<'_>) -> Result<Executor, Block> {
        Ok(Executor::Controller)
    }

    fn plan_cleanup(&self, remediation: &mut Remediation, _: &StepRecord) {
        (remediation.cleanup.tainted, remediation.cleanup.untainted_at) = (true, None);
    }

    fn operation(&self, _: &AttemptContext<'_>, _: &Fault) -> Option<Operation> {
        Some(Operation::Taint(self.effect))
    }
}

impl Taint {
    fn softer(self, remediation: &Remediation) -> Option<String> {
        let wanted = self.effect;
        let on = remediation.taint().filter(|on| remediation.cleanup.owes_taint() && wanted.is_stricter_than(*on))?;
        Some(format!(
            "the node has the taint of this remediation with {} already, and a remediation puts on one: {} is not put in its place",
            on.as_str(),
            wanted.as_str()
        ))
    }
}

/// Removes the taint, if its cleanup is pending. `None` where the node has no taint of this remediation.
pub(crate) fn take_back(
    ctx: ClusterContext<'_>,
    facts: &NodeContext<'_>,
    remediation: &mut Remediation,
) -> Option<Effect> {
    if !remediation.cleanup.owes_taint() {
        return None;
    }
    let same_node = facts.view.filter(|view| view.uid == remediation.node_uid);
    match same_node {
        Some(view) if view.tainted_by.as_ref().is_none_or(|mark| mark.remediation == remediation.name) => {
            Some(Effect::Untaint { remediation: remediation.name.clone(), node: remediation.node.clone() })
        }
        // It is another node, or the owner annotation of somebody else: no taint of this remediation is left there.
        _ => {
            remediation.cleanup.untainted_at = Some(ctx.snapshot.now);
            None
        }
    }
}

/// Whether the node has the very taint of this remediation. Other taints with the controller's key prove nothing.
fn is_on(view: &NodeView, remediation: &Remediation) -> bool {
    let mark = view.tainted_by.as_ref().filter(|mark| mark.remediation == remediation.name);
    let effect = mark.and_then(|mark| mark.effect).or_else(|| remediation.taint());
    effect.is_some_and(|effect| view.carries(effect))
}

/// Whether somebody else removed the taint from the node. The owner annotation without the taint is proof. A node without both
/// counts only after the time by which the cache may lag.
pub(crate) fn was_removed(ctx: ClusterContext<'_>, facts: &NodeContext<'_>, remediation: &Remediation) -> bool {
    let Some(view) = facts.view else { return false };
    // With nothing left to do, the taint was to be removed anyway. Perhaps the controller removed it, and only the record of it
    // is missing.
    if !remediation.cleanup.owes_taint() || is_on(view, remediation) || !remediation.wants_its_marks() {
        return false;
    }
    let Some(executed_at) = remediation.tainted_at() else { return false };
    match &view.tainted_by {
        Some(mark) => mark.remediation == remediation.name,
        None => since(ctx.snapshot.now, executed_at) >= ctx.settings.cache_lag,
    }
}

/// Records that the taint is gone from the node when its remediation has nothing left to do: the controller removed it, and only
/// the record of it is missing. Else a fault that joins the remediation later would find a pending cleanup without a taint, and
/// that would count as a removal by a person. Returns false while the view of the node may be older than the taint.
pub(crate) fn record_removed(ctx: ClusterContext<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation) -> bool {
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

/// Removes the taint whose owner annotation belongs to no open remediation. The annotation may also come from another tool that
/// has saved it and put it on a new machine with the same name.
pub(crate) fn stale_marker(
    ctx: ClusterContext<'_>,
    facts: &NodeContext<'_>,
    is_slot: impl Fn(&str) -> bool,
) -> Option<Effect> {
    let view = facts.view?;
    let mark = view.tainted_by.as_ref()?;
    // Somebody has overwritten the owner annotation of an active remediation with another name. The taint still belongs to the
    // active remediation, and a person has to examine the annotation.
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
        // The cache may not have seen the remediation yet: with a slot it is only not visible, and without a ledger this is
        // unknown.
        None => ctx.snapshot.ledger.is_some() && !is_slot(&mark.remediation),
    };
    is_stray.then(|| Effect::Untaint { remediation: mark.remediation.clone(), node: facts.name.to_owned() })
}
