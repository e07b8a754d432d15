//! The steps of a rule: which step is next for a fault, and whether it may be taken now.

use super::{Ctx, PolicyContext, checks};
use crate::action::Action;
use crate::context::{Block, NodeContext, ObservedFault, evidence, of_policy, unreadable};
use crate::fault::{Fault, FaultState, FaultType};
use crate::plan::BlockReason;
use crate::policy::{Mode, OnFailure, Policy, Rule, Step};
use crate::procedure::{self, StepContext};
use crate::remediation::{Remediation, RemediationFault, Resolution, StepRecord, StepState};

/// How often the engine tries a step again at no cost when only its target had changed.
const FREE_TRIES: usize = 5;

/// Checks whether a cordon, taint or drain serves a remediating step that can do something about this fault. Without such a step
/// the node is not quarantined. The check does not apply to a rule without remediating steps, nor to a rule that keeps the
/// cordon: the author of such a rule wants the cordon for itself.
fn containing_helps(step: &Step, rule: &Rule, fault: &Fault, node: &NodeContext<'_>) -> Result<(), &'static str> {
    let mut resolving = rule.steps.iter().filter(|step| step.resolves()).map(|step| &step.action).peekable();
    let is_for_resolving = step.action.contains() && !rule.keeps_cordon();
    // An action that was awaited in vain does not help either.
    let helps = |action: &Action| {
        procedure::addresses(action, fault, node).is_ok()
            && procedure::of(action).require_progress(fault, node, rule).is_ok()
    };
    if !is_for_resolving || resolving.peek().is_none() || resolving.any(helps) {
        return Ok(());
    }
    Err("no step of the rule can resolve it, so the node is not cordoned, tainted or drained for it")
}

/// Whether a later remediating step may be taken now, without approval. The engine does not give up what has helped for a while
/// for a step that is blocked, impossible, or waiting for a person.
fn is_more(ctx: Ctx<'_>, node: &NodeContext<'_>, fault: &Fault, open_fault: &RemediationFault, rule: &Rule) -> bool {
    let (Some(seen), Some(policy)) = (node.find(&fault.id), node.policy_for(fault)) else { return false };
    let cx = PolicyContext { ctx, node, policy };
    let above = usize::try_from(open_fault.step_index).map_or(usize::MAX, |step_index| step_index.saturating_add(1));
    for step in rule.steps.iter().skip(above).filter(|step| step.acts()) {
        let procedure = procedure::of(&step.action);
        let is_available = || procedure.require_available(node).is_ok();
        if step.action.contains() && !is_available() {
            return false;
        }
        if step.resolves() && procedure::addresses(&step.action, fault, node).is_ok() {
            let may = || may_take(cx, None, seen, rule, step, EvidenceRequirement::Fresh).is_ok();
            return !step.needs_approval() && is_available() && may();
        }
    }
    false
}

/// Finds the place of a fault in a rule that was edited: where its last attempt stands elsewhere by now or is gone, it goes on with the
/// first step that was not tried. The old place says nothing about what was tried.
pub(super) fn follow_edit(remediation: &mut Remediation, id: &str, rule: &Rule) {
    let records = || remediation.steps.iter().filter(|record| record.fault_id == id);
    let Some(last) = records().next_back() else { return };
    let is_at = |step: &Step, record: &StepRecord| step.action.is_recorded_as(&record.action);
    if rule.step(last.step_index).is_some_and(|step| is_at(step, last)) {
        return;
    }
    let is_over = |record: &StepRecord| record.state != StepState::Cancelled && !record.is_free();
    let is_tried = |step: &Step| records().any(|record| is_at(step, record) && is_over(record));
    let next = rule.steps.iter().position(|step| is_at(step, last) || !is_tried(step)).unwrap_or(rule.steps.len());
    if let Some(fault) = remediation.fault_mut(id) {
        fault.step_index = u32::try_from(next).unwrap_or(u32::MAX);
    }
}

/// Selects the next step for the fault, by what counts of its past. Returns `None` where no step of the rule is left.
pub(super) fn select_step<'r>(
    cx: PolicyContext<'_>,
    open_fault: &mut RemediationFault,
    rule: &'r Rule,
    remediation: Option<&Remediation>,
    fault: Option<&Fault>,
    notes: &mut Vec<String>,
) -> Option<&'r Step> {
    let node = cx.node;
    // A person who makes a manual request knows what has been done.
    let is_manual = remediation.is_some_and(|remediation| remediation.manual.is_some());
    let spent = |open_fault: &RemediationFault, step: &Step| {
        let fault = fault.filter(|_| !is_manual)?;
        let policy = node.policy_for(fault)?;
        spent_reason(node, open_fault, policy, step).filter(|_| is_more(cx.ctx, node, fault, open_fault, rule))
    };
    loop {
        let step = rule.step(open_fault.step_index)?;
        let (number, action, name) = (open_fault.step_index + 1, step.action.kind().as_str(), &rule.name);
        if let Some(remediation) = remediation.filter(|remediation| is_used_up(open_fault, step, remediation)) {
            open_fault.step_index = match notify_only_reason(open_fault, step, remediation) {
                Some(why) => {
                    notes.push(format!("step {number} {action} of rule {name} {why}, and nothing harsher follows"));
                    rule.next_notify_step(number)
                }
                None => number,
            };
            continue;
        }
        let useful = || -> Result<(), &'static str> {
            let Some(fault) = fault else { return Ok(()) };
            procedure::addresses(&step.action, fault, node)?;
            let procedure = procedure::of(&step.action);
            procedure.require_progress(fault, node, rule)?;
            remediation.map_or(Ok(()), |remediation| procedure.require_untried(step, remediation))?;
            containing_helps(step, rule, fault, node)
        };
        let left_out = spent(open_fault, step).or_else(|| useful().err().map(ToOwned::to_owned));
        let Some(why) = left_out else { return Some(step) };
        notes.push(format!("step {number} {action} of rule {name} left out for {}: {why}", open_fault.kind));
        open_fault.step_index = number;
    }
}

