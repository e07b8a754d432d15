//! `UninterruptibleProcess`: a process of the runtime or the kubelet waits in the kernel and cannot be ended.

use std::time::Duration;

use super::spec::{ByDaemon, FaultSpec, Holds};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, Subject, SubjectKind};
use crate::finding::{
    Check, Coverage, Detected, Findings, STALE, Sighting, Verdict, absent, answer, pod_of, processes,
};
use crate::observation::{Observations, Owner, PossibleRole, ProcessRole, ProcessSeen, ProcessTable, UnprovenProcess};
use crate::text::bounded;
use crate::thresholds::{Bound, Confirm, Thresholds};

/// Three checks of a wait that is already longer than [`AGE`]. A disk that is frozen for a snapshot blocks a process for seconds.
/// A flush to a disk under load blocks it for minutes.
const CONFIRM: Confirm = Confirm::new("uninterruptibleProcess", 3, 20, 600);

/// Time from which an uninterruptible wait counts, if the process has not run in between. The kernel's own detector of hung tasks
/// uses the same evidence, over 120 s.
const AGE: Bound = Bound::new("uninterruptibleAge", 60);

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    bounds: &[&AGE],
    condition: Some(ConditionType::HostHealthy),
    lasting: true,
    time_to_confirm: Some(|of| of.bound(&AGE).saturating_add(of.confirm(&CONFIRM).usual_time())),
    // A kubelet with such a thread does not end and keeps its ports, so the next kubelet cannot open them. A process of the
    // runtime outlives the runtime as a leftover that does not answer.
    restart_harms: |fault| ByDaemon { kubelet: matches!(fault.subject.kind, SubjectKind::Kubelet), runtime: true },
    holds: Holds::OwnPod,
    ..FaultSpec::new(FaultGroup::Node, Severity::Medium, SubjectKind::Process)
};

/// Most of these faults in one report. Behind one dead disk there may be hundreds, and all say the same.
const MAX_REPORTED: usize = 16;

/// A process, or a thread of a daemon, that waits.
struct Waiting {
    /// Process id and start. The id of a shim cannot be read any more once the shim waits.
    key: String,
    /// The role of the process, as people know it.
    role: String,
    /// The subject of a fault about the process.
    kind: SubjectKind,
    command: String,
    pid: i32,
    /// The thread that waits, if it is not known to be the process itself.
    thread: Option<i32>,
    wchan: Option<String>,
    waited: Duration,
    sandbox_id: Option<String>,
    checked: Duration,
}

/// Detects processes that have waited uninterruptibly for long and, by the kernel's count, have not run at all in between. On a
/// slow disk a process that reads also waits long, but it runs between one request and the next. A process that flushes may wait
/// for minutes, so the fault is confirmed late.
pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (table, checked) = processes(seen)?;
    let mut coverage = Coverage::new(absent(table, checked));
    let mut found = of_table(table, checked);
    match answer(&seen.host, seen.now, "the threads of kubelet and runtime", STALE) {
        Err(verdict) => coverage.others = verdict,
        Ok((host, checked)) => {
            if let Some(why) = &host.unseen {
                coverage.others = Verdict::failed(why);
            }
            for daemon in &host.daemons {
                let key = key_of(daemon.pid, daemon.start_ticks);
                let verdict = match &daemon.waiting {
                    Ok(None) => Verdict::Clean { checked },
                    Ok(Some(thread)) => {
                        found.push(Waiting {
                            key: key.clone(),
                            role: daemon.owner.to_string(),
                            kind: if daemon.owner == Owner::Kubelet {
                                SubjectKind::Kubelet
                            } else {
                                SubjectKind::Process
                            },
                            command: daemon.owner.key().to_owned(),
                            pid: daemon.pid,
                            thread: Some(thread.thread),
                            wchan: thread.wchan.clone(),
                            waited: thread.waited,
                            sandbox_id: None,
                            checked,
                        });
                        Verdict::undecided("a thread of it waits")
                    }
                    Err(why) => Verdict::failed(&format!("the threads of {} are not known: {why}", daemon.owner)),
                };
                coverage.note(&key, verdict);
            }
        }
    }
    // The process that has waited for the longest is nearest to the cause.
    found.sort_by(|a, b| b.waited.cmp(&a.waited).then_with(|| a.key.cmp(&b.key)));
    let mut reported = 0_usize;
    for one in &found {
        let verdict = Verdict::undecided("it waits, or another one is reported instead");
        coverage.note(&one.key, verdict);
        if one.waited < thresholds.bound(&AGE) || reported >= MAX_REPORTED {
            continue;
        }
        reported += 1;
        findings.sight(sighting(one, seen, thresholds));
    }
    Ok(coverage)
}

