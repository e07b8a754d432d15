//! Quarantine: nodes that stay cordoned after the last step for a fault. The quarantine lasts until the fault stays clear, or
//! for as long as the policy says.
//!
//! Such a remediation has only its cleanup left. It holds no slot and blocks no other remediation of the node.
//! `limits.maxUnhealthy` bounds the number of such nodes, because each of them is unhealthy.

use jiff::Timestamp;

use super::ending;
use super::update::RemediationUpdate;
use crate::action::Quarantine;
use crate::context::{ClearCheck, NodeContext, Requeue, exclusion, of_policy};
use crate::moment::{clock, since};
use crate::policy::{Mode, Policy};
use crate::procedure::marker;
use crate::remediation::{Marker, Phase, Remediation, RemediationFault, Resolution};
use crate::snapshot::TriState;

/// For how long the policy keeps the node cordoned for this fault, whose steps are exhausted.
fn keep(policy: &Policy, fault: &RemediationFault) -> Option<Quarantine> {
    fault.kind.spec().remedy.fewer_pods.ok()?;
    let reached = usize::try_from(fault.step_index).unwrap_or(usize::MAX);
    let steps = policy.rule(&fault.rule)?.steps.iter().take(reached).filter(|step| step.mode == Mode::Enforce);
    let kept = steps.filter_map(|step| step.action.quarantine().copied());
    kept.max_by_key(|keep| keep.quarantine_for)
}

/// Until when the node stays cordoned for faults that no step resolved. None = no longer than the remediation.
pub(super) fn until(node: &NodeContext<'_>, remediation: &Remediation) -> Option<Timestamp> {
    let policy = of_policy::policy_of(node.cluster, remediation)?;
    let cordoned_at = remediation.pending_since(&Marker::Cordon)?;
    let kept = remediation.exhausted_faults().filter_map(|fault| keep(policy, fault));
    let longest = kept.map(|keep| keep.quarantine_for).max()?;
    cordoned_at.checked_add(longest).ok()
}

/// Finishes a remediation that has only its uncordon left, and postpones the uncordon.
pub(super) fn begin_quarantine(node: &NodeContext<'_>, update: &mut RemediationUpdate, until: Timestamp) {
    let (now, remediation) = (node.cluster.snapshot.now, &mut update.remediation);
    update.requeue.after(since(until, now));
    let names: Vec<&str> = remediation.exhausted_faults().map(|fault| fault.kind.as_str()).collect();
    let message = format!(
        "no step is left, and not resolved: {}; a person is needed; the node stays cordoned until the faults are gone, at the latest until {} unless the steps are tried again (cordon.quarantineFor)",
        names.join(", "),
        clock(until)
    );
    (remediation.phase, remediation.finished_at) = (Phase::Quarantined, Some(now));
    remediation.say(&message);
}

/// The quarantined remediation that keeps the node cordoned when another one releases it.
pub(super) fn successor<'a>(node: &NodeContext<'a>, giver: Option<&Remediation>) -> Option<&'a Remediation> {
    let is_giver = |kept: &Remediation| giver.is_some_and(|giver| giver.name == kept.name);
    let resolved = |kept: &Remediation| {
        let is_resolved = |id: &str| giver?.fault(id).map(|fault| fault.state == Resolution::Resolved);
        kept.exhausted_faults().all(|fault| is_resolved(&fault.id) == Some(true))
    };
    let mut kept = node.finished.iter().copied().filter(|kept| kept.is_quarantined() && !is_giver(kept));
    kept.find(|kept| !resolved(kept) && quarantine_end(node, kept, &mut Requeue::default()).is_none())
}

/// Marks faults as resolved once they have stayed clear for as long as the policy asks.
pub(super) fn note_clean(node: &NodeContext<'_>, remediation: &mut Remediation, requeue: &mut Requeue) {
    let now = node.cluster.snapshot.now;
    let Some(policy) = of_policy::policy_of(node.cluster, remediation) else { return };
    let ended = remediation.finished_at;
    for fault in remediation.faults.iter_mut().filter(|fault| fault.state == Resolution::Exhausted) {
        let delay = keep(policy, fault).map_or(std::time::Duration::ZERO, |keep| keep.healthy_delay);
        match node.clear_check(fault, ended) {
            // While no check was possible, the fault may have been present.
            ClearCheck::Present | ClearCheck::Unknown => fault.clear_since = None,
            // The controller does not uncordon a flapping node: a fault that is clear now comes back.
            ClearCheck::Clean if node.stable == TriState::False => fault.clear_since = None,
            ClearCheck::Clean => {
                let away = since(now, *fault.clear_since.get_or_insert(now));
                match delay.checked_sub(away).filter(|left| !left.is_zero()) {
                    Some(left) => requeue.after(left),
                    None => fault.state = Resolution::Resolved,
                }
            }
        }
    }
}

pub(super) enum QuarantineEnd {
    /// All faults stayed clear.
    Resolved,
    /// Another cause: the final phase of the remediation, and the reason.
    Ends(Phase, String),
}

/// Why the quarantine of the node ends. None = it continues, at least until then.
pub(super) fn quarantine_end(
    node: &NodeContext<'_>,
    remediation: &Remediation,
    requeue: &mut Requeue,
) -> Option<QuarantineEnd> {
    let is_resolved = remediation.faults.iter().all(|fault| fault.state == Resolution::Resolved);
    let is_same = node.view.is_some_and(|view| view.uid == remediation.node_uid);
    // A missing policy does not uncordon a node that remediation must leave alone.
    let is_left =
        exclusion::leave_alone(node).is_some() && remediation.cleanup.has_pending_cordon() && !remediation.deleting;
    if is_left
        && is_same
        && of_policy::policy_of(node.cluster, remediation).is_none()
        && marker::removed_by_a_person(node, remediation).is_none()
    {
        return None;
    }
    // If our cordon is missing, the controller may have removed it itself, and only the record of that is missing.
    if !(is_resolved && is_same)
        && let Some(why) = ending::must_end(node, remediation)
    {
        return Some(QuarantineEnd::Ends(Phase::Cancelled, why));
    }
    // A node that must be left alone is not opened to pods either. If a remediator has uncordoned it, there is no quarantine.
    if is_left {
        return None;
    }
    if is_resolved {
        return Some(QuarantineEnd::Resolved);
    }
    if let Some(why) = of_policy::policy_stops(node, remediation) {
        return Some(QuarantineEnd::Ends(Phase::Cancelled, why));
    }
    let now = node.cluster.snapshot.now;
    let how = match (taken_over(node, remediation), until(node, remediation)) {
        (Some(other), _) => format!("remediation {other} has taken over its cordon"),
        (None, Some(until)) if until > now => {
            requeue.after(since(until, now));
            return None;
        }
        (None, Some(until)) => {
            format!("the node stays cordoned until {} (cordon.quarantineFor); a person is needed", clock(until))
        }
        (None, None) => "the policy or a remediator ended the quarantine of its node".to_owned(),
    };
    Some(QuarantineEnd::Ends(Phase::Failed, format!("not resolved; {how}")))
}

/// The later remediation of the same faults that now keeps the node cordoned instead of this one.
fn taken_over<'a>(node: &NodeContext<'a>, remediation: &Remediation) -> Option<&'a str> {
    let mark = node.view?.cordoned_by.as_deref().filter(|mark| *mark != remediation.name)?;
    let other = node.cluster.snapshot.remediations.get(mark)?;
    (other.is_quarantined() && other.succeeds(remediation)).then_some(mark)
}
