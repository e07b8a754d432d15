//! Reboots, by the node's own agent or by another tool that it asks (`mark`): where one may be done, what tells that it was, and when
//! it has failed.
//!
//! ```text
//! Scheduled, for one boot id ─► Started ─► the Node shows another boot id ─► Verifying: the probe of that boot looks anew
//!         └ another boot id before anything was recorded: it was done, and is never repeated
//! ```
//!
//! Neither an answer of the node nor silence says that it has booted anew; the Node's boot id does. While the machine is away no
//! step is taken on the node, and what shows meanwhile is no new fault. The order does not stand for as long: what nobody has heard
//! in time, or what somebody has said no to, is taken back, so that no agent acts on it much later.

use std::time::Duration;

use super::evidence::NodeContext;
use super::update::RemediationUpdate;
use super::{Block, BlockReason, Ctx, Wake, attempt, ending, mark};
use crate::command::{ActionCommand, OutcomeReason};
use crate::moment::{clock, since};
use crate::policy::{Action, ActionType, Policy, Step};
use crate::reboot::is_boot_id;
use crate::remediation::{Remediation, StepRecord, StepState};
use crate::snapshot::TriState;

/// Least time between two reboots of one node, in whatever remediation and by whatever policy.
const APART: Duration = Duration::from_hours(1);

/// The same after one that has not helped: a node that is rebooted again and again in vain is for a person to see.
pub(super) const RETRY_AFTER_FAILED_REBOOT: Duration = Duration::from_hours(24);

/// How long another boot id is awaited where the policy does not name the step any more: a machine that was told goes on to boot.
const AWAY: Duration = Duration::from_mins(20);

/// The boot that the Node shows, where the probe's word is the same.
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

/// Whether it may be done now, as far as the node's boots go.
pub(super) fn admit(ctx: Ctx<'_>, facts: &NodeContext<'_>, action: &Action) -> Result<(), Block> {
    boot_of(facts)?;
    // Who reboots a marked node drains it first, by its kubelet: of that nothing is known then.
    let is_unknown = facts.view.is_none_or(|view| view.ready == TriState::Unknown);
    if is_unknown && action.mark_for_reboot().is_some() {
        let message = format!("node {} is not marked for a reboot: whether it is Ready is Unknown", facts.name);
        return Err(Block::new(BlockReason::ActionsDisabled, &message));
    }
    let now = ctx.snapshot.now;
    // Of whatever Node object: one that was made anew under that name may stand for the same machine.
    let last = facts.open.iter().chain(&facts.finished).flat_map(|remediation| begun(remediation));
    let free = |step: &StepRecord| {
        let at = done_at(step)?;
        let apart = apart(step, facts.view.and_then(|view| view.boot_id.as_deref()));
        let until = at.checked_add(apart).unwrap_or(at);
        // Nobody came to it, as far as is known.
        let is_mark = step.action == ActionType::MarkForReboot && step.executed_at.is_none();
        (until > now).then_some((until, at, apart, is_mark))
    };
    let Some((until, at, apart, is_mark)) = last.filter_map(free).max() else { return Ok(()) };
    let what = if is_mark { "marked for a reboot until" } else { "rebooted, or commanded to reboot, at" };
    let how = if apart > APART { ", which did not help" } else { "" };
    let message = format!("node {} was {what} {}{how}: not again before {}", facts.name, clock(at), clock(until));
    Err(Block::new(BlockReason::NodeLimit, &message).until(since(until, now)))
}

/// When it was done, as far as anybody knows. A mark stands for hours, and what it was for may begin at its end.
fn done_at(step: &StepRecord) -> Option<jiff::Timestamp> {
    let begun = step.started_at?;
    let last = step.executed_at.or(step.finished_at).filter(|_| step.action == ActionType::MarkForReboot);
    Some(last.unwrap_or(begun))
}

/// Reboots of the remediation that may have been begun.
fn begun(remediation: &Remediation) -> impl Iterator<Item = &StepRecord> {
    let is_it = |step: &&StepRecord| step.action.boots() && step.state != StepState::Refused;
    remediation.steps.iter().filter(is_it).filter(|step| step.started_at.is_some())
}

/// For how long a node that is in this boot now is not rebooted again after this one.
fn apart(step: &StepRecord, booted: Option<&str>) -> Duration {
    // Whom the mark has set to work, its withdrawal does not stop: a boot that came all the same has helped as little.
    if step.state == StepState::Cancelled && mark::is_carried(step) && booted != step.boot_id.as_deref() {
        return RETRY_AFTER_FAILED_REBOOT;
    }
    let was_made = step.reason != Some(OutcomeReason::RequestFailed);
    let is_in_vain = matches!(step.state, StepState::Failed | StepState::TimedOut) && was_made;
    if is_in_vain { RETRY_AFTER_FAILED_REBOOT } else { APART }
}

/// Whether a decision rests on the record of the remediation for longer than on others.
pub(super) fn is_remembered(remediation: &Remediation) -> bool {
    begun(remediation).next().is_some()
}

/// Whether the node shows the cordon of its own remediation: a node that takes pods is not rebooted under them.
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

