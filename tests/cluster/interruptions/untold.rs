//! Changes that a watch never tells. Nothing is done on the strength of what was not heard of, since all that may say no is read
//! anew before each act; and what is missed is seen with the object's next change, or at the next list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use nrh::api::{CORDON_ANNOTATION, RemediationPolicy};
use serde_json::json;
use tokio::sync::Notify;

use crate::interruptions::watched::{Change, Telling};
use crate::interruptions::way::{Call, CallOutcome, Judge, rough};
use crate::interruptions::{Stage, account, kill, start, until, until_some};

/// For how long it is checked whether anything is done.
const WATCH_TIME: Duration = Duration::from_secs(6);
const POLICIES: &str = "remediationpolicies";

/// Which changes are kept back, and how many were.
#[derive(Clone, Default)]
struct Untold(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    /// From the first remediation on, changes of these are kept back as well.
    from_remediation: &'static [&'static str],
    resources: BTreeSet<&'static str>,
    count: BTreeMap<String, usize>,
    /// The watches that expire now.
    expire: BTreeSet<&'static str>,
}

impl Untold {
    fn of_remediation(resources: &'static [&'static str]) -> Self {
        let untold = Self::default();
        untold.0.lock().unwrap().from_remediation = resources;
        untold
    }

    fn keep_back(&self, resource: &'static str) {
        self.0.lock().unwrap().resources.insert(resource);
    }

    /// Tells all again, from a list on.
    fn tell(&self, resource: &'static str) {
        let mut kept = self.0.lock().unwrap();
        kept.resources.remove(resource);
        kept.expire.insert(resource);
    }

    fn count(&self) -> BTreeMap<String, usize> {
        self.0.lock().unwrap().count.clone()
    }
}

impl Judge for Untold {
    fn call(&mut self, call: &Call) -> CallOutcome {
        let mut kept = self.0.lock().unwrap();
        if call.makes("noderemediations") {
            let from_now = kept.from_remediation;
            kept.resources.extend(from_now);
        }
        // The answer to such a write shows the policy as it stands.
        let is_blind = kept.resources.contains(POLICIES) && call.is_write() && call.is_of(POLICIES);
        if is_blind { CallOutcome::Refused(500) } else { CallOutcome::Answered }
    }

    fn change(&mut self, change: &Change) -> Telling {
        let mut kept = self.0.lock().unwrap();
        if !kept.resources.contains(change.resource.as_str()) {
            return Telling::Told;
        }
        *kept.count.entry(change.resource.clone()).or_default() += 1;
        Telling::Dropped
    }

    fn expires(&mut self, resource: &str) -> bool {
        self.0.lock().unwrap().expire.remove(resource)
    }
}

/// Remediations of which the controller is not told, and a policy that is suspended and nobody tells.
pub async fn is_seen_later(stage: &Stage<'_>) -> Result<()> {
    // Of what it writes itself it knows by the answers.
    resolved_without(stage, "untold-most", &["noderemediations", "nodes", "jobs"]).await?;
    // That its Job has ended is seen, what it said is not: it is waited for, in vain, and the probe's clean check decides.
    resolved_without(stage, "untold-answer", &["pods"]).await?;
    cordoned_by_a_person(stage).await.context("the cordon of a person")?;
    suspended(stage).await.context("the suspension")
}

