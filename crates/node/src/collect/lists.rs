//! One round of lists: sandboxes, containers, sandboxes again, then direct questions about containers whose
//! sandbox is in neither list.
//!
//! The kubelet creates the sandbox first and removes it last, but two lists never show the same moment. With a sandbox list
//! before and after the container list, a pod in creation or removal does not look like an orphan. A list may still have a gap,
//! so the round asks directly for each odd container. Any error in the three lists means no value.
//!
//! The round also asks Docker which containers it is removing. Docker's list includes removals that have failed, so the round
//! asks directly for each of them. cri-dockerd also lists sandboxes of which only its own record is left, so the round asks in
//! turn for sandboxes that are not ready.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::cri::{CriError, Listed};
use crate::deadline::Deadline;
use crate::docker::Docker;
use crate::runtime::Client;
use nrh_core::observation::{
    ContainerSeen, ContainerState, ListRound, OrphanCheck, RemovalSeen, RemovalState, SandboxSeen,
};

/// Maximum number of containers asked for directly in one round.
const MAX_RECHECKS: usize = 5;
/// Maximum number of sandboxes that are not ready asked for in one round. There may be hundreds, of jobs that have ended, and
/// none of them is urgent.
const MAX_SANDBOXES: usize = 2;
/// Maximum number of direct questions out, over all rounds.
const MAX_OUT: usize = 16;
/// How long a round waits for its direct questions.
const RECHECK_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum time that one direct question stays out. cri-dockerd itself stops waiting after two minutes; a second question
/// before that would pile up calls in it.
const RECHECK_BOUND: Duration = Duration::from_mins(3);

/// The call that a round is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListCall {
    /// One of the two lists of sandboxes.
    Sandboxes,
    /// The list of containers.
    Containers,
    /// Direct questions, and which containers Docker is removing.
    Rechecks,
}

/// State that a round needs from the rounds before it.
#[derive(Debug, Default)]
pub struct Lists {
    round: u64,
    orphan_checks: Direct<OrphanCheck>,
    removals: Direct<RemovalState>,
    sandboxes: Direct<bool>,
    /// Sandboxes that did not exist when asked for last.
    ghosts: BTreeSet<String>,
    /// Containers that are created or of an unknown state, with the moment at which they were first listed so.
    unfinished: BTreeMap<String, Instant>,
}

/// The clients that a round asks.
#[derive(Clone, Debug)]
pub struct Asked {
    /// For lists.
    pub lists: Client,
    /// For direct questions, so that one that hangs does not delay a list.
    pub status: Client,
    /// Docker itself, where it is the runtime.
    pub docker: Option<Docker>,
}

impl Lists {
    /// Runs one round. It calls `at` with each call at the moment it is sent. `bound` is the deadline of each of the three list
    /// calls.
    ///
    /// # Errors
    /// The first error of any of the three lists; a part of a round is never returned.
    pub async fn round(
        &mut self,
        asked: &Asked,
        bound: Duration,
        at: impl Fn(ListCall),
    ) -> Result<ListRound, CriError> {
        let lists = &asked.lists;
        at(ListCall::Sandboxes);
        let Listed { items: sandboxes, bytes: bytes_of_sandboxes } = lists.sandboxes(bound).await?;
        at(ListCall::Containers);
        let containers_sent = Instant::now();
        let Listed { items: containers, bytes: bytes_of_containers } = lists.containers(bound).await?;
        at(ListCall::Sandboxes);
        let sandboxes_again = lists.sandbox_ids(bound).await?;
        let known: BTreeSet<&str> =
            sandboxes.iter().map(|seen| seen.id.as_str()).chain(sandboxes_again.iter().map(String::as_str)).collect();
        let odd: Vec<&ContainerSeen> =
            containers.iter().filter(|seen| seen.pod.is_some() && !known.contains(seen.sandbox_id.as_str())).collect();
        self.round = self.round.saturating_add(1);
        let orphan_checks = if odd.is_empty() {
            BTreeMap::new()
        } else {
            at(ListCall::Rechecks);
            self.recheck(&asked.status, odd).await
        };
        let removals = match &asked.docker {
            None => None,
            Some(docker) => {
                at(ListCall::Rechecks);
                self.removing(docker).await
            }
        };
        let asked_sandboxes = match (&asked.docker, &asked.status) {
            (Some(_), status @ Client::Cri(_)) => {
                at(ListCall::Rechecks);
                self.ghosts(status, &sandboxes).await
            }
            _ => BTreeMap::new(),
        };
        Ok(ListRound {
            sandboxes,
            unfinished: self.unfinished(&containers, containers_sent),
            containers,
            containers_before: containers_sent.elapsed(),
            sandboxes_again,
            answer_bytes: bytes_of_sandboxes.max(bytes_of_containers),
            orphan_checks,
            asked_sandboxes,
            removals,
            round: self.round,
        })
    }

