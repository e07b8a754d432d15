//! Faults as a probe would report them, made from what a timeline says of them.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::timeline::{ClearedBy, FaultEvent};
use super::world::{Cure, PodLike, Sickness};
use nrh_core::fault::{Fault, FaultState, FaultType, PodRef, ProcessRef, Role, Severity, Subject, SubjectKind, Target};
use nrh_core::hand_off;
use nrh_core::narrow::NO_OWNER;
use nrh_core::snapshot::{SuspectPod, WaitingContainer};
use nrh_core::stuck::LONGEST_BACK_OFF;
use nrh_core::text::short_hash;
use nrh_core::thresholds::Thresholds;

/// The severity that probe and controller give such a fault as a rule.
const fn usual_severity(kind: FaultType) -> Severity {
    use FaultType as F;
    match kind {
        F::GhostSandbox | F::ContainerStuck | F::ProbeDegraded => Severity::Low,
        F::RuntimeUnreachable | F::KubeletDown | F::KubeletStartBlocked | F::ReadOnlyFilesystem => Severity::Critical,
        F::NetworkPluginHung
        | F::NetworkNotReady
        | F::UnresponsiveShim
        | F::RuntimeUpdateBlocked
        | F::RuntimeListHung
        | F::KubeletCrashLoop
        | F::SyncLoopStalled
        | F::PlegSlow
        | F::PlegStalled
        | F::DiskFull
        | F::PidExhaustion
        | F::FdExhaustion
        | F::DbusUnresponsive => Severity::High,
        F::OrphanContainer
        | F::LeakedShim
        | F::HungContainer
        | F::RuntimeClientHung
        | F::LostTask
        | F::DuplicateSandbox
        | F::UntrackedPodProcess
        | F::UninterruptibleProcess
        | F::FrozenCgroup
        | F::ExitedContainerBacklog
        | F::ClientCertificateExpiring
        | F::ClockUnsynchronised
        | F::StuckDaemonSetPod
        | F::NodeCondition
        | F::NodeFlapping
        | F::ProbeNotReporting => Severity::Medium,
    }
}

/// What ends such a fault as a rule.
const fn usual_cures(kind: FaultType) -> &'static [ClearedBy] {
    match kind {
        FaultType::HungContainer => &[ClearedBy::Cont, ClearedBy::Kill],
        FaultType::NetworkPluginHung | FaultType::RuntimeClientHung => &[ClearedBy::Kill],
        FaultType::OrphanContainer | FaultType::LeakedShim | FaultType::UnresponsiveShim => {
            &[ClearedBy::CleanupOrphans]
        }
        FaultType::StuckDaemonSetPod => &[ClearedBy::DeletePod],
        FaultType::KubeletDown => &[ClearedBy::RestartKubelet],
        FaultType::RuntimeUnreachable | FaultType::RuntimeListHung => &[ClearedBy::RestartRuntime],
        _ => &[],
    }
}

/// What ends a fault, as the world knows it.
pub(super) const fn cure(by: ClearedBy) -> Cure {
    match by {
        ClearedBy::Cont => Cure::Cont,
        ClearedBy::Kill => Cure::Kill,
        ClearedBy::CleanupOrphans => Cure::Cleanup,
        ClearedBy::DeletePod => Cure::Delete,
        ClearedBy::RestartKubelet => Cure::RestartKubelet,
        ClearedBy::RestartRuntime => Cure::RestartRuntime,
        ClearedBy::Reboot => Cure::Reboot,
        ClearedBy::HandOff => Cure::HandOff,
    }
}

/// What ends this one.
pub(super) fn cures(event: &FaultEvent) -> BTreeSet<Cure> {
    let named = event.cleared_by.as_deref().unwrap_or_else(|| usual_cures(event.kind));
    // A reboot ends most of them.
    let rebooted = event.cleared_by.is_none() && hand_off::helps(event.kind).is_ok();
    named
        .iter()
        .copied()
        .map(cure)
        .chain(rebooted.then_some([Cure::Reboot, Cure::HandOff]).into_iter().flatten())
        .collect()
}

const fn subject_kind(kind: FaultType) -> SubjectKind {
    use FaultType as F;
    match kind {
        F::HungContainer
        | F::OrphanContainer
        | F::LostTask
        | F::ContainerStuck
        | F::FrozenCgroup
        | F::RuntimeClientHung => SubjectKind::Container,
        F::DuplicateSandbox | F::GhostSandbox => SubjectKind::Sandbox,
        F::LeakedShim | F::UnresponsiveShim => SubjectKind::Shim,
        F::NetworkPluginHung => SubjectKind::NetworkPlugin,
        F::RuntimeUnreachable
        | F::RuntimeListHung
        | F::RuntimeUpdateBlocked
        | F::NetworkNotReady
        | F::ExitedContainerBacklog => SubjectKind::Runtime,
        F::KubeletDown
        | F::KubeletStartBlocked
        | F::KubeletCrashLoop
        | F::SyncLoopStalled
        | F::PlegSlow
        | F::PlegStalled
        | F::ClientCertificateExpiring => SubjectKind::Kubelet,
        F::StuckDaemonSetPod => SubjectKind::Pod,
        F::NodeCondition => SubjectKind::Condition,
        F::ProbeDegraded | F::ProbeNotReporting => SubjectKind::Probe,
        F::DiskFull | F::ReadOnlyFilesystem => SubjectKind::Filesystem,
        F::UninterruptibleProcess | F::UntrackedPodProcess => SubjectKind::Process,
        F::PidExhaustion | F::FdExhaustion | F::DbusUnresponsive | F::ClockUnsynchronised | F::NodeFlapping => {
            SubjectKind::Host
        }
    }
}

