//! A timeline out of a cluster: what was healed there, and what is wrong there now, so that a policy can be tried on it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::sickness;
use super::timeline::{
    ConditionEvent, CuredBy, Event, FaultEvent, LONGEST, Nodes, Offset, ProbeState, Timeline, own_labels,
};
use crate::core::episode::{Episode, EpisodeFault, HealState, StepState, since};
use crate::core::fault::{Fault, FaultState, FaultType, Severity, Subject};
use crate::core::foreign::Noticed;
use crate::core::narrow::{NO_OWNER, PodSeen};
use crate::core::order::Signal;
use crate::core::policy::ActionType;
use crate::core::snapshot::{NodeView, Snapshot, Tri, missed_after};
use crate::core::text::bounded;
use crate::core::thresholds::Thresholds;

/// How long before the first event it begins.
const BEFORE: Duration = Duration::from_mins(1);

/// What is known of one fault in the past.
struct Past<'a> {
    node: &'a str,
    at: Timestamp,
    kind: FaultType,
    subject: Cow<'a, Subject>,
    severity: Option<Severity>,
    cured_by: Option<Vec<CuredBy>>,
    gone: Option<Timestamp>,
}

/// The timeline that the episodes of a cluster tell, and the faults that stand there now.
///
/// An episode tells since when its faults had been there and what healed them. Of nodes that no policy selected only what
/// stands there now is known.
pub fn record(snapshot: &Snapshot) -> Timeline {
    let mut past: Vec<Past<'_>> =
        snapshot.episodes.values().flat_map(|episode| of_episode(snapshot, episode)).collect();
    past.extend(standing(snapshot));
    past.sort_by(|a, b| a.at.cmp(&b.at).then_with(|| a.node.cmp(b.node)).then_with(|| a.kind.cmp(&b.kind)));
    // No timeline is longer: what has stood for longer begins with it.
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

fn of_episode<'a>(snapshot: &'a Snapshot, episode: &'a Episode) -> impl Iterator<Item = Past<'a>> {
    episode.faults.iter().map(move |fault| Past {
        node: &episode.node,
        at: confirmed(fault.since, fault.kind, episode.opened_at),
        kind: fault.kind,
        subject: Cow::Borrowed(&fault.subject),
        severity: None,
        cured_by: cured_by(episode, fault),
        gone: gone(snapshot, episode, fault),
    })
}

/// What healed it; `None` where nobody knows.
fn cured_by(episode: &Episode, fault: &EpisodeFault) -> Option<Vec<CuredBy>> {
    let mut tried = episode.steps.iter().filter(|step| step.fault_id == fault.id);
    let healed = tried.find(|step| step.state == StepState::Succeeded && step.action.heals());
    match (fault.state, healed) {
        (HealState::Healed, Some(step)) => match (step.action, step.signal) {
            // What is resumed would have been ended just as well.
            (ActionType::ReleaseHungProcess, Some(Signal::Cont)) => Some(vec![CuredBy::Cont, CuredBy::Kill]),
            (ActionType::ReleaseHungProcess, _) => Some(vec![CuredBy::Kill]),
            (ActionType::CleanupOrphans, _) => Some(vec![CuredBy::CleanupOrphans]),
            (ActionType::DeletePod, _) => Some(vec![CuredBy::DeletePod]),
            (ActionType::RestartKubelet, _) => Some(vec![CuredBy::RestartKubelet]),
            (ActionType::RestartRuntime, _) => Some(vec![CuredBy::RestartRuntime]),
            (ActionType::Reboot | ActionType::MarkForReboot, _) => Some(vec![CuredBy::Reboot]),
            (ActionType::HandOff, _) => Some(vec![CuredBy::HandOff]),
            (ActionType::Cordon | ActionType::Taint | ActionType::Drain | ActionType::Notify, _) => Some(Vec::new()),
        },
        (HealState::Healed, None) | (HealState::GivenUp, _) => Some(Vec::new()),
        (HealState::Open, _) => None,
    }
}

/// When a fault was confirmed that has been there since then: not when a policy let its healing begin.
fn confirmed(since: Option<Timestamp>, kind: FaultType, latest: Timestamp) -> Timestamp {
    let usual = Thresholds::default().usual_time_to_confirm(kind);
    since.and_then(|since| since.checked_add(usual).ok()).map_or(latest, |at| at.min(latest))
}

/// When it went without an act, if it did. When one went that was given up, nobody has noted: it was there at the end of
/// its episode, and does not show now.
fn gone(snapshot: &Snapshot, episode: &Episode, fault: &EpisodeFault) -> Option<Timestamp> {
    let acted = episode.steps.iter().any(|step| step.fault_id == fault.id && step.acted_at.is_some());
    let went = match fault.state {
        HealState::Healed => !acted,
        HealState::GivenUp => !shows(snapshot, &episode.node, fault),
        HealState::Open => false,
    };
    episode.finished_at.filter(|_| went)
}

/// Whether the fault shows now.
fn shows(snapshot: &Snapshot, node: &str, fault: &EpisodeFault) -> bool {
    let report = snapshot.reports.get(node);
    match fault.kind {
        FaultType::ProbeSilent => {
            let heartbeat = report.and_then(|report| report.heartbeat.as_ref());
            heartbeat.is_none_or(|heartbeat| heartbeat.arrived > missed_after(heartbeat.interval))
        }
        FaultType::NodeFlapping => snapshot.flaps.get(node).is_some_and(|flap| flap.flapping.is_some()),
        FaultType::NodeCondition => noticed(snapshot, node).iter().any(|one| one.id(node) == fault.id),
        // A reader sees no pods: what was given up is taken for standing as long as nobody knows better.
        FaultType::StuckDaemonSetPod => true,
        _ => report.is_some_and(|report| report.faults.iter().any(|seen| seen.fault.id == fault.id)),
    }
}

/// Confirmed faults that no episode tells of as standing.
fn standing(snapshot: &Snapshot) -> Vec<Past<'_>> {
    let is_told = |node: &str, fault: &Fault| {
        let of_node = snapshot.episodes.values().filter(|episode| episode.node == node);
        let mut same = of_node.filter_map(|episode| episode.fault(&fault.id));
        same.any(|told| told.state != HealState::Healed)
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
            cured_by: None,
            gone: None,
        }));
    }
    for (node, noticed) in &snapshot.noticed {
        let Some(view) = snapshot.nodes.get(node) else { continue };
        let faults =
            noticed.iter().map(|one| one.fault(node, view.ready != Tri::Unknown)).filter(|fault| !is_told(node, fault));
        found.extend(faults.map(|fault| Past {
            node,
            at: fault.first_seen,
            kind: fault.kind,
            subject: Cow::Owned(fault.subject),
            severity: None,
            cured_by: None,
            gone: None,
        }));
    }
    found
}

