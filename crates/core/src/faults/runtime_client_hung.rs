//! `RuntimeClientHung`: `runc create` or a similar client makes no progress, or runs for longer than anybody waits for it.

use std::time::Duration;

use super::frozen_cgroup::frozen;
use super::spec::{ByDaemon, FaultSpec, Holds, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, PodRef, Role, Severity, Subject, SubjectKind, Target};
use crate::finding::{
    Check, Coverage, Detected, Findings, HangConfirmation, Sighting, Verdict, absent_of, container_of, describe,
    is_still, lists, of_pod, pod_of, process_ref, processes, short,
};
use crate::observation::{
    ContainerSeen, Observations, PossibleRole, ProcessRole, ProcessSeen, ProcessTable, RuntimeKind,
};
use crate::reason::ConditionReason;
use crate::text::bounded;
use crate::thresholds::{Bound, Confirm, NO_PROGRESS_TIME, Thresholds};

/// Three checks of a client that has made no progress for [`NO_PROGRESS_TIME`], or that is older than [`AGE`].
pub const CONFIRM: Confirm = Confirm::new("runtimeClientHung", 3, 10, 60).may_be_slow();

/// Age from which `runc` or a similar client counts as hung, with or without progress. Ordinary clients take well under a second.
/// Clients with hooks of drivers take up to a minute. Kubelets wait up to four minutes for the work of such a client, and
/// containerd ends the client with them.
pub const AGE: Bound = Bound::new("runtimeClientAge", 300).waits_for_kubelet();

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    bounds: &[&NO_PROGRESS_TIME, &AGE],
    condition: Some(ConditionType::ContainersResponsive),
    time_to_confirm: Some(|of| of.bound(&NO_PROGRESS_TIME).saturating_add(of.confirm(&CONFIRM).usual_time())),
    // A restart interrupts the client half-way.
    restart_harms: |_| ByDaemon { kubelet: false, runtime: true },
    holds: Holds::OwnPod,
    remedy: Remedy { hung_process: Ok(Role::RuntimeClient), new_boot: Ok(()), ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Pods, Severity::Medium, SubjectKind::Container)
};

/// Verbs that run as long as somebody wants them to, or are the container's own first step (`init`).
const ENDLESS: [&str; 4] = ["run", "exec", "events", "init"];

/// Whether a client at this verb does one thing and ends. Its caller waits for it.
pub fn is_awaited(verb: &str) -> bool {
    !ENDLESS.contains(&verb)
}

/// Awaited verbs that may be interrupted. `pause`, `resume`, and `update`, for which older
/// clients freeze the container, may leave it frozen when they are interrupted. A CRI-O that starts takes a running container as
/// ended if its `state` is interrupted.
pub const ENDING: [&str; 4] = ["create", "start", "kill", "delete"];

/// Largest number of wrappers around one OCI runtime.
pub const MAX_WRAPPERS: usize = 3;

/// A client that works on a container of the kubelet and is older than its bound.
struct Old<'a> {
    process: &'a ProcessSeen,
    verb: &'a str,
    /// The container or sandbox that the client works on.
    id: &'a str,
    /// The sandbox, if its shim or the lists name it.
    sandbox_id: Option<&'a str>,
    container: Option<&'a ContainerSeen>,
    pod: Option<PodRef>,
    frozen: bool,
}

