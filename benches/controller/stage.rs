//! What every measurement works with: the bed, the controller's program, the played probes, and what was found.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use nrh::api::{NodeRemediation, NodeRuntimeHealth, RemediationPolicy};
use nrh_testbed::Bed;
use nrh_testbed::wait::SOON;
use serde_json::json;

use crate::answers::{self, Answers};
use crate::engine::Program;
use crate::fleet::Fleet;
use crate::record::Line;

/// Everything but the fault is wide open. The second rule asks nothing of a node.
pub const POLICY: &str = "
apiVersion: runtimehealth.io/v1alpha1
kind: RemediationPolicy
metadata: {name: bench}
spec:
  mode: Enforce
  priority: 500
  limits: {maxInFlight: 1000, maxUnhealthy: 100%, storm: {minNodes: 100000}}
  rules:
  - name: leaked
    match: {faults: [LeakedShim]}
    steps: [{action: CleanupOrphans, cooldown: 1s, verify: {stableFor: 1s}}]
  - name: cordoned
    match: {faults: [OrphanContainer]}
    steps: [{action: Cordon}, {action: Notify}]
";

/// The stage of all measurements at one number of nodes.
#[derive(Debug)]
pub struct Stage<'a> {
    /// Where everything runs.
    pub bed: &'a Bed,
    /// The controller.
    pub program: Program,
    /// The probes.
    pub fleet: Arc<Fleet>,
    /// How many nodes there are now.
    pub nodes: usize,
    /// What was found.
    pub lines: Vec<Line>,
}

impl Stage<'_> {
    /// Runs a measurement while the probes send their heartbeats and answer what they are asked.
    pub fn run<T: Send>(&self, answers: Answers, work: impl AsyncFnOnce(Client) -> Result<T> + Send) -> Result<T> {
        let fleet = self.fleet.clone();
        self.bed.run(async move |client| {
            let others = answers::answer(&client, &fleet, answers);
            tokio::select! {
                result = work(client.clone()) => result,
                ended = fleet.beats(&client) => match ended.context("heartbeats")? {},
                ended = others => match ended.context("answers of the nodes")? {},
            }
        })
    }

    /// Notes a value for the number of nodes, with what it is compared with and what it should be.
    pub fn note(&mut self, name: &str, value: f64, unit: &'static str, baseline: f64, target: &'static str) {
        let line = Line::new(format!("{} nodes: {name}", self.nodes), value, unit, baseline).target(target);
        println!("{line}");
        self.lines.push(line);
    }
}

/// Holds up the policy, or lets it go on.
pub async fn suspend(client: &Client, suspended: bool) -> Result<()> {
    let policies: Api<RemediationPolicy> = Api::all(client.clone());
    let patch = json!({"spec": {"suspend": suspended}});
    policies.patch("bench", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}

/// Asks every so often until it is so.
pub async fn until(what: &str, every: Duration, holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    within(SOON, what, every, holds).await
}

/// The same, for that long at most.
pub async fn within(
    limit: Duration,
    what: &str,
    every: Duration,
    mut holds: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let end = Instant::now() + limit;
    while !holds().await? {
        ensure!(Instant::now() < end, "{what}: not within {} min", limit.as_secs() / 60);
        tokio::time::sleep(every).await;
    }
    Ok(())
}

/// Waits until no remediation is open any more.
pub async fn all_closed(client: &Client) -> Result<()> {
    let remediations: Api<NodeRemediation> = Api::all(client.clone());
    until("the end of all remediations", Duration::from_secs(1), async || {
        let all = remediations.list(&ListParams::default()).await?;
        let is_open =
            |remediation: &NodeRemediation| remediation.status.as_ref().is_none_or(|s| s.finished_at.is_none());
        Ok(!all.iter().any(is_open))
    })
    .await
}

/// Waits until the controller has made an object for each node; their names.
pub async fn objects(client: &Client, nodes: usize) -> Result<Vec<String>> {
    let healths: Api<NodeRuntimeHealth> = Api::all(client.clone());
    let mut names = Vec::new();
    until("an object for each node", Duration::from_secs(1), async || {
        names = healths.list_metadata(&ListParams::default()).await?.items.iter().map(ResourceExt::name_any).collect();
        Ok(names.len() >= nodes)
    })
    .await?;
    Ok(names)
}

/// The value below which `percent` of the values lie.
pub fn at(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() * percent / 100).min(values.len().saturating_sub(1));
    values.get(index).copied().unwrap_or_default()
}

/// A count as a number to divide.
#[expect(clippy::cast_precision_loss, reason = "counts of nodes and requests")]
pub const fn count(of: usize) -> f64 {
    of as f64
}
