//! `ExitedContainerBacklog`: nobody removes ended containers, until nobody can list them any more.

use super::spec::{ByDaemon, FaultSpec, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, SubjectKind};
use crate::finding::{Check, Coverage, Detected, Findings, STALE, Sighting, Verdict, lists};
use crate::observation::{ContainerState, ListRound, Reading};
use crate::thresholds::Confirm;

/// The kubelet removes ended containers every minute.
const CONFIRM: Confirm = Confirm::new("exitedContainerBacklog", 3, 60, 600);

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    worst_severity: Severity::High,
    condition: Some(ConditionType::SandboxesConsistent),
    lasting: true,
    // The severity is High once the kubelet cannot read the list any more.
    restart_harms: |fault| ByDaemon { kubelet: fault.severity >= Severity::High, runtime: false },
    remedy: Remedy::NONE,
    ..FaultSpec::new(FaultGroup::Runtime, Severity::Medium, SubjectKind::Runtime)
};

/// Size of an answer, in bytes, from which it approaches the limit: half of what the kubelet and the runtimes accept. A container
/// takes some 900 bytes, so a healthy node is far below a tenth of this.
const LARGE: usize = 8 << 20;
/// Size below which the lists are healthy again. In between the probe reports nothing.
const HEALTHY_BYTES: usize = 6 << 20;
/// The lists count as one object.
const KEY: &str = "lists";

pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (severity, message, impact, line, checked) = match (&seen.lists, lists(seen)) {
        (Reading::Failed { age, error }, _) if seen.list_too_large && *age <= STALE => (
            Severity::High,
            "the runtime's list of sandboxes or containers is too large to be read",
            "nothing that needs this list is judged; beyond 16 MiB the kubelet sees none of its pods either, and cannot remove \
             what has ended, since that needs the list too; ended containers have to be removed by id",
            error.clone(),
            seen.now.saturating_sub(*age),
        ),
        (_, Err(verdict)) => return Err(verdict),
        (_, Ok((round, checked))) if round.answer_bytes < HEALTHY_BYTES || !is_mostly_ended(round) => {
            return Ok(Coverage::new(Verdict::Clean { checked }));
        }
        (_, Ok((round, checked))) if round.answer_bytes < LARGE => {
            return Ok(Coverage::undecided(KEY, checked, "the runtime's lists are between small and large"));
        }
        (_, Ok((round, checked))) => (
            Severity::Medium,
            "ended containers pile up: the runtime's list of them is more than half as large as the kubelet can read",
            "at 16 MiB the kubelet loses sight of its pods, and cannot remove what has ended any more",
            format!("{} containers and {} sandboxes are listed", round.containers.len(), round.sandboxes.len()),
            checked,
        ),
    };
    findings.sight(Sighting {
        severity,
        message: message.to_owned(),
        impact,
        evidence: vec![line],
        ..Sighting::new(FaultType::ExitedContainerBacklog, KEY, checked, thresholds.confirm(&CONFIRM))
    });
    Ok(Coverage::undecided(KEY, checked, "the runtime's lists are large"))
}

/// Whether most entries have ended. A list may also be large because of what runs: pods may have long annotations.
fn is_mostly_ended(round: &ListRound) -> bool {
    let containers = round.containers.iter().filter(|container| container.state == ContainerState::Exited).count();
    let sandboxes = round.sandboxes.iter().filter(|sandbox| !sandbox.ready).count();
    let all = round.containers.len().saturating_add(round.sandboxes.len());
    containers.saturating_add(sandboxes).saturating_mul(2) >= all
}
