//! The registry of faults: one file says all that is true of one kind, or of a family of kinds.

mod client_certificate_expiring;
mod clock_unsynchronised;
mod container_stuck;
mod dbus_unresponsive;
pub mod exhaustion;
mod exited_container_backlog;
mod filesystems;
pub mod frozen_cgroup;
pub mod hung_container;
pub mod kubelet;
mod kubelet_port;
pub mod kubelet_start_blocked;
pub mod leaked_shim;
mod lost_task;
mod network_not_ready;
pub mod network_plugin_hung;
mod node_condition;
mod node_flapping;
pub mod orphan_container;
mod pleg_stalled;
mod probe_degraded;
pub mod probe_not_reporting;
mod run_filesystem_full;
mod runtime;
pub mod runtime_client_hung;
mod sandboxes;
mod spec;
pub mod stuck_daemon_set_pod;
mod uninterruptible_process;
mod unresponsive_shim;
mod untracked_pod_process;

use std::time::Duration;

use jiff::Timestamp;

pub use spec::{ByDaemon, FaultSpec, Helps, Holds, Remedy, ShowsIn};

use crate::fault::{Fault, FaultGroup, FaultState, FaultType, Subject, SubjectKind, Target};
use crate::finding::{Check, Coverage, Detected, Findings, Harm, STALE, Sighting, Verdict, answer};
use crate::observation::{Observations, Reading};
use crate::thresholds::{Bound, Confirm, Confirmation, Thresholds};

impl FaultType {
    /// All that is said of the kind in general.
    pub const fn spec(self) -> &'static FaultSpec {
        match self {
            Self::OrphanContainer => &orphan_container::SPEC,
            Self::LeakedShim => &leaked_shim::SPEC,
            Self::UnresponsiveShim => &unresponsive_shim::SPEC,
            Self::HungContainer => &hung_container::SPEC,
            Self::NetworkPluginHung => &network_plugin_hung::SPEC,
            Self::RuntimeClientHung => &runtime_client_hung::SPEC,
            Self::NetworkNotReady => &network_not_ready::SPEC,
            Self::RuntimeUnreachable => &runtime::UNREACHABLE,
            Self::RuntimeListHung => &runtime::LIST_HUNG,
            Self::RuntimeUpdateBlocked => &runtime::UPDATE_BLOCKED,
            Self::LostTask => &lost_task::SPEC,
            Self::DuplicateSandbox => &sandboxes::DUPLICATE,
            Self::GhostSandbox => &sandboxes::GHOST,
            Self::ContainerStuck => &container_stuck::SPEC,
            Self::UntrackedPodProcess => &untracked_pod_process::SPEC,
            Self::KubeletDown => &kubelet::DOWN,
            Self::KubeletStartBlocked => &kubelet_start_blocked::SPEC,
            Self::KubeletCrashLoop => &kubelet::CRASH_LOOP,
            Self::PlegStalled => &pleg_stalled::SPEC,
            Self::PlegSlow => &kubelet_port::PLEG,
            Self::SyncLoopStalled => &kubelet_port::SYNC_LOOP,
            Self::ReadOnlyFilesystem => &filesystems::READ_ONLY,
            Self::DiskFull => &filesystems::FULL,
            Self::RunFilesystemFull => &run_filesystem_full::SPEC,
            Self::PidExhaustion => &exhaustion::PIDS,
            Self::FdExhaustion => &exhaustion::FILES,
            Self::DbusUnresponsive => &dbus_unresponsive::SPEC,
            Self::UninterruptibleProcess => &uninterruptible_process::SPEC,
            Self::FrozenCgroup => &frozen_cgroup::SPEC,
            Self::ExitedContainerBacklog => &exited_container_backlog::SPEC,
            Self::ClientCertificateExpiring => &client_certificate_expiring::SPEC,
            Self::ClockUnsynchronised => &clock_unsynchronised::SPEC,
            Self::StuckDaemonSetPod => &stuck_daemon_set_pod::SPEC,
            Self::NodeCondition => &node_condition::SPEC,
            Self::NodeFlapping => &node_flapping::SPEC,
            Self::ProbeDegraded => &probe_degraded::SPEC,
            Self::ProbeNotReporting => &probe_not_reporting::SPEC,
        }
    }

    /// Whether the controller finds it (from API state), not the probe.
    pub fn is_cluster_fault(self) -> bool {
        self.spec().shows_in != ShowsIn::Report
    }

    /// Whether such a fault can name a pod.
    pub fn can_name_a_pod(self) -> bool {
        self.spec().group == Some(FaultGroup::Pods)
    }

    /// Whether there always is a pod that such a fault is about: where it names none, nobody could tell which.
    pub fn is_of_a_pod(self) -> bool {
        // The pod of a leaked shim may be gone without a trace.
        self.can_name_a_pod() && self.spec().subject != SubjectKind::Shim
    }

    /// Usual time from the first sign to `Confirmed`: what `nrh generate thresholds` prints, and a timeline takes for it.
    pub fn usual_time_to_confirm(self, thresholds: &Thresholds) -> Duration {
        let spec = self.spec();
        let first = || spec.confirm.first().map_or(Duration::ZERO, |first| thresholds.confirm(first).usual_time());
        spec.time_to_confirm.map_or_else(first, |of| of(thresholds))
    }
}

