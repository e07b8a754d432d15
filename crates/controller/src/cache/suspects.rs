//! Reads the pods of suspects, on demand: of `DaemonSet`s that lack pods, of nodes with a confirmed fault or a remediation, and
//! each pod that is stuck by itself. It never reads the whole fleet. It sends one call at a time, each bounded in time and
//! size. It reads a pod that is not well until the pod is well or gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Resource};
use tokio::time::Instant;

use super::State;
use super::daemon_sets::DaemonSetRow;
use crate::calls::{CallError, Calls, bounded};
use crate::handles::Handles;
use nrh_api::view::guard::Guarded;
use nrh_api::view::pods;
use nrh_core::fault::PodRef;
use nrh_core::matching::pod_of;
use nrh_core::policy::{asked_keys, asks_of_pods};
use nrh_core::snapshot::{SuspectPod, TriState};
use nrh_core::stuck;

/// Shortest time between two reads of one node's pods.
const NODE_EVERY: Duration = Duration::from_secs(5);
/// Shortest time between two reads of a DaemonSet's pods, per unit of [`PACED`] pods.
const SET_EVERY: Duration = Duration::from_secs(15);
/// Shortest time between two reads of a DaemonSet with known suspects.
const SUSPECT_SET_EVERY: Duration = Duration::from_secs(5);
/// Shortest time between two reads of a pod that is stuck.
const STUCK_EVERY: Duration = Duration::from_secs(2);
/// Shortest time between two reads of single pods: with many stuck pods, each is read less often.
const APART: Duration = Duration::from_millis(62);
/// How often a pod is read that is not well and that nothing else reads.
const UNREAD_FOR: Duration = Duration::from_mins(5);
/// Number of a DaemonSet's pods with which the time between two reads grows by one unit.
const PACED: u32 = 500;
/// Largest number of objects in one answer. A process that parsed 500 pods once kept 28 MiB for good.
const PAGE: u32 = 100;
/// Largest number of pages of one DaemonSet. A larger one is judged only by the faults of its nodes.
const MAX_PAGES: u32 = 100;
/// Largest number of unreadable pods that are remembered as reported.
const MAX_REPORTED: usize = 1024;
/// Wait after a failed read, before the next try of the same.
const RETRY: Duration = Duration::from_secs(5);

/// What is to be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// All pods of a node.
    Node(String),
    /// The pods of a DaemonSet: its key, namespace, selector and size.
    Set { key: String, namespace: String, selector: String, desired: u32 },
    /// One pod.
    Pod(PodRef),
}

impl Subject {
    const fn is_pod(&self) -> bool {
        matches!(self, Self::Pod(_))
    }
}

/// Reads pods of suspects while this process leads, for as long as it runs.
pub async fn run(Handles { calls, cache, clock, leadership }: Handles) {
    let (mut tried, mut reported) = (BTreeMap::new(), BTreeSet::new());
    loop {
        let now = Instant::now();
        let leads = leadership.term(now).is_some();
        let due = if leads { due(&cache.lock(), &tried, now) } else { Due::default() };
        let Some(subject) = due.first else {
            let wait = due.next.unwrap_or(NODE_EVERY).max(Duration::from_millis(50));
            tokio::select! {
                () = cache.reader_woken() => {}
                () = tokio::time::sleep(wait) => {}
            }
            continue;
        };
        tried.retain(|_, at| now.saturating_duration_since(*at) < Duration::from_mins(10));
        tried.insert(subject.clone(), now);
        let request = ReadRequest { at: now, wall: clock.now() };
        match read(&calls, &subject, request).await {
            Ok(found) => {
                report_unreadable_pods(&mut reported, &found.lost);
                if found.is_of_use(&subject) && take(&mut cache.lock(), &subject, &found, request) {
                    cache.wake();
                }
            }
            Err(error) => tracing::warn!(error = error.line(), "pods of a suspect could not be read"),
        }
    }
}

/// When a read was requested: its content was true then or later.
#[derive(Clone, Copy, Debug)]
struct ReadRequest {
    at: Instant,
    wall: Timestamp,
}

/// The read that is due, and when the next one will be.
#[derive(Debug, Default)]
struct Due {
    first: Option<Subject>,
    next: Option<Duration>,
}

fn due(state: &State, tried: &BTreeMap<Subject, Instant>, now: Instant) -> Due {
    let mut result = Due::default();
    let nodes = state.nodes_of_interest();
    let nodes = nodes.into_iter().map(|node| (Subject::Node(node), NODE_EVERY, None));
    let sets = sets(state).map(|(set, every)| (set, every, None));
    let of_pods_last = tried.iter().filter(|(subject, _)| subject.is_pod()).map(|(_, at)| *at).max();
    let mut oldest = None;
    for (subject, every, read) in nodes.chain(sets).chain(of_pods(state, now)) {
        let last = tried.get(&subject).copied().max(read);
        let left = |last: Option<Instant>, every: Duration| {
            last.map_or(Duration::ZERO, |at| every.saturating_sub(now.saturating_duration_since(at)))
        };
        let apart = of_pods_last.filter(|_| subject.is_pod());
        let wait = left(last, every).max(left(apart, APART));
        if !wait.is_zero() {
            result.next = Some(result.next.map_or(wait, |next: Duration| next.min(wait)));
        } else if oldest.as_ref().is_none_or(|(at, _)| last < *at) {
            oldest = Some((last, subject));
        }
    }
    result.first = oldest.map(|(_, subject)| subject);
    result
}

