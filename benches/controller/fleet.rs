//! The probes of simulated nodes, played: they report, send heartbeats, and carry out what they are told to.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use nrh::api::NodeRuntimeHealth;
use nrh::core::condition::{ConditionType, looked_at};
use serde_json::{Value, json};

/// Time between two heartbeats of a probe. Real ones that suspect something or are being healed promise another every quarter of a
/// minute: all of 5,000 would be more than an API server on two cores takes.
const BEAT: Duration = Duration::from_mins(5);
/// How often the heartbeats that are due are sent.
const TICK: Duration = Duration::from_millis(500);
/// Reports in flight: more brings nothing on two cores.
const PARALLEL: usize = 32;

/// What is done about a fault, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// A Job: the kubelet starts pods.
    Job,
    /// An order to the probe: it does not.
    Order,
    /// The API server alone is asked.
    Cordon,
}

/// A fault as a probe sees it.
#[derive(Clone, Debug)]
pub struct Sick {
    executor: Executor,
    state: &'static str,
    round: u64,
    since: Timestamp,
}

#[derive(Debug, Default)]
struct Probe {
    /// A probe writes one report after another: none comes after a later one.
    writes: Arc<tokio::sync::Mutex<()>>,
    sequence: u64,
    sick: Option<Sick>,
    outcome: Option<Value>,
}

/// All probes.
#[derive(Debug, Default)]
pub struct Fleet {
    probes: Mutex<BTreeMap<String, Probe>>,
    /// Operations that were carried out.
    done: Mutex<BTreeSet<String>>,
    cursor: Mutex<(usize, usize, u64)>,
}

impl Fleet {
    /// Takes these nodes in.
    pub fn join(&self, names: impl IntoIterator<Item = String>) {
        let mut probes = self.probes();
        for name in names {
            probes.entry(name).or_default();
        }
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        self.probes().keys().cloned().collect()
    }

    /// The next `count` nodes, in turn: none comes again before all others have.
    pub fn take(&self, count: usize) -> Vec<String> {
        let names = self.names();
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let count = count.min(names.len());
        let first = cursor.1;
        cursor.1 += count;
        (first..first + count).filter_map(|at| names.get(at % names.len()).cloned()).collect()
    }

    /// These nodes have a fault from now on, which their next report tells: another one than ever before.
    pub fn sicken(&self, names: &[String], executor: Executor, state: &'static str) {
        let round = {
            let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
            cursor.2 += 1;
            cursor.2
        };
        let mut probes = self.probes();
        for name in names {
            let sick = Sick { executor, state, round, since: Timestamp::now() };
            probes.entry(name.clone()).or_default().sick = Some(sick);
        }
    }

    /// Nothing is wrong there any more.
    pub fn heal(&self, names: &[String]) {
        let mut probes = self.probes();
        for name in names {
            if let Some(probe) = probes.get_mut(name) {
                probe.sick = None;
            }
        }
    }

    /// One report.
    pub async fn report(&self, client: &Client, node: &str) -> Result<()> {
        let api: Api<NodeRuntimeHealth> = Api::all(client.clone());
        let writes = self.probes().entry(node.to_owned()).or_default().writes.clone();
        let _writes = writes.lock().await;
        let status = self.status(node);
        api.patch_status(node, &PatchParams::apply("nrh-probe").force(), &Patch::Apply(&status)).await?;
        Ok(())
    }

    /// A report of each of these; how long they took.
    pub async fn report_all(&self, client: &Client, names: &[String]) -> Result<Duration> {
        let begun = Instant::now();
        let reports = stream::iter(names).map(Ok).try_for_each_concurrent(PARALLEL, |name| self.report(client, name));
        reports.await?;
        Ok(begun.elapsed())
    }

    /// Heartbeats in their rhythm, for as long as it is polled.
    pub async fn beats(&self, client: &Client) -> Result<Infallible> {
        let (begun, mut sent) = (Instant::now(), 0);
        loop {
            tokio::time::sleep(TICK).await;
            let names = self.names();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of nodes")]
            #[expect(clippy::cast_precision_loss, reason = "a count of nodes")]
            let due = (begun.elapsed().as_secs_f64() / BEAT.as_secs_f64() * names.len() as f64) as usize;
            let now: Vec<String> = {
                let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
                let first = cursor.0;
                cursor.0 += due - sent;
                (first..cursor.0).filter_map(|at| names.get(at % names.len()).cloned()).collect()
            };
            sent = due;
            self.report_all(client, &now).await?;
        }
    }

