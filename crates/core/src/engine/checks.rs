//! Checks of a step that depend on no other step: its rule, its window, the limit of its node, its cool-down.

use std::time::Duration;

use jiff::Timestamp;

use super::{Ctx, PolicyContext, limits};
use crate::context::{Block, NodeContext, of_policy};
use crate::fault::Fault;
use crate::faults::ShowsIn;
use crate::moment::{after, clock, since};
use crate::plan::BlockReason;
use crate::policy::{Applicability, Rule, RuleMatch, Step};
use crate::remediation::{Remediation, RemediationFault, StepRecord};
use crate::window;

/// Least time between a refusal for a changed target and the next try.
const FREE_WAIT: Duration = Duration::from_secs(10);

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
        Applicability::Yes => {
            let Some(first) = node.policy_for(fault) else { return Ok(()) };
            match node.rule_of(first, fault) {
                RuleMatch::Perhaps(other, lack) => Err(of_policy::uncertain(first, other, fault, &lack)),
                RuleMatch::Rule(_) | RuleMatch::Nothing => Ok(()),
            }
        }
    }
}

/// Checks whether the policy may act on the node once more.
pub(super) fn of_node(cx: PolicyContext<'_>, remediation: Option<&Remediation>) -> Result<(), Block> {
    let (limit, now) = (cx.policy.limits.per_node, cx.snapshot.now);
    // An attempt that ends in this pass counts for the next one, as it does once it is written.
    let all = cx.node.remediations_by(cx.policy);
    let all = all.map(|one| remediation.filter(|own| own.name == one.name).unwrap_or(one));
    let Some(spent) = limits::spent(cx.node.name, all, cx.policy, now, cx.settings.answer_within) else {
        return Ok(());
    };
    let message = if spent.is_slow {
        format!(
            "the actions on node {} have kept policy {} waiting for a quarter of {} min or more (limits.perNode); other nodes go \
             first until {}",
            cx.node.name,
            cx.policy.name,
            limit.window.as_secs() / 60,
            clock(spent.until)
        )
    } else {
        format!(
            "node {} got {} actions within {} min by policy {} (limits.perNode); the next one not before {}",
            cx.node.name,
            spent.actions,
            limit.window.as_secs() / 60,
            cx.policy.name,
            clock(spent.until)
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
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    remediation: &Remediation,
    open_fault: &RemediationFault,
    step: &Step,
) -> Result<(), Block> {
    let Some((last, finished, wait)) = last_attempt(remediation, open_fault, step) else { return Ok(()) };
    let age = since(ctx.snapshot.now, finished);
    let has_later_report = node.arrived().is_some_and(|arrived| arrived < age);
    // A probe that becomes unresponsive meanwhile must not block the step, and with it the policy's slot, for ever. After the
    // block timeout the evidence check itself blocks the step, for no longer than anything may be blocked.
    let block_timeout = ctx.block_timeout(step);
    if age >= wait && (!last.is_free() || has_later_report || age >= block_timeout) {
        return Ok(());
    }
    if age >= wait {
        let message = format!(
            "{} on {}: after {} a new report of the probe is awaited",
            open_fault.kind,
            node.name,
            last.phrase()
        );
        return Err(Block::new(BlockReason::Cooldown, &message).until(block_timeout.saturating_sub(age)));
    }
    let message = format!(
        "{} on {}: {} waits for its cool-down until {}",
        open_fault.kind,
        node.name,
        last.phrase(),
        clock(after(finished, wait))
    );
    Err(Block::new(BlockReason::Cooldown, &message).until(wait.saturating_sub(age)))
}
