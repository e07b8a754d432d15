//! The parts of a NodeRuntimeHealth: the probe's part for the decision, and the controller's part for the comparison with its
//! wanted content.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::Instant;

use super::arrival::ReportArrivals;
use super::said::Conditions;
use nrh_api::health::{NodeRuntimeHealth, RemediationStatus, Summary};
use nrh_api::{WrittenFlap, is_check_name, view};
use nrh_core::fault::Fault;
use nrh_core::snapshot::{Heartbeat, ReportView, RestartView, TriState};

pub use nrh_api::view::report::{owner, view};

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
    /// The fresh check that a person or a roll-out asks for.
    pub check_requested: Option<String>,
    /// Whether the object cannot be read: then the controller does not write to it either.
    pub unreadable: bool,
    /// Whether the controller has compared it with its wanted content since it arrived, and found no difference.
    pub is_settled: bool,
}

/// The controller's part.
pub fn standing(object: &NodeRuntimeHealth) -> ControllerStatus {
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
        sequence: status.probe.map(|probe| probe.sequence),
        check_requested: object.spec.check_requested.clone().filter(|name| is_check_name(name)),
        unreadable: false,
        is_settled: false,
    }
}

/// A report that cannot be read: the node counts as not reported, and is blocked.
pub fn unreadable(meta: &ObjectMeta, error: &str) -> (ReportView, ControllerStatus) {
    let standing = ControllerStatus {
        uid: meta.uid.clone().unwrap_or_default(),
        owner: owner(meta),
        deleting: meta.deletion_timestamp.is_some(),
        unreadable: true,
        ..ControllerStatus::default()
    };
    (view::report::unreadable(meta, error), standing)
}

/// Updates all ages of a report to `now`.
pub fn age(view: &mut ReportView, arrivals: &ReportArrivals, now: Instant) {
    if let Some(heartbeat) = view.heartbeat.as_mut() {
        heartbeat.arrived = arrivals.age(now);
    }
    let (age, looked) = view.kubelet.sent;
    view.kubelet.age = age.saturating_add(arrivals.age(now));
    view.kubelet.looked = arrivals.look_age(looked, now);
    for reported in &mut view.faults {
        reported.looked = arrivals.look_age(Duration::from_secs(reported.fault.check_age_seconds), now);
    }
}

/// The part that a decision reads. The duration is left out, since it grows with every heartbeat.
fn safe(view: &RestartView) -> (TriState, TriState, &str) {
    (view.kubelet, view.runtime, &view.message)
}

/// Whether `new` differs from `old`, apart from a mere heartbeat.
pub fn differs(old: &ReportView, new: &ReportView) -> bool {
    let said = |beat: &Heartbeat| (beat.interval, beat.boot_id.clone(), beat.actions_enabled, beat.kubelet_works);
    let beat = |view: &ReportView| view.heartbeat.as_ref().map(said);
    let faults = |view: &ReportView| view.faults.iter().map(|f| f.fault.clone()).collect::<Vec<_>>();
    let kubelet = |view: &ReportView| (view.kubelet.began, view.kubelet.creates_pods, view.kubelet.settings);
    (&old.node_uid, &old.suspended, &old.unlooked, safe(&old.restart), &old.agent, &old.stopped)
        != (&new.node_uid, &new.suspended, &new.unlooked, safe(&new.restart), &new.agent, &new.stopped)
        || kubelet(old) != kubelet(new)
        || beat(old) != beat(new)
        || faults(old) != faults(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(sequence: u64, started: bool) -> NodeRuntimeHealth {
        serde_json::from_value(json!({
            "apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth",
            "metadata": {"name": "w1", "uid": "n", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "w1", "uid": "node-uid"}]},
            "spec": {},
            "status": {"probe": {"version": "1", "mode": "Pod", "bootId": "b", "sequence": sequence,
                                 "heartbeatAt": "2025-01-01T00:00:00Z", "intervalSeconds": 300, "actionsEnabled": true},
                       "kubelet": {"started": started}}}))
        .unwrap()
    }

    #[test]
    fn the_next_heartbeat_is_no_difference_but_the_kubelet_is() {
        let (one, two) = (view(&object(1, true)), view(&object(2, true)));
        assert!(!differs(&one, &two));
        assert!(differs(&one, &view(&object(2, false))));
        assert_eq!(one.node_uid.as_deref(), Some("node-uid"));
        assert_eq!(one.heartbeat.unwrap().kubelet_works, TriState::True);
    }

    #[test]
    fn an_unreadable_report_is_held_and_has_not_reported() {
        let (view, standing) = unreadable(&object(1, true).metadata, "unknown variant `Quux`");
        assert!(view.heartbeat.is_none());
        assert!(view.suspended.unwrap().contains("Quux"));
        assert!(standing.unreadable);
    }
}
