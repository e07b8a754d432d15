//! Stores objects in the state: one rule per kind, the same for watches, re-lists and answers to the controller's own writes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use tokio::time::Instant;

use super::report::ControllerStatus;
use super::versions::{Versions, version_of};
use super::{RemediationRow, State, mirrored, report};
use nrh_api::view::guard::Unread;
use nrh_api::view::node;
use nrh_api::{FINALIZER, NodeRemediation, NodeRuntimeHealth, convert};
use nrh_core::kubelet::unfinished;
use nrh_core::snapshot::{NodeView, ReportView, missed_after};

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

/// A kind of object that the state is made of.
pub trait Ingest: Resource + Sized {
    /// Its name.
    const KIND: &'static str;
    /// The versions of its kind.
    fn versions(state: &mut State) -> &mut Versions;
    /// Stores an object that is newer than the known one.
    fn put(self, key: &str, state: &mut State, now: Instant) -> Changed;
    /// Forgets an object.
    fn forget(key: &str, state: &mut State) -> Changed;
    /// Its key among its kind.
    fn key(meta: &ObjectMeta) -> String {
        meta.name.clone().unwrap_or_default()
    }

    /// Stores an object, if it is newer than the one in the cache.
    fn fold(self, state: &mut State, now: Instant) -> Changed {
        let (key, version) = (Self::key(self.meta()), version_of(self.meta()));
        if !Self::versions(state).is_news(&key, version) {
            return Changed::Nothing;
        }
        self.put(&key, state, now)
    }

    /// Stores a deletion.
    fn fold_deletion(&self, state: &mut State) -> Changed {
        let (key, version) = (Self::key(self.meta()), version_of(self.meta()));
        if Self::versions(state).is_gone(&key, version) { Self::forget(&key, state) } else { Changed::Nothing }
    }

    /// A re-list is complete: forgets the objects that it did not show.
    fn finish_list(state: &mut State) {
        for key in Self::versions(state).finish() {
            Self::forget(&key, state);
        }
    }
}

impl Ingest for Node {
    const KIND: &'static str = "Node";

    fn versions(state: &mut State) -> &mut Versions {
        &mut state.versions.nodes
    }

    fn put(self, key: &str, state: &mut State, now: Instant) -> Changed {
        state.unread.forget(Self::KIND, key);
        match mirrored::standing(&self) {
            Some(standing) => state.node_conditions.insert(key.to_owned(), standing),
            None => state.node_conditions.remove(key),
        };
        let mut view = node::view(&self);
        view.conditions = state.shared.keep(view.conditions);
        let since_start = state.since_start(now);
        state.flaps.note_ready(key, &view, since_start);
        let matters = put_view(key, view, state);
        let noticed = state.note_conditions(key, now);
        state.wakes.news(key, matters || noticed, now)
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        state.unread.forget(Self::KIND, key);
        state.pod_reads.forget_node(key);
        state.node_conditions.remove(key);
        state.notices.forget(key);
        state.flaps.forget(key);
        state.wakes.forget(key);
        let gone = state.snapshot.nodes.remove(key);
        let was_there = gone.is_some();
        if let Some(view) = gone {
            state.shared.give_back(view.conditions, &Arc::default());
        }
        Changed::when(was_there)
    }
}

/// Stores what is known of a Node. Returns whether anything changed that a decision reads, apart from the conditions that
/// policies ask for.
fn put_view(key: &str, view: NodeView, state: &mut State) -> bool {
    if let Some(known) = state.snapshot.nodes.get_mut(key) {
        let kubelet = state.snapshot.reports.get(key).map(|report| &report.kubelet);
        let unfinished = |view: &NodeView| kubelet.and_then(|kubelet| unfinished(view, kubelet));
        let before = unfinished(known);
        // Every node sends the time of the kubelet's last status every five minutes. It matters only during an unfinished start
        // of the kubelet. Conditions come with it.
        known.status_at = view.status_at;
        let old = std::mem::replace(&mut known.conditions, Arc::clone(&view.conditions));
        state.shared.give_back(old, &view.conditions);
        if *known == view {
            return before != unfinished(known);
        }
    }
    state.snapshot.nodes.insert(key.to_owned(), view);
    true
}

impl Ingest for NodeRuntimeHealth {
    const KIND: &'static str = "NodeRuntimeHealth";

    fn versions(state: &mut State) -> &mut Versions {
        &mut state.versions.reports
    }