/// A person opens a node that we have cordoned and cordons it again, and the watch tells neither: that cordon is not ours to take off.
async fn cordoned_by_a_person(stage: &Stage<'_>) -> Result<()> {
    let (untold, node) = (Untold::of_remediation(&["nodes"]), "untold-cordon");
    let leader = start(&rough(stage.upstream.clone(), Arc::new(Notify::new()), untold.clone()));
    stage.fleet.keep_idle(true);
    stage.fleet.sick_node(node).await?;
    let jobs: Api<Job> = Api::namespaced(stage.admin.clone(), "nrh-node");
    until("a Job, behind the cordon", async || {
        let all = jobs.list(&ListParams::default()).await?.items;
        Ok(all.iter().any(|job| job.name_any().starts_with(node)))
    })
    .await?;
    let nodes: Api<Node> = Api::all(stage.admin.clone());
    let is_marked = |node: &Node| node.annotations().contains_key(CORDON_ANNOTATION);
    ensure!(is_marked(&nodes.get(node).await?), "node {node} does not carry our mark");
    for unschedulable in [json!(null), json!(true)] {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
        nodes.patch(node, &PatchParams::default(), &patch).await?;
    }
    stage.fleet.keep_idle(false);
    stage.fleet.resolved(node).await?;
    stage.fleet.ledger_is_empty().await?;
    let last =
        until_some("the end of our mark", async || Ok(Some(nodes.get(node).await?).filter(|node| !is_marked(node))))
            .await?;
    let is_closed = last.spec.and_then(|spec| spec.unschedulable) == Some(true);
    ensure!(is_closed, "node {node}: a person's cordon was taken off");
    println!("a cordon that a person has put on again stayed");
    kill(&stage.admin, leader).await
}

/// A node is repaired, once, though no change of these is told from the begin of its remediation on.
async fn resolved_without(stage: &Stage<'_>, node: &str, resources: &'static [&'static str]) -> Result<()> {
    let untold = Untold::of_remediation(resources);
    let leader = start(&rough(stage.upstream.clone(), Arc::new(Notify::new()), untold.clone()));
    stage.fleet.sick_node(node).await?;
    stage.fleet.resolved(node).await.with_context(|| format!("without changes of {resources:?}"))?;
    stage.fleet.check(node).await.with_context(|| format!("without changes of {resources:?}"))?;
    stage.fleet.ledger_is_empty().await?;
    let count = untold.count();
    ensure!(resources.iter().all(|one| count.contains_key(*one)), "expected changes of {resources:?}, found {count:?}");
    println!("node {node} was healed without these changes: {count:?}");
    kill(&stage.admin, leader).await
}

/// A policy is suspended, and given free again, and the watch tells neither.
async fn suspended(stage: &Stage<'_>) -> Result<()> {
    let (untold, node, begun) = (Untold::default(), "untold-stop", Timestamp::now());
    let leader = start(&rough(stage.upstream.clone(), Arc::new(Notify::new()), untold.clone()));
    // One that is resolved shows that all was listed, and the policy with it.
    stage.fleet.sick_node("untold-before").await?;
    stage.fleet.resolved("untold-before").await?;
    untold.keep_back(POLICIES);
    suspend(stage, true).await?;
    until("a change of the policy that is not told", async || Ok(untold.count().contains_key(POLICIES))).await?;
    stage.fleet.sick_node(node).await?;
    // It does not know better.
    until("a remediation", async || Ok(!stage.fleet.remediations(node).await?.is_empty())).await?;
    nothing_is_done(stage, node, begun).await?;
    suspend(stage, false).await?;
    nothing_is_done(stage, node, begun).await?;
    untold.tell(POLICIES);
    stage.fleet.resolved(node).await.context("after the next list")?;
    stage.fleet.ledger_is_empty().await?;
    println!("a suspension that nobody told was obeyed, and its end was seen at the next list");
    kill(&stage.admin, leader).await
}

/// Nothing is, for a while.
async fn nothing_is_done(stage: &Stage<'_>, node: &str, begun: Timestamp) -> Result<()> {
    tokio::time::sleep(WATCH_TIME).await;
    let writes = account::since(stage.bed, begun)?;
    let acts: Vec<String> = writes.iter().filter(|write| is_act(write, node)).map(ToString::to_string).collect();
    ensure!(acts.is_empty(), "acted for a policy that was suspended when last heard of: {acts:?}");
    Ok(())
}

fn is_act(write: &account::Write, node: &str) -> bool {
    let touches = write.kind() == "patch nodes" && write.name == node;
    touches || (write.kind() == "create jobs.batch" && write.name.starts_with(node))
}

async fn suspend(stage: &Stage<'_>, is_suspended: bool) -> Result<()> {
    let policies: Api<RemediationPolicy> = Api::all(stage.admin.clone());
    let patch = Patch::Merge(json!({"spec": {"suspend": is_suspended}}));
    policies.patch("leftovers", &PatchParams::default(), &patch).await?;
    Ok(())
}
