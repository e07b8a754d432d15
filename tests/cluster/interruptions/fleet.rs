//! Nodes on a real API server whose probes report, whose kubelets run our Jobs, and whose agents obey commands.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use nrh::api::{NodeCommand, NodeRemediation, NodeRuntimeHealth, TAINT_ANNOTATION};
use nrh::core::action::ActionType;
use nrh::core::command::{ActionCommand, OutcomeReason};
use nrh::core::examples;
use nrh::core::fault::{Fault, FaultState, FaultType, Severity, Subject, SubjectKind};
use nrh::core::remediation::Phase;
use nrh::core::taint::TAINT_KEY;
use nrh::core::tri_state::TriState;
use nrh_simulate::cleared_by::ClearedBy;
use nrh_simulate::world::{Boots, InjectedFault, WorldNode};
use serde_json::json;
use tokio::time::sleep;

use crate::interruptions::account::{self, Write};
use crate::interruptions::{AT_A_TIME, daemons, workload};
use crate::plane;
use crate::simulated_node;

/// How often probes report and kubelets relist.
const BEAT: Duration = Duration::from_millis(300);
/// How often a node says that it is Ready.
const READY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubelet {
    /// It says that the node is Ready, and runs pods.
    Works,
    /// It says that the node is Ready, and starts no pod.
    StartsNothing,
    /// It says that the node is not Ready.
    NotReady,
}

/// A node, and whether its executor takes commands.
struct Played {
    node: WorldNode,
    obeys: bool,
}

#[derive(Clone)]
pub struct Fleet {
    client: Client,
    nodes: Arc<Mutex<BTreeMap<String, Played>>>,
    /// Whether the kubelets start nothing.
    idle: Arc<AtomicBool>,
    /// What was carried out on nodes, each time: the operation, whose name begins with the node's, and what it was.
    done: Arc<Mutex<Vec<(String, String)>>>,
}

impl Fleet {
    /// No nodes yet; they live as long as the runtime.
    pub fn new(client: Client) -> Self {
        let (nodes, idle, done) = Default::default();
        let fleet = Self { client, nodes, idle, done };
        tokio::spawn(fleet.clone().live());
        fleet
    }

    /// Makes a node on which a shim is left over from the start.
    pub async fn sick_node(&self, name: &str) -> Result<()> {
        self.node(name, &[], FaultType::LeakedShim).await
    }

    /// Makes a node with these labels that has this fault from the start.
    pub async fn node(&self, name: &str, labels: &[(&str, &str)], fault: FaultType) -> Result<()> {
        self.play(name, labels, Played { node: sick(name, fault), obeys: false }).await
    }

    /// Makes one whose executor takes commands, some of them in vain, and whose kubelet is so.
    pub async fn machine(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        fault: FaultType,
        kubelet: Kubelet,
        fails: &[ActionType],
    ) -> Result<()> {
        let mut node = sick(name, fault);
        node.job_starts = kubelet != Kubelet::StartsNothing;
        if kubelet == Kubelet::NotReady {
            node.view.ready = TriState::False;
        }
        node.fails = fails.iter().copied().collect();
        self.play(name, labels, Played { node, obeys: true }).await
    }

