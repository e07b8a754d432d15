//! What no action may touch: running pods, pods above a hung process, sets whose pods were deleted without success.

use crate::context::{Block, NodeContext, ObservedFault};
use crate::plan::BlockReason;
use std::time::Duration;

use super::Ctx;
use crate::command::Signal;
use crate::fault::{Fault, FaultState, PodRef, Role};
use crate::faults::Holds;
use crate::moment::{clock, since};
use crate::policy::{ActionType, Rule, Step};
use crate::remediation::Remediation;
use crate::snapshot::{NodeView, SuspectPod};
use crate::stuck;

/// The pod of a fault.
fn pod_of(fault: &Fault) -> Option<&PodRef> {
    fault.target.pod.as_ref().or(fault.subject.pod.as_ref())
}

/// Whether the API server reports that the fault's pod is being deleted.
pub(super) fn is_terminating(ctx: Ctx<'_>, fault: &Fault) -> bool {
    pod_of(fault).is_some_and(|pod| ctx.snapshot.terminating.contains(pod))
}

/// Blocks a kill of a shim unless its pod is being deleted or the policy allows it: the kill ends every container of the pod.
pub(super) fn release(ctx: Ctx<'_>, fault: &Fault, signal: Signal, allow_running: bool) -> Result<(), Block> {
    let is_kill = signal == Signal::Kill && fault.kind.spec().remedy.hung_process == Ok(Role::Shim);
    let role = fault.target.process.as_ref().map(|process| process.role);
    // No container depends on a `runc create` yet.
    if !is_kill || role == Some(Role::RuntimeClient) || allow_running || is_terminating(ctx, fault) {
        return Ok(());
    }
    let pod = pod_of(fault).map_or_else(|| "its pod".to_owned(), |pod| format!("pod {pod}"));
    let message = format!(
        "{} ({}): killing its shim would end all containers of {pod}, which is not being deleted; delete the pod, or \
         set allowRunningPods in the step",
        fault.kind, fault.subject
    );
    Err(Block::new(BlockReason::PodsRunning, &message))
}

/// The data that was read about the pod of a fault.
pub(super) fn suspect<'a>(facts: &NodeContext<'a>, fault: &Fault) -> Option<&'a SuspectPod> {
    let uid = &pod_of(fault)?.uid;
    facts.pods.iter().find(|pod| pod.pod.uid == *uid).copied()
}

/// Whether the pod of a stuck-pod fault is already being deleted.
pub(super) fn is_being_deleted(facts: &NodeContext<'_>, fault: &Fault) -> bool {
    suspect(facts, fault).is_some_and(|pod| pod.overdue.is_some())
}

/// The hung process on the node below the pod. A delete above it would only add a second hang. A suspected one is enough.
pub(super) fn hung_process<'f>(facts: &'f NodeContext<'_>, fault: &Fault) -> Option<&'f ObservedFault<'f>> {
    hung_processes(facts, fault).next()
}

/// All hung processes below the pod, the most urgent first.
pub(super) fn hung_processes<'f>(
    facts: &'f NodeContext<'_>,
    fault: &Fault,
) -> impl Iterator<Item = &'f ObservedFault<'f>> {
    let waits = suspect(facts, fault).is_none_or(stuck::waits_for_the_network);
    let pod = pod_of(fault).map(|pod| pod.uid.clone());
    facts.seen.iter().filter(move |seen| {
        let Some(uid) = &pod else { return false };
        let is_own = seen.fault.is_about_pod(uid);
        let spec = seen.fault.kind.spec();
        match spec.holds {
            Holds::OwnPod => is_own,
            Holds::OwnPodAndWaiters => is_own || waits,
            // If the runtime is unresponsive, it is unknown what hangs, and the runtime could not delete the pod.
            Holds::Nothing => spec.runtime_unresponsive,
        }
    })
}

