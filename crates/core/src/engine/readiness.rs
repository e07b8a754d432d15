//! Whether remediation of a fault may begin: every reason against it, in the order in which a person would ask.

use std::collections::BTreeMap;

use super::select::EvidenceRequirement;
use super::storm::{self, StormPhase};
use super::{PolicyContext, scope, select};
use crate::budget::{Kinds, Slots};
use crate::context::{Block, NodeContext, ObservedFault, conditions, evidence, exclusion, of_policy, unreadable};
use crate::fault::{Fault, FaultType};
use crate::moment::{after, clock, since};
use crate::plan::BlockReason;
use crate::policy::{Mode, Rule, why_none};
use crate::remediation::{CancelledRemediation, Phase, Remediation, RemediationFault, Resolution};

/// How often one fault may recur within the memory before a person has to check it.
const MAX_RECURRENCES: usize = 3;

/// The rule under which a confirmed fault may be remediated now, or why it may not, its cause and storms and budgets aside.
pub(super) fn of_fault<'p>(cx: PolicyContext<'p>, seen: &ObservedFault<'_>) -> Result<&'p Rule, Block> {
    let fault = seen.fault.as_ref();
    unreadable::may_begin(cx.node)?;
    exclusion::excluded(cx.node)?;
    if cx.policy.suspend {
        return Err(Block::new(BlockReason::Suspended, &format!("policy {} is suspended", cx.policy.name)));
    }
    if let Some(why) = scope::broken(cx.policy) {
        return Err(Block::new(BlockReason::Paused, &why));
    }
    let Some(rule) = of_policy::known_rule(cx.node, cx.policy, fault)? else {
        let (policy, kind, severity, subject) = (&cx.policy.name, fault.kind, fault.severity.as_str(), &fault.subject);
        let why = why_none(cx.policy, fault, &cx.node.around).map_or_else(String::new, |why| format!("; {why}"));
        let message = format!("policy {policy} has no rule for {kind} of severity {severity} ({subject}){why}");
        return Err(Block::new(BlockReason::NoRule, &message));
    };
    remembered(cx.node, fault)?;
    let lasted = conditions::lasted(cx.node, seen, rule);
    if lasted < rule.min_duration {
        let message =
            format!("{fault}: rule {} waits until it has been there for {}s", rule.name, rule.min_duration.as_secs());
        return Err(
            Block::new(BlockReason::MinDurationNotReached, &message).until(rule.min_duration.saturating_sub(lasted))
        );
    }
    first_step(cx, seen, rule)?;
    Ok(rule)
}

/// Blocks a fault whose storm is rising.
pub(super) fn no_storm(cx: PolicyContext<'_>, fault: &Fault, rule: &Rule) -> Result<(), Block> {
    let storm = cx.scope().and_then(|scope| scope.storms.get(&fault.kind));
    if storm.and_then(|storm| storm.on(cx.node.view)) != Some(StormPhase::Rising) || !rule.acts() {
        return Ok(());
    }
    let message = format!(
        "many nodes of policy {} have the same new {}: nothing starts for it until no more come, since one cause is more likely than many faulty nodes (limits.storm; the policy's status has the number)",
        cx.policy.name, fault.kind
    );
    Err(Block::new(BlockReason::Storm, &message).until(storm::AGAIN))
}

/// Returns why a fault waits after a storm: only a few nodes are remediated at a time, and more once that has helped.
pub(super) fn after_storm(cx: PolicyContext<'_>, kind: FaultType, rule: &Rule, slots: &Slots) -> Option<Block> {
    let (policy, node) = (cx.policy, cx.node);
    let Some(StormPhase::Passing(most)) = cx.scope()?.storms.get(&kind)?.on(node.view) else { return None };
    // Remediations of other kinds prove nothing about this kind, however long they wait.
    let used = || slots.at_work_for(&policy.name, policy.mode, &Kinds::from([kind]), Some(node.name));
    if !rule.acts() || used() < most {
        return None;
    }
    let message = format!(
        "many nodes of policy {} have {kind}: only a few are remediated at a time ({most} now), and twice as many once that has helped (limits.storm)",
        policy.name
    );
    Some(Block::new(BlockReason::Storm, &message))
}

/// Why a remediation that rests starts nothing for faults of these kinds after a storm: it needs a place like a new one.
pub(super) fn held_after_storm(
    cx: PolicyContext<'_>,
    remediation: &Remediation,
    slots: &Slots,
) -> BTreeMap<FaultType, Block> {
    let faults = remediation.faults.iter().filter(|_| slots.rests(&remediation.name));
    let held = |fault: &RemediationFault| {
        Some((fault.kind, after_storm(cx, fault.kind, cx.policy.rule(&fault.rule)?, slots)?))
    };
    faults.filter_map(held).collect()
}

