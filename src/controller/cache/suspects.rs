//! Reads the pods of suspects, on demand: of `DaemonSet`s that lack pods, and of nodes where something is
//! confirmed or under way. Never fleet-wide, one call at a time, each bounded in time and size.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use tokio::time::Instant;

use super::guard::Guarded;
use super::{Cache, PodsRead, State, pods};
use crate::controller::calls::{CallError, Calls, bounded};
use crate::controller::clock::Clock;
use crate::controller::leader::Leadership;
use crate::core::fault::PodRef;
use crate::core::narrow::{asked_keys, asks_of_pods, pod_of};
use crate::core::snapshot::{SuspectPod, Tri};

/// Least time between two reads of one node's pods.
const NODE_EVERY: Duration = Duration::from_secs(5);
/// Least time between two reads of a DaemonSet's pods, per page.
const SET_EVERY: Duration = Duration::from_secs(15);
/// Least time between two reads of a DaemonSet of which suspects were found.
const SUSPECT_SET_EVERY: Duration = Duration::from_secs(5);
/// Most objects in one answer.
const PAGE: u32 = 500;
/// Most pages of one DaemonSet. A larger one is judged by its nodes' own faults only.
const MAX_PAGES: u32 = 20;
/// Most pods that are remembered as told of since they cannot be read.
const MAX_TOLD: usize = 1024;
/// After a failed read, this long until the next try of the same.
const RETRY: Duration = Duration::from_secs(5);

/// What is to be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// All pods of a node.
    Node(String),
    /// The pods of a DaemonSet: its key, namespace, selector and size.
    Set { key: String, namespace: String, selector: String, desired: u32 },
}

/// Reads pods of suspects while this process leads, for as long as it runs.
pub async fn run(calls: Calls, cache: Arc<Cache>, clock: Clock, leadership: Leadership) {
    let (mut tried, mut told) = (BTreeMap::new(), BTreeSet::new());
    loop {
        let now = Instant::now();
        let due = if leadership.term(now).is_some() { due(&cache.lock(), &tried, now) } else { Due::default() };
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
        match read(&calls, &subject, &clock).await {
            Ok(found) => {
                tell(&mut told, &found.lost);
                if found.is_of_use(&subject) && take(&mut cache.lock(), &subject, &found.pods, now, clock.now()) {
                    cache.wake();
                }
            }
            Err(error) => tracing::warn!(error = error.line(), "pods of a suspect could not be read"),
        }
    }
}

/// What is due, and when the next one will be.
#[derive(Debug, Default)]
struct Due {
    first: Option<Subject>,
    next: Option<Duration>,
}

fn due(state: &State, tried: &BTreeMap<Subject, Instant>, now: Instant) -> Due {
    let mut result = Due::default();
    let nodes = state.nodes_of_interest();
    let subjects = nodes.iter().map(|node| (Subject::Node(node.clone()), NODE_EVERY)).chain(sets(state));
    let mut oldest = None;
    for (subject, every) in subjects {
        let last = tried.get(&subject).copied();
        let wait = last.map_or(Duration::ZERO, |at| every.saturating_sub(now.saturating_duration_since(at)));
        if !wait.is_zero() {
            result.next = Some(result.next.map_or(wait, |next: Duration| next.min(wait)));
        } else if oldest.as_ref().is_none_or(|(at, _)| last < *at) {
            oldest = Some((last, subject));
        }
    }
    result.first = oldest.map(|(_, subject)| subject);
    result
}

fn sets(state: &State) -> impl Iterator<Item = (Subject, Duration)> {
    state.daemon_sets.iter().filter(|(_, row)| row.troubled && row.desired <= PAGE * MAX_PAGES).map(|(key, row)| {
        let suspects = state.pods_of_sets.get(key).is_some_and(|read| !read.suspects.is_empty());
        let every = if suspects { SUSPECT_SET_EVERY } else { SET_EVERY };
        let subject = Subject::Set {
            key: key.clone(),
            namespace: row.namespace.clone(),
            selector: row.selector.clone(),
            desired: row.desired,
        };
        (subject, every.max(RETRY).saturating_mul(row.desired / PAGE + 1))
    })
}

/// What a read has found.
#[derive(Debug, Default)]
struct Found {
    pods: Vec<Pod>,
    /// Pods that are there and cannot be read: which, and why.
    lost: Vec<(PodRef, String)>,
}

impl Found {
    /// Whether it may be taken over. A node of which one pod cannot be read was not read: that a pod is not stuck, or not there, would
    /// follow from it. Of a DaemonSet the others are known, on other nodes; nor does a pod that is missing there prove anything.
    fn is_of_use(&self, subject: &Subject) -> bool {
        self.lost.is_empty() || matches!(subject, Subject::Set { .. })
    }