/// Why a reboot has no place in this remediation, if so: the cordon that it needs is not this remediation's, or the node is not drained.
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

/// At most one in a remediation: what one has not ended another does not end either.
pub(super) fn require_untried(step: &Step, remediation: Option<&Remediation>) -> Result<(), &'static str> {
    let Some(remediation) = remediation.filter(|_| step.action.kind().boots()) else { return Ok(()) };
    let reboots = || remediation.steps.iter().filter(|record| record.action.boots());
    // Withdrawn, or its time was over, while a person was asked: nothing was ordered.
    let is_unanswered =
        |record: &StepRecord| record.started_at.is_none() && record.approved_by.is_none() && step.needs_approval();
    let was_begun = |record: &StepRecord| match record.state {
        state if !state.is_final() => false,
        StepState::Refused | StepState::Simulated => false,
        StepState::Cancelled | StepState::TimedOut => !is_unanswered(record),
        // The API server took no order: no node was asked.
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

/// Whether the machine is away, or nobody knows yet that it is back: what shows meanwhile is no new fault.
pub(super) fn is_under_way(remediation: &Remediation) -> bool {
    let is_it =
        |step: &StepRecord| step.action.boots() && matches!(step.state, StepState::Started | StepState::Verifying);
    remediation.current_step().is_some_and(is_it)
}

/// What the node has said last of this attempt.
pub(super) fn said(record: &StepRecord) -> &str {
    if record.message.is_empty() { "the node gave no answer" } else { &record.message }
}

/// Whether an answer says more than is known. What was told to reboot is told: an agent that has lost its memory meanwhile, and
/// refuses the same order, does not take that back. Of any other step: yes.
pub(super) fn is_news(step: &StepRecord, answer: OutcomeReason) -> bool {
    !step.action.boots() || answer.is_told() || !step.reason.is_some_and(OutcomeReason::is_told)
}

/// Notes what shows that the attempt was begun, or done: the order that stands, and another boot id.
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

/// Whether an order that stands is taken back although the new boot is still awaited: the time in which it may be begun is over, or,
/// where it is for a reboot and not for a mark, it was answered, or somebody has said no since. A probe that could not read it until
/// then must not act on it later; one that has acted, and could not say so, is told of by its next boot id.
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
        // An order that was answered stands for as long as the mark.
        ActionType::MarkForReboot => return step.reason.is_none() && is_late,
        _ => return false,
    }
    let named = ending::policy_of(ctx, remediation).and_then(|policy| attempt::step_of(policy, remediation, step));
    let is_agreed =
        named.is_some_and(|named| !named.needs_approval() || remediation.approved(&step.operation_id).is_some());
    step.reason.is_some() || is_late || !is_agreed || ending::must_stop(ctx, facts, remediation).is_some()
}

/// A reboot that was ordered: another boot id is awaited, for as long as the step says. The order is given once.
pub(super) fn wait(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    record: &StepRecord,
    wake: &mut Wake,
) {
    let now = ctx.snapshot.now;
    let (timeout, _) = times(ctx, record, attempt::step_of(policy, &turn.remediation, record));
    let age = since(now, record.started_at.unwrap_or(record.scheduled_at));
    if age < timeout {
        wake.when_past(Duration::from_secs(ctx.settings.order_ttl_seconds.into()), since(now, record.scheduled_at));
        return wake.at(timeout.saturating_sub(age));
    }
    let told = facts.own_report().and_then(|report| report.heartbeat.as_ref());
    let told = told.map(|heartbeat| heartbeat.boot_id.as_str()).filter(|told| Some(*told) != record.boot_id.as_deref());
    // It is back, and its kubelet is not: that is another matter for whoever looks after it.
    let back = told.map_or_else(String::new, |told| format!("; its probe reports boot id {told:?}, its Node does not"));
    let why = format!("node {} has not booted anew within {}s: {}{back}", facts.name, timeout.as_secs(), said(record));
    attempt::end(turn, StepState::TimedOut, &why, now);
}

/// How long a step is given in all, and for how long its cure has to stand; also where the policy does not name it any more.
pub(super) fn times(ctx: Ctx<'_>, record: &StepRecord, step: Option<&Step>) -> (Duration, Duration) {
    let least = if record.action.boots() { AWAY } else { ctx.settings.answer_within };
    // For a boot that was awaited for hours its cure is not.
    if let Some(step) = step.filter(|_| record.action == ActionType::MarkForReboot) {
        return (step.timeout.min(AWAY.saturating_add(step.stable_for)), step.stable_for);
    }
    step.map_or((least, Duration::from_secs(5)), |step| (step.timeout, step.stable_for))
}

/// Whether a clean look is one of the new boot. Of any other step: yes.
pub(super) fn is_looked_anew(facts: &NodeContext<'_>, record: &StepRecord) -> bool {
    !record.action.boots()
        || boot_of(facts).is_ok_and(|boot| record.boot_id.as_deref().is_some_and(|before| before != boot))
}

/// Since when the time of the step runs: a reboot takes its time from the order on, not from the new boot on.
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
