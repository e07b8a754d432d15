//! Reboots by the node executor, or by another tool that the node executor asks (`mark`): where a reboot may be done, what
//! proves that it was done, and when it has failed.
//!
//! ```text
//! Scheduled, for one boot id ─► Started ─► the Node shows another boot id ─► Verifying: the probe of that boot checks again
//!         └ another boot id before anything was recorded: the reboot was done, and is never repeated
//! ```
//!
//! Only the boot id of the Node proves a reboot. An answer of the node does not, and silence does not. While the machine is
//! away, no step is taken on the node, and a fault that shows meanwhile is not new.
//! The command does not stay for as long. The controller removes a command that nobody read in time, or that somebody objected
//! to, so that no node executor acts on it much later.

use crate::context::{Block, NodeContext, Wake, of_policy};
use crate::plan::BlockReason;
use std::time::Duration;

use super::update::RemediationUpdate;
use super::{Ctx, attempt, ending, mark};
use crate::command::{ActionCommand, OutcomeReason};
use crate::moment::{clock, since};
use crate::policy::{Action, ActionType, Policy, Step};
use crate::reboot::is_boot_id;
use crate::remediation::{Remediation, StepRecord, StepState};
use crate::snapshot::TriState;

/// Least time between two reboots of one node, in any remediation and by any policy.
const APART: Duration = Duration::from_hours(1);

/// The same after a reboot that did not help: a person must see a node that is rebooted again and again in vain.
pub(super) const RETRY_AFTER_FAILED_REBOOT: Duration = Duration::from_hours(24);

/// How long another boot id is awaited if the policy does not name the step any more: a machine that received the command boots
/// anyway.
const AWAY: Duration = Duration::from_mins(20);

/// The boot that the Node shows, if the probe reports the same.
pub(super) fn boot_of<'a>(facts: &NodeContext<'a>) -> Result<&'a str, Block> {
    let unknown = |what: String| {
        let message = format!("node {} is not rebooted: {what}", facts.name);
        Block::new(BlockReason::ActionsDisabled, &message)
    };
    let shown = facts.view.and_then(|view| view.boot_id.as_deref());
    let shown = shown.ok_or_else(|| unknown("its Node shows no boot id".to_owned()))?;
    if !is_boot_id(shown) {
        return Err(unknown(format!("its Node shows {shown:?} where a boot id is expected")));
    }
    let told = facts.own_report().and_then(|report| report.heartbeat.as_ref());
    match told.map(|heartbeat| heartbeat.boot_id.as_str()) {
        Some(told) if told == shown => Ok(shown),
        Some(told) => Err(unknown(format!("its Node shows boot id {shown}, its probe reports {told:?}"))),
        None => Err(unknown("its probe reports no boot id".to_owned())),
    }
}

/// Whether the reboot may be done now, as far as the boots of the node are concerned.
pub(super) fn admit(ctx: Ctx<'_>, facts: &NodeContext<'_>, action: &Action) -> Result<(), Block> {
    boot_of(facts)?;
    // The tool that reboots a marked node drains it first, through its kubelet. Nothing is known of the kubelet while Ready is
    // Unknown.
    let is_unknown = facts.view.is_none_or(|view| view.ready == TriState::Unknown);
    if is_unknown && action.mark_for_reboot().is_some() {
        let message = format!("node {} is not marked for a reboot: whether it is Ready is Unknown", facts.name);
        return Err(Block::new(BlockReason::ActionsDisabled, &message));
    }
    let now = ctx.snapshot.now;
    // Any Node object of that name counts: a recreated Node may stand for the same machine.
    let last = facts.open.iter().chain(&facts.finished).flat_map(|remediation| begun(remediation));
    let free = |step: &StepRecord| {
        let at = done_at(step)?;
        let apart = apart(step, facts.view.and_then(|view| view.boot_id.as_deref()));
        let until = at.checked_add(apart).unwrap_or(at);
        // As far as is known, no tool acted on the mark.
        let is_mark = step.action == ActionType::MarkForReboot && step.executed_at.is_none();
        (until > now).then_some((until, at, apart, is_mark))
    };
    let Some((until, at, apart, is_mark)) = last.filter_map(free).max() else { return Ok(()) };
    let what = if is_mark { "marked for a reboot until" } else { "rebooted, or commanded to reboot, at" };
    let how = if apart > APART { ", which did not help" } else { "" };
    let message = format!("node {} was {what} {}{how}: not again before {}", facts.name, clock(at), clock(until));
    Err(Block::new(BlockReason::NodeLimit, &message).until(since(until, now)))
}

/// When the reboot was done, as far as is known. A mark stands for hours, and its reboot may begin at its end.
fn done_at(step: &StepRecord) -> Option<jiff::Timestamp> {
    let begun = step.started_at?;
    let last = step.executed_at.or(step.finished_at).filter(|_| step.action == ActionType::MarkForReboot);
    Some(last.unwrap_or(begun))
}

/// Reboots of the remediation that may have begun.
fn begun(remediation: &Remediation) -> impl Iterator<Item = &StepRecord> {
    let is_it = |step: &&StepRecord| step.action.boots() && step.state != StepState::Refused;
    remediation.steps.iter().filter(is_it).filter(|step| step.started_at.is_some())
}

