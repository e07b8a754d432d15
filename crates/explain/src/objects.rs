//! The objects that an explanation is made from, read from the cluster or from a file.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use nrh_api::NodeRuntimeHealthStatus;
use nrh_core::fault::PodRef;
use nrh_core::snapshot::Snapshot;

mod read;
mod snapshot;

/// All objects that a decision is made from, as far as the caller may read them.
#[derive(Debug, Default)]
pub struct Objects {
    /// The objects, as a decision reads them. What depends on time is not filled.
    read: Snapshot,
    /// The status of each readable report, by node, with the uid of the Node that owns it.
    statuses: BTreeMap<String, (Option<String>, NodeRuntimeHealthStatus)>,
    /// Pods that faults name, as far as they were read.
    pods: Vec<Pod>,
    /// Pods that faults name and that no longer exist.
    gone: BTreeSet<PodRef>,
    /// Objects that cannot be used, one sentence each.
    unusable: Vec<String>,
    /// The newest time that the objects name: they were saved at that time, or later.
    newest: Option<Timestamp>,
}

impl Objects {
    /// All nodes among the objects, those with a report first.
    pub fn node_names(&self) -> Vec<String> {
        let unreported = self.read.nodes.keys().filter(|name| !self.read.reports.contains_key(*name));
        self.read.reports.keys().chain(unreported).cloned().collect()
    }

    /// The newest time that the objects name.
    pub fn newest(&self) -> Option<Timestamp> {
        self.newest
    }

    /// The status of the node's report, if it can be read.
    pub(crate) fn status(&self, node: &str) -> Option<&NodeRuntimeHealthStatus> {
        self.statuses.get(node).map(|(_, status)| status)
    }
}

#[cfg(test)]
mod tests;
