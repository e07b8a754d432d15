//! Builds the contexts of all nodes from a snapshot.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::cluster_faults::cluster_faults;
use super::node::bounds;
use super::unreadable::Kept;
use super::{ClusterContext, NodeContext, Nodes, ObservedFault, Probe, Requeue};
use crate::fault::{Fault, MAX_FAULTS};
use crate::faults::kubelet_start_blocked;
use crate::flap::{FlapView, QUIET};
use crate::matching::MatchContext;
use crate::moment::since;
use crate::policy::{Mode, Policy};
use crate::remediation::Remediation;
use crate::snapshot::{NodeView, Snapshot, SuspectPod, TriState};
use crate::sorted_cursor::SortedCursor;
use crate::stuck;

pub(crate) fn gather<'a>(
    cluster: ClusterContext<'a>,
    policies: &[&'a Policy],
    only: Option<&str>,
    requeue: &mut Requeue,
) -> Nodes<'a> {
    let snapshot = cluster.snapshot;
    let mut pods: BTreeMap<&str, Vec<&SuspectPod>> = BTreeMap::new();
    for pod in &snapshot.pods {
        pods.entry(&pod.node).or_default().push(pod);
    }
    let mut remediations: BTreeMap<&str, Vec<&Remediation>> = BTreeMap::new();
    for remediation in snapshot.remediations.values() {
        remediations.entry(&remediation.node).or_default().push(remediation);
    }
    let kept = Kept::of(snapshot);
    let live_nodes =
        remediations.iter().filter(|(_, list)| list.iter().any(|e| e.is_live())).map(|(node_name, _)| *node_name);
    let mut names: Vec<&str> =
        snapshot.nodes.keys().chain(snapshot.reports.keys()).map(String::as_str).chain(live_nodes).collect();
    #[expect(
        clippy::stable_sort_primitive,
        reason = "they are runs that are sorted already, which only a stable sort merges"
    )]
    names.sort();
    names.dedup();
    names.retain(|name| only.is_none_or(|only| only == *name));
    let (mut views, mut reports) = (SortedCursor::new(&snapshot.nodes), SortedCursor::new(&snapshot.reports));
    let (mut reads, mut notices) =
        (SortedCursor::new(&snapshot.pods_read), SortedCursor::new(&snapshot.matched_conditions));
    let (mut flaps, mut commands) = (SortedCursor::new(&snapshot.flaps), SortedCursor::new(&snapshot.commands));
    let mut stalls = SortedCursor::new(&snapshot.stalls);
    names
        .into_iter()
        .map(|name| {
            let (view, report, flap) = (views.at(name), reports.at(name), flaps.at(name));
            let pods_read = reads.at(name).copied();
            let mut pods = pods.remove(name).unwrap_or_default();
            // The order of the list must not matter: the same pod must be judged the same.
            pods.sort_by(|a, b| a.pod.cmp(&b.pod).then_with(|| a.read.cmp(&b.read)));
            let mut here = remediations.remove(name).unwrap_or_default();
            here.sort_by(|a, b| a.started_at.cmp(&b.started_at).then_with(|| a.name.cmp(&b.name)));
            let (open, finished): (Vec<&Remediation>, Vec<&Remediation>) =
                here.into_iter().partition(|remediation| remediation.is_open());
            let uid = view.map(|view| view.uid.as_str());
            let recent = recent(&finished, uid, cluster);
            let probe = Probe::of(view, report);
            let mut node = Box::new(NodeContext {
                cluster,
                name,
                view,
                report,
                command: commands.at(name),
                probe,
                seen: Vec::new(),
                pods,
                pods_read,
                pods_unread: snapshot.pods_unread && pods_read.is_none_or(|age| age > stuck::FRESH),
                around: MatchContext {
                    pods: Some(&snapshot.pods_seen),
                    runtime: view.and_then(|view| view.runtime_version.as_deref()),
                    kubelet: view.and_then(|view| view.kubelet_version.as_deref()),
                },
                matched_conditions: notices.at(name).map(Vec::as_slice).unwrap_or_default(),
                flap,
                stalled: stalls.at(name).copied(),
                stable: stable(snapshot, view, flap),
                policies: view.map_or_else(Vec::new, |view| {
                    policies.iter().filter(|policy| policy.selector.matches(&view.labels)).copied().collect()
                }),
                open,
                finished,
                recent,
                unreadable: kept.on(name),
            });
            node.seen = seen(&node);
            plan_wake(&node, requeue);
            (name, node)
        })
        .collect()
}

