//! `ContainerStuck`: a removal that has failed and left the container behind.

use super::{Coverage, Findings, Harm, Sighting, Verdict, container_of, evidence, lists, of_pod, short};
use crate::core::fault::{FaultType, MAX_LINE, Severity};
use crate::core::observation::{Observations, RemovalSaid, RemovalSeen, RuntimeKind};
use crate::core::reason::ConditionReason;
use crate::core::text::bounded;
use crate::core::thresholds::Thresholds;

/// Docker goes on calling a removal that has failed `removing` in its list; asked by id it says `dead`, and the cause. Only
/// both together are a sign: a large container may well take long to remove.
pub(super) fn failed(seen: &Observations, thresholds: &Thresholds, findings: &mut Findings) {
    let kind = FaultType::ContainerStuck;
    let (lists, looked) = match lists(seen) {
        Ok(found) => found,
        Err(verdict) => return findings.blind(kind, verdict),
    };
    let removals = match (&lists.removals, seen.kind) {
        (Some(removals), _) => removals.as_slice(),
        (None, RuntimeKind::Containerd | RuntimeKind::Other) => &[],
        (None, RuntimeKind::Unknown) => return findings.blind(kind, super::kind_not_known()),
        (None, RuntimeKind::Docker) => {
            let detail = "Docker itself could not be asked which containers it is removing";
            return findings.blind(kind, Verdict::unknown(ConditionReason::CannotLook, detail));
        }
    };
    let mut coverage = Coverage::new(Verdict::Clean { looked });
    for removal in removals {
        let key = removal.container.id.clone();
        match &removal.said {
            Some(RemovalSaid::Failed(cause)) => {
                let (message, lines) = tell(removal, cause);
                let (subject, target) = container_of(&removal.container);
                findings.sightings.push(Sighting {
                    kind,
                    key,
                    certain: true,
                    harm: Harm::Always,
                    severity: Severity::Low,
                    subject,
                    target,
                    message,
                    impact: "its files and its name stay, and the kubelet tries to remove it again and again"
                        .to_owned(),
                    evidence: evidence(lines),
                    looked,
                    confirm: thresholds.container_stuck,
                    without_kubelet: None,
                });
            }
            Some(RemovalSaid::NotFailed | RemovalSaid::Gone) => {
                coverage.named.insert(key, Verdict::Clean { looked });
            }
            None => {
                let detail = format!("Docker did not say how the removal of {} stands", short(&key));
                coverage.named.insert(key, Verdict::unknown(ConditionReason::CannotLook, &detail));
            }
        }
    }
    findings.cover(kind, coverage);
}

fn tell(removal: &RemovalSeen, cause: &str) -> (String, Vec<String>) {
    let container = &removal.container;
    let who = format!("container {}{}", bounded(&container.name, 63), of_pod(container.pod.as_ref()));
    let cause = bounded(cause, 256);
    let lines = vec![
        format!("Docker lists {} as being removed", short(&container.id)),
        format!("asked by id, Docker calls it dead: {cause}"),
    ];
    (bounded(&format!("Docker cannot remove {who}: {cause}"), MAX_LINE), lines)
}
