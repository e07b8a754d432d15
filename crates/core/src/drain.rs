//! The drain of a node: which of its pods are evicted, which stay, what blocks a pod, and how a round is reported.
//!
//! A drain runs in rounds. Each round reads the pods of the node from the API server again, and evicts those that must leave, as
//! their disruption budgets allow. The drain is done when two rounds in a row have found no such pod: a pod that the scheduler
//! bound right before the cordon may show only after the first.

use std::collections::BTreeMap;
use std::time::Duration;

use super::action::Drain;
use super::fault::{Fault, FaultState, PodRef};
use super::faults::Holds;
use super::text;
use super::tri_state::TriState;

/// Maximum number of accepted evictions in one round.
const MAX_EVICTIONS: usize = 20;
/// Maximum number of eviction requests in one round, including those that a budget refuses.
const MAX_TRIES: usize = 60;
/// Unexplained 429 answers that stop the round. One may come from a webhook for one pod; several mean an overloaded API server.
const MAX_BUSY: usize = 3;
/// Number of rounds in a row without a pod left after which a node is drained.
pub const EMPTY_ROUNDS: u32 = 2;
/// Minimum time between two rounds that both count as quiet.
pub const QUIET_APART: Duration = Duration::from_secs(5);
/// Maximum number of pods of each kind that a sentence names.
const MAX_NAMED: usize = 4;
/// The sentence of a round that has found nothing more to evict or to wait for.
const QUIET: &str = "no pod is left to evict";
/// Longest pod name and longest reason in a sentence, in bytes.
const MAX_PART: usize = 120;

/// Who recreates a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecreatedBy {
    /// A `DaemonSet`, which would recreate it on this very node.
    DaemonSet,
    /// The kubelet itself, from a file. The API server has only its mirror pod, and cannot end it.
    Kubelet,
    /// Another controller, which recreates it elsewhere.
    #[default]
    Controller,
    /// Nobody.
    Nobody,
}

/// The state of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodState {
    /// It runs, or will run.
    #[default]
    Live,
    /// It is being deleted.
    Terminating,
    /// It has finished (phase Succeeded or Failed).
    Finished,
}

/// A pod of the node, as far as a drain needs it.
#[expect(clippy::struct_excessive_bools, reason = "each is a thing of its own that the API says of the pod")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePod {
    /// Which pod.
    pub pod: PodRef,
    /// Who recreates it.
    pub recreated_by: RecreatedBy,
    /// Its state.
    pub state: PodState,
    /// Whether it has data in an `emptyDir`.
    pub has_empty_dir: bool,
    /// Whether it belongs to this project.
    pub is_ours: bool,
    /// Whether it asks to be ended without a grace period. An eviction without a grace period of its own would remove it from the
    /// API while its containers run.
    pub has_no_grace: bool,
    /// Whether it was created after the cordon and tolerates it. After an eviction it would come back.
    pub recreated_after_cordon: bool,
}

impl NodePod {
    /// A pod that a controller recreates elsewhere, and that nothing else is to be said of.
    pub const fn plain(pod: PodRef) -> Self {
        Self {
            pod,
            recreated_by: RecreatedBy::Controller,
            state: PodState::Live,
            has_empty_dir: false,
            is_ours: false,
            has_no_grace: false,
            recreated_after_cordon: false,
        }
    }
}

/// The decision for a pod in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionDecision {
    /// It may stay. The drain does not wait for it.
    Stays,
    /// It is terminating. The drain waits for it.
    Going,
    /// It must be evicted.
    Evict,
    /// It is not evicted, and it blocks the drain.
    Blocked(String),
}

/// What prevents a node from ending evicted pods. On such a node they stay Terminating, and their service lacks them. Those of a
/// `StatefulSet` cannot come back anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CannotEnd {
    /// A confirmed fault.
    Known(String),
    /// A suspicion, or the state of the node is unknown.
    Uncertain(String),
}

