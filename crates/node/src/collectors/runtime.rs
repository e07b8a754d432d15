//! The collectors that ask the runtime as a whole: its version on a fresh connection, the round of lists, and its own report on
//! its readiness.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::pace::{Checker, Pace, drive};
use super::slot::Failure;
use super::{Shared, lock};
use crate::collect::lists::{Asked, ListCall, Lists};
use crate::cri::CriError;
use crate::cri::endpoint::{Api, Endpoint, NamedBy};
use crate::docker::Docker;
use crate::runtime::{Client, TaskEndpoint};
use nrh_core::observation::{ContainerState, ListRound, RuntimeKind, RuntimeSeen, StatusSeen};

pub(super) async fn version(shared: Arc<Shared>, pace: Pace) {
    let checker = Version { bound: pace.bound, answered: None };
    drive(&shared, "runtime", &shared.version, checker, pace).await;
}

pub(super) async fn lists(shared: Arc<Shared>, pace: Pace) {
    let checker = ListChecker { bound: pace.bound, connected: None, lists: Lists::default() };
    drive(&shared, "lists", &shared.lists, checker, pace).await;
}

pub(super) async fn status(shared: Arc<Shared>, pace: Pace) {
    let checker = StatusChecker { bound: pace.bound };
    drive(&shared, "status", &shared.status, checker, pace).await;
}

/// The socket to use, or why there is none.
pub(super) fn endpoint(shared: &Shared) -> Result<Endpoint, Failure> {
    lock(&shared.endpoint).clone().ok_or_else(|| {
        Failure::Unavailable(
            "no runtime socket known: none named by flag, none by a running kubelet, none at a usual path".to_owned(),
        )
    })
}

/// The socket of Docker itself; `None` where Docker is not the runtime, or not known to be.
fn docker_socket(shared: &Shared) -> Option<PathBuf> {
    let endpoint = lock(&shared.endpoint).clone();
    match endpoint {
        Some(Endpoint { socket, api: Api::Docker, .. }) => Some(socket),
        _ if *lock(&shared.kind) == RuntimeKind::Docker => lock(&shared.docker).clone(),
        _ => None,
    }
}

/// Where to ask about single tasks, or why this is not possible.
pub(super) fn place(shared: &Shared) -> Result<TaskEndpoint, Failure> {
    let kind = *lock(&shared.kind);
    match kind {
        RuntimeKind::Docker => docker_socket(shared).map(TaskEndpoint::Docker).ok_or_else(|| {
            Failure::Unavailable("the runtime is Docker, and its own socket was not checked yet".to_owned())
        }),
        RuntimeKind::CriO => Ok(TaskEndpoint::CriO(endpoint(shared)?.socket)),
        _ => Ok(TaskEndpoint::Containerd(endpoint(shared)?.socket)),
    }
}

struct Version {
    bound: Duration,
    /// The socket at which a runtime has answered this process before.
    answered: Option<PathBuf>,
}

impl Version {
    /// What a failed connection or call means. A problem of this process is not the runtime's fault. A missing socket is
    /// evidence only where it has answered before, or where the kubelet does not have it either (the node, where no kubelet runs).
    fn judge(&self, shared: &Shared, endpoint: &Endpoint, error: CriError) -> Failure {
        let socket = endpoint.socket.as_path();
        if self.answered.as_deref() == Some(socket) {
            return unconnected(error);
        }
        let is_guess = endpoint.named_by.is_guess();
        match error {
            CriError::Unreachable(reason) | CriError::Missing(reason) | CriError::Unimplemented(reason) if is_guess => {
                Failure::Unavailable(format!("nobody named the runtime's socket, and a usual one is dead: {reason}"))
            }
            CriError::Missing(reason) => match lock(&shared.socket_exists).as_ref() {
                // A person names a path as this process sees it. The kubelet's view proves nothing about that path.
                Some((path, false)) if path == socket && endpoint.named_by == NamedBy::Kubelet => {
                    Failure::Failed(reason)
                }
                Some((path, true)) if path == socket => Failure::Unavailable(format!(
                    "the node has this socket, the probe does not see it (is it mounted?): {reason}"
                )),
                _ => Failure::Unavailable(format!("whether the node has this socket is not known: {reason}")),
            },
            error => unconnected(error),
        }
    }
}