    /// For how long containers have been listed as neither running nor ended.
    fn unfinished(&mut self, containers: &[ContainerSeen], now: Instant) -> BTreeMap<String, Duration> {
        let is_between = |seen: &&ContainerSeen| {
            seen.pod.is_some() && matches!(seen.state, ContainerState::Created | ContainerState::Unknown)
        };
        let since = containers.iter().filter(is_between).map(|seen| {
            let known = self.unfinished.get(&seen.id).copied();
            (seen.id.clone(), known.unwrap_or(now))
        });
        self.unfinished = since.collect();
        self.unfinished.iter().map(|(id, since)| (id.clone(), now.saturating_duration_since(*since))).collect()
    }

    async fn recheck(&mut self, status: &Client, odd: Vec<&ContainerSeen>) -> BTreeMap<String, OrphanCheck> {
        // Running ones first: only they do harm by themselves.
        let wanted: Vec<(bool, &str)> =
            odd.iter().map(|seen| (seen.state != ContainerState::Running, seen.id.as_str())).collect();
        let sandboxes: BTreeMap<&str, &str> =
            odd.iter().map(|seen| (seen.id.as_str(), seen.sandbox_id.as_str())).collect();
        let call = |id: &str| {
            let sandbox = sandboxes.get(id).copied().unwrap_or_default();
            recheck(status.clone(), id.to_owned(), sandbox.to_owned())
        };
        let answers = self.orphan_checks.ask(wanted, MAX_RECHECKS, self.round, call).await;
        answers.into_iter().map(|(id, state)| (id, state.unwrap_or(OrphanCheck::NoAnswer))).collect()
    }

    /// What Docker is removing; `None` where Docker does not say. This is no part of the round's own evidence, so its error is
    /// not an error of the round.
    async fn removing(&mut self, docker: &Docker) -> Option<Vec<RemovalSeen>> {
        let found = docker.removals(RECHECK_DEADLINE).await.ok()?;
        let wanted = found.iter().map(|seen| (false, seen.id.as_str())).collect();
        let call = |id: &str| how_it_stands(docker.clone(), id.to_owned());
        let mut state = self.removals.ask(wanted, MAX_RECHECKS, self.round, call).await;
        let with = |container: ContainerSeen| {
            let state = state.remove(&container.id).flatten();
            RemovalSeen { container, state }
        };
        Some(found.into_iter().map(with).collect())
    }

    /// Whether sandboxes that are not ready exist at all; it asks for some of them, in turn.
    async fn ghosts(&mut self, status: &Client, sandboxes: &[SandboxSeen]) -> BTreeMap<String, Option<bool>> {
        let not_ready: Vec<&str> = sandboxes.iter().filter(|seen| !seen.ready).map(|seen| seen.id.as_str()).collect();
        self.ghosts.retain(|id| not_ready.contains(&id.as_str()));
        // The round asks again for those that did not exist: several readings must agree on that.
        let most = MAX_SANDBOXES + self.ghosts.len().min(MAX_RECHECKS);
        let wanted = not_ready.into_iter().map(|id| (!self.ghosts.contains(id), id)).collect();
        let call = |id: &str| is_there(status.clone(), id.to_owned());
        let answers = self.sandboxes.ask(wanted, most, self.round, call).await;
        for (id, state) in &answers {
            match state {
                Some(false) => self.ghosts.insert(id.clone()),
                Some(true) => self.ghosts.remove(id),
                None => continue,
            };
        }
        answers
    }

