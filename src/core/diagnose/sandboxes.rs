//! `DuplicateSandbox`: two copies of one pod.

use std::collections::{BTreeMap, BTreeSet};

use super::{Coverage, Findings, Harm, Sighting, Verdict, bounded_pod, evidence, lists, of_pod, short};
use crate::core::fault::{FaultType, MAX_LINE, Severity, Subject, SubjectKind, Target};
use crate::core::observation::{ContainerSeen, ContainerState, ListRound, Observations, SandboxSeen};
use crate::core::text::bounded;
use crate::core::thresholds::Thresholds;

/// Pods with more than one sandbox that is ready. Only sandboxes in both lists of a round count: one that is being made
/// or removed just now is in one of them.
pub(super) fn duplicates(seen: &Observations, thresholds: &Thresholds, findings: &mut Findings) {
    let kind = FaultType::DuplicateSandbox;
    let (lists, looked) = match lists(seen) {
        Ok(found) => found,
        Err(verdict) => return findings.blind(kind, verdict),
    };
    let stayed: BTreeSet<&str> = lists.sandboxes_again.iter().map(String::as_str).collect();
    let mut by_pod: BTreeMap<&str, Vec<&SandboxSeen>> = BTreeMap::new();
    let ready = |sandbox: &&SandboxSeen| sandbox.ready && stayed.contains(sandbox.id.as_str());
    for sandbox in lists.sandboxes.iter().filter(ready).filter(|sandbox| !sandbox.pod.uid.is_empty()) {
        by_pod.entry(&sandbox.pod.uid).or_default().push(sandbox);
    }
    for (uid, mut sandboxes) in by_pod.into_iter().filter(|(_, sandboxes)| sandboxes.len() > 1) {
        // The newest is the one that the kubelet works with.
        sandboxes.sort_by(|a, b| b.attempt.cmp(&a.attempt).then_with(|| a.id.cmp(&b.id)));
        let lines = sandboxes.iter().map(|sandbox| describe(sandbox, lists)).collect();
        let Some((newest, [older, ..])) = sandboxes.split_first() else { continue };
        let pod = bounded_pod(&newest.pod);
        let message = format!(
            "{} sandboxes{} are ready at once; the newest is {}",
            sandboxes.len(),
            of_pod(Some(&newest.pod)),
            short(&newest.id)
        );
        findings.sightings.push(Sighting {
            kind,
            key: uid.to_owned(),
            certain: true,
            harm: Harm::Always,
            severity: Severity::Medium,
            subject: Subject {
                id: Some(bounded(&older.id, 128)),
                pod: Some(pod.clone()),
                ..Subject::of(SubjectKind::Sandbox)
            },
            target: Target { sandbox_id: Some(bounded(&older.id, 128)), pod: Some(pod), ..Target::default() },
            message: bounded(&message, MAX_LINE),
            impact: "two copies of the pod run side by side, and write to the same volumes".to_owned(),
            evidence: evidence(lines),
            looked,
            confirm: thresholds.duplicate_sandbox,
            without_kubelet: None,
        });
    }
    findings.cover(kind, Coverage::new(Verdict::Clean { looked }));
}

fn describe(sandbox: &SandboxSeen, lists: &ListRound) -> String {
    let runs =
        |container: &&ContainerSeen| container.sandbox_id == sandbox.id && container.state == ContainerState::Running;
    let running = lists.containers.iter().filter(runs).count();
    format!("sandbox {}, attempt {}, is ready with {running} running containers", short(&sandbox.id), sandbox.attempt)
}
