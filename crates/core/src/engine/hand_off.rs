//! Hand-offs: when the controller hands a node to a remediator, how it awaits the answer, and how it cleans up the object that
//! it created.
//!
//! The probe's clean check decides, as for every step. A node that reboots is silent for a while: that is no verdict before the
//! step's timeout.

use super::attempt;
use super::update::RemediationUpdate;
use super::{Ctx, ending, steps};
use crate::context::{Block, ClearCheck, NodeContext, Wake, exclusion, of_policy};
use crate::hand_off::{HandOff, HandOffView, HandedOff};
use crate::moment::{clock, since};
use crate::plan::{BlockReason, Effect};
use crate::policy::{Action, ActionType, Policy, Step};
use crate::remediation::{Remediation, RemediationFault, Resolution, StepRecord, StepState};
use crate::snapshot::TriState;
use std::time::Duration;

/// How long the controller retries the deletion of an object, counted from the end of its step.
const TAKE_BACK_WITHIN: Duration = Duration::from_mins(10);

/// How long the controller retries to notify a remediator that its time is over.
const TELL_WITHIN: Duration = Duration::from_hours(1);

/// How long after the end of a hand-off the remediator may still change the node.
const TIDY_UP: Duration = Duration::from_mins(15);

/// Whether the controller may use the kinds of the remediator. Nothing is handed to it while this is unknown.
pub(super) fn require_proof(ctx: Ctx<'_>, with: &HandOff) -> Result<(), Block> {
    let template = &with.remediation_template;
    if !ctx.snapshot.unproven.contains(template) {
        return Ok(());
    }
    let message = format!(
        "{template}: it is not proven that the controller may create {} in namespace {}; what is lacking stands in condition \
         Ready of the policy, and is asked again and again",
        template.object_kind(),
        template.namespace
    );
    Err(Block::new(BlockReason::ActionsDisabled, &message))
}

/// Why the step is unavailable: the controller is known not to be allowed to use these kinds. Nothing begins for such a step,
/// and the other steps are taken.
pub(super) fn unavailable(ctx: Ctx<'_>, action: &Action) -> Option<Block> {
    let with = action.hand_off()?;
    require_proof(ctx, with).err().filter(|_| ctx.snapshot.lacking.contains(&with.remediation_template))
}

/// An object of a node is created once in a remediation. What it did not resolve, it does not resolve under another operation
/// either, for any fault.
pub(super) fn require_untried(action: &Action, remediation: Option<&Remediation>) -> Result<(), &'static str> {
    let Some((with, remediation)) = action.hand_off().zip(remediation) else { return Ok(()) };
    let is_done = begun(remediation, with).any(|step| step.state.is_final());
    if is_done { Err("the node was handed to this remediator in this remediation already") } else { Ok(()) }
}

/// The steps of a remediation that handed, or may have handed, its node to this remediator.
fn begun<'e>(remediation: &'e Remediation, with: &HandOff) -> impl Iterator<Item = &'e StepRecord> {
    let object = |with: &HandOff| HandedOff::new(&with.remediation_template, &remediation.node, "");
    let planned = object(with);
    let is_its =
        move |step: &&StepRecord| step.hand_off.as_ref().is_some_and(|with| object(with).is_same_object(&planned));
    remediation.steps.iter().filter(|step| step.started_at.is_some()).filter(is_its)
}

/// Whether this Node may be handed to the remediator, given earlier Nodes of the same name. A machine that was deleted and
/// recreated in vain is not deleted again at once, and then again.
pub(super) fn admit(ctx: Ctx<'_>, facts: &NodeContext<'_>, with: &HandOff) -> Result<(), Block> {
    let was_handed = |remediation: &Remediation| begun(remediation, with).any(|step| step.state != StepState::Refused);
    let handed = facts.on_others_of_its_name().filter(|(remediation, _)| was_handed(remediation));
    let Some((remediation, at)) = handed.max_by_key(|(_, at)| *at) else { return Ok(()) };
    let (memory, passed) = (ctx.settings.failed_memory, since(ctx.snapshot.now, at));
    if passed >= memory {
        return Ok(());
    }
    let until = clock(at.checked_add(memory).unwrap_or(at));
    let message = format!(
        "node {} was handed to {} as another Node object of that name (remediation {}), and is unhealthy again: not handed to it before {until}",
        facts.name,
        with.remediation_template.object_kind(),
        remediation.name
    );
    Err(Block::new(BlockReason::NodeLimit, &message).until(memory.saturating_sub(passed)))
}