/// How long the node, in its current boot, is not rebooted again after this reboot.
fn apart(step: &StepRecord, booted: Option<&str>) -> Duration {
    // Removal of the mark does not stop a tool that has begun to act on it. A boot that came all the same has not helped either.
    if step.state == StepState::Cancelled && mark::is_carried(step) && booted != step.boot_id.as_deref() {
        return RETRY_AFTER_FAILED_REBOOT;
    }
    let was_made = step.reason != Some(OutcomeReason::RequestFailed);
    let is_in_vain = matches!(step.state, StepState::Failed | StepState::TimedOut) && was_made;
    if is_in_vain { RETRY_AFTER_FAILED_REBOOT } else { APART }
}

/// Whether decisions depend on the record of the remediation for longer than on other records.
pub(super) fn is_remembered(remediation: &Remediation) -> bool {
    begun(remediation).next().is_some()
}

/// Whether the node shows the cordon of its own remediation. A node that accepts pods is not rebooted under them.
pub(super) fn require_ready(facts: &NodeContext<'_>, step: &Step) -> Result<(), Block> {
    if step.action.reboot().is_none() {
        return Ok(());
    }
    let mark = facts.view.filter(|view| view.unschedulable).and_then(|view| view.cordoned_by.as_deref());
    let ours = facts
        .open
        .iter()
        .find(|remediation| Some(remediation.name.as_str()) == mark && remediation.cleanup.owes_cordon());
    if ours.is_none() {
        let message =
            format!("node {} does not show the cordon of its remediation (any more): it is not rebooted", facts.name);
        return Err(Block::new(BlockReason::ActionsDisabled, &message));
    }
    Ok(())
}

/// Why a reboot is skipped in this remediation, if so: the cordon that it needs is not this remediation's, or the node is not
/// drained.
pub(super) fn skip_reason(remediation: &Remediation, step: &Step) -> Option<String> {
    let with = step.action.reboot()?;
    let node = &remediation.node;
    let cordoned = remediation.cordoned_at().filter(|_| remediation.cleanup.owes_cordon());
    let Some(cordoned) = cordoned else {
        return Some(format!("skipped: node {node} is not cordoned by this remediation"));
    };
    let drained = |record: &StepRecord| {
        record.action == ActionType::Drain
            && record.state == StepState::Succeeded
            && record.finished_at.is_some_and(|at| at >= cordoned)
    };
    let is_drained = !with.require_drain || remediation.steps.iter().any(drained);
    (!is_drained)
        .then(|| format!("skipped: node {node} was not drained by this remediation (reboot.requireDrain is false)"))
}

/// Allows at most one reboot in a remediation: a fault that one reboot did not resolve is not resolved by another.
pub(super) fn require_untried(step: &Step, remediation: Option<&Remediation>) -> Result<(), &'static str> {
    let Some(remediation) = remediation.filter(|_| step.action.kind().boots()) else { return Ok(()) };
    let reboots = || remediation.steps.iter().filter(|record| record.action.boots());
    // The request was withdrawn or timed out while it awaited approval: nothing was commanded.
    let is_unanswered =
        |record: &StepRecord| record.started_at.is_none() && record.approved_by.is_none() && step.needs_approval();
    let was_begun = |record: &StepRecord| match record.state {
        state if !state.is_final() => false,
        StepState::Refused | StepState::Simulated => false,
        StepState::Cancelled | StepState::TimedOut => !is_unanswered(record),
        // The API server accepted no command: no node was asked.
        _ => !record.is_refused_call(),
    };
    if reboots().any(was_begun) {
        return Err("the node was rebooted, or commanded to reboot, in this remediation already");
    }
    if reboots().any(|record| record.state == StepState::TimedOut && is_unanswered(record)) {
        return Err("nobody has agreed to a reboot of the node in this remediation, and nobody is asked twice");
    }
    Ok(())
}

/// Whether the machine is away, or not known to be back yet. A fault that shows meanwhile is not new.
pub(super) fn is_under_way(remediation: &Remediation) -> bool {
    let is_it =
        |step: &StepRecord| step.action.boots() && matches!(step.state, StepState::Started | StepState::Verifying);
    remediation.current_step().is_some_and(is_it)
}

/// The last message of the node about this attempt.
pub(super) fn said(record: &StepRecord) -> &str {
    if record.message.is_empty() { "the node gave no answer" } else { &record.message }
}

/// Whether an answer adds to what is known. A reboot that was commanded stays commanded. A node executor that has lost its
/// memory, and refuses the same command, does not revoke that. For any other step: true.
pub(super) fn is_news(step: &StepRecord, answer: OutcomeReason) -> bool {
    !step.action.boots() || answer.is_told() || !step.reason.is_some_and(OutcomeReason::is_told)
}

