//! The listed objects of a runtime that the task collector asks about.

use std::collections::{BTreeMap, BTreeSet};

use nrh_core::observation::{ContainerSeen, ContainerState, ListRound, RuntimeKind};

/// The tasks to ask about, with their sandbox: those of running containers, and of ready sandboxes in which nothing runs (their
/// shim is the same process, so one question is enough). With Docker, each object is asked about alone, also a container that is
/// created: its start may have failed. With CRI-O, each container is: CRI-O has another question for sandboxes.
pub(super) fn wanted(round: &ListRound, kind: RuntimeKind) -> BTreeMap<&str, &str> {
    let running = round.containers.iter().filter(|seen| seen.state == ContainerState::Running && seen.pod.is_some());
    if kind == RuntimeKind::CriO {
        return running.map(|seen| (seen.id.as_str(), seen.id.as_str())).collect();
    }
    if kind == RuntimeKind::Docker {
        let created = |seen: &&ContainerSeen| seen.state == ContainerState::Created && seen.pod.is_some();
        let created = round.containers.iter().filter(created);
        let ready = round.sandboxes.iter().filter(|seen| seen.ready);
        return running
            .chain(created)
            .map(|seen| seen.id.as_str())
            .chain(ready.map(|seen| seen.id.as_str()))
            .map(|id| (id, id))
            .collect();
    }
    let mut wanted: BTreeMap<&str, &str> = running.map(|seen| (seen.id.as_str(), seen.sandbox_id.as_str())).collect();
    let busy: BTreeSet<&str> = wanted.values().copied().collect();
    let idle = round.sandboxes.iter().filter(|seen| seen.ready && !busy.contains(seen.id.as_str()));
    wanted.extend(idle.map(|seen| (seen.id.as_str(), seen.id.as_str())));
    wanted
}
