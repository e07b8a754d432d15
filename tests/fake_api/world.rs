//! A small cluster on the in-memory server: nodes whose probes report, and a kubelet that runs our Jobs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use nrh::cli::ControllerArgs;
use nrh::controller::calls::Calls;
use nrh::controller::clock::Clock;
use nrh::controller::http::Served;
use nrh::controller::run::{Controller, Ended};
use nrh::core::command::{Outcome, OutcomeReason, OutcomeState};
use nrh_simulate::world::{InjectedFault, WorldNode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{FakeApi, Fault};
use crate::simulated_node;

const START: &str = "2025-06-01T12:00:00Z";

/// Kinds whose writes do nothing to a node.
const ACCOUNT: [&str; 6] =
    ["leases", "events", "noderuntimehealths", "nodecommands", "remediationpolicies", "selfsubjectaccessreviews"];

#[derive(Clone)]
pub struct World {
    pub api: FakeApi,
    began: Instant,
    kubelet_runs: Arc<Mutex<bool>>,
    /// How far the wall clock is ahead of monotonic time.
    asleep: Arc<Mutex<Duration>>,
}

impl World {
    /// Nodes `w1` to `wN`, all well, each with a probe that reports every 15 s and at once when asked.
    pub fn new(nodes: usize) -> Self {
        let world = Self {
            api: FakeApi::new(),
            began: Instant::now(),
            kubelet_runs: Arc::new(Mutex::new(true)),
            asleep: Arc::default(),
        };
        for i in 1..=nodes {
            world.add_node(&format!("w{i}"));
        }
        world
    }

    pub fn add_node(&self, name: &str) {
        self.api.put(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {},
            "status": {"nodeInfo": {"kubeletVersion": "v1.36.3", "bootID": "b"},
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": START}]}}));
    }

    pub fn wall(&self) -> Timestamp {
        let start: Timestamp = START.parse().unwrap();
        let passed = self.began.elapsed() + *self.asleep.lock().unwrap();
        start + jiff::SignedDuration::try_from(passed).unwrap()
    }

    /// The controllers' machines were suspended for so long.
    pub fn suspend(&self, time: Duration) {
        *self.asleep.lock().unwrap() += time;
    }

    fn clock(&self) -> Clock {
        let world = self.clone();
        Clock::of(move || world.wall())
    }

    pub fn policy(&self, name: &str, mode: &str, steps: &Value) {
        self.api.put(json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy",
            "metadata": {"name": name},
            "spec": {"mode": mode, "limits": {"maxUnhealthy": "50%", "maxInFlight": 5},
                "rules": [{"name": "hung", "match": {"faults": ["HungContainer"]}, "steps": steps}]}}));
    }

    /// Release by SIGCONT, tried twice.
    pub fn release() -> Value {
        json!([{"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGCONT"}, "maxAttempts": 2, "timeout": "2m"}])
    }

    /// The same, tried once, and then an end by SIGKILL, whatever pod runs.
    pub fn release_then_kill() -> Value {
        let harsher = json!({"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGKILL", "allowRunningPods": true}});
        let mut steps = Self::release();
        steps[0]["maxAttempts"] = json!(1);
        steps.as_array_mut().unwrap().push(harsher);
        steps
    }

    /// So many nodes that are well, whose probes report, under a policy that takes these steps.
    pub fn probing(nodes: usize, steps: &Value) -> Self {
        let world = Self::new(nodes);
        world.policy("hung", "Enforce", steps);
        for i in 1..=nodes {
            world.probe(&format!("w{i}"));
        }
        world
    }

    /// Three of them, whose kubelets run Jobs, under a policy that releases what hangs.
    pub fn healthy() -> Self {
        let world = Self::probing(3, &Self::release());
        world.kubelets();
        world
    }

    pub fn controller(&self, name: &str) -> Replica {
        self.replica(name, self.api.client(), "")
    }

    /// Starts a replica, and then makes the node sick.
    pub fn controller_of_sick(&self, name: &str, node: &str) -> Replica {
        let replica = self.controller(name);
        self.set_sick(node, true);
        replica
    }

    /// Starts a replica that leads whatever others do.
    pub fn usurper(&self, name: &str) -> Replica {
        self.replica(name, self.api.client_with_lease(Some(name)), "")
    }

    /// Starts a replica that mirrors these conditions to Nodes.
    pub fn mirroring(&self, name: &str, conditions: &str) -> Replica {
        self.replica(name, self.api.client(), conditions)
    }

    fn replica(&self, name: &str, client: kube::Client, conditions: &str) -> Replica {
        let args = ControllerArgs {
            image: Some("nrh:test".into()),
            listen: "127.0.0.1:0".parse().unwrap(),
            health_listen: "127.0.0.1:0".parse().unwrap(),
            metrics_auth: true,
            metrics_audience: None,
            max_in_flight: 10,
            node_conditions: conditions.parse().unwrap(),
            identity: name.into(),
        };
        let controller = Controller::new(Calls::new(client.clone(), client), self.clock(), &args);
        let (end, served) = (CancellationToken::new(), controller.served());
        Replica { served, task: tokio::spawn(controller.run(end.clone())), end }
    }

    pub fn probe(&self, node: &str) {
        let (world, node) = (self.clone(), node.to_owned());
        tokio::spawn(async move {
            let (mut sequence, mut answered, mut last) = (0_u64, 0_u64, None::<Instant>);
            loop {
                sleep(Duration::from_millis(500)).await;
                if world.api.field("noderuntimehealths", &node, "/metadata/name").is_none() {
                    continue;
                }
                let asked = world.api.field("nodecommands", &node, "/spec/checkSequence");
                let asked = asked.and_then(|asked| asked.as_u64()).unwrap_or(0);
                let due = last.is_none_or(|at| at.elapsed() >= Duration::from_secs(15));
                if due || asked != answered {
                    (answered, last) = (asked, Some(Instant::now()));
                    sequence += 1;
                    world.report(&node, sequence);
                }
            }
        });
    }

    /// One report: a heartbeat with the faults that the node has (an annotation of the Node tells).
    pub fn report(&self, node: &str, sequence: u64) {
        let mut probe = WorldNode::new(node);
        if self.sick(node) {
            let fault = serde_json::from_value(hung()).unwrap();
            probe.sick.push(InjectedFault { fault, cleared_by: BTreeSet::new() });
        }
        probe.send();
        let heartbeat = probe.report.heartbeat.as_mut().unwrap();
        heartbeat.sequence = sequence;
        heartbeat.boot_id = self.annotation(node, "test/boot").unwrap_or_else(|| "b".into());
        let report = simulated_node::report(&probe, self.wall());
        self.api.change("noderuntimehealths", node, |object| {
            let status = &mut object["status"];
            let mut own = report["status"]["conditions"].as_array().cloned().unwrap();
            // The controller has a word in that, too, and this server does not know whose a field is.
            own.retain(|one| one["type"] != "RestartSafe");
            let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            conditions.retain(|other| own.iter().all(|one| one["type"] != other["type"]));
            for (key, value) in report["status"].as_object().unwrap() {
                status[key] = value.clone();
            }
            status["conditions"] = conditions.into_iter().chain(own).collect();
            status["kubelet"]["startedAt"] = json!(self.annotation(node, "test/began").unwrap_or_else(|| START.into()));
        });
    }

    fn sick(&self, node: &str) -> bool {
        self.annotation(node, "test/sick").as_deref() == Some("yes")
    }

    /// What a test has written on a Node.
    fn annotation(&self, node: &str, key: &str) -> Option<String> {
        let annotations = self.api.field("nodes", node, "/metadata/annotations")?;
        Some(annotations[key].as_str()?.to_owned())
    }

    pub fn set_sick(&self, node: &str, sick: bool) {
        self.api.change("nodes", node, |node| {
            node["metadata"]["annotations"]["test/sick"] = json!(if sick { "yes" } else { "no" });
        });
    }

    /// The probe of a node is in this boot, and, where the kubelet says so too, the Node shows it.
    pub fn set_boot(&self, node: &str, boot: &str, kubelet_says_so: bool) {
        self.api.change("nodes", node, |node| {
            node["metadata"]["annotations"]["test/boot"] = json!(boot);
            if kubelet_says_so {
                node["status"]["nodeInfo"]["bootID"] = json!(boot);
            }
        });
    }

    pub fn restart_kubelet(&self, node: &str) {
        let now = self.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        self.api.change("nodes", node, |node| node["metadata"]["annotations"]["test/began"] = json!(now));
    }

    /// The kubelet of a node writes its status, which is Ready.
    pub fn write_node_status(&self, node: &str) {
        let now = self.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        self.api.change("nodes", node, |node| node["status"]["conditions"][0]["lastHeartbeatTime"] = json!(now));
    }

    pub fn set_kubelet(&self, runs: bool) {
        *self.kubelet_runs.lock().unwrap() = runs;
    }

    /// Starts the kubelets: each Job is run once, and makes its node well.
    pub fn kubelets(&self) {
        self.kubelets_that(Self::run_job);
    }

    /// Starts kubelets that do this with each Job, once.
    pub fn kubelets_that(&self, run: fn(&Self, Value)) {
        let world = self.clone();
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_secs(1)).await;
                if !*world.kubelet_runs.lock().unwrap() {
                    continue;
                }
                for job in world.api.list("jobs").into_iter().filter(|job| job["status"].is_null()) {
                    run(&world, job);
                }
            }
        });
    }

    fn run_job(&self, job: Value) {
        let operation_id = job["metadata"]["name"].as_str().unwrap().to_owned();
        let (state, reason) = (OutcomeState::Done, OutcomeReason::Executed);
        let outcome = Outcome { operation_id, state, reason, message: "released".to_owned(), at: self.wall() };
        self.set_sick(job["spec"]["template"]["spec"]["nodeName"].as_str().unwrap(), false);
        let complete = json!({"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]});
        self.end_job(job, &simulated_node::ended(&outcome), complete);
    }

    /// The pod of a Job ends with this status, and the Job with that.
    pub fn end_job(&self, mut job: Value, pod: &Value, status: Value) {
        let id = job["metadata"]["name"].as_str().unwrap();
        self.api.put(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{id}-abcde"), "namespace": "nrh-node", "labels": job["metadata"]["labels"],
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": id, "uid": job["metadata"]["uid"], "controller": true}]},
            "spec": {"nodeName": job["spec"]["template"]["spec"]["nodeName"], "containers": []}, "status": pod}));
        job["status"] = status;
        self.api.put(job);
    }

    pub async fn all_report(&self) {
        let nodes: Vec<Value> = self.api.list("nodes").iter().map(|node| node["metadata"]["name"].clone()).collect();
        let health =
            |node: &Value| self.api.field("noderuntimehealths", node.as_str().unwrap(), "/status/summary/health");
        let is_well = |node: &Value| health(node).is_some_and(|health| health == "Healthy");
        self.until("all have reported", || nodes.iter().all(is_well)).await;
    }

    /// Waits until the only remediation has succeeded.
    pub async fn healed(&self) {
        self.until("healed", || self.phases() == ["Succeeded"]).await;
    }

    /// Waits until something is so, at most some minutes of the world's time.
    pub async fn until(&self, what: &str, is: impl Fn() -> bool) {
        let began = Instant::now();
        while !is() {
            assert!(
                began.elapsed() < Duration::from_mins(15),
                "waited in vain until {what}; writes: {:#?}; remediations: {:#?}; reports: {:#?}",
                self.api.writes(),
                self.api.list("noderemediations"),
                self.api.list("noderuntimehealths").iter().map(|o| o["status"].clone()).collect::<Vec<_>>()
            );
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// What a node is told to do; null where it has no NodeCommand.
    pub fn command_spec(&self, node: &str) -> Value {
        self.api.field("nodecommands", node, "/spec").unwrap_or_default()
    }

    pub fn command(&self, node: &str) -> Value {
        self.command_spec(node)["command"].clone()
    }

    pub fn status(&self, node: &str) -> Value {
        self.api.field("noderuntimehealths", node, "/status").unwrap_or_default()
    }

    pub fn node(&self, name: &str) -> Value {
        self.api.get("nodes", name).unwrap_or_default()
    }

    pub fn is_cordoned(&self, node: &str) -> bool {
        self.api.field("nodes", node, "/spec/unschedulable").is_some_and(|value| value == true)
    }

    pub fn remediation(&self) -> Value {
        self.api.list("noderemediations").first().cloned().unwrap_or_default()
    }

    pub fn change_remediation(&self, change: impl FnOnce(&mut Value)) {
        let name = self.remediation()["metadata"]["name"].as_str().unwrap().to_owned();
        self.api.change("noderemediations", &name, change);
    }

    /// Whether no remediation keeps its object by a finalizer.
    pub fn all_are_freed(&self) -> bool {
        let is_freed = |one: &Value| one["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        let all = self.api.list("noderemediations");
        !all.is_empty() && all.iter().all(is_freed)
    }

    pub fn step(&self, place: usize) -> Value {
        self.remediation()["status"]["attempts"][place].clone()
    }

    pub fn message(&self, place: usize) -> String {
        self.step(place)["message"].as_str().unwrap_or_default().to_owned()
    }

    /// A line for each thing that is not done on a node: why.
    pub fn blocked(&self, node: &str) -> String {
        let lines = self.api.field("noderuntimehealths", node, "/status/remediation/blocked").unwrap_or_default();
        lines.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
    }

    /// The condition of this type that an object shows, or null.
    pub fn condition(&self, plural: &str, name: &str, kind: &str) -> Value {
        let conditions = self.api.field(plural, name, "/status/conditions").unwrap_or_default();
        conditions.as_array().into_iter().flatten().find(|one| one["type"] == kind).cloned().unwrap_or_default()
    }

    /// What `Ready` of a policy says.
    pub fn ready_of(&self, policy: &str) -> Value {
        self.condition("remediationpolicies", policy, "Ready")
    }

    pub fn has_no_slots(&self) -> bool {
        self.slots() == "{\"slots\":{}}"
    }

    pub fn slots(&self) -> String {
        let ledger = self.api.field("configmaps", "nrh-ledger", "/data/ledger.json").unwrap_or_default();
        ledger.as_str().unwrap_or_default().to_owned()
    }

    /// From so many writes on that count, the answer is lost and nothing goes through any more: says whether it came to that.
    pub fn cut_off_after(&self, writes: usize) -> impl Fn() -> bool + use<> {
        let hit = Arc::new(Mutex::new((0_usize, false)));
        let seen = Arc::clone(&hit);
        self.api.hook(move |call| {
            let mut seen = seen.lock().unwrap();
            let counts = call.is_write() && !ACCOUNT.contains(&call.target.plural.as_str());
            if seen.1 {
                return counts.then_some(Fault::Stall);
            }
            if counts {
                seen.0 += 1;
                seen.1 = seen.0 > writes;
            }
            seen.1.then_some(Fault::DoneButSilent)
        });
        move || hit.lock().unwrap().1
    }

    pub fn phases(&self) -> Vec<String> {
        let remediations = self.api.list("noderemediations");
        remediations.iter().map(|e| e["status"]["phase"].as_str().unwrap_or("none").to_owned()).collect()
    }
}

/// In one world after another a leader dies after its first write, its second, and so on, and the next leader finishes. There are at
/// least so many writes to die at.
pub async fn die_at_each_write(
    make: impl Fn() -> World,
    is_done: impl Fn(&World) -> bool,
    least: usize,
    check: impl AsyncFn(&World, usize),
) {
    for writes in 0..60 {
        let world = make();
        let is_cut_off = world.cut_off_after(writes);
        let first = world.controller("a");
        world.until("cut off or done", || is_cut_off() || is_done(&world)).await;
        let has_died = is_cut_off();
        first.crash().await;
        world.api.unhook();
        let _second = world.controller("b");
        world.until(&format!("done after a death at write {writes}"), || is_done(&world)).await;
        check(&world, writes).await;
        if !has_died {
            assert!(writes >= least, "{writes} writes");
            return;
        }
    }
    panic!("a healing takes fewer writes");
}

/// A confirmed hung container: the same occurrence for as long as it lasts, first seen at the world's start.
fn hung() -> Value {
    json!({"id": "hungcontainer-1", "type": "HungContainer", "severity": "High", "state": "Confirmed",
        "subject": {"kind": "Container", "name": "log", "pod": {"namespace": "d", "name": "log-x", "uid": "pod-1"}},
        "target": {"process": {"role": "Shim", "pid": 77, "startTicks": 5, "state": "T", "command": "shim"}},
        "message": "does not answer", "firstSeen": START, "durationSeconds": 60, "confirmations": 3, "checkAgeSeconds": 1})
}

/// A running controller, which dies when it is dropped.
pub struct Replica {
    pub served: Served,
    pub task: JoinHandle<Result<(), Ended>>,
    pub end: CancellationToken,
}

impl Replica {
    /// Dies without a word, as in a crash; it does nothing more from then on.
    pub async fn crash(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    pub async fn stop(mut self) -> Result<(), Ended> {
        self.end.cancel();
        (&mut self.task).await.unwrap()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}