/// Conditions that stand on the node as some policy asks for them.
fn noticed<'a>(snapshot: &'a Snapshot, node: &str) -> &'a [Noticed] {
    snapshot.noticed.get(node).map(Vec::as_slice).unwrap_or_default()
}

/// What a timeline says of it; `None` where it has no words for it.
fn events_of(past: &Past<'_>, snapshot: &Snapshot, offset: &impl Fn(Timestamp) -> Offset) -> Option<Vec<Event>> {
    let at = offset(past.at);
    let on = |at: Offset| Event { at, nodes: vec![past.node.to_owned()], ..Event::default() };
    match past.kind {
        FaultType::KubeletStartBlocked | FaultType::PlegStalled | FaultType::NodeFlapping => return None,
        FaultType::ProbeSilent => {
            let silent = Event { probe: Some(ProbeState::Silent), ..on(at) };
            let again = past.gone.map(|gone| Event { probe: Some(ProbeState::Acts), ..on(offset(gone)) });
            return Some([silent].into_iter().chain(again).collect());
        }
        FaultType::NodeCondition => {
            let (kind, stood) = past.subject.name.clone().zip(past.subject.condition.as_ref())?;
            let none = ConditionEvent { kind, ..ConditionEvent::default() };
            let mut there = ConditionEvent { status: Some(stood.status), reason: stood.reason.clone(), ..none.clone() };
            // No other step is about a condition.
            there.cured_by = past.cured_by.clone().unwrap_or_default();
            there.cured_by.retain(|by| matches!(by, CuredBy::Reboot | CuredBy::HandOff));
            let written = Event { condition: Some(there), ..on(at) };
            // How it stands when it is well nobody has noted.
            let over = past.gone.map(|gone| Event { condition: Some(none), ..on(offset(gone)) });
            return Some([written].into_iter().chain(over).collect());
        }
        _ => {}
    }
    let lasts = past.gone.map(|gone| Offset(offset(gone).0.saturating_sub(at.0)));
    let pod = past.subject.pod.as_ref().filter(|_| sickness::has_pod(past.kind));
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
        // Two leftovers without a name are two.
        name: past.subject.name.clone().or_else(|| past.subject.id.as_deref().map(|id| bounded(id, 12))),
        pod_labels,
        pod_owner,
        terminating: false,
        cured_by: past.cured_by.clone(),
        lasts,
    };
    Some(vec![Event { fault: Some(fault), ..on(at) }])
}

