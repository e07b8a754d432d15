//! Draining a node: which of its pods are evicted, which stay, what keeps a pod there, and how a round is told.
//!
//! A drain is gone about in rounds. Each asks the API server anew which pods the node has, and evicts those that are to go, as
//! their disruption budgets allow. It is done when none is left.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fault::{Fault, FaultType, PodRef};
use super::text;

/// Most evictions that are accepted in one round.
pub const MAX_EVICTIONS: usize = 20;
/// Most evictions that are asked for in one round, those that a budget refuses included.
pub const MAX_TRIES: usize = 60;
/// Most pods that are named in a sentence, of each kind.
const MAX_NAMED: usize = 4;
/// Longest name of a pod, and longest reason, in a sentence, in bytes.
const MAX_PART: usize = 120;

/// How a node is drained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Seconds that each pod gets to end by itself, in place of its own time. 1 to 86,400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub grace_period_seconds: Option<u32>,
    /// Whether pods with data in an `emptyDir` are evicted, which ends that data.
    #[serde(default)]
    pub delete_empty_dir_data: bool,
    /// Whether pods are evicted that no controller makes again.
    #[serde(default)]
    pub force: bool,
    /// Pods in these namespaces stay; each may end with `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 63)))]
    pub except_namespaces: Vec<String>,
}

/// Who makes a pod again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// A `DaemonSet`: it would make it again on this very node.
    DaemonSet,
    /// The kubelet itself, from a file: the API server has only its mirror, and cannot end it.
    Kubelet,
    /// Another controller, which makes it again elsewhere.
    #[default]
    Controller,
    /// Nobody.
    Nobody,
}

/// How far a pod is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodState {
    /// It is to run, or does.
    #[default]
    Live,
    /// It is being deleted.
    Terminating,
    /// It has come to its end (phase Succeeded or Failed).
    Finished,
}

/// A pod of the node, as far as a drain needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePod {
    /// Which pod.
    pub pod: PodRef,
    /// Who makes it again.
    pub owner: Owner,
    /// How far it is.
    pub state: PodState,
    /// Whether it has data in an `emptyDir`.
    pub has_empty_dir: bool,
    /// Whether it is one of this project's own.
    pub is_ours: bool,
}

/// What becomes of a pod in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It may stay: the drain does not wait for it.
    Stays,
    /// It is on its way out; that is waited for.
    Going,
    /// It is to be evicted.
    Evict,
    /// It is not evicted, and holds the drain up.
    Blocked(String),
}

/// Pods below which something hangs, by uid, with what it is: a deletion above it would hang as well, so that is to be released
/// first. A suspicion is enough.
pub fn hung<'f>(faults: impl IntoIterator<Item = &'f Fault>) -> BTreeMap<String, String> {
    let hangs = |fault: &&Fault| {
        matches!(
            fault.kind,
            FaultType::HungContainer
                | FaultType::RuntimeClientHung
                | FaultType::NetworkPluginHung
                | FaultType::UninterruptibleProcess
                | FaultType::FrozenCgroup
        )
    };
    let of_pods = faults.into_iter().filter(hangs).flat_map(|fault| {
        let pods = [&fault.subject.pod, &fault.target.pod].into_iter().flatten();
        pods.map(move |pod| (pod.uid.clone(), format!("{} below it is to be released first", fault.kind)))
    });
    of_pods.collect()
}

impl Drain {
    /// What becomes of this pod.
    pub fn fate(&self, pod: &NodePod, hung: &BTreeMap<String, String>) -> Fate {
        let is_left_out = self.except_namespaces.iter().any(|like| text::is_like(like, &pod.pod.namespace));
        let has_place_here = matches!(pod.owner, Owner::DaemonSet | Owner::Kubelet) || pod.is_ours || is_left_out;
        match pod.state {
            _ if has_place_here => return Fate::Stays,
            PodState::Finished => return Fate::Stays,
            PodState::Terminating => return Fate::Going,
            PodState::Live => {}
        }
        if let Some(why) = hung.get(&pod.pod.uid) {
            return Fate::Blocked(why.clone());
        }
        if pod.owner == Owner::Nobody && !self.force {
            return Fate::Blocked("no controller makes it again (drain.force)".to_owned());
        }
        if pod.has_empty_dir && !self.delete_empty_dir_data {
            return Fate::Blocked("it has data in an emptyDir (drain.deleteEmptyDirData)".to_owned());
        }
        Fate::Evict
    }
}

