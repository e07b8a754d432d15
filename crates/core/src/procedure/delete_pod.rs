//! `DeletePod`: which pod is deleted, and what goes first.

use std::time::Duration;

use super::{AttemptContext, Procedure, StepContext};
use crate::action::{ActionType, DeletePod};
use crate::context::{Block, NodeContext, pods};
use crate::fault::{Fault, FaultState};
use crate::kubelet;
use crate::matching::pod_of;
use crate::moment::{after, clock, since};
use crate::plan::{BlockReason, Operation};
use crate::policy::{Rule, Step};
use crate::remediation::{Remediation, StepRecord, StepState};
use crate::snapshot::{NodeView, SuspectPod};
use crate::stuck;

impl Procedure for DeletePod {
    fn require_applicable(&self, fault: &Fault, node: &NodeContext<'_>) -> Result<(), &'static str> {
        let is_being_deleted = pods::suspect(node, fault).is_some_and(|pod| pod.overdue.is_some());
        if is_being_deleted && pods::hung_processes(node, fault).next().is_none() {
            return Err("the pod is being deleted already");
        }
        Ok(())
    }

    fn admit(&self, cx: &StepContext<'_>) -> Result<(), Block> {
        require_stuck_pod(cx)
    }

    /// The pod is being deleted, although nobody has recorded that. No attempt begins for a pod that is.
    fn observe(&self, node: &NodeContext<'_>, record: &mut StepRecord) {
        let mut same = node.pods.iter().filter(|pod| Some(&pod.pod) == record.target.pod.as_ref());
        if record.state == StepState::Scheduled && same.any(|pod| pod.overdue.is_some()) {
            record.state = StepState::Verifying;
            record.executed_at = Some(node.cluster.snapshot.now);
            record.say("the pod is being deleted since this attempt began");
        }
    }

    fn operation(&self, cx: &AttemptContext<'_>, _: &Fault) -> Option<Operation> {
        cx.record.target.pod.clone().map(Operation::DeletePod)
    }
}

/// Whether the stuck DaemonSet pod may be deleted now.
fn require_stuck_pod(cx: &StepContext<'_>) -> Result<(), Block> {
    let StepContext { node, rule, step, seen } = *cx;
    let fault = &seen.fault;
    let name = pod_of(fault).map_or_else(String::new, ToString::to_string);
    let Some(pod) = pods::suspect(node, fault).filter(|pod| pod.daemon_set.is_some()) else {
        let message = format!("pod {name} is not known as a DaemonSet's pod: only those are deleted");
        return Err(Block::new(BlockReason::ActionsDisabled, &message));
    };
    if let Some(hung) = pods::hung_processes(node, fault).next() {
        let sure = if hung.fault.state == FaultState::Suspected { " is suspected" } else { "" };
        let message = format!(
            "pod {name}: {}{sure} must be released first; a delete above it would only hang as well",
            hung.fault
        );
        return Err(Block::new(BlockReason::HungProcessFirst, &message));
    }
    if let Some(taint) = node.view.and_then(NodeView::repels_daemon_sets) {
        let message = format!(
            "pod {name}: under the taint {taint} of {} it would have no successor; blocked until the taint is removed from the node",
            node.name
        );
        return Err(Block::new(BlockReason::ActionsDisabled, &message));
    }
    if let Some(pressure) = node.view.and_then(kubelet::pressure) {
        let message = format!(
            "pod {name}: a new pod on {} would fare no better under {pressure}; blocked until this condition of the node is False",
            node.name
        );
        return Err(Block::new(BlockReason::ActionsDisabled, &message));
    }
    if stuck::waits_for_the_node(pod)
        && let Some(age) = last_act(node, &fault.id)
        && age < node.cluster.settings.settle
    {
        let message = format!(
            "pod {name}: a fault was resolved on {} less than {}s ago, Kubernetes gets time to start the pod",
            node.name,
            node.cluster.settings.settle.as_secs()
        );
        return Err(Block::new(BlockReason::Cooldown, &message).until(node.cluster.settings.settle.saturating_sub(age)));
    }
    deleted_in_vain(node, pod, rule, step)
}

/// Time since the last action on the node for another fault.
fn last_act(node: &NodeContext<'_>, fault_id: &str) -> Option<Duration> {
    node.remediations()
        .flat_map(|remediation| &remediation.steps)
        .filter(|step| step.fault_id != fault_id && step.action.resolves())
        .filter_map(|step| step.executed_at)
        .map(|at| since(node.cluster.snapshot.now, at))
        .min()
}

/// Blocks repeated deletions, counted by DaemonSet on the node: the successor of a deleted pod is another pod and another fault.
fn deleted_in_vain(node: &NodeContext<'_>, pod: &SuspectPod, rule: &Rule, step: &Step) -> Result<(), Block> {
    let memory = node.cluster.settings.failed_memory;
    let is_same_set = |remediation: &Remediation, id: &str| {
        remediation.fault(id).is_some_and(|fault| {
            fault.rule == rule.name
                && fault.subject.name == pod.daemon_set
                && fault.subject.pod.as_ref().is_some_and(|p| p.namespace == pod.pod.namespace)
        })
    };
    let mut deletions: Vec<_> = node
        .remediations()
        .flat_map(|remediation| remediation.steps.iter().map(move |step| (remediation, step)))
        .filter(|(_, record)| record.action == ActionType::DeletePod)
        .filter(|(remediation, record)| is_same_set(remediation, &record.fault_id))
        .filter_map(|(_, record)| record.executed_at)
        .filter(|at| since(node.cluster.snapshot.now, *at) < memory)
        .collect();
    deletions.sort_unstable();
    let attempts = usize::try_from(step.max_attempts).unwrap_or(usize::MAX);
    // The deletion that has to grow old before another one is allowed.
    let Some(oldest) = deletions.len().checked_sub(attempts).and_then(|i| deletions.get(i)) else { return Ok(()) };
    let (namespace, name) = (&pod.pod.namespace, pod.daemon_set.as_deref().unwrap_or_default());
    let (times, minutes, until) = (deletions.len(), memory.as_secs() / 60, clock(after(*oldest, memory)));
    let message = format!(
        "DaemonSet {namespace}/{name}: its pod on {} was deleted {times} time(s) within {minutes} min and its successor is \
         stuck again; not before {until}",
        node.name
    );
    Err(Block::new(BlockReason::RecentlyFailed, &message)
        .until(memory.saturating_sub(since(node.cluster.snapshot.now, *oldest))))
}
