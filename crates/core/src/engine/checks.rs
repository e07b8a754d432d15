//! Checks of a step that depend on no other step: its rule, its window, the limit of its node, its cool-down.

use std::time::Duration;

use jiff::Timestamp;

use super::{PolicyContext, limits};
use crate::context::{Block, NodeContext, of_policy};
use crate::fault::Fault;
use crate::faults::ShowsIn;
use crate::moment::{after, clock, since};
use crate::plan::BlockReason;
use crate::policy::{Applicability, Rule, Step};
use crate::remediation::{Remediation, RemediationFault, StepRecord};
use crate::window;

/// Least time between a refusal for a changed target and the next try.
const FREE_WAIT: Duration = Duration::from_secs(10);
/// How often the engine tries a step that the API server rejects.
pub(super) const MAX_REFUSED_CALLS: usize = 3;
/// Minimum wait after a rejection, whatever the cool-down of the step is.
const REFUSED_CALL_WAIT: Duration = Duration::from_secs(10);

/// Checks that the rule still applies to the fault. Another tool may have changed the reason to one that only another rule names.
/// The pod may have other labels by now, and the node another kubelet. No rule that takes precedence may turn out to apply as
/// well. Unknown data never prevents a notification.
pub(super) fn still_asked_for(cx: PolicyContext<'_>, rule: &Rule, fault: &Fault, step: &Step) -> Result<(), Block> {
    let PolicyContext { node, policy, .. } = cx;
    if fault.kind.spec().shows_in == ShowsIn::Condition && !rule.is_for(fault) {
        let message = format!("{fault}: its reason now is none that rule {} names", rule.name);
        return Err(Block::new(BlockReason::NotConfirmed, &message));
    }
    match policy.still_means(rule, fault, &node.around) {
        Applicability::No(why) => {
            let message = format!("{fault}: rule {} is not for it any more: {why}", rule.name);
            Err(Block::new(BlockReason::NotConfirmed, &message))
        }
        Applicability::Other(other) => {
            let message = format!(
                "{fault} is for rule {} of policy {} by now, which precedes rule {}",
                other.name, policy.name, rule.name
            );
            Err(Block::new(BlockReason::NotConfirmed, &message))
        }
        _ if step.action.notifies() => Ok(()),
        Applicability::Perhaps(other, lack) => Err(of_policy::uncertain(policy, other, fault, &lack)),
        Applicability::Yes => match node.policy_for(fault) {
            Some(first) => of_policy::known_rule(node, first, fault).map(drop),
            None => Ok(()),
        },
    }
}

/// Checks whether the policy may act on the node once more.
pub(super) fn of_node(cx: PolicyContext<'_>, remediation: Option<&Remediation>) -> Result<(), Block> {
    let (limit, now) = (cx.policy.limits.per_node, cx.snapshot.now);
    // An attempt that ends in this pass counts for the next one, as it does once it is written.
    let all = cx.node.remediations_by(cx.policy);
    let all = all.map(|one| remediation.filter(|own| own.name == one.name).unwrap_or(one));
    let Some(spent) = limits::spent(cx.node, all, cx.policy) else { return Ok(()) };
    let (node, policy, minutes) = (cx.node.name, &cx.policy.name, limit.window.as_secs() / 60);
    let (actions, until) = (spent.actions, clock(spent.until));
    let message = if spent.is_slow {
        format!(
            "the actions on node {node} have kept policy {policy} waiting for a quarter of {minutes} min or more \
             (limits.perNode); other nodes go first until {until}"
        )
    } else {
        format!(
            "node {node} got {actions} actions within {minutes} min by policy {policy} (limits.perNode); the next one not \
             before {until}"
        )
    };
    Err(Block::new(BlockReason::NodeLimit, &message).until(since(spent.until, now).min(limit.window)))
}

