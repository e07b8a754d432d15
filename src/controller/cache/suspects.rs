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

use super::{Cache, PodsRead, State, pods};
use crate::controller::calls::{CallError, Calls, bounded};
use crate::controller::clock::Clock;
use crate::controller::leader::Leadership;
use crate::core::fault::PodRef;
use crate::core::narrow::{asked_keys, asks_of_pods, pod_of};
use crate::core::snapshot::SuspectPod;

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
    let mut tried = BTreeMap::new();
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
            Ok(pods) => {
                if take(&mut cache.lock(), &subject, &pods, now, clock.now()) {
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

async fn read(calls: &Calls, subject: &Subject, clock: &Clock) -> Result<Vec<Pod>, CallError> {
    let (api, params, what) = match subject {
        Subject::Node(node) => (
            Api::<Pod>::all(calls.watches()),
            ListParams::default().fields(&format!("spec.nodeName={node}")),
            format!("listing the pods of node {node}"),
        ),
        Subject::Set { key, namespace, selector, .. } => (
            calls.read_in::<Pod>(namespace),
            ListParams::default().labels(selector),
            format!("listing the pods of DaemonSet {key}"),
        ),
    };
    let mut params = params.limit(PAGE);
    let (mut found, now) = (Vec::new(), clock.now());
    for _ in 0..MAX_PAGES {
        let page = bounded(|| what.clone(), api.list(&params)).await?;
        // Of a DaemonSet only its suspects are of interest; the rest is dropped page by page.
        found.extend(page.items.into_iter().filter(|pod| matches!(subject, Subject::Node(_)) || is_suspect(pod, now)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => break,
        }
    }
    Ok(found)
}

/// A pod of a DaemonSet that is not ready, or is being deleted.
fn is_suspect(pod: &Pod, now: Timestamp) -> bool {
    pods::suspect(pod, now).is_some_and(|seen| seen.daemon_set.is_some() && (!seen.ready || seen.overdue.is_some()))
}

/// Takes a read over; whether the decider should know.
fn take(state: &mut State, subject: &Subject, pods: &[Pod], at: Instant, now: Timestamp) -> bool {
    let all = pods.iter().filter_map(|pod| pods::suspect(pod, now)).filter(|seen| seen.daemon_set.is_some());
    match subject {
        Subject::Set { key, .. } => {
            let suspects: Vec<SuspectPod> = all.collect();
            note_pods(state, subject, &suspects, pods, at);
            let read = PodsRead { at, suspects, terminating: BTreeSet::new() };
            let news = !read.suspects.is_empty() || state.pods_of_sets.get(key).is_some_and(|r| !r.suspects.is_empty());
            state.pods_of_sets.insert(key.clone(), read);
            news
        }
        Subject::Node(node) => {
            let suspects: Vec<SuspectPod> = all.collect();
            note_pods(state, subject, &suspects, pods, at);
            let read = PodsRead { at, suspects, terminating: terminating(state, node, pods) };
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
mod tests {
    use super::*;
    use crate::controller::cache::DaemonSetRow;
    use crate::core::narrow::{PodSeen, PodTraits};
    use serde_json::json;

    fn state() -> State {
        State::new(Instant::now())
    }

    fn pod(name: &str, uid: &str, deleted: bool, ready: &str) -> Pod {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "d", "uid": uid,
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": "o", "controller": true}]},
            "spec": {"nodeName": "w1", "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap();
        if deleted {
            pod.metadata.deletion_timestamp = serde_json::from_value(json!("2025-01-01T00:00:00Z")).unwrap();
        }
        pod
    }

    fn troubled() -> DaemonSetRow {
        DaemonSetRow { namespace: "d".into(), selector: "app=ds".into(), desired: 3, troubled: true }
    }

    #[test]
    fn only_troubled_sets_are_read_and_not_more_often_than_every_15_s() {
        let (mut state, mut tried, now) = (state(), BTreeMap::new(), Instant::now());
        state.daemon_sets.insert("d/fine".into(), DaemonSetRow { troubled: false, ..troubled() });
        assert!(due(&state, &tried, now).first.is_none());
        state.daemon_sets.insert("d/bad".into(), troubled());
        let first = due(&state, &tried, now).first.unwrap();
        tried.insert(first, now);
        let later = due(&state, &tried, now + Duration::from_secs(14));
        assert!(later.first.is_none());
        assert_eq!(later.next, Some(Duration::from_secs(1)));
        assert!(due(&state, &tried, now + SET_EVERY).first.is_some());
    }

    #[test]
    fn a_larger_set_is_read_less_often_and_a_giant_one_not_at_all() {
        let (mut state, mut tried, now) = (state(), BTreeMap::new(), Instant::now());
        state.daemon_sets.insert("d/big".into(), DaemonSetRow { desired: 2_500, ..troubled() });
        tried.insert(due(&state, &tried, now).first.unwrap(), now);
        assert_eq!(due(&state, &tried, now).next, Some(SET_EVERY * 6));
        state.daemon_sets.insert("d/big".into(), DaemonSetRow { desired: 10_001, ..troubled() });
        assert!(due(&state, &tried, now).first.is_none());
    }

    #[test]
    fn a_read_of_the_node_is_the_later_word_on_its_pods() {
        let (mut state, now) = (state(), Instant::now());
        let wall = "2025-01-01T00:01:00Z".parse().unwrap();
        let set = Subject::Set { key: "d/ds".into(), namespace: "d".into(), selector: "a".into(), desired: 1 };
        assert!(take(&mut state, &set, &[pod("ds-1", "u1", false, "False")], now, wall));
        state.refresh(now, wall);
        assert_eq!(state.snapshot.pods.len(), 1);
        assert!(state.snapshot.pods_read.is_empty(), "one set is not the whole node");
        state.snapshot.nodes.insert("w1".into(), crate::core::snapshot::NodeView::default());
        let at = now + Duration::from_secs(1);
        let fresh = PodsRead { at, suspects: vec![], terminating: BTreeSet::new() };
        state.pods_of_nodes.insert("w1".into(), fresh);
        state.refresh(now + Duration::from_secs(3), wall);
        assert!(state.snapshot.pods.is_empty());
        assert_eq!(state.snapshot.pods_read.get("w1"), Some(&Duration::from_secs(2)));
    }

    #[test]
    fn pods_that_a_fault_names_and_the_api_has_no_more_are_being_deleted_but_static_ones_are_not() {
        let mut state = state();
        let fault = |name: &str, uid: &str| {
            let fault: crate::core::fault::Fault = serde_json::from_value(json!({
                "id": uid, "type": "HungContainer", "severity": "High", "state": "Confirmed", "message": "m",
                "firstSeen": "2025-01-01T00:00:00Z",
                "subject": {"kind": "Container", "pod": {"namespace": "d", "name": name, "uid": uid}}}))
            .unwrap();
            crate::core::snapshot::ReportedFault { fault, looked: Duration::ZERO }
        };
        let faults = vec![
            fault("gone", "g"),
            fault("etcd-w1", "e"),
            fault("mirror", "hash"),
            fault("deleted", "d"),
            fault("runs", "r"),
        ];
        state.snapshot.reports.insert("w1".into(), crate::core::snapshot::ReportView { faults, ..Default::default() });
        let mut mirror = pod("mirror", "m", false, "True");
        mirror.metadata.annotations = Some([("kubernetes.io/config.hash".to_owned(), "hash".to_owned())].into());
        let pods = [mirror, pod("deleted", "d", true, "True"), pod("runs", "r", false, "True")];
        let found = terminating(&state, "w1", &pods);
        assert_eq!(found.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(), ["deleted", "gone"]);
    }

    /// A report on w1 with a fault about each of these pods.
    fn named_pods(state: &mut State, pods: &[(&str, &str)]) {
        let faults = pods.iter().map(|(name, uid)| {
            let fault: crate::core::fault::Fault = serde_json::from_value(json!({
                "id": uid, "type": "HungContainer", "severity": "High", "state": "Confirmed", "message": "m",
                "firstSeen": "2025-01-01T00:00:00Z",
                "subject": {"kind": "Container", "pod": {"namespace": "d", "name": name, "uid": uid}}}))
            .unwrap();
            crate::core::snapshot::ReportedFault { fault, looked: Duration::ZERO }
        });
        let report = crate::core::snapshot::ReportView { faults: faults.collect(), ..Default::default() };
        state.snapshot.reports.insert("w1".into(), report);
        state.snapshot.nodes.insert("w1".into(), crate::core::snapshot::NodeView::default());
    }

    #[test]
    fn of_the_pods_that_faults_name_the_labels_are_kept_that_a_policy_asks_for() {
        let (mut state, now) = (state(), Instant::now());
        let wall = "2025-01-01T00:01:00Z".parse().unwrap();
        named_pods(&mut state, &[("cart", "c"), ("mirror", "hash"), ("gone", "g"), ("again", "old")]);
        let plain = |name: &str, uid: &str| {
            let mut pod = pod(name, uid, false, "True");
            pod.metadata.owner_references = None;
            pod.metadata.labels = Some([("app".into(), "web".into()), ("secret".into(), "s".into())].into());
            pod
        };
        let mut mirror = plain("mirror", "m");
        mirror.metadata.annotations = Some([("kubernetes.io/config.hash".to_owned(), "hash".to_owned())].into());
        let all = [plain("cart", "c"), mirror, plain("other", "o"), plain("again", "new")];
        let node = Subject::Node("w1".into());
        take(&mut state, &node, &all, now, wall);
        state.refresh(now, wall);
        assert_eq!(state.snapshot.pods_seen, BTreeMap::new(), "nobody asks");

        let policy =
            serde_json::from_value(json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy",
            "metadata": {"name": "p"}, "spec": {"rules": [{"name": "r", "steps": [{"action": "Notify"}], "match":
                {"faults": ["HungContainer"], "podSelector": {"matchLabels": {"app": "db"}, "matchExpressions": [
                    {"key": "tier", "operator": "DoesNotExist"}]}}}]}}))
            .unwrap();
        state.snapshot.policies = vec![crate::api::convert::policy(&policy).unwrap()];
        take(&mut state, &node, &all, now, wall);
        state.refresh(now + Duration::from_secs(7), wall);
        let labels: BTreeMap<_, _> = [("app".to_owned(), Some("web".to_owned())), ("tier".to_owned(), None)].into();
        let read = |gone: bool| {
            let labels = std::sync::Arc::new(labels.clone());
            PodSeen::Read(PodTraits { labels, owner: None, read: Duration::from_secs(7), gone })
        };
        let found = |state: &State| -> Vec<(String, PodSeen)> {
            state.snapshot.pods_seen.iter().map(|(pod, seen)| (pod.name.clone(), seen.clone())).collect()
        };
        let expected = |cart: PodSeen| {
            let gone = |name: &str| (name.to_owned(), PodSeen::Gone);
            // One of the same name is another pod.
            vec![gone("again"), ("cart".to_owned(), cart), gone("gone"), ("mirror".to_owned(), read(false))]
        };
        assert_eq!(found(&state), expected(read(false)));
        // It is deleted: what it was like counts on.
        take(&mut state, &node, &all[1..], now, wall);
        state.refresh(now + Duration::from_secs(7), wall);
        assert_eq!(found(&state), expected(read(true)));
        // Its fault is out of sight for a while, and the node of no interest.
        let report = state.snapshot.reports.insert("w1".into(), crate::core::snapshot::ReportView::default());
        take(&mut state, &node, &all[1..], now, wall);
        state.snapshot.reports.insert("w1".into(), report.unwrap());
        take(&mut state, &node, &all[1..], now, wall);
        state.refresh(now + Duration::from_secs(7), wall);
        assert_eq!(found(&state), expected(read(true)), "it is remembered");
    }

    #[test]
    fn a_fault_that_names_its_pod_in_its_target_alone_has_the_node_read_where_a_policy_asks() {
        let mut state = state();
        named_pods(&mut state, &[("cart", "c")]);
        let fault = &mut state.snapshot.reports.get_mut("w1").unwrap().faults[0].fault;
        fault.target.pod = fault.subject.pod.take();
        assert!(state.nodes_of_interest().is_empty());
        let policy =
            serde_json::from_value(json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy",
            "metadata": {"name": "p"}, "spec": {"rules": [{"name": "r", "steps": [{"action": "Notify"}],
                "match": {"faults": ["HungContainer"], "ownerKinds": ["Job"]}}]}}))
            .unwrap();
        state.snapshot.policies = vec![crate::api::convert::policy(&policy).unwrap()];
        assert!(state.nodes_of_interest().contains("w1"));
    }
}
