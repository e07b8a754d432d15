//! The objects that an explanation is made from, read from the cluster or from a file.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::ObjectMeta;

use nrh_api::health::{CollectorState, CollectorStatus, Summary};
use nrh_api::{NodeRemediation, NodeRuntimeHealth, RemediationConfig, RemediationPolicy};
use nrh_core::fault::{Fault, PodRef};
use nrh_core::snapshot::{CommandView, UnreadableRemediation};

mod read;
mod snapshot;

/// All objects that a decision is made from, as far as the caller may read them.
#[derive(Debug, Default)]
pub struct Objects {
    nodes: Vec<Node>,
    healths: Vec<NodeRuntimeHealth>,
    /// By node, including those that cannot be read.
    commands: BTreeMap<String, CommandView>,
    policies: Vec<RemediationPolicy>,
    configs: Vec<RemediationConfig>,
    /// Why an unreadable config suspends all remediation.
    suspended: Option<String>,
    remediations: Vec<NodeRemediation>,
    /// Pods that faults name, as far as they were read.
    pods: Vec<Pod>,
    /// Pods that faults name and that no longer exist.
    gone: BTreeSet<PodRef>,
    /// Objects that cannot be read, one sentence each.
    unreadable: Vec<String>,
    /// The unreadable reports, and why. Their nodes are blocked, as by the controller.
    broken: Vec<(ObjectMeta, String)>,
    /// The unreadable remediations. Their nodes are blocked, too.
    lost: BTreeMap<String, UnreadableRemediation>,
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
        let broken = self.broken.iter().filter_map(|(metadata, _)| metadata.name.clone());
        let mut names: Vec<String> = self.healths.iter().map(ResourceExt::name_any).chain(broken).collect();
        let reported: BTreeSet<String> = names.iter().cloned().collect();
        names.extend(self.nodes.iter().map(ResourceExt::name_any).filter(|name| !reported.contains(name)));
        names
    }

    /// The newest time that the objects name: they were saved at that time, or later.
    pub fn newest(&self) -> Option<Timestamp> {
        let reports = self.healths.iter().flat_map(|object| {
            let conditions = object.status.iter().flat_map(|status| &status.conditions);
            conditions.map(|condition| condition.last_transition_time.0).chain(heartbeat(object))
        });
        let nodes = self.nodes.iter().flat_map(|node| {
            let conditions = node.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
            conditions.filter_map(|condition| condition.last_heartbeat_time.as_ref()).map(|time| time.0)
        });
        reports.chain(nodes).max()
    }

    /// What the controller has written about a node. Only the controller reads pods.
    pub fn told(&self, node: &str) -> Told {
        let status =
            self.healths.iter().find(|object| object.name_any() == node).and_then(|object| object.status.clone());
        let is_unreadable = self.broken.iter().any(|(metadata, _)| metadata.name.as_deref() == Some(node));
        let Some(status) = status else { return Told { is_unreadable, ..Told::default() } };
        let (collectors, missing) =
            status.probe.map(|probe| (probe.collectors, probe.missing_capabilities)).unwrap_or_default();
        Told {
            blind: collectors
                .into_iter()
                .filter(|collector| !matches!(collector.state, CollectorState::Ok | CollectorState::Starting))
                .collect(),
            missing,
            is_unreadable,
            faults: status.cluster_faults,
            summary: status.summary,
            blocked: status.remediation.map(|remediation| remediation.blocked).unwrap_or_default(),
        }
    }
}

fn heartbeat(object: &NodeRuntimeHealth) -> Option<Timestamp> {
    object.status.as_ref()?.probe.as_ref()?.heartbeat_at
}

#[cfg(test)]
mod tests;
