//! What a probe is told, on a real API server: the real probe, with a token as its pod has it, hears at once of a request for a fresh
//! check, the controller's or a person's, and a roll-out gets its answer by one command.

use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use nrh::api::{NodeCommand, NodeRuntimeHealth};
use nrh_testbed::process::Identity;
use rustix::process::Signal;
use serde_json::json;

use crate::interruptions::{Stage, kill, start, until_some, until_within};

const NODE: &str = "hears";
const PROBE: &str = "system:serviceaccount:nrh-node:nrh-probe";
/// At rest a probe reports every five minutes. What is answered within this time did not wait for a report.
const BEFORE_A_REPORT: Duration = Duration::from_mins(3);
/// Until nothing new is seen any more, and nothing was asked for some time.
const REST: Duration = Duration::from_secs(20);

/// The whole way, there and back.
pub async fn at_once(stage: &Stage<'_>) -> Result<()> {
    let leader = start(&stage.upstream);
    let nodes: Api<Node> = Api::all(stage.admin.clone());
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": "2025-06-01T12:00:00Z"});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"kubernetes.io/os": "linux"}},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node.clone())?).await?;
    nodes.patch_status(NODE, &PatchParams::default(), &Patch::Merge(&node)).await?;
    let probe = probe(stage).await?;
    let reports: Api<NodeRuntimeHealth> = Api::all(stage.admin.clone());
    until_some("its first report", async || Ok(sequence(&reports).await?.filter(|sequence| *sequence > 0))).await?;
    tokio::time::sleep(REST).await;

    let commands: Api<NodeCommand> = Api::all(stage.upstream.clone());
    for name in ["rollout-1", "rollout-2", "rollout-3"] {
        let took = checked(stage, name).await.with_context(|| format!("request {name}"))?;
        println!("a person's request {name} was answered after {:.1} s", took.as_secs_f64());
        tokio::time::sleep(Duration::from_secs(2)).await;
        if name == "rollout-2" {
            // It is made anew for the next request.
            Api::<NodeCommand>::all(stage.admin.clone()).delete(NODE, &DeleteParams::default()).await?;
        }
    }
    tokio::time::sleep(REST).await;
    let before = sequence(&reports).await?;
    let asked = Instant::now();
    let patch = Patch::Merge(json!({"spec": {"checkSequence": 41}}));
    commands.patch(NODE, &PatchParams::default(), &patch).await.context("as the controller does")?;
    until_within("an answer to the controller", BEFORE_A_REPORT, async || {
        Ok((sequence(&reports).await? != before).then_some(()))
    })
    .await?;
    println!("the controller's request was answered after {:.1} s", asked.elapsed().as_secs_f64());

    // There is no runtime to ask, so nobody knows.
    let told = restart_safe(stage, NODE, "30s").await?;
    let said = String::from_utf8_lossy(&told.stdout).into_owned();
    ensure!(told.status.code() == Some(2) && said.contains("RestartSafe Unknown"), "{told:?}");
    println!("{}", said.trim());
    let told = restart_safe(stage, "no-such-node", "3s").await?;
    ensure!(told.status.code() == Some(2), "a node that is not there: {told:?}");
    ensure!(probe.signal(Signal::KILL)?, "the probe has ended by itself");
    let told = restart_safe(stage, NODE, "3s").await?;
    let said = String::from_utf8_lossy(&told.stdout).into_owned();
    ensure!(told.status.code() == Some(2) && said.contains("no answer"), "nobody is there to answer: {told:?}");
    println!("{}", said.trim());
    few_requests(stage)?;
    kill(&stage.admin, leader).await
}

/// Starts the probe in the bed, with the token of its DaemonSet's pod on the node.
async fn probe(stage: &Stage<'_>) -> Result<Identity> {
    let bed = stage.bed;
    let field = format!("spec.nodeName={NODE}");
    let name = until_some("the probe's pod", async || {
        let names = bed.kubectl(&["get", "pod", "-n", "nrh-node", "--field-selector", &field, "-o", "name"])?;
        Ok(names.lines().next().map(|name| name.trim_start_matches("pod/").to_owned()))
    })
    .await?;
    let bound = ["--bound-object-kind=Pod", "--bound-object-name", &name, "--duration=1h"];
    let token = bed.kubectl(&[&["-n", "nrh-node", "create", "token", "nrh-probe"], bound.as_slice()].concat())?;
    let config = bed.kubeconfig(json!({"token": token.trim()}))?;
    let (path, folder) = (bed.dir().join("hears.kubeconfig"), bed.dir().join("hears"));
    std::fs::write(&path, config.to_string())?;
    let argv = [
        "env".to_owned(),
        format!("KUBECONFIG={}", path.display()),
        format!("NODE_NAME={NODE}"),
        format!("NRH_STATE_DIR={}", folder.display()),
        // Nobody's: other beds may have runtimes of their own.
        format!("NRH_RUNTIME_ENDPOINT={}", bed.dir().join("none.sock").display()),
        env!("CARGO_BIN_EXE_nrh-probe").to_owned(),
    ];
    bed.realm().daemon(&bed.dir().join("logs/hears.log"), &argv)
}

async fn sequence(reports: &Api<NodeRuntimeHealth>) -> Result<Option<u64>> {
    let object = reports.get_opt(NODE).await?;
    Ok(object.and_then(|object| object.status?.probe).map(|probe| probe.sequence))
}

/// Asks for a check by the one field, and waits for the report that answers it.
async fn checked(stage: &Stage<'_>, name: &str) -> Result<Duration> {
    let (reports, asked): (Api<NodeRuntimeHealth>, _) = (Api::all(stage.admin.clone()), Instant::now());
    reports.patch(NODE, &PatchParams::default(), &Patch::Merge(json!({"spec": {"checkRequested": name}}))).await?;
    until_within("its answer", BEFORE_A_REPORT, async || {
        let probe = reports.get(NODE).await?.status.and_then(|status| status.probe);
        Ok(probe.filter(|probe| probe.check_answered.as_deref() == Some(name)))
    })
    .await?;
    Ok(asked.elapsed())
}

async fn restart_safe(stage: &Stage<'_>, node: &str, timeout: &str) -> Result<Output> {
    let mut command = stage.bed.command(env!("CARGO_BIN_EXE_nrh"));
    command.args(["restart-safe", node, "--timeout", timeout]);
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}

/// All that was asked for was heard on few watches, each on one object, none of them refused.
fn few_requests(stage: &Stage<'_>) -> Result<()> {
    let all = stage.bed.audit()?;
    let of_commands = |one: &&nrh_testbed::AuditEntry| {
        one.user.username == PROBE && one.object_ref.as_ref().is_some_and(|of| of.resource == "nodecommands")
    };
    let all: Vec<_> = all.iter().filter(of_commands).collect();
    let count = |verb: &str| all.iter().filter(|one| one.verb == verb).count();
    println!("the probe's requests for its command: {} reads, {} watches", count("get"), count("watch"));
    ensure!(count("watch") >= 1 && count("watch") <= 3, "{all:?}");
    ensure!(count("get") == count("watch") && all.len() == count("get") + count("watch"), "{all:?}");
    let is_own = |one: &&nrh_testbed::AuditEntry| one.object_ref.as_ref().is_some_and(|of| of.name == NODE);
    ensure!(all.iter().all(|one| one.code() < 400 || one.code() == 404), "refused: {all:?}");
    ensure!(all.iter().all(is_own), "of other nodes: {all:?}");
    Ok(())
}
