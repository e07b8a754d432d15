//! `ContainerStuck`: a container that neither starts nor goes away. Its removal has failed, or its start does not complete.

use std::time::Duration;

use super::spec::FaultSpec;
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, SubjectKind};
use crate::finding::{
    Check, Coverage, Detected, Findings, Sighting, Verdict, answer, container_of, lists, phrase, short,
};
use crate::observation::{
    ContainerSeen, ContainerState, ListRound, Observations, Reading, RemovalSeen, RemovalState, RuntimeKind, TaskAnswer,
};
use crate::text::bounded;
use crate::thresholds::Confirm;

/// A kubelet starts a container that it has made within seconds, or makes another one within minutes. A removal that Docker calls
/// failed does not continue by itself. The kubelet tries again every minute, and a busy mount may be released within that time.
const CONFIRM: Confirm = Confirm::new("containerStuck", 3, 30, 600);

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    condition: Some(ConditionType::SandboxesConsistent),
    ..FaultSpec::new(FaultGroup::Pods, Severity::Low, SubjectKind::Container)
};

/// A container is made and started within seconds. One that a check finds in between is no fault.
const IN_BETWEEN: Duration = Duration::from_mins(1);

pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (lists, checked) = lists(seen)?;
    let removals = match (&lists.removals, seen.kind) {
        (Some(removals), _) => removals.as_slice(),
        (None, RuntimeKind::Containerd | RuntimeKind::CriO | RuntimeKind::Other) => &[],
        (None, RuntimeKind::Unknown) => return Err(crate::finding::kind_not_known()),
        (None, RuntimeKind::Docker) => {
            return Err(Verdict::failed("Docker itself could not be asked which containers it is removing"));
        }
    };
    let mut coverage = Coverage::new(Verdict::Clean { checked });
    let max_age = findings.task_max_age;
    let mut found = |container: &ContainerSeen, impact, (message, evidence)| {
        let (subject, target) = container_of(container);
        let base = Sighting::new(FaultType::ContainerStuck, &container.id, checked, thresholds.confirm(&CONFIRM));
        findings.sight(Sighting { subject, target, message, impact, evidence, ..base });
    };
    for removal in removals {
        let key = &removal.container.id;
        match &removal.state {
            Some(RemovalState::Failed(cause)) => {
                let impact = "its files and its name stay, and the kubelet tries to remove it again and again";
                found(&removal.container, impact, failed(removal, cause));
            }
            Some(RemovalState::NotFailed | RemovalState::Gone) => coverage.note(key, Verdict::Clean { checked }),
            None => {
                let detail = format!("Docker did not say how the removal of {} stands", short(key));
                coverage.note(key, Verdict::failed(&detail));
            }
        }
    }
    let is_removed = |id: &str| removals.iter().any(|removal| removal.container.id == id);
    let mut unasked = Vec::new();
    for container in lists.containers.iter().filter(|container| !is_removed(&container.id)) {
        let Some(how) = unfinished(container, lists) else {
            if lists.unfinished.get(&container.id).is_some_and(|since| *since < IN_BETWEEN) {
                // A probe that has just begun does not know since when. A container that was given up is clean.
                coverage.note(&container.id, Verdict::undecided("it may be on its way"));
            }
            continue;
        };
        match failed_to_start(container, seen, max_age) {
            Ok(true) => {}
            Ok(false) => {
                let impact = if is_replaced(container, lists) {
                    "its files and its name stay, and the kubelet tries to stop it again and again"
                } else {
                    "its pod gets no further as long as it is so"
                };
                found(container, impact, in_between(container, how));
            }
            Err(verdict) => {
                unasked.push(&container.id);
                coverage.note(&container.id, verdict);
            }
        }
    }
    for id in unasked {
        findings.ask(id);
    }
    Ok(coverage)
}

/// What blocks a container that neither runs nor has ended, and that its kubelet would not leave in this state. A created
/// container that its kubelet has replaced was given up: the kubelet keeps it as the last dead instance, and Docker lists one whose
/// start has failed as created. A container without a ready sandbox is about to be removed, or is an orphan.
fn unfinished(container: &ContainerSeen, lists: &ListRound) -> Option<&'static str> {
    container.pod.as_ref()?;
    lists.unfinished.get(&container.id).filter(|since| **since >= IN_BETWEEN)?;
    match container.state {
        ContainerState::Created => {
            let ready = lists.sandboxes.iter().any(|sandbox| sandbox.ready && sandbox.id == container.sandbox_id);
            (ready && !is_replaced(container, lists)).then_some("created and not started")
        }
        ContainerState::Unknown => Some("in a state that the runtime does not know"),
        ContainerState::Running | ContainerState::Exited => None,
    }
}

/// Whether the start of a created container has failed. Docker lists it as created for as long as it is there. Asked by id, it
/// reports an exit code, and the kubelet knows that the container has ended.
fn failed_to_start(container: &ContainerSeen, seen: &Observations, max_age: Duration) -> Result<bool, Verdict> {
    if seen.kind != RuntimeKind::Docker || container.state != ContainerState::Created {
        return Ok(false);
    }
    match seen.tasks.get(&container.id) {
        // Docker holds the lock of a container while it starts it.
        Some(Reading::Hung { .. }) => Ok(false),
        Some(reading) => answer(reading, seen.now, "its state", max_age).map(|(task, _)| *task == TaskAnswer::Ended),
        None => Err(Verdict::undecided("Docker was not asked yet whether its start has failed")),
    }
}

/// Whether another container of this name runs, or was made since. The pod does not wait for this one then.
fn is_replaced(container: &ContainerSeen, lists: &ListRound) -> bool {
    lists.containers.iter().any(|other| {
        let is_later = other.attempt > container.attempt || other.state == ContainerState::Running;
        is_later && other.name == container.name && other.id != container.id && pod_uid(other) == pod_uid(container)
    })
}

fn pod_uid(container: &ContainerSeen) -> Option<&str> {
    container.pod.as_ref().map(|pod| pod.uid.as_str())
}

fn in_between(container: &ContainerSeen, how: &str) -> (String, Vec<String>) {
    let line = format!("container {} is {how}, attempt {}", short(&container.id), container.attempt);
    (format!("{} stays {how}", phrase(container)), vec![line])
}

/// Docker still calls a failed removal `removing` in its list. Asked by id, it says `dead` and names the cause. Only both
/// together are a sign: the removal of a large container may take long.
fn failed(removal: &RemovalSeen, cause: &str) -> (String, Vec<String>) {
    let container = &removal.container;
    let cause = bounded(cause, 256);
    let lines = vec![
        format!("Docker lists {} as being removed", short(&container.id)),
        format!("asked by id, Docker calls it dead: {cause}"),
    ];
    (format!("Docker cannot remove {}: {cause}", phrase(container)), lines)
}