    fn put(self, key: &str, state: &mut State, now: Instant) -> Changed {
        state.unread.forget(Self::KIND, key);
        let since_start = state.since_start(now);
        let probe = self.status.as_ref().and_then(|status| status.probe.as_ref());
        let beat =
            probe.is_some_and(|probe| state.arrivals.entry(key.to_owned()).or_default().note(probe, now, since_start));
        let view = report::view(&self);
        state.flaps.note_report(key, &view, since_start);
        let standing = report::standing(&self);
        let known = state.standing.get(key).and_then(|known| known.check_requested.as_ref());
        // The decision does not read this. The writer that passes the request on is woken by a decision.
        let asks = standing.check_requested.as_ref() != known;
        stand(state, key, standing);
        let old = state.snapshot.reports.insert(key.to_owned(), view);
        let Some(new) = state.snapshot.reports.get(key) else { return Changed::Matters };
        let differs = old.as_ref().is_none_or(|old| report::differs(old, new));
        // A heartbeat refreshes evidence, and ends a silence. It matters only where one of them is awaited.
        let has_own = state.standing.get(key).is_some_and(|standing| !standing.cluster_faults.is_empty());
        let awaited = beat && (!new.faults.is_empty() || has_own || old.as_ref().is_none_or(is_missed));
        let matters = differs || asks || awaited || (beat && state.open_remediation(key).is_some());
        state.wakes.news(key, matters, now)
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        state.unread.forget(Self::KIND, key);
        let old = state.standing.remove(key);
        forget_said(state, old);
        state.arrivals.remove(key);
        // The history here is from a report that arrived after its Node was deleted.
        if !state.snapshot.nodes.contains_key(key) {
            state.flaps.forget(key);
        }
        Changed::when(state.snapshot.reports.remove(key).is_some())
    }
}

/// Stores the controller's part of a report.
fn stand(state: &mut State, node: &str, mut standing: ControllerStatus) {
    standing.conditions.share(&mut state.said);
    let old = state.standing.insert(node.to_owned(), standing);
    forget_said(state, old);
}

fn forget_said(state: &mut State, old: Option<ControllerStatus>) {
    if let Some(old) = old {
        old.conditions.give_back(&mut state.said);
    }
}

/// Whether a heartbeat was missed when ages were last refreshed. A heartbeat that is only due does not count: at any moment
/// some of a large fleet's are due, so each decision would cause the next.
fn is_missed(view: &ReportView) -> bool {
    view.heartbeat.as_ref().is_none_or(|beat| beat.arrived > missed_after(beat.interval))
}

/// Stores that a report exists and cannot be read. Its node counts as not reported, and is blocked.
pub(super) fn unread_report(bad: &Unread, key: &str, state: &mut State, now: Instant) -> Changed {
    let (view, standing) = report::unreadable(&bad.metadata, &bad.why);
    state.arrivals.remove(key);
    stand(state, key, standing);
    let old = state.snapshot.reports.insert(key.to_owned(), view);
    let matters = old.as_ref() != state.snapshot.reports.get(key);
    state.wakes.news(key, matters, now)
}

impl Ingest for NodeRemediation {
    const KIND: &'static str = "NodeRemediation";

    fn versions(state: &mut State) -> &mut Versions {
        &mut state.versions.remediations
    }

    fn put(self, key: &str, state: &mut State, _now: Instant) -> Changed {
        state.unread.forget(Self::KIND, key);
        let finalizers = self.metadata.finalizers.as_deref().unwrap_or_default();
        let row = RemediationRow {
            generation: self.metadata.generation.unwrap_or_default(),
            finalizer: finalizers.iter().any(|finalizer| finalizer == FINALIZER),
            others_finalizers: finalizers.iter().any(|finalizer| finalizer != FINALIZER),
            conditions: self.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default(),
        };
        state.remediations.insert(key.to_owned(), row);
        state.snapshot.unreadable.remove(key);
        if let Some(manual) = convert::manual(&self) {
            let was_remediation = state.snapshot.remediations.remove(key).is_some();
            let old = state.snapshot.manual_requests.insert(key.to_owned(), manual);
            return Changed::when(was_remediation || old.as_ref() != state.snapshot.manual_requests.get(key));
        }
        state.snapshot.manual_requests.remove(key);
        let remediation = convert::remediation(&self);
        let old = state.snapshot.remediations.insert(key.to_owned(), remediation);
        Changed::when(old.as_ref() != state.snapshot.remediations.get(key))
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        state.unread.forget(Self::KIND, key);
        state.remediations.remove(key);
        let was_manual = state.snapshot.manual_requests.remove(key).is_some();
        let was_unreadable = state.snapshot.unreadable.remove(key).is_some();
        Changed::when(state.snapshot.remediations.remove(key).is_some() || was_manual || was_unreadable)
    }
}

#[cfg(test)]
mod tests;
