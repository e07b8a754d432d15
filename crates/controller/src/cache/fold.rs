//! Stores objects in the state, from watches, re-lists and answers to the controller's own writes alike. What goes into the
//! snapshot has one rule per kind in [`nrh_api::view`]; here is what only the controller keeps, and when the decider is woken.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use tokio::time::Instant;

use super::report::ControllerStatus;
use super::versions::{self, AllVersions, Versions, version_of};
use super::{RemediationRow, State, mirrored, report};
use nrh_api::condition::status_of;
use nrh_api::view::View;
use nrh_api::{
    FINALIZER, NodeCommand, NodeRemediation, NodeRuntimeHealth, PROBE_MANAGER, RemediationConfig, RemediationPolicy,
};
use nrh_core::condition_type::ConditionType;
use nrh_core::snapshot::{ReportView, Snapshot, TriState, missed_after};

/// Whether the decider has to run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Something that a decision reads has changed.
    Matters,
    /// The same, on a node that has used up its share of wakes: the decider sees it with the next change, or a second later.
    MattersSoon,
    /// Nothing that a decision reads has changed; a heartbeat at most.
    Nothing,
}

impl Changed {
    pub(super) fn when(matters: bool) -> Self {
        if matters { Self::Matters } else { Self::Nothing }
    }
}

impl Default for AllVersions {
    fn default() -> Self {
        Self::new([
            Node::KIND,
            NodeRuntimeHealth::KIND,
            NodeCommand::KIND,
            RemediationPolicy::KIND,
            RemediationConfig::KIND,
            NodeRemediation::KIND,
            DaemonSet::KIND,
            Job::KIND,
            Pod::KIND,
        ])
    }
}

/// A kind of object that the state is made of.
pub trait Ingest: Resource + Sized {
    /// Its name.
    const KIND: &'static str;
    /// The versions of its kind.
    fn versions(state: &mut State) -> &mut Versions {
        state.versions.of(Self::KIND)
    }
    /// Stores an object that is newer than the known one.
    fn put(self, key: &str, state: &mut State, now: Instant) -> Changed;
    /// Forgets an object.
    fn forget(key: &str, state: &mut State) -> Changed;
    /// Whether it can be read.
    fn is_readable(&self) -> bool {
        true
    }
    /// Its key among its kind.
    fn key(meta: &ObjectMeta) -> String {
        meta.name.clone().unwrap_or_default()
    }

    /// Stores an object, if it is newer than the one in the cache.
    fn fold(self, state: &mut State, now: Instant) -> Changed {
        let (key, version) = (Self::key(self.meta()), version_of(self.meta()));
        if !Self::versions(state).record(&key, version) {
            return Changed::Nothing;
        }
        if self.is_readable() {
            state.unread.forget(Self::KIND, &key);
        }
        self.put(&key, state, now)
    }

    /// Stores a deletion.
    fn fold_deletion(&self, state: &mut State) -> Changed {
        let (key, version) = (Self::key(self.meta()), version_of(self.meta()));
        if !Self::versions(state).record_deletion(&key, version) {
            return Changed::Nothing;
        }
        state.unread.forget(Self::KIND, &key);
        Self::forget(&key, state)
    }

    /// A re-list is complete: forgets the objects that it did not show.
    fn finish_list(state: &mut State) {
        for key in Self::versions(state).finish() {
            state.unread.forget(Self::KIND, &key);
            Self::forget(&key, state);
        }
    }
}

impl Ingest for Node {
    const KIND: &'static str = "Node";

    fn put(self, key: &str, state: &mut State, now: Instant) -> Changed {
        match mirrored::read(&self) {
            Some(current) => state.node_conditions.insert(key.to_owned(), current),
            None => state.node_conditions.remove(key),
        };
        let since_start = state.since_start(now);
        let old = state.snapshot.nodes.get(key).map(|known| Arc::clone(&known.conditions));
        let matters = self.store(key, &mut state.snapshot);
        let Snapshot { nodes, policies, .. } = &mut state.snapshot;
        let Some(view) = nodes.get_mut(key) else { return Changed::Matters };
        view.conditions = state.shared.keep(std::mem::take(&mut view.conditions));
        if let Some(old) = old.filter(|old| !Arc::ptr_eq(old, &view.conditions)) {
            state.shared.release(old);
        }
        state.flaps.note_ready(key, view, since_start);
        let is_matched = state.notices.note(key, view, policies, since_start);
        state.wakes.news(key, matters || is_matched, now)
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        state.pod_reads.forget_node(key);
        state.node_conditions.remove(key);
        state.notices.forget(key);
        state.flaps.forget(key);
        state.wakes.forget(key);
        let conditions = state.snapshot.nodes.get(key).map(|known| Arc::clone(&known.conditions));
        let was_there = Self::remove(key, &mut state.snapshot);
        if let Some(conditions) = conditions {
            state.shared.release(conditions);
        }
        Changed::when(was_there)
    }
}

