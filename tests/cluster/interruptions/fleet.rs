//! Nodes on a real API server whose probes report, whose kubelets run our Jobs, and whose agents obey orders.

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
use nrh::core::command::ActionCommand;
use nrh::core::condition::looked_at;
use nrh::core::fault::FaultType;
use nrh::core::remediation::Phase;
use nrh::core::taint::TAINT_KEY;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::interruptions::agent::{Kubelet, Machine};
use crate::interruptions::{daemons, workload};

/// How often probes report and kubelets look.
const BEAT: Duration = Duration::from_millis(300);
/// How often a node says that it is Ready.
const READY: Duration = Duration::from_secs(5);
/// How long a healing may take.
const LIMIT: Duration = Duration::from_mins(2);

/// What a node has, and since when.
#[derive(Clone, Copy)]
struct Sickness {
    fault: FaultType,
    since: Timestamp,
}

/// All nodes.
#[derive(Clone)]
pub struct Fleet {
    client: Client,
    /// What each has, while it is sick.
    nodes: Arc<Mutex<BTreeMap<String, Option<Sickness>>>>,
    /// Those of them that have an agent.
    machines: Arc<Mutex<BTreeMap<String, Machine>>>,
    /// Whether the kubelets start nothing.
    idle: Arc<AtomicBool>,
    /// What was carried out on nodes, each time: the operation, whose name begins with the node's, and what it was.
    done: Arc<Mutex<Vec<(String, String)>>>,
}

impl Fleet {
    /// No nodes yet; they live as long as the runtime.
    pub fn new(client: Client) -> Self {
        let (nodes, machines, idle, done) = Default::default();
        let fleet = Self { client, nodes, machines, idle, done };
        tokio::spawn(fleet.clone().live());
        fleet
    }

    /// Makes a node on which a shim is left over from the start.
    pub async fn sick_node(&self, name: &str) -> Result<()> {
        self.node(name, &[], FaultType::LeakedShim).await
    }