#[cfg(test)]
mod tests {
    use super::super::{play, timeline};
    use super::*;
    use crate::core::episode::Phase;
    use crate::core::plan::HoldReason;
    use crate::simulate::account::What;

    /// The snapshot at the end of a timeline.
    fn after(text: &str, policy: &str) -> Snapshot {
        let timeline = timeline::Timeline::parse(text).unwrap();
        let policy = super::super::policy(serde_saphyr::from_str(policy).unwrap()).unwrap();
        play::end_of(&timeline, &[policy]).snapshot()
    }

    const POLICY: &str = include_str!("../../config/policies/leftovers.yaml");

    #[test]
    fn what_is_recorded_plays_as_it_was() {
        let text = "
nodes: [{name: worker, count: 4, labels: {pool: a}}]
events:
  - {at: 1m, nodes: [worker-1], fault: {type: OrphanContainer, pod: shop/cart}}
  - {at: 9m, nodes: [worker-2], fault: {type: LeakedShim, curedBy: []}}
  - {at: 20m, nodes: [worker-3], fault: {type: DiskFull}}
until: 30m
";
        let recorded = record(&after(text, POLICY));
        assert_eq!(recorded.events.len(), 3, "{:#?}", recorded.events);
        let again = serde_saphyr::to_string(&recorded).unwrap();
        let read = timeline::Timeline::parse(&again).unwrap_or_else(|error| panic!("{error:#}: {again}"));
        assert_eq!(read.nodes.len(), 4);
        assert!(read.nodes.iter().all(|node| node.labels.get("pool").map(String::as_str) == Some("a")));
        assert!(read.nodes.iter().all(|node| node.labels.len() == 1), "what each node has need not be said");
        let windows = record(&after(&text.replace("pool: a", "kubernetes.io/os: windows"), POLICY));
        assert_eq!(windows.nodes[0].labels.get("kubernetes.io/os").map(String::as_str), Some("windows"));
        let policy = super::super::policy(serde_saphyr::from_str(POLICY).unwrap()).unwrap();
        let account = play::play(&read, &[policy]);
        let ends: Vec<_> = account
            .lines
            .iter()
            .filter(|line| matches!(line.what, What::Ends(_)))
            .map(|line| (line.node.as_deref().unwrap_or_default(), line.what))
            .collect();
        assert_eq!(ends, [("worker-1", What::Ends(Phase::Succeeded)), ("worker-2", What::Ends(Phase::Failed))]);
    }

