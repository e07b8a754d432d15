//! What the state keeps of an object that cannot be read: an unreadable object does not count as gone.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::Instant;

use super::fold::{Changed, Ingest, set_status};
use super::policies::PolicyRow;
use super::{State, job, report};
use nrh_api::view::View;
use nrh_api::view::guard::{BoundedStatus, Guarded, UnreadableObject};
use nrh_api::{NodeRemediation, NodeRuntimeHealth, RemediationConfig, RemediationPolicy};

/// The objects that cannot be read now, by kind and key. The controller reports each once, a remediation again whenever
/// something else is known of it.
#[derive(Debug, Default)]
pub struct Unreads(BTreeMap<&'static str, BTreeSet<String>>);

impl Unreads {
    /// Records one object. Returns whether it is new.
    pub fn note(&mut self, kind: &'static str, key: &str) -> bool {
        self.0.entry(kind).or_default().insert(key.to_owned())
    }

    /// Forgets an object that can be read again, or is gone.
    pub fn forget(&mut self, kind: &str, key: &str) {
        if let Some(keys) = self.0.get_mut(kind) {
            keys.remove(key);
        }
    }

    /// Whether this one is among them.
    pub fn has(&self, kind: &str, key: &str) -> bool {
        self.0.get(kind).is_some_and(|keys| keys.contains(key))
    }

    /// How many there are of a kind.
    pub fn count(&self, kind: &str) -> usize {
        self.0.get(kind).map_or(0, BTreeSet::len)
    }
}

/// A kind of which one object may be unreadable.
pub trait Guardable: Ingest + BoundedStatus {
    /// The consequence of an unreadable object, as a text for people.
    const CONSEQUENCE: &'static str;

    /// Stores that an object exists and cannot be read. An unreadable object does not count as gone. What was known of objects
    /// of other writers stays valid. An unreadable remediation, report or policy of this operator blocks its node, or starts
    /// nothing.
    fn unread(bad: &UnreadableObject, key: &str, state: &mut State, now: Instant) -> Changed;
}

impl<K: Guardable> Ingest for Guarded<K> {
    const KIND: &'static str = K::KIND;

    fn key(meta: &ObjectMeta) -> String {
        K::key(meta)
    }

    fn is_readable(&self) -> bool {
        self.0.is_ok()
    }

    fn put(self, key: &str, state: &mut State, now: Instant) -> Changed {
        match self.0 {
            Ok(object) => object.put(key, state, now),
            Err(bad) => {
                let news = K::unread(&bad, key, state, now);
                if state.unread.note(K::KIND, key) {
                    let (kind, held) = (K::KIND, K::CONSEQUENCE);
                    tracing::warn!(kind, object = key, error = bad.why, "an object cannot be read: {held}");
                }
                news
            }
        }
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        K::forget(key, state)
    }
}

impl Guardable for Node {
    const CONSEQUENCE: &'static str = "nothing is done on that node until it can be; see who writes the field that is named \
                                (kubectl get node NAME -o yaml --show-managed-fields)";

    fn unread(bad: &UnreadableObject, key: &str, state: &mut State, now: Instant) -> Changed {
        let known = state.snapshot.nodes.get(key).map(|known| known.uid.as_str());
        if known != bad.metadata.uid.as_deref() {
            // Another object of that name: nothing that is known of the last one applies.
            Self::forget(key, state);
        }
        let matters = Self::store_unreadable(bad, key, &mut state.snapshot);
        state.wakes.news(key, matters, now)
    }
}

impl Guardable for DaemonSet {
    const CONSEQUENCE: &'static str =
        "its last known state still counts; if it was never read, its pods are not checked";

    fn unread(_bad: &UnreadableObject, _key: &str, _state: &mut State, _now: Instant) -> Changed {
        Changed::Nothing
    }
}

impl Guardable for Job {
    const CONSEQUENCE: &'static str =
        "its last known state still counts; its step ends when its pod reports, or at its timeout";

    fn unread(bad: &UnreadableObject, _key: &str, state: &mut State, _now: Instant) -> Changed {
        let Some(id) = job::operation(&bad.metadata) else { return Changed::Nothing };
        let row = state.jobs.entry(id.to_owned()).or_default();
        Changed::when(!std::mem::replace(&mut row.exists, true))
    }
}

/// The pod of one of the controller's Jobs.
impl Guardable for Pod {
    const CONSEQUENCE: &'static str =
        "its Job counts as started, and nothing else is sent in its place before its step is over";

    fn unread(bad: &UnreadableObject, _key: &str, state: &mut State, _now: Instant) -> Changed {
        let Some(id) = job::operation_of_pod(&bad.metadata) else { return Changed::Nothing };
        Changed::when(job::note_unread_pod(state.jobs.entry(id.to_owned()).or_default()))
    }
}

impl Guardable for NodeRuntimeHealth {
    const CONSEQUENCE: &'static str = "the node is blocked until it can be read";

    fn unread(bad: &UnreadableObject, key: &str, state: &mut State, now: Instant) -> Changed {
        state.arrivals.remove(key);
        set_status(state, key, report::unread(&bad.metadata));
        let matters = Self::store_unreadable(bad, key, &mut state.snapshot);
        state.wakes.news(key, matters, now)
    }
}

impl Guardable for RemediationPolicy {
    const CONSEQUENCE: &'static str = "it starts nothing until it can be read";

    fn unread(bad: &UnreadableObject, key: &str, state: &mut State, now: Instant) -> Changed {
        let matters = Self::store_unreadable(bad, key, &mut state.snapshot);
        let status = state.policies.get(key).map(|row| row.status.clone()).unwrap_or_default();
        let generation = bad.metadata.generation.unwrap_or_default();
        let row = PolicyRow { errors: vec![bad.why.clone()], generation, status, ..PolicyRow::default() };
        state.put_policy(key, row, matters, now)
    }
}

impl Guardable for RemediationConfig {
    const CONSEQUENCE: &'static str = "nothing starts on any node until it can be";

    fn unread(bad: &UnreadableObject, key: &str, state: &mut State, _now: Instant) -> Changed {
        state.config = None;
        Changed::when(Self::store_unreadable(bad, key, &mut state.snapshot))
    }
}

impl Guardable for NodeRemediation {
    const CONSEQUENCE: &'static str = "it keeps its slot, and its node is blocked";

    fn unread(bad: &UnreadableObject, key: &str, state: &mut State, _now: Instant) -> Changed {
        let matters = Self::store_unreadable(bad, key, &mut state.snapshot);
        if matters {
            state.remediations.remove(key);
            state.unread.forget(Self::KIND, key);
        }
        Changed::when(matters)
    }
}

#[cfg(test)]
mod tests;
