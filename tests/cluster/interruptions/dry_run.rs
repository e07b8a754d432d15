//! A dry run decides what an equal policy that acts decides at first, and writes nothing but its account of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use nrh::api::{CORDON_ANNOTATION, EXCLUDE_LABEL, NodeCommand, NodeRemediation, NodeRuntimeHealth, RemediationPolicy};
use nrh::core::fault::FaultType;
use nrh::core::remediation::Phase;
use serde_json::{Value, json};

use crate::interruptions::account::{self, Write};
use crate::interruptions::{Stage, kill, start, until, until_some};
use crate::remediators::{SELF_NODE, template};

const POLICY: &str = "trial";
/// For how long a dry run goes on after it has decided: it must not do later what it did not do at first.
const GOES_ON: Duration = Duration::from_secs(3);

/// To read the template; to create, read, patch and delete its objects.
const QUESTIONS: usize = 5;

/// The nodes, what each has, and what is decided: the first step that is taken, or why none is.
const NODES: [(&str, FaultType, &str); 7] = [
    ("dry-cordoned", FaultType::RuntimeUnreachable, "Cordon"),
    ("dry-excluded", FaultType::DiskFull, "Excluded"),
    ("dry-handed-off", FaultType::DiskFull, "HandOff"),
    ("dry-no-rule", FaultType::PidExhaustion, "NoRule"),
    ("dry-released", FaultType::LeakedShim, "CleanupOrphans"),
    ("dry-too-many", FaultType::LeakedShim, "MaxInFlightReached"),
    ("dry-young", FaultType::ReadOnlyFilesystem, "MinDurationNotReached"),
];

/// Why those are held that no step can be taken on, however much room there is.
const STAY_BLOCKED: [&str; 3] = ["NoRule", "MinDurationNotReached", "Excluded"];
/// The pause that keeps everything back until all nodes have reported.
const PAUSE: &str = "until every node has reported";

/// What a policy that acts writes beside its account of it.
const ACTS: [&str; 4] = [
    "create jobs.batch",
    "create selfnoderemediations.self-node-remediation.medik8s.io",
    "patch configmaps",
    "patch nodes",
];

fn policy() -> Value {
    let rule = |fault: FaultType, block: &str, steps: Value| {
        json!({"name": fault.as_str().to_lowercase(),
        "match": {"faults": [fault], "minDuration": block}, "steps": steps})
    };
    let remediator = json!({"remediationTemplate": template(SELF_NODE, "SelfNodeRemediationTemplate")});
    let hand_off = json!({"action": "HandOff", "handOff": remediator, "timeout": "10m"});
    // Paused until each node has given what is asked of it: so all is decided in one pass. A suspension would end the judgement
    // before it comes to the evidence, and one heartbeat alone is none.
    json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy", "metadata": {"name": POLICY}, "spec": {
    "mode": "DryRun", "pauseRequests": [PAUSE],
    "limits": {"maxUnhealthy": "100%", "maxInFlight": 3, "storm": {"minNodes": 100_000}},
    "rules": [
        rule(FaultType::RuntimeUnreachable, "1s", json!([{"action": "Cordon", "timeout": "10m"}, hand_off])),
        rule(FaultType::DiskFull, "1s", json!([hand_off])),
        rule(FaultType::LeakedShim, "1s", json!([{"action": "CleanupOrphans", "timeout": "10m"}])),
        rule(FaultType::ReadOnlyFilesystem, "24h", json!([{"action": "Cordon"}, hand_off])),
    ]}})
}

/// What was decided: for each node the beginning of its remediation, or what is held.
type Decisions = BTreeMap<String, Value>;