    #[test]
    fn what_rules_ask_about_pods_and_nodes_is_recorded() {
        let policy = "
apiVersion: runtimehealth.io/v1alpha1
kind: RemediationPolicy
metadata: {name: web}
spec:
  mode: Enforce
  rules:
    - name: r
      match:
        faults: [HungContainer]
        podSelector: {matchExpressions: [{key: app, operator: In, values: [web]}, {key: tier, operator: DoesNotExist}]}
        ownerKinds: [None]
        runtimes: [{name: containerd}]
      steps: [{action: Notify}]
";
        let text = "
nodes: [{name: worker, count: 2, kubeletVersion: v1.36.1, runtimeVersion: 'containerd://1.7.24'}]
events:
  - {at: 1m, nodes: [worker-1], fault: {type: HungContainer, pod: shop/a, podLabels: {app: web}, podOwner: None}}
  - {at: 1m, nodes: [worker-2], fault: {type: HungContainer, pod: shop/b}}
until: 30m
";
        let recorded = record(&after(text, policy));
        let again = serde_saphyr::to_string(&recorded).unwrap();
        let read = timeline::Timeline::parse(&again).unwrap_or_else(|error| panic!("{error:#}: {again}"));
        assert!(read.nodes.iter().all(|node| node.runtime_version.as_deref() == Some("containerd://1.7.24")));
        let faults: Vec<_> = read.events.iter().filter_map(|event| event.fault.clone()).collect();
        let told: Vec<_> = faults.iter().map(|fault| (fault.pod_labels.clone(), fault.pod_owner.as_deref())).collect();
        let labels = [("app".to_owned(), "web".to_owned())].into();
        assert_eq!(told, [(Some(labels), Some("None")), (None, None)]);
        let policy = super::super::policy(serde_saphyr::from_str(policy).unwrap()).unwrap();
        let lines = play::play(&read, &[policy]).lines;
        let held = |node: &str| {
            lines.iter().any(|line| {
                line.node.as_deref() == Some(node) && matches!(line.what, What::Held(HoldReason::PodUnknown))
            })
        };
        assert_eq!((held("worker-1"), held("worker-2")), (false, true));
    }

    #[test]
    fn conditions_that_a_policy_asks_for_are_recorded_and_no_others() {
        let policy = "
apiVersion: runtimehealth.io/v1alpha1
kind: RemediationPolicy
metadata: {name: kernel}
spec:
  mode: Enforce
  rules:
    - name: r
      match: {nodeConditions: [{type: KernelDeadlock, status: 'True'}]}
      steps: [{action: Notify}]
";
        let text = "
nodes: [{name: worker, count: 4}]
events:
  - {at: 1m, nodes: [worker-1], condition: {type: KernelDeadlock, status: 'True', reason: DockerHung}}
  - {at: 9m, nodes: [worker-1], condition: {type: KernelDeadlock}}
  - {at: 20m, nodes: [worker-2], condition: {type: KernelDeadlock, status: 'True'}}
  - {at: 20m, nodes: [worker-3], condition: {type: Other, status: 'True'}}
until: 30m
";
        let mut seen = after(text, policy);
        let told = |recorded: &Timeline| -> Vec<(String, Option<Tri>, String)> {
            let of =
                |event: &Event| event.condition.clone().map(|one| (event.nodes[0].clone(), one.status, one.reason));
            recorded.events.iter().filter_map(of).collect()
        };
        let worker = |number: u8| format!("worker-{number}");
        let recorded = record(&seen);
        let expected = [
            (worker(1), Some(Tri::True), "DockerHung".to_owned()),
            (worker(1), None, String::new()),
            (worker(2), Some(Tri::True), String::new()),
        ];
        assert_eq!(told(&recorded), expected);
        let again = serde_saphyr::to_string(&recorded).unwrap();
        let read = timeline::Timeline::parse(&again).unwrap_or_else(|error| panic!("{error:#}: {again}"));
        assert_eq!(told(&read), expected);
        // Without an episode only what stands there now is known.
        seen.episodes.clear();
        assert_eq!(told(&record(&seen)), expected[2..]);
    }
}
