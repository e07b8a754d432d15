//! `DuplicateSandbox` and `GhostSandbox`: two copies of one pod, and a sandbox that is only listed.

use std::collections::{BTreeMap, BTreeSet};

use super::spec::{FaultSpec, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, Subject, SubjectKind, Target};
use crate::finding::{
    Check, Coverage, Detected, Findings, Sighting, Verdict, bounded_pod, kind_not_known, lists, of_pod, short,
};
use crate::observation::{ContainerSeen, ContainerState, ListRound, RuntimeKind, SandboxSeen};
use crate::text::bounded;
use crate::thresholds::Confirm;

/// The kubelet itself ends one of two ready sandboxes at its next sync of the pod. Ten minutes contain many syncs.
const CONFIRM_DUPLICATE: Confirm = Confirm::new("duplicateSandbox", 3, 30, 600).waits_for_kubelet();

/// Kubelets up to 1.35 remove such a sandbox at one of their next rounds, which are a minute apart.
const CONFIRM_GHOST: Confirm = Confirm::new("ghostSandbox", 3, 30, 600);

pub(super) const DUPLICATE: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM_DUPLICATE],
    condition: Some(ConditionType::SandboxesConsistent),
    ..FaultSpec::new(FaultGroup::Pods, Severity::Medium, SubjectKind::Sandbox)
};

pub(super) const GHOST: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM_GHOST],
    condition: Some(ConditionType::SandboxesConsistent),
    lasting: true,
    remedy: Remedy::NONE,
    ..FaultSpec::new(FaultGroup::Pods, Severity::Low, SubjectKind::Sandbox)
};

/// Detects pods with more than one ready sandbox. Only sandboxes in both lists of a round count: a sandbox that is just being
/// created or removed is in one of them.
pub(super) fn duplicates(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (lists, checked) = lists(seen)?;
    let stayed: BTreeSet<&str> = lists.sandboxes_again.iter().map(String::as_str).collect();
    let mut by_pod: BTreeMap<&str, Vec<&SandboxSeen>> = BTreeMap::new();
    let ready = |sandbox: &&SandboxSeen| sandbox.ready && stayed.contains(sandbox.id.as_str());
    for sandbox in lists.sandboxes.iter().filter(ready).filter(|sandbox| !sandbox.pod.uid.is_empty()) {
        by_pod.entry(&sandbox.pod.uid).or_default().push(sandbox);
    }
    for (uid, mut sandboxes) in by_pod.into_iter().filter(|(_, sandboxes)| sandboxes.len() > 1) {
        // The kubelet works with the newest sandbox.
        sandboxes.sort_by(|a, b| b.attempt.cmp(&a.attempt).then_with(|| a.id.cmp(&b.id)));
        let evidence = sandboxes.iter().map(|sandbox| describe(sandbox, lists)).collect();
        let Some((newest, [older, ..])) = sandboxes.split_first() else { continue };
        let pod = bounded_pod(&newest.pod);
        let message = format!(
            "{} sandboxes{} are ready at once; the newest is {}",
            sandboxes.len(),
            of_pod(Some(&newest.pod)),
            short(&newest.id)
        );
        findings.sight(Sighting {
            subject: Subject {
                id: Some(bounded(&older.id, 128)),
                pod: Some(pod.clone()),
                ..Subject::of(SubjectKind::Sandbox)
            },
            target: Target { sandbox_id: Some(bounded(&older.id, 128)), pod: Some(pod), ..Target::default() },
            message,
            impact: "two copies of the pod run side by side, and write to the same volumes",
            evidence,
            ..Sighting::new(FaultType::DuplicateSandbox, uid, checked, thresholds.confirm(&CONFIRM_DUPLICATE))
        });
    }
    Ok(Coverage::new(Verdict::Clean { checked }))
}

/// Detects sandboxes that are listed as not ready and that the runtime does not know when asked by id. cri-dockerd lists every
/// sandbox that it has recorded, also if the container behind it is gone. Other runtimes list the sandboxes that exist.
pub(super) fn ghosts(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (lists, checked) = lists(seen)?;
    if seen.kind == RuntimeKind::Unknown {
        return Err(kind_not_known());
    }
    let mut coverage = Coverage::new(Verdict::Clean { checked });
    for sandbox in lists.sandboxes.iter().filter(|sandbox| !sandbox.ready && seen.kind == RuntimeKind::Docker) {
        let key = &sandbox.id;
        let detail = format!("the runtime has not said lately whether sandbox {} exists", short(key));
        match lists.asked_sandboxes.get(key) {
            Some(Some(false)) => {}
            Some(Some(true)) => {
                coverage.note(key, Verdict::Clean { checked });
                continue;
            }
            // The probe asks for them in turn.
            Some(None) | None => {
                coverage.note(key, Verdict::undecided(&detail));
                continue;
            }
        }
        let pod = bounded_pod(&sandbox.pod);
        let message = format!(
            "sandbox {}{} is listed, and the runtime does not know it when asked for it",
            short(key),
            of_pod(Some(&sandbox.pod))
        );
        findings.sight(Sighting {
            subject: Subject {
                id: Some(bounded(key, 128)),
                pod: Some(pod.clone()),
                ..Subject::of(SubjectKind::Sandbox)
            },
            target: Target { sandbox_id: Some(bounded(key, 128)), pod: Some(pod), ..Target::default() },
            message,
            impact: "a note that the runtime keeps of it stays; kubelets up to 1.35 try to remove it again and again, \
                     later ones never do",
            evidence: vec![
                format!("listed as not ready, attempt {}", sandbox.attempt),
                "asked by id: no such sandbox".to_owned(),
            ],
            ..Sighting::new(FaultType::GhostSandbox, key, checked, thresholds.confirm(&CONFIRM_GHOST))
        });
    }
    Ok(coverage)
}

fn describe(sandbox: &SandboxSeen, lists: &ListRound) -> String {
    let runs =
        |container: &&ContainerSeen| container.sandbox_id == sandbox.id && container.state == ContainerState::Running;
    let running = lists.containers.iter().filter(runs).count();
    format!("sandbox {}, attempt {}, is ready with {running} running containers", short(&sandbox.id), sandbox.attempt)
}