    /// Takes over a pod. Of a DaemonSet only its suspects are of interest; the rest is dropped page by page.
    fn note(&mut self, pod: Guarded<Pod>, subject: &Subject, now: Timestamp) {
        match pod.0 {
            Ok(pod) if matches!(subject, Subject::Node(_)) || is_suspect(&pod, now) => self.pods.push(pod),
            Ok(_) => {}
            Err(bad) => {
                let bare = Pod { metadata: bad.metadata, ..Pod::default() };
                self.lost.push((pods::pod_ref(&bare), bad.why));
            }
        }
    }
}

/// Tells of pods that cannot be read, of each once.
fn tell(told: &mut BTreeSet<PodRef>, lost: &[(PodRef, String)]) {
    if told.len() > MAX_TOLD {
        told.clear();
    }
    for (pod, why) in lost {
        if told.insert(pod.clone()) {
            tracing::warn!(
                pod = %pod,
                error = why,
                "a pod cannot be read: what was known of the pods of its node grows old, and nothing is done that rests on it"
            );
        }
    }
}

async fn read(calls: &Calls, subject: &Subject, clock: &Clock) -> Result<Found, CallError> {
    let (api, params, what) = match subject {
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
    let (mut found, now) = (Found::default(), clock.now());
    for _ in 0..MAX_PAGES {
        let page = bounded(|| what.clone(), api.list(&params)).await?;
        for pod in page.items {
            found.note(pod, subject, now);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => break,
        }
    }
    Ok(found)
}

/// A pod of a DaemonSet that is not ready, or is being deleted.
fn is_suspect(pod: &Pod, now: Timestamp) -> bool {
    pods::suspect(pod, now).is_some_and(|seen| seen.daemon_set.is_some() && !seen.is_well())
}

/// Takes a read over; whether the decider should know.
fn take(state: &mut State, subject: &Subject, pods: &[Pod], at: Instant, now: Timestamp) -> bool {
    let of_sets = pods.iter().filter(|pod| state.is_of_daemon_set(pod) == Tri::True);
    let all: Vec<SuspectPod> = of_sets.filter_map(|pod| pods::suspect(pod, now)).collect();
    match subject {
        Subject::Set { key, .. } => {
            note_pods(state, subject, &all, pods, at);
            let read = PodsRead { at, suspects: all, terminating: BTreeSet::new() };
            let news = !read.suspects.is_empty() || state.pods_of_sets.get(key).is_some_and(|r| !r.suspects.is_empty());
            state.pods_of_sets.insert(key.clone(), read);
            news
        }
        Subject::Node(node) => {
            note_pods(state, subject, &all, pods, at);
            let read = PodsRead { at, suspects: all, terminating: terminating(state, node, pods) };
            state.pods_of_nodes.insert(node.clone(), read);
            let wanted = state.nodes_of_interest();
            state.pods_of_nodes.retain(|node, _| wanted.contains(node));
            state.known_pods.retain(&wanted, at);
            true
        }
    }
}

/// Pods of a node that are being deleted, or that a fault names and the API no longer has.
fn terminating(state: &State, node: &str, pods: &[Pod]) -> BTreeSet<PodRef> {
    let mut found: BTreeSet<PodRef> =
        pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).map(pods::pod_ref).collect();
    let uids: BTreeSet<&str> = pods.iter().flat_map(pods::uids).collect();
    let named = state.snapshot.reports.get(node).into_iter().flat_map(|view| &view.faults);
    for pod in named.filter_map(|reported| reported.fault.subject.pod.as_ref()) {
        // The mirror of a static pod may be missing while the pod runs; its name tells it apart.
        let is_static = pod.name.ends_with(&format!("-{node}"));
        if !uids.contains(pod.uid.as_str()) && !is_static {
            found.insert(pod.clone());
        }
    }
    found
}

/// The pods that faults of a node name, and those of its open episode: a fault may be out of sight for a moment.
fn named(state: &State, node: &str) -> BTreeSet<PodRef> {
    let faults = state.snapshot.reports.get(node).into_iter().flat_map(|view| &view.faults);
    let of_episode = state.open_episode(node).into_iter().flat_map(|episode| &episode.faults);
    let in_episode = of_episode.filter_map(|fault| fault.subject.pod.as_ref());
    faults.filter_map(|reported| pod_of(&reported.fault)).chain(in_episode).cloned().collect()
}

/// Takes over what policies ask of these pods: of the suspects, and where they are all of a node of those that its faults name.
/// Nothing where no policy asks.
fn note_pods(state: &mut State, subject: &Subject, suspects: &[SuspectPod], pods: &[Pod], at: Instant) {
    if !asks_of_pods(&state.snapshot.policies) {
        return state.known_pods.clear();
    }
    let asked = asked_keys(&state.snapshot.policies);
    let suspects = suspects.iter().map(|suspect| suspect.pod.clone());
    match subject {
        Subject::Set { key, .. } => state.known_pods.note_set(key, &suspects.collect(), pods, &asked, at),
        Subject::Node(node) => {
            let wanted = suspects.chain(named(state, node)).collect();
            state.known_pods.note_node(node, &wanted, pods, &asked, at);
        }
    }
}

#[cfg(test)]
mod tests;
