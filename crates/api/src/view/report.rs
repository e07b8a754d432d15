//! The probe's part of a NodeRuntimeHealth, as a decision reads it.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nrh_core::condition::unchecked;
use nrh_core::fault::MAX_FAULTS;
use nrh_core::moment::since;
use nrh_core::reboot::MAX_BOOT_ID;
use nrh_core::snapshot::{Heartbeat, KubeletView, ReportView, ReportedFault, RestartView, Snapshot, TriState};
use nrh_core::text::bounded;

use super::View;
use super::guard::UnreadableObject;
use crate::condition::{find, standing_of, status_of};
use crate::health::RestartSafeStatus;
use crate::{ConditionType, NodeRuntimeHealth, NodeRuntimeHealthStatus, Suspend};

/// Age of a reading without a known time: never fresh.
pub const UNKNOWN_AGE: Duration = Duration::from_hours(24);

/// Uid of the owning Node.
pub fn owner(meta: &ObjectMeta) -> Option<String> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.kind == "Node" && owner.api_version == "v1").map(|owner| owner.uid.clone())
}

impl View for NodeRuntimeHealth {
    fn store(&self, name: &str, snapshot: &mut Snapshot) -> bool {
        let old = snapshot.reports.insert(name.to_owned(), view(self));
        old.zip(snapshot.reports.get(name)).is_none_or(|(old, new)| differs(&old, new))
    }

    fn store_unreadable(bad: &UnreadableObject, name: &str, snapshot: &mut Snapshot) -> bool {
        let old = snapshot.reports.insert(name.to_owned(), unreadable(&bad.metadata, &bad.why));
        old.as_ref() != snapshot.reports.get(name)
    }

    fn remove(name: &str, snapshot: &mut Snapshot) -> bool {
        snapshot.reports.remove(name).is_some()
    }
}

/// The part that a decision reads. The duration is left out, since it grows with every heartbeat.
fn safe(view: &RestartView) -> (TriState, TriState, &str) {
    (view.kubelet, view.runtime, &view.message)
}

/// Whether `new` differs from `old`, apart from a mere heartbeat.
pub fn differs(old: &ReportView, new: &ReportView) -> bool {
    let content = |beat: &Heartbeat| (beat.interval, beat.boot_id.clone(), beat.actions_enabled, beat.kubelet_works);
    let beat = |view: &ReportView| view.heartbeat.as_ref().map(content);
    let faults = |view: &ReportView| view.faults.iter().map(|f| f.fault.clone()).collect::<Vec<_>>();
    let kubelet = |view: &ReportView| (view.kubelet.began, view.kubelet.creates_pods, view.kubelet.settings);
    (&old.node_uid, &old.suspended, &old.unreadable, &old.unchecked, safe(&old.restart), &old.agent, &old.stopped)
        != (
            &new.node_uid,
            &new.suspended,
            &new.unreadable,
            &new.unchecked,
            safe(&new.restart),
            &new.agent,
            &new.stopped,
        )
        || kubelet(old) != kubelet(new)
        || beat(old) != beat(new)
        || faults(old) != faults(new)
}

/// Sets all ages of a report: its last heartbeat is `arrived` old, as far as the controller knows. A reading that was `age` old at
/// that heartbeat is so much older now, and of unknown age where the controller did not see the heartbeat arrive.
pub fn age(view: &mut ReportView, arrived: Duration, age_known: bool) {
    if let Some(heartbeat) = view.heartbeat.as_mut() {
        (heartbeat.arrived, heartbeat.age_known) = (arrived, age_known);
    }
    let check_age = |age: Duration| if age_known { arrived.saturating_add(age) } else { UNKNOWN_AGE };
    view.kubelet.age = view.kubelet.reported_age.saturating_add(arrived);
    view.kubelet.checked = check_age(view.kubelet.reported_check_age);
    for reported in &mut view.faults {
        reported.checked = check_age(Duration::from_secs(reported.fault.check_age_seconds));
    }
}

