//! Each `DaemonSet` of the cluster, as far as it helps to find suspects among its pods.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Selector;
use tokio::time::Instant;

use super::State;
use super::fold::{Changed, Ingest};
use nrh_api::view::pods;
use nrh_core::snapshot::TriState;

/// What the controller keeps of a DaemonSet to find suspects among its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSetRow {
    /// Its uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its label selector, in the API's notation.
    pub selector: String,
    /// Number of pods that it wants.
    pub desired: u32,
    /// Whether some of them are missing, not ready or not available.
    pub has_unready_pods: bool,
}

impl State {
    /// Whether a listed DaemonSet with the same uid controls the pod. A name alone, in the `ownerReferences` of the pod, proves
    /// nothing, since the creator of the pod writes it. Unknown where that DaemonSet cannot be read.
    pub fn is_of_daemon_set(&self, pod: &Pod) -> TriState {
        let Some(owner) = pods::daemon_set(pod) else { return TriState::False };
        let key = format!("{}/{}", pod.metadata.namespace.as_deref().unwrap_or_default(), owner.name);
        match self.daemon_sets.get(&key) {
            Some(set) if !set.uid.is_empty() && set.uid == owner.uid => TriState::True,
            _ if self.unread.has(DaemonSet::KIND, &key) => TriState::Unknown,
            _ => TriState::False,
        }
    }

    /// Forgets the labels of the pods of a DaemonSet that is no longer read: no later read would replace them.
    pub(super) fn settle_set(&mut self, key: &str) {
        let is_troubled = self.daemon_sets.get(key).is_some_and(|row| row.has_unready_pods);
        if !is_troubled && !self.pod_reads.unhealthy_daemon_sets().contains(key) {
            self.known_pods.forget_set(key);
        }
    }
}

impl Ingest for DaemonSet {
    const KIND: &'static str = "DaemonSet";

    fn key(meta: &ObjectMeta) -> String {
        format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }

    fn put(self, key: &str, state: &mut State, now: Instant) -> Changed {
        let selector = self.spec.and_then(|spec| Selector::try_from(spec.selector).ok());
        let Some(selector) = selector.filter(|selector| !selector.selects_all()) else {
            return Self::forget(key, state);
        };
        let status = self.status.as_ref();
        let row = DaemonSetRow {
            uid: self.metadata.uid.clone().unwrap_or_default(),
            namespace: self.metadata.namespace.clone().unwrap_or_default(),
            selector: selector.to_string(),
            desired: status.and_then(|s| u32::try_from(s.desired_number_scheduled).ok()).unwrap_or(0),
            has_unready_pods: status
                .is_some_and(|s| s.number_unavailable.unwrap_or(0) > 0 || s.number_ready != s.desired_number_scheduled),
        };
        state.pod_reads.note_lack(key, row.has_unready_pods, now);
        let matters = state.daemon_sets.get(key) != Some(&row);
        state.daemon_sets.insert(key.to_owned(), row);
        state.settle_set(key);
        Changed::when(matters)
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        state.pod_reads.forget_set(key);
        state.known_pods.forget_set(key);
        Changed::when(state.daemon_sets.remove(key).is_some())
    }
}
