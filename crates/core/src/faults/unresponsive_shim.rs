//! `UnresponsiveShim`: a shim that may keep the runtime from starting.
//!
//! At its start containerd asks each shim that it finds, and some versions wait for each without a limit. Only the process table
//! answers then. A shim counts if it is stopped and has no living child.

use std::time::Duration;

use super::spec::{ByDaemon, FaultSpec, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Role, Severity, Subject, SubjectKind, Target};
use crate::finding::{
    Check, Coverage, Detected, Findings, STALE, Sighting, Verdict, absent, absent_of, answer, describe, is_daemon_of,
    kind_not_known, process_ref, processes, short,
};
use crate::observation::{PossibleRole, ProcessRole, ProcessSeen, Reading, RuntimeKind};
use crate::text::{bounded, is_full_id};
use crate::thresholds::Confirm;

/// Three checks 20 s apart. A start of the runtime asks each shim in turn, for 5 s each where it has a limit.
const CONFIRM: Confirm = Confirm::new("unresponsiveShim", 3, 20, 120).may_be_slow();

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    condition: Some(ConditionType::SandboxesConsistent),
    restart_harms: |_| ByDaemon { kubelet: false, runtime: true },
    remedy: Remedy { leftover: Ok(()), ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Runtime, Severity::High, SubjectKind::Shim)
};

pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let silent = match &seen.runtime {
        Reading::Hung { .. } => true,
        Reading::Failed { age, .. } => *age <= STALE,
        _ => false,
    };
    let is_containerd = |process: &ProcessSeen| is_daemon_of(RuntimeKind::Containerd, process);
    let runs = processes(seen).is_ok_and(|(table, _)| table.processes.iter().any(is_containerd));
    match (seen.kind, silent) {
        // A probe that begins while containerd is stuck does not know the kind of the runtime yet.
        (RuntimeKind::Containerd, true) => {}
        (RuntimeKind::Unknown, true) if runs => {}
        (RuntimeKind::Unknown, _) => return Err(kind_not_known()),
        // The runtime answers, so nothing blocks it (an orphan shim is a LeakedShim). Or it waits for no shim at its start.
        _ => {
            return Ok(Coverage::new(Verdict::clean_at(answer(&seen.runtime, seen.now, "the runtime", STALE))));
        }
    }
    let (table, checked) = processes(seen)?;
    let mut coverage = Coverage::new(absent_of(PossibleRole::Shim, Duration::ZERO, table, checked));
    for process in &table.processes {
        let ProcessRole::Shim { id, living_children: 0 } = &process.role else { continue };
        if process.parent != 1 || process.state != 'T' || !is_full_id(id) {
            continue;
        }
        if table.left_out.processes.is_some() {
            // The shim may have children among the missing processes.
            coverage.note(id, absent(table, checked));
            continue;
        }
        if !runs {
            // The runtime is between two starts: nothing waits for the shim at this moment.
            coverage.note(id, Verdict::undecided("the runtime does not run"));
            continue;
        }
        let message = format!(
            "shim {} is stopped with nothing alive below it, while the runtime runs and does not answer: {}",
            short(id),
            describe(process)
        );
        let sandbox_id = Some(bounded(id, 128));
        findings.sight(Sighting {
            subject: Subject {
                id: sandbox_id.clone(),
                sandbox_id: sandbox_id.clone(),
                ..Subject::of(SubjectKind::Shim)
            },
            target: Target { process: Some(process_ref(process, Role::Shim)), sandbox_id, ..Target::default() },
            message,
            impact: "containerd asks every shim at its start, and some versions wait for this one without end: no \
                     restart of the runtime helps",
            evidence: vec![
                "the runtime's process runs, and its socket gives no answer".to_owned(),
                "it has no living child, and its parent is process 1".to_owned(),
                describe(process),
            ],
            ..Sighting::new(FaultType::UnresponsiveShim, id, checked, thresholds.confirm(&CONFIRM))
        });
    }
    Ok(coverage)
}
