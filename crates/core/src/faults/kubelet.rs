//! `KubeletDown` and `KubeletCrashLoop`: whether a kubelet works on this node, and whether it keeps working.

use std::time::Duration;

use super::spec::{ByDaemon, FaultSpec, NO_RESTART, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{Daemon, FaultGroup, FaultType, MAX_LINE, Severity, SubjectKind};
use crate::finding::{
    Check, Coverage, Detected, Findings, Known, KubeletStart, STALE, Sighting, Verdict, answer, lists, processes,
};
use crate::observation::{KubeletSeen, Observations, ProcessRole};
use crate::text::bounded;
use crate::thresholds::{Bound, Confirm, Confirmation};

/// Confirms that no kubelet completes a start.
pub(super) const CONFIRM_DOWN: Confirm = Confirm::new("kubeletDown", 3, 10, 60).may_be_slow();

/// Three checks 20 s apart of a count that is already reached.
const CONFIRM_CRASH_LOOP: Confirm = Confirm::new("kubeletCrashLoop", 3, 20, 60);

/// A kubelet counts as started when it answers `/healthz` and is this old. One that dies at start answers for a moment too.
pub const START_AGE: Bound = Bound::new("kubeletStartAge", 20).fixed();

/// Number of kubelets that complete their start within [`CRASH_LOOP_WINDOW`] from which it is a crash loop. Few people restart a
/// kubelet by hand more than five times in half an hour. A kubelet that dies every minute reaches this number in six minutes.
pub const CRASH_LOOP_STARTS: u32 = 6;

/// The time within which the starts count.
pub const CRASH_LOOP_WINDOW: Duration = Duration::from_mins(30);

/// A kubelet that lives for this long has left the crash loop.
pub const CRASH_LOOP_OVER: Duration = Duration::from_mins(10);

pub(super) const DOWN: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM_DOWN],
    bounds: &[&START_AGE],
    condition: Some(ConditionType::KubeletReady),
    down: Some(Daemon::Kubelet),
    names: |_| true,
    pods_cannot_end: true,
    remedy: Remedy { restart: |_| ByDaemon { kubelet: Ok(()), ..NO_RESTART }, new_boot: Ok(()), ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Kubelet, Severity::Critical, SubjectKind::Kubelet)
};

pub(super) const CRASH_LOOP: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM_CRASH_LOOP],
    condition: Some(ConditionType::KubeletReady),
    pods_cannot_end: true,
    remedy: Remedy {
        restart: |_| ByDaemon { kubelet: Err("it is restarted again and again already"), ..NO_RESTART },
        ..Remedy::USUAL
    },
    ..FaultSpec::new(FaultGroup::Kubelet, Severity::High, SubjectKind::Kubelet)
};

/// A node has one kubelet.
pub(super) const KUBELET: &str = "kubelet";
/// A shim or a conmon that the kubelet has asked for begins at least this many ticks (1/100 s) after the kubelet. One that the
/// previous kubelet has asked for may still appear before that.
const ASKED_BY_IT: u64 = 200;

