//! `LeakedShim`: an orphan shim, whose sandbox is gone.

use std::time::Duration;

use super::spec::{ByDaemon, FaultSpec, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Role, Severity, Subject, SubjectKind, Target};
use crate::finding::{
    Check, Coverage, Detected, Findings, STALE, Sighting, Verdict, absent, absent_of, answer, bounded_pod, describe,
    kind_not_known, lists, of_pod, process_ref, processes, short,
};
use crate::observation::{
    ContainerState, ListRound, Observations, PossibleRole, ProcessRole, ProcessSeen, RuntimeKind, TaskAnswer,
};
use crate::text::{bounded, is_full_id};
use crate::thresholds::{Bound, Confirm, Thresholds};

/// Three rounds 30 s apart. A shim outlives what it serves for seconds during a deletion.
const CONFIRM: Confirm = Confirm::new("leakedShim", 3, 30, 60).may_be_slow();

/// Age from which a running shim, whose task containerd does not know, counts as an orphan. Kubelets wait up to four minutes for the
/// creation of a sandbox, and the shim of a VM sandbox may have no child for long. In a stopped shim no start is in progress.
pub const AGE: Bound = Bound::new("leakedShimAge", 300).waits_for_kubelet();

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    bounds: &[&AGE],
    condition: Some(ConditionType::SandboxesConsistent),
    restart_harms: |fault| ByDaemon { kubelet: false, runtime: !fault.target.is_conmon() },
    names: |target| target.process.is_some() || target.sandbox_id.is_some(),
    remedy: Remedy { leftover: Ok(()), ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Pods, Severity::Medium, SubjectKind::Shim)
};

/// Detects shims that nothing needs. With Docker a shim counts only if its container or sandbox is listed, and only while it is
/// stopped. The lists contain only the kubelet's containers, and containers that a person starts on that node have shims too.
pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (lists, listed) = lists(seen)?;
    let (table, checked_at) = processes(seen)?;
    match seen.kind {
        RuntimeKind::Containerd | RuntimeKind::Docker | RuntimeKind::CriO => {}
        RuntimeKind::Unknown => return Err(kind_not_known()),
        RuntimeKind::Other => {
            let detail = "the processes that this runtime keeps beside its containers are not known to the probe yet";
            return Err(Verdict::failed(detail));
        }
    }
    let both = listed.min(checked_at);
    let of_crio = seen.kind == RuntimeKind::CriO;
    let possible_role = if of_crio { PossibleRole::Monitor } else { PossibleRole::Shim };
    // A shim whose process is gone is not leaked any more, whatever the lists say.
    let mut coverage = Coverage::new(absent_of(possible_role, Duration::ZERO, table, checked_at));
    for process in &table.processes {
        let Some((id, living_children)) = process.role.serves() else { continue };
        let is_conmon = matches!(process.role, ProcessRole::Monitor { .. });
        if is_conmon != of_crio {
            continue;
        }
        let judged = match orphan_state(id, lists) {
            OrphanState::Needed => Err(Verdict::Clean { checked: both }),
            OrphanState::Unclear => {
                let detail = format!("the runtime does not know the state of what shim {} serves", short(id));
                Err(Verdict::failed(&detail))
            }
            // Shims of the kubelet have full ids. A shim of `ctr run` with a name of its own is no orphan.
            OrphanState::Left if process.parent != 1 || living_children > 0 || !is_full_id(id) => {
                Err(Verdict::Clean { checked: both })
            }
            OrphanState::Left if table.left_out.processes.is_some() => Err(absent(table, both)),
            // A conmon that runs ends by itself.
            OrphanState::Left if is_conmon && process.state != 'T' => {
                Err(Verdict::undecided("its conmon may be about to end"))
            }
            OrphanState::Left if seen.kind == RuntimeKind::Docker => docker_proof(process, id, lists, both),
            OrphanState::Left => proof(process, id, seen, both, thresholds, findings),
        };
        match judged {
            Ok(proof) => findings.sight(leaked(process, id, lists, &proof, thresholds)),
            Err(verdict) => coverage.note(id, verdict),
        }
    }
    Ok(coverage)
}

/// What the lists say about the id of a shim.
enum OrphanState {
    /// A ready sandbox or a running container belongs to it.
    Needed,
    /// A container that is created, or of unknown state, belongs to it. It may be working.
    Unclear,
    /// Nothing alive belongs to it.
    Left,
}

fn orphan_state(id: &str, lists: &ListRound) -> OrphanState {
    let ready = lists.sandboxes.iter().any(|sandbox| sandbox.ready && sandbox.id == id);
    // Only the second list has the id: it is new, and its state is not known yet.
    let new = lists.sandboxes_again.iter().any(|known| known == id)
        && !lists.sandboxes.iter().any(|sandbox| sandbox.id == id);
    let mut unclear = new;
    for container in lists.containers.iter().filter(|container| container.id == id || container.sandbox_id == id) {
        match container.state {
            ContainerState::Running => return OrphanState::Needed,
            ContainerState::Created | ContainerState::Unknown => unclear = true,
            ContainerState::Exited => {}
        }
    }
    match (ready, unclear) {
        (true, _) => OrphanState::Needed,
        (false, true) => OrphanState::Unclear,
        (false, false) => OrphanState::Left,
    }
}