/// Records the object as pending cleanup before the action. A crash in between leaves no stale object.
pub(super) fn plan_cleanup(remediation: &mut Remediation, record: &StepRecord) {
    let Some(with) = &record.hand_off else { return };
    if remediation.cleanup.hand_off_of(&record.operation_id).is_none() {
        let handed = HandedOff::new(&with.remediation_template, &remediation.node, &record.operation_id);
        remediation.cleanup.handed_off.push(handed);
    }
}

/// The object of an attempt, as read after `then`.
pub(super) fn view<'a>(ctx: Ctx<'a>, record: &StepRecord, then: jiff::Timestamp) -> Option<&'a HandOffView> {
    let now = ctx.snapshot.now;
    ctx.snapshot.hand_offs.get(&record.operation_id).filter(|view| view.read < since(now, then))
}

/// Whether the object exists, although nobody has recorded its creation.
pub(super) fn was_made(ctx: Ctx<'_>, record_of: &StepRecord) -> bool {
    record_of.action == ActionType::HandOff
        && ctx.snapshot.hand_offs.get(&record_of.operation_id).is_some_and(|view| view.exists)
}

/// Waits for a handed-off node: for the remediator's result and for the probe's check, until the step's timeout.
pub(super) fn wait(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    record: &StepRecord,
    wake: &mut Wake,
) {
    let now = ctx.snapshot.now;
    // A hand-off may last for long, and a person who stops it does not have to wait. Markers of other tools on the node may come
    // from this very remediator.
    if let Some(why) = exclusion::suspended(facts).or_else(|| of_policy::stopped_reason(policy)) {
        return ending::cancel(ctx, &mut turn.remediation, &why);
    }
    let began = record.started_at.unwrap_or(record.scheduled_at);
    // Also if the policy has moved the step to another place meanwhile.
    let rule = turn.remediation.fault(&record.fault_id).and_then(|fault| policy.rule(&fault.rule));
    let is_it = |step: &&Step| step.action.hand_off().is_some() && step.action.hand_off() == record.hand_off.as_ref();
    let moved = || rule?.steps.iter().find(is_it);
    let step = of_policy::step_of(policy, &turn.remediation, record).or_else(moved);
    let is_clean = match turn.remediation.fault(&record.fault_id) {
        Some(fault) => facts.clear_check(fault, Some(began), now, ctx.settings.evidence_max_age) == ClearCheck::Clean,
        None => true,
    };
    let limit = step.map_or(ctx.settings.answer_within, |step| step.timeout);
    let view = view(ctx, record, began);
    // A node that is shut down may look clean. While the remediator says that it is working, that is no clear check.
    let is_at_it = view.is_some_and(|view| view.processing == TriState::True && view.succeeded != TriState::True);
    let age = since(now, began);
    if is_at_it {
        if let Some(current) = turn.remediation.current_step_mut() {
            current.clear_since = None;
        }
        if age < limit {
            return wake.at(limit.saturating_sub(age));
        }
        let why = format!("its remediator is still at work after {}s", limit.as_secs());
        return time_out(ctx, turn, record, limit, &why, wake);
    }
    if !is_clean && let Some(why) = view.and_then(|view| failed(&turn.remediation, record, view)) {
        return attempt::end(turn, StepState::Failed, &why, now);
    }
    let is_done = view.is_some_and(|view| view.succeeded == TriState::True);
    if record.state == StepState::Started && (is_clean || is_done) {
        let Some(current) = turn.remediation.current_step_mut() else { return };
        current.state = StepState::Verifying;
        // From here on, too, the step's time counts from the hand-off.
        current.executed_at = Some(began);
        if let Some(view) = view.filter(|_| is_done) {
            let message = format!("its remediator is done: {}", view.message);
            current.message = crate::text::bounded(&message, crate::fault::MAX_LINE);
        }
    }
    let Some(record) = turn.remediation.current_step().cloned() else { return };
    if record.state == StepState::Verifying {
        return steps::verify(ctx, facts, turn, &record, step, wake);
    }
    if age < limit {
        return wake.at(limit.saturating_sub(age));
    }
    let said = view.map_or_else(String::new, |view| format!("; it said last: {}", view.message));
    let why = format!("not resolved within {}s{said}", limit.as_secs());
    time_out(ctx, turn, &record, limit, &why, wake);
}

