//! The kinds of remediations whose leader is killed at each of their writes: what is wrong with the node, what is done about it, and
//! what is seen of that from outside.

use std::time::Duration;

use nrh::core::action::ActionType;
use nrh::core::drain::QUIET_APART;
use nrh::core::fault::FaultType;
use nrh::core::plan::PlanSettings;
use serde_json::{Value, json};

use crate::interruptions::fleet::Kubelet;
use crate::remediators::{SELF_NODE, template};

/// By what a leader is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A process of the shipped program, which ends by SIGKILL.
    Process,
    /// A task of the test, which is given up: in less time.
    Task,
}

/// Which test a kind of remediation belongs to: each has a bed of its own, and they may run beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What resolves by itself.
    Killed,
    /// A drain that is done has been quiet for a while.
    Drained,
    /// Others have a hand in it, or another executor.
    Handed,
}

#[derive(Debug)]
pub struct Case {
    /// Name of its policy, which is for nodes with that value of the label `case`.
    pub name: &'static str,
    pub title: &'static str,
    pub part: Part,
    pub fault: FaultType,
    steps: fn() -> Value,
    /// What is done on the node, in that order, as its kubelet and its agent know it.
    pub acts: &'static [&'static str],
    /// What of that is in vain.
    pub fails: &'static [ActionType],
    /// The controller's writes to others' objects by the audit log, and how often there is each of them.
    pub written: &'static [(&'static str, usize)],
    /// Kinds of writes at which the leader is to be killed, beside those of every remediation.
    pub points: &'static [&'static str],
    /// If its kubelet starts no pods, its agent is commanded.
    pub kubelet: Kubelet,
    pub by: By,
    /// Whether another node of the policy is sick by the time that the next leader begins: there is room for one at a time.
    pub has_rival: bool,
    /// The action that a person starts; by itself nothing begins.
    pub manual: Option<&'static str>,
    /// The controller's times, from those that are shipped.
    pub settings: fn(PlanSettings) -> PlanSettings,
}

/// Writes that every remediation takes: its slot, its account, and that it holds nothing any more.
const OF_ALL: [&str; 3] = ["PATCH configmaps", "PATCH noderemediations/status", "PATCH noderemediations"];
/// What the controller writes that is of one node and no account of it.
pub const ACTS: [&str; 7] = [
    "create jobs.batch",
    "create pods/eviction",
    "delete pods",
    "patch nodes",
    "create selfnoderemediations.self-node-remediation.medik8s.io",
    "patch selfnoderemediations.self-node-remediation.medik8s.io",
    "delete selfnoderemediations.self-node-remediation.medik8s.io",
];

const ORDERED: &[&str] = &["command given", "command withdrawn"];

/// What most of them are.
const COMMON: Case = Case {
    name: "",
    title: "",
    part: Part::Killed,
    fault: FaultType::LeakedShim,
    steps: || json!([cleanup()]),
    acts: &["Job"],
    fails: &[],
    written: &[],
    points: &[],
    kubelet: Kubelet::Works,
    by: By::Task,
    has_rival: false,
    manual: None,
    settings: |shipped| shipped,
};

