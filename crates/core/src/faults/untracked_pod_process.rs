//! `UntrackedPodProcess`: untracked processes in the control group of a pod, which the runtime does not know.

use super::spec::{FaultSpec, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, Subject, SubjectKind};
use crate::finding::{Check, Coverage, Detected, Findings, STALE, Sighting, Verdict, answer, lists, short};
use crate::text::bounded;
use crate::thresholds::Confirm;

/// A container is in no list while it is created, and its group may outlive it for a moment. Neither takes ten minutes.
const CONFIRM: Confirm = Confirm::new("untrackedPodProcess", 3, 45, 600).waits_for_kubelet();

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    condition: Some(ConditionType::HostHealthy),
    lasting: true,
    remedy: Remedy::NONE,
    ..FaultSpec::new(FaultGroup::Runtime, Severity::Medium, SubjectKind::Process)
};

/// Detects control groups of containers that are neither in the lists of that time nor in the current lists. A runtime that was
/// killed several times may have lost a container whose processes still run. Nothing that asks the runtime ever sees them.
pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (host, checked) = answer(&seen.host, seen.now, "control groups", STALE)?;
    let (lists, listed) = lists(seen)?;
    let untracked = host.untracked.as_ref().map_err(|why| Verdict::failed(why))?;
    let checked = checked.min(listed);
    for one in untracked.iter().filter(|one| !lists.ids().any(|id| id == one.id)) {
        let id = bounded(&one.id, 128);
        findings.sight(Sighting {
            message: format!(
                "processes run in the control group of container {} of pod {}, which the runtime does not know",
                short(&id),
                bounded(&one.pod_uid, 64)
            ),
            subject: Subject { id: Some(id), ..Subject::of(SubjectKind::Container) },
            impact: "they run beside every account of the node: no list shows them, and no deletion of a pod ends them",
            evidence: vec![
                format!("control group {}", bounded(&one.group, 256)),
                format!("processes in it: {:?}", one.pids),
                "no list of the runtime has a container or a sandbox with its id".to_owned(),
            ],
            ..Sighting::new(FaultType::UntrackedPodProcess, &one.id, checked, thresholds.confirm(&CONFIRM))
        });
    }
    let more = host.untracked_left_out;
    let left_out = (more > 0).then(|| {
        format!("{more} more control groups are in no list, besides the {} that are reported", untracked.len())
    });
    Ok(Coverage::new(Verdict::clean_unless(left_out.as_deref(), checked)))
}