impl Checker for Version {
    type Value = RuntimeSeen;

    fn stored(shared: &Shared) {
        shared.update_task_targets();
    }

    async fn check(&mut self, shared: &Shared) -> Result<RuntimeSeen, Failure> {
        let endpoint = endpoint(shared)?;
        let client = Client::connect(&endpoint).await.map_err(|error| self.judge(shared, &endpoint, error))?;
        let seen = client.version(self.bound).await.map_err(|error| match error {
            // The call itself timed out: only the long bound drops it.
            error @ CriError::Deadline(_) => error.into(),
            error => self.judge(shared, &endpoint, error),
        })?;
        self.answered = Some(endpoint.socket);
        Ok(seen)
    }
}

/// A connection that is not accepted in time is a result of its own, and leaves no call behind.
pub(super) fn unconnected(error: CriError) -> Failure {
    match error {
        CriError::Deadline(after) => Failure::Failed(format!("connection not accepted within {} s", after.as_secs())),
        other => other.into(),
    }
}

struct ListChecker {
    bound: Duration,
    /// The socket, and two connections to it: one for lists, one for direct questions.
    connected: Option<(Endpoint, Client, Client)>,
    lists: Lists,
}

impl Checker for ListChecker {
    type Value = ListRound;

    fn is_suspicious(seen: &ListRound) -> bool {
        !seen.orphan_checks.is_empty()
    }

    fn stored(shared: &Shared) {
        shared.update_task_targets();
        check_for_conmons(shared);
    }

    async fn check(&mut self, shared: &Shared) -> Result<ListRound, Failure> {
        let endpoint = endpoint(shared)?;
        let kept = self.connected.take().filter(|(to, ..)| *to == endpoint);
        let (to, lists, status) = if let Some(kept) = kept {
            kept
        } else {
            let lists = Client::connect(&endpoint).await.map_err(unconnected)?;
            let status = Client::connect(&endpoint).await.map_err(unconnected)?;
            (endpoint, lists, status)
        };
        let docker = docker_socket(shared).map(|socket| Docker::at(&socket));
        let asked = Asked { lists, status, docker };
        let at = |call: ListCall| {
            *lock(&shared.list_call) = call;
            lock(&shared.lists).sent(tokio::time::Instant::now());
        };
        let result = self.lists.round(&asked, self.bound, at).await;
        *lock(&shared.rechecks_out) = self.lists.call_counts();
        *lock(&shared.list_too_large) = matches!(result, Err(CriError::TooLarge(_)));
        if let Ok(round) = &result
            && to.api == Api::Docker
            && round.sandboxes.is_empty()
            && round.containers.is_empty()
        {
            let reason = "the Docker of this node has no container of a kubelet: it is hardly the kubelet's runtime";
            return Err(Failure::Unavailable(reason.to_owned()));
        }
        // Kept only after a whole round: a connection with an error is not used for the next one.
        if result.is_ok() {
            self.connected = Some((to, asked.lists, asked.status));
        }
        Ok(result?)
    }
}

/// It uses a new connection each time: the call may wait for a network plugin, and no other call waits behind it.
struct StatusChecker {
    bound: Duration,
}

impl Checker for StatusChecker {
    type Value = StatusSeen;

    async fn check(&mut self, shared: &Shared) -> Result<StatusSeen, Failure> {
        let client = Client::connect(&endpoint(shared)?).await.map_err(unconnected)?;
        Ok(client.status(self.bound).await?)
    }
}

