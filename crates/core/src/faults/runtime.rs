//! `RuntimeUnreachable`, `RuntimeListHung` and `RuntimeUpdateBlocked`: the runtime as a whole.

use std::time::Duration;

use super::runtime_client_hung::is_awaited;
use super::spec::{ByDaemon, FaultSpec, NO_RESTART, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{Daemon, FaultGroup, FaultType, Severity, Subject, SubjectKind};
use crate::finding::{
    Check, Coverage, Detected, Findings, STALE, Sighting, Verdict, answer, describe, evidence, is_daemon_of, lists,
    processes,
};
use crate::observation::{Observations, PossibleRole, ProcessRole, Reading};
use crate::text::bounded;
use crate::thresholds::{Confirm, LIST_DEADLINE};

/// Three checks in a row in which the socket refuses or does not answer a version call. A restart takes about 10 s.
const CONFIRM_UNREACHABLE: Confirm = Confirm::new("runtimeUnreachable", 3, 10, 30).may_be_slow();

/// Three checks of a list call, of sandboxes or of containers, that has not returned for longer than [`LIST_DEADLINE`].
const CONFIRM_LIST_HUNG: Confirm = Confirm::new("runtimeListHung", 3, 10, 20).may_be_slow();

pub(super) const UNREACHABLE: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM_UNREACHABLE],
    condition: Some(ConditionType::RuntimeReady),
    restart_harms: |_| ByDaemon { kubelet: true, runtime: false },
    runtime_unresponsive: true,
    down: Some(Daemon::Runtime),
    names: |_| true,
    pods_cannot_end: true,
    remedy: Remedy { restart: |_| ByDaemon { runtime: Ok(()), ..NO_RESTART }, new_boot: Ok(()), ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Runtime, Severity::Critical, SubjectKind::Runtime)
};

pub(super) const LIST_HUNG: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM_LIST_HUNG],
    bounds: &[&LIST_DEADLINE],
    condition: Some(ConditionType::RuntimeReady),
    time_to_confirm: Some(|of| of.bound(&LIST_DEADLINE).saturating_add(of.confirm(&CONFIRM_LIST_HUNG).usual_time())),
    restart_harms: |_| ByDaemon { kubelet: true, runtime: true },
    runtime_unresponsive: true,
    names: |_| true,
    pods_cannot_end: true,
    remedy: Remedy { restart: |_| ByDaemon { runtime: Ok(()), ..NO_RESTART }, new_boot: Ok(()), ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Runtime, Severity::High, SubjectKind::Runtime)
};

pub(super) const UPDATE_BLOCKED: FaultSpec = FaultSpec {
    remedy: Remedy {
        restart: |_| ByDaemon { runtime: Err("a restart leaves the shim behind that blocks it"), ..NO_RESTART },
        ..Remedy::USUAL
    },
    ..LIST_HUNG
};

/// Age from which a child of the runtime that still runs is no passing moment.
const IN_FLIGHT: Duration = Duration::from_secs(30);

/// Keys of the components. A node has one of each.
const RUNTIME: &str = "runtime";
const LISTS: &str = "lists";

/// Determines whether no daemon of the runtime is among the processes of the node. An unproven process may be one.
pub(super) fn is_gone(&Check { seen, known, .. }: &Check<'_>) -> bool {
    known.host_processes
        && processes(seen).is_ok_and(|(table, _)| {
            !table.processes.iter().any(|process| is_daemon_of(seen.kind, process))
                && table.unproven.iter().all(|process| process.possible_role != PossibleRole::Other)
                && table.left_out.processes.is_none()
        })
}

