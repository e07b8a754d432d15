//! `FrozenCgroup`: a container that is frozen while the runtime creates it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::spec::{ByDaemon, FaultSpec, Holds, NOT_WORSE, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, MAX_LINE, Severity, Subject, SubjectKind, Target};
use crate::finding::{
    Check, Coverage, Detected, Findings, STALE, Sighting, Verdict, answer, bounded_pod, container_of, lists, of_pod,
    pod_of, short,
};
use crate::observation::{ContainerSeen, FrozenSeen, HostSeen, Observations, ProcessRole};
use crate::text::bounded;
use crate::thresholds::{Bound, Confirm};

/// Three checks of a frozen container whose creation has taken [`AGE`]. Runtimes freeze a running container for milliseconds while
/// they update it, and a person may pause one for long. Nobody freezes one that does not run yet.
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

/// Detects containers whose first process is still the runtime's (`runc init`), and whose control group is frozen. Nobody pauses a
/// container that does not run yet, and the call that creates it waits forever.
pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (host, frozen, checked) = frozen(seen)?;
    let left_out = seen.processes.value().and_then(|table| table.left_out.inits.as_deref());
    let mut coverage = Coverage::new(Verdict::clean_unless(host.unseen.as_deref().or(left_out), checked));
    let mut reported = BTreeSet::new();
    for one in frozen {
        let object = match object(&one.serves, seen) {
            Ok(Some(object)) => object,
            Ok(None) => continue,
            Err(verdict) => {
                coverage.note(&one.serves, verdict);
                continue;
            }
        };
        coverage.note(&one.serves, Verdict::undecided("a container in it is frozen"));
        if one.age < thresholds.bound(&AGE) || !reported.insert(one.serves.as_str()) {
            continue;
        }
        let of_pod = of_pod(object.pod.as_ref());
        let (kind, what) = match object.container_id {
            Some(_) => (SubjectKind::Container, format!("container {}{of_pod}", short(&one.serves))),
            None => (SubjectKind::Sandbox, format!("a container{of_pod} in sandbox {}", short(&one.serves))),
        };
        findings.sight(Sighting {
            message: format!("{what} is frozen while it is being made"),
            subject: Subject {
                sandbox_id: object.sandbox_id.clone(),
                id: Some(bounded(&one.serves, 128)),
                pod: object.pod.clone(),
                ..Subject::of(kind)
            },
            impact: "the call that makes it does not come back, and the pod stays in ContainerCreating; it goes on \
                         once the control group is thawed",
            evidence: vec![format!("process {} (runc init) is in the frozen group {}", one.process.pid, one.group)],
            target: Target {
                process: Some(one.process.clone()),
                control_group: Some(bounded(&one.group, MAX_LINE)),
                ..object
            },
            ..Sighting::new(FaultType::FrozenCgroup, &one.serves, checked, thresholds.confirm(&CONFIRM))
        });
    }
    Ok(coverage)
}

/// The check of the node, and the frozen containers in creation that it found.
pub(super) fn frozen(seen: &Observations) -> Result<(&HostSeen, &[FrozenSeen], Duration), Verdict> {
    let (host, checked) = answer(&seen.host, seen.now, "control groups", STALE)?;
    match &host.frozen {
        Ok(frozen) => Ok((host, frozen, checked)),
        Err(why) => Err(Verdict::failed(why)),
    }
}

/// The sandbox or the container that a shim or a conmon serves, with its pod. `None`: it is not the kubelet's. Docker lists what it
/// makes, and makes containers of other people too. CRI-O lists a container only once it is made, and its conmon names the pod.
fn object(id: &str, seen: &Observations) -> Result<Option<Target>, Verdict> {
    let listed = lists(seen).map(|(lists, _)| lists);
    let is_it = |container: &&ContainerSeen| container.id == id && container.pod.is_some();
    if let Some(container) = listed.as_ref().ok().and_then(|lists| lists.containers.iter().find(is_it)) {
        return Ok(Some(container_of(container).1));
    }
    let sandbox = |pod| Target { sandbox_id: Some(bounded(id, 128)), pod, ..Target::default() };
    if let Some(pod) = pod_of(id, seen) {
        return Ok(Some(sandbox(Some(pod))));
    }
    let conmon =
        seen.processes.value().into_iter().flat_map(|table| &table.processes).find_map(|one| match &one.role {
            ProcessRole::Monitor { id: served, pod: Some(pod), .. } if served == id => Some(bounded_pod(pod)),
            _ => None,
        });
    if conmon.is_some() {
        return Ok(Some(Target { container_id: Some(bounded(id, 128)), pod: conmon, ..Target::default() }));
    }
    if seen.kind.answers_itself() { listed.map(|_| None) } else { Ok(Some(sandbox(None))) }
}