    /// How many direct questions are still out.
    pub fn call_counts(&self) -> usize {
        self.orphan_checks.call_counts() + self.removals.call_counts() + self.sandboxes.call_counts()
    }
}

/// Direct questions, at most one out for each container. `None` is an answer that is no evidence.
#[derive(Debug)]
struct Direct<T> {
    out: BTreeMap<String, JoinHandle<Option<T>>>,
    /// Round in which each container was asked for last.
    asked: BTreeMap<String, u64>,
}

impl<T> Default for Direct<T> {
    fn default() -> Self {
        Self { out: BTreeMap::new(), asked: BTreeMap::new() }
    }
}

impl<T> Drop for Direct<T> {
    fn drop(&mut self) {
        for call in self.out.values() {
            call.abort();
        }
    }
}

impl<T: Send + 'static> Direct<T> {
    /// Asks for `most` of these objects: by rank, and within a rank first for those that waited longest. Returns each object of
    /// this round with its answer, if one that is evidence came in time.
    async fn ask<F>(
        &mut self,
        mut wanted: Vec<(bool, &str)>,
        most: usize,
        round: u64,
        call: impl Fn(&str) -> F,
    ) -> BTreeMap<String, Option<T>>
    where
        F: Future<Output = Option<T>> + Send + 'static,
    {
        let names: BTreeSet<&str> = wanted.iter().map(|(_, id)| *id).collect();
        self.asked.retain(|id, _| names.contains(id.as_str()));
        // An answer that came after its round is too old to be used.
        self.out.retain(|_, call| !call.is_finished());
        wanted.sort_by_key(|(rank, id)| (*rank, self.asked.get(*id).copied(), *id));
        wanted.truncate(most);
        let mut answers = BTreeMap::new();
        for (_, id) in wanted {
            answers.insert(id.to_owned(), None);
            if self.out.len() < MAX_OUT && !self.out.contains_key(id) {
                self.out.insert(id.to_owned(), tokio::spawn(call(id)));
                self.asked.insert(id.to_owned(), round);
            }
        }
        let mut deadline = Deadline::new(RECHECK_DEADLINE, Instant::now());
        for (id, answer) in &mut answers {
            if let Some(call) = self.out.get_mut(id)
                && let Ok(Ok(state)) = deadline.wait(call).await
            {
                *answer = state;
            }
        }
        self.out.retain(|_, call| !call.is_finished());
        answers
    }

    /// How many are still out.
    fn call_counts(&self) -> usize {
        self.out.values().filter(|call| !call.is_finished()).count()
    }
}

/// Asks Docker for one container that it is removing.
async fn how_it_stands(docker: Docker, id: String) -> Option<RemovalState> {
    match docker.inspect(&id, RECHECK_BOUND).await {
        Ok(state) => Some(state.removal()),
        Err(CriError::NotFound) => Some(RemovalState::Gone),
        Err(_) => None,
    }
}

/// Asks for one sandbox.
async fn is_there(status: Client, id: String) -> Option<bool> {
    exists(&status.has_sandbox(&id, RECHECK_BOUND).await)
}

/// Asks for one container and then for its sandbox.
async fn recheck(status: Client, container: String, sandbox: String) -> Option<OrphanCheck> {
    if sandbox.is_empty() {
        return None;
    }
    let is_orphan = exists(&status.has_container(&container, RECHECK_BOUND).await)?
        && !exists(&status.has_sandbox(&sandbox, RECHECK_BOUND).await)?;
    Some(if is_orphan { OrphanCheck::Confirmed } else { OrphanCheck::Refuted })
}

/// Whether an object exists. Only "no such object" is evidence that it does not; silence is not.
fn exists(answer: &Result<(), CriError>) -> Option<bool> {
    match answer {
        Ok(()) => Some(true),
        Err(CriError::NotFound) => Some(false),
        Err(_) => None,
    }
}
