//! DaemonSet pods that make no progress, as the API shows them, joined with the cause on the node.

use std::time::Duration;

use jiff::Timestamp;

use super::fault::{Fault, FaultState, FaultType, MAX_EVIDENCE, MAX_LINE, Subject, SubjectKind, Target};
use super::faults::stuck_daemon_set_pod;
use super::moment::begun;
use super::snapshot::{FailedContainer, SuspectPod};
use super::text::bounded;

/// The kubelet's longest back-off between two starts of a container.
pub const LONGEST_BACK_OFF: Duration = Duration::from_mins(5);

/// The back-off before the longest one: it doubles from 10 s. Times in the API are whole seconds, so one second may be missing.
const BEFORE_LONGEST: Duration = Duration::from_secs(159);
/// Restarts before the longest back-off: one at once, then after 10, 20, 40, 80 and 160 s.
const RESTARTS_BEFORE_LONGEST: u32 = 6;
/// A container that ran for this long resets the kubelet's back-off.
const BACK_OFF_RESET: Duration = Duration::from_mins(10);

/// Age up to which what was read confirms something. Beyond it, several reads have been missed.
pub const FRESH: Duration = Duration::from_secs(20);

/// What a stuck pod waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// Its deletion should have been complete long ago.
    Terminating,
    /// Its containers are being created.
    Creating,
    /// A container waits at the longest back-off.
    BackOff,
}

/// The pattern in which the pod was stuck when it was read, and for how long, if it was stuck.
pub fn pattern(pod: &SuspectPod) -> Option<(Pattern, Duration)> {
    if let Some(overdue) = pod.overdue {
        return (overdue >= stuck_daemon_set_pod::TERMINATING).then_some((Pattern::Terminating, overdue));
    }
    if pod.ready {
        return None;
    }
    let creating = pod.waiting.iter().any(|c| is_creating(&c.reason));
    if let Some(without) = pod.without_sandbox.filter(|lasted| creating && *lasted >= stuck_daemon_set_pod::CREATING) {
        return Some((Pattern::Creating, without));
    }
    let named = pod
        .waiting
        .iter()
        .filter(|c| c.reason == "CrashLoopBackOff" && c.back_off.is_some_and(|b| b >= LONGEST_BACK_OFF))
        .filter_map(|c| c.ended);
    let unnamed = pod.failed.iter().filter(|c| waits_longest(c)).map(|c| c.ended);
    named
        .chain(unnamed)
        .filter(|ended| *ended >= stuck_daemon_set_pod::BACK_OFF)
        .max()
        .map(|ended| (Pattern::BackOff, ended))
}

/// Whether a container that has failed can only be waiting at the longest back-off, although the kubelet does not say so yet.
///
/// Measured with kubelet 1.36: after each end the kubelet shows `terminated` for 83 to 90 s and only then `CrashLoopBackOff`. It
/// names a back-off when it tries the pod again and is refused, which happens at its next round over all pods. By the name alone
/// a pod is found that much later. Four facts show the wait without the name. The container was restarted often enough. The wait
/// before its last run was the one before the longest (the count alone may have accumulated over months). That run was too short
/// for the kubelet to reset the back-off. The longest back-off is not over. If a value is missing or contradicts, the answer is
/// no.
fn waits_longest(container: &FailedContainer) -> bool {
    container.restarts >= RESTARTS_BEFORE_LONGEST
        && container.waited.is_some_and(|waited| waited >= BEFORE_LONGEST)
        && container.ran.is_some_and(|ran| ran < BACK_OFF_RESET)
        && container.ended < LONGEST_BACK_OFF
}

/// Whether the pod waits for its sandbox, its network or the end of its containers: for something on the node that may hang.
pub fn waits_for_the_node(pod: &SuspectPod) -> bool {
    pod.overdue.is_some() || (!pod.ready && pod.waiting.iter().any(|c| is_creating(&c.reason)))
}

/// Whether the pod waits for the network plugin of the node, or may wait for it.
pub fn waits_for_the_network(pod: &SuspectPod) -> bool {
    !pod.host_network && waits_for_the_node(pod)
}

fn is_creating(reason: &str) -> bool {
    matches!(reason, "ContainerCreating" | "PodInitializing")
}

