//! Records a timeline from a cluster: what was remediated there, and what is wrong there now, so that a person can try a policy
//! on it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::timeline::{
    ClearedBy, ConditionEvent, Event, FaultEvent, LONGEST, Nodes, Offset, ProbeState, Timeline, own_labels,
};
use nrh_core::external_condition::ObservedCondition;
use nrh_core::fault::{Fault, FaultState, FaultType, Severity, Subject};
use nrh_core::matching::{NO_OWNER, PodSeen};
use nrh_core::moment::since;
use nrh_core::remediation::{Remediation, RemediationFault, Resolution, StepState};
use nrh_core::snapshot::{NodeView, Snapshot, TriState, missed_after};
use nrh_core::text::bounded;
use nrh_core::thresholds::Thresholds;

/// Time from the beginning to the first event.
const BEFORE: Duration = Duration::from_mins(1);

/// What is known of one past fault.
struct Past<'a> {
    node: &'a str,
    at: Timestamp,
    kind: FaultType,
    subject: Cow<'a, Subject>,
    severity: Option<Severity>,
    cleared_by: Option<Vec<ClearedBy>>,
    gone: Option<Timestamp>,
}

/// The timeline from the remediations of a cluster and its current faults.
///
/// A remediation says since when its faults had existed and what resolved them. Of nodes that no policy selected, only the
/// current faults are known.
pub fn record(snapshot: &Snapshot) -> Timeline {
    let mut past: Vec<Past<'_>> =
        snapshot.remediations.values().flat_map(|remediation| of_remediation(snapshot, remediation)).collect();
    past.extend(standing(snapshot));
    past.sort_by(|a, b| a.at.cmp(&b.at).then_with(|| a.node.cmp(b.node)).then_with(|| a.kind.cmp(&b.kind)));
    // The length of a timeline is limited, so older faults begin with it.
    let oldest = snapshot.now.checked_sub(LONGEST.saturating_sub(BEFORE)).unwrap_or(snapshot.now);
    for one in &mut past {
        one.at = one.at.max(oldest);
    }
    let first = past.first().map_or(snapshot.now, |first| first.at);
    let start = first.checked_sub(BEFORE).unwrap_or(first);
    let start = Timestamp::from_second(start.as_second()).unwrap_or(start);
    let offset = |at: Timestamp| Offset(Duration::from_secs(since(at, start).as_secs()));
    let mut left_out = 0_usize;
    let mut events = Vec::new();
    for one in past.iter().filter(|one| snapshot.nodes.contains_key(one.node)) {
        match events_of(one, snapshot, &offset) {
            Some(more) => events.extend(more),
            None => left_out += 1,
        }
    }
    events.sort_by_key(|event| event.at);
    let left_out = match left_out {
        0 => String::new(),
        count => format!("; {count} fault(s) are left out that the controller itself has found"),
    };
    Timeline {
        description: format!("recorded: {} fault(s) on {} node(s){left_out}", past.len(), snapshot.nodes.len()),
        start,
        until: Some(offset(snapshot.now)),
        policies: Vec::new(),
        max_in_flight: 10,
        nodes: nodes(snapshot),
        events,
        expect: Vec::new(),
    }
}

fn nodes(snapshot: &Snapshot) -> Vec<Nodes> {
    let node = |(name, view): (&String, &NodeView)| {
        let labels: BTreeMap<String, String> = view
            .labels
            .iter()
            .filter(|(key, value)| own_labels(name).all(|own| own != (key.as_str(), value.as_str())))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        Nodes {
            name: name.clone(),
            count: None,
            labels,
            kubelet_version: view.kubelet_version.clone(),
            runtime_version: view.runtime_version.clone(),
            os_image: view.os_image.clone(),
        }
    };
    snapshot.nodes.iter().map(node).collect()
}