/// Whether such a fault is about a pod.
pub(super) const fn has_pod(kind: FaultType) -> bool {
    matches!(
        subject_kind(kind),
        SubjectKind::Container | SubjectKind::Sandbox | SubjectKind::NetworkPlugin | SubjectKind::Pod
    )
}

/// The pod that an event names. `life` tells successors apart.
pub(super) fn pod(event: &FaultEvent, node: &str, life: usize) -> PodRef {
    let (namespace, name) = event.pod.as_deref().and_then(|pod| pod.split_once('/')).unwrap_or(("default", "work"));
    PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid(node, namespace, name, life) }
}

/// Uid of a pod of the node.
pub(super) fn uid(node: &str, namespace: &str, name: &str, life: usize) -> String {
    format!("uid-{}", short_hash(&format!("{node}/{namespace}/{name}/{life}")))
}

/// What that pod is like, where the event says it.
pub(super) fn pod_like(event: &FaultEvent) -> Option<PodLike> {
    if event.pod_labels.is_none() && event.pod_owner.is_none() {
        return None;
    }
    let usual = if event.kind == FaultType::StuckDaemonSetPod { "DaemonSet" } else { "ReplicaSet" };
    let owner = event.pod_owner.clone().unwrap_or_else(|| usual.to_owned());
    let labels = event.pod_labels.clone().unwrap_or_default();
    Some(PodLike::There { labels, owner: Some(owner).filter(|kind| kind != NO_OWNER) })
}

/// The fault as the probe of this node confirms it now.
fn fault(event: &FaultEvent, node: &str, now: Timestamp) -> Fault {
    let kind = event.kind;
    let lasted = Thresholds::default().usual_time_to_confirm(kind);
    let pod = has_pod(kind).then(|| pod(event, node, 0));
    let name = event.name.clone().unwrap_or_else(|| "main".to_owned());
    let key = format!("{node}/{}/{name}", pod.as_ref().map_or("", |pod| pod.uid.as_str()));
    let subject = Subject { name: Some(name), pod: pod.clone(), ..Subject::of(subject_kind(kind)) };
    Fault {
        id: Fault::identity(kind, &key),
        kind,
        severity: event.severity.unwrap_or_else(|| usual_severity(kind)),
        state: FaultState::Confirmed,
        target: target(kind, &key, pod),
        message: format!("{kind}: {subject}"),
        subject,
        impact: String::new(),
        first_seen: now.checked_sub(lasted).unwrap_or(now),
        duration_seconds: lasted.as_secs(),
        confirmations: 3,
        check_age_seconds: 0,
        evidence: Vec::new(),
        evidence_bundle: None,
    }
}

fn target(kind: FaultType, key: &str, pod: Option<PodRef>) -> Target {
    let id = |of: &str| Some(short_hash(&format!("{of}/{key}")).repeat(8).chars().take(64).collect());
    let process = |role, state: &str, command: &str| {
        let (state, command) = (state.to_owned(), command.to_owned());
        Some(ProcessRef { role, pid: 4242, start_ticks: 1, state, wchan: None, command })
    };
    let shim = |state| process(Role::Shim, state, "containerd-shim");
    match kind {
        FaultType::HungContainer => Target { process: shim("T"), container_id: id("c"), pod, ..Target::default() },
        FaultType::OrphanContainer => Target { container_id: id("c"), sandbox_id: id("s"), pod, ..Target::default() },
        FaultType::LeakedShim => Target { process: shim("S"), sandbox_id: id("s"), ..Target::default() },
        FaultType::UnresponsiveShim => Target { process: shim("T"), sandbox_id: id("s"), ..Target::default() },
        FaultType::NetworkPluginHung => {
            Target { process: process(Role::NetworkPlugin, "S", "bridge"), pod, ..Target::default() }
        }
        FaultType::RuntimeClientHung => Target {
            process: process(Role::RuntimeClient, "S", "runc"),
            container_id: id("c"),
            pod,
            ..Target::default()
        },
        _ => Target { pod, ..Target::default() },
    }
}

/// What a timeline makes of one fault.
pub(super) fn sickness(event: &FaultEvent, node: &str, now: Timestamp) -> Sickness {
    Sickness { fault: fault(event, node, now), cures: cures(event) }
}

/// A pod of a DaemonSet at the longest back-off: what the controller reads of it.
pub(super) fn stuck_pod(event: &FaultEvent, node: &str, life: usize) -> SuspectPod {
    let ended = Thresholds::default().stuck_back_off;
    let container = WaitingContainer {
        name: "main".to_owned(),
        reason: "CrashLoopBackOff".to_owned(),
        back_off: Some(LONGEST_BACK_OFF),
        ended: Some(ended),
        restarts: 12,
    };
    SuspectPod {
        pod: pod(event, node, life),
        node: node.to_owned(),
        daemon_set: Some(event.name.clone().unwrap_or_else(|| "agent".to_owned())),
        host_network: false,
        ready: false,
        age: ended + Duration::from_hours(1),
        without_sandbox: None,
        overdue: event.terminating.then_some(Thresholds::default().stuck_terminating),
        waiting: if event.terminating { Vec::new() } else { vec![container] },
        failed: Vec::new(),
        read: Duration::from_secs(1),
    }
}
