//! Nodes that stay cordoned after the ladder of a fault is at its end: until the fault has stayed away, or for as long as the
//! policy says.
//!
//! Such a remediation is at its end but for its undo: it holds no slot and keeps no other from the node. How many nodes can be so is
//! bounded by `limits.maxUnhealthy`, since each of them is unhealthy.

use jiff::Timestamp;

use super::evidence::{ClearCheck, NodeContext};
use super::update::RemediationUpdate;
use super::{Ctx, Wake, ending, hand_off, pending_reboot, readiness};
use crate::moment::{clock, since};
use crate::policy::{Action, Mode, Policy, Quarantine};
use crate::remediation::{Phase, Remediation, RemediationFault, Resolution, STOPPED_BY_A_PERSON};
use crate::snapshot::TriState;

/// For how long the policy keeps the node cordoned for the sake of this fault, whose ladder is at its end.
fn keep(policy: &Policy, fault: &RemediationFault) -> Option<Quarantine> {
    fault.kind.spec().remedy.fewer_pods.ok()?;
    let reached = usize::try_from(fault.step_index).unwrap_or(usize::MAX);
    let steps = policy.rule(&fault.rule)?.steps.iter().take(reached).filter(|step| step.mode == Mode::Enforce);
    let kept = steps.filter_map(|step| if let Action::Cordon(keep) = step.action { keep } else { None });
    kept.max_by_key(|keep| keep.quarantine_for)
}

/// Until when the node stays cordoned for faults that no step has healed. None = no longer than the remediation.
pub(super) fn until(ctx: Ctx<'_>, remediation: &Remediation) -> Option<Timestamp> {
    let policy = ending::policy_of(ctx, remediation).filter(|_| remediation.cleanup.owes_cordon())?;
    let cordoned_at = remediation.cordoned_at()?;
    let longest =
        remediation.given_up().filter_map(|fault| keep(policy, fault)).map(|keep| keep.quarantine_for).max()?;
    cordoned_at.checked_add(longest).ok()
}

/// Ends a remediation with nothing left to do but to take back its cordon, and puts that off.
pub(super) fn contain(ctx: Ctx<'_>, remediation: &mut Remediation, until: Timestamp, wake: &mut Wake) {
    let now = ctx.snapshot.now;
    wake.at(since(until, now));
    let names: Vec<&str> = remediation.given_up().map(|fault| fault.kind.as_str()).collect();
    let message = format!(
        "no step is left, and not resolved: {}; a person is needed; the node stays cordoned until the faults are gone, at the latest until {} unless the steps are tried again (cordon.quarantineFor)",
        names.join(", "),
        clock(until)
    );
    (remediation.phase, remediation.finished_at) = (Phase::Quarantined, Some(now));
    remediation.say(&message);
}

/// One look at a remediation whose node is kept cordoned: it goes on so, or ends, and the undo is done.
pub(super) fn watch(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    remediation: &Remediation,
    wake: &mut Wake,
) -> RemediationUpdate {
    let mut turn = RemediationUpdate::new(remediation.clone());
    hand_off::note_uncordon(ctx, facts, &mut turn.remediation);
    note_clean(ctx, facts, &mut turn.remediation, wake);
    match over(ctx, facts, &turn.remediation, wake) {
        None => return turn,
        // With nothing left to wait for it ends as after any other cure, once the cordon is put back.
        Some(Over::Resolved) => {}
        Some(Over::Ends(phase, why)) => {
            turn.remediation.phase = phase;
            // Its end stays that of its ladder; what a person has said counts from now on.
            if why.starts_with(STOPPED_BY_A_PERSON) {
                turn.remediation.finished_at = None;
            }
            turn.remediation.say(&why);
        }
    }
    turn.effect = ending::cleanup(ctx, facts, &mut turn.remediation);
    if turn.effect.is_some() {
        wake.at(ctx.settings.retry);
    }
    pending_reboot::note(ctx, facts, &mut turn, wake);
    turn
}

/// The remediation for whose sake the node stays cordoned when another one lets go of it.
pub(super) fn successor<'a>(
    ctx: Ctx<'_>,
    facts: &NodeContext<'a>,
    giver: Option<&Remediation>,
) -> Option<&'a Remediation> {
    let is_giver = |kept: &Remediation| giver.is_some_and(|giver| giver.name == kept.name);
    let healed = |kept: &Remediation| {
        let is_resolved = |id: &str| giver?.fault(id).map(|fault| fault.state == Resolution::Resolved);
        kept.given_up().all(|fault| is_resolved(&fault.id) == Some(true))
    };
    let mut kept = facts.finished.iter().copied().filter(|kept| kept.is_quarantined() && !is_giver(kept));
    kept.find(|kept| !healed(kept) && over(ctx, facts, kept, &mut Wake::default()).is_none())
}