/// Records the proof that the attempt has begun or is done: the command that is in place, and another boot id.
pub(super) fn note(ctx: Ctx<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation) {
    let now = ctx.snapshot.now;
    let booted = facts.view.and_then(|view| view.boot_id.clone());
    let ordered = facts.own_command();
    let Some(step) = remediation.current_step_mut().filter(|step| step.action.boots()) else { return };
    let is_begun = matches!(step.state, StepState::Scheduled | StepState::Started);
    if step.state == StepState::Scheduled && ordered.is_some_and(|order| order.operation_id == step.operation_id) {
        step.state = StepState::Started;
        step.started_at = Some(now);
    }
    if let (true, Some(before), Some(booted)) = (is_begun, &step.boot_id, booted)
        && *before != booted
    {
        step.message = format!("the node has booted anew: its boot id was {before} and is {booted}");
        step.state = StepState::Verifying;
        step.started_at.get_or_insert(now);
        step.executed_at = Some(now);
    }
}

/// Whether the controller removes a command although the new boot is still awaited. It does so if the time to begin is over. For
/// a reboot, not for a mark, it also does so if the command was answered, or if somebody has objected since.
/// A probe that could not read the command until then must not act on it later. If a probe acted and could not report it, its
/// next boot id shows it.
pub(super) fn is_over(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    remediation: &Remediation,
    step: &StepRecord,
    order: &ActionCommand,
) -> bool {
    if step.operation_id != order.operation_id {
        return false;
    }
    let is_late = since(ctx.snapshot.now, step.scheduled_at) > Duration::from_secs(order.ttl_seconds.into());
    match step.action {
        ActionType::Reboot => {}
        // The command stays after an answer, for as long as the mark.
        ActionType::MarkForReboot => return step.reason.is_none() && is_late,
        _ => return false,
    }
    let named =
        of_policy::policy_of(ctx.cluster, remediation).and_then(|policy| of_policy::step_of(policy, remediation, step));
    let is_agreed =
        named.is_some_and(|named| !named.needs_approval() || remediation.approved(&step.operation_id).is_some());
    step.reason.is_some() || is_late || !is_agreed || ending::must_stop(ctx, facts, remediation).is_some()
}

/// Waits for a commanded reboot: another boot id is awaited for as long as the step says. The command is given once.
pub(super) fn wait(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    record: &StepRecord,
    wake: &mut Wake,
) {
    let now = ctx.snapshot.now;
    let (timeout, _) = times(ctx, record, of_policy::step_of(policy, &turn.remediation, record));
    let age = since(now, record.started_at.unwrap_or(record.scheduled_at));
    if age < timeout {
        wake.when_past(Duration::from_secs(ctx.settings.order_ttl_seconds.into()), since(now, record.scheduled_at));
        return wake.at(timeout.saturating_sub(age));
    }
    let told = facts.own_report().and_then(|report| report.heartbeat.as_ref());
    let told = told.map(|heartbeat| heartbeat.boot_id.as_str()).filter(|told| Some(*told) != record.boot_id.as_deref());
    // The machine is back, and its kubelet is not: that is a different problem, for the person who operates the node.
    let back = told.map_or_else(String::new, |told| format!("; its probe reports boot id {told:?}, its Node does not"));
    let why = format!("node {} has not booted anew within {}s: {}{back}", facts.name, timeout.as_secs(), said(record));
    attempt::end(turn, StepState::TimedOut, &why, now);
}

/// The total time of a step, and how long its clear check has to stay clear; also if the policy does not name the step any more.
pub(super) fn times(ctx: Ctx<'_>, record: &StepRecord, step: Option<&Step>) -> (Duration, Duration) {
    let least = if record.action.boots() { AWAY } else { ctx.settings.answer_within };
    // The boot may be awaited for hours, the clear check is not.
    if let Some(step) = step.filter(|_| record.action == ActionType::MarkForReboot) {
        return (step.timeout.min(AWAY.saturating_add(step.stable_for)), step.stable_for);
    }
    step.map_or((least, Duration::from_secs(5)), |step| (step.timeout, step.stable_for))
}

/// Whether a clean check is one of the new boot. For any other step: true.
pub(super) fn is_looked_anew(facts: &NodeContext<'_>, record: &StepRecord) -> bool {
    !record.action.boots()
        || boot_of(facts).is_ok_and(|boot| record.boot_id.as_deref().is_some_and(|before| before != boot))
}

/// When the time of the step begins: for a reboot at the command, not at the new boot.
pub(super) fn began(record: &StepRecord, executed_at: jiff::Timestamp) -> jiff::Timestamp {
    if record.action == ActionType::Reboot { record.started_at.unwrap_or(executed_at) } else { executed_at }
}

/// The boot that a new attempt is for.
pub(super) fn boot(ctx: Ctx<'_>, remediation: &Remediation, action: &Action) -> Option<String> {
    action.kind().boots().then_some(())?;
    ctx.snapshot.nodes.get(&remediation.node)?.boot_id.clone().filter(|id| is_boot_id(id))
}

/// Whether the node is still in the boot that the attempt was recorded for.
pub(super) fn is_same_boot(facts: &NodeContext<'_>, record: &StepRecord) -> bool {
    !record.action.boots()
        || (record.boot_id.is_some()
            && facts.view.and_then(|view| view.boot_id.as_deref()) == record.boot_id.as_deref())
}