pub const CASES: [Case; 9] = [
    Case {
        name: "job",
        title: "Taint, Cordon, CleanupOrphans by a Job",
        steps: || json!([{"action": "Taint", "taint": {"effect": "NoSchedule"}}, {"action": "Cordon"}, cleanup()]),
        // Tainted, cordoned, and both taken back.
        written: &[("create jobs.batch", 1), ("patch nodes", 4)],
        points: &["POST jobs", "PATCH nodes"],
        by: By::Process,
        has_rival: true,
        ..COMMON
    },
    Case {
        name: "agent",
        title: "CleanupOrphans by command",
        acts: &["CleanupOrphans"],
        points: ORDERED,
        kubelet: Kubelet::NotReady,
        by: By::Process,
        ..COMMON
    },
    Case {
        name: "kubelet",
        title: "RestartKubelet, Cordon, Reboot by command",
        fault: FaultType::KubeletDown,
        steps: || {
            let reboot = json!({"approval": "Automatic", "reboot": {"requireDrain": false}});
            json!([step("RestartKubelet", &json!({})), {"action": "Cordon"}, step("Reboot", &reboot), {"action": "Notify"}])
        },
        acts: &["RestartKubelet", "Reboot"],
        fails: &[ActionType::RestartKubelet],
        written: &[("patch nodes", 2)],
        points: &["command given", "command withdrawn", "PATCH nodes"],
        ..COMMON
    },
    Case {
        name: "runtime",
        title: "RestartRuntime, MarkForReboot by command",
        fault: FaultType::RuntimeUnreachable,
        steps: || {
            let mark = step("MarkForReboot", &json!({"approval": "Automatic", "timeout": "15m"}));
            json!([step("RestartRuntime", &json!({})), mark, {"action": "Notify"}])
        },
        acts: &["RestartRuntime", "MarkForReboot"],
        fails: &[ActionType::RestartRuntime],
        points: ORDERED,
        ..COMMON
    },
    Case {
        name: "pod",
        title: "DeletePod",
        fault: FaultType::StuckDaemonSetPod,
        steps: || json!([step("DeletePod", &json!({"maxAttempts": 3})), {"action": "Notify"}]),
        acts: &["DeletePod"],
        written: &[("delete pods", 1)],
        points: &["DELETE pods"],
        ..COMMON
    },
    Case {
        name: "drain",
        title: "Cordon, Drain, CleanupOrphans by a Job",
        part: Part::Drained,
        steps: || json!([{"action": "Cordon"}, step("Drain", &json!({})), cleanup()]),
        acts: &["Evicted", "Job"],
        // Cordoned, and that taken back.
        written: &[("create jobs.batch", 1), ("create pods/eviction", 1), ("patch nodes", 2)],
        points: &["POST pods/eviction", "POST jobs", "PATCH nodes"],
        // Rounds of a drain are ten seconds apart as shipped; they may be no nearer to each other than this for two quiet ones to count.
        settings: |shipped| PlanSettings { retry: QUIET_APART, ..shipped },
        ..COMMON
    },
    Case {
        name: "hand-off",
        title: "HandOff that is not done in time, CleanupOrphans by a Job",
        part: Part::Handed,
        steps: || {
            let remediator = json!({"remediationTemplate": template(SELF_NODE, "SelfNodeRemediationTemplate")});
            json!([step("HandOff", &json!({"handOff": remediator, "timeout": "2s"})), cleanup()])
        },
        // It is told that its time is over.
        written: &[
            ("create jobs.batch", 1),
            ("create selfnoderemediations.self-node-remediation.medik8s.io", 1),
            ("patch selfnoderemediations.self-node-remediation.medik8s.io", 1),
            ("delete selfnoderemediations.self-node-remediation.medik8s.io", 1),
        ],
        points: &[
            "POST selfnoderemediations",
            "PATCH selfnoderemediations",
            "DELETE selfnoderemediations",
            "POST jobs",
        ],
        ..COMMON
    },
    Case {
        name: "collectors",
        title: "CleanupOrphans by a Job that does not start, then by command",
        part: Part::Handed,
        acts: &["CleanupOrphans"],
        written: &[("create jobs.batch", 1)],
        points: &["POST jobs", "DELETE jobs", "command given", "command withdrawn"],
        kubelet: Kubelet::StartsNothing,
        settings: |shipped| PlanSettings { job_start: Duration::from_secs(2), ..shipped },
        ..COMMON
    },
    Case {
        name: "by-hand",
        title: "CleanupOrphans by a Job, started by a person",
        part: Part::Handed,
        written: &[("create jobs.batch", 1)],
        points: &["POST jobs"],
        manual: Some("CleanupOrphans"),
        ..COMMON
    },
];

fn step(action: &str, more: &Value) -> Value {
    let mut step =
        json!({"action": action, "maxAttempts": 1, "cooldown": "1s", "timeout": "5m", "verify": {"stableFor": "1s"}});
    step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    step
}

fn cleanup() -> Value {
    step("CleanupOrphans", &json!({"maxAttempts": 3}))
}

impl Case {
    pub fn policy(&self) -> Value {
        let mut matched = json!({"faults": [self.fault]});
        if self.manual.is_some() {
            // What a person starts does not wait for this, and the engine does.
            matched["minDuration"] = json!("1h");
        }
        json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy", "metadata": {"name": self.name}, "spec": {
            "mode": "Enforce", "nodeSelector": {"matchLabels": {"case": self.name}},
            "limits": {"maxUnhealthy": "100%", "maxInFlight": 1, "storm": {"minNodes": 100_000}},
            "rules": [{"name": "rule", "match": matched, "steps": (self.steps)()}]}})
    }

    pub fn drains(&self) -> bool {
        self.acts.contains(&"Evicted")
    }

    /// Whether a remediator has the node for a while.
    pub fn hands_off(&self) -> bool {
        self.written.iter().any(|(kind, _)| kind.starts_with("create selfnoderemediations"))
    }

    /// Kinds of writes at each of which the leader is to be killed.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + use<> {
        // Of what a person starts the object is there.
        let opened = self.manual.is_none().then_some("POST noderemediations");
        OF_ALL.into_iter().chain(opened).chain(self.points.iter().copied())
    }
}