/// Why a step is used up, if it is: it resolved the fault as often as it may be tried, and the fault came back. So that attempt
/// counts as failed, and the next step of the rule follows.
///
/// This applies only if there is a [next step](is_more) that resolves the fault, may run now, and needs no approval beyond the
/// policy. Without such a step the engine repeats the same step, as often as [`readiness`](super::readiness) allows. After that a
/// person takes over. Steps that keep pods away (Cordon, Taint, Drain) run again each time: their effect ends with their
/// remediation.
fn spent_reason(node: &NodeContext<'_>, open_fault: &RemediationFault, policy: &Policy, step: &Step) -> Option<String> {
    if !step.resolves() || step.on_failure == OnFailure::Stop {
        return None;
    }
    let times = times_resolved(node, open_fault, policy, step);
    (times > 0 && times >= step.max_attempts)
        .then(|| format!("it came back {times} time(s) after this step had resolved it"))
}

/// How often this very step, as the policy defines it now, resolved the fault recently before the fault came back.
fn times_resolved(node: &NodeContext<'_>, open_fault: &RemediationFault, policy: &Policy, step: &Step) -> u32 {
    let resolved = |remediation: &&&Remediation| {
        let fault = remediation.fault(&open_fault.id).filter(|was| was.rule == open_fault.rule);
        fault.is_some_and(RemediationFault::is_resolved_by_steps) && remediation.policy == policy.name
    };
    let is_it = |remediation: &Remediation, record: &StepRecord| {
        let is_here = record.fault_id == open_fault.id
            && record.step_index == open_fault.step_index
            && record.executed_at.is_some();
        is_here && of_policy::step_of(policy, remediation, record).is_some_and(|named| named == step)
    };
    let of = |remediation: &&Remediation| remediation.steps.iter().filter(|record| is_it(remediation, record)).count();
    u32::try_from(node.recent.iter().filter(resolved).map(of).sum::<usize>()).unwrap_or(u32::MAX)
}