/// Why the remediator will not remediate the node, by its own object.
fn failed(remediation: &Remediation, record: &StepRecord, view: &HandOffView) -> Option<String> {
    let object = remediation.cleanup.hand_off_of(&record.operation_id)?;
    if !view.exists {
        return Some(format!("{object} is not there any more: somebody has deleted it"));
    }
    (view.succeeded == TriState::False).then(|| format!("{object}: its remediator has failed: {}", view.message))
}

/// Ends a hand-off whose time is over. The remediator is notified before anything else is done, then the attempt ends. A
/// remediator that cannot be notified delays nothing for long.
pub(super) fn time_out(
    ctx: Ctx<'_>,
    turn: &mut RemediationUpdate,
    record: &StepRecord,
    limit: Duration,
    why: &str,
    wake: &mut Wake,
) {
    let now = ctx.snapshot.now;
    let began = record.started_at.unwrap_or(record.scheduled_at);
    let late = since(now, began).saturating_sub(limit);
    let handed = turn.remediation.cleanup.hand_off_of(&record.operation_id).cloned();
    let Some(handed) = handed.filter(|_| late < TELL_WITHIN) else {
        let why = format!("{why}; its remediator could not be notified that its time is over");
        return attempt::end(turn, StepState::TimedOut, &why, now);
    };
    turn.effect = Some(Effect::TimeOutHandOff {
        remediation: turn.remediation.name.clone(),
        node: turn.remediation.node.clone(),
        handed,
        // The same value in every retry.
        at: began.checked_add(limit).unwrap_or(now),
        why: crate::text::bounded(why, crate::fault::MAX_LINE),
    });
    wake.at(ctx.settings.retry);
}

/// Whether the step has handed the node off.
fn was_begun(step: &StepRecord) -> bool {
    step.action == ActionType::HandOff && step.started_at.is_some()
}

/// Gives up what a remediator tried and did not resolve, also if something else ends the remediation. It is not handed to the
/// remediator again at once.
pub(super) fn give_up(remediation: &mut Remediation) {
    let tried = remediation.steps.iter().filter(|step| was_begun(step) && !step.is_refused_call());
    for step in tried {
        for fault in
            remediation.faults.iter_mut().filter(|fault| fault.id == step.fault_id && fault.state == Resolution::Open)
        {
            fault.state = Resolution::Exhausted;
        }
    }
}

/// Deletes the next object whose cleanup is pending. An object that cannot be deleted does not block for ever. It is removed
/// with the remediation that owns it, or, where a Machine owns it as well, before the next hand-off of the node.
pub(super) fn take_back(ctx: Ctx<'_>, remediation: &mut Remediation) -> Option<Effect> {
    let now = ctx.snapshot.now;
    for handed in remediation.cleanup.handed_off.iter_mut().filter(|handed| handed.deleted_at.is_none()) {
        let step = remediation.steps.iter().find(|step| step.operation_id == handed.operation_id);
        let end = step.and_then(|step| step.finished_at);
        // A controller that was away meanwhile has not tried.
        let has_tried = ctx.snapshot.watched >= TAKE_BACK_WITHIN;
        if has_tried && end.is_some_and(|end| since(now, end) >= TAKE_BACK_WITHIN) {
            handed.deleted_at = Some(now);
        }
    }
    let handed = remediation.cleanup.owed_hand_off()?.clone();
    Some(Effect::TakeBackHandOff { remediation: remediation.name.clone(), node: remediation.node.clone(), handed })
}