/// What the API server says to one eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is accepted: the pod is on its way out.
    Accepted,
    /// There is no such pod any more, or another one has its name.
    Gone,
    /// It is refused, for this reason.
    Refused(String),
    /// Nobody is asked further in this round, for this reason.
    Stop(String),
}

/// One round, as it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    going: Vec<PodRef>,
    next: Vec<PodRef>,
    blocked: Vec<(PodRef, String)>,
    stopped: Option<String>,
    asked: usize,
    accepted: usize,
}

impl Round {
    /// Sorts the pods of a node. Those to be evicted are begun with at another place in each round, by `turn`: many that are
    /// refused do not keep the others waiting for ever.
    pub fn begin(drain: &Drain, pods: &[NodePod], hung: &BTreeMap<String, String>, turn: u64) -> Self {
        let mut round = Self::default();
        for pod in pods {
            match drain.fate(pod, hung) {
                Fate::Stays => {}
                Fate::Going => round.going.push(pod.pod.clone()),
                Fate::Evict => round.next.push(pod.pod.clone()),
                Fate::Blocked(why) => round.blocked.push((pod.pod.clone(), why)),
            }
        }
        round.next.sort();
        let count = u64::try_from(round.next.len()).unwrap_or(u64::MAX);
        let step = u64::try_from(MAX_EVICTIONS).unwrap_or(u64::MAX);
        let place = turn.saturating_mul(step).checked_rem(count).and_then(|place| usize::try_from(place).ok());
        round.next.rotate_left(place.unwrap_or(0));
        // Taken from the end.
        round.next.reverse();
        round
    }

    /// The next pod to be evicted in this round, if one is. Its answer goes to [`Round::answered`].
    pub fn take(&mut self) -> Option<PodRef> {
        let is_over = self.stopped.is_some() || self.accepted >= MAX_EVICTIONS || self.asked >= MAX_TRIES;
        if is_over { None } else { self.next.pop() }
    }

    /// Takes the answer over.
    pub fn answered(&mut self, pod: PodRef, answer: Answer) {
        self.asked = self.asked.saturating_add(1);
        match answer {
            Answer::Accepted => {
                self.accepted = self.accepted.saturating_add(1);
                self.going.push(pod);
            }
            Answer::Gone => {}
            Answer::Refused(why) => self.blocked.push((pod, why)),
            Answer::Stop(why) => {
                self.stopped = Some(why);
                self.next.push(pod);
            }
        }
    }

    /// Ends the round before its time.
    pub fn stop(&mut self, why: &str) {
        self.stopped.get_or_insert_with(|| why.to_owned());
    }

    /// How many pods are left.
    pub fn left(&self) -> usize {
        self.going.len().saturating_add(self.next.len()).saturating_add(self.blocked.len())
    }

    /// How the round ends, in one sentence that names what keeps pods there. The same in each round in which nothing changes.
    pub fn sentence(&self) -> String {
        if self.left() == 0 {
            return "drained: no pod is left that was to go".to_owned();
        }
        let mut said = vec![format!("{} pod(s) left", self.left())];
        if !self.blocked.is_empty() {
            let mut blocked: Vec<String> = self
                .blocked
                .iter()
                .map(|(pod, why)| format!("{} ({})", short(pod), text::bounded(why, MAX_PART)))
                .collect();
            blocked.sort();
            said.push(format!("not evicted: {}", some_of(&blocked)));
        }
        if !self.going.is_empty() {
            let mut going: Vec<String> = self.going.iter().map(short).collect();
            going.sort();
            said.push(format!("on their way out: {}", some_of(&going)));
        }
        if !self.next.is_empty() {
            let why =
                self.stopped.as_ref().map_or_else(String::new, |why| format!(" ({})", text::bounded(why, MAX_PART)));
            said.push(format!("{} to be evicted next{why}", self.next.len()));
        }
        text::bounded(&said.join("; "), super::fault::MAX_LINE)
    }
}

fn short(pod: &PodRef) -> String {
    text::bounded(&pod.to_string(), MAX_PART)
}

