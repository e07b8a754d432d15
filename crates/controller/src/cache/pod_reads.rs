//! The latest read of each pod of a `DaemonSet`, kept until a later read shows that the pod is well or gone.
//!
//! ```text
//! read of a node ─┐
//! read of a set ──┼─► PodReads, by pod ─► Snapshot::pods, as read, with the time since
//! read of a pod ──┘         └─► what is read next: no pod that is not well is left unread
//! ```
//! Only a read removes a pod: a `DaemonSet` that calls itself well does not prove that its terminating pod is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use nrh_core::fault::PodRef;
use nrh_core::snapshot::SuspectPod;
use nrh_core::stuck;

#[derive(Clone, Debug)]
struct Read {
    pod: SuspectPod,
    at: Instant,
}

/// A read of all pods of a node.
#[derive(Clone, Debug)]
struct NodeRead {
    at: Instant,
    terminating: BTreeSet<PodRef>,
}

/// All reads. Each read has the time of its request: it may not show what came later.
#[derive(Debug, Default)]
pub struct PodReads {
    pods: BTreeMap<PodRef, Read>,
    nodes: BTreeMap<String, NodeRead>,
    /// `DaemonSet`s that lack pods, with the time of the last read of all their pods, or at first of when they began to lack some.
    sets: BTreeMap<String, Instant>,
}

impl PodReads {
    /// Stores a read of a node: all its pods of `DaemonSet`s, and the pods of any owner that are being deleted.
    pub fn note_node(&mut self, node: &str, found: Vec<SuspectPod>, terminating: BTreeSet<PodRef>, at: Instant) {
        self.pods.retain(|_, read| read.pod.node != node || read.at > at);
        self.nodes.insert(node.to_owned(), NodeRead { at, terminating });
        self.take(found, at);
    }

    /// Stores a read of a DaemonSet: those of its pods that are not well. `is_told` = whether the read would have shown that
    /// pod.
    pub fn note_set(&mut self, key: &str, found: Vec<SuspectPod>, is_told: impl Fn(&PodRef) -> bool, at: Instant) {
        // The next read of the node shows whether a pod that was well is gone.
        let is_over = |pod: &PodRef, read: &Read| is_told(pod) && read.at <= at && !read.pod.is_healthy();
        self.pods.retain(|pod, read| !is_of(&read.pod, key) || !is_over(pod, read));
        self.take(found, at);
    }

    /// Stores a read of one pod. `None` = it is gone, or no longer a pod of a DaemonSet.
    pub fn note_pod(&mut self, pod: &PodRef, found: Option<SuspectPod>, at: Instant) {
        if self.pods.get(pod).is_some_and(|read| read.at > at) {
            return;
        }
        self.pods.remove(pod);
        self.take(found, at);
    }

    fn take(&mut self, found: impl IntoIterator<Item = SuspectPod>, at: Instant) {
        for pod in found {
            let is_wanted = !pod.is_healthy() || self.nodes.contains_key(&pod.node);
            if is_wanted && self.pods.get(&pod.pod).is_none_or(|read| read.at <= at) {
                self.pods.insert(pod.pod.clone(), Read { pod, at });
            }
        }
    }

    /// Forgets the reads of whole nodes except these. Their pods that are not well stay.
    pub fn retain_nodes(&mut self, wanted: &BTreeSet<String>) {
        self.nodes.retain(|node, _| wanted.contains(node));
        self.pods.retain(|_, read| !read.pod.is_healthy() || wanted.contains(&read.pod.node));
    }

    /// Forgets a node that is gone.
    pub fn forget_node(&mut self, node: &str) {
        self.nodes.remove(node);
        self.pods.retain(|_, read| read.pod.node != node);
    }

    /// Stores whether a DaemonSet says that it lacks pods.
    pub fn note_lack(&mut self, key: &str, lacks: bool, now: Instant) {
        if lacks {
            self.sets.entry(key.to_owned()).or_insert(now);
        } else {
            self.sets.remove(key);
        }
    }