/// Whether runtime or kubelet prevent the node from ending pods. `ready` is the condition of the Node, `kubelet_works` the report
/// of its probe. Unknown does not count as yes.
pub fn cannot_end<'f>(
    ready: TriState,
    kubelet_works: TriState,
    faults: impl IntoIterator<Item = &'f Fault>,
) -> Option<CannotEnd> {
    let mut found: Vec<&Fault> = faults.into_iter().filter(|fault| fault.kind.spec().pods_cannot_end).collect();
    // The result does not depend on the order of the faults.
    found.sort_by_key(|fault| (fault.state != FaultState::Confirmed, fault.kind, &fault.id));
    if let Some(fault) = found.first() {
        return Some(match fault.state {
            FaultState::Confirmed => CannotEnd::Known(format!("{fault} is confirmed")),
            FaultState::Suspected => CannotEnd::Uncertain(format!("{fault} is suspected")),
            FaultState::Clearing => CannotEnd::Uncertain(format!("{fault} is not confirmed as resolved")),
        });
    }
    if kubelet_works != TriState::True {
        let how = if kubelet_works == TriState::False { "does not work" } else { "is not known to work" };
        return Some(CannotEnd::Uncertain(format!("its kubelet {how}, as its probe reports")));
    }
    (ready == TriState::Unknown).then(|| CannotEnd::Uncertain("the Node is Ready=Unknown".to_owned()))
}

/// Pods that hold something that hangs, by uid, with what it is. A deletion of such a pod would hang as well, so the hung process
/// must be released first. A suspicion is enough.
pub fn hung<'f>(faults: impl IntoIterator<Item = &'f Fault>) -> BTreeMap<String, String> {
    let of_pods = faults.into_iter().filter(|fault| fault.kind.spec().holds != Holds::Nothing).flat_map(|fault| {
        let pods = [&fault.subject.pod, &fault.target.pod].into_iter().flatten();
        pods.map(move |pod| (pod.uid.clone(), format!("{} below it is to be released first", fault.kind)))
    });
    of_pods.collect()
}

impl Drain {
    /// The decision for this pod.
    pub fn eviction_decision(&self, pod: &NodePod, hung: &BTreeMap<String, String>) -> EvictionDecision {
        let is_left_out = self.excluded_namespaces.iter().any(|like| text::matches_pattern(like, &pod.pod.namespace));
        let has_place_here =
            matches!(pod.recreated_by, RecreatedBy::DaemonSet | RecreatedBy::Kubelet) || pod.is_ours || is_left_out;
        match pod.state {
            _ if has_place_here => return EvictionDecision::Stays,
            PodState::Finished => return EvictionDecision::Stays,
            PodState::Terminating => return EvictionDecision::Going,
            PodState::Live => {}
        }
        if let Some(why) = hung.get(&pod.pod.uid) {
            return EvictionDecision::Blocked(why.clone());
        }
        if pod.recreated_after_cordon {
            return EvictionDecision::Blocked(
                "made after the cordon, which it tolerates: it would come back (excludedNamespaces)".to_owned(),
            );
        }
        if pod.recreated_by == RecreatedBy::Nobody && !self.force {
            return EvictionDecision::Blocked("no controller recreates it; set drain.force to evict it".to_owned());
        }
        if pod.has_empty_dir && !self.delete_empty_dir_data {
            return EvictionDecision::Blocked("it has data in an emptyDir (drain.deleteEmptyDirData)".to_owned());
        }
        EvictionDecision::Evict
    }

    /// The grace period that is sent with an eviction, in seconds. It is what the policy asks for. Otherwise none is sent, and
    /// the pod's own applies. If the pod's own is zero, the shortest possible one is sent.
    pub fn grace_for(&self, pod: &NodePod) -> Option<u32> {
        self.grace_period_seconds.or_else(|| pod.has_no_grace.then_some(1))
    }
}

/// The API server's answer to one eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Accepted: the pod is terminating.
    Accepted,
    /// The pod does not exist any more, or another pod has its name.
    Gone,
    /// Refused, for this reason.
    Refused(String),
    /// Deferred without a named budget, by the server or by a webhook.
    Busy(String),
    /// No further request in this round, for this reason.
    Stop(String),
}

/// One round in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    going: Vec<PodRef>,
    next: Vec<NodePod>,
    blocked: Vec<(PodRef, String)>,
    stopped: Option<String>,
    is_endless: bool,
    tried: usize,
    accepted: usize,
    busy: usize,
}