/// The first of them, and how many more there are.
fn some_of(all: &[String]) -> String {
    let named = all.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MAX_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> NodePod {
        NodePod {
            pod: PodRef { namespace: "shop".into(), name: name.into(), uid: format!("uid-{name}") },
            owner: Owner::Controller,
            state: PodState::Live,
            has_empty_dir: false,
            is_ours: false,
        }
    }

    fn blocked(why: &str) -> Fate {
        Fate::Blocked(why.to_owned())
    }

    type Case = (fn(&mut NodePod), Fate, Fate);

    #[test]
    fn each_pod_has_its_fate() {
        let (plain, none) = (Drain::default(), BTreeMap::new());
        let all = Drain { force: true, delete_empty_dir_data: true, ..Drain::default() };
        let hung = BTreeMap::from([("uid-h".to_owned(), "X".to_owned())]);
        let with = |change: fn(&mut NodePod)| {
            let mut pod = pod("h");
            change(&mut pod);
            pod
        };
        let cases: [Case; 8] = [
            (|_| {}, Fate::Evict, Fate::Evict),
            (|p| p.owner = Owner::DaemonSet, Fate::Stays, Fate::Stays),
            (|p| p.owner = Owner::Kubelet, Fate::Stays, Fate::Stays),
            (|p| p.state = PodState::Finished, Fate::Stays, Fate::Stays),
            (|p| p.is_ours = true, Fate::Stays, Fate::Stays),
            (|p| p.state = PodState::Terminating, Fate::Going, Fate::Going),
            (|p| p.owner = Owner::Nobody, blocked("no controller makes it again (drain.force)"), Fate::Evict),
            (|p| p.has_empty_dir = true, blocked("it has data in an emptyDir (drain.deleteEmptyDirData)"), Fate::Evict),
        ];
        for (change, bare, forced) in cases {
            let pod = with(change);
            assert_eq!(plain.fate(&pod, &none), bare, "{pod:?}");
            assert_eq!(all.fate(&pod, &none), forced, "{pod:?}");
            // What hangs below a pod keeps it, whatever the policy allows; what stays anyway, or goes, is not held up by it.
            let expected = if matches!(bare, Fate::Stays | Fate::Going) { bare } else { blocked("X") };
            assert_eq!(all.fate(&pod, &hung), expected, "{pod:?}");
        }
        let except = Drain { except_namespaces: vec!["sho*".into()], ..Drain::default() };
        assert_eq!(except.fate(&pod("a"), &none), Fate::Stays);
    }

    #[test]
    fn a_round_has_a_bound_and_begins_at_another_place_each_time() {
        let pods: Vec<NodePod> = (0..100).map(|i| pod(&format!("web-{i:03}"))).collect();
        let mut seen = std::collections::BTreeSet::new();
        for turn in 0..5 {
            let mut round = Round::begin(&Drain::default(), &pods, &BTreeMap::new(), turn);
            let mut accepted = 0;
            while let Some(pod) = round.take() {
                seen.insert(pod.name.clone());
                accepted += 1;
                round.answered(pod, Answer::Accepted);
            }
            assert_eq!((accepted, round.left()), (MAX_EVICTIONS, 100));
        }
        assert_eq!(seen.len(), 100, "each has its turn");
        let mut refused = Round::begin(&Drain::default(), &pods, &BTreeMap::new(), 0);
        let mut asked = 0;
        while let Some(pod) = refused.take() {
            asked += 1;
            refused.answered(pod, Answer::Refused("PodDisruptionBudget web: none may go".into()));
        }
        assert_eq!(asked, MAX_TRIES);
        let said = refused.sentence();
        let expected = "100 pod(s) left; not evicted: shop/web-000 (PodDisruptionBudget web: none may go)";
        assert!(said.starts_with(expected) && said.contains("and 56 more; 40 to be evicted next"), "{said}");
        assert!(said.len() <= crate::core::fault::MAX_LINE);
    }

    #[test]
    fn it_is_done_when_nothing_is_left_and_says_what_is() {
        let mut going = pod("b");
        going.state = PodState::Terminating;
        let pods = [pod("a"), going];
        let mut round = Round::begin(&Drain::default(), &pods, &BTreeMap::new(), 7);
        let first = round.take().unwrap();
        round.answered(first, Answer::Gone);
        assert_eq!(round.sentence(), "1 pod(s) left; on their way out: shop/b");
        let mut stopped = Round::begin(&Drain::default(), &pods, &BTreeMap::new(), 0);
        let first = stopped.take().unwrap();
        stopped.answered(first, Answer::Stop("no answer".into()));
        assert_eq!((stopped.take(), stopped.left()), (None, 2));
        assert!(stopped.sentence().ends_with("1 to be evicted next (no answer)"), "{}", stopped.sentence());
        let empty = Round::begin(&Drain::default(), &[], &BTreeMap::new(), 3);
        assert_eq!((empty.left(), empty.sentence().as_str()), (0, "drained: no pod is left that was to go"));
    }
}
