//! Nodes handed to remediators on a real API server, by the roles that a user would add.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use nrh::api::{NODE_NAME_ANNOTATION, NodeRemediation, OPERATION_LABEL, REMEDIATION_ANNOTATION, TIMED_OUT_ANNOTATION};
use nrh::api::{NodeRuntimeHealth, RemediationPolicy};
use nrh::core::fault::FaultType;
use nrh::core::remediation::{Phase, StepState};
use nrh_testbed::wait::SOON;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::interruptions::account::{self, Write};
use crate::interruptions::stand_in::{Does, KINDS, Remediators, objects};
use crate::interruptions::way::{Call, CallOutcome, rough};
use crate::interruptions::{Stage, kill, start, until, until_some};
use crate::objects::ours;
use crate::plane;
use crate::remediators::{SELF_NODE, definitions, machine_rights, metal_role, template};

const MACHINES: &str = "cluster.x-k8s.io/v1beta1";
const ROLE: &str = "hand-off-to-self-node-remediation";
/// Longer than the controller waits between two checks of an object.
const CHECK_WAIT: Duration = Duration::from_secs(11);
/// The time of the remediator that is late: the controller has read at least once by then that it is at work.
const LATE: &str = "24s";

/// The remediators, their templates, and the rights of the controller, all as a user would bring them.
pub fn install(stage: &Stage<'_>) -> Result<()> {
    let bed = stage.bed;
    bed.kubectl(&["create", "namespace", "medik8s"])?;
    for (api_version, kind) in KINDS {
        let (group, version) = api_version.split_once('/').context("a group")?;
        bed.apply(&definitions(group, version, kind))?;
    }
    // What Metal3 works on.
    bed.apply(&definitions("cluster.x-k8s.io", "v1beta1", "Machine"))?;
    bed.apply(&machine_rights())?;
    bed.kubectl(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=180s"])?;
    for (api_version, kind) in KINDS {
        let template = json!({"apiVersion": api_version, "kind": format!("{kind}Template"),
            "metadata": {"name": "automatic", "namespace": "medik8s"}, "spec": {"template": {"spec": spec(kind)}}});
        bed.apply(&template)?;
    }
    give_rights(stage)?;
    bed.apply(&metal_role())?;
    bed.kubectl(&["apply", "-f", &plane::folder("config/samples/hand-off-medik8s.yaml")])?;
    Ok(())
}

/// What a template says of its objects.
fn spec(kind: &str) -> Value {
    match kind {
        "SelfNodeRemediation" => json!({"remediationStrategy": "Automatic"}),
        _ => json!({"strategy": {"type": "Reboot", "retryLimit": 1, "timeout": "300s"}}),
    }
}

fn give_rights(stage: &Stage<'_>) -> Result<()> {
    stage.bed.kubectl(&["apply", "-f", &plane::folder("config/samples/hand-off-rights.yaml")])?;
    Ok(())
}

async fn take_rights(stage: &Stage<'_>) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(stage.admin.clone());
    roles.delete(ROLE, &DeleteParams::default()).await?;
    let is_in = |role: &ClusterRole| {
        let mut groups = role.rules.iter().flatten().flat_map(|rule| rule.api_groups.iter().flatten());
        groups.any(|group| SELF_NODE.starts_with(group.as_str()) && !group.is_empty())
    };
    until("the end of the aggregated right", async || Ok(!is_in(&roles.get("nrh:hand-off").await?))).await
}

/// A policy that hands nodes with that value of the label `remediator` to a remediator.
fn policy(name: &str, (api_version, kind): (&str, &str), timeout: &str) -> RemediationPolicy {
    let remediator = json!({"remediationTemplate": template(api_version, &format!("{kind}Template"))});
    let steps = json!([
        {"action": "HandOff", "handOff": remediator, "timeout": timeout, "cooldown": "1s", "verify": {"stableFor": "1s"}},
        {"action": "Notify"}]);
    let spec = json!({"mode": "Enforce", "nodeSelector": {"matchLabels": {"remediator": name}},
        "limits": {"maxUnhealthy": "100%", "maxInFlight": 10, "storm": {"minNodes": 100_000}},
        "rules": [{"name": "r", "match": {"faults": ["LeakedShim"]}, "steps": steps}]});
    serde_json::from_value(ours("RemediationPolicy", name, spec)).unwrap()
}

/// The play: nodes, remediators, and what is seen of both.
struct Play<'a> {
    stage: &'a Stage<'a>,
    remediators: Remediators,
    begun: Timestamp,
    nodes: Mutex<BTreeSet<String>>,
}