/// Single pods that are not well, how often each is read, and when it was last read. A pod that is stuck, or is stuck by now if
/// nothing has changed, is read often. The others are read rarely, for the case that nothing else reads them.
fn of_pods(state: &State, now: Instant) -> Vec<(Subject, Duration, Option<Instant>)> {
    let every = |is_stuck| if is_stuck { STUCK_EVERY } else { UNREAD_FOR };
    let unhealthy = state.pod_reads.to_read(now).into_iter();
    unhealthy.map(|(pod, read, is_stuck)| (Subject::Pod(pod.clone()), every(is_stuck), Some(read))).collect()
}

fn sets(state: &State) -> impl Iterator<Item = (Subject, Duration)> {
    let unhealthy = state.pod_reads.unhealthy_daemon_sets();
    let is_small = |row: &DaemonSetRow| row.desired <= PAGE * MAX_PAGES;
    let wanted = state.daemon_sets.iter().filter(move |(_, row)| is_small(row));
    wanted.filter_map(move |(key, row)| {
        let suspects = unhealthy.contains(key);
        if !row.has_unready_pods && !suspects {
            return None;
        }
        let every = if suspects { SUSPECT_SET_EVERY } else { SET_EVERY };
        let subject = Subject::Set {
            key: key.clone(),
            namespace: row.namespace.clone(),
            selector: row.selector.clone(),
            desired: row.desired,
        };
        Some((subject, every.max(RETRY).saturating_mul(pace(row))))
    })
}

/// How many times longer than for a small DaemonSet the time between two reads of its pods is.
const fn pace(row: &DaemonSetRow) -> u32 {
    row.desired / PACED + 1
}

/// Whether some DaemonSet lacks pods and nobody could read which, several times in a row.
pub fn are_pods_unread(state: &State, now: Instant) -> bool {
    state.pod_reads.lacking(now).any(|(key, unread)| {
        let pace = state.daemon_sets.get(key).map_or(1, pace);
        unread > SET_EVERY.saturating_mul(pace).saturating_mul(3)
    })
}

#[derive(Debug, Default)]
struct Found {
    pods: Vec<Pod>,
    /// Pods that are there and cannot be read: which, and why.
    lost: Vec<(PodRef, String)>,
    /// Whether there are more than were read.
    is_cut: bool,
}

impl Found {
    /// Whether the result is usable. A read of a node with one unreadable pod does not count, since it would wrongly show that
    /// this pod is not stuck, or not there. In a read of a DaemonSet the other pods count, as they are on other nodes.
    fn is_of_use(&self, subject: &Subject) -> bool {
        matches!(subject, Subject::Set { .. }) || (self.lost.is_empty() && !self.is_cut)
    }

    /// Adds a pod. Of a DaemonSet only the suspects are kept; the others are dropped page by page.
    fn note(&mut self, pod: Guarded<Pod>, subject: &Subject, now: Timestamp) {
        match pod.0 {
            Ok(pod) if !matches!(subject, Subject::Set { .. }) || is_suspect(&pod, now) => self.pods.push(pod),
            Ok(_) => {}
            Err(bad) => {
                let bare = Pod { metadata: bad.metadata, ..Pod::default() };
                self.lost.push((pods::pod_ref(&bare), bad.why));
            }
        }
    }
}

/// Reports pods that cannot be read, each once.
fn report_unreadable_pods(reported: &mut BTreeSet<PodRef>, lost: &[(PodRef, String)]) {
    if reported.len() > MAX_REPORTED {
        reported.clear();
    }
    for (pod, why) in lost {
        if reported.insert(pod.clone()) {
            tracing::warn!(
                pod = %pod,
                error = why,
                "a pod cannot be read: the data on the pods of its node becomes stale, and the controller starts no action that depends on it"
            );
        }
    }
}

async fn read(calls: &Calls, subject: &Subject, request: ReadRequest) -> Result<Found, CallError> {
    let mut found = Found::default();
    let (api, params, what) = match subject {
        Subject::Pod(pod) => {
            let read = calls.find_in::<Guarded<Pod>>(&pod.namespace, &pod.name).await?;
            if let Some(same) = read.filter(|read| read.meta().uid.as_deref() == Some(pod.uid.as_str())) {
                found.note(same, subject, request.wall);
            }
            return Ok(found);
        }
        Subject::Node(node) => (
            Api::<Guarded<Pod>>::all(calls.watches()),
            ListParams::default().fields(&format!("spec.nodeName={node}")),
            format!("listing the pods of node {node}"),
        ),
        Subject::Set { key, namespace, selector, .. } => (
            calls.read_in::<Guarded<Pod>>(namespace),
            ListParams::default().labels(selector),
            format!("listing the pods of DaemonSet {key}"),
        ),
    };
    let mut params = params.limit(PAGE);
    for _ in 0..MAX_PAGES {
        let page = bounded(|| what.clone(), api.list(&params)).await?;
        for pod in page.items {
            found.note(pod, subject, request.wall);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(found),
        }
    }
    found.is_cut = true;
    Ok(found)
}