fn is_used_up(open_fault: &RemediationFault, step: &Step, remediation: &Remediation) -> bool {
    if procedure::of(&step.action).is_done(remediation) {
        return true;
    }
    let (mut used, mut free) = (0_u32, 0_usize);
    for record in remediation.attempts_for(open_fault, step) {
        match record.state {
            _ if record.is_free() => free += 1,
            _ if record.is_refused_call() => {}
            // A dry-run step that is recorded is used up.
            StepState::Simulated if step.mode == Mode::DryRun => return true,
            StepState::Cancelled | StepState::Simulated => {}
            // Somebody else's mark is there: another try would find the same.
            StepState::Succeeded if step.action.traits().marks_node => return true,
            state if state.is_final() => used += 1,
            _ => {}
        }
    }
    used >= step.max_attempts || free >= FREE_TRIES || is_refused(open_fault, step, remediation)
}

/// Why only notifications follow a step that is used up. `None` = the next step follows, as after a cordon, a taint or a drain.
fn notify_only_reason(open_fault: &RemediationFault, step: &Step, remediation: &Remediation) -> Option<&'static str> {
    let is_done = || procedure::of(&step.action).is_done(remediation);
    if step.mode != Mode::Enforce || step.action.traits().marks_node || is_done() {
        return None;
    }
    if is_refused(open_fault, step, remediation) {
        return Some("could not be begun");
    }
    if is_untriable(open_fault, step, remediation) {
        return Some("could not be tried");
    }
    (step.on_failure == OnFailure::Stop).then_some("has failed (onFailure: Stop)")
}

/// Whether the last tries came to nothing because nobody could check the node, or because it was busy.
fn is_untriable(open_fault: &RemediationFault, step: &Step, remediation: &Remediation) -> bool {
    let last = remediation.attempts_for(open_fault, step).rev().take(FREE_TRIES);
    last.filter(|record| record.could_not_be_tried()).count() == FREE_TRIES
}

