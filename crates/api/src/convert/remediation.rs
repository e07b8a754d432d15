//! `NodeRemediation`: the object and the record that the engine reads and writes.

use std::time::Duration;

use crate::HumanDuration;
use crate::remediation::{ManualRequestSpec, NodeRemediation, NodeRemediationSpec, NodeRemediationStatus};
use nrh_core::manual::OpenManualRequest;
use nrh_core::remediation::{ManualRequest, Remediation};

/// For how long a start by hand waits, where it does not say so itself.
const BEGUN_WITHIN: Duration = Duration::from_hours(1);
/// Shortest such time, which the schema asks for as well.
const LEAST_WAIT: Duration = Duration::from_mins(1);

/// Reads a start by hand that has not begun: one whose status does not say since when it is a remediation. None = it is a remediation.
pub fn manual(object: &NodeRemediation) -> Option<OpenManualRequest> {
    let (meta, spec) = (&object.metadata, &object.spec);
    let manual = spec.manual.as_ref()?;
    let status = object.status.as_ref();
    if status.is_some_and(|status| status.started_at.is_some()) {
        return None;
    }
    Some(OpenManualRequest {
        name: meta.name.clone().unwrap_or_default(),
        identity: meta.uid.clone().zip(meta.resource_version.clone()).unwrap_or_default(),
        node: spec.node_name.clone(),
        node_uid: spec.node_uid.clone(),
        policy: spec.policy.clone(),
        mode: spec.mode,
        manual: asked_for(manual),
        cancel: spec.cancel.clone(),
        deleting: meta.deletion_timestamp.is_some(),
        asked_at: meta.creation_timestamp.as_ref().map(|time| time.0).unwrap_or_default(),
        message: status.map(|status| status.message.clone()).unwrap_or_default(),
    })
}

fn asked_for(manual: &ManualRequestSpec) -> ManualRequest {
    ManualRequest {
        requested_by: manual.requested_by.clone(),
        fault: manual.fault,
        fault_id: manual.fault_id.clone(),
        action: manual.action,
        policy_generation: manual.policy_generation,
        reason: manual.reason.clone(),
        timeout: manual.start_timeout.map_or(BEGUN_WITHIN, HumanDuration::get).max(LEAST_WAIT),
    }
}

/// Reads a remediation.
pub fn remediation(object: &NodeRemediation) -> Remediation {
    let (meta, spec) = (&object.metadata, &object.spec);
    let status = object.status.clone().unwrap_or_default();
    let started_at =
        status.started_at.or_else(|| meta.creation_timestamp.as_ref().map(|time| time.0)).unwrap_or_default();
    Remediation {
        name: meta.name.clone().unwrap_or_default(),
        identity: meta.uid.clone().zip(meta.resource_version.clone()),
        node: spec.node_name.clone(),
        node_uid: spec.node_uid.clone(),
        policy: spec.policy.clone(),
        mode: spec.mode,
        deleting: meta.deletion_timestamp.is_some(),
        approval: spec.approval.clone(),
        cancel: spec.cancel.clone(),
        manual: spec.manual.as_ref().map(asked_for),
        phase: status.phase,
        message: status.message,
        started_at,
        finished_at: status.finished_at,
        faults: status.faults,
        steps: status.attempts,
        cleanup: status.cleanup,
    }
}

/// The spec of a remediation's object.
pub fn remediation_spec(remediation: &Remediation) -> NodeRemediationSpec {
    NodeRemediationSpec {
        node_name: remediation.node.clone(),
        node_uid: remediation.node_uid.clone(),
        policy: remediation.policy.clone(),
        mode: remediation.mode,
        approval: remediation.approval.clone(),
        // Both are for people to write.
        cancel: None,
        manual: None,
    }
}

/// The status of a remediation's object, without its conditions.
pub fn remediation_status(remediation: &Remediation) -> NodeRemediationStatus {
    NodeRemediationStatus {
        phase: remediation.phase,
        message: nrh_core::text::bounded(&remediation.message, nrh_core::fault::MAX_LINE),
        started_at: Some(remediation.started_at),
        finished_at: remediation.finished_at,
        faults: remediation.faults.clone(),
        attempts: remediation.steps.clone(),
        cleanup: remediation.cleanup.clone(),
        ..NodeRemediationStatus::default()
    }
}