/// Runs the policy dry and in earnest over the same nodes, and compares decisions and writes.
pub async fn writes_only_its_account(stage: &Stage<'_>) -> Result<()> {
    let begun = Timestamp::now();
    let leader = start(&stage.upstream);
    first_start(stage, begun).await.context("the first start")?;
    stage.bed.apply(&policy())?;
    // The kubelets start nothing: what comes after the first decisions is another test's.
    stage.fleet.keep_idle(true);
    let dry_from = Timestamp::now();
    for (node, fault, _) in NODES {
        let labels = if node == "dry-excluded" { &[(EXCLUDE_LABEL, "")][..] } else { &[] };
        stage.fleet.node(node, labels, fault).await?;
    }
    rights_are_known(stage, dry_from).await?;
    let dry = decided(stage).await.context("in the dry run")?;
    tokio::time::sleep(GOES_ON).await;
    ensure!(decisions(stage).await? == dry, "the dry run has decided something else after a while");
    let simulated = simulated(stage).await?;
    let account = account::since(stage.bed, dry_from)?;
    let commands: Api<NodeCommand> = Api::all(stage.admin.clone());
    let mut commanded = commands.list(&ListParams::default()).await?.items;
    commanded.retain(|command| command.spec.command.is_some());
    untouched(stage).await?;

    change(stage, &json!({"mode": "Enforce", "pauseRequests": [PAUSE]})).await?;
    let remediations: Api<NodeRemediation> = Api::all(stage.admin.clone());
    remediations.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    let earnest_from = Timestamp::now();
    let earnest = decided(stage).await.context("in earnest")?;
    ensure!(dry == earnest, "decided in the dry run:\n{dry:#?}\nin earnest:\n{earnest:#?}");
    let is_written = |write: &Write| ACTS.contains(&write.kind().as_str()) && write.is_done();
    let earnest = until_some("all that a policy in earnest writes", async || {
        let writes = account::since(stage.bed, earnest_from)?;
        Ok((account::kinds(writes.iter().filter(|write| is_written(write))).len() == ACTS.len()).then_some(writes))
    })
    .await?;

    let strange = |writes: &[Write]| -> Vec<Write> {
        writes.iter().filter(|write| !is_account(write, &simulated)).cloned().collect()
    };
    let acts = strange(&account);
    ensure!(acts.is_empty(), "the dry run wrote more than its account: {}", lines(&acts));
    ensure!(commanded.is_empty(), "the dry run commanded something: {commanded:?}");
    let expected = [
        "create noderemediations.runtimehealth.io",
        "patch noderemediations/status.runtimehealth.io",
        "create noderuntimehealths.runtimehealth.io",
        "patch noderuntimehealths/status.runtimehealth.io",
        "patch remediationpolicies/status.runtimehealth.io",
    ];
    let seen = account::kinds(account.iter().filter(|write| write.is_done()));
    ensure!(expected.iter().all(|kind| seen.contains(*kind)), "expected an account of {expected:?}, found {seen:?}");
    let acts = account::kinds(&strange(&earnest));
    let all_refused = ACTS.iter().all(|kind| acts.contains(*kind));
    ensure!(all_refused, "expected {ACTS:?} to be refused by the list, found {acts:?}");
    println!("the dry run of {} nodes wrote {seen:?}; in earnest also {acts:?}", NODES.len());
    leave(stage).await?;
    kill(&stage.admin, leader).await
}

/// Before there is any policy or ledger the controller makes the one that is shipped, and an empty ledger: once in the life of
/// a cluster, and the ledger is the sign that it was done.
async fn first_start(stage: &Stage<'_>, begun: Timestamp) -> Result<()> {
    let policies: Api<RemediationPolicy> = Api::all(stage.admin.clone());
    let ledger = "create configmaps";
    let is_made = |writes: &[Write]| writes.iter().any(|write| write.kind() == ledger && write.is_done());
    let writes = until_some("the ledger", async || {
        let writes = account::since(stage.bed, begun)?;
        Ok(is_made(&writes).then_some(writes))
    })
    .await?;
    let shipped =
        ["create remediationpolicies.runtimehealth.io", "patch remediationpolicies/status.runtimehealth.io", ledger];
    for write in writes.iter().filter(|write| !is_account(write, &BTreeSet::new())) {
        ensure!(shipped.contains(&write.kind().as_str()), "the first start wrote {write}");
    }
    policies.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    until("the end of the shipped policy", async || Ok(policies.list(&ListParams::default()).await?.items.is_empty()))
        .await
}

/// Waits until the controller has asked all that it asks about its rights on a remediator: no hand-off is decided before.
async fn rights_are_known(stage: &Stage<'_>, since: Timestamp) -> Result<()> {
    let is_question = |write: &&Write| write.resource.starts_with("selfsubjectaccessreviews") && write.is_done();
    until("the questions about rights", async || {
        let asked = account::since(stage.bed, since)?.iter().filter(is_question).count();
        Ok(asked >= QUESTIONS)
    })
    .await
}

/// Whether a dry run may write it.
fn is_account(write: &Write, simulated: &BTreeSet<String>) -> bool {
    let name = write.name.as_str();
    let is_node = NODES.iter().any(|(node, ..)| *node == name);
    match (write.verb.as_str(), write.resource.as_str(), write.namespace.as_str()) {
        ("create" | "update", "leases.coordination.k8s.io", "nrh-system") => name == "nrh-controller",
        ("create", "noderuntimehealths.runtimehealth.io", "")
        | ("patch", "noderuntimehealths/status.runtimehealth.io", "")
        // Requests for a fresh check; that none is a command is checked by itself.
        | ("create" | "patch", "nodecommands.runtimehealth.io", "") => is_node,
        ("patch", "remediationpolicies/status.runtimehealth.io", "") => name == POLICY,
        ("create" | "patch" | "delete", "noderemediations.runtimehealth.io", "")
        | ("patch", "noderemediations/status.runtimehealth.io", "") => simulated.contains(name),
        // The second is a question, of which nothing is stored: what the controller may do with remediators that a policy names.
        ("create" | "patch", "events.events.k8s.io", "default")
        | ("create", "selfsubjectaccessreviews.authorization.k8s.io", "") => true,
        _ => false,
    }
}