impl Fault {
    /// A confirmed fault that was seen once, with the usual severity and subject of its kind.
    pub fn new(kind: FaultType, key: &str) -> Self {
        let spec = kind.spec();
        Self {
            id: Self::identity(kind, key),
            kind,
            severity: spec.severity,
            state: FaultState::Confirmed,
            subject: Subject::of(spec.subject),
            target: Target::default(),
            message: String::new(),
            impact: String::new(),
            first_seen: Timestamp::UNIX_EPOCH,
            duration_seconds: 0,
            confirmations: 1,
            check_age_seconds: 0,
            evidence: Vec::new(),
            evidence_bundle: None,
        }
    }
}

impl Sighting {
    /// What most sightings have in common: certain, harmful, with the usual severity and subject of its kind, and no target.
    pub(crate) fn new(kind: FaultType, key: &str, checked: Duration, confirm: Confirmation) -> Self {
        let spec = kind.spec();
        Self {
            kind,
            key: key.to_owned(),
            certain: true,
            harm: Harm::Always,
            severity: spec.severity,
            subject: Subject::named(spec.subject, key),
            target: Target::default(),
            message: String::new(),
            impact: "",
            evidence: Vec::new(),
            checked,
            since: checked,
            confirm,
            without_kubelet: None,
        }
    }
}

/// What confirms faults, as `probe.yaml` can change it, each once: kinds of one family share it, and stand side by side.
pub fn confirmations() -> impl Iterator<Item = &'static Confirm> {
    each_once(|spec| spec.confirm, |of| of.key)
}

/// The times from which something counts, as `probe.yaml` can change them, each once.
pub fn bounds() -> impl Iterator<Item = &'static Bound> {
    each_once(|spec| spec.bounds, |of| of.key)
}

fn each_once<T>(
    of: fn(&FaultSpec) -> &'static [&'static T],
    key: fn(&T) -> &'static str,
) -> impl Iterator<Item = &'static T> {
    let mut all: Vec<&T> = FaultType::ALL.into_iter().flat_map(|kind| of(kind.spec()).iter().copied()).collect();
    all.dedup_by_key(|one| key(one));
    all.into_iter()
}

type Detector = fn(&Check<'_>, &mut Findings) -> Detected;

/// All detectors. What an earlier one wants asked is asked first.
static DETECTORS: &[(FaultType, Detector)] = &[
    (FaultType::RuntimeUnreachable, runtime::unreachable),
    (FaultType::RuntimeListHung, runtime::list_hung),
    (FaultType::KubeletDown, kubelet::down),
    (FaultType::KubeletCrashLoop, kubelet::crash_loop),
    (FaultType::HungContainer, hung_container::detect),
    (FaultType::OrphanContainer, orphan_container::detect),
    (FaultType::LeakedShim, leaked_shim::detect),
    (FaultType::UnresponsiveShim, unresponsive_shim::detect),
    (FaultType::NetworkPluginHung, network_plugin_hung::detect),
    (FaultType::RuntimeClientHung, runtime_client_hung::detect),
    (FaultType::NetworkNotReady, network_not_ready::detect),
    (FaultType::LostTask, lost_task::detect),
    (FaultType::DuplicateSandbox, sandboxes::duplicates),
    (FaultType::GhostSandbox, sandboxes::ghosts),
    (FaultType::ExitedContainerBacklog, exited_container_backlog::detect),
    (FaultType::PidExhaustion, exhaustion::pids),
    (FaultType::FdExhaustion, exhaustion::files),
    (FaultType::DbusUnresponsive, dbus_unresponsive::detect),
    (FaultType::DiskFull, filesystems::full),
    (FaultType::RunFilesystemFull, run_filesystem_full::detect),
    (FaultType::ReadOnlyFilesystem, filesystems::read_only),
    (FaultType::UninterruptibleProcess, uninterruptible_process::detect),
    (FaultType::FrozenCgroup, frozen_cgroup::detect),
    (FaultType::ClientCertificateExpiring, client_certificate_expiring::detect),
    (FaultType::ClockUnsynchronised, clock_unsynchronised::detect),
    (FaultType::UntrackedPodProcess, untracked_pod_process::detect),
    (FaultType::ContainerStuck, container_stuck::detect),
    (FaultType::SyncLoopStalled, kubelet_port::sync_loop),
    (FaultType::PlegSlow, kubelet_port::pleg),
    (FaultType::ProbeDegraded, |check, findings| Ok(probe_degraded::detect(check, findings))),
];

/// Fills `Findings::silent_checks`, without the checks that the platform does not allow: those never answer.
fn silent_checks(seen: &Observations) -> Vec<String> {
    fn line<T>(reading: &Reading<T>, now: Duration, what: &str) -> Option<String> {
        match (reading, answer(reading, now, what, STALE)) {
            (Reading::Unavailable { .. }, _) => None,
            (_, Err(Verdict::Unknown { detail, .. })) => Some(detail),
            _ => None,
        }
    }
    let lines = [
        line(&seen.disks, seen.now, "the node's file systems"),
        line(&seen.host, seen.now, "the kernel's limits"),
        line(&seen.bus, seen.now, "the system bus"),
    ];
    lines.into_iter().flatten().collect()
}

pub(crate) fn detect(check: &Check<'_>, findings: &mut Findings) {
    findings.runtime_gone = runtime::is_gone(check);
    findings.in_flight = runtime::in_flight(check.seen);
    findings.silent_checks = silent_checks(check.seen);
    for (kind, detect) in DETECTORS {
        let detected = detect(check, findings);
        findings.cover(*kind, detected.unwrap_or_else(Coverage::new));
    }
}
