//! All remediation is suspended by one command, while many nodes are being remediated and many more wait.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use nrh::api::{CONFIG_NAME, NodeRemediation, RemediationConfig};
use nrh::core::fault::FaultType;

use crate::interruptions::account::{self, Write};
use crate::interruptions::fleet::Kubelet;
use crate::interruptions::{Stage, kill, start, until, until_some};

/// Nodes that are sick at once, several times as many as may be remediated at a time.
const FAULTY: usize = 40;
/// Jobs that have been made when it is suspended.
const UNDER_WAY: usize = 8;
/// A call that was under way may arrive so long after the controller's word.
const BOUND: Duration = Duration::from_secs(1);
/// For how long it is checked whether anything starts.
const WATCH_TIME: Duration = Duration::from_secs(10);

const POLICY: &str = "
apiVersion: runtimehealth.io/v1alpha1
kind: RemediationPolicy
metadata: {name: many}
spec:
  mode: Enforce
  priority: 1000
  limits: {maxUnhealthy: 100%, maxInFlight: 100%, storm: {minNodes: 100000}}
  rules:
    - name: leaked
      match: {faults: [LeakedShim]}
      steps:
        - {action: Cordon}
        - {action: CleanupOrphans, maxAttempts: 3, cooldown: 1s, verify: {stableFor: 1s}}
";

fn starts(write: &Write) -> bool {
    ["create jobs.batch", "create noderemediations.runtimehealth.io"].contains(&write.kind().as_str())
}

/// Nothing starts from a second after the command on, what was begun comes to its end, and after the other command all is resolved.
pub async fn nothing_starts(stage: &Stage<'_>) -> Result<()> {
    let (bed, fleet, begun) = (stage.bed, &stage.fleet, Timestamp::now());
    bed.apply(POLICY)?;
    let names: Vec<String> = (1..=FAULTY).map(|number| format!("many-{number:02}")).collect();
    for node in &names {
        // On a busy machine the kubelets may start a Job too late. The executor of the node takes it over then.
        fleet.machine(node, &[], FaultType::LeakedShim, Kubelet::Works, &[]).await?;
    }
    let leader = start(&stage.upstream);
    let made = || -> Result<usize> {
        Ok(account::since(bed, begun)?.iter().filter(|one| starts(one) && one.resource == "jobs.batch").count())
    };
    until("the first Jobs", async || Ok(made()? >= UNDER_WAY)).await?;
    let sent = Timestamp::now();
    // It returns once the controller has confirmed it.
    nrh(stage, &["suspend", "--all", "--reason", "an upgrade of the fleet"]).await?;
    let suspended = Timestamp::now();
    tokio::time::sleep(WATCH_TIME).await;

    let writes = account::since(bed, begun)?;
    let last = writes.iter().filter(|write| starts(write) && write.is_done()).map(|write| write.at).max();
    let last = last.context("nothing was started at all")?;
    ensure!(last < suspended + BOUND, "something was started at {last}, {BOUND:?} after {suspended} is too late");
    let jobs = account::jobs(&writes);
    ensure!(jobs.len() < FAULTY, "all were remediated before it was suspended: {}", jobs.len());
    let configs: Api<RemediationConfig> = Api::all(stage.admin.clone());
    let remediations: Api<NodeRemediation> = Api::all(stage.admin.clone());
    let ended = until("the end of what was begun", async || {
        let status = configs.get(CONFIG_NAME).await?.status.unwrap_or_default();
        let is_suspended = status.conditions.iter().any(|one| one.type_ == "Ready" && one.reason == "Suspended");
        Ok(is_suspended && status.active_remediations == 0)
    });
    if let Err(error) = ended.await {
        let config = serde_json::to_string_pretty(&configs.get(CONFIG_NAME).await?)?;
        let all = remediations.list(&ListParams::default()).await?.items;
        let open = all.iter().filter(|one| one.status.as_ref().is_none_or(|status| status.finished_at.is_none()));
        let open = serde_json::to_string_pretty(&open.collect::<Vec<_>>())?;
        return Err(error.context(format!("the config is {config}, and still open are {open}")));
    }
    fleet.ledger_is_empty().await?;
    let nodes: Api<Node> = Api::all(stage.admin.clone());
    for node in &names {
        let is_cordoned = nodes.get(node).await?.spec.and_then(|spec| spec.unschedulable) == Some(true);
        ensure!(!is_cordoned, "node {node} is still cordoned");
    }
    let shown = bed.kubectl(&["get", "rmc", "-o", "wide"])?;
    ensure!(shown.contains("an upgrade of the fleet") && shown.contains("true"), "{shown}");

    nrh(stage, &["resume", "--all"]).await?;
    until("the end of the last fault", async || Ok(!names.iter().any(|node| fleet.is_sick(node)))).await?;
    fleet.ledger_is_empty().await?;
    let events: Api<Event> = Api::all(stage.admin.clone());
    let told = until_some("both events", async || {
        let all = events.list(&ListParams::default()).await?.items;
        let is_it = |one: &Event| one.regarding.as_ref().and_then(|by| by.kind.as_deref()) == Some("RemediationConfig");
        let reasons: BTreeSet<String> = all.into_iter().filter(is_it).filter_map(|one| one.reason).collect();
        Ok(["Suspended", "Resumed"].iter().all(|one| reasons.contains(*one)).then_some(reasons))
    })
    .await?;
    let all = remediations.list(&ListParams::default()).await?.items;
    let count = all.iter().filter(|one| one.name_any().starts_with("many-")).count();
    println!(
        "suspended after {} Jobs of {FAULTY}; the last start {:.0} ms after the command; {count} remediations, events {told:?}",
        jobs.len(),
        last.duration_since(sent).as_secs_f64() * 1e3
    );
    bed.kubectl(&["delete", "rmp", "many"])?;
    kill(&stage.admin, leader).await
}

/// Runs the program as a person does, beside the controller of this process.
pub async fn nrh(stage: &Stage<'_>, args: &[&str]) -> Result<()> {
    let mut command: Command = stage.bed.command(env!("CARGO_BIN_EXE_nrh"));
    command.args(args).env("KUBECONFIG", stage.bed.kubeconfig_path());
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    ensure!(output.status.success(), "nrh {args:?}: {output:?}");
    Ok(())
}
