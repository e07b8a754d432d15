//! The kinds of episodes whose leader is killed at each of their writes: what is wrong with the node, what is done about it, and
//! what is seen of that from outside.

use nrh::core::drain::QUIET_APART;
use nrh::core::fault::FaultType;
use nrh::core::order::NodeAction;
use nrh::core::plan::PlanSettings;
use serde_json::{Value, json};

/// By what a leader is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A process of the shipped program, which ends by SIGKILL.
    Process,
    /// A task of the test, which is given up: in less time.
    Task,
}

/// One kind of episode.
#[derive(Debug)]
pub struct Ladder {
    /// Name of its policy, which is for nodes with that value of the label `ladder`.
    pub name: &'static str,
    pub fault: FaultType,
    /// What is done on the node, in that order, as its kubelet and its agent know it.
    pub acts: &'static [&'static str],
    /// What of that is in vain.
    pub fails: &'static [NodeAction],
    /// The controller's writes to others' objects by the audit log, and how often there is each of them.
    pub written: &'static [(&'static str, usize)],
    /// Kinds of writes at which the leader is to be killed, beside those of every episode.
    pub points: &'static [&'static str],
    /// Whether the node's kubelet starts pods; if not, its agent is ordered.
    pub is_ready: bool,
    pub by: By,
    /// Whether another node of the policy is sick by the time that the next leader begins: there is room for one at a time.
    pub has_rival: bool,
}

/// Writes that every episode takes: its slot, itself, its account, and that it holds nothing any more.
pub const OF_ALL: [&str; 4] =
    ["PATCH configmaps", "POST noderemediations", "PATCH noderemediations/status", "PATCH noderemediations"];

const ORDERED: &[&str] = &["order given", "order withdrawn"];

/// All of them.
pub const LADDERS: [Ladder; 6] = [
    Ladder {
        name: "job",
        fault: FaultType::LeakedShim,
        acts: &["Job"],
        fails: &[],
        // Tainted, cordoned, and both taken back.
        written: &[("create jobs.batch", 1), ("patch nodes", 4)],
        points: &["POST jobs", "PATCH nodes"],
        is_ready: true,
        by: By::Process,
        has_rival: true,
    },
    Ladder {
        name: "agent",
        fault: FaultType::LeakedShim,
        acts: &["CleanupOrphans"],
        fails: &[],
        written: &[],
        points: ORDERED,
        is_ready: false,
        by: By::Process,
        has_rival: false,
    },
    Ladder {
        name: "drain",
        fault: FaultType::LeakedShim,
        acts: &["Evicted", "Job"],
        fails: &[],
        // Cordoned, and that taken back.
        written: &[("create jobs.batch", 1), ("create pods/eviction", 1), ("patch nodes", 2)],
        points: &["POST pods/eviction", "POST jobs", "PATCH nodes"],
        is_ready: true,
        by: By::Task,
        has_rival: false,
    },
    Ladder {
        name: "kubelet",
        fault: FaultType::KubeletDown,
        acts: &["RestartKubelet", "Reboot"],
        fails: &[NodeAction::RestartKubelet],
        written: &[("patch nodes", 2)],
        points: &["order given", "order withdrawn", "PATCH nodes"],
        is_ready: true,
        by: By::Task,
        has_rival: false,
    },
    Ladder {
        name: "runtime",
        fault: FaultType::RuntimeUnreachable,
        acts: &["RestartRuntime", "MarkForReboot"],
        fails: &[NodeAction::RestartRuntime],
        written: &[],
        points: ORDERED,
        is_ready: true,
        by: By::Task,
        has_rival: false,
    },
    Ladder {
        name: "pod",
        fault: FaultType::StuckDaemonSetPod,
        acts: &["DeletePod"],
        fails: &[],
        written: &[("delete pods", 1)],
        points: &["DELETE pods"],
        is_ready: true,
        by: By::Task,
        has_rival: false,
    },
];

impl Ladder {
    /// Its policy.
    pub fn policy(&self) -> Value {
        json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy", "metadata": {"name": self.name}, "spec": {
            "mode": "Enforce", "nodeSelector": {"matchLabels": {"ladder": self.name}},
            "limits": {"maxUnhealthy": "100%", "maxInFlight": 1, "storm": {"nodes": 100_000}},
            "rules": [{"name": "rule", "match": {"faults": [self.fault]}, "steps": self.steps()}]}})
    }

    fn steps(&self) -> Value {
        let step = |action: &str| json!({"action": action, "attempts": 1, "cooldown": "1s", "timeout": "5m", "verify": {"for": "1s"}});
        let with = |action: &str, more: Value| {
            let mut step = step(action);
            step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            step
        };
        match self.fault {
            _ if self.drains() => {
                json!([{"action": "Cordon"}, step("Drain"), with("CleanupOrphans", json!({"attempts": 3}))])
            }
            FaultType::LeakedShim if self.is_ready => json!([{"action": "Taint", "taint": {"effect": "NoSchedule"}},
                {"action": "Cordon"}, with("CleanupOrphans", json!({"attempts": 3}))]),
            FaultType::LeakedShim => json!([with("CleanupOrphans", json!({"attempts": 3}))]),
            FaultType::KubeletDown => json!([step("RestartKubelet"), {"action": "Cordon"},
                with("Reboot", json!({"approval": "Automatic", "reboot": {"evenIfNotDrained": true}})), {"action": "Notify"}]),
            FaultType::RuntimeUnreachable => {
                json!([step("RestartRuntime"), with("MarkForReboot", json!({"approval": "Automatic", "timeout": "15m"})),
                {"action": "Notify"}])
            }
            _ => json!([with("DeletePod", json!({"attempts": 3})), {"action": "Notify"}]),
        }
    }

    /// Whether the node is emptied on the way.
    pub fn drains(&self) -> bool {
        self.acts.contains(&"Evicted")
    }

    /// The controller's times. Rounds of a drain are ten seconds apart as shipped; they may be no nearer to each other than this for
    /// two quiet ones to count.
    pub fn settings(&self) -> PlanSettings {
        let shipped = PlanSettings::default();
        if self.drains() { PlanSettings { retry: QUIET_APART, ..shipped } } else { shipped }
    }

    /// What is done, in one line.
    pub fn title(&self) -> String {
        let steps = self.steps();
        let actions = steps.as_array().into_iter().flatten().filter_map(|step| step["action"].as_str());
        let actions: Vec<&str> = actions.filter(|action| *action != "Notify").collect();
        let by = match self.fault {
            FaultType::LeakedShim if self.is_ready => " by a Job",
            FaultType::StuckDaemonSetPod => "",
            _ => " by order",
        };
        format!("{}{by}", actions.join(", "))
    }
}