/// Marks faults healed that have stayed away for as long as the policy asks.
fn note_clean(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation, wake: &mut Wake) {
    let (now, fresh) = (ctx.snapshot.now, ctx.settings.evidence_max_age);
    let Some(policy) = ending::policy_of(ctx, remediation) else { return };
    let ended = remediation.finished_at;
    for fault in remediation.faults.iter_mut().filter(|fault| fault.state == Resolution::Exhausted) {
        let delay = keep(policy, fault).map_or(std::time::Duration::ZERO, |keep| keep.healthy_delay);
        match facts.cure(fault, ended, now, fresh) {
            // Where nobody could look, it may have been there.
            ClearCheck::Present | ClearCheck::Unknown => fault.clear_since = None,
            // Nor is a node opened that flaps: what is away now comes again.
            ClearCheck::Clean if facts.stable == TriState::False => fault.clear_since = None,
            ClearCheck::Clean => {
                let away = since(now, *fault.clear_since.get_or_insert(now));
                match delay.checked_sub(away).filter(|left| !left.is_zero()) {
                    Some(left) => wake.at(left),
                    None => fault.state = Resolution::Resolved,
                }
            }
        }
    }
}

/// What ends the time for which a node is kept cordoned.
enum Over {
    /// All faults have stayed away.
    Resolved,
    /// Something else: what the remediation has come to, and why.
    Ends(Phase, String),
}

/// Why the node is not kept cordoned any longer. None = it is, at least until then.
fn over(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &Remediation, wake: &mut Wake) -> Option<Over> {
    let is_resolved = remediation.faults.iter().all(|fault| fault.state == Resolution::Resolved);
    let is_same = facts.view.is_some_and(|view| view.uid == remediation.node_uid);
    // Nor does a policy that is gone open a node that is to be left alone.
    let is_left = readiness::leave_alone(facts).is_some() && remediation.cleanup.owes_cordon() && !remediation.deleting;
    if is_left
        && is_same
        && ending::policy_of(ctx, remediation).is_none()
        && !ending::was_uncordoned(ctx, facts, remediation)
    {
        return None;
    }
    // That nobody sees our cordon any more may be our own doing, and only the record of it is missing.
    if !(is_resolved && is_same)
        && let Some(why) = ending::must_end(ctx, facts, remediation)
    {
        return Some(Over::Ends(Phase::Cancelled, why));
    }
    // Whoever wants the node left alone does not want it opened to pods either; where a remediator has done so, nothing is kept.
    if is_left {
        return None;
    }
    if is_resolved {
        return Some(Over::Resolved);
    }
    if let Some(why) = ending::policy_stops(ctx, facts, remediation) {
        return Some(Over::Ends(Phase::Cancelled, why));
    }
    if let Some(other) = taken_over(ctx, facts, remediation) {
        return Some(Over::Ends(Phase::Failed, format!("not resolved; remediation {other} has taken over its cordon")));
    }
    match until(ctx, remediation) {
        Some(until) if until > ctx.snapshot.now => {
            wake.at(since(until, ctx.snapshot.now));
            None
        }
        Some(until) => {
            let why = format!(
                "not resolved; the node stays cordoned until {} (cordon.quarantineFor); a person is needed",
                clock(until)
            );
            Some(Over::Ends(Phase::Failed, why))
        }
        None => {
            let why = "not resolved; the policy or a remediator ended the quarantine of its node".to_owned();
            Some(Over::Ends(Phase::Failed, why))
        }
    }
}

/// The later remediation about the same faults that keeps the node cordoned now, in the place of this one.
fn taken_over<'a>(ctx: Ctx<'a>, facts: &NodeContext<'a>, remediation: &Remediation) -> Option<&'a str> {
    let mark = facts.view?.cordoned_by.as_deref().filter(|mark| *mark != remediation.name)?;
    let other = ctx.snapshot.remediations.get(mark)?;
    (other.is_quarantined() && other.succeeds(remediation)).then_some(mark)
}
