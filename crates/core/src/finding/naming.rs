//! The names of objects in faults. Every name is bounded: it comes from the runtime or from processes and may contain anything.

use super::Verdict;
use crate::fault::{MAX_EVIDENCE, MAX_LINE, PodRef, ProcessRef, Role, Subject, SubjectKind, Target};
use crate::observation::{ContainerSeen, Observations, ProcessSeen, UnprovenProcess};
use crate::text::bounded;

/// The process as a fault names it.
pub(crate) fn process_ref(process: &ProcessSeen, role: Role) -> ProcessRef {
    ProcessRef {
        role,
        pid: process.pid,
        start_ticks: process.start_ticks,
        state: process.state.to_string(),
        wchan: process.wchan.as_deref().map(|text| bounded(text, 64)),
        command: bounded(&process.command, 64),
    }
}

/// Describes a process: `process 4711 (containerd-shim), state T, waits in do_signal_stop`.
pub(crate) fn describe(process: &ProcessSeen) -> String {
    let wchan = process.wchan.as_deref().filter(|text| !text.is_empty() && *text != "0");
    let waits = wchan.map_or_else(String::new, |text| format!(", waits in {}", bounded(text, 64)));
    format!("process {} ({}), state {}{waits}", process.pid, bounded(&process.command, 64), process.state)
}

/// The verdict where an unproven process may be the one that a check searches for: nobody knows whether there is one.
pub(super) fn unproven(process: &UnprovenProcess) -> Verdict {
    let (pid, state, command) = (process.pid, process.state, bounded(&process.command, 64));
    Verdict::failed(&format!("what process {pid} ({command}, state {state}) is could not be proven"))
}

pub(crate) fn evidence(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().take(MAX_EVIDENCE).map(|line| bounded(&line, MAX_LINE)).collect()
}

pub(crate) fn short(id: &str) -> String {
    bounded(id, 12)
}

pub(crate) fn of_pod(pod: Option<&PodRef>) -> String {
    pod.map_or_else(String::new, |pod| format!(" of {}/{}", bounded(&pod.namespace, 63), bounded(&pod.name, 253)))
}

/// A container in a sentence, with its pod: `container log of kube-system/fluentd-x7k2p`.
pub(crate) fn phrase(container: &ContainerSeen) -> String {
    format!("container {}{}", bounded(&container.name, 63), of_pod(container.pod.as_ref()))
}

/// A container as a fault names it, and as an action targets it. Every text is bounded.
pub(crate) fn container_of(container: &ContainerSeen) -> (Subject, Target) {
    let subject = Subject {
        id: Some(bounded(&container.id, 128)),
        name: Some(bounded(&container.name, 253)),
        pod: container.pod.as_ref().map(bounded_pod),
        sandbox_id: Some(bounded(&container.sandbox_id, 128)),
        ..Subject::of(SubjectKind::Container)
    };
    let target = Target {
        container_id: subject.id.clone(),
        sandbox_id: subject.sandbox_id.clone(),
        pod: subject.pod.clone(),
        ..Target::default()
    };
    (subject, target)
}

pub(crate) fn bounded_pod(pod: &PodRef) -> PodRef {
    PodRef { namespace: bounded(&pod.namespace, 63), name: bounded(&pod.name, 253), uid: bounded(&pod.uid, 64) }
}

/// The pod of the sandbox with this id, if the newest list contains it.
pub(crate) fn pod_of(sandbox_id: &str, seen: &Observations) -> Option<PodRef> {
    let sandboxes = &seen.lists.value()?.sandboxes;
    sandboxes.iter().find(|sandbox| sandbox.id == sandbox_id).map(|sandbox| bounded_pod(&sandbox.pod))
}
