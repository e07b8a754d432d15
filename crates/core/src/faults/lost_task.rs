//! `LostTask`: a container is listed as running, and nothing of it runs.

use super::spec::FaultSpec;
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, SubjectKind};
use crate::finding::{
    Check, Coverage, Detected, Findings, Sighting, Verdict, answer, asks_single, container_of, lists, phrase,
    processes, short,
};
use crate::observation::{ContainerState, ProcessTable, RuntimeKind, TaskAnswer};
use crate::thresholds::Confirm;

/// The runtime's list follows the end of a process within a second. A restarted runtime first loads its containers.
const CONFIRM: Confirm = Confirm::new("lostTask", 3, 20, 60).may_be_slow();

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    condition: Some(ConditionType::ContainersResponsive),
    ..FaultSpec::new(FaultGroup::Pods, Severity::Medium, SubjectKind::Container)
};

/// Detects containers that are listed as running, and whose task has ended or does not exist. The runtime has missed the end of
/// the task. The kubelet believes the list and does not start another container.
///
/// Only a list that was requested after the answer of the task counts: a container that has just ended leaves the list later.
pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (lists, listed) = lists(seen)?;
    asks_single(seen.kind)?;
    // A missing process proves something only in the node's own process table.
    let table = processes(seen);
    let mut coverage = Coverage::new(Verdict::Clean { checked: listed });
    let max_age = findings.task_max_age;
    for container in lists.containers.iter().filter(|one| one.state == ContainerState::Running && one.pod.is_some()) {
        let later = |detail: &str| Verdict::undecided(&format!("task {}: {detail}", short(&container.id)));
        let reading = seen.tasks.get(&container.id).map(|reading| answer(reading, seen.now, "its task", max_age));
        // CRI-O answers with the state that it lists. The container's first process is the child of its conmon.
        let reading = match (reading, &table) {
            (Some(Ok((TaskAnswer::DaemonAnswered, _))), Ok((table, checked))) if seen.kind == RuntimeKind::CriO => {
                of_conmon(&container.id, table).map(|task_answer| Ok((task_answer, *checked)))
            }
            // Whether its process is gone is not known, see below.
            (Some(Ok((TaskAnswer::DaemonAnswered, asked))), Err(_)) if seen.kind == RuntimeKind::CriO => {
                Some(Ok((&TaskAnswer::ProcessGone, asked)))
            }
            (reading, _) => reading,
        };
        let (what, asked) = match reading {
            Some(Ok((TaskAnswer::Ended, asked))) => ("has ended", asked),
            Some(Ok((TaskAnswer::NotFound, asked))) => ("is not there", asked),
            Some(Ok((TaskAnswer::ProcessGone, asked))) => match &table {
                Ok(_) => ("has lost its process", asked),
                Err(verdict) => {
                    coverage.note(&container.id, verdict.clone());
                    continue;
                }
            },
            other => {
                let verdict = match other {
                    Some(Ok((TaskAnswer::Answered | TaskAnswer::DaemonAnswered, asked))) => {
                        Verdict::Clean { checked: asked }
                    }
                    // The probe asks each task in turn, and a silent task is another fault. This is no gap of this fault.
                    _ => later("it has not answered yet"),
                };
                coverage.note(&container.id, verdict);
                continue;
            }
        };
        findings.ask(&container.id);
        if listed.saturating_sub(lists.containers_before) <= asked {
            coverage.note(&container.id, later("the list of containers is older than its answer"));
            continue;
        }
        let message = format!("{} is listed as running, but its task {what}", phrase(container));
        let (subject, target) = container_of(container);
        findings.sight(Sighting {
            subject,
            target,
            message,
            impact: "nothing of the container runs, and the kubelet does not start it again: it believes the list",
            evidence: vec![
                format!("a list that was asked for after the task's answer has {} as running", short(&container.id)),
                format!("{}: task {} {what}", witness(seen.kind), short(&container.id)),
            ],
            ..Sighting::new(FaultType::LostTask, &container.id, asked, thresholds.confirm(&CONFIRM))
        });
    }
    Ok(coverage)
}

/// Who says what became of a task.
const fn witness(kind: RuntimeKind) -> &'static str {
    match kind {
        RuntimeKind::Docker => "Docker, asked by id",
        RuntimeKind::CriO => "its conmon",
        _ => "containerd",
    }
}

/// What the conmon of a container of CRI-O shows: whether it has a living child. `None` without a complete check of one.
fn of_conmon<'a>(id: &str, table: &ProcessTable) -> Option<&'a TaskAnswer> {
    let serving = table.processes.iter().filter_map(|process| process.role.serves());
    let living_children = serving.filter(|(served, _)| *served == id).map(|(_, alive)| alive).max()?;
    match living_children {
        0 if table.left_out.processes.is_some() => None,
        0 => Some(&TaskAnswer::ProcessGone),
        _ => Some(&TaskAnswer::Answered),
    }
}
