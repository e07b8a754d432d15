//! Pods in a timeline that a drain would evict.

use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::Offset;
use crate::workload::Workload;
use nrh_core::drain::{PodState, RecreatedBy};
use nrh_core::fault::PodRef;
use nrh_core::text::{bounded, short_hash};

/// Most pods of one event on one node.
const MAX_PODS: u32 = 500;

/// Pods that run on the node from now on. They replace those that it had with this name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodsEvent {
    /// Namespace and name. With `count`: the part before the number.
    pub name: String,
    /// How many: `shop/web` and 2 are shop/web-1 and shop/web-2. 0: they are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// How long each takes to end. Default: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes: Option<Offset>,
    /// The disruption budget that allows none of them to be evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// They have data in an `emptyDir`.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub empty_dir: bool,
    /// No controller recreates them.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub bare: bool,
}

impl PodsEvent {
    fn place(&self) -> (&str, &str) {
        self.name.split_once('/').unwrap_or(("default", &self.name))
    }

    /// Checks that the event is possible.
    ///
    /// # Errors
    /// The name is invalid, or there are too many pods.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let shown = bounded(&self.name, 64);
        ensure!(self.name.split('/').count() == 2, "pods: expected namespace/name, found {shown:?}");
        let found = self.count.unwrap_or(1);
        ensure!(found <= MAX_PODS, "pods: expected at most {MAX_PODS}, found {found}");
        Ok(())
    }

    /// The pods on this node.
    pub(crate) fn pods(&self, node: &str) -> Vec<Workload> {
        let (namespace, name) = self.place();
        let names = match self.count {
            None => vec![name.to_owned()],
            Some(count) => (1..=count).map(|number| format!("{name}-{number}")).collect(),
        };
        let takes = self.takes.map_or(Duration::from_secs(30), |takes| takes.0);
        let pod = |name: &String| {
            let uid = uid(node, namespace, name, 0);
            let pod = PodRef { namespace: namespace.to_owned(), name: name.clone(), uid };
            let mut workload = Workload::new(pod, takes);
            workload.pod.has_empty_dir = self.empty_dir;
            workload.pod.recreated_by = if self.bare { RecreatedBy::Nobody } else { RecreatedBy::Controller };
            workload.budget.clone_from(&self.budget);
            workload
        };
        names.iter().map(pod).collect()
    }

    /// Puts the pods on the node, and reports it. Terminating pods with that name continue to terminate.
    pub(crate) fn happen(&self, node: &str, workloads: &mut Vec<Workload>) -> String {
        let made = self.pods(node);
        let (namespace, name) = self.place();
        let is_of = |pod: &PodRef| {
            let rest = pod.name.strip_prefix(name).filter(|_| pod.namespace == namespace);
            rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('-').is_some_and(|n| n.parse::<u32>().is_ok()))
        };
        workloads.retain(|old| !is_of(&old.pod.pod) || old.pod.state == PodState::Terminating);
        let count = made.len();
        let new = made.into_iter().filter(|new| workloads.iter().all(|old| old.pod.pod != new.pod.pod));
        let new: Vec<Workload> = new.collect();
        workloads.extend(new);
        let budget = self
            .budget
            .as_ref()
            .map_or_else(String::new, |budget| format!(", and PodDisruptionBudget {budget} allows no disruption"));
        format!("{count} pod(s) {} run on the node{budget}", self.name)
    }
}

/// Uid of a pod on the node.
pub(crate) fn uid(node: &str, namespace: &str, name: &str, life: usize) -> String {
    format!("uid-{}", short_hash(&format!("{node}/{namespace}/{name}/{life}")))
}
