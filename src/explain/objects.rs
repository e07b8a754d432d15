//! The objects an explanation is made from, out of the cluster or out of a file.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::api::convert::{self, Invalid};
use crate::api::health::{LaneState, LaneStatus, Summary};
use crate::api::{NodeRemediation, NodeRuntimeHealth, RemediationPolicy};
use crate::controller::cache::{node, report};
use crate::core::fault::Fault;
use crate::core::foreign::Noticed;
use crate::core::notices::Notices;
use crate::core::snapshot::{Ledger, Slot, Snapshot};

/// How long the API server may take for one answer.
const DEADLINE: Duration = Duration::from_secs(20);

/// All objects a decision is made from, as far as a reader may see them.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    nodes: Vec<Node>,
    healths: Vec<NodeRuntimeHealth>,
    policies: Vec<RemediationPolicy>,
    episodes: Vec<NodeRemediation>,
    /// Objects that cannot be read, one sentence each.
    unreadable: Vec<String>,
}

/// The controller's own word on a node.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Faults that it has found from API state.
    pub faults: Vec<Fault>,
    /// Its summary.
    pub summary: Option<Summary>,
    /// What it holds back, one line each.
    pub held: Vec<String>,
    /// Lanes of the probe that cannot look now.
    pub blind: Vec<LaneStatus>,
    /// What the probe lacks, one line each.
    pub missing: Vec<String>,
}

impl Objects {
    /// Reads them from a file, or from the cluster to explain a node. The moment is that at which they are looked at: of saved
    /// ones when they were saved, as far as they tell.
    pub(crate) async fn load(file: Option<&Path>, node: Option<&str>) -> anyhow::Result<(Self, Timestamp)> {
        let Some(path) = file else { return Ok((Self::fetch(node).await?, Timestamp::now())) };
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let objects = Self::parse(&text).with_context(|| format!("cannot use {}", path.display()))?;
        let saved = objects.newest().unwrap_or_else(Timestamp::now);
        Ok((objects, saved))
    }

