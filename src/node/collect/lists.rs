//! One round of lists: sandboxes, containers, sandboxes again, then direct questions about containers whose
//! sandbox is in neither list.
//!
//! The kubelet makes the sandbox first and removes it last, but two lists are never one moment: with a sandbox
//! list on both sides of the container list, neither making nor removing a pod looks like an orphan. A list may
//! still have a gap, so each odd container is asked for directly. Any error in the three lists means no value.
//!
//! Docker is asked besides what it is removing: its list says that of removals that have failed, too, so each is asked for
//! directly. And cri-dockerd lists sandboxes of which it has only a note left: those that are not ready are asked for in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::core::observation::{
    ContainerSeen, ContainerState, ListRound, OrphanRecheck, RemovalSaid, RemovalSeen, SandboxSeen,
};
use crate::node::cri::CriError;
use crate::node::docker::Docker;
use crate::node::patience::Patience;
use crate::node::runtime::Client;

/// Most containers asked for directly in one round.
const MAX_RECHECKS: usize = 5;
/// Most sandboxes that are not ready asked for in one round: there may be hundreds, of jobs that have ended, and nothing is
/// urgent about them.
const MAX_SANDBOXES: usize = 2;
/// Most direct questions out at any time, over all rounds.
const MAX_OUT: usize = 16;
/// How long a round waits for its direct questions.
const RECHECK_DEADLINE: Duration = Duration::from_secs(5);
/// How long one direct question stays out at most. cri-dockerd itself gives up after two minutes; asking again
/// before that would pile up calls in it.
const RECHECK_BOUND: Duration = Duration::from_mins(3);

/// Which of its calls a round is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListCall {
    /// The first list of sandboxes.
    Sandboxes,
    /// The list of containers.
    Containers,
    /// The second list of sandboxes.
    SandboxesAgain,
    /// Direct questions.
    Rechecks,
    /// What Docker is removing, and direct questions about it.
    Removals,
}

/// What a round needs to remember of the rounds before it.
#[derive(Debug, Default)]
pub struct Lists {
    round: u64,
    rechecks: Direct<OrphanRecheck>,
    removals: Direct<Option<RemovalSaid>>,
    sandboxes: Direct<Option<bool>>,
    /// Sandboxes that were not there when asked for last.
    ghosts: BTreeSet<String>,
    /// Containers that are created or of an unknown state, by the moment at which they were first listed so.
    unfinished: BTreeMap<String, Instant>,
}

/// Whom a round asks.
#[derive(Clone, Debug)]
pub struct Asked {
    /// For lists.
    pub lists: Client,
    /// For direct questions, so that one that hangs delays no list.
    pub status: Client,
    /// Docker itself, where it is the runtime.
    pub docker: Option<Docker>,
}

