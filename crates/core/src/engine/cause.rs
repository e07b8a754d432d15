//! Whether the probe has checked the node for the cause of a stuck pod, before the engine acts on the pod or gives up on it.
//!
//! A pod that is not created, or does not terminate, usually waits for something below it: a hung shim, `runc create` or network
//! plugin. If the probe finds that cause too late, one remediation fails and a second one starts.

use std::time::Duration;

use super::{PolicyContext, readiness};
use crate::context::{Block, NodeContext, ObservedFault, pods, stuck_cause};
use crate::fault::{Fault, FaultState, Subject};
use crate::faults::ShowsIn;
use crate::plan::BlockReason;
use crate::policy::Rule;
use crate::remediation::{Remediation, RemediationFault, Resolution};

/// Maximum wait for a probe that cannot check everything, and for a cause that is neither confirmed nor resolved.
pub(super) const MAX_CAUSE_WAIT: Duration = Duration::from_mins(10);
/// Maximum time until the engine checks again whether that wait is over.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Whether the probe has checked for the cause since the pod became stuck, and has found none that is remediated first.
pub(super) fn require_cause_checked(cx: PolicyContext<'_>, fault: &Fault) -> Result<(), Block> {
    let Some(stuck_for) = stuck_cause::waits_for(cx.node, fault) else { return Ok(()) };
    cause_of_other_policy(cx, fault).map_or(Ok(()), Err)?;
    match suspected(cx.node, fault).or_else(|| stuck_cause::unchecked(cx.node, fault, stuck_for)) {
        Some(block) if stuck_for < MAX_CAUSE_WAIT => {
            Err(block.until(MAX_CAUSE_WAIT.saturating_sub(stuck_for).min(RECHECK_INTERVAL)))
        }
        _ => Ok(()),
    }
}

/// The same before a further step of a remediation. It applies to the pod of the fault, or to the stuck successor of that pod.
pub(super) fn require_cause_checked_again(cx: PolicyContext<'_>, open_fault: &RemediationFault) -> Result<(), Block> {
    shown(cx.node, open_fault).map_or(Ok(()), |fault| require_cause_checked(cx, fault))
}

/// Why an open remediation ends early: another policy remediates the cause of each of its faults, so its own steps could only fail.
/// It continues if it has begun a drain, or keeps its node cordoned for a fault that it could not resolve.
pub(super) fn gives_way(cx: PolicyContext<'_>, remediation: &Remediation) -> Option<String> {
    let is_exhausted = remediation.faults.iter().any(|fault| fault.state == Resolution::Exhausted);
    let has_drained = remediation.steps.iter().any(|step| step.action.traits().evicts_pods);
    let mut open = remediation.faults.iter().filter(|fault| fault.state == Resolution::Open).peekable();
    open.peek().filter(|_| !is_exhausted && !has_drained)?;
    let causes: Option<Vec<Block>> =
        open.map(|open_fault| cause_of_other_policy(cx, shown(cx.node, open_fault)?)).collect();
    causes?.first().map(|block| block.message().to_owned())
}

/// A fault of a remediation as it is observed now.
fn shown<'f>(node: &'f NodeContext<'_>, open_fault: &RemediationFault) -> Option<&'f Fault> {
    let (kind, subject) = (open_fault.kind, &open_fault.subject);
    let namespace = |subject: &Subject| subject.pod.as_ref().map(|pod| pod.namespace.clone());
    let is_successor = |seen: &&ObservedFault<'_>| {
        let other = &seen.fault.subject;
        seen.fault.kind == kind && other.name == subject.name && namespace(other) == namespace(subject)
    };
    let successor = || node.seen.iter().find(is_successor).filter(|_| kind.spec().shows_in == ShowsIn::Pod);
    node.find(&open_fault.id).or_else(successor).map(|seen| seen.fault.as_ref())
}

/// Possible causes of the stuck pod, except those that have lasted too long to wait for.
fn causes<'f>(
    node: &'f NodeContext<'_>,
    fault: &Fault,
    state: FaultState,
) -> impl Iterator<Item = &'f ObservedFault<'f>> {
    pods::hung_processes(node, fault).filter(move |seen| seen.fault.state == state && seen.lasted < MAX_CAUSE_WAIT)
}

fn suspected(node: &NodeContext<'_>, fault: &Fault) -> Option<Block> {
    let cause = causes(node, fault, FaultState::Suspected).next()?;
    let message = format!("{fault}: {} is suspected to be the cause, and is confirmed or cleared first", cause.fault);
    Some(Block::new(BlockReason::NotConfirmed, &message))
}

/// Blocks if another policy remediates the cause now, without approval by a person.
fn cause_of_other_policy(cx: PolicyContext<'_>, fault: &Fault) -> Option<Block> {
    stuck_cause::waits_for(cx.node, fault)?;
    let (cause, other) = causes(cx.node, fault, FaultState::Confirmed).find_map(|cause| {
        let other = cx.node.other_for(&cause.fault, cx.policy)?;
        let cx = PolicyContext { policy: other, ..cx };
        // A hung process has no further cause.
        let rule = readiness::of_fault(cx, cause).ok()?;
        readiness::no_storm(cx, &cause.fault, rule).ok()?;
        let is_open = cx.scope().is_some_and(|scope| scope.blocked(Some(cx.node)).is_none());
        let acts = rule.steps.iter().find(|step| step.resolves()).is_some_and(|step| !step.needs_approval());
        (is_open && acts).then_some((cause, other))
    })?;
    let message = format!("{fault}: its cause {} goes first; policy {} remediates it", cause.fault, other.name);
    Some(Block::new(BlockReason::LowerUrgency, &message).until(MAX_CAUSE_WAIT.saturating_sub(cause.lasted)))
}

/// The rule under which a confirmed fault may be remediated now, or why it may not (budgets aside).
pub(super) fn judge<'p>(cx: PolicyContext<'p>, seen: &ObservedFault<'_>) -> Result<&'p Rule, Block> {
    let rule = readiness::of_fault(cx, seen)?;
    require_cause_checked(cx, &seen.fault)?;
    readiness::no_storm(cx, &seen.fault, rule)?;
    Ok(rule)
}
