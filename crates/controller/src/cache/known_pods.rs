//! What is known of pods that rules may ask for: of the pods that faults name, and of the suspects of each `DaemonSet`.
//!
//! ```text
//! read of a node ─┐                          ┌─► Snapshot::pods_seen, aged (the engine)
//!                 ├─► KnownPods, by subject ─┤
//! read of a set ──┘                          └─► the last check before an action, of a pod that is gone
//! ```
//! A pod that the API no longer has keeps its last known traits: its labels and its owner do not change any more. The controller
//! keeps it while a fault names it, and for a while after that, since faults come and go while a node is faulty. Only a pod that
//! no read ever showed is [`PodSeen::Gone`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::conditions::Shared;
use nrh_api::view::pods;
use nrh_core::fault::PodRef;
use nrh_core::matching::{PodSeen, PodTraits};

/// How long a pod is remembered that no fault of its node names any more.
const REMEMBERED: Duration = Duration::from_mins(30);
/// Largest number of remembered pods of one node beside those that its faults name now.
const MAX_REMEMBERED: usize = 64;

/// Labels that many pods share: one copy of each.
type Labels = BTreeMap<String, Option<String>>;

#[derive(Clone, Debug)]
struct Known {
    /// Its traits, as of `read`.
    traits: PodTraits,
    read: Instant,
    named: Instant,
}

#[derive(Debug)]
struct OfNode {
    known: BTreeMap<PodRef, Known>,
    /// Pods that faults name, that do not exist, and that no read ever showed.
    unseen: BTreeSet<PodRef>,
    read: Instant,
}

/// All that is known.
#[derive(Debug, Default)]
pub struct KnownPods {
    of_nodes: BTreeMap<String, OfNode>,
    of_sets: BTreeMap<String, BTreeMap<PodRef, Known>>,
    labels: Shared<Labels>,
}

impl KnownPods {
    /// Stores a read of all pods of a node: what policies ask for, of the pods that its faults name, and of its suspects.
    pub fn note_node(
        &mut self,
        node: &str,
        named: &BTreeSet<PodRef>,
        all: &[Pod],
        keys: &BTreeSet<String>,
        now: Instant,
    ) {
        let mut before = self.of_nodes.remove(node).map(|of_node| of_node.known).unwrap_or_default();
        let (mut known, mut unseen) = (self.known(named, all, keys, now), BTreeSet::new());
        let missing: Vec<&PodRef> = named.iter().filter(|pod| !known.contains_key(*pod)).collect();
        for pod in missing {
            match before.remove(pod).or_else(|| self.of_set(pod)) {
                Some(last) => drop(known.insert(pod.clone(), Known { named: now, ..gone(last) })),
                None => drop(unseen.insert(pod.clone())),
            }
        }
        let mut before: Vec<(PodRef, Known)> = before.into_iter().filter(|(pod, _)| !known.contains_key(pod)).collect();
        before.retain(|(_, known)| now.saturating_duration_since(known.named) < REMEMBERED);
        before.sort_by_key(|(_, known)| std::cmp::Reverse(known.named));
        before.truncate(MAX_REMEMBERED);
        known.extend(before);
        self.of_nodes.insert(node.to_owned(), OfNode { known, unseen, read: now });
        self.labels.forget_unused();
    }

    /// Stores a read of the suspects of a DaemonSet.
    pub fn note_set(
        &mut self,
        set: &str,
        named: &BTreeSet<PodRef>,
        all: &[Pod],
        keys: &BTreeSet<String>,
        now: Instant,
    ) {
        let known = self.known(named, all, keys, now);
        self.of_sets.insert(set.to_owned(), known);
        self.labels.forget_unused();
    }

    /// Forgets the reads of a DaemonSet that is gone, or that has no suspects any more: it is not read again, so no later read
    /// would replace them.
    pub fn forget_set(&mut self, set: &str) {
        if self.of_sets.remove(set).is_some() {
            self.labels.forget_unused();
        }
    }

    /// No policy asks for pods any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets nodes that have not been of interest for a long time.
    pub fn retain(&mut self, wanted: &BTreeSet<String>, now: Instant) {
        let is_young = |of_node: &OfNode| now.saturating_duration_since(of_node.read) < REMEMBERED;
        self.of_nodes.retain(|node, of_node| wanted.contains(node) || is_young(of_node));
        self.labels.forget_unused();
    }

    /// What is known of all pods at `now`. Of two reads of one pod the later one counts.
    pub fn seen(&self, now: Instant) -> BTreeMap<PodRef, PodSeen> {
        let unseen = self.of_nodes.values().flat_map(|of_node| &of_node.unseen);
        let mut all: BTreeMap<PodRef, PodSeen> = unseen.map(|pod| (pod.clone(), PodSeen::Gone)).collect();
        let known = self.of_nodes.values().map(|of_node| &of_node.known).chain(self.of_sets.values()).flatten();
        let mut newest: BTreeMap<&PodRef, &Known> = BTreeMap::new();
        for (pod, known) in known {
            let kept = newest.entry(pod).or_insert(known);
            if kept.read < known.read {
                *kept = known;
            }
        }
        all.extend(newest.into_iter().map(|(pod, known)| (pod.clone(), known.aged(now))));
        all
    }

    /// The last known traits of a pod that the API no longer has.
    pub fn gone(&self, pod: &PodRef) -> PodSeen {
        let known = self.of_nodes.values().find_map(|of_node| of_node.known.get(pod)).cloned();
        let last = known.or_else(|| self.of_set(pod));
        last.map_or(PodSeen::Gone, |last| PodSeen::Read(gone(last).traits))
    }

    fn of_set(&self, pod: &PodRef) -> Option<Known> {
        self.of_sets.values().find_map(|known| known.get(pod)).cloned()
    }

    fn known(
        &mut self,
        named: &BTreeSet<PodRef>,
        all: &[Pod],
        keys: &BTreeSet<String>,
        now: Instant,
    ) -> BTreeMap<PodRef, Known> {
        let mut known = BTreeMap::new();
        for pod in all {
            for name in pods::names(pod).filter(|name| named.contains(name)) {
                let mut traits = pods::traits(pod, keys);
                traits.labels = self.labels.keep(traits.labels);
                known.insert(name, Known { traits, read: now, named: now });
            }
        }
        known
    }
}

impl Known {
    fn aged(&self, now: Instant) -> PodSeen {
        PodSeen::Read(PodTraits { read: now.saturating_duration_since(self.read), ..self.traits.clone() })
    }
}

/// The same pod, after it no longer exists.
fn gone(mut known: Known) -> Known {
    known.traits.gone = true;
    known
}