impl Lists {
    /// Runs one round. `at` is told which call is sent, at the moment it is sent; `bound` is the end of each of
    /// the three list calls.
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
        let (sandboxes, bytes_of_sandboxes) = lists.sandboxes_sized(bound).await?;
        at(ListCall::Containers);
        let containers_sent = Instant::now();
        let (containers, bytes_of_containers) = lists.containers_sized(bound).await?;
        at(ListCall::SandboxesAgain);
        let sandboxes_again = lists.sandbox_ids(bound).await?;
        let known: BTreeSet<&str> =
            sandboxes.iter().map(|seen| seen.id.as_str()).chain(sandboxes_again.iter().map(String::as_str)).collect();
        let odd: Vec<&ContainerSeen> =
            containers.iter().filter(|seen| seen.pod.is_some() && !known.contains(seen.sandbox_id.as_str())).collect();
        self.round = self.round.saturating_add(1);
        let rechecks = if odd.is_empty() {
            BTreeMap::new()
        } else {
            at(ListCall::Rechecks);
            self.recheck(&asked.status, odd).await
        };
        let removals = match &asked.docker {
            None => None,
            Some(docker) => {
                at(ListCall::Removals);
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
        let unfinished = self.unfinished(&containers, containers_sent);
        let containers_before = containers_sent.elapsed();
        let answer_bytes = bytes_of_sandboxes.max(bytes_of_containers);
        let round = self.round;
        Ok(ListRound {
            sandboxes,
            containers,
            containers_before,
            sandboxes_again,
            answer_bytes,
            rechecks,
            unfinished,
            asked_sandboxes,
            removals,
            round,
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

    async fn recheck(&mut self, status: &Client, odd: Vec<&ContainerSeen>) -> BTreeMap<String, OrphanRecheck> {
        // Running ones first: only they do harm by themselves.
        let wanted: Vec<(bool, &str)> =
            odd.iter().map(|seen| (seen.state != ContainerState::Running, seen.id.as_str())).collect();
        let sandboxes: BTreeMap<&str, &str> =
            odd.iter().map(|seen| (seen.id.as_str(), seen.sandbox_id.as_str())).collect();
        let call = |id: &str| {
            let sandbox = sandboxes.get(id).copied().unwrap_or_default();
            recheck(status.clone(), id.to_owned(), sandbox.to_owned())
        };
        let answers = self.rechecks.ask(wanted, MAX_RECHECKS, self.round, call).await;
        answers.into_iter().map(|(id, said)| (id, said.unwrap_or(OrphanRecheck::NoAnswer))).collect()
    }

    /// What Docker is removing; `None` where it does not say. It is no part of the round's own evidence, so its error is
    /// none of the round.
    async fn removing(&mut self, docker: &Docker) -> Option<Vec<RemovalSeen>> {
        let found = docker.removals(RECHECK_DEADLINE).await.ok()?;
        let wanted = found.iter().map(|seen| (false, seen.id.as_str())).collect();
        let call = |id: &str| how_it_stands(docker.clone(), id.to_owned());
        let mut said = self.removals.ask(wanted, MAX_RECHECKS, self.round, call).await;
        let with = |container: ContainerSeen| {
            let said = said.remove(&container.id).flatten().flatten();
            RemovalSeen { container, said }
        };
        Some(found.into_iter().map(with).collect())
    }

    /// Whether sandboxes that are not ready are there at all: some of them, in turn.
    async fn ghosts(&mut self, status: &Client, sandboxes: &[SandboxSeen]) -> BTreeMap<String, Option<bool>> {
        let not_ready: Vec<&str> = sandboxes.iter().filter(|seen| !seen.ready).map(|seen| seen.id.as_str()).collect();
        self.ghosts.retain(|id| not_ready.contains(&id.as_str()));
        // Those that were not there are asked for in every round: that takes several looks to be so.
        let most = MAX_SANDBOXES + self.ghosts.len().min(MAX_RECHECKS);
        let wanted = not_ready.into_iter().map(|id| (!self.ghosts.contains(id), id)).collect();
        let call = |id: &str| is_there(status.clone(), id.to_owned());
        let answers = self.sandboxes.ask(wanted, most, self.round, call).await;
        let answers: BTreeMap<_, _> = answers.into_iter().map(|(id, said)| (id, said.flatten())).collect();
        for (id, said) in &answers {
            match said {
                Some(false) => self.ghosts.insert(id.clone()),
                Some(true) => self.ghosts.remove(id),
                None => continue,
            };
        }
        answers
    }

    /// How many direct questions are still out.
    pub fn outstanding(&self) -> usize {
        self.rechecks.outstanding() + self.removals.outstanding() + self.sandboxes.outstanding()
    }
}

/// Direct questions, at most one out per container.
#[derive(Debug)]
struct Direct<T> {
    out: BTreeMap<String, JoinHandle<T>>,
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
    /// Asks for `most` of these objects: by rank, and among equals for those first that waited longest. Of each that was
    /// this round's turn it says what came, if anything did in time.
    async fn ask<F>(
        &mut self,
        mut wanted: Vec<(bool, &str)>,
        most: usize,
        round: u64,
        call: impl Fn(&str) -> F,
    ) -> BTreeMap<String, Option<T>>
    where
        F: Future<Output = T> + Send + 'static,
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
        let mut patience = Patience::new(RECHECK_DEADLINE, Instant::now());
        for (id, answer) in &mut answers {
            if let Some(call) = self.out.get_mut(id)
                && let Ok(Ok(said)) = patience.wait(call).await
            {
                *answer = Some(said);
            }
        }
        self.out.retain(|_, call| !call.is_finished());
        answers
    }

    /// How many are still out.
    fn outstanding(&self) -> usize {
        self.out.values().filter(|call| !call.is_finished()).count()
    }
}

/// Asks Docker for one container that it is removing.
async fn how_it_stands(docker: Docker, id: String) -> Option<RemovalSaid> {
    match docker.inspect(&id, RECHECK_BOUND).await {
        Ok(said) => Some(said.removal()),
        Err(CriError::NotFound) => Some(RemovalSaid::Gone),
        Err(_) => None,
    }
}

/// Asks for one sandbox. Only "no such object" is evidence; silence is not.
async fn is_there(status: Client, id: String) -> Option<bool> {
    match status.has_sandbox(&id, RECHECK_BOUND).await {
        Ok(()) => Some(true),
        Err(CriError::NotFound) => Some(false),
        Err(_) => None,
    }
}

/// Asks for one container and then for its sandbox. Only "no such object" is evidence; silence is not.
async fn recheck(status: Client, container: String, sandbox: String) -> OrphanRecheck {
    if sandbox.is_empty() {
        return OrphanRecheck::NoAnswer;
    }
    match status.has_container(&container, RECHECK_BOUND).await {
        Err(CriError::NotFound) => return OrphanRecheck::Refuted,
        Err(_) => return OrphanRecheck::NoAnswer,
        Ok(()) => {}
    }
    match status.has_sandbox(&sandbox, RECHECK_BOUND).await {
        Ok(()) => OrphanRecheck::Refuted,
        Err(CriError::NotFound) => OrphanRecheck::Confirmed,
        Err(_) => OrphanRecheck::NoAnswer,
    }
}