/// Blocks every further action on the node before the object is deleted, once the deletion takes longer than one call.
pub(super) fn hold_back(ctx: Ctx<'_>, turn: &mut RemediationUpdate, wake: &mut Wake) {
    let Some(handed) = turn.remediation.cleanup.owed_hand_off() else { return };
    let step = turn.remediation.steps.iter().find(|step| step.operation_id == handed.operation_id);
    let Some((step, end)) = step.and_then(|step| Some((step, step.finished_at?))) else { return };
    let age = since(ctx.snapshot.now, end);
    if age < ctx.settings.retry {
        return wake.at(ctx.settings.retry.saturating_sub(age));
    }
    let least = TAKE_BACK_WITHIN.saturating_sub(ctx.snapshot.watched);
    let until = end.checked_add(TAKE_BACK_WITHIN).unwrap_or(end);
    let until = clock(until.max(ctx.snapshot.now.checked_add(least).unwrap_or(until)));
    let node = &turn.remediation.node;
    let mut message = format!(
        "{handed} is to be deleted before anything else is done to node {node}, and the API server has not accepted that yet: \
         tried again until {until}"
    );
    let mut reason = BlockReason::InProgress;
    // What rejects the deletion most likely also rejected the creation.
    if step.is_refused_call() {
        reason = BlockReason::RequestRejected;
        message = format!("{message}; {}: {}", step.phrase(), step.message);
    }
    let block = Block::new(reason, &message);
    let is_open = |fault: &&RemediationFault| fault.state == Resolution::Open;
    let open: Vec<String> = turn.remediation.faults.iter().filter(is_open).map(|fault| fault.id.clone()).collect();
    for id in open {
        turn.block(&id, block.clone(), wake);
    }
}

/// The addition to the end message of a remediation whose node disappeared while it was handed off.
pub(super) fn on_the_way(ctx: Ctx<'_>, remediation: &Remediation) -> String {
    let under_way = remediation.current_step().filter(|step| step.started_at.is_some());
    let Some(object) = under_way.and_then(|step| remediation.cleanup.hand_off_of(&step.operation_id)) else {
        return String::new();
    };
    let view = ctx.snapshot.hand_offs.get(&object.operation_id);
    if view.is_some_and(|view| view.node_goes) {
        return format!(", as {object} had announced (PermanentNodeDeletionExpected)");
    }
    format!(", while it was handed to {object}")
}

/// Whether a remediator may have uncordoned the node: one works there, in any remediation, or did until a moment ago.
fn may_have_uncordoned(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &Remediation) -> bool {
    let here = facts.open.iter().chain(&facts.finished).copied().filter(|other| other.node_uid == remediation.node_uid);
    let mut steps = here.flat_map(|other| &other.steps).filter(|step| was_begun(step));
    steps.any(|step| step.finished_at.is_none_or(|end| since(ctx.snapshot.now, end) < TIDY_UP))
}

/// Records that the node's remediator removed our cordon. A remediator uncordons what it has rebooted, so that is no sign of a
/// person. A later step may cordon the node again.
pub(super) fn note_uncordon(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation) {
    let Some(view) = facts.view.filter(|view| view.uid == remediation.node_uid && !view.unschedulable) else { return };
    let is_cordoning = remediation.current_step().is_some_and(|step| step.action == ActionType::Cordon);
    let Some(at) = remediation.cordoned_at().filter(|_| remediation.cleanup.owes_cordon() && !is_cordoning) else {
        return;
    };
    // Without the owner annotation, the view may be from before the cordon.
    let is_sure = view.cordoned_by.as_deref() == Some(remediation.name.as_str())
        || since(ctx.snapshot.now, at) >= ctx.settings.cache_lag;
    if is_sure && may_have_uncordoned(ctx, facts, remediation) {
        remediation.cleanup.uncordoned_at = Some(ctx.snapshot.now);
    }
}