    /// Stores that all pods of a DaemonSet were read.
    pub fn note_whole_set(&mut self, key: &str, at: Instant) {
        if let Some(known) = self.sets.get_mut(key) {
            *known = at.max(*known);
        }
    }

    /// `DaemonSet`s that lack pods, and for how long nobody has known which.
    pub fn lacking(&self, now: Instant) -> impl Iterator<Item = (&str, Duration)> {
        self.sets.iter().map(move |(key, known)| (key.as_str(), now.saturating_duration_since(*known)))
    }

    /// Forgets the pods of a DaemonSet that is gone.
    pub fn forget_set(&mut self, key: &str) {
        self.sets.remove(key);
        self.pods.retain(|_, read| !is_of(&read.pod, key));
    }

    /// Pods that are not well.
    pub fn unhealthy(&self) -> impl Iterator<Item = &SuspectPod> {
        self.pods.values().map(|read| &read.pod).filter(|pod| !pod.is_healthy())
    }

    /// `DaemonSet`s with pods that are not well.
    pub fn unhealthy_daemon_sets(&self) -> BTreeSet<String> {
        self.unhealthy().filter_map(set_of).collect()
    }

    /// Pods that are not well, when each was read, and whether it is stuck by now if it has not changed since.
    pub fn to_read(&self, now: Instant) -> Vec<(&PodRef, Instant, bool)> {
        let unhealthy = self.pods.values().filter(|read| !read.pod.is_healthy());
        let is_stuck = |read: &Read| {
            stuck::pattern(&read.pod).is_some()
                || stuck::pattern(&aged(&read.pod, now.saturating_duration_since(read.at))).is_some()
        };
        unhealthy.map(|read| (&read.pod.pod, read.at, is_stuck(read))).collect()
    }

    /// The pod, as it was last read.
    pub fn get(&self, pod: &PodRef) -> Option<&SuspectPod> {
        self.pods.get(pod).map(|read| &read.pod)
    }

    /// All pods, as they were read, with the time since.
    pub fn pods(&self, now: Instant) -> Vec<SuspectPod> {
        let since = |at: Instant| now.saturating_duration_since(at);
        self.pods.values().map(|read| SuspectPod { read: since(read.at), ..read.pod.clone() }).collect()
    }

    /// Time since each node was read as a whole.
    pub fn nodes(&self, now: Instant) -> BTreeMap<String, Duration> {
        self.nodes.iter().map(|(node, read)| (node.clone(), now.saturating_duration_since(read.at))).collect()
    }

    /// Pods of each of these nodes that are being deleted.
    pub fn terminating(&self) -> BTreeMap<String, BTreeSet<PodRef>> {
        let ending = self.nodes.iter().filter(|(_, read)| !read.terminating.is_empty());
        ending.map(|(node, read)| (node.clone(), read.terminating.clone())).collect()
    }
}

/// The key of the DaemonSet of a pod.
fn set_of(pod: &SuspectPod) -> Option<String> {
    pod.daemon_set.as_ref().map(|name| format!("{}/{name}", pod.pod.namespace))
}

fn is_of(pod: &SuspectPod, key: &str) -> bool {
    set_of(pod).is_some_and(|set| set == key)
}

/// The pod after that time, if nothing has changed.
fn aged(pod: &SuspectPod, by: Duration) -> SuspectPod {
    let mut aged = pod.clone();
    aged.without_sandbox = aged.without_sandbox.map(|without| without.saturating_add(by));
    aged.overdue = aged.overdue.map(|overdue| overdue.saturating_add(by));
    for waiting in &mut aged.waiting {
        waiting.ended = waiting.ended.map(|ended| ended.saturating_add(by));
    }
    for failed in &mut aged.failed {
        failed.ended = failed.ended.saturating_add(by);
    }
    aged
}
