//! Reboots: where one may be done, what tells that it was, and when it has failed.
//!
//! ```text
//! Reserved, for one boot id ─► Started ─► the Node shows another boot id ─► Verifying: the probe of that boot looks anew
//!         └ another boot id before anything was recorded: it was done, and is never repeated
//! ```
//!
//! Neither an answer of the node nor silence says that it has booted anew; the Node's boot id does. While the machine is away no
//! step is taken on the node, and what shows meanwhile is no new fault.

use std::time::Duration;

use super::evidence::NodeFacts;
use super::turn::Turn;
use super::{Ctx, Hold, HoldReason, Wake, attempt};
use crate::core::episode::{Episode, StepRecord, StepState, clock, since};
use crate::core::policy::{Action, ActionType, Policy, Step};

/// Least time between two reboots of one node, in whatever episode and by whatever policy.
const APART: Duration = Duration::from_hours(1);

/// The boot that the Node shows, where the probe's word is the same.
pub(super) fn boot_of<'a>(facts: &NodeFacts<'a>) -> Result<&'a str, Hold> {
    let unknown = |what: String| {
        let message = format!("node {} is not rebooted: {what}", facts.name);
        Hold::new(HoldReason::CannotAct, &message)
    };
    let shown = facts.view.and_then(|view| view.boot_id.as_deref());
    let shown = shown.ok_or_else(|| unknown("its Node shows no boot id".to_owned()))?;
    let told = facts.report.filter(|_| facts.owns_report()).and_then(|report| report.heartbeat.as_ref());
    match told.map(|heartbeat| heartbeat.boot_id.as_str()) {
        Some(told) if told == shown => Ok(shown),
        Some(told) => Err(unknown(format!("its Node shows boot id {shown}, its probe tells {told:?}"))),
        None => Err(unknown("its probe tells no boot id".to_owned())),
    }
}

/// Whether it may be done now, as far as the node's boots go.
pub(super) fn is_allowed(ctx: Ctx<'_>, facts: &NodeFacts<'_>) -> Result<(), Hold> {
    boot_of(facts)?;
    let uid = facts.view.map(|view| view.uid.as_str());
    let episodes = facts.open.iter().chain(&facts.finished).filter(|episode| Some(episode.node_uid.as_str()) == uid);
    let steps = episodes.flat_map(|episode| &episode.steps).filter(|step| step.action == ActionType::Reboot);
    let last = steps.filter(|step| step.state != StepState::Refused).filter_map(|step| step.started_at).max();
    let Some((at, age)) = last.map(|at| (at, since(ctx.snapshot.now, at))).filter(|(_, age)| *age < APART) else {
        return Ok(());
    };
    let message = format!(
        "node {} was rebooted, or told to, at {}: not again before {}",
        facts.name,
        clock(at),
        clock(at.checked_add(APART).unwrap_or(at))
    );
    Err(Hold::new(HoldReason::NodeLimit, &message).until(APART.saturating_sub(age)))
}

/// Whether the node shows the cordon of its own episode: a node that takes pods is not rebooted under them.
pub(super) fn is_ready(facts: &NodeFacts<'_>, step: &Step) -> Result<(), Hold> {
    if step.action.reboot().is_none() {
        return Ok(());
    }
    let mark = facts.view.filter(|view| view.unschedulable).and_then(|view| view.cordoned_by.as_deref());
    let ours = facts.open.iter().find(|episode| Some(episode.name.as_str()) == mark && episode.undo.owes_cordon());
    if ours.is_none() {
        let message =
            format!("node {} does not show the cordon of its episode (any more): it is not rebooted", facts.name);
        return Err(Hold::new(HoldReason::CannotAct, &message));
    }
    Ok(())
}

/// Why a reboot has no place in this episode, if so: the cordon that it needs is not this episode's, or the node is not drained.
pub(super) fn is_out_of_place(episode: &Episode, step: &Step) -> Option<String> {
    let with = step.action.reboot()?;
    let node = &episode.node;
    let cordoned = episode.cordoned_at().filter(|_| episode.undo.owes_cordon());
    let Some(cordoned) = cordoned else {
        return Some(format!("Reboot left out: node {node} is not cordoned by this episode"));
    };
    let drained = |record: &StepRecord| {
        record.action == ActionType::Drain
            && record.state == StepState::Succeeded
            && record.finished_at.is_some_and(|at| at >= cordoned)
    };
    let is_drained = with.even_if_not_drained || episode.steps.iter().any(drained);
    (!is_drained).then(|| {
        format!("Reboot left out: node {node} was not drained by this episode (reboot.evenIfNotDrained is false)")
    })
}

