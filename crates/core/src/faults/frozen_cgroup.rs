//! `FrozenCgroup`: a container that is frozen while the runtime creates it.

use std::collections::BTreeSet;

use super::spec::{ByDaemon, FaultSpec, Holds, NOT_WORSE, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, MAX_LINE, Severity, Subject, SubjectKind, Target};
use crate::finding::{
    Check, Component, Coverage, Detected, Findings, STALE, Sighting, Verdict, answer, of_pod, pod_of, short,
};
use crate::reason::ConditionReason;
use crate::text::bounded;
use crate::thresholds::{Bound, Confirm};

/// Three checks of a container whose creation has taken [`AGE`] and that is frozen. Runtimes freeze a running container for
/// milliseconds while they update it. A person may pause a running container for long. Nobody freezes a container that does not
/// run yet.
const CONFIRM: Confirm = Confirm::new("frozenCgroup", 3, 20, 60);

/// Age from which the first process of a container that is being created counts as stuck, if it is frozen.
pub const AGE: Bound = Bound::new("frozenInitAge", 60);

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    bounds: &[&AGE],
    condition: Some(ConditionType::HostHealthy),
    lasting: true,
    time_to_confirm: Some(|of| of.bound(&AGE).saturating_add(of.confirm(&CONFIRM).usual_time())),
    // The frozen process outlives the runtime as a leftover that does not answer.
    restart_harms: |_| ByDaemon { kubelet: false, runtime: true },
    holds: Holds::OwnPod,
    names: |target| target.process.is_some() && target.control_group.is_some(),
    remedy: Remedy { thaw: Ok(()), fewer_pods: NOT_WORSE, ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Pods, Severity::Medium, SubjectKind::Container)
};

/// Detects containers whose first process is still the process of the runtime (`runc init`), and whose control group is frozen. A
/// person may have paused a container that runs. Nobody pauses one that does not run yet, and the call that creates it waits
/// forever.
pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (host, checked) = answer(&seen.host, seen.now, "control groups", STALE)?;
    let frozen = match &host.frozen {
        Ok(frozen) => frozen,
        Err(why) => return Err(Verdict::unknown(ConditionReason::CheckFailed, why)),
    };
    let left_out = seen.processes.value().and_then(|table| table.left_out.inits.as_deref());
    let mut coverage = Coverage::new(Verdict::clean_unless(host.unseen.as_deref().or(left_out), checked));
    let mut reported = BTreeSet::new();
    for one in frozen {
        coverage.named.insert(one.sandbox_id.clone(), Verdict::undecided("a container in it is frozen"));
        if one.age < thresholds.bound(&AGE) || !reported.insert(one.sandbox_id.as_str()) {
            continue;
        }
        let pod = pod_of(&one.sandbox_id, seen);
        let target = Target {
            process: Some(one.process.clone()),
            sandbox_id: Some(bounded(&one.sandbox_id, 128)),
            pod: pod.clone(),
            control_group: Some(bounded(&one.group, MAX_LINE)),
            ..Target::default()
        };
        let sighting = Component {
            kind: FaultType::FrozenCgroup,
            key: &one.sandbox_id,
            severity: Severity::Medium,
            message: format!(
                "a container{} in sandbox {} is frozen while it is being made",
                of_pod(pod.as_ref()),
                short(&one.sandbox_id)
            ),
            subject: Subject {
                sandbox_id: Some(bounded(&one.sandbox_id, 128)),
                id: Some(bounded(&one.sandbox_id, 128)),
                pod,
                ..Subject::of(SubjectKind::Sandbox)
            },
            impact: "the call that makes it does not come back, and the pod stays in ContainerCreating; it goes on \
                         once the control group is thawed",
            evidence: vec![format!("process {} (runc init) is in the frozen group {}", one.process.pid, one.group)],
            checked,
            confirm: thresholds.confirm(&CONFIRM),
        };
        findings.sightings.push(Sighting { target, ..sighting.into() });
    }
    Ok(coverage)
}