/// Whether the stuck DaemonSet pod may be deleted now.
pub(super) fn delete_pod(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    seen: &ObservedFault<'_>,
    rule: &Rule,
    step: &Step,
) -> Result<(), Block> {
    let fault = &seen.fault;
    let name = pod_of(fault).map_or_else(String::new, ToString::to_string);
    let Some(pod) = suspect(facts, fault).filter(|pod| pod.daemon_set.is_some()) else {
        let message = format!("pod {name} is not known as a DaemonSet's pod: only those are deleted");
        return Err(Block::new(BlockReason::ActionsDisabled, &message));
    };
    if let Some(hung) = hung_process(facts, fault) {
        let sure = if hung.fault.state == FaultState::Suspected { " is suspected" } else { "" };
        let message = format!(
            "pod {name}: {} ({}){sure} must be released first; a delete above it would only hang as well",
            hung.fault.kind, hung.fault.subject
        );
        return Err(Block::new(BlockReason::HungProcessFirst, &message));
    }
    if let Some(taint) = facts.view.and_then(NodeView::repels_daemon_sets) {
        let message = format!(
            "pod {name}: under the taint {taint} of {} it would have no successor; blocked until the taint is removed from the node",
            facts.name
        );
        return Err(Block::new(BlockReason::ActionsDisabled, &message));
    }
    if stuck::waits_for_the_node(pod)
        && let Some(age) = last_act(ctx, facts, &fault.id)
        && age < ctx.settings.settle
    {
        let message = format!(
            "pod {name}: a fault was resolved on {} less than {}s ago, Kubernetes gets time to start the pod",
            facts.name,
            ctx.settings.settle.as_secs()
        );
        return Err(Block::new(BlockReason::Cooldown, &message).until(ctx.settings.settle.saturating_sub(age)));
    }
    deleted_in_vain(ctx, facts, pod, rule, step)
}

/// Time since the last action on the node for another fault.
fn last_act(ctx: Ctx<'_>, facts: &NodeContext<'_>, fault_id: &str) -> Option<Duration> {
    facts
        .open
        .iter()
        .chain(&facts.finished)
        .flat_map(|remediation| &remediation.steps)
        .filter(|step| step.fault_id != fault_id && step.action.heals())
        .filter_map(|step| step.executed_at)
        .map(|at| since(ctx.snapshot.now, at))
        .min()
}

/// Blocks repeated deletions. The successor of a deleted pod is another pod and another fault, so the count is by DaemonSet on
/// the node.
fn deleted_in_vain(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    pod: &SuspectPod,
    rule: &Rule,
    step: &Step,
) -> Result<(), Block> {
    let memory = ctx.settings.failed_memory;
    let is_same_set = |remediation: &Remediation, id: &str| {
        remediation.fault(id).is_some_and(|fault| {
            fault.rule == rule.name
                && fault.subject.name == pod.daemon_set
                && fault.subject.pod.as_ref().is_some_and(|p| p.namespace == pod.pod.namespace)
        })
    };
    let mut deletions: Vec<_> = facts
        .open
        .iter()
        .chain(&facts.finished)
        .flat_map(|remediation| remediation.steps.iter().map(move |step| (remediation, step)))
        .filter(|(_, record)| record.action == ActionType::DeletePod)
        .filter_map(|(remediation, record)| Some((remediation, record, record.executed_at?)))
        .filter(|(_, _, at)| since(ctx.snapshot.now, *at) < memory)
        .filter(|(remediation, record, _)| is_same_set(remediation, &record.fault_id))
        .map(|(_, _, at)| at)
        .collect();
    deletions.sort_unstable();
    let attempts = usize::try_from(step.max_attempts).unwrap_or(usize::MAX);
    // The deletion that has to grow old before another one is allowed.
    let Some(oldest) = deletions.len().checked_sub(attempts).and_then(|i| deletions.get(i)) else { return Ok(()) };
    let until = oldest.checked_add(memory).unwrap_or(*oldest);
    let message = format!(
        "DaemonSet {}/{}: its pod on {} was deleted {} time(s) within {} min and its successor is stuck again; not \
         before {}",
        pod.pod.namespace,
        pod.daemon_set.as_deref().unwrap_or_default(),
        facts.name,
        deletions.len(),
        memory.as_secs() / 60,
        clock(until)
    );
    Err(Block::new(BlockReason::RecentlyFailed, &message)
        .until(memory.saturating_sub(since(ctx.snapshot.now, *oldest))))
}