fn key_of(pid: i32, start_ticks: u64) -> String {
    format!("{pid}.{start_ticks}")
}

/// The waiting processes of the process table. The kubelet and the runtime are checked thread by thread elsewhere.
fn of_table(table: &ProcessTable, checked: Duration) -> Vec<Waiting> {
    let waiting = |role: String, pid: i32, start_ticks: u64, command: &str, waited: Duration| Waiting {
        key: key_of(pid, start_ticks),
        role,
        kind: SubjectKind::Process,
        command: command.to_owned(),
        pid,
        thread: None,
        wchan: None,
        waited,
        sandbox_id: None,
        checked,
    };
    let proven = table.processes.iter().filter_map(|process| {
        let ProcessSeen { pid, start_ticks, command, wchan, waited, .. } = process;
        let (role, sandbox_id) = match &process.role {
            ProcessRole::Shim { id, .. } => ("shim".to_owned(), Some(id.clone())),
            ProcessRole::NetworkPlugin { sandbox_id, .. } => ("network plugin".to_owned(), sandbox_id.clone()),
            ProcessRole::RuntimeClient { verb, .. } => (format!("runtime client at `{}`", bounded(verb, 16)), None),
            ProcessRole::Monitor { .. } => ("conmon".to_owned(), None),
            ProcessRole::Runtime | ProcessRole::Kubelet => return None,
        };
        let wchan = wchan.clone();
        Some(Waiting { wchan, sandbox_id, ..waiting(role, *pid, *start_ticks, command, (*waited)?) })
    });
    let unproven = table.unproven.iter().filter_map(|process| {
        let UnprovenProcess { pid, start_ticks, command, waited, possible_role, .. } = process;
        let role = match possible_role {
            PossibleRole::Shim => "shim by its name",
            PossibleRole::Monitor => "conmon by its name",
            PossibleRole::NetworkPlugin => "child of the runtime",
            PossibleRole::RuntimeClient => "runtime client by its name or its caller",
            PossibleRole::Other => "part of the runtime by its name",
        };
        Some(waiting(role.to_owned(), *pid, *start_ticks, command, (*waited)?))
    });
    proven.chain(unproven).collect()
}

fn sighting(one: &Waiting, seen: &Observations, thresholds: &Thresholds) -> Sighting {
    let command = bounded(&one.command, 64);
    let pod = one.sandbox_id.as_deref().and_then(|id| pod_of(id, seen));
    let what = match one.thread.filter(|thread| *thread != one.pid) {
        Some(_) => "a thread of process",
        None => "process",
    };
    let wchan = one.wchan.as_deref().map_or_else(String::new, |wchan| format!(", in {}", bounded(wchan, 64)));
    let mut evidence = vec![format!("state D for {} s without having run{wchan}", one.waited.as_secs())];
    evidence.extend(one.thread.map(|thread| format!("thread {thread}")));
    Sighting {
        message: format!(
            "{what} {} ({command}, {}) waits uninterruptibly and has not run for more than {} s",
            one.pid,
            one.role,
            thresholds.bound(&AGE).as_secs()
        ),
        subject: Subject {
            name: Some(bounded(&format!("{} ({command}, {})", one.pid, one.role), 253)),
            sandbox_id: one.sandbox_id.as_deref().map(|id| bounded(id, 128)),
            pod,
            ..Subject::of(one.kind)
        },
        impact: "no signal ends it: it goes on when the disk, the server or the driver behind it answers, or with a reboot; \
                 what waits for it waits as well",
        evidence,
        ..Sighting::new(FaultType::UninterruptibleProcess, &one.key, one.checked, thresholds.confirm(&CONFIRM))
    }
}