/// The probe's part. Its ages are those at the last heartbeat.
pub fn view(object: &NodeRuntimeHealth) -> ReportView {
    let empty = NodeRuntimeHealthStatus::default();
    let status = object.status.as_ref().unwrap_or(&empty);
    let kubelet = status.kubelet.as_ref().and_then(|kubelet| kubelet.started);
    ReportView {
        node_uid: owner(&object.metadata),
        suspended: object.suspended_by_text(),
        unreadable: None,
        heartbeat: status.probe.as_ref().filter(|probe| probe.heartbeat_at.is_some()).map(|probe| Heartbeat {
            arrived: Duration::ZERO,
            age_known: false,
            interval: Duration::from_secs(u64::from(probe.interval_seconds).clamp(1, 3600)),
            sequence: probe.sequence,
            boot_id: bounded(&probe.boot_id, MAX_BOOT_ID),
            actions_enabled: probe.actions_enabled,
            kubelet_works: kubelet_works(status, kubelet),
        }),
        faults: status
            .faults
            .iter()
            .take(MAX_FAULTS)
            .map(|fault| ReportedFault { fault: fault.clone(), checked: Duration::from_secs(fault.check_age_seconds) })
            .collect(),
        unchecked: unchecked(|kind| standing_of(&status.conditions, kind)),
        kubelet: process(status),
        restart: restart(status),
        agent: status.command_result.clone(),
        stopped: status.remediation.as_ref().and_then(|remediation| remediation.cancelled.clone()),
    }
}

/// An older probe reports only the worse of the two.
fn restart(status: &NodeRuntimeHealthStatus) -> RestartView {
    let both = status_of(&status.conditions, ConditionType::RestartSafe);
    let each = status.restart_safe.unwrap_or(RestartSafeStatus { kubelet: both, runtime: both });
    let condition = find(&status.conditions, ConditionType::RestartSafe);
    let made = status.probe.as_ref().and_then(|probe| probe.heartbeat_at);
    let turned = condition.filter(|_| both != TriState::True).map(|condition| condition.last_transition_time.0);
    let unsafe_for = made.zip(turned).map(|(made, turned)| since(made, turned));
    RestartView {
        kubelet: each.kubelet,
        runtime: each.runtime,
        message: condition.map_or_else(String::new, |condition| bounded(&condition.message, 256)),
        unsafe_for: unsafe_for.unwrap_or_default(),
    }
}

/// The kubelet's process. Both its start and the report are by the node's clock, so its age is right even where that clock is
/// wrong.
fn process(status: &NodeRuntimeHealthStatus) -> KubeletView {
    let Some(kubelet) = &status.kubelet else { return KubeletView::default() };
    let made = status.probe.as_ref().and_then(|probe| probe.heartbeat_at);
    let age = made.zip(kubelet.started_at).map(|(made, began)| since(made, began)).unwrap_or_default();
    let mut collectors = status.probe.iter().flat_map(|probe| &probe.collectors);
    let checked = collectors.find(|collector| collector.name == "kubelet").and_then(|collector| collector.age_seconds);
    let check_age = checked.map_or(UNKNOWN_AGE, Duration::from_secs);
    KubeletView {
        began: kubelet.started_at,
        reported_age: age,
        reported_check_age: check_age,
        age,
        checked: check_age,
        creates_pods: kubelet.creates_pods == Some(true),
        settings: kubelet.settings,
        unfinished: None,
    }
}

/// Whether the kubelet can start pods. The probe's condition wins; its plain reading counts where the condition is Unknown.
fn kubelet_works(status: &NodeRuntimeHealthStatus, started: Option<bool>) -> TriState {
    match (status_of(&status.conditions, ConditionType::KubeletReady), started) {
        (TriState::Unknown, Some(true)) => TriState::True,
        (TriState::Unknown, Some(false)) => TriState::False,
        (known, _) => known,
    }
}

/// A report that cannot be read: the node counts as not reported, and is blocked.
pub fn unreadable(meta: &ObjectMeta, error: &str) -> ReportView {
    ReportView { node_uid: owner(meta), unreadable: Some(bounded(error, 200)), ..ReportView::default() }
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
        let view = unreadable(&object(1, true).metadata, "unknown variant `Quux`");
        assert!(view.heartbeat.is_none() && view.suspended.is_none());
        assert!(view.unreadable.unwrap().contains("Quux"));
    }
}
