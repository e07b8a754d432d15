//! The probe's part of a NodeRuntimeHealth, as a decision reads it.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nrh_core::condition::unlooked;
use nrh_core::fault::MAX_FAULTS;
use nrh_core::observation::KubeletSettings;
use nrh_core::reboot::MAX_BOOT_ID;
use nrh_core::snapshot::{Heartbeat, KubeletView, ReportView, ReportedFault, RestartView, TriState};
use nrh_core::text::bounded;

use crate::condition::{standing_of, status_of};
use crate::health::RestartSafeStatus;
use crate::{ConditionType, NodeRuntimeHealth, NodeRuntimeHealthStatus, Suspend};

/// Age of a reading without a known time: never fresh.
pub const UNDATED: Duration = Duration::from_hours(24);

/// Uid of the owning Node.
pub fn owner(meta: &ObjectMeta) -> Option<String> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.kind == "Node" && owner.api_version == "v1").map(|owner| owner.uid.clone())
}

/// The probe's part. Its ages are those at the last heartbeat.
pub fn view(object: &NodeRuntimeHealth) -> ReportView {
    let empty = NodeRuntimeHealthStatus::default();
    let status = object.status.as_ref().unwrap_or(&empty);
    let kubelet = status.kubelet.as_ref().and_then(|kubelet| kubelet.started);
    ReportView {
        node_uid: owner(&object.metadata),
        suspended: object.veto(),
        heartbeat: status.probe.as_ref().filter(|probe| probe.heartbeat_at.is_some()).map(|probe| Heartbeat {
            arrived: Duration::ZERO,
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
            .map(|fault| ReportedFault { fault: fault.clone(), looked: Duration::from_secs(fault.check_age_seconds) })
            .collect(),
        unlooked: unlooked(|kind| standing_of(&status.conditions, kind)),
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
    let condition = status.conditions.iter().find(|one| one.type_ == ConditionType::RestartSafe.as_str());
    let made = status.probe.as_ref().and_then(|probe| probe.heartbeat_at);
    let since = condition.filter(|_| both != TriState::True).map(|condition| condition.last_transition_time.0);
    let unsafe_for = made.zip(since).map(|(made, since)| made.duration_since(since));
    RestartView {
        kubelet: each.kubelet,
        runtime: each.runtime,
        message: condition.map_or_else(String::new, |condition| bounded(&condition.message, 256)),
        unsafe_for: unsafe_for.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default(),
    }
}

/// The kubelet's process. Both its start and the report are by the node's clock, so its age is right even where that clock is
/// wrong.
fn process(status: &NodeRuntimeHealthStatus) -> KubeletView {
    let Some(kubelet) = &status.kubelet else { return KubeletView::default() };
    let made = status.probe.as_ref().and_then(|probe| probe.heartbeat_at);
    let age = made.zip(kubelet.started_at).map(|(made, began)| made.duration_since(began));
    let age = age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default();
    let mut collectors = status.probe.iter().flat_map(|probe| &probe.collectors);
    let looked = collectors.find(|collector| collector.name == "kubelet").and_then(|collector| collector.age_seconds);
    let sent = (age, looked.map_or(UNDATED, Duration::from_secs));
    KubeletView {
        began: kubelet.started_at,
        sent,
        age,
        looked: sent.1,
        creates_pods: kubelet.creates_pods == Some(true),
        settings: kubelet.settings.as_ref().map(KubeletSettings::from),
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
    let why = format!("its NodeRuntimeHealth cannot be read: {}", bounded(error, 200));
    ReportView { node_uid: owner(meta), suspended: Some(why), ..ReportView::default() }
}