/// A pod of a DaemonSet that is not ready, or is being deleted.
fn is_suspect(pod: &Pod, now: Timestamp) -> bool {
    pods::suspect(pod, now).is_some_and(|seen| seen.daemon_set.is_some() && !seen.is_healthy())
}

/// Stores the result of a read. Returns whether the decider should run.
fn take(state: &mut State, subject: &Subject, found: &Found, request: ReadRequest) -> bool {
    let ReadRequest { at, wall } = request;
    let pods = &found.pods;
    let of_sets = pods.iter().filter(|pod| state.is_of_daemon_set(pod) == TriState::True);
    let all: Vec<SuspectPod> = of_sets.filter_map(|pod| pods::suspect(pod, wall)).collect();
    match subject {
        Subject::Set { key, .. } => {
            note_pods(state, subject, &all, pods, at);
            let is_told = |pod: &PodRef| !found.is_cut && found.lost.iter().all(|(lost, _)| lost != pod);
            let news = !all.is_empty() || state.pod_reads.unhealthy_daemon_sets().contains(key);
            state.pod_reads.note_set(key, all, is_told, at);
            if !found.is_cut {
                state.pod_reads.note_whole_set(key, at);
            }
            state.settle_set(key);
            news
        }
        Subject::Node(node) => {
            note_pods(state, subject, &all, pods, at);
            let terminating = terminating(state, node, pods);
            state.pod_reads.note_node(node, all, terminating, at);
            let wanted = state.nodes_of_interest();
            state.pod_reads.retain_nodes(&wanted);
            state.known_pods.retain(&wanted, at);
            true
        }
        Subject::Pod(pod) => {
            let verdict =
                |pod: Option<&SuspectPod>| pod.map(|pod| (pod.is_healthy(), stuck::pattern(pod).map(|stuck| stuck.0)));
            let before = verdict(state.pod_reads.get(pod));
            state.pod_reads.note_pod(pod, all.into_iter().next(), at);
            before != verdict(state.pod_reads.get(pod))
        }
    }
}

/// Pods of a node that are being deleted, or that a fault names and that the API no longer has.
fn terminating(state: &State, node: &str, pods: &[Pod]) -> BTreeSet<PodRef> {
    let mut found: BTreeSet<PodRef> =
        pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).map(pods::pod_ref).collect();
    let uids: BTreeSet<&str> = pods.iter().flat_map(pods::uids).collect();
    let named = state.snapshot.reports.get(node).into_iter().flat_map(|view| &view.faults);
    for pod in named.filter_map(|reported| reported.fault.subject.pod.as_ref()) {
        // The mirror of a static pod may be missing while the pod runs; the node name at its end identifies it.
        let is_static = pod.name.ends_with(&format!("-{node}"));
        if !uids.contains(pod.uid.as_str()) && !is_static {
            found.insert(pod.clone());
        }
    }
    found
}

/// The pods that faults of a node name, and those of its open remediation: a fault may be missing from a report for a moment.
fn named(state: &State, node: &str) -> BTreeSet<PodRef> {
    let faults = state.snapshot.reports.get(node).into_iter().flat_map(|view| &view.faults);
    let of_remediation = state.open_remediation(node).into_iter().flat_map(|remediation| &remediation.faults);
    let in_remediation = of_remediation.filter_map(|fault| fault.subject.pod.as_ref());
    faults.filter_map(|reported| pod_of(&reported.fault)).chain(in_remediation).cloned().collect()
}

/// Stores what policies ask of these pods: of the suspects, and after a read of a node also of the pods that its faults name.
/// Stores nothing where no policy asks.
fn note_pods(state: &mut State, subject: &Subject, suspects: &[SuspectPod], pods: &[Pod], at: Instant) {
    if !asks_of_pods(&state.snapshot.policies) {
        return state.known_pods.clear();
    }
    let keys = asked_keys(&state.snapshot.policies);
    let suspects = suspects.iter().map(|suspect| suspect.pod.clone());
    match subject {
        Subject::Set { key, .. } => state.known_pods.note_set(key, &suspects.collect(), pods, &keys, at),
        Subject::Node(node) => {
            let wanted = suspects.chain(named(state, node)).collect();
            state.known_pods.note_node(node, &wanted, pods, &keys, at);
        }
        Subject::Pod(_) => {}
    }
}

#[cfg(test)]
mod tests;
