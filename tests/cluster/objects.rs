//! Objects of our kinds, and where the API server has them.

use serde_json::{Value, json};

pub const COMMANDS: &str = "/apis/runtimehealth.io/v1alpha1/nodecommands";
pub const CONFIGS: &str = "/apis/runtimehealth.io/v1alpha1/remediationconfigs";
pub const POLICIES: &str = "/apis/runtimehealth.io/v1alpha1/remediationpolicies";
pub const REMEDIATIONS: &str = "/apis/runtimehealth.io/v1alpha1/noderemediations";
pub const REPORTS: &str = "/apis/runtimehealth.io/v1alpha1/noderuntimehealths";

/// An object of one of our kinds.
pub fn ours(kind: &str, name: &str, spec: Value) -> Value {
    let mut object = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": kind, "metadata": {"name": name}});
    object["spec"] = spec;
    object
}

/// A policy of one rule, for one fault.
pub fn policy(name: &str, fault: &str, steps: &Value) -> Value {
    let rule = json!({"name": "r", "match": {"faults": [fault]}, "steps": steps});
    ours("RemediationPolicy", name, json!({"rules": [rule]}))
}

/// A step of a remediation as the controller writes it.
pub fn step(operation: &str, state: &str) -> Value {
    json!({"operationId": operation, "faultId": "f", "action": "CleanupOrphans", "stepIndex": 0, "executor": "Job",
        "state": state, "scheduledAt": "2026-01-01T00:00:00Z"})
}

/// A remediation of a node as the controller opens it.
pub fn remediation(name: &str, node: &str) -> Value {
    ours("NodeRemediation", name, json!({"nodeName": node, "nodeUid": "u", "policy": "p", "mode": "Enforce"}))
}
