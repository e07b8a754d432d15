//! The objects that an explanation is made from, read from the cluster or from a file.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use nrh_api::NodeRuntimeHealthStatus;
use nrh_api::health::{CollectorState, CollectorStatus, Summary};
use nrh_core::fault::{Fault, PodRef};
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

/// What the controller has written about a node.
#[derive(Debug, Default)]
pub struct Told {
    /// Faults that it has found from API state.
    pub faults: Vec<Fault>,
    /// Its summary.
    pub summary: Option<Summary>,
    /// What it blocks, one line each.
    pub blocked: Vec<String>,
    /// Collectors of the probe that cannot check now.
    pub blind: Vec<CollectorStatus>,
    /// What the probe lacks, one line each.
    pub missing: Vec<String>,
    /// Whether the node's report cannot be read.
    pub is_unreadable: bool,
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

    /// What the controller has written about a node. Only the controller reads pods.
    pub fn told(&self, node: &str) -> Told {
        let Some((_, status)) = self.statuses.get(node).cloned() else {
            return Told { is_unreadable: self.read.reports.contains_key(node), ..Told::default() };
        };
        let (collectors, missing) =
            status.probe.map(|probe| (probe.collectors, probe.missing_capabilities)).unwrap_or_default();
        Told {
            blind: collectors
                .into_iter()
                .filter(|collector| !matches!(collector.state, CollectorState::Ok | CollectorState::Starting))
                .collect(),
            missing,
            is_unreadable: false,
            faults: status.cluster_faults,
            summary: status.summary,
            blocked: status.remediation.map(|remediation| remediation.blocked).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests;
