//! The faults that the controller finds itself.

use std::borrow::Cow;
use std::time::Duration;

use super::{NodeContext, ObservedFault, Probe, conditions};
use crate::fault::Fault;
use crate::faults::probe_not_reporting;
use crate::kubelet;
use crate::snapshot::Heartbeat;
use crate::stuck;

pub(super) fn cluster_faults<'a>(node: &NodeContext<'_>, probe: &[ObservedFault<'a>]) -> Vec<ObservedFault<'a>> {
    let now = node.cluster.snapshot.now;
    let reported: Vec<&Fault> = probe.iter().map(|seen| seen.fault.as_ref()).collect();
    let mut own: Vec<ObservedFault<'a>> = stuck::stuck_pods(now, &node.pods, &reported)
        .into_iter()
        .map(|fault| {
            let uid = fault.subject.pod.as_ref().map(|pod| pod.uid.as_str());
            let read = node.pods.iter().filter(|pod| Some(pod.pod.uid.as_str()) == uid).map(|pod| pod.read).max();
            let lasted = Duration::from_secs(fault.duration_seconds);
            ObservedFault { checked: read.unwrap_or(Duration::MAX), lasted, fault: Cow::Owned(fault) }
        })
        .collect();
    own.extend(of_kubelet(node, &reported));
    own.extend(conditions::seen(node));
    own.extend(node.flap.and_then(|flap| {
        let (fault, lasted) = flap.fault(node.name).zip(flap.flapping)?;
        // The controller watches the Node, so it has the last written state.
        Some(ObservedFault { checked: Duration::ZERO, lasted, fault: Cow::Owned(fault) })
    }));
    if let (Probe::Silent, Some(&Heartbeat { arrived, .. })) = (node.probe, node.heartbeat()) {
        let fault = probe_not_reporting::fault(node.name, now, arrived);
        own.push(ObservedFault { fault: Cow::Owned(fault), checked: Duration::ZERO, lasted: arrived });
    }
    own
}

/// Returns the faults of the kubelet that show in what it writes, and does not write, into its Node.
fn of_kubelet<'a>(node: &NodeContext<'_>, reported: &[&Fault]) -> impl Iterator<Item = ObservedFault<'a>> {
    let process = node.own_report().map(|report| &report.kubelet);
    // Nothing is known of a process that nobody checks any more. One missed heartbeat does not void what is known: the controller
    // watches the Node all the while.
    let checked_process = process.filter(|_| node.probe != Probe::Silent);
    let blocked = node.view.zip(checked_process).and_then(|(view, process)| {
        let fault = kubelet::start_blocked(node.name, view, process, reported)?;
        let lasted = Duration::from_secs(fault.duration_seconds);
        Some(ObservedFault { checked: process.checked, lasted, fault: Cow::Owned(fault) })
    });
    let stalled = node.view.and_then(|view| {
        let fault = kubelet::pleg_stalled(node.name, view, process, reported)?;
        // Not by the time in the Node: the node's clock may be wrong.
        let lasted = node.stalled.unwrap_or_default();
        Some(ObservedFault { checked: Duration::ZERO, lasted, fault: Cow::Owned(fault) })
    });
    blocked.into_iter().chain(stalled)
}