fn of_remediation<'a>(snapshot: &'a Snapshot, remediation: &'a Remediation) -> impl Iterator<Item = Past<'a>> {
    remediation.faults.iter().map(move |fault| Past {
        node: &remediation.node,
        at: confirmed(fault.since, fault.kind, remediation.started_at),
        kind: fault.kind,
        subject: Cow::Borrowed(&fault.subject),
        severity: None,
        cleared_by: cleared_by(remediation, fault),
        gone: gone(snapshot, remediation, fault),
    })
}

/// What resolved the fault. `None`: unknown.
fn cleared_by(remediation: &Remediation, fault: &RemediationFault) -> Option<Vec<ClearedBy>> {
    let mut tried = remediation.steps.iter().filter(|step| step.fault_id == fault.id);
    let resolved = tried.find(|step| step.state == StepState::Succeeded && step.action.resolves());
    match (fault.state, resolved) {
        (Resolution::Resolved, Some(step)) => {
            let by = ClearedBy::of(&step.action);
            // A kill would have resolved the fault just as well.
            let kill = (by == Some(ClearedBy::Cont)).then_some(ClearedBy::Kill);
            Some(by.into_iter().chain(kill).collect())
        }
        (Resolution::Resolved, None) | (Resolution::Exhausted, _) => Some(Vec::new()),
        (Resolution::Open, _) => None,
    }
}

/// When a fault that has existed since then was confirmed. This is not when a policy let its remediation start.
fn confirmed(since: Option<Timestamp>, kind: FaultType, latest: Timestamp) -> Timestamp {
    let usual = kind.usual_time_to_confirm(&Thresholds::default());
    since.and_then(|since| since.checked_add(usual).ok()).map_or(latest, |at| at.min(latest))
}

/// When the fault disappeared without an action, if it did. For an exhausted fault, nobody has recorded that: it existed at the
/// end of its remediation, and does not show now.
fn gone(snapshot: &Snapshot, remediation: &Remediation, fault: &RemediationFault) -> Option<Timestamp> {
    let executed = remediation.steps.iter().any(|step| step.fault_id == fault.id && step.executed_at.is_some());
    let went = match fault.state {
        Resolution::Resolved => !executed,
        Resolution::Exhausted => !shows(snapshot, &remediation.node, fault),
        Resolution::Open => false,
    };
    remediation.finished_at.filter(|_| went)
}

/// Whether the fault shows now.
fn shows(snapshot: &Snapshot, node: &str, fault: &RemediationFault) -> bool {
    let report = snapshot.reports.get(node);
    match fault.kind {
        FaultType::ProbeNotReporting => {
            let heartbeat = report.and_then(|report| report.heartbeat.as_ref());
            heartbeat.is_none_or(|heartbeat| heartbeat.arrived > missed_after(heartbeat.interval))
        }
        FaultType::NodeFlapping => snapshot.flaps.get(node).is_some_and(|flap| flap.flapping.is_some()),
        FaultType::NodeCondition => matched_conditions(snapshot, node).iter().any(|one| one.id(node) == fault.id),
        // A recording has no pods to read, so an exhausted fault counts as present.
        FaultType::StuckDaemonSetPod => true,
        _ => report.is_some_and(|report| report.faults.iter().any(|seen| seen.fault.id == fault.id)),
    }
}

/// Confirmed faults that no remediation records as present.
fn standing(snapshot: &Snapshot) -> Vec<Past<'_>> {
    let is_told = |node: &str, fault: &Fault| {
        let of_node = snapshot.remediations.values().filter(|remediation| remediation.node == node);
        let mut same = of_node.filter_map(|remediation| remediation.fault(&fault.id));
        same.any(|fault| fault.state != Resolution::Resolved)
    };
    let mut found = Vec::new();
    for (node, report) in &snapshot.reports {
        let faults = report.faults.iter().map(|seen| &seen.fault).filter(|f| f.state == FaultState::Confirmed);
        found.extend(faults.filter(|fault| !is_told(node, fault)).map(|fault| Past {
            node,
            at: confirmed(Some(fault.first_seen), fault.kind, snapshot.now),
            kind: fault.kind,
            subject: Cow::Borrowed(&fault.subject),
            severity: Some(fault.severity),
            cleared_by: None,
            gone: None,
        }));
    }
    for (node, matched_conditions) in &snapshot.matched_conditions {
        let Some(view) = snapshot.nodes.get(node) else { continue };
        let faults = matched_conditions
            .iter()
            .map(|one| one.fault(node, view.ready != TriState::Unknown))
            .filter(|fault| !is_told(node, fault));
        found.extend(faults.map(|fault| Past {
            node,
            at: fault.first_seen,
            kind: fault.kind,
            subject: Cow::Owned(fault.subject),
            severity: None,
            cleared_by: None,
            gone: None,
        }));
    }
    found
}

