//! What a node of the simulated cluster writes to the API: the report of its probe, and the end of a Job's pod.

#![allow(dead_code, reason = "each program uses a part of it")]

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodSpec;
use nrh::core::command::{ActionCommand, Outcome};
use nrh::core::condition::{ConditionType, checked_conditions};
use nrh::core::fault::{Fault, FaultState};
use nrh::core::tri_state::TriState;
use nrh_simulate::world::WorldNode;
use serde_json::{Value, json};

/// What its probe applies, in the size that real reports have.
pub fn report(node: &WorldNode, now: Timestamp) -> Value {
    let Some(heartbeat) = &node.report.heartbeat else { return Value::Null };
    // The probe does not see what shows in the API alone.
    let faults = node.report.faults.iter().map(|reported| &reported.fault);
    let faults: Vec<&Fault> = faults.filter(|fault| !fault.kind.is_cluster_fault()).collect();
    let starts_pods = heartbeat.kubelet_works == TriState::True;
    let condition = |kind: &str, is_bad: bool| {
        let (status, reason) = if is_bad { ("False", "FaultConfirmed") } else { ("True", "Clean") };
        json!({"type": kind, "status": status, "reason": reason, "message": "what was looked at is as it should be",
            "lastTransitionTime": "2025-06-01T00:00:00Z"})
    };
    let judged = checked_conditions().map(|kind| {
        let is_its = |fault: &&Fault| fault.state == FaultState::Confirmed && fault.kind.spec().condition == Some(kind);
        let is_bad = faults.iter().any(is_its) || kind == ConditionType::KubeletReady && !starts_pods;
        condition(kind.as_str(), is_bad)
    });
    // Nothing prevents a restart of what is down.
    let conditions: Vec<Value> = judged.chain([condition("RestartSafe", false)]).collect();
    let collectors = ["runtime", "lists", "status", "tasks", "processes", "kubelet", "host", "disks"]
        .map(|name| json!({"name": name, "state": "Ok", "ageSeconds": 1}));
    let mut status = json!({
        "probe": {"version": "0.1.0", "mode": "Pod", "bootId": heartbeat.boot_id, "sequence": heartbeat.sequence, "heartbeatAt": now,
            "intervalSeconds": heartbeat.interval.as_secs(), "actionsEnabled": heartbeat.actions_enabled, "collectors": collectors},
        "runtime": {"version": "containerd://1.6.20", "endpoint": "/run/containerd/containerd.sock", "sandboxes": 30, "containers": 60},
        "kubelet": {"started": starts_pods},
        "faults": faults,
        "conditions": conditions,
    });
    if let (Some(outcome), Some(fields)) = (&node.report.agent, status.as_object_mut()) {
        fields.insert("commandResult".to_owned(), json!(outcome));
    }
    json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth", "status": status})
}

/// The command that the pod of a Job executes.
pub fn command(pod: &PodSpec) -> Option<ActionCommand> {
    let env = pod.containers.first()?.env.as_ref()?;
    serde_json::from_str(env.iter().find(|one| one.name == "NRH_COMMAND")?.value.as_deref()?).ok()
}

/// The status of that pod once it has ended with this outcome.
pub fn ended(outcome: &Outcome) -> Value {
    let at = outcome.at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"phase": "Succeeded", "containerStatuses": [{"name": "command", "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"terminated": {"exitCode": 0, "reason": "Completed", "message": json!(outcome).to_string(),
            "startedAt": at, "finishedAt": at}}}]})
}
