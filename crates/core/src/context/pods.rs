//! The pod of a fault, and what hangs below it.

use super::{NodeContext, ObservedFault};
use crate::fault::Fault;
use crate::faults::Holds;
use crate::matching::pod_of;
use crate::snapshot::SuspectPod;
use crate::stuck;

/// Whether the API server reports that the fault's pod is being deleted on this node.
pub(crate) fn is_terminating(node: &NodeContext<'_>, fault: &Fault) -> bool {
    let of_node = node.cluster.snapshot.terminating.get(node.name);
    pod_of(fault).zip(of_node).is_some_and(|(pod, terminating)| terminating.contains(pod))
}

/// The data that was read about the pod of a fault.
pub(crate) fn suspect<'a>(node: &NodeContext<'a>, fault: &Fault) -> Option<&'a SuspectPod> {
    let uid = &pod_of(fault)?.uid;
    node.pods.iter().find(|pod| pod.pod.uid == *uid).copied()
}

/// The hung processes on the node below the pod, the most urgent first. A delete above one would only add a second hang.
/// A suspected one is enough.
pub(crate) fn hung_processes<'f>(
    node: &'f NodeContext<'_>,
    fault: &Fault,
) -> impl Iterator<Item = &'f ObservedFault<'f>> {
    let waits = suspect(node, fault).is_none_or(stuck::waits_for_the_network);
    let pod = pod_of(fault).map(|pod| pod.uid.clone());
    node.seen.iter().filter(move |seen| {
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