pub(super) fn detect(check: &Check<'_>, findings: &mut Findings) -> Detected {
    let &Check { seen, thresholds, .. } = check;
    let confirm = check.hangs(&CONFIRM);
    let (table, checked) = processes(seen)?;
    let age = thresholds.bound(&AGE);
    let watched = thresholds.bound(&NO_PROGRESS_TIME).min(age);
    let mut coverage = Coverage::new(absent_of(PossibleRole::RuntimeClient, watched, table, checked));
    let mut old = Vec::new();
    for process in table.processes.iter().filter(|process| process.age >= watched) {
        let is_old = process.age >= age || is_still(process, thresholds);
        let ProcessRole::RuntimeClient { verb, container_id } = &process.role else { continue };
        if !ENDING.contains(&verb.as_str()) {
            continue;
        }
        match container_id.as_deref().map(|id| whose(process, verb, id, table, seen)) {
            Some(Whose::Ours(client)) if is_old => old.push(client),
            // A probe that has just started does not know for how long it has made no progress.
            Some(Whose::Ours(client)) => {
                let undecided = Verdict::undecided("a client that works on it was not watched for long enough");
                coverage.named.extend(client.names().map(|name| (name, undecided.clone())));
            }
            Some(Whose::Others) => {}
            Some(Whose::NotKnown) | None if !is_old => {
                let detail = "whose container a client works on is not known, and it was not watched for long enough";
                coverage.others = Verdict::undecided(detail);
            }
            Some(Whose::NotKnown) | None => {
                let detail =
                    format!("whose container `{}` works on is not known: {}", bounded(verb, 16), describe(process));
                coverage.others = Verdict::failed(&detail);
            }
        }
    }
    // Where it is not known what is frozen, each of them may wait for a frozen container, and is not to be ended.
    if let (Err(verdict), false) = (frozen(seen), old.is_empty()) {
        coverage.others = verdict;
        return Ok(coverage);
    }
    old.sort_by_key(|client| (client.process.start_ticks, client.process.pid));
    // Without lists, the pods of the clients are not known. A client may be tracked under its pod.
    if let (Err(verdict), false) = (lists(seen), old.is_empty()) {
        coverage.others = verdict;
    }
    for client in &old {
        let detail = format!("{} is old too; another one is reported instead", describe(client.process));
        for name in client.names() {
            coverage.note(&name, Verdict::unknown(ConditionReason::FaultSuspected, &detail));
        }
    }
    let mut reported: Vec<String> = Vec::new();
    for client in &old {
        // The probe reports the oldest client of a pod: the others wait for it. A wrapper waits for the client that it has called.
        if !reported.contains(&client.key()) && !client.waits_for_another(table) {
            reported.push(client.key());
            findings.sight(sighting(client, checked, thresholds, confirm));
        }
    }
    Ok(coverage)
}

impl Old<'_> {
    /// Whether the client has a child that works on the same container.
    fn waits_for_another(&self, table: &ProcessTable) -> bool {
        table.processes.iter().any(|child| match &child.role {
            ProcessRole::RuntimeClient { container_id, .. } => {
                child.parent == self.process.pid && container_id.as_deref() == Some(self.id)
            }
            _ => false,
        })
    }

    /// The key of the fault: the pod, whose next container meets the same fault, else the container.
    fn key(&self) -> String {
        self.pod.as_ref().map_or_else(|| bounded(self.id, 128), |pod| pod.uid.clone())
    }

    /// Every key under which an earlier or later check may have known the client, with more or less visible.
    fn names(&self) -> impl Iterator<Item = String> + '_ {
        [Some(bounded(self.id, 128)), self.pod.as_ref().map(|pod| pod.uid.clone())].into_iter().flatten()
    }
}

enum Whose<'a> {
    Ours(Old<'a>),
    Others,
    NotKnown,
}

/// A client belongs to the kubelet if its container is in the kubelet's lists, or if its parent is a shim that containerd runs for
/// the kubelet, a conmon of CRI-O, or CRI-O. Docker's shims, and `runc` without a shim, may belong to anybody.
fn whose<'a>(
    process: &'a ProcessSeen,
    verb: &'a str,
    id: &'a str,
    table: &'a ProcessTable,
    seen: &'a Observations,
) -> Whose<'a> {
    let caller = caller(process, table);
    let listed = lists(seen).ok().map(|(lists, _)| lists);
    let container = listed.and_then(|lists| lists.containers.iter().find(|one| one.id == id && one.pod.is_some()));
    let sandbox = listed.and_then(|lists| lists.sandboxes.iter().find(|one| one.id == id));
    let (of_shim, of_conmon) = match caller.map(|caller| &caller.role) {
        Some(ProcessRole::Shim { id, .. }) if seen.kind == RuntimeKind::Containerd => (Some(id.as_str()), None),
        Some(ProcessRole::Monitor { id: served, pod, .. }) if served == id => (None, pod.as_ref()),
        _ => (None, None),
    };
    // Nobody else uses CRI-O, and it does not list a container in creation.
    let of_crio = caller.is_some_and(|caller| caller.role == ProcessRole::Runtime && caller.command == "crio");
    if container.is_none() && sandbox.is_none() && of_shim.is_none() && of_conmon.is_none() && !of_crio {
        return match (listed, seen.kind) {
            (None, _) | (_, RuntimeKind::Unknown) => Whose::NotKnown,
            _ => Whose::Others,
        };
    }
    let sandbox_id = container.map(|one| one.sandbox_id.as_str()).or(sandbox.map(|one| one.id.as_str())).or(of_shim);
    let pod = sandbox_id.and_then(|id| pod_of(id, seen));
    let pod = pod.or_else(|| container.and_then(|one| one.pod.as_ref()).or(of_conmon).map(crate::finding::bounded_pod));
    let is_of_it = |serves: &str| serves == id || sandbox_id == Some(serves);
    let frozen = frozen(seen).is_ok_and(|(_, all, _)| all.iter().any(|one| is_of_it(&one.serves)));
    Whose::Ours(Old { process, verb, id, sandbox_id, container, pod, frozen })
}