pub(super) fn unreachable(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (how, detail, checked) = match &seen.runtime {
        Reading::Hung { .. } => ("does not answer a version call", String::new(), seen.now),
        // An old failure proves nothing about now, and neither does an old answer.
        Reading::Failed { error, age } if *age <= STALE => {
            ("cannot be reached", bounded(error, 256), seen.now.saturating_sub(*age))
        }
        reading => {
            let (_, checked) = answer(reading, seen.now, "the runtime", STALE)?;
            return Ok(Coverage::new(Verdict::Clean { checked }));
        }
    };
    let process = match seen.processes.value() {
        None => "whether its process runs is not known".to_owned(),
        Some(table) => table.processes.iter().find(|process| is_daemon_of(seen.kind, process)).map_or_else(
            || match &table.left_out.processes {
                None => "no process of it was found".to_owned(),
                Some(why) => format!("no process of it was found among those that were read: {why}"),
            },
            |process| format!("its process runs: {}", describe(process)),
        ),
    };
    let because = if detail.is_empty() { String::new() } else { format!(": {detail}") };
    findings.sight(Sighting {
        subject: Subject::of(SubjectKind::Runtime),
        message: format!("the container runtime {how} on a fresh connection{because}"),
        impact: "no container of this node can be started, stopped or asked about",
        // CRI-O asks its client for the state of each container before it answers.
        evidence: std::iter::once(process).chain(long_at_work(seen, |_| true)).collect(),
        ..Sighting::new(FaultType::RuntimeUnreachable, RUNTIME, checked, thresholds.confirm(&CONFIRM_UNREACHABLE))
    });
    Ok(Coverage::new(Verdict::failed(&format!("the runtime {how}"))))
}

/// Detects a list call that does not return. The list that does not return shows what is stuck: the runtime as a whole, or one
/// update of one container. containerd locks the status of a container while it updates it. Its list of containers reads the
/// status of each container, and its list of sandboxes does not.
pub(super) fn list_hung(check: &Check<'_>, findings: &mut Findings) -> Detected {
    let detected = hung_list(check, findings);
    findings.cover(FaultType::RuntimeUpdateBlocked, detected.clone().unwrap_or_else(Coverage::new));
    detected
}

fn hung_list(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let Reading::Hung { out } = &seen.lists else { return Ok(Coverage::new(Verdict::clean_at(lists(seen)))) };
    // Without a version answer, the runtime as a whole is in question.
    answer(&seen.runtime, seen.now, "the runtime", STALE)?;
    let limit = thresholds.bound(&LIST_DEADLINE).as_secs();
    if *out < thresholds.bound(&LIST_DEADLINE) {
        return Err(Verdict::failed(&format!("a list has been out for less than {limit} s")));
    }
    let (kind, list, message, impact) = if seen.sandbox_list_hung {
        (
            FaultType::RuntimeListHung,
            "ListPodSandbox",
            "the runtime answers a version call, but its list of sandboxes does not come back: the runtime as a whole is stuck",
            "the kubelet cannot see its pods; the node turns NotReady after three minutes",
        )
    } else {
        (
            FaultType::RuntimeUpdateBlocked,
            "ListContainers",
            "the runtime lists its sandboxes, but not its containers: one blocked update of one container blocks the whole list; find a shim that does not answer, and a container that is being resized",
            "the kubelet cannot see its containers; the node turns NotReady after three minutes",
        )
    };
    let mut lines = vec![format!("{list} has been out for more than {limit} s")];
    if let Some(table) = seen.processes.value() {
        let stopped = table.processes.iter().filter(|p| p.state == 'T' && matches!(p.role, ProcessRole::Shim { .. }));
        lines.extend(stopped.map(|process| format!("a stopped shim: {}", describe(process))));
    }
    findings.sight(Sighting {
        subject: Subject::named(SubjectKind::Runtime, list),
        message: message.to_owned(),
        impact,
        evidence: lines,
        ..Sighting::new(kind, LISTS, seen.now, thresholds.confirm(&CONFIRM_LIST_HUNG))
    });
    Ok(Coverage::new(Verdict::failed("a list does not come back")))
}

/// Finds starts and stops that have run for so long that a restart of the runtime would interrupt them.
pub(super) fn in_flight(seen: &Observations) -> Vec<String> {
    evidence(long_at_work(seen, is_awaited).collect())
}

fn long_at_work(seen: &Observations, is_counted: impl Fn(&str) -> bool) -> impl Iterator<Item = String> {
    let processes = seen.processes.value().map_or(&[][..], |table| &table.processes);
    processes.iter().filter(|process| process.age >= IN_FLIGHT).filter_map(move |process| {
        let ProcessRole::RuntimeClient { verb, .. } = &process.role else { return None };
        is_counted(verb).then(|| {
            format!(
                "`{}` has been at work for more than {} s: {}",
                bounded(verb, 32),
                IN_FLIGHT.as_secs(),
                describe(process)
            )
        })
    })
}