async fn change(stage: &Stage<'_>, spec: &Value) -> Result<()> {
    let policies: Api<RemediationPolicy> = Api::all(stage.admin.clone());
    policies.patch(POLICY, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await?;
    Ok(())
}

/// Waits until the pause alone holds what could begin, ends that, and waits until all is decided as expected.
async fn decided(stage: &Stage<'_>) -> Result<Decisions> {
    // What cannot begin is held for the same reason whether or not there is a pause.
    let reason = |expected: &'static str| if STAY_BLOCKED.contains(&expected) { expected } else { "Paused" };
    until("every node is held, by the pause where nothing else speaks against it", async || {
        let blocked = blocked(stage).await?;
        let is_held = |(node, _, expected): &(&str, FaultType, &'static str)| {
            blocked.get(*node).is_some_and(|lines| lines.iter().all(|line| line.starts_with(reason(expected))))
        };
        Ok(NODES.iter().all(is_held))
    })
    .await?;
    change(stage, &json!({"pauseRequests": []})).await?;
    let mut last = Decisions::new();
    let decided = until_some("the first decisions", async || {
        last = decisions(stage).await?;
        let is_it = |(node, _, expected): &(&str, FaultType, &str)| {
            let decision = last.get(*node);
            let action = decision.and_then(|one| one.pointer("/step/action"));
            let block = decision.and_then(|one| one.pointer("/blocked/0")).and_then(Value::as_str);
            action.is_some_and(|action| action == expected) || block.is_some_and(|line| line.starts_with(expected))
        };
        Ok(NODES.iter().all(is_it).then(|| last.clone()))
    })
    .await;
    decided.with_context(|| format!("decided last: {last:#?}"))
}

/// What is held, by node; the nodes of which nothing is said are left out.
async fn blocked(stage: &Stage<'_>) -> Result<BTreeMap<String, Vec<String>>> {
    let reports: Api<NodeRuntimeHealth> = Api::all(stage.admin.clone());
    let of = |report: NodeRuntimeHealth| {
        let blocked =
            report.status.clone().and_then(|status| status.remediation).map(|remediation| remediation.blocked);
        (report.name_any(), blocked.unwrap_or_default())
    };
    let all = reports.list(&ListParams::default()).await?.items.into_iter().map(of);
    Ok(all.filter(|(_, blocked)| !blocked.is_empty()).collect())
}

async fn decisions(stage: &Stage<'_>) -> Result<Decisions> {
    let mut decisions = Decisions::new();
    for (node, lines) in blocked(stage).await? {
        decisions.insert(node, json!({"blocked": lines}));
    }
    let remediations: Api<NodeRemediation> = Api::all(stage.admin.clone());
    for remediation in remediations.list(&ListParams::default()).await? {
        let status = remediation.status.clone().unwrap_or_default();
        let Some(first) = status.attempts.first() else { continue };
        let mut first = serde_json::to_value(first)?;
        // When, what has come of it since, and its identity, which no two remediations share.
        let fields = first.as_object_mut().context("a step")?;
        fields.retain(|key, _| !key.ends_with("At") && !["state", "message", "operationId"].contains(&key.as_str()));
        let faults: Vec<Value> =
            status.faults.iter().map(|fault| json!([fault.id, fault.rule, fault.subject])).collect();
        // The name stands for the node, its fault, and which time it is.
        let decision = json!({"remediation": remediation.name_any(), "policy": remediation.spec.policy, "faults": faults, "step": first});
        decisions.insert(remediation.spec.node_name.clone(), decision);
    }
    Ok(decisions)
}

/// The names of the remediations of the dry run, all of which have ended as such.
async fn simulated(stage: &Stage<'_>) -> Result<BTreeSet<String>> {
    let remediations: Api<NodeRemediation> = Api::all(stage.admin.clone());
    let all = remediations.list(&ListParams::default()).await?.items;
    let is_simulated = |one: &NodeRemediation| one.status.as_ref().is_some_and(|s| s.phase == Phase::Simulated);
    ensure!(all.len() == 3 && all.iter().all(is_simulated), "expected 3 simulated remediations, found {all:#?}");
    Ok(all.iter().map(ResourceExt::name_any).collect())
}

/// Neither nodes nor the ledger show anything of a dry run.
async fn untouched(stage: &Stage<'_>) -> Result<()> {
    let nodes: Api<Node> = Api::all(stage.admin.clone());
    for node in nodes.list(&ListParams::default()).await? {
        let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        let is_marked = node.annotations().contains_key(CORDON_ANNOTATION);
        ensure!(!is_cordoned && !is_marked, "node {} was cordoned in a dry run", node.name_any());
    }
    let maps: Api<ConfigMap> = Api::namespaced(stage.admin.clone(), "nrh-system");
    let ledger = maps.get("nrh-ledger").await?.data.unwrap_or_default();
    ensure!(ledger.get("ledger.json").is_some_and(|text| text == "{\"slots\":{}}"), "slots were taken: {ledger:?}");
    Ok(())
}

/// Takes policy and nodes away, and waits until nothing is owed any more.
async fn leave(stage: &Stage<'_>) -> Result<()> {
    stage.fleet.keep_idle(false);
    let policies: Api<RemediationPolicy> = Api::all(stage.admin.clone());
    policies.delete(POLICY, &DeleteParams::default()).await?;
    for (node, ..) in NODES {
        stage.fleet.remove(node).await?;
    }
    stage.fleet.ledger_is_empty().await
}

fn lines(writes: &[Write]) -> String {
    writes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