/// The stuck pods among those of one node, most urgent first. `faults` are those that its probe reports, in whatever state.
pub fn stuck_pods(now: Timestamp, pods: &[&SuspectPod], faults: &[&Fault]) -> Vec<Fault> {
    let mut found: Vec<Fault> = pods
        .iter()
        .filter_map(|pod| {
            let daemon_set = pod.daemon_set.as_deref()?;
            let (pattern, at_read) = pattern(pod)?;
            let lasted = at_read.saturating_add(pod.read);
            Some(fault(now, pod, daemon_set, pattern, lasted, cause(pod, faults)))
        })
        .collect();
    found.sort_by(Fault::by_urgency);
    found.dedup_by(|a, b| a.id == b.id);
    found
}

/// The fault on the node that explains the pod: first a fault of one of its own containers, then a hung plugin for a pod that
/// waits for its network, then the runtime itself.
fn cause<'a>(pod: &SuspectPod, faults: &[&'a Fault]) -> Option<&'a Fault> {
    Fault::likely_cause(faults, |fault| {
        let own = fault.is_about_pod(&pod.pod.uid);
        match fault.kind {
            FaultType::HungContainer | FaultType::NetworkPluginHung | FaultType::RuntimeClientHung if own => Some(0),
            FaultType::ContainerStuck | FaultType::LostTask | FaultType::LeakedShim | FaultType::OrphanContainer
                if own =>
            {
                Some(1)
            }
            FaultType::NetworkPluginHung | FaultType::NetworkNotReady if waits_for_the_network(pod) => Some(2),
            FaultType::SyncLoopStalled if waits_for_the_node(pod) => Some(2),
            kind if kind.spec().runtime_unresponsive || kind == FaultType::KubeletDown => Some(3),
            _ => None,
        }
    })
}

fn fault(
    now: Timestamp,
    pod: &SuspectPod,
    daemon_set: &str,
    pattern: Pattern,
    lasted: Duration,
    cause: Option<&Fault>,
) -> Fault {
    let what = match pattern {
        Pattern::Terminating => "should have been gone after its grace period and is still there".to_owned(),
        Pattern::Creating => "waits for its containers to be created".to_owned(),
        Pattern::BackOff => "waits in CrashLoopBackOff at the longest back-off".to_owned(),
    };
    let is_fresh = pod.read <= FRESH;
    let until = if is_fresh { "" } else { ", by its last read; it could not be read since" };
    let because = Fault::because(cause, "cause on the node");
    let mut subject = Subject::of(SubjectKind::Pod);
    subject.name = Some(daemon_set.to_owned());
    subject.pod = Some(pod.pod.clone());
    Fault {
        state: if is_fresh { FaultState::Confirmed } else { FaultState::Suspected },
        subject,
        target: Target { pod: Some(pod.pod.clone()), ..Target::default() },
        message: bounded(&format!("pod {} of DaemonSet {daemon_set} {what}{until}{because}", pod.pod), MAX_LINE),
        impact: bounded(&format!("DaemonSet {daemon_set} does not do its work on this node"), MAX_LINE),
        first_seen: begun(now, lasted),
        duration_seconds: lasted.as_secs(),
        check_age_seconds: pod.read.as_secs(),
        evidence: evidence(pod, cause),
        ..Fault::new(FaultType::StuckDaemonSetPod, &pod.pod.uid)
    }
}

/// Facts that do not change from pass to pass, one a line.
fn evidence(pod: &SuspectPod, cause: Option<&Fault>) -> Vec<String> {
    let mut lines = Vec::new();
    if pod.overdue.is_some() {
        lines.push("deletion was asked for, and its grace period is over".to_owned());
    }
    for container in &pod.waiting {
        let back_off =
            container.back_off.map_or_else(String::new, |b| format!(", back-off {}s at restart", b.as_secs()));
        lines
            .push(format!("container {} waits: {}{back_off} {}", container.name, container.reason, container.restarts));
    }
    for container in pod.failed.iter().filter(|container| waits_longest(container)) {
        let (name, waited, restarts) = (&container.name, container.waited.unwrap_or_default(), container.restarts);
        lines.push(format!(
            "container {name} ended, and the kubelet had waited {}s before it started it: it waits longest now, \
             restart {restarts}",
            waited.as_secs()
        ));
    }
    if let Some(cause) = cause {
        lines.push(cause.message.clone());
    }
    lines.truncate(MAX_EVIDENCE);
    lines.iter().map(|line| bounded(line.trim_end(), MAX_LINE)).collect()
}
