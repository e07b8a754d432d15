//! `OrphanContainer`: an orphan container, whose sandbox is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use super::spec::{ByDaemon, FaultSpec, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, SubjectKind};
use crate::finding::{
    Check, Coverage, Detected, Findings, Harm, Sighting, Verdict, WithoutKubelet, container_of, lists, phrase, short,
};
use crate::observation::{ContainerSeen, ContainerState, ListRound, OrphanCheck};
use crate::thresholds::{Confirm, Thresholds};

/// Three rounds 30 s apart, and five minutes. While a kubelet that has completed its start runs, it creates containers, so a race
/// is possible. A current kubelet replaces a missing sandbox in 1 to 4 s.
const KUBELET_UP: Confirm = Confirm::new("orphanKubeletUp", 3, 30, 300).waits_for_kubelet();

/// No kubelet has completed a start since the orphan was first seen, so nothing creates containers.
const KUBELET_DOWN: Confirm = Confirm::new("orphanKubeletDown", 3, 10, 20);

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&KUBELET_UP, &KUBELET_DOWN],
    worst_severity: Severity::Critical,
    condition: Some(ConditionType::SandboxesConsistent),
    time_to_confirm: Some(|of| {
        of.confirm(&super::kubelet::CONFIRM_DOWN).usual_time().saturating_add(of.confirm(&KUBELET_DOWN).usual_time())
    }),
    // The severity is High only while the kubelet is down and none has completed a start since the orphan was first
    // seen: the orphan may keep the kubelet from starting. A kubelet older than 1.24 certainly dies on it (Critical); a
    // newer one starts beside one that has ended (Medium).
    restart_harms: |fault| ByDaemon { kubelet: fault.severity >= Severity::High, runtime: false },
    names: |target| target.container_id.is_some(),
    remedy: Remedy { leftover: Ok(()), ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Pods, Severity::Medium, SubjectKind::Container)
};

/// Largest number of sandboxes that a complete list may lack. If it lacks more than this, and more than `MANY_PERCENT` of all
/// that containers name, the list is incomplete, and no container is an orphan. The containers of one pod are one sandbox.
const MANY: usize = 3;
const MANY_PERCENT: usize = 30;

pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (lists, checked) = lists(seen)?;
    let candidates = candidates(lists);
    let (missing, all) = (sandboxes(candidates.iter().copied()), sandboxes(&lists.containers));
    if missing > MANY && missing * 100 > MANY_PERCENT * all {
        let detail = format!(
            "the list lacks {missing} of the {all} sandboxes that containers name: it is taken to be incomplete"
        );
        return Err(Verdict::failed(&detail));
    }
    let version = seen.kubelet.value().and_then(|kubelet| kubelet.version.as_deref());
    let mut coverage = Coverage::new(Verdict::Clean { checked });
    for container in candidates {
        let key = &container.id;
        match lists.orphan_checks.get(key) {
            Some(OrphanCheck::Confirmed) => findings.sight(orphan(container, checked, version, thresholds)),
            Some(OrphanCheck::Refuted) => coverage.note(key, Verdict::Clean { checked }),
            Some(OrphanCheck::NoAnswer) | None => {
                let detail = format!("the runtime did not say whether the sandbox of {} exists", short(key));
                coverage.note(key, Verdict::failed(&detail));
            }
        }
    }
    Ok(coverage)
}

/// Containers of pods whose sandbox is in neither list. Those without the kubelet's labels belong to other users of the runtime.
fn candidates(lists: &ListRound) -> Vec<&ContainerSeen> {
    let known: BTreeSet<&str> = lists
        .sandboxes
        .iter()
        .map(|sandbox| sandbox.id.as_str())
        .chain(lists.sandboxes_again.iter().map(String::as_str))
        .collect();
    lists
        .containers
        .iter()
        .filter(|container| container.pod.as_ref().is_some_and(|pod| !pod.uid.is_empty()))
        .filter(|container| !known.contains(container.sandbox_id.as_str()))
        .collect()
}

/// How many sandboxes these containers name.
fn sandboxes<'a>(containers: impl IntoIterator<Item = &'a ContainerSeen>) -> usize {
    containers.into_iter().map(|container| container.sandbox_id.as_str()).collect::<BTreeSet<_>>().len()
}

/// Whether an orphan in this state may keep a kubelet of this version from starting. A container that has ended is left over wherever
/// a kubelet has replaced a lost sandbox, and a kubelet that is known to be 1.24 or newer starts beside it.
pub fn may_block_start(state: ContainerState, kubelet_version: Option<&str>) -> bool {
    state != ContainerState::Exited || dies_of_orphans(kubelet_version) != Some(false)
}

/// Whether a kubelet of this version dies at start on any orphan, also on one that has ended: those before 1.24 do. `None`: unknown.
fn dies_of_orphans(version: Option<&str>) -> Option<bool> {
    let mut parts = version?.trim_start_matches('v').split('.').map(str::parse::<u32>);
    let version = (parts.next()?.ok()?, parts.next()?.ok()?);
    Some(version < (1, 24))
}

fn orphan(
    container: &ContainerSeen,
    checked: Duration,
    kubelet_version: Option<&str>,
    thresholds: &Thresholds,
) -> Sighting {
    let state = match container.state {
        ContainerState::Created => "created",
        ContainerState::Running => "running",
        ContainerState::Exited => "exited",
        ContainerState::Unknown => "in an unknown state",
    };
    let running = container.state == ContainerState::Running;
    let message = format!(
        "{} is {state}, but its sandbox {} is not known to the runtime",
        phrase(container),
        short(&container.sandbox_id)
    );
    let (subject, target) = container_of(container);
    let without_kubelet = WithoutKubelet {
        confirm: thresholds.confirm(&KUBELET_DOWN),
        severity: match dies_of_orphans(kubelet_version) {
            Some(true) => Severity::Critical,
            _ if may_block_start(container.state, kubelet_version) => Severity::High,
            _ => Severity::Medium,
        },
        impact: "the kubelet is down and nothing else removes this container; a kubelet up to 1.23 cannot start while it is there",
    };
    Sighting {
        harm: if running { Harm::Always } else { Harm::WithoutKubelet },
        subject,
        target,
        message,
        impact: "it runs beside its pod's new containers and outside of every pod's limits; the kubelet should have removed it within seconds",
        evidence: vec![
            format!("sandbox {} is missing from two lists around the list of containers", short(&container.sandbox_id)),
            "asked by id: the container is there, its sandbox is not found".to_owned(),
            format!("container {} is {state}, attempt {}", short(&container.id), container.attempt),
        ],
        without_kubelet: Some(without_kubelet),
        ..Sighting::new(FaultType::OrphanContainer, &container.id, checked, thresholds.confirm(&KUBELET_UP))
    }
}