impl Round {
    /// Sorts the pods of a node. The order of the evictions differs from round to round: `name` identifies the round, such as the
    /// operation and its age. So many refused pods do not keep the others waiting for ever, and nodes that are drained at the
    /// same time do not all begin with the same namespace.
    pub fn begin(drain: &Drain, pods: &[NodePod], hung: &BTreeMap<String, String>, name: &str) -> Self {
        let mut round = Self::default();
        for pod in pods {
            match drain.eviction_decision(pod, hung) {
                EvictionDecision::Stays => {}
                EvictionDecision::Going => round.going.push(pod.pod.clone()),
                EvictionDecision::Evict => round.next.push(pod.clone()),
                EvictionDecision::Blocked(why) => round.blocked.push((pod.pod.clone(), why)),
            }
        }
        round
            .next
            .sort_by_cached_key(|pod| (text::stable_shuffle_key(&format!("{name}/{}", pod.pod.uid)), pod.pod.clone()));
        round
    }

    /// The same on a node that certainly cannot end pods and is drained all the same. Terminating pods stay like that until the
    /// node works again or is rebooted, so the drain does not wait for them.
    #[must_use]
    pub const fn endless(mut self, is_endless: bool) -> Self {
        self.is_endless = is_endless;
        self
    }

    /// The next pod to evict in this round, if there is one. Its answer goes to [`Round::answered`].
    pub fn take(&mut self) -> Option<NodePod> {
        let is_over = self.stopped.is_some() || self.accepted >= MAX_EVICTIONS || self.tried >= MAX_TRIES;
        if is_over { None } else { self.next.pop() }
    }

    /// Records the answer.
    pub fn answered(&mut self, pod: NodePod, answer: Answer) {
        self.tried = self.tried.saturating_add(1);
        match answer {
            Answer::Accepted => {
                self.accepted = self.accepted.saturating_add(1);
                self.going.push(pod.pod);
            }
            Answer::Gone => {}
            Answer::Refused(why) => self.blocked.push((pod.pod, why)),
            Answer::Busy(why) => {
                self.busy = self.busy.saturating_add(1);
                if self.busy >= MAX_BUSY {
                    self.stop(&why);
                }
                self.blocked.push((pod.pod, why));
            }
            Answer::Stop(why) => {
                self.stopped = Some(why);
                self.next.push(pod);
            }
        }
    }

    /// Ends the round early.
    pub fn stop(&mut self, why: &str) {
        self.stopped.get_or_insert_with(|| why.to_owned());
    }

    /// Whether nothing is left to do or to wait for.
    pub fn is_quiet(&self) -> bool {
        self.next.is_empty() && self.blocked.is_empty() && (self.going.is_empty() || self.is_endless)
    }

    /// How many pods are left.
    pub fn left(&self) -> usize {
        self.going.len().saturating_add(self.next.len()).saturating_add(self.blocked.len())
    }

    /// The result of the round, in one sentence that names what blocks pods. It stays the same while nothing changes.
    pub fn sentence(&self) -> String {
        if self.left() == 0 {
            return QUIET.to_owned();
        }
        let mut parts = vec![format!("{} pod(s) left", self.left())];
        if !self.blocked.is_empty() {
            let mut blocked: Vec<String> = self
                .blocked
                .iter()
                .map(|(pod, why)| format!("{} ({})", short(pod), text::bounded(why, MAX_PART)))
                .collect();
            blocked.sort();
            parts.push(format!("not evicted: {}", some_of(&blocked)));
        }
        if !self.going.is_empty() {
            let mut going: Vec<String> = self.going.iter().map(short).collect();
            going.sort();
            let why = if self.is_endless { ", not waited for since the node cannot end them" } else { "" };
            parts.push(format!("on their way out{why}: {}", some_of(&going)));
        }
        if !self.next.is_empty() {
            let why =
                self.stopped.as_ref().map_or_else(String::new, |why| format!(" ({})", text::bounded(why, MAX_PART)));
            parts.push(format!("{} to be evicted next{why}", self.next.len()));
        }
        text::bounded(&parts.join("; "), super::fault::MAX_LINE)
    }
}

fn short(pod: &PodRef) -> String {
    text::bounded(&pod.to_string(), MAX_PART)
}

/// The first of them, and the number of the others.
fn some_of(all: &[String]) -> String {
    let named = all.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MAX_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