impl Ingest for NodeRuntimeHealth {
    const KIND: &'static str = "NodeRuntimeHealth";

    fn put(self, key: &str, state: &mut State, now: Instant) -> Changed {
        let since_start = state.since_start(now);
        let beat = self.status.as_ref().is_some_and(|status| {
            let was_silent = status_of(&status.conditions, ConditionType::ProbeReporting) == TriState::False;
            let written_at = versions::written_at(&self.metadata, PROBE_MANAGER);
            let arrivals = state.arrivals.entry(key.to_owned()).or_default();
            status.probe.as_ref().is_some_and(|probe| arrivals.note(probe, written_at, was_silent, now, since_start))
        });
        let current = report::controller_status(&self);
        let known = state.controller_statuses.get(key).and_then(|known| known.check_requested.as_ref());
        // The decision does not read this. The writer that passes the request on is woken by a decision.
        let asks = current.check_requested.as_ref() != known;
        set_status(state, key, current);
        let was_missed = state.snapshot.reports.get(key).is_none_or(is_missed);
        let differs = self.store(key, &mut state.snapshot);
        let Some(new) = state.snapshot.reports.get(key) else { return Changed::Matters };
        state.flaps.note_report(key, new, since_start);
        // A heartbeat refreshes evidence, and ends a silence. It matters only where one of them is awaited.
        let has_own = state.controller_statuses.get(key).is_some_and(|current| !current.cluster_faults.is_empty());
        let awaited = beat && (!new.faults.is_empty() || has_own || was_missed);
        let matters = differs || asks || awaited || (beat && state.open_remediation(key).is_some());
        state.wakes.news(key, matters, now)
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        if let Some(old) = state.controller_statuses.remove(key) {
            old.conditions.release(&mut state.condition_texts);
        }
        state.arrivals.remove(key);
        // What is left here is from a report that arrived after its Node was deleted.
        if !state.snapshot.nodes.contains_key(key) {
            state.flaps.forget(key);
            state.wakes.forget(key);
        }
        Changed::when(Self::remove(key, &mut state.snapshot))
    }
}

/// Stores the controller's part of a report.
pub(super) fn set_status(state: &mut State, node: &str, mut current: ControllerStatus) {
    current.conditions.share(&mut state.condition_texts);
    if let Some(old) = state.controller_statuses.insert(node.to_owned(), current) {
        old.conditions.release(&mut state.condition_texts);
    }
}

/// Whether a heartbeat was missed when ages were last refreshed. A heartbeat that is only due does not count: at any moment
/// some of a large fleet's are due, so each decision would cause the next.
fn is_missed(view: &ReportView) -> bool {
    view.heartbeat.as_ref().is_none_or(|beat| beat.arrived > missed_after(beat.interval))
}

impl Ingest for NodeRemediation {
    const KIND: &'static str = "NodeRemediation";

    fn put(self, key: &str, state: &mut State, _now: Instant) -> Changed {
        let finalizers = self.metadata.finalizers.as_deref().unwrap_or_default();
        let row = RemediationRow {
            generation: self.metadata.generation.unwrap_or_default(),
            finalizer: finalizers.iter().any(|finalizer| finalizer == FINALIZER),
            others_finalizers: finalizers.iter().any(|finalizer| finalizer != FINALIZER),
            conditions: self.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default(),
        };
        state.remediations.insert(key.to_owned(), row);
        Changed::when(self.store(key, &mut state.snapshot))
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        state.remediations.remove(key);
        Changed::when(Self::remove(key, &mut state.snapshot))
    }
}

#[cfg(test)]
mod tests;