/// With CRI-O, asks for the process table if a listed container has no conmon in it: the container may be younger than the table.
fn check_for_conmons(shared: &Shared) {
    if *lock(&shared.kind) != RuntimeKind::CriO {
        return;
    }
    let running = |round: &ListRound| {
        let running = round.containers.iter().filter(|seen| seen.state == ContainerState::Running);
        running.map(|seen| seen.id.clone()).collect()
    };
    let mut running: BTreeSet<String> = lock(&shared.lists).value().map(running).unwrap_or_default();
    if let Some(table) = lock(&shared.processes).value() {
        for (id, _) in table.processes.iter().filter_map(|process| process.role.serves()) {
            running.remove(id);
        }
    }
    if !running.is_empty() {
        shared.processes_wanted.notify_one();
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::CollectorSettings;

    const SOCKET: &str = "/run/x.sock";

    fn judged(named_by: NamedBy, answered: bool, socket_exists: Option<bool>, error: &CriError) -> Failure {
        let shared = Shared::new(&CollectorSettings::default());
        *lock(&shared.socket_exists) = socket_exists.map(|there| (PathBuf::from(SOCKET), there));
        let answered = answered.then(|| PathBuf::from(SOCKET));
        let version = Version { bound: Duration::from_secs(1), answered };
        version.judge(&shared, &Endpoint::cri(PathBuf::from(SOCKET), named_by), error.clone())
    }

    /// Reported in kubereboot/kured #976, kubernetes/node-problem-detector #861 and kubernetes/kops #16763.
    #[test]
    fn what_the_probe_lacks_is_not_the_runtimes_fault() {
        use NamedBy::{Flag, Kubelet, KubeletKind, Nobody};
        let text = || "x".to_owned();
        let (missing, refused) = (CriError::Missing(text()), CriError::Unreachable(text()));
        let (forbidden, foreign) = (CriError::Forbidden(text()), CriError::Unimplemented(text()));
        let unavailable = CriError::Unavailable(text());
        for (named_by, answered, socket_exists, error, is_blind) in [
            // The socket existed for this process before.
            (Kubelet, true, None, &missing, false),
            (Nobody, true, None, &missing, false),
            (Nobody, true, None, &foreign, false),
            // Not mounted, really missing, and unknown.
            (Kubelet, false, Some(true), &missing, true),
            (Kubelet, false, Some(false), &missing, false),
            (Kubelet, false, None, &missing, true),
            (Flag, false, Some(false), &missing, true),
            // The socket exists, and no process listens.
            (Kubelet, false, None, &refused, false),
            (Flag, false, None, &refused, false),
            (Nobody, false, Some(true), &refused, true),
            // k3s's own file may name another runtime.
            (KubeletKind, false, Some(false), &missing, true),
            (KubeletKind, false, None, &refused, true),
            (KubeletKind, true, None, &missing, false),
            // Another service, or no permission to ask.
            (Nobody, false, None, &foreign, true),
            (Kubelet, false, None, &foreign, false),
            (Kubelet, true, Some(true), &forbidden, true),
            (Flag, false, None, &forbidden, true),
            // This process lacks open files or memory.
            (Kubelet, true, Some(true), &unavailable, true),
            (Flag, false, None, &unavailable, true),
        ] {
            let failure = judged(named_by, answered, socket_exists, error);
            let unavailable = matches!(failure, Failure::Unavailable(_));
            assert_eq!(
                unavailable, is_blind,
                "{named_by:?} answered {answered} kubelet {socket_exists:?}: {error} is {failure:?}"
            );
        }
        // What the kubelet sees at another path proves nothing about this socket.
        let shared = Shared::new(&CollectorSettings::default());
        *lock(&shared.socket_exists) = Some((PathBuf::from("/run/other.sock"), false));
        let version = Version { bound: Duration::from_secs(1), answered: None };
        let failure = version.judge(&shared, &Endpoint::cri(PathBuf::from(SOCKET), Kubelet), missing);
        assert!(matches!(failure, Failure::Unavailable(_)), "{failure:?}");
    }
}