/// Whether a node does not flap. A node without a history has had no changes for as long as the controller watched it.
fn stable(snapshot: &Snapshot, view: Option<&NodeView>, flap: Option<&FlapView>) -> TriState {
    let is_read = view.is_some_and(|view| view.unreadable.is_none());
    match flap {
        Some(flap) if flap.flapping.is_some() => TriState::False,
        _ if is_read && snapshot.watched_for >= QUIET => TriState::True,
        _ => TriState::Unknown,
    }
}

fn seen<'a>(node: &NodeContext<'a>) -> Vec<ObservedFault<'a>> {
    let mut all: Vec<ObservedFault<'a>> = Vec::new();
    if node.owns_report()
        && let Some(report) = node.report
    {
        let arrived = report.heartbeat.as_ref().map_or(Duration::ZERO, |heartbeat| heartbeat.arrived);
        // A probe cannot report what only the controller can know.
        for reported in report.faults.iter().filter(|r| !r.fault.kind.is_cluster_fault()) {
            let lasted = Duration::from_secs(reported.fault.duration_seconds).saturating_add(arrived);
            all.push(ObservedFault { fault: believed(&reported.fault), checked: reported.checked, lasted });
        }
    }
    // Where a report names a fault twice, the more uncertain entry counts, whatever the order.
    all.sort_by(|a, b| {
        (&a.fault.id, a.fault.state, Reverse(a.checked), a.lasted, a.fault.severity, &a.fault.message).cmp(&(
            &b.fault.id,
            b.fault.state,
            Reverse(b.checked),
            b.lasted,
            b.fault.severity,
            &b.fault.message,
        ))
    });
    all.dedup_by(|later, first| later.fault.id == first.fault.id);
    all.sort_by(|a, b| Fault::by_urgency(&a.fault, &b.fault));
    all.truncate(MAX_FAULTS);
    if node.view.is_some() {
        let own = cluster_faults(node, &all);
        all.extend(own);
        all.sort_by(|a, b| Fault::by_urgency(&a.fault, &b.fault));
    }
    all
}

/// Returns the fault as it counts. A node that reports more than the worst severity of the kind gains no priority by that.
fn believed(reported: &Fault) -> Cow<'_, Fault> {
    let worst = reported.kind.spec().worst_severity;
    if reported.severity <= worst {
        return Cow::Borrowed(reported);
    }
    Cow::Owned(Fault { severity: worst, ..reported.clone() })
}

/// Plans a wake-up for the times at which something about the node may change by time alone.
fn plan_wake(node: &NodeContext<'_>, requeue: &mut Requeue) {
    if let Some(heartbeat) = node.own_report().and_then(|report| report.heartbeat.as_ref()) {
        let (missed, silent) = bounds(heartbeat);
        requeue.when_past(missed, heartbeat.arrived);
        requeue.when_past(silent, heartbeat.arrived);
    }
    if let Some(process) = node.own_report().map(|report| &report.kubelet)
        && let Some(seen) = process.unfinished
    {
        requeue.when_past(kubelet_start_blocked::AGE, process.age);
        requeue.when_past(kubelet_start_blocked::SEEN, seen);
    }
    // Time alone makes no pod more stuck, but what the controller has read of it gets stale.
    for pod in node.pods.iter().filter(|pod| stuck::pattern(pod).is_some()) {
        requeue.when_past(stuck::FRESH, pod.read);
    }
}

/// Remediations of this very node (`uid`) in Enforce mode that ended within the memory of failures.
fn recent<'a>(finished: &[&'a Remediation], uid: Option<&str>, cluster: ClusterContext<'_>) -> Vec<&'a Remediation> {
    let (now, memory) = (cluster.snapshot.now, cluster.settings.failed_memory);
    let is_recent = |remediation: &&&Remediation| {
        let is_real = remediation.mode == Mode::Enforce && Some(remediation.node_uid.as_str()) == uid;
        is_real && remediation.finished_at.is_some_and(|at| since(now, at) < memory)
    };
    finished.iter().filter(is_recent).copied().collect()
}