    /// Reads the output of `kubectl get nodes,nrh,rmp,nrem -o yaml` (or json).
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let root: Value = serde_saphyr::from_str(text).context("it is neither YAML nor JSON")?;
        let items = match root.get("items").and_then(Value::as_array) {
            Some(items) => items.clone(),
            None => vec![root],
        };
        let mut objects = Self::default();
        for item in items {
            let kind = item.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
            let name = item.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let read = match kind.as_str() {
                "Node" => serde_json::from_value(item).map(|object| objects.nodes.push(object)),
                "NodeRuntimeHealth" => serde_json::from_value(item).map(|object| objects.healths.push(object)),
                "RemediationPolicy" => serde_json::from_value(item).map(|object| objects.policies.push(object)),
                "NodeRemediation" => serde_json::from_value(item).map(|object| objects.episodes.push(object)),
                _ => continue,
            };
            if let Err(error) = read {
                let kind = if kind == "RemediationPolicy" { "policy" } else { kind.as_str() };
                objects.unreadable.push(format!("{kind} {name} cannot be used: {error}"));
            }
        }
        if objects.nodes.is_empty() && objects.healths.is_empty() {
            bail!(
                "expected a list with Nodes and NodeRuntimeHealths, such as `kubectl get nodes,nrh,rmp,nrem -o yaml` prints"
            );
        }
        Ok(objects)
    }

    /// Reads them from the cluster of the current kubeconfig.
    pub(crate) async fn fetch(node: Option<&str>) -> anyhow::Result<Self> {
        let client = Client::try_default().await.context("cannot find a cluster: set KUBECONFIG, or use --file")?;
        let what =
            |kind: &str| format!("cannot list {kind}{}", node.map_or_else(String::new, |n| format!(" to explain {n}")));
        Ok(Self {
            nodes: list(client.clone()).await.with_context(|| what("nodes"))?,
            healths: list(client.clone()).await.with_context(|| what("noderuntimehealths"))?,
            policies: list(client.clone()).await.with_context(|| what("remediationpolicies"))?,
            episodes: list(client).await.with_context(|| what("noderemediations"))?,
            unreadable: Vec::new(),
        })
    }

    pub(crate) fn node_names(&self) -> Vec<String> {
        self.healths.iter().map(ResourceExt::name_any).collect()
    }

    /// The newest time that anything in them names: they were saved at that time, or later.
    pub(crate) fn newest(&self) -> Option<Timestamp> {
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

    /// What the controller has written about a node, which alone reads pods.
    pub(crate) fn told(&self, node: &str) -> Told {
        let status =
            self.healths.iter().find(|object| object.name_any() == node).and_then(|object| object.status.clone());
        let Some(status) = status else { return Told::default() };
        let (lanes, missing) = status.probe.map(|probe| (probe.lanes, probe.missing)).unwrap_or_default();
        Told {
            blind: lanes
                .into_iter()
                .filter(|lane| !matches!(lane.state, LaneState::Ok | LaneState::Starting))
                .collect(),
            missing,
            faults: status.cluster_faults,
            summary: status.summary,
            held: status.remediation.map(|remediation| remediation.held).unwrap_or_default(),
        }
    }

    /// The snapshot as of `now`, and what is wrong with objects that cannot be used.
    pub(crate) fn snapshot(&self, now: Timestamp) -> (Snapshot, Vec<String>) {
        let mut invalid = self.unreadable.clone();
        let mut snapshot = Snapshot { now, ceiling: u32::MAX, ..Snapshot::default() };
        for object in &self.nodes {
            snapshot.nodes.insert(object.name_any(), node::view(object));
        }
        for object in &self.healths {
            let mut view = report::view(object);
            // The controller measures arrival by its own clock; a reader has only what the object says.
            let age = heartbeat(object).and_then(|at| now.duration_since(at).try_into().ok()).unwrap_or(Duration::ZERO);
            if let Some(beat) = view.heartbeat.as_mut() {
                beat.arrived = age;
            }
            for reported in &mut view.faults {
                reported.looked = reported.looked.saturating_add(age);
            }
            snapshot.reports.insert(object.name_any(), view);
        }
        for object in &self.policies {
            match convert::policy(object) {
                Ok(policy) => snapshot.policies.push(policy),
                Err(Invalid(errors)) => {
                    invalid.push(format!("policy {} cannot be used: {}", object.name_any(), errors.join("; ")));
                }
            }
        }
        let mut ledger = Ledger::default();
        for object in &self.episodes {
            let episode = convert::episode(object);
            if episode.is_open() {
                let slot =
                    Slot { node: episode.node.clone(), policy: episode.policy.clone(), taken_at: episode.opened_at };
                ledger.slots.insert(episode.name.clone(), slot);
            }
            snapshot.episodes.insert(episode.name.clone(), episode);
        }
        snapshot.ledger = Some(ledger);
        snapshot.noticed = self.noticed(&snapshot);
        (snapshot, invalid)
    }

    /// Conditions that policies ask for. How long they have been there is the controller's to know: what it has not written
    /// down yet has just begun.
    fn noticed(&self, snapshot: &Snapshot) -> BTreeMap<String, Vec<Noticed>> {
        let mut notices = Notices::default();
        for (node, view) in &snapshot.nodes {
            notices.note(node, view, &snapshot.policies, Duration::ZERO);
        }
        let mut all = notices.noticed(Duration::ZERO, snapshot.now);
        for (node, noticed) in &mut all {
            let told = self.told(node).faults;
            for one in noticed {
                let id = one.id(node);
                let Some(known) = told.iter().find(|fault| fault.id == id) else { continue };
                one.first_seen = known.first_seen;
                let lasted = Duration::try_from(snapshot.now.duration_since(known.first_seen)).unwrap_or_default();
                one.lasted.values_mut().for_each(|of| *of = lasted);
            }
        }
        all
    }
}

fn heartbeat(object: &NodeRuntimeHealth) -> Option<Timestamp> {
    object.status.as_ref()?.probe.as_ref()?.heartbeat_at
}

async fn list<K>(client: Client) -> anyhow::Result<Vec<K>>
where
    K: kube::Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::all(client);
    Ok(tokio::time::timeout(DEADLINE, api.list(&ListParams::default())).await.context("no answer in time")??.items)
}
