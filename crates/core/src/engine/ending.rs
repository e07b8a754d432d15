//! How a remediation ends before its faults are resolved, and how the controller cleans up what it did to the node.

use super::{Ctx, PolicyContext, cause};
use crate::context::{NodeContext, exclusion, of_policy};
use crate::policy::Mode;
use crate::procedure::{hand_off, marker};
use crate::remediation::{CANCELLED_PREFIX, Phase, Remediation, StepState};

/// Why the remediation ends at once, whatever is in progress.
pub(super) fn must_end(node: &NodeContext<'_>, remediation: &Remediation) -> Option<String> {
    let Some(view) = node.view else {
        return Some(format!("node {} is gone{}", remediation.node, hand_off::on_the_way(node.cluster, remediation)));
    };
    if view.uid != remediation.node_uid {
        let how = hand_off::on_the_way(node.cluster, remediation);
        return Some(format!("node {} was replaced by another one of the same name{how}", remediation.node));
    }
    if let Some(cancel) = &remediation.cancel {
        return Some(format!("{CANCELLED_PREFIX}cancelled {}", cancel.by_whom()));
    }
    if remediation.deleting {
        return Some(format!("{CANCELLED_PREFIX}the remediation was deleted"));
    }
    if remediation.mode == Mode::DryRun {
        return Some("a simulated remediation that was not written to its end".to_owned());
    }
    // Without work it ends by itself, as what its steps have made of it.
    let needs_policy = remediation.wants_its_marks() || remediation.is_quarantined();
    if needs_policy && of_policy::policy_of(node.cluster, remediation).is_none() {
        let is_there = node.cluster.snapshot.unusable_policies.contains(&remediation.policy);
        let how = if is_there { "not valid, and what it said before is not known" } else { "gone" };
        return Some(format!("policy {} is {how}", remediation.policy));
    }
    // A dry run that was not written to its end blocks no other remediation of the node.
    let first = node.open.iter().find(|open| !open.phase.is_final() && open.mode == Mode::Enforce);
    if !remediation.phase.is_final() && first.is_some_and(|first| first.name != remediation.name) {
        return Some(format!("another remediation of node {} is open", remediation.node));
    }
    let removed = marker::removed_by_a_person(node, remediation)?;
    Some(format!("{CANCELLED_PREFIX}{removed}"))
}

/// Why the remediation takes no further step after the current one has ended.
pub(super) fn must_stop(ctx: Ctx<'_>, node: &NodeContext<'_>, remediation: &Remediation) -> Option<String> {
    let gives_way = || {
        let policy = of_policy::policy_of(ctx.cluster, remediation).filter(|_| remediation.manual.is_none())?;
        cause::gives_way(PolicyContext { ctx, node, policy }, remediation)
    };
    exclusion::leave_alone(node).or_else(|| of_policy::policy_stops(node, remediation)).or_else(gives_way)
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
