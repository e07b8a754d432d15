//! Markers that request a reboot by another tool: how long a marker stays, and when it is withdrawn.
//!
//! ```text
//! Scheduled ─► Started: the marker stays as long as the command is active ─► another boot id ─► Verifying, as with a reboot
//!                └ no longer wanted, the fault is gone, or the timeout is over: the command is withdrawn, and the node removes
//!                  the marker
//! ```
//!
//! The marker can be withdrawn until the other tool starts. Each pass therefore checks all conditions again.

use crate::context::{ClearCheck, NodeContext, ObservedFault, Probe, Wake, exclusion, of_policy};
use std::time::Duration;

use super::update::RemediationUpdate;
use super::{Ctx, attempt, ending, reboot};
use crate::command::{ActionCommand, OutcomeReason};
use crate::fault::{Daemon, FaultState};
use crate::moment::since;
use crate::policy::{ActionType, Policy, Step};
use crate::reboot::{MARK_STANDS, MarkOrder};
use crate::remediation::{StepRecord, StepState};
use crate::snapshot::{SHUTTING_DOWN, TriState};
use crate::window;

/// How long a node may look as if no tool could drain it before its marker is withdrawn: a machine that goes down looks the same.
const GRACE: Duration = Duration::from_mins(5);

/// How often a marker is checked again: no event reports the end of a window.
const RHYTHM: Duration = Duration::from_mins(1);

/// The marker part of the command to the node executor, where the step makes a marker.
pub(super) fn order(record: &StepRecord, step: &Step) -> Option<MarkOrder> {
    let with = record.mark_for_reboot.as_ref()?;
    let seconds = u32::try_from(step.timeout.as_secs()).unwrap_or(MARK_STANDS);
    Some(MarkOrder { path: with.path.clone(), expires_after_seconds: seconds.clamp(1, MARK_STANDS) })
}

/// Whether the node has reported that it carries a marker, the controller's own or somebody else's.
pub(super) const fn is_carried(step: &StepRecord) -> bool {
    use OutcomeReason as R;
    matches!(step.action, ActionType::MarkForReboot)
        && matches!(step.reason, Some(R::Executed | R::AlreadyRequested | R::AlreadyExecuted))
}

/// Waits for another boot id after a marker was commanded, until the timeout of the step and while the conditions still hold.
pub(super) fn wait(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    turn: &mut RemediationUpdate,
    record: &StepRecord,
    wake: &mut Wake,
) {
    let now = ctx.snapshot.now;
    if let Some(why) = must_stop(ctx, facts, turn, record) {
        return ending::cancel(ctx, &mut turn.remediation, &told(facts, record, &why));
    }
    let Some(step) = of_policy::step_of(policy, &turn.remediation, record) else {
        return attempt::end(
            turn,
            StepState::Cancelled,
            &told(facts, record, "the policy does not name this step any more"),
            now,
        );
    };
    if step.needs_approval() && turn.remediation.approved(&record.operation_id).is_none() {
        let why = told(facts, record, "its approval was taken back, or the policy asks for one now");
        return attempt::end(turn, StepState::Cancelled, &why, now);
    }
    if let Some(why) = cannot_be(facts, record, now).or_else(|| closed_reason(facts, policy, record, now)) {
        return attempt::end(turn, StepState::Cancelled, &why, now);
    }
    let begun = record.started_at.unwrap_or(record.scheduled_at);
    if is_gone(ctx, facts, turn, record, begun) {
        let why = "the fault was gone before the node was booted anew: the mark is not wanted any more";
        return attempt::end(turn, StepState::Cancelled, why, now);
    }
    let (age, waited) = (since(now, begun), since(now, record.scheduled_at));
    if record.reason.is_none() && waited >= ctx.settings.answer_within {
        let why = "the node did not say in time whether it carries the mark";
        return attempt::end(turn, StepState::TimedOut, why, now);
    }
    let order = facts.own_command().filter(|order| order.operation_id == record.operation_id);
    // The command was withdrawn before the answer arrived, or is gone with the `NodeCommand`. The awaited boot would never come.
    if order.is_none() && record.reason.is_some() && age > ctx.settings.cache_lag {
        let why = "its command was withdrawn, so the node has removed our file";
        return attempt::end(turn, StepState::Cancelled, why, now);
    }
    // The marker ends at the time in its command, whatever has changed in the policy since.
    let timeout = order.and_then(stands_for).map_or(step.timeout, |stands| stands.min(step.timeout));
    if age >= timeout {
        let (name, said, timeout) = (facts.name, reboot::said(record), timeout.as_secs());
        let why = format!("nobody has booted node {name} anew within {timeout}s: {said}");
        return attempt::end(turn, StepState::TimedOut, &told(facts, record, &why), now);
    }
    if record.reason.is_none() {
        wake.when_past(Duration::from_secs(ctx.settings.order_ttl_seconds.into()), waited);
        wake.at(ctx.settings.answer_within.saturating_sub(waited));
    } else {
        wake.when_past(ctx.settings.cache_lag, age);
    }
    wake.at(timeout.saturating_sub(age).min(RHYTHM));
}