    async fn play(&self, name: &str, labels: &[(&str, &str)], played: Played) -> Result<()> {
        let labels: BTreeMap<&str, &str> = labels.iter().copied().chain([("kubernetes.io/os", "linux")]).collect();
        // As Cluster API names a Node's Machine, whether or not there is one.
        let machine = json!({"cluster.x-k8s.io/machine": name, "cluster.x-k8s.io/cluster-namespace": "medik8s"});
        let meta = json!({"name": name, "labels": labels, "annotations": machine});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"providerID": format!("metal3://{name}")}});
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        self.ready(name, &played.node).await?;
        self.nodes.lock().unwrap().insert(name.to_owned(), played);
        Ok(())
    }

    /// A node is well again, by something that nobody here plays.
    pub fn well(&self, name: &str) {
        if let Some(played) = self.nodes.lock().unwrap().get_mut(name) {
            played.node.sick.clear();
        }
    }

    pub fn is_sick(&self, name: &str) -> bool {
        self.nodes.lock().unwrap().get(name).is_some_and(|played| !played.node.sick.is_empty())
    }

    /// Whether the kubelets start no pods for now.
    pub fn keep_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::SeqCst);
    }

    pub async fn remove(&self, name: &str) -> Result<()> {
        self.nodes.lock().unwrap().remove(name);
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until all are repaired, each once, and nothing holds a slot any more.
    pub async fn all_resolved(&self, nodes: &[String]) -> Result<()> {
        for node in nodes {
            self.resolved(node).await?;
            self.check(node).await?;
        }
        self.ledger_is_empty().await
    }

    /// How many nodes were in work at a time, by their remediations and by what was written: not more than may be.
    pub async fn budget_is_kept(&self, writes: &[Write], nodes: &[String]) -> Result<usize> {
        let most = self.most_at_a_time(nodes).await?.max(account::most_at_a_time(writes, nodes));
        ensure!(most <= AT_A_TIME, "{most} nodes were in work at a time, at most {AT_A_TIME} are allowed");
        Ok(most)
    }

    /// Waits until the node's remediation has repaired it.
    pub async fn resolved(&self, node: &str) -> Result<()> {
        plane::soon(async || {
            let remediations = self.remediations(node).await?;
            let told: Vec<_> = remediations.iter().filter_map(|one| one.status.as_ref()).collect();
            let has_resolved = told.iter().any(|status| status.phase == Phase::Succeeded);
            let over = told.iter().filter(|status| status.finished_at.is_some()).count();
            let is_so = has_resolved && over == remediations.len();
            ensure!(is_so, "node {node} is not healed: {}", serde_json::to_string_pretty(&told)?);
            Ok(())
        })
        .await
    }

    pub async fn remediations(&self, node: &str) -> Result<Vec<NodeRemediation>> {
        let api: Api<NodeRemediation> = Api::all(self.client.clone());
        let all = api.list(&ListParams::default()).await?.items;
        Ok(all.into_iter().filter(|remediation| remediation.spec.node_name == node).collect())
    }

    /// What must hold once a node is repaired by a Job, whatever happened on the way.
    pub async fn check(&self, node: &str) -> Result<()> {
        self.check_acts(node, &["Job"]).await
    }

    /// What must hold once a node is repaired by these acts, each once and in that order.
    pub async fn check_acts(&self, node: &str, acts: &[&str]) -> Result<()> {
        let done = self.done.lock().unwrap().clone();
        let done: Vec<(String, String)> = done.into_iter().filter(|(id, _)| id.starts_with(node)).collect();
        let is_so = done.iter().map(|(_, what)| what.as_str()).eq(acts.iter().copied());
        ensure!(is_so, "node {node}: expected the acts {acts:?}, found {done:?}");
        let remediations = self.remediations(node).await?;
        // One whose leader died before it was recorded ends by itself; nothing was done in it.
        let executed = |remediation: &&NodeRemediation| {
            remediation.status.as_ref().is_some_and(|status| !status.attempts.is_empty())
        };
        let count = remediations.iter().filter(executed).count();
        ensure!(count == 1, "node {node} has {count} remediations in which something was done");
        let nodes: Api<Node> = Api::all(self.client.clone());
        let object = nodes.get(node).await?;
        let spec = object.spec.unwrap_or_default();
        ensure!(spec.unschedulable != Some(true), "node {node} is still cordoned");
        // Others have a taint of their own there: nobody tells that these nodes are ready.
        let ours: Vec<_> = spec.taints.into_iter().flatten().filter(|taint| taint.key == TAINT_KEY).collect();
        ensure!(ours.is_empty(), "node {node} is still tainted: {ours:?}");
        let marks = object.metadata.annotations.unwrap_or_default();
        ensure!(!marks.contains_key(TAINT_ANNOTATION), "node {node} still has the mark of a taint: {marks:?}");
        Ok(())
    }

    /// How many of these nodes had an open remediation at the same time at most, by what stands in the remediations.
    pub async fn most_at_a_time(&self, nodes: &[String]) -> Result<usize> {
        let api: Api<NodeRemediation> = Api::all(self.client.clone());
        let all = api.list(&ListParams::default()).await?.items;
        let of_nodes = all.into_iter().filter(|remediation| nodes.contains(&remediation.spec.node_name));
        // One whose leader died before it was recorded was never in work.
        let spans: Vec<(Timestamp, Timestamp)> = of_nodes
            .filter_map(|remediation| remediation.status.filter(|status| !status.attempts.is_empty()))
            .filter_map(|status| Some((opened(status.started_at?), status.finished_at.unwrap_or(Timestamp::MAX))))
            .collect();
        // More are open only from where one opens; where one ends, another one may open.
        let at = |moment: Timestamp| spans.iter().filter(|(from, to)| *from <= moment && moment < *to).count();
        Ok(spans.iter().map(|(opened, _)| at(*opened)).max().unwrap_or(0))
    }

    pub async fn ledger_is_empty(&self) -> Result<()> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "nrh-system");
        plane::soon(async || {
            let data = maps.get("nrh-ledger").await?.data.unwrap_or_default();
            let ledger = data.get("ledger.json").context("a ledger")?;
            ensure!(ledger == "{\"slots\":{}}", "slots are still taken: {ledger}");
            Ok(())
        })
        .await
    }

    async fn live(self) {
        let mut told = Instant::now();
        loop {
            sleep(BEAT).await;
            let is_due = told.elapsed() >= READY;
            let commands: Api<NodeCommand> = Api::all(self.client.clone());
            let commands = commands.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
            let commands = commands.into_iter().map(|command| (command.name_any(), command.spec.command));
            for (name, node, is_rebooted) in self.work(&commands.collect()) {
                // The controller may not have made its object yet; a node may be on its way out.
                let _ = self.report(&name, &node).await;
                if is_due || is_rebooted {
                    let _ = self.ready(&name, &node).await;
                }
            }
            if is_due {
                told = Instant::now();
            }
            if !self.idle.load(Ordering::SeqCst) {
                let _ = self.run_jobs().await;
            }
            let _ = self.run_daemons().await;
            let _ = self.end_workloads().await;
        }
    }

    /// Each node executes its command, if that is new, and boots where it is to; how it is then, and whether it has booted.
    fn work(&self, commands: &BTreeMap<String, Option<ActionCommand>>) -> Vec<(String, WorldNode, bool)> {
        let one = |(name, played): (&String, &mut Played)| {
            let node = &mut played.node;
            let (boots, said) = (node.boots.count, node.report.agent.clone());
            node.command = commands.get(name).cloned().flatten().filter(|_| played.obeys);
            node.work(Timestamp::now(), &mut BTreeMap::new());
            if let (Some(command), Some(outcome)) = (&node.command, &node.report.agent)
                && said.as_ref() != Some(outcome)
                && outcome.reason != OutcomeReason::AlreadyRebooted
            {
                self.done.lock().unwrap().push((command.operation_id.clone(), format!("{:?}", command.action.kind())));
            }
            (name.clone(), node.clone(), node.boots.count != boots)
        };
        self.nodes.lock().unwrap().iter_mut().map(one).collect()
    }

    async fn ready(&self, name: &str, node: &WorldNode) -> Result<()> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = json!({"status": {"nodeInfo": {"bootID": node.view.boot_id}, "conditions": [{"type": "Ready",
            "status": node.view.ready.as_str(), "reason": "Kubelet", "message": "", "lastHeartbeatTime": now}]}});
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(&status)).await?;
        Ok(())
    }

    async fn report(&self, name: &str, node: &WorldNode) -> Result<()> {
        let status = simulated_node::report(node, Timestamp::now());
        let api: Api<NodeRuntimeHealth> = Api::all(self.client.clone());
        api.patch_status(name, &PatchParams::apply("nrh-probe").force(), &Patch::Apply(&status)).await?;
        Ok(())
    }

    /// Each pod of a Job is run once, and says what came of it.
    async fn run_jobs(&self) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "nrh-node");
        for pod in pods.list(&ListParams::default().labels("batch.kubernetes.io/job-name")).await?.items {
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            let spec = pod.spec.as_ref().context("a pod's spec")?;
            let name = spec.node_name.clone().unwrap_or_default();
            let starts = self.nodes.lock().unwrap().get(&name).is_none_or(|played| played.node.job_starts);
            if !starts && pod.metadata.deletion_timestamp.is_some() {
                workload::end(&pods, &pod.name_any()).await?;
            }
            if !starts || phase != "Pending" || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let command = simulated_node::command(spec).context("the command of a Job")?;
            let outcome = self.nodes.lock().unwrap().get_mut(&name).map(|played| {
                self.done.lock().unwrap().push((command.operation_id.clone(), "Job".to_owned()));
                played.node.execute(&command, Timestamp::now(), &mut BTreeMap::new())
            });
            if let Some(outcome) = outcome {
                let status = json!({"status": simulated_node::ended(&outcome)});
                pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(&status)).await?;
            }
        }
        Ok(())
    }

    /// Pods that were evicted end.
    async fn end_workloads(&self) -> Result<()> {
        let ended = workload::round(&self.client).await?;
        self.done.lock().unwrap().extend(ended.into_iter().map(|pod| (pod, "Evicted".to_owned())));
        Ok(())
    }

    /// Pods of `DaemonSet`s come and go.
    async fn run_daemons(&self) -> Result<()> {
        for (node, pod) in daemons::round(&self.client, |node| self.is_sick(node)).await? {
            if let Some(played) = self.nodes.lock().unwrap().get_mut(&node) {
                self.done.lock().unwrap().push((pod, "DeletePod".to_owned()));
                played.node.sick.clear();
            }
        }
        Ok(())
    }
}

/// When a remediation was opened. Where the first word about it was lost, its object tells, in whole seconds: it was within that one.
fn opened(told: Timestamp) -> Timestamp {
    if told.subsec_nanosecond() == 0 { told.saturating_add(Duration::from_secs(1)).unwrap_or(told) } else { told }
}

/// A node with this fault, which whatever is done resolves. A shim that is left over has a process; others concern the node as a whole.
fn sick(name: &str, kind: FaultType) -> WorldNode {
    let mut fault = Fault {
        id: format!("{}-{name}", kind.as_str().to_lowercase()),
        severity: Severity::High,
        state: FaultState::Confirmed,
        subject: Subject::of(SubjectKind::Host),
        first_seen: Timestamp::now(),
        duration_seconds: 90,
        confirmations: 3,
        ..examples::fault(kind)
    };
    if kind == FaultType::LeakedShim {
        fault.severity = Severity::Medium;
        (fault.subject, fault.target) = examples::shim(&"0".repeat(64));
    }
    let mut node = WorldNode::new(name);
    node.boots = Boots { takes: 0, drained_after: Duration::ZERO, ..Boots::default() };
    node.sick = vec![InjectedFault { fault, cleared_by: ClearedBy::ALL.into() }];
    node
}