pub(super) fn in_window(cx: PolicyContext<'_>, step: &Step) -> Result<(), Block> {
    let Some(shut) = window::shut(&cx.policy.windows, step.action.kind(), cx.snapshot.now) else { return Ok(()) };
    let block = Block::new(BlockReason::OutsideWindow, &format!("policy {}: {}", cx.policy.name, shut.message));
    Err(match shut.until {
        Some(until) => block.until(until),
        None => block,
    })
}

/// The step's last attempt, its end, and how long the next one has to wait from then on.
fn last_attempt<'r>(
    remediation: &'r Remediation,
    open_fault: &'r RemediationFault,
    step: &'r Step,
) -> Option<(&'r StepRecord, Timestamp, Duration)> {
    let last = remediation.attempts_for(open_fault, step).rev().find(|record| record.state.is_final())?;
    let wait = if last.is_free() { step.cooldown.min(FREE_WAIT) } else { step.cooldown };
    Some((last, last.finished_at?, wait))
}

/// When the cool-down after the step's last attempt ends, past or not.
pub(super) fn cools_until(remediation: &Remediation, open_fault: &RemediationFault, step: &Step) -> Option<Timestamp> {
    let (_, finished, wait) = last_attempt(remediation, open_fault, step)?;
    finished.checked_add(wait).ok()
}

pub(super) fn cooled_down(
    node: &NodeContext<'_>,
    remediation: &Remediation,
    open_fault: &RemediationFault,
    step: &Step,
) -> Result<(), Block> {
    let Some((last, finished, wait)) = last_attempt(remediation, open_fault, step) else { return Ok(()) };
    let age = since(node.cluster.snapshot.now, finished);
    let has_later_report = node.arrived().is_some_and(|arrived| arrived < age);
    // A probe that becomes unresponsive meanwhile must not block the step, and with it the policy's slot, for ever. After the
    // block timeout the evidence check itself blocks the step, for no longer than anything may be blocked.
    let block_timeout = node.cluster.block_timeout(step);
    if age >= wait && (!last.is_free() || has_later_report || age >= block_timeout) {
        return Ok(());
    }
    let (kind, name, action) = (open_fault.kind, node.name, last.phrase());
    if age >= wait {
        let message = format!("{kind} on {name}: after {action} a new report of the probe is awaited");
        return Err(Block::new(BlockReason::Cooldown, &message).until(block_timeout.saturating_sub(age)));
    }
    let until = clock(after(finished, wait));
    let message = format!("{kind} on {name}: {action} waits for its cool-down until {until}");
    Err(Block::new(BlockReason::Cooldown, &message).until(wait.saturating_sub(age)))
}

/// Blocks every step for the fault while the API server has just rejected a call for it, because of the controller's permissions,
/// an admission policy or a schema.
///
/// Such a call has changed nothing and says nothing about the use of the step, so it is no attempt. The answer comes within
/// milliseconds, so the engine tries nothing further for the fault before the step's cool-down ends, and then the same step
/// again. After [some tries](MAX_REFUSED_CALLS) only notifications follow: no node gets a harsher step because of the
/// controller's own mistake.
pub(super) fn after_refused_call(
    now: Timestamp,
    remediation: &Remediation,
    open_fault: &RemediationFault,
    rule: &Rule,
) -> Result<(), Block> {
    let last =
        remediation.steps.iter().rev().find(|record| record.fault_id == open_fault.id && record.state.is_final());
    let Some(record) = last.filter(|record| record.is_refused_call()) else { return Ok(()) };
    let Some(finished) = record.finished_at else { return Ok(()) };
    let wait = rule.step(record.step_index).map_or(REFUSED_CALL_WAIT, |step| step.cooldown.max(REFUSED_CALL_WAIT));
    let age = since(now, finished);
    if age >= wait {
        return Ok(());
    }
    let (action, kind, said) = (record.phrase(), open_fault.kind, record.short_message());
    let until = clock(after(finished, wait));
    let message =
        format!("{action} for {kind}: {said}; nothing was touched, nothing further is tried for it before {until}");
    Err(Block::new(BlockReason::RequestRejected, &message).until(wait.saturating_sub(age)))
}