/// What distinguishes a shim without use from one whose sandbox is being created, or that a person runs by hand.
struct Proof {
    line: &'static str,
    checked: Duration,
}

/// Docker cannot report whether a running shim still has work. A shim whose id is in no list of the kubelet's containers may
/// belong to another Docker that somebody else runs.
fn docker_proof(process: &ProcessSeen, id: &str, lists: &ListRound, both: Duration) -> Result<Proof, Verdict> {
    let listed = lists.sandboxes.iter().any(|sandbox| sandbox.id == id)
        || lists.containers.iter().any(|container| container.id == id && container.pod.is_some());
    match (process.state, listed) {
        ('T', true) => Ok(Proof { line: "it is stopped, and what it served has ended", checked: both }),
        ('T', false) => {
            Err(Verdict::failed(&format!("shim {} is stopped and in no list: whose it is is not known", short(id))))
        }
        _ => Err(Verdict::undecided(&format!("whether shim {} still has something to do is not known", short(id)))),
    }
}

/// Proves that a shim is an orphan. A stopped one serves nobody. A running one must be older than any start takes, and
/// containerd must not know its task.
fn proof(
    process: &ProcessSeen,
    id: &str,
    seen: &Observations,
    both: Duration,
    thresholds: &Thresholds,
    findings: &mut Findings,
) -> Result<Proof, Verdict> {
    if process.state == 'T' {
        return Ok(Proof { line: "it is stopped, so no start is under way in it", checked: both });
    }
    if process.age < thresholds.bound(&AGE) {
        return Err(Verdict::undecided(&format!("shim {} is young: its sandbox may just be being made", short(id))));
    }
    findings.ask(id);
    let Some(reading) = seen.tasks.get(id) else {
        let detail = format!("containerd has not been asked yet for the task of shim {}", short(id));
        return Err(Verdict::undecided(&detail));
    };
    match answer(reading, seen.now, "the task of a shim", STALE)? {
        (TaskAnswer::NotFound, checked) => {
            Ok(Proof { line: "containerd knows no task with its id", checked: both.min(checked) })
        }
        (TaskAnswer::NoAnswer, _) => {
            Err(Verdict::failed(&format!("containerd knows a task of shim {}, which does not answer", short(id))))
        }
        (TaskAnswer::Answered | TaskAnswer::Ended | TaskAnswer::DaemonAnswered | TaskAnswer::ProcessGone, checked) => {
            Err(Verdict::Clean { checked: both.min(checked) })
        }
    }
}

fn leaked(process: &ProcessSeen, id: &str, lists: &ListRound, proof: &Proof, thresholds: &Thresholds) -> Sighting {
    let sandbox = lists.sandboxes.iter().find(|sandbox| sandbox.id == id);
    let container = lists.containers.iter().find(|container| container.sandbox_id == id || container.id == id);
    let pod = sandbox.map(|sandbox| &sandbox.pod).or_else(|| container.and_then(|container| container.pod.as_ref()));
    let listed = match (sandbox, container) {
        (Some(_), _) => "only a sandbox that is not ready",
        (None, Some(container)) if container.id == id => "only a container that has ended",
        (None, _) => "no sandbox at all",
    };
    let (what, named, impact) = match &process.role {
        ProcessRole::Monitor { pod, .. } => (
            "conmon",
            pod.as_ref(),
            "nothing in Kubernetes shows it; it stays, with a scope of systemd, until a reboot",
        ),
        _ => ("shim", None, "nothing in Kubernetes shows it; it can keep the next start of the runtime from finishing"),
    };
    let pod = pod.or(named);
    let message =
        format!("{what} {}{} serves nothing any more and does not end: {}", short(id), of_pod(pod), describe(process));
    let subject = Subject {
        id: Some(bounded(id, 128)),
        pod: pod.map(bounded_pod),
        sandbox_id: Some(bounded(id, 128)),
        ..Subject::of(SubjectKind::Shim)
    };
    let target = Target {
        process: Some(process_ref(process, Role::Shim)),
        sandbox_id: subject.sandbox_id.clone(),
        pod: subject.pod.clone(),
        ..Target::default()
    };
    Sighting {
        subject,
        target,
        message,
        impact,
        evidence: vec![
            format!("its id is on {listed} and on no running container"),
            "it has no living child, and its parent is process 1".to_owned(),
            proof.line.to_owned(),
            describe(process),
        ],
        ..Sighting::new(FaultType::LeakedShim, id, proof.checked, thresholds.confirm(&CONFIRM))
    }
}