/// Whether the first step that applies, and the first that resolves the fault, may be taken. No node is cordoned or
/// drained for a blocked step.
fn first_step(cx: PolicyContext<'_>, seen: &ObservedFault<'_>, rule: &Rule) -> Result<(), Block> {
    let mut open_fault = seen.opened(cx.snapshot.now, rule);
    let mut notes = Vec::new();
    let mut keeps = false;
    loop {
        let step = select::select_step(cx, &mut open_fault, rule, None, Some(&seen.fault), &mut notes);
        let Some(step) = step else {
            // No step follows the cordon, and the cordon is to stay: the policy asks for exactly that.
            if keeps {
                return Ok(());
            }
            evidence::may_be_touched(cx.node, seen.fault.kind)?;
            let why = notes
                .last()
                .map_or_else(|| format!("rule {} has none that remediates or notifies", rule.name), Clone::clone);
            return Err(Block::new(BlockReason::NoRule, &format!("no step can be taken: {why}")));
        };
        // A hand-off or a drain that the controller may not execute does not block the other steps of the node, nor does a node on which
        // nothing may be done block a notification.
        let lacking = select::require_available(cx.node, open_fault.kind, step).err();
        notes.extend(lacking.iter().map(|block| block.message().to_owned()));
        if step.mode == Mode::DryRun || lacking.is_some() {
            open_fault.step_index = if step.mode == Mode::DryRun {
                open_fault.step_index.saturating_add(1)
            } else {
                rule.step_after_skip(step, open_fault.step_index)
            };
            continue;
        }
        select::may_take(cx, None, seen, rule, step, EvidenceRequirement::Fresh)?;
        if !step.action.contains() {
            return Ok(());
        }
        keeps |= step.action.quarantine().is_some();
        open_fault.step_index += 1;
    }
}

/// The stop of remediation of this node by a person, while it counts. Its sources are the remediations of the node and the note
/// of a deleted one. While the clocks are disputed, the note stays as it is.
pub(super) fn stopped(node: &NodeContext<'_>) -> Option<CancelledRemediation> {
    let uid = node.view.map(|view| view.uid.as_str())?;
    let noted = node.report.filter(|report| report.node_uid.as_deref() == Some(uid));
    let noted = noted.and_then(|report| report.stopped.clone());
    if node.cluster.snapshot.clock_disputed.is_some() {
        return noted;
    }
    let remediations =
        node.finished.iter().filter(|remediation| remediation.mode == Mode::Enforce && remediation.node_uid == uid);
    let all = remediations.filter_map(|remediation| remediation.stopped()).chain(noted);
    all.filter(|stopped| since(node.cluster.snapshot.now, stopped.at) < node.cluster.settings.failed_memory)
        .max_by(|a, b| a.at.cmp(&b.at).then_with(|| a.cmp(b)))
}

/// Whether earlier remediations of the node block another one.
fn remembered(node: &NodeContext<'_>, fault: &Fault) -> Result<(), Block> {
    let (now, memory) = (node.cluster.snapshot.now, node.cluster.settings.failed_memory);
    let recent = || node.recent.iter().filter_map(|remediation| Some((*remediation, remediation.finished_at?)));
    let block = |message: String, at: jiff::Timestamp| {
        let message = format!("{message}; not tried again before {}", clock(after(at, memory)));
        Err(Block::new(BlockReason::RecentlyFailed, &message).until(memory.saturating_sub(since(now, at))))
    };
    let gave_up = |e: &Remediation| {
        matches!(e.phase, Phase::Failed | Phase::Quarantined | Phase::Cancelled)
            && e.fault(&fault.id).is_some_and(|f| f.state == Resolution::Exhausted)
    };
    let (untried, tried): (Vec<_>, Vec<_>) =
        recent().filter(|(e, _)| gave_up(e)).partition(|(e, _)| e.was_without_checks(&fault.id));
    if !untried.is_empty() {
        // People are notified already. Nothing else can be done before the node may be touched.
        evidence::may_be_touched(node, fault.kind)?;
    }
    if let Some((remediation, at)) = tried.into_iter().max_by_key(|(_, at)| *at) {
        let message = format!("{fault} was not resolved by remediation {}", remediation.name);
        return block(message, at);
    }
    if let Some(stopped) = stopped(node) {
        return block(
            format!("remediation {} of {} was {}", stopped.remediation, node.name, stopped.message),
            stopped.at,
        );
    }
    let resolved = |e: &Remediation| {
        e.fault(&fault.id).is_some_and(RemediationFault::is_resolved_by_steps)
            && e.steps.iter().any(|s| s.fault_id == fault.id && s.executed_at.is_some())
    };
    let mut times: Vec<jiff::Timestamp> = recent().filter(|(e, _)| resolved(e)).map(|(_, at)| at).collect();
    times.sort_unstable();
    match times.len().checked_sub(MAX_RECURRENCES).and_then(|i| times.get(i)) {
        Some(at) => {
            let (times, minutes) = (times.len(), memory.as_secs() / 60);
            block(format!("{fault} came back {times} times within {minutes} min after it was resolved"), *at)
        }
        None => Ok(()),
    }
}