impl Play<'_> {
    /// A sick node for a remediator that does so.
    async fn node(&self, name: &str, policy: &str, does: Does) -> Result<()> {
        self.remediators.will(name, does);
        self.nodes.lock().unwrap().insert(name.to_owned());
        if policy == "metal" {
            self.machine(name)?;
        }
        self.stage.fleet.node(name, &[("remediator", policy)], FaultType::LeakedShim).await
    }

    /// The Machine of a node, which names it in turn.
    fn machine(&self, node: &str) -> Result<()> {
        let bed = self.stage.bed;
        let machine = json!({"apiVersion": MACHINES, "kind": "Machine", "metadata": {"name": node, "namespace": "medik8s"},
            "spec": {"providerID": format!("metal3://{node}")}});
        bed.apply(&machine)?;
        let status = json!({"status": {"nodeRef": {"apiVersion": "v1", "kind": "Node", "name": node}}}).to_string();
        let named = ["machines.cluster.x-k8s.io", node, "-n", "medik8s"];
        bed.kubectl(&[&["patch"], &named[..], &["--subresource=status", "--type=merge", "-p", &status]].concat())?;
        Ok(())
    }

    /// The node's remediation, of which there is never a second one.
    async fn remediation(&self, node: &str) -> Result<Option<NodeRemediation>> {
        let mut all = self.stage.fleet.remediations(node).await?;
        // One whose leader died before it was recorded ends by itself; nothing was done in it.
        all.retain(|one| one.status.as_ref().is_some_and(|status| !status.attempts.is_empty()));
        ensure!(all.len() <= 1, "node {node} has {} remediations: {all:#?}", all.len());
        Ok(all.pop())
    }

    /// Waits until the first step is in one of these states.
    async fn first_step(&self, node: &str, states: &[StepState]) -> Result<NodeRemediation> {
        let mut last = None;
        let found = until_some("the state of the step", async || {
            last = self.remediation(node).await?;
            let state = last.as_ref().and_then(|one| one.status.as_ref()?.attempts.first().map(|step| step.state));
            Ok(last.clone().filter(|_| state.is_some_and(|state| states.contains(&state))))
        })
        .await;
        found.with_context(|| format!("node {node}, {states:?}: {last:#?}"))
    }

    /// Waits until the node's object is gone and the remediation owes nothing any more.
    async fn taken_back(&self, node: &str) -> Result<()> {
        let what = format!("the end of the object of {node}, and of what its remediation owes");
        until(&what, async || {
            let owes = |one: &NodeRemediation| !one.finalizers().is_empty();
            let is_over = self.remediation(node).await?.is_some_and(|one| !owes(&one));
            Ok(is_over && !self.stands(node).await?)
        })
        .await
    }

    async fn stands(&self, node: &str) -> Result<bool> {
        for (api_version, kind) in KINDS {
            if objects(&self.stage.admin, api_version, kind).get_opt(node).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whatever the controller has done to the node's object, in order.
    fn writes(&self, node: &str) -> Result<Vec<Write>> {
        let is_its = |write: &Write| write.namespace == "medik8s" && write.name == node && write.is_done();
        Ok(account::since(self.stage.bed, self.begun)?.into_iter().filter(is_its).collect())
    }

    fn wrote(&self, node: &str, expected: &[&str]) -> Result<()> {
        let writes = self.writes(node)?;
        let verbs: Vec<&str> = writes.iter().map(|write| write.verb.as_str()).collect();
        ensure!(verbs == expected, "node {node}: expected {expected:?} of its object, found {verbs:?}");
        Ok(())
    }

    /// What is being done on the node, as its object tells.
    async fn activity(&self, node: &str) -> Result<String> {
        let reports: Api<NodeRuntimeHealth> = Api::all(self.stage.admin.clone());
        let summary = reports.get(node).await?.status.and_then(|status| status.summary);
        Ok(summary.map(|summary| summary.activity).unwrap_or_default())
    }

    /// What is held on the node.
    async fn blocked(&self, node: &str) -> Result<String> {
        let reports: Api<NodeRuntimeHealth> = Api::all(self.stage.admin.clone());
        // The controller may not have made it yet.
        let remediation = reports.get_opt(node).await?.and_then(|report| report.status?.remediation);
        Ok(remediation.map(|remediation| remediation.blocked.join("\n")).unwrap_or_default())
    }
}

/// Everything from the hand-off to the end of its object, over two deaths of the leader and the loss of a right.
pub async fn go_on_whatever_happens(stage: &Stage<'_>) -> Result<()> {
    let policies: Api<RemediationPolicy> = Api::all(stage.admin.clone());
    for (name, to, timeout) in [("self", KINDS[0], "10m"), ("metal", KINDS[1], "10m"), ("late", KINDS[0], LATE)] {
        policies.create(&PostParams::default(), &policy(name, to, timeout)).await?;
    }
    let remediators = Remediators::new(stage.admin.clone());
    let play = Play { stage, remediators, begun: Timestamp::now(), nodes: Mutex::default() };
    cut_off(&play, "cut-before", CallOutcome::Lost, None).await?;
    ensure!(play.writes("cut-before")?.is_empty(), "expected the leader to die before the object was made");
    cut_off(&play, "cut-after", CallOutcome::Unanswered, Some("cut-before")).await?;
    ensure!(play.writes("cut-after")?.len() == 1, "expected the leader to die after the object was made");
    let leader = start(&stage.upstream);
    answers(&play).await.context("the answers of remediators")?;
    without_the_right(&play).await.context("without the right")?;
    for node in ["cut-before", "cut-after"] {
        play.wrote(node, &["create", "delete"])?;
    }
    let nodes = play.nodes.lock().unwrap().clone();
    println!("{} nodes handed off, each once, over two deaths of the leader and the loss of a right", nodes.len());
    play.remediators.stop();
    policies.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    for node in &nodes {
        stage.fleet.remove(node).await?;
    }
    stage.fleet.ledger_is_empty().await?;
    kill(&stage.admin, leader).await
}

/// The leader is killed right before or right after the object of that node is made. What another one is owed from before is
/// done first.
async fn cut_off(play: &Play<'_>, node: &str, fate: CallOutcome, owed: Option<&str>) -> Result<()> {
    let (gone, is_armed) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let armed = is_armed.clone();
    let is_it = move |call: &Call| call.makes("selfnoderemediations") && armed.load(Ordering::SeqCst);
    let judge = move |call: &Call| if is_it(call) { fate } else { CallOutcome::Answered };
    let leader = start(&rough(play.stage.upstream.clone(), gone.clone(), judge));
    if let Some(owed) = owed {
        until("the object that the dead leader owed", async || play.stands(owed).await).await?;
    }
    is_armed.store(true, Ordering::SeqCst);
    play.node(node, "self", Does::Works).await?;
    tokio::time::timeout(SOON, gone.notified()).await.with_context(|| format!("{node} was not handed off"))?;
    kill(&play.stage.admin, leader).await
}

/// Each kind of answer, and none in time.
async fn answers(play: &Play<'_>) -> Result<()> {
    for (node, policy, does) in [
        ("well-self", "self", Does::Repairs),
        ("well-metal", "metal", Does::Repairs),
        ("failed", "self", Does::Fails),
        ("late", "late", Does::Works),
    ] {
        play.node(node, policy, does).await?;
    }
    for node in ["cut-before", "cut-after"] {
        play.remediators.will(node, Does::Repairs);
    }

    for (node, (api_version, kind)) in [("well-self", KINDS[0]), ("well-metal", KINDS[1])] {
        let remediation = play.first_step(node, &[StepState::Started, StepState::Verifying]).await?;
        let operation = remediation.status.clone().unwrap_or_default().attempts.remove(0).operation_id;
        let object = until_some("the object", async || Ok(play.remediators.made(node))).await?;
        let types = object.types.clone().unwrap_or_default();
        // A list may leave it out.
        ensure!(types.kind.is_empty() || (types.api_version.as_str(), types.kind.as_str()) == (api_version, kind));
        let has_spec = object.data.get("spec") == Some(&spec(kind));
        ensure!(has_spec, "{node}: expected the template's spec, found {object:#?}");
        let annotation = |key: &str| object.annotations().get(key).map(String::as_str).unwrap_or_default();
        ensure!(annotation(OPERATION_LABEL) == operation, "{node}: expected operation {operation}, found {object:#?}");
        ensure!(annotation(REMEDIATION_ANNOTATION) == remediation.name_any());
        ensure!(annotation(NODE_NAME_ANNOTATION) == node);
        let owner = object.owner_references().first().map(|owner| (owner.kind.clone(), Some(owner.uid.clone())));
        ensure!(owner == Some(("NodeRemediation".to_owned(), remediation.uid())), "{node}: whose is it? {object:#?}");
        let machine = object.owner_references().get(1).map(|owner| (owner.kind.as_str(), owner.name.as_str()));
        let expected = (kind == "Metal3Remediation").then_some(("Machine", node));
        ensure!(machine == expected, "{node}: expected the owner {expected:?}, found {object:#?}");
    }

    for node in ["well-self", "cut-before", "cut-after"] {
        let remediation = play.first_step(node, &[StepState::Verifying]).await?;
        let message = remediation.status.unwrap_or_default().attempts.remove(0).message;
        ensure!(message.contains("its remediator is done: Succeeded=True R: said"), "{node}: {message}");
        ensure!(play.stands(node).await?, "{node}: the remediator's word alone was taken for a cure");
    }
    // Metal3 never says more than a phase: what the probe sees decides.
    for node in ["well-self", "well-metal", "cut-before", "cut-after"] {
        play.stage.fleet.well(node);
    }
    let failed = play.first_step("failed", &[StepState::Failed]).await?.status.unwrap_or_default().attempts.remove(0);
    ensure!(failed.message.contains("Succeeded=False R: said"), "{}", failed.message);
    let late = play.first_step("late", &[StepState::TimedOut]).await?.status.unwrap_or_default().attempts.remove(0);
    let said = format!("its remediator is still at work after {LATE}");
    ensure!(late.message.contains(&said), "expected {said:?}, found {:?}", late.message);
    for node in ["well-self", "well-metal", "cut-before", "cut-after"] {
        play.stage.fleet.resolved(node).await?;
    }
    for node in ["well-self", "well-metal", "failed", "late", "cut-before", "cut-after"] {
        play.taken_back(node).await?;
    }
    for node in ["failed", "late"] {
        let status = play.remediation(node).await?.and_then(|one| one.status).unwrap_or_default();
        let last = status.attempts.last().map(|step| step.action.kind().as_str());
        ensure!(status.phase == Phase::Failed && last == Some("Notify"), "{node}: expected the next step: {status:#?}");
    }
    let told =
        |node: &str| play.remediators.ended(node).is_some_and(|o| o.annotations().contains_key(TIMED_OUT_ANNOTATION));
    ensure!(told("late") && !told("failed") && !told("well-self"), "only who is late is told that its time is over");
    play.wrote("late", &["create", "patch", "delete"])?;
    for node in ["well-self", "well-metal", "failed"] {
        play.wrote(node, &["create", "delete"])?;
    }
    Ok(())
}

/// The role is taken away while one node is handed off and another is about to be, and given again.
async fn without_the_right(play: &Play<'_>) -> Result<()> {
    for node in ["at-work", "owed"] {
        play.node(node, "self", Does::Works).await?;
    }
    for node in ["at-work", "owed"] {
        play.first_step(node, &[StepState::Started]).await?;
        until_some("the remediator's start", async || Ok(play.remediators.made(node))).await?;
    }
    take_rights(play.stage).await?;
    let taken = Instant::now();
    play.node("denied", "self", Does::Works).await?;
    // The node is well without a word that the controller could read, and what was made for it cannot be deleted.
    play.stage.fleet.well("owed");
    let mut last = String::new();
    let said = until_some("a hold that says why", async || {
        last = play.blocked("denied").await?;
        let parts = [
            "RequestRejected: SelfNodeRemediation medik8s/denied is to be deleted before anything else is done to node denied",
            "cannot get resource",
        ];
        Ok(parts.iter().all(|part| last.contains(part)).then(|| last.clone()))
    });
    let said = said.await.with_context(|| format!("held on denied at last: {last:?}"))?;
    println!("without the right: {said}");
    play.first_step("owed", &[StepState::Succeeded]).await?;
    sleep(CHECK_WAIT.saturating_sub(taken.elapsed())).await;
    play.first_step("at-work", &[StepState::Started]).await.context("the hand-off whose object cannot be read")?;
    let owed = play.remediation("owed").await?.unwrap();
    ensure!(play.stands("owed").await? && !owed.finalizers().is_empty(), "expected it to be owed: {owed:#?}");
    let expected = format!("deleting SelfNodeRemediation medik8s/owed of remediation {}", owed.name_any());
    // Mere words are written seldom.
    until(&expected, async || Ok(play.activity("owed").await? == expected)).await?;
    ensure!(!play.stands("denied").await?, "an object was made without the right");

    give_rights(play.stage)?;
    play.taken_back("owed").await?;
    play.stage.fleet.resolved("owed").await?;
    until("the hand-off after all", async || play.stands("denied").await).await?;
    play.remediators.will("at-work", Does::Repairs);
    play.first_step("at-work", &[StepState::Verifying]).await?;
    play.stage.fleet.well("at-work");
    play.stage.fleet.resolved("at-work").await?;
    let denied = until_some("the step that followed the refused one", async || {
        let remediation = play.remediation("denied").await?;
        let is_begun = |one: &NodeRemediation| {
            one.status.as_ref().is_some_and(|s| s.attempts.iter().any(|s| s.started_at.is_some()))
        };
        Ok(remediation.filter(is_begun))
    })
    .await?;
    let actions: BTreeSet<&str> =
        denied.status.iter().flat_map(|status| &status.attempts).map(|step| step.action.kind().as_str()).collect();
    ensure!(actions == BTreeSet::from(["HandOff"]), "the refusal was answered by another step: {denied:#?}");
    play.stage.fleet.well("denied");
    for node in ["at-work", "denied"] {
        play.remediators.will(node, Does::Repairs);
        play.stage.fleet.resolved(node).await?;
        play.taken_back(node).await?;
    }
    for node in ["at-work", "owed", "denied"] {
        play.wrote(node, &["create", "delete"])?;
    }
    Ok(())
}