/// Whether in a row as many calls for the step were refused, or not made in time, as the engine tries.
fn is_refused(open_fault: &RemediationFault, step: &Step, remediation: &Remediation) -> bool {
    let last = remediation.attempts_for(open_fault, step).rev();
    last.take_while(|record| record.is_refused_call()).count() >= checks::MAX_REFUSED_CALLS
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvidenceRequirement {
    /// The probe reports, and has checked recently.
    Fresh,
    /// The last observation. It is enough to notify people when nobody can check the fault any more.
    Any,
}

/// Whether the action of a step can be executed on this node at all.
pub(super) fn require_available(node: &NodeContext<'_>, kind: FaultType, step: &Step) -> Result<(), Block> {
    if !step.action.notifies() {
        evidence::may_be_touched(node, kind)?;
    }
    procedure::of(&step.action).require_available(node)
}

/// Checks whether this step may be taken on this fault now. `remediation` is the one that takes it.
pub(super) fn may_take(
    cx: PolicyContext<'_>,
    remediation: Option<&Remediation>,
    seen: &ObservedFault<'_>,
    rule: &Rule,
    step: &Step,
    required: EvidenceRequirement,
) -> Result<(), Block> {
    unreadable::may_begin(cx.node)?;
    // The window comes before the evidence: no harsher step replaces one that waits for its window, or for a person.
    checks::in_window(cx, step)?;
    if step.disturbs() {
        checks::of_node(cx, remediation)?;
    }
    checks::still_asked_for(cx, rule, &seen.fault, step)?;
    match evidence::require_fresh(cx.node, seen) {
        Err(block) if required == EvidenceRequirement::Any && block.awaits_check() => {}
        checked => checked?,
    }
    if !step.action.notifies() {
        evidence::may_be_touched(cx.node, seen.fault.kind)?;
    }
    let step_cx = StepContext { node: cx.node, rule, step, seen };
    procedure::of(&step.action).admit(&step_cx)?;
    // The release of a hung process does not wait until all pods are evicted.
    let release = step.action.traits().evicts_pods.then(|| release_first(cx, &seen.fault)).flatten();
    let Some(first) = release else { return Ok(()) };
    let message = format!(
        "node {} is drained after the release for {}, which does not wait for the end of a drain",
        cx.node.name, first.fault
    );
    Err(Block::new(BlockReason::HungProcessFirst, &message))
}

/// Finds another fault of the node that names a hung process, and whose next step releases it and may be taken now. The pod
/// above that process could not end, and everything that waits for the process would wait for the whole drain.
pub(super) fn release_first<'x>(cx: PolicyContext<'x>, fault: &Fault) -> Option<&'x ObservedFault<'x>> {
    let is_first = |seen: &&ObservedFault<'_>| {
        let other = seen.fault.as_ref();
        let is_its = cx.node.policy_for(other).is_some_and(|its| its.name == cx.policy.name);
        if other.id == fault.id || other.state != FaultState::Confirmed || !is_its {
            return false;
        }
        let Some((rule, None)) = cx.node.rule_of(cx.policy, other) else { return false };
        let remediation = cx.node.open.iter().copied().find(|remediation| remediation.policy == cx.policy.name);
        let known = remediation.and_then(|remediation| remediation.fault(&other.id));
        let mut open_fault = match known.map(|known| known.state) {
            Some(Resolution::Exhausted) => return false,
            Some(Resolution::Open) => known.cloned().unwrap_or_else(|| seen.opened(cx.snapshot.now, rule)),
            Some(Resolution::Resolved) | None => seen.opened(cx.snapshot.now, rule),
        };
        // A fault that is not open yet is judged as it will be opened.
        let of = remediation.filter(|_| known.is_some_and(|known| known.state == Resolution::Open));
        let step = select_step(cx, &mut open_fault, rule, of, Some(other), &mut Vec::new());
        let Some(step) = step else { return false };
        if !step.action.traits().frees_process || !step.resolves() || step.needs_approval() {
            return false;
        }
        let may = || match known.filter(|known| known.state == Resolution::Open) {
            Some(_) => may_take(cx, None, seen, rule, step, EvidenceRequirement::Fresh),
            None => (cx.judge)(cx, seen),
        };
        // A fault that is not open yet has to join.
        let is_new = known.is_none_or(|known| known.state != Resolution::Open);
        !(is_new && cx.require_unblocked().is_err()) && may().is_ok()
    };
    cx.node.seen.iter().find(is_first)
}

/// Checks that the remediation has prepared the node for this step, and that the remediating step after evictions may be taken.
/// The controller does not drain a node for a step that is blocked anyway. A drain for its own sake waits for no such step.
pub(super) fn require_prepared(
    cx: PolicyContext<'_>,
    remediation: &Remediation,
    open_fault: &RemediationFault,
    seen: &ObservedFault<'_>,
    rule: &Rule,
    step: &Step,
) -> Result<(), Block> {
    procedure::of(&step.action).require_prepared(cx.node, remediation)?;
    if !step.action.traits().evicts_pods || rule.keeps_cordon() {
        return Ok(());
    }
    let (mut after, remediation, fault) = (open_fault.clone(), Some(remediation), Some(seen.fault.as_ref()));
    loop {
        after.step_index = after.step_index.saturating_add(1);
        let next = select_step(cx, &mut after, rule, remediation, fault, &mut Vec::new());
        let Some(next) = next else { return Ok(()) };
        if next.resolves() && procedure::of(&next.action).require_available(cx.node).is_ok() {
            return may_take(cx, None, seen, rule, next, EvidenceRequirement::Fresh);
        }
    }
}