pub(super) fn down(&Check { seen, known, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (kubelet, checked) = check(seen, known)?;
    findings.kubelet = KubeletStart {
        checked: Some(checked),
        began: kubelet.process.map(|(_, _, age)| checked.saturating_sub(age)),
        creates_pods: creates_pods(kubelet, seen),
        ..KubeletStart::default()
    };
    let confirm = thresholds.confirm(&CONFIRM_DOWN);
    let (message, confirm) = match (kubelet.process, kubelet.healthz) {
        (None, _) => ("no kubelet process runs".to_owned(), confirm),
        (Some((_, _, age)), _) if age < thresholds.bound(&START_AGE) => {
            // The kubelet may be starting, or be one of many that die at start. Twice the grace period, in which none completes
            // its start, decides.
            let grace = confirm.grace_period.saturating_mul(2);
            (
                "a kubelet process has begun, but has not completed its start".to_owned(),
                Confirmation { grace_period: grace, ..confirm },
            )
        }
        (Some(_), Some(true)) => {
            findings.kubelet.started = Some(true);
            findings.kubelet.completed = findings.kubelet.began;
            return Ok(Coverage::new(Verdict::Clean { checked }));
        }
        (Some(_), Some(false)) => ("the kubelet runs, but its health check fails".to_owned(), confirm),
        (Some(_), None) => {
            let note = kubelet.note.as_deref().unwrap_or("its health check could not be asked");
            return Err(Verdict::failed(note));
        }
    };
    let is_young = kubelet.process.is_some_and(|(_, _, age)| age < thresholds.bound(&START_AGE));
    findings.kubelet.started = (!is_young).then_some(false);
    let mut evidence = vec![match kubelet.process {
        None => "no process of a kubelet is among the node's processes".to_owned(),
        Some((pid, ..)) => format!("the kubelet is process {pid}"),
    }];
    evidence.extend(kubelet.note.iter().map(|note| bounded(note, MAX_LINE)));
    if known.kubelets.begun > 1 {
        evidence.push(format!(
            "{} kubelet processes were seen within {} min; but for the newest, none lived longer than about {} s",
            known.kubelets.begun,
            CRASH_LOOP_WINDOW.as_secs() / 60,
            known.kubelets.longest.as_secs()
        ));
    }
    findings.sight(Sighting {
        message,
        impact: "no pod of this node is started, stopped or watched",
        evidence,
        ..Sighting::new(FaultType::KubeletDown, KUBELET, checked, confirm)
    });
    Ok(Coverage::new(Verdict::failed("no kubelet has completed its start")))
}

/// Detects kubelets that each complete a start and do not stay. A kubelet that never completes a start is down.
pub(super) fn crash_loop(&Check { seen, known, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (kubelet, checked) = check(seen, known)?;
    let stays = kubelet.process.is_some_and(|(_, _, age)| age >= CRASH_LOOP_OVER);
    if stays || known.kubelets.completed < CRASH_LOOP_STARTS {
        return Ok(Coverage::new(Verdict::Clean { checked }));
    }
    let minutes = CRASH_LOOP_WINDOW.as_secs() / 60;
    let evidence = vec![
        format!("{} kubelets have completed their start within {minutes} min", known.kubelets.completed),
        format!("but for the newest, none lived longer than about {} s", known.kubelets.longest.as_secs()),
    ];
    findings.sight(Sighting {
        message: format!(
            "the kubelet completes its start and ends, again and again: {CRASH_LOOP_STARTS} times or more within {minutes} min"
        ),
        impact: "pods of this node are started and stopped late; each start asks every container anew",
        evidence,
        ..Sighting::new(FaultType::KubeletCrashLoop, KUBELET, checked, thresholds.confirm(&CONFIRM_CRASH_LOOP))
    });
    Ok(Coverage::new(Verdict::failed("no kubelet has stayed for long")))
}

/// The last check of the kubelet. No kubelet in a process table that may not be the table of the node proves nothing.
fn check(seen: &Observations, known: Known) -> Result<(&KubeletSeen, Duration), Verdict> {
    let (kubelet, checked) = answer(&seen.kubelet, seen.now, "the kubelet", STALE)?;
    if kubelet.process.is_none() {
        processes(seen)?;
        if !known.host_processes {
            return Err(Verdict::failed("no process of the node has ever been seen here"));
        }
    }
    Ok((kubelet, checked))
}

/// Whether the shim of a pod's sandbox, or with CRI-O the conmon of a pod's container, is younger than the kubelet. If so, the
/// kubelet has completed its start. CRI-O usually runs no process for a sandbox.
fn creates_pods(kubelet: &KubeletSeen, seen: &Observations) -> bool {
    let (Some((_, began, _)), Ok((table, _)), Ok((lists, _))) = (kubelet.process, processes(seen), lists(seen)) else {
        return false;
    };
    table.processes.iter().any(|process| {
        let is_sandbox = |id: &str| lists.sandboxes.iter().any(|sandbox| sandbox.id == id);
        let is_container = |id: &str| lists.containers.iter().any(|seen| seen.id == id && seen.pod.is_some());
        let is_of_pod = match &process.role {
            ProcessRole::Shim { id, .. } => is_sandbox(id),
            ProcessRole::Monitor { id, pod: Some(_), .. } => is_sandbox(id) || is_container(id),
            _ => false,
        };
        is_of_pod && process.start_ticks >= began.saturating_add(ASKED_BY_IT)
    })
}
