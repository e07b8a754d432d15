//! The signatures as they were measured on real components, and what must not look like one.

mod bus;
mod clients;
mod clock;
mod components;
mod crio;
mod docker;
mod duplicate_sandbox;
mod host;
mod hung_container;
mod kubelet;
mod leaked_shim;
mod lost_task;
mod network_plugin;
mod network_ready;
mod noise;
mod orphan;
mod part;
mod port;
mod properties;
mod stuck_containers;
mod unavailable;
mod unresponsive_shims;
mod untracked;
mod waits;

use std::time::Duration;

use super::*;
use crate::examples::{
    Node, OTHER, OTHER_WORK, SANDBOX, SIDECAR, WORK, check, container, containerd, done, limit, plugin, pod, process,
    roomy, sandbox, seen, sound,
};
use crate::fault::{FaultType, MAX_EVIDENCE, MAX_LINE, PodRef, Role, Severity, SubjectKind, Target};
use crate::finding::*;
use crate::observation::{
    BusSeen, ClockSeen, ContainerSeen, ContainerState, Credential, DisksSeen, FrozenSeen, HostSeen, KubeletSeen,
    KubeletSettings, ListRound, NetworkSeen, OrphanCheck, Owner, PortSeen, PossibleRole, ProcessRole, ProcessSeen,
    ProcessTable, Reading, RelistsSeen, RuntimeKind, RuntimeSeen, SandboxSeen, Space, StatusSeen, TaskAnswer,
    UnprovenProcess, Usage,
};
use crate::reason::ConditionReason;
use crate::tracker::Tracked;

/// An id that is in no list of a healthy node.
const NEW: &str = "cccc000000000000000000000000000000000000000000000000000000000000";

impl Node {
    /// Kinds that are sighted.
    fn kinds(&self) -> Vec<FaultType> {
        of_node(&self.findings()).iter().map(|sighting| sighting.kind).collect()
    }
}

/// The first process of a container in creation, in a frozen control group.
fn frozen_init(pid: i32, age: Duration, serves: &str, group: &str) -> FrozenSeen {
    let process = process_ref(&process(pid, ProcessRole::Runtime), Role::ContainerInit);
    FrozenSeen { process, age, serves: serves.to_owned(), group: group.to_owned() }
}

/// A check that has failed just now.
fn failed<T>(error: &str) -> Reading<T> {
    Reading::Failed { error: error.into(), age: Duration::ZERO }
}

/// A check that has been out for so many seconds.
const fn hung<T>(seconds: u64) -> Reading<T> {
    Reading::Hung { out: Duration::from_secs(seconds) }
}

fn unavailable<T>(reason: &str) -> Reading<T> {
    Reading::Unavailable { reason: reason.into() }
}

/// The check was made so long ago.
fn aged<T>(reading: &mut Reading<T>, by: Duration) {
    let Reading::Done { age, .. } = reading else { panic!("nothing was seen") };
    *age = by;
}

/// What is known of the task of the first pod's container.
fn work(node: &mut Node, reading: Reading<TaskAnswer>) {
    node.tasks.insert(WORK.into(), reading);
}

/// What is said of one object, where nothing is said of any other. What is sick is not clean at the same time.
#[derive(Debug, PartialEq)]
enum Said {
    Sick,
    Clean,
    Unknown,
}

use Said::{Clean, Sick, Unknown};

#[track_caller]
fn said(node: &Node, kind: FaultType, key: &str) -> Said {
    let findings = node.findings();
    match (&of_node(&findings)[..], clean_at(&findings, kind, key)) {
        ([], Some(_)) => Clean,
        ([], None) => Unknown,
        ([one], None) if one.kind == kind && one.key == key => Sick,
        (told, clean) => panic!("{kind} of {key}: clean at {clean:?}, sighted: {told:?}"),
    }
}

fn clean_at(findings: &Findings, kind: FaultType, key: &str) -> Option<u64> {
    match findings.coverage.get(&kind).unwrap().of(key) {
        Verdict::Clean { checked } => Some(checked.as_secs()),
        Verdict::Unknown { .. } => None,
    }
}

/// What is said of the node; that the probe cannot check says nothing of it, and has tests of its own.
fn of_node(findings: &Findings) -> Vec<&Sighting> {
    findings.sightings.iter().filter(|one| one.kind != FaultType::ProbeDegraded).collect()
}

fn only(findings: &Findings) -> &Sighting {
    let told = of_node(findings);
    assert_eq!(told.len(), 1, "{told:?}");
    told[0]
}

/// The only sighting, which is of this.
#[track_caller]
fn only_of<'f>(findings: &'f Findings, kind: FaultType, key: &str) -> &'f Sighting {
    let sighting = only(findings);
    assert_eq!((sighting.kind, sighting.key.as_str()), (kind, key));
    sighting
}

/// The text begins like this.
#[track_caller]
fn begins(text: &str, beginning: &str) {
    assert!(text.starts_with(beginning), "{beginning:?} is not the beginning of: {text}");
}

fn first_of(findings: &Findings, kind: FaultType) -> &Sighting {
    findings.sightings.iter().find(|one| one.kind == kind).unwrap()
}

#[test]
fn a_healthy_node_is_cleanly_checked_in_every_kind() {
    for node in [Node::healthy(), docker::healthy()] {
        let findings = node.findings();
        assert!(findings.sightings.is_empty(), "{:?}", findings.sightings);
        for kind in FaultType::ALL.into_iter().filter(|kind| !kind.is_cluster_fault()) {
            assert_eq!(findings.coverage.get(&kind).and_then(Coverage::gap), None, "{kind}");
        }
        assert_eq!(findings.kubelet.completed, Some(Duration::from_secs(400)));
        assert!(findings.ask.is_empty() && findings.unasked == 0);
    }
}

#[test]
fn a_blind_probe_sees_nothing_and_clears_nothing() {
    let findings = Node::unavailable().findings();
    assert!(of_node(&findings).is_empty(), "{:?}", findings.sightings);
    assert!(findings.coverage.values().all(|coverage| coverage.gap().is_some()));
}