    /// Makes a node with these labels that has this fault from the start.
    pub async fn node(&self, name: &str, labels: &[(&str, &str)], fault: FaultType) -> Result<()> {
        let labels: BTreeMap<&str, &str> = labels.iter().copied().chain([("kubernetes.io/os", "linux")]).collect();
        // As Cluster API names a Node's Machine, whether or not there is one.
        let machine = json!({"cluster.x-k8s.io/machine": name, "cluster.x-k8s.io/cluster-namespace": "medik8s"});
        let meta = json!({"name": name, "labels": labels, "annotations": machine});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"providerID": format!("metal3://{name}")}});
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        self.ready(name).await?;
        self.nodes.lock().unwrap().insert(name.to_owned(), Some(Sickness { fault, since: Timestamp::now() }));
        Ok(())
    }

    /// Makes a node of which this machine is, with these labels and this fault.
    pub async fn machine(&self, name: &str, labels: &[(&str, &str)], fault: FaultType, machine: Machine) -> Result<()> {
        self.machines.lock().unwrap().insert(name.to_owned(), machine);
        self.node(name, labels, fault).await
    }

    /// A node is well again, by something that nobody here plays.
    pub fn well(&self, name: &str) {
        self.nodes.lock().unwrap().insert(name.to_owned(), None);
    }

    /// Whether it is not well yet.
    pub fn is_sick(&self, name: &str) -> bool {
        self.nodes.lock().unwrap().get(name).is_some_and(Option::is_some)
    }

    /// Whether the kubelets start no pods for now.
    pub fn keep_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::SeqCst);
    }

    /// Takes a node away.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.nodes.lock().unwrap().remove(name);
        self.machines.lock().unwrap().remove(name);
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until the node's remediation has healed it.
    pub async fn healed(&self, node: &str) -> Result<()> {
        let ends = Instant::now() + LIMIT;
        loop {
            let remediations = self.remediations(node).await?;
            let is_over =
                |remediation: &&NodeRemediation| remediation.status.as_ref().is_some_and(|s| s.finished_at.is_some());
            let has_healed = |remediation: &NodeRemediation| {
                remediation.status.as_ref().is_some_and(|s| s.phase == Phase::Succeeded)
            };
            if remediations.iter().any(has_healed) && remediations.iter().filter(is_over).count() == remediations.len()
            {
                return Ok(());
            }
            let told: Vec<Value> = remediations.iter().filter_map(|e| serde_json::to_value(&e.status).ok()).collect();
            ensure!(Instant::now() < ends, "node {node} is not healed within {} s: {told:#?}", LIMIT.as_secs());
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Remediations of a node.
    pub async fn remediations(&self, node: &str) -> Result<Vec<NodeRemediation>> {
        let api: Api<NodeRemediation> = Api::all(self.client.clone());
        let all = api.list(&ListParams::default()).await?.items;
        Ok(all.into_iter().filter(|remediation| remediation.spec.node_name == node).collect())
    }

    /// What must hold once a node is healed by a Job, whatever happened on the way.
    pub async fn check(&self, node: &str) -> Result<()> {
        self.check_acts(node, &["Job"]).await
    }

    /// What must hold once a node is healed by these acts, each once and in that order.
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

    /// Waits until no slot is taken any more.
    pub async fn ledger_is_empty(&self) -> Result<()> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "nrh-system");
        let ends = Instant::now() + LIMIT;
        loop {
            let data = maps.get("nrh-ledger").await?.data.unwrap_or_default();
            let ledger = data.get("ledger.json").context("a ledger")?;
            if ledger == "{\"slots\":{}}" {
                return Ok(());
            }
            ensure!(Instant::now() < ends, "slots are still taken: {ledger}");
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn live(self) {
        let (mut sequence, mut told) = (0_u64, Instant::now());
        loop {
            sleep(BEAT).await;
            sequence += 1;
            let nodes: Vec<(String, Option<Sickness>)> =
                self.nodes.lock().unwrap().iter().map(|(name, sick)| (name.clone(), *sick)).collect();
            let is_due = told.elapsed() >= READY;
            for (name, sick) in nodes {
                // The controller may not have made its object yet; a node may be on its way out.
                let _ = self.report(&name, sequence, sick).await;
                if is_due {
                    let _ = self.ready(&name).await;
                }
            }
            if is_due {
                told = Instant::now();
            }
            if !self.idle.load(Ordering::SeqCst) {
                let _ = self.run_jobs().await;
            }
            let _ = self.obey_orders().await;
            let _ = self.run_daemons().await;
            let _ = self.end_workloads().await;
        }
    }

    fn kubelet(&self, node: &str) -> Option<Kubelet> {
        self.machines.lock().unwrap().get(node).map(|machine| machine.kubelet)
    }

    async fn ready(&self, node: &str) -> Result<()> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let machine = self.machines.lock().unwrap().get(node).cloned();
        let is_ready = machine.as_ref().is_none_or(|machine| machine.kubelet != Kubelet::NotReady);
        let ready = if is_ready { "True" } else { "False" };
        let info = machine.map(|machine| json!({"bootID": machine.boot_id()}));
        let status = json!({"status": {"nodeInfo": info.unwrap_or_else(|| json!({})), "conditions": [{"type": "Ready",
            "status": ready, "reason": "Kubelet", "message": "", "lastHeartbeatTime": now}]}});
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch_status(node, &PatchParams::default(), &Patch::Strategic(&status)).await?;
        Ok(())
    }

    async fn report(&self, node: &str, sequence: u64, sick: Option<Sickness>) -> Result<()> {
        let now = Timestamp::now();
        let judged = looked_at().map(|kind| {
            let is_bad = sick.is_some_and(|sick| sick.fault.spec().condition == Some(kind));
            let (state, reason) = if is_bad { ("False", "FaultConfirmed") } else { ("True", "Clean") };
            let since = sick.map_or(now, |sick| sick.since);
            json!({"type": kind.as_str(), "status": state, "reason": reason, "message": "", "lastTransitionTime": since})
        });
        // For a restart of what is down nothing is in the way.
        let safe = json!({"type": "RestartSafe", "status": "True", "reason": "Clean", "message": "", "lastTransitionTime": now});
        let conditions: Vec<Value> = judged.chain([safe]).collect();
        // What shows in the API alone the probe does not see.
        let faults: Vec<Value> =
            sick.filter(|sick| !sick.fault.is_cluster_fault()).map(|sick| fault(node, sick)).into_iter().collect();
        let machine = self.machines.lock().unwrap().get(node).cloned();
        let boot = machine.as_ref().map_or_else(|| "b".to_owned(), Machine::boot_id);
        let mut status = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth", "status": {
            "probe": {"version": "t", "mode": "Pod", "bootId": boot, "sequence": sequence, "heartbeatAt": now, "intervalSeconds": 15,
                "actionsEnabled": true, "collectors": [{"name": "kubelet", "state": "Ok", "ageSeconds": 0}]},
            "kubelet": {"started": true}, "faults": faults, "conditions": conditions}});
        if let Some(said) = machine.as_ref().and_then(Machine::said) {
            status["status"]["commandResult"] = serde_json::to_value(said)?;
        }
        let api: Api<NodeRuntimeHealth> = Api::all(self.client.clone());
        api.patch_status(node, &PatchParams::apply("nrh-probe").force(), &Patch::Apply(&status)).await?;
        Ok(())
    }

    /// Each pod of a Job is run once, heals its node and says so.
    async fn run_jobs(&self) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "nrh-node");
        for pod in pods.list(&ListParams::default().labels("batch.kubernetes.io/job-name")).await?.items {
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            let operation = pod.labels().get("batch.kubernetes.io/job-name").cloned().context("the name of a Job")?;
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
            let starts_nothing = self.kubelet(&node) == Some(Kubelet::StartsNothing);
            if starts_nothing && pod.metadata.deletion_timestamp.is_some() {
                workload::end(&pods, &pod.name_any()).await?;
            }
            if starts_nothing || phase != "Pending" || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let now = Timestamp::now();
            let outcome = json!({"operationId": operation, "state": "Done", "reason": "Executed", "message": "removed", "at": now});
            let at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let status = json!({"status": {"phase": "Succeeded", "containerStatuses": [{"name": "command", "image": "", "imageID": "",
                "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 0, "reason": "Completed",
                    "message": outcome.to_string(), "startedAt": at, "finishedAt": at}}}]}});
            self.done.lock().unwrap().push((operation, "Job".to_owned()));
            if let Some(sick) = self.nodes.lock().unwrap().get_mut(&node) {
                *sick = None;
            }
            pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(&status)).await?;
        }
        Ok(())
    }

    /// Each agent looks at its order and does what is new in it, and its machine boots anew where it is to.
    async fn obey_orders(&self) -> Result<()> {
        let names: Vec<String> = self.machines.lock().unwrap().keys().cloned().collect();
        let commands: Api<NodeCommand> = Api::all(self.client.clone());
        for node in names {
            let command = commands.get_opt(&node).await?;
            if self.obeys(&node, command.and_then(|command| command.spec.command).as_ref()) {
                self.ready(&node).await?;
            }
        }
        Ok(())
    }

    /// One agent does so, by this order; whether its machine has booted anew.
    fn obeys(&self, node: &str, order: Option<&ActionCommand>) -> bool {
        let (mut machines, mut nodes) = (self.machines.lock().unwrap(), self.nodes.lock().unwrap());
        let (Some(machine), Some(sick)) = (machines.get_mut(node), nodes.get_mut(node)) else { return false };
        let is_rebooted = machine.boots_anew(order);
        let done = order.and_then(|order| Some((order, machine.obeys(order)?)));
        let is_well = is_rebooted || done.is_some_and(|(_, (_, helps))| helps);
        if let Some((order, (action, _))) = done {
            self.done.lock().unwrap().push((order.operation_id.clone(), format!("{action:?}")));
        }
        if is_well {
            *sick = None;
        }
        is_rebooted
    }

    /// Pods that were evicted end.
    async fn end_workloads(&self) -> Result<()> {
        let ended = workload::round(&self.client).await?;
        self.done.lock().unwrap().extend(ended.into_iter().map(|pod| (pod, "Evicted".to_owned())));
        Ok(())
    }

    /// Pods of `DaemonSet`s come and go.
    async fn run_daemons(&self) -> Result<()> {
        let is_sick = |node: &str| self.nodes.lock().unwrap().get(node).is_some_and(Option::is_some);
        for (node, pod) in daemons::round(&self.client, is_sick).await? {
            if let Some(sick) = self.nodes.lock().unwrap().get_mut(&node) {
                self.done.lock().unwrap().push((pod, "DeletePod".to_owned()));
                *sick = None;
            }
        }
        Ok(())
    }
}

/// When a remediation was opened. Where the first word about it was lost, its object tells, in whole seconds: it was within that one.
fn opened(told: Timestamp) -> Timestamp {
    if told.subsec_nanosecond() == 0 { told.saturating_add(Duration::from_secs(1)).unwrap_or(told) } else { told }
}

/// A fault as the probe reports it. A shim that is left over has a process; others concern the node as a whole.
fn fault(node: &str, sick: Sickness) -> Value {
    let (kind, shim) = (sick.fault.as_str(), "0".repeat(64));
    let mut fault = json!({"id": format!("{}-{node}", kind.to_lowercase()), "type": kind, "severity": "High", "state": "Confirmed",
        "subject": {"kind": "Host"}, "message": "it is so", "firstSeen": sick.since, "durationSeconds": 90, "confirmations": 3,
        "checkAgeSeconds": 0});
    if sick.fault == FaultType::LeakedShim {
        fault["severity"] = json!("Medium");
        fault["subject"] = json!({"kind": "Shim", "id": shim});
        let process = json!({"role": "Shim", "pid": 4711, "startTicks": 1, "state": "T", "command": "containerd-shim"});
        fault["target"] = json!({"process": process, "sandboxId": shim});
    }
    fault
}
