//! The controller's part of a NodeRuntimeHealth, for the comparison with its wanted content.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::report_conditions::Conditions;
use nrh_api::health::{NodeRuntimeHealth, ProbeMode, RemediationStatus, Summary};
use nrh_api::view::report::owner;
use nrh_api::{WrittenFlap, is_check_name};
use nrh_core::fault::Fault;

/// The controller's part of the object, as it is in the API.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControllerStatus {
    /// Uid of the object.
    pub uid: String,
    /// Uid of the Node that owns it.
    pub owner: Option<String>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Generation of its spec.
    pub generation: i64,
    /// The generation that its status refers to.
    pub observed_generation: Option<i64>,
    /// The kubelet's version.
    pub kubelet_version: Option<String>,
    /// Faults found by the controller.
    pub cluster_faults: Vec<Fault>,
    /// The current remediation.
    pub remediation: Option<RemediationStatus>,
    /// The summary line.
    pub summary: Option<Summary>,
    /// The node's changes, as written in the object.
    pub flap: Option<WrittenFlap>,
    /// All conditions, the probe's too.
    pub conditions: Conditions,
    /// Sequence number of the last report, to see whether a requested check has arrived.
    pub sequence: Option<u64>,
    /// How the probe of the last report runs.
    pub probe_mode: Option<ProbeMode>,
    /// The fresh check that a person or a roll-out asks for.
    pub check_requested: Option<String>,
    /// Whether the object cannot be read: then the controller does not write to it either.
    pub unreadable: bool,
    /// Whether the controller has compared it with its wanted content since it arrived, and found no difference.
    pub is_settled: bool,
}

/// The controller's part.
pub fn controller_status(object: &NodeRuntimeHealth) -> ControllerStatus {
    let status = object.status.clone().unwrap_or_default();
    ControllerStatus {
        uid: object.metadata.uid.clone().unwrap_or_default(),
        owner: owner(&object.metadata),
        deleting: object.metadata.deletion_timestamp.is_some(),
        generation: object.metadata.generation.unwrap_or_default(),
        observed_generation: status.observed_generation,
        kubelet_version: status.kubelet_version,
        cluster_faults: status.cluster_faults,
        remediation: status.remediation,
        summary: status.summary,
        flap: status.flapping,
        conditions: Conditions::of(&status.conditions),
        sequence: status.probe.as_ref().map(|probe| probe.sequence),
        probe_mode: status.probe.map(|probe| probe.mode),
        check_requested: object.spec.check_requested.clone().filter(|name| is_check_name(name)),
        ..ControllerStatus::default()
    }
}

/// The controller's part of a report that cannot be read.
pub fn unread(meta: &ObjectMeta) -> ControllerStatus {
    ControllerStatus {
        uid: meta.uid.clone().unwrap_or_default(),
        owner: owner(meta),
        deleting: meta.deletion_timestamp.is_some(),
        unreadable: true,
        ..ControllerStatus::default()
    }
}