/// At most one in an episode: what one has not ended another does not end either.
pub(super) fn is_new(step: &Step, episode: Option<&Episode>) -> Result<(), &'static str> {
    let Some(episode) = episode.filter(|_| step.action.reboot().is_some()) else { return Ok(()) };
    let was_begun = |record: &StepRecord| match record.state {
        state if !state.is_final() => false,
        StepState::Refused | StepState::Simulated => false,
        // Withdrawn while a person was asked: nothing was ordered.
        StepState::Cancelled => record.started_at.is_some() || record.approved_by.is_some() || !step.needs_approval(),
        _ => true,
    };
    if episode.steps.iter().any(|record| record.action == ActionType::Reboot && was_begun(record)) {
        return Err("the node was rebooted, or told to, in this episode already");
    }
    Ok(())
}

/// Whether the machine is away, or nobody knows yet that it is back: what shows meanwhile is no new fault.
pub(super) fn is_under_way(episode: &Episode) -> bool {
    let is_it = |step: &StepRecord| {
        step.action == ActionType::Reboot && matches!(step.state, StepState::Started | StepState::Verifying)
    };
    episode.current_step().is_some_and(is_it)
}

/// Notes what shows that the attempt was begun, or done: the order that stands in the node's object, and another boot id.
pub(super) fn note(ctx: Ctx<'_>, facts: &NodeFacts<'_>, episode: &mut Episode) {
    let now = ctx.snapshot.now;
    let booted = facts.view.and_then(|view| view.boot_id.clone());
    let ordered = facts.report.filter(|_| facts.owns_report()).and_then(|report| report.order.as_ref());
    let Some(step) = episode.current_step_mut().filter(|step| step.action == ActionType::Reboot) else { return };
    let is_begun = matches!(step.state, StepState::Reserved | StepState::Started);
    if step.state == StepState::Reserved && ordered.is_some_and(|order| order.operation_id == step.operation_id) {
        step.state = StepState::Started;
        step.started_at = Some(now);
    }
    if let (true, Some(before), Some(booted)) = (is_begun, &step.boot_id, booted)
        && *before != booted
    {
        step.message = format!("the node has booted anew: its boot id was {before} and is {booted}");
        step.state = StepState::Verifying;
        step.started_at.get_or_insert(now);
        step.acted_at = Some(now);
    }
}

/// A reboot that was ordered: another boot id is awaited, for as long as the step says. The order is given once.
pub(super) fn wait(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    turn: &mut Turn,
    record: &StepRecord,
    wake: &mut Wake,
) {
    let now = ctx.snapshot.now;
    let timeout =
        attempt::step_of(policy, &turn.episode, record).map_or(ctx.settings.answer_within, |step| step.timeout);
    let age = since(now, record.started_at.unwrap_or(record.reserved_at));
    if age < timeout {
        return wake.at(timeout.saturating_sub(age));
    }
    let said = if record.message.is_empty() { "the node gave no answer" } else { &record.message };
    let why = format!("node {} has not booted anew within {}s: {said}", facts.name, timeout.as_secs());
    attempt::end(turn, StepState::TimedOut, &why, now);
}

/// Whether a clean look is one of the new boot. Of any other step: yes.
pub(super) fn is_looked_anew(facts: &NodeFacts<'_>, record: &StepRecord) -> bool {
    record.action != ActionType::Reboot
        || boot_of(facts).is_ok_and(|boot| record.boot_id.as_deref().is_some_and(|before| before != boot))
}

/// Since when the time of the step runs: a reboot takes its time from the order on, not from the new boot on.
pub(super) fn began(record: &StepRecord, acted_at: jiff::Timestamp) -> jiff::Timestamp {
    if record.action == ActionType::Reboot { record.started_at.unwrap_or(acted_at) } else { acted_at }
}

/// The boot that a new attempt is for.
pub(super) fn boot(ctx: Ctx<'_>, episode: &Episode, action: &Action) -> Option<String> {
    action.reboot()?;
    ctx.snapshot.nodes.get(&episode.node)?.boot_id.clone()
}

/// Whether the node is still in the boot that the attempt was recorded for.
pub(super) fn is_same_boot(facts: &NodeFacts<'_>, record: &StepRecord) -> bool {
    record.action != ActionType::Reboot
        || (record.boot_id.is_some()
            && facts.view.and_then(|view| view.boot_id.as_deref()) == record.boot_id.as_deref())
}