    /// The node has carried out this operation, and is well again; whether it has not done so before.
    pub fn carry_out(&self, node: &str, operation: &str) -> Option<Value> {
        if !self.done.lock().unwrap_or_else(PoisonError::into_inner).insert(operation.to_owned()) {
            return None;
        }
        let outcome = json!({"operationId": operation, "state": "Done", "reason": "Executed", "message": "removed",
            "at": Timestamp::now()});
        if let Some(probe) = self.probes().get_mut(node) {
            probe.sick = None;
            probe.outcome = Some(outcome.clone());
        }
        Some(outcome)
    }

    fn probes(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Probe>> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the probe of a node would write now, in the size that real ones have.
    fn status(&self, node: &str) -> Value {
        let mut probes = self.probes();
        let probe = probes.entry(node.to_owned()).or_default();
        probe.sequence += 1;
        let now = Timestamp::now();
        let confirmed = probe.sick.as_ref().is_some_and(|sick| sick.state == "Confirmed");
        let starts_pods = probe.sick.as_ref().is_none_or(|sick| sick.executor != Executor::Order);
        let conditions: Vec<Value> = looked_at()
            .map(|kind| {
                let is_bad = match kind {
                    ConditionType::SandboxesConsistent => confirmed,
                    ConditionType::KubeletReady => !starts_pods,
                    _ => false,
                };
                let (status, reason) = if is_bad { ("False", "FaultConfirmed") } else { ("True", "Clean") };
                json!({"type": kind.as_str(), "status": status, "reason": reason,
                    "message": "what was looked at is as it should be", "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        let executors = ["runtime", "lists", "status", "tasks", "processes", "kubelet", "host", "disks"]
            .map(|name| json!({"name": name, "state": "Ok", "ageSeconds": 1}));
        let mut status = json!({
            "probe": {"version": "0.1.0", "mode": "Pod", "bootId": "5ab1a3f2-7a0c-4f6e-9b43-2f5c5d1e9a10",
                "sequence": probe.sequence, "heartbeatAt": now, "intervalSeconds": BEAT.as_secs(), "actionsEnabled": true, "collectors": executors},
            "runtime": {"version": "containerd://1.6.20", "endpoint": "/run/containerd/containerd.sock", "sandboxes": 30, "containers": 60},
            "kubelet": {"started": starts_pods},
            "faults": probe.sick.iter().map(|sick| fault(node, sick)).collect::<Vec<_>>(),
            "conditions": conditions,
        });
        if let (Some(outcome), Some(fields)) = (&probe.outcome, status.as_object_mut()) {
            fields.insert("commandResult".to_owned(), outcome.clone());
        }
        json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth", "status": status})
    }
}

fn fault(node: &str, sick: &Sick) -> Value {
    let id = format!("{:064x}", sick.round);
    let process = json!({"role": "Shim", "pid": 4711, "startTicks": 1, "state": "T", "command": "containerd-shim"});
    let (kind, subject) = match sick.executor {
        // Something else than what is healed: its rule cordons.
        Executor::Cordon => ("OrphanContainer", json!({"kind": "Container", "id": id})),
        Executor::Job | Executor::Order => ("LeakedShim", json!({"kind": "Shim", "id": id})),
    };
    let target = if sick.executor == Executor::Cordon {
        json!({"containerId": id, "sandboxId": id})
    } else {
        json!({"process": process, "sandboxId": id})
    };
    json!({"id": format!("{}-{node}-{}", kind.to_lowercase(), sick.round), "type": kind, "severity": "Medium", "state": sick.state,
        "subject": subject, "target": target, "message": "something is left over", "firstSeen": sick.since, "durationSeconds": 90,
        "confirmations": 3, "checkAgeSeconds": 0})
}

/// A fleet that several tasks share.
pub type Shared = Arc<Fleet>;