/// Conditions on the node as some policy asks for them.
fn matched_conditions<'a>(snapshot: &'a Snapshot, node: &str) -> &'a [ObservedCondition] {
    snapshot.matched_conditions.get(node).map(Vec::as_slice).unwrap_or_default()
}

/// The events of a fault. `None`: a timeline cannot express it.
fn events_of(past: &Past<'_>, snapshot: &Snapshot, offset: &impl Fn(Timestamp) -> Offset) -> Option<Vec<Event>> {
    let at = offset(past.at);
    let on = |at: Offset| Event { at, nodes: vec![past.node.to_owned()], ..Event::default() };
    match past.kind {
        FaultType::KubeletStartBlocked | FaultType::PlegStalled | FaultType::NodeFlapping => return None,
        FaultType::ProbeNotReporting => {
            let silent = Event { probe: Some(ProbeState::Silent), ..on(at) };
            let again = past.gone.map(|gone| Event { probe: Some(ProbeState::ActionsEnabled), ..on(offset(gone)) });
            return Some([silent].into_iter().chain(again).collect());
        }
        FaultType::NodeCondition => {
            let (kind, stood) = past.subject.name.clone().zip(past.subject.condition.as_ref())?;
            let none = ConditionEvent { kind, ..ConditionEvent::default() };
            let mut there = ConditionEvent { status: Some(stood.status), reason: stood.reason.clone(), ..none.clone() };
            // No other step applies to a condition.
            there.cleared_by = past.cleared_by.clone().unwrap_or_default();
            there.cleared_by.retain(|by| matches!(by, ClearedBy::Reboot | ClearedBy::HandOff));
            let written = Event { condition: Some(there), ..on(at) };
            // Nobody has recorded the healthy state of the condition.
            let over = past.gone.map(|gone| Event { condition: Some(none), ..on(offset(gone)) });
            return Some([written].into_iter().chain(over).collect());
        }
        _ => {}
    }
    let lasts = past.gone.map(|gone| Offset(offset(gone).0.saturating_sub(at.0)));
    let pod = past.subject.pod.as_ref().filter(|_| past.kind.is_of_a_pod());
    let traits = pod.and_then(|pod| match snapshot.pods_seen.get(pod)? {
        PodSeen::Read(traits) => Some(traits),
        PodSeen::Gone => None,
    });
    let label = |(key, value): (&String, &Option<String>)| Some((key.clone(), value.clone()?));
    let pod_labels = traits.map(|traits| traits.labels.iter().filter_map(label).collect());
    let pod_owner = traits.map(|traits| traits.owner.clone().unwrap_or_else(|| NO_OWNER.to_owned()));
    let pod = pod.map(|pod| format!("{}/{}", pod.namespace, pod.name));
    let fault = FaultEvent {
        kind: past.kind,
        severity: past.severity,
        pod,
        // Two leftovers without a name must stay two.
        name: past.subject.name.clone().or_else(|| past.subject.id.as_deref().map(|id| bounded(id, 12))),
        pod_labels,
        pod_owner,
        terminating: false,
        cleared_by: past.cleared_by.clone(),
        lasts,
    };
    Some(vec![Event { fault: Some(fault), ..on(at) }])
}