/// The client that this shim waits for, with its verb, if one works on a container of its pod. Before containerd 2.3 a shim answers
/// no question while `runc create` runs, and later ones neither during `runc update` or `runc checkpoint`: they hold a lock meanwhile.
pub(super) fn awaited_by<'a>(shim: &ProcessSeen, table: &'a ProcessTable) -> Option<(&'a str, &'a ProcessSeen)> {
    table.processes.iter().find_map(|process| match &process.role {
        ProcessRole::RuntimeClient { verb, .. }
            if is_awaited(verb) && caller(process, table).is_some_and(|caller| caller.pid == shim.pid) =>
        {
            Some((verb.as_str(), process))
        }
        _ => None,
    })
}

/// The process that has called a client, directly or through wrappers.
fn caller<'a>(process: &ProcessSeen, table: &'a ProcessTable) -> Option<&'a ProcessSeen> {
    let parent_of = |child: &ProcessSeen| table.processes.iter().find(|parent| parent.pid == child.parent);
    let mut parent = parent_of(process)?;
    for _ in 0..MAX_WRAPPERS {
        match &parent.role {
            ProcessRole::RuntimeClient { .. } => parent = parent_of(parent)?,
            _ => break,
        }
    }
    Some(parent)
}

fn sighting(client: &Old<'_>, checked: Duration, thresholds: &Thresholds, confirm: HangConfirmation) -> Sighting {
    let verb = bounded(client.verb, 16);
    let what = client.container.map_or_else(
        || format!("container {}", short(client.id)),
        |container| format!("container {}", bounded(&container.name, 63)),
    );
    let because = if client.frozen { "; the container's control group is frozen, and it waits for that" } else { "" };
    let (age, still) = (thresholds.bound(&AGE), thresholds.bound(&NO_PROGRESS_TIME));
    let how = if client.process.age >= age {
        format!("has been at work for more than {} s", age.as_secs())
    } else {
        format!("has made no progress for {} s", still.as_secs())
    };
    let message =
        format!("`{verb}` of {what}{} {how}{because}: {}", of_pod(client.pod.as_ref()), describe(client.process));
    let sandbox_id = client.sandbox_id.map(|id| bounded(id, 128));
    let id = Some(bounded(client.id, 128));
    let subject = match client.container {
        Some(container) => container_of(container).0,
        None => Subject {
            id: id.clone(),
            pod: client.pod.clone(),
            sandbox_id: sandbox_id.clone(),
            ..Subject::of(SubjectKind::Container)
        },
    };
    // If the container itself is frozen, the next client would wait as this one does.
    let process = (!client.frozen).then(|| process_ref(client.process, Role::RuntimeClient));
    Sighting {
        subject,
        target: Target { process, container_id: id, sandbox_id, pod: client.pod.clone(), ..Target::default() },
        message,
        impact: "the pod gets no further, and what asks the runtime for this container may wait as well; with two such \
                 pods the kubelet needs minutes for one relist of its pods",
        evidence: [
            format!("{} is {} s old", describe(client.process), client.process.age.as_secs()),
            format!("its arguments name container {}", short(client.id)),
        ]
        .into_iter()
        .chain(
            client.process.still.map(|still| {
                format!("neither it nor what it has called has used a processor for {} s", still.as_secs())
            }),
        )
        .collect(),
        ..Sighting::new(FaultType::RuntimeClientHung, &client.key(), checked, confirm.of(client.process, thresholds))
    }
}