/// The message why the marker ended. It adds what a person has to do if the node may still carry the marker and no probe can
/// remove it.
fn told(facts: &NodeContext<'_>, record: &StepRecord, why: &str) -> String {
    let path = record.mark_for_reboot.as_ref().map(|with| with.path.as_str()).unwrap_or_default();
    let is_ours = is_carried(record) && record.reason != Some(OutcomeReason::AlreadyRequested);
    if facts.probe == Probe::Reporting || !is_ours {
        return why.to_owned();
    }
    format!("{why}; its probe does not report: if none comes back, the file may still be there: remove {path}")
}

/// The reason why no tool can drain the node for its marker, else `None`. Only a report from the boot that was to end counts: a
/// missing report may be the boot itself.
fn cannot_be(facts: &NodeContext<'_>, record: &StepRecord, now: jiff::Timestamp) -> Option<String> {
    let report = facts.report.filter(|_| facts.probe == Probe::Reporting)?;
    let boot = report.heartbeat.as_ref().map(|heartbeat| heartbeat.boot_id.as_str());
    if boot != record.boot_id.as_deref() {
        return None;
    }
    let is_down = |seen: &ObservedFault<'_>| {
        let fault = seen.fault.as_ref();
        fault.kind.spec().down == Some(Daemon::Kubelet) && fault.state == FaultState::Confirmed && seen.lasted >= GRACE
    };
    let view = facts.view?;
    let what = if facts.seen.iter().any(is_down) {
        "its kubelet is down"
    } else if view.ready == TriState::Unknown && view.ready_since.is_some_and(|at| since(now, at) >= GRACE) {
        "whether it is Ready is Unknown"
    } else {
        return None;
    };
    let name = facts.name;
    Some(format!("nobody can drain node {name}, since {what}: the mark makes room for what helps against that"))
}

/// Why no reboot may start now. A reboot that has started, or a node that is already down, is not interrupted.
fn closed_reason(
    facts: &NodeContext<'_>,
    policy: &Policy,
    record: &StepRecord,
    now: jiff::Timestamp,
) -> Option<String> {
    let is_begun = facts.view?.vetoes.iter().any(|veto| SHUTTING_DOWN.contains(&veto.as_str()));
    if facts.probe != Probe::Reporting || is_begun {
        return None;
    }
    let shut = window::shut(&policy.windows, record.action, now)?;
    Some(format!("the mark was taken back, since nobody has rebooted the node until then: {}", shut.message))
}

/// How long the node keeps the marker of this command by itself.
fn stands_for(order: &ActionCommand) -> Option<Duration> {
    Some(Duration::from_secs(order.reboot_marker.as_ref()?.expires_after_seconds.into()))
}

/// The reason why the whole remediation ends. A drain or a shutdown of the node is what a marker requests, so it does not end the
/// remediation. A withdrawal at that time would stop nobody, and the boot would belong to no step.
fn must_stop(ctx: Ctx<'_>, facts: &NodeContext<'_>, turn: &RemediationUpdate, record: &StepRecord) -> Option<String> {
    let passed: &[&str] = if is_carried(record) { &SHUTTING_DOWN } else { &[] };
    exclusion::leave_alone_but(facts, passed).or_else(|| of_policy::policy_stops(ctx.cluster, facts, &turn.remediation))
}

/// Whether a clean check in the boot that was to end shows that the fault is gone. If the probe reports another boot, the Node
/// will show it.
fn is_gone(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    turn: &RemediationUpdate,
    record: &StepRecord,
    begun: jiff::Timestamp,
) -> bool {
    let Some(fault) = turn.remediation.fault(&record.fault_id) else { return true };
    let is_same = reboot::boot_of(facts).is_ok_and(|boot| record.boot_id.as_deref() == Some(boot));
    is_same
        && facts.clear_check(fault, Some(begun), ctx.snapshot.now, ctx.settings.evidence_max_age) == ClearCheck::Clean
}
