//! Faults as a probe would report them, from the description in a timeline.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::cleared_by::ClearedBy;
use super::timeline::FaultEvent;
use super::timeline::pods::uid;
use super::world::{InjectedFault, PodLike};
use nrh_core::fault::{Fault, FaultType, PodRef, ProcessRef, Role, Subject, Target};
use nrh_core::faults::stuck_daemon_set_pod;
use nrh_core::matching::NO_OWNER;
use nrh_core::snapshot::{SuspectPod, WaitingContainer};
use nrh_core::stuck::LONGEST_BACK_OFF;
use nrh_core::text::short_hash;
use nrh_core::thresholds::Thresholds;

/// What usually resolves such a fault.
fn usually_cleared_by(kind: FaultType) -> Vec<ClearedBy> {
    let spec = kind.spec();
    let remedy = &spec.remedy;
    let restart = (remedy.restart)(&Subject::of(spec.subject));
    let cures = [
        (remedy.hung_process == Ok(Role::Shim), ClearedBy::Cont),
        (remedy.hung_process.is_ok(), ClearedBy::Kill),
        (remedy.leftover.is_ok(), ClearedBy::CleanupOrphans),
        (remedy.thaw.is_ok(), ClearedBy::ThawCgroup),
        (remedy.new_pod.is_ok(), ClearedBy::DeletePod),
        (restart.kubelet.is_ok(), ClearedBy::RestartKubelet),
        (restart.runtime.is_ok(), ClearedBy::RestartRuntime),
    ];
    cures.into_iter().filter_map(|(helps, by)| helps.then_some(by)).collect()
}

/// What resolves this fault.
pub(super) fn cleared_by(event: &FaultEvent) -> BTreeSet<ClearedBy> {
    let named = event.cleared_by.clone().unwrap_or_else(|| usually_cleared_by(event.kind));
    // A reboot resolves most faults.
    let rebooted = event.cleared_by.is_none() && event.kind.spec().remedy.other_machine.is_ok();
    named.into_iter().chain(rebooted.then_some([ClearedBy::Reboot, ClearedBy::HandOff]).into_iter().flatten()).collect()
}

/// The pod of an event. `life` distinguishes successors.
pub(super) fn pod(event: &FaultEvent, node: &str, life: usize) -> PodRef {
    let (namespace, name) = event.pod.as_deref().and_then(|pod| pod.split_once('/')).unwrap_or(("default", "work"));
    PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid(node, namespace, name, life) }
}

/// The traits of that pod, where the event has them.
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
    let lasted = kind.usual_time_to_confirm(&Thresholds::default());
    let pod = kind.is_of_a_pod().then(|| pod(event, node, 0));
    let name = event.name.clone().unwrap_or_else(|| "main".to_owned());
    let key = format!("{node}/{}/{name}", pod.as_ref().map_or("", |pod| pod.uid.as_str()));
    let subject = Subject { name: Some(name), pod: pod.clone(), ..Subject::of(kind.spec().subject) };
    Fault {
        severity: event.severity.unwrap_or_else(|| kind.spec().severity),
        target: target(kind, &key, pod),
        message: format!("{kind}: {subject}"),
        subject,
        first_seen: now.checked_sub(lasted).unwrap_or(now),
        duration_seconds: lasted.as_secs(),
        confirmations: 3,
        ..Fault::new(kind, &key)
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
        FaultType::FrozenCgroup => Target {
            process: process(Role::ContainerInit, "S", "runc:[2:INIT]"),
            sandbox_id: id("s"),
            pod,
            control_group: Some("sys/fs/cgroup/kubepods/work".to_owned()),
            ..Target::default()
        },
        _ => Target { pod, ..Target::default() },
    }
}

/// The injected fault of one event.
pub(super) fn injected_fault(event: &FaultEvent, node: &str, now: Timestamp) -> InjectedFault {
    InjectedFault { fault: fault(event, node, now), cleared_by: cleared_by(event) }
}

/// A pod of a DaemonSet at the longest back-off: what the controller reads of it.
pub(super) fn stuck_pod(event: &FaultEvent, node: &str, life: usize) -> SuspectPod {
    let ended = stuck_daemon_set_pod::BACK_OFF;
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
        overdue: event.terminating.then_some(stuck_daemon_set_pod::TERMINATING),
        waiting: if event.terminating { Vec::new() } else { vec![container] },
        failed: Vec::new(),
        read: Duration::from_secs(1),
    }
}
