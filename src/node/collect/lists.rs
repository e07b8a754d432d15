//! One round of lists: sandboxes, containers, sandboxes again, then direct questions about containers whose
//! sandbox is in neither list.
//!
//! The kubelet makes the sandbox first and removes it last, but two lists are never one moment: with a sandbox
//! list on both sides of the container list, neither making nor removing a pod looks like an orphan. A list may
//! still have a gap, so each odd container is asked for directly. Any error in the three lists means no value.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::core::observation::{ContainerSeen, ContainerState, ListRound, OrphanRecheck};
use crate::node::cri::{Cri, CriError};

/// Most containers asked for directly in one round.
pub const MAX_RECHECKS: usize = 5;
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
}

/// What a round needs to remember of the rounds before it.
#[derive(Debug, Default)]
pub struct Lists {
    round: u64,
    rechecks: Rechecks,
}

impl Lists {
    /// Runs one round. `at` is told which call is sent, at the moment it is sent; `bound` is the end of each of
    /// the three list calls.
    ///
    /// # Errors
    /// The first error of any of the three lists; a part of a round is never returned.
    pub async fn round(
        &mut self,
        lists: &Cri,
        status: &Cri,
        bound: Duration,
        at: impl Fn(ListCall),
    ) -> Result<ListRound, CriError> {
        at(ListCall::Sandboxes);
        let (sandboxes, bytes_of_sandboxes) = lists.sandboxes_sized(bound).await?;
        at(ListCall::Containers);
        let containers_sent = Instant::now();
        let (containers, bytes_of_containers) = lists.containers_sized(bound).await?;
        at(ListCall::SandboxesAgain);
        let sandboxes_again: Vec<String> = lists.sandboxes(bound).await?.into_iter().map(|seen| seen.id).collect();
        let known: BTreeSet<&str> =
            sandboxes.iter().map(|seen| seen.id.as_str()).chain(sandboxes_again.iter().map(String::as_str)).collect();
        let odd: Vec<&ContainerSeen> =
            containers.iter().filter(|seen| seen.pod.is_some() && !known.contains(seen.sandbox_id.as_str())).collect();
        self.round = self.round.saturating_add(1);
        let rechecks = if odd.is_empty() {
            BTreeMap::new()
        } else {
            at(ListCall::Rechecks);
            self.rechecks.ask(status, odd, self.round).await
        };
        let containers_before = containers_sent.elapsed();
        let answer_bytes = bytes_of_sandboxes.max(bytes_of_containers);
        let round = self.round;
        Ok(ListRound { sandboxes, containers, containers_before, sandboxes_again, answer_bytes, rechecks, round })
    }

    /// How many direct questions are still out.
    pub fn outstanding(&self) -> usize {
        self.rechecks.out.values().filter(|call| !call.is_finished()).count()
    }
}

/// Direct questions, at most one out per container.
#[derive(Debug, Default)]
struct Rechecks {
    out: BTreeMap<String, JoinHandle<OrphanRecheck>>,
    /// Round in which each odd container was asked for last.
    asked: BTreeMap<String, u64>,
}

impl Drop for Rechecks {
    fn drop(&mut self) {
        for call in self.out.values() {
            call.abort();
        }
    }
}

impl Rechecks {
    async fn ask(&mut self, status: &Cri, mut odd: Vec<&ContainerSeen>, round: u64) -> BTreeMap<String, OrphanRecheck> {
        let names: BTreeSet<&str> = odd.iter().map(|seen| seen.id.as_str()).collect();
        self.asked.retain(|id, _| names.contains(id.as_str()));
        // An answer that came after its round is too old to be used.
        self.out.retain(|_, call| !call.is_finished());
        // Running ones first: only they do harm by themselves. Among equals, who waited longest.
        odd.sort_by_key(|seen| {
            (seen.state != ContainerState::Running, self.asked.get(&seen.id).copied(), seen.id.clone())
        });
        odd.truncate(MAX_RECHECKS);
        let mut answers = BTreeMap::new();
        for seen in odd {
            answers.insert(seen.id.clone(), OrphanRecheck::NoAnswer);
            if self.out.len() < MAX_OUT && !self.out.contains_key(&seen.id) {
                let call = recheck(status.clone(), seen.id.clone(), seen.sandbox_id.clone());
                self.out.insert(seen.id.clone(), tokio::spawn(call));
                self.asked.insert(seen.id.clone(), round);
            }
        }
        let end = Instant::now() + RECHECK_DEADLINE;
        for (id, answer) in &mut answers {
            if let Some(call) = self.out.get_mut(id)
                && let Ok(Ok(said)) = timeout_at(end, call).await
            {
                *answer = said;
            }
        }
        self.out.retain(|_, call| !call.is_finished());
        answers
    }
}

/// Asks for one container and then for its sandbox. Only "no such object" is evidence; silence is not.
async fn recheck(status: Cri, container: String, sandbox: String) -> OrphanRecheck {
    if sandbox.is_empty() {
        return OrphanRecheck::NoAnswer;
    }
    match status.container_status(&container, RECHECK_BOUND).await {
        Err(CriError::NotFound) => return OrphanRecheck::Refuted,
        Err(_) => return OrphanRecheck::NoAnswer,
        Ok(_) => {}
    }
    match status.sandbox_ready(&sandbox, RECHECK_BOUND).await {
        Ok(_) => OrphanRecheck::Refuted,
        Err(CriError::NotFound) => OrphanRecheck::Confirmed,
        Err(_) => OrphanRecheck::NoAnswer,
    }
}
