//! What a rule asks of the pod and the node of a fault, in addition to the fault itself.
//!
//! A match is yes, no or unknown. Missing data is unknown, never no: a pod that was not read is not a pod without the label. Such
//! a fault is blocked, and goes to no later rule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::fault::{Fault, FaultType, PodRef};
use super::text::{self, bounded};
use super::version::{MAX_LENGTH, Range, Version};

/// The word for no owner among the kinds of owners.
pub const NO_OWNER: &str = "None";
/// Maximum number of pod labels that all policies together may ask for. Others stay unknown.
pub(crate) const MAX_KEYS: usize = 256;
/// Longest key of a label, in bytes.
pub(crate) const MAX_KEY: usize = 317;
/// The key of a label: at most 63 characters, perhaps after a domain and a slash. A dot stands in brackets, so that CEL
/// takes it as it is.
pub const LABEL_KEY: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$";
/// Longest value of a label, and longest kind of an owner, in bytes.
const MAX_VALUE: usize = 63;
/// How long the data of a pod is valid. Its owner stays the same, and its labels hardly ever change.
pub const COUNTS_FOR: Duration = Duration::from_mins(5);

/// What was read of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodTraits {
    /// The labels that policies ask for, with their values. `None`: the pod has no such label. A label that is not in the map is
    /// unknown. Many pods share one map.
    pub labels: Arc<BTreeMap<String, Option<String>>>,
    /// Kind of the owner that controls it. `None`: no owner does.
    pub owner: Option<String>,
    /// Time since it was read.
    pub read: Duration,
    /// The API does not have it any more. Its last known data stays valid, however old it is.
    pub gone: bool,
}

impl PodTraits {
    /// The traits of a pod with these labels and this owner, where policies ask for these keys.
    pub fn of(labels: &BTreeMap<String, String>, owner: Option<&str>, keys: &BTreeSet<String>) -> Self {
        // A value longer than the limit cannot be compared.
        let is_one = |key: &&String| labels.get(*key).is_none_or(|value| value.len() <= MAX_VALUE);
        let labels = keys.iter().filter(is_one).map(|key| (key.clone(), labels.get(key).cloned()));
        Self {
            labels: Arc::new(labels.collect()),
            owner: owner.map(|kind| bounded(kind, MAX_VALUE)),
            read: Duration::ZERO,
            gone: false,
        }
    }

    /// Whether the data is still valid.
    fn counts(&self) -> bool {
        self.gone || self.read <= COUNTS_FOR
    }

    /// The phrase that introduces this data in a sentence.
    pub(crate) const fn was(&self) -> &'static str {
        if self.gone { "when it was last seen" } else { "as it was read" }
    }
}

/// What is known of a pod that a fault names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodSeen {
    /// It was read.
    Read(PodTraits),
    /// The API has no such pod, and the controller has never read it.
    Gone,
}

/// What is known of the pod and the node that a fault is about.
#[derive(Clone, Copy, Debug, Default)]
pub struct MatchContext<'a> {
    /// The pods that were read.
    pub pods: Option<&'a BTreeMap<PodRef, PodSeen>>,
    /// Container runtime and its version, from the Node: `containerd://1.7.24`.
    pub runtime: Option<&'a str>,
    /// Version of the kubelet, from the Node.
    pub kubelet: Option<&'a str>,
}

/// An answer to what a rule asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The rule applies to this fault.
    Yes,
    /// The rule does not apply.
    No,
    /// It is unknown now.
    Unknown(MissingFact),
}

/// What is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingFact {
    /// The field of `match` that needs it.
    pub field: &'static str,
    /// What is missing, in one sentence without a full stop.
    pub what: String,
    /// Whether it will be known without a person: the controller reads it.
    pub passes: bool,
}

impl Match {
    /// Both answers together. A no is a no, whatever is unknown.
    #[must_use]
    pub fn and(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::No => Self::No,
            Self::Yes => other(),
            Self::Unknown(lack) => match other() {
                Self::No => Self::No,
                Self::Yes => Self::Unknown(lack),
                // What a person has to see takes precedence over what resolves itself.
                Self::Unknown(other) => Self::Unknown(if lack.passes { other } else { lack }),
            },
        }
    }
}

impl From<bool> for Match {
    fn from(is: bool) -> Self {
        if is { Self::Yes } else { Self::No }
    }
}

/// A container runtime by name, and its versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// The name before the `://` in the Node: `containerd`, `cri-o`, `docker`.
    pub name: String,
    /// Which versions; `None` = all.
    pub versions: Option<Range>,
}

/// What a rule asks for in addition to type, severity and namespace of the fault. All of it must hold. An empty one asks for
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    /// Labels of the pod. `Some` without a requirement: any pod, but there must be one.
    pub pods: Option<Selector>,
    /// Kinds of the owner that controls the pod. Empty: any, including faults that are about no pod.
    pub owner_kinds: BTreeSet<String>,
    /// Container runtimes of the node, any of them; empty = all.
    pub runtimes: Vec<Runtime>,
    /// Versions of the node's kubelet, any of them; empty = all.
    pub kubelets: Vec<Range>,
}

/// The namespaces that the pod of a fault may be in. Both empty: any, including a fault that is about no pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Only these. Each may end with `*`. A fault that is about no pod is in none of them.
    pub only: Vec<String>,
    /// Not in these.
    pub except: Vec<String>,
}

impl Namespaces {
    /// Whether the fault is about a pod in such a namespace.
    pub fn hold(&self, about: PodOfFault<'_>) -> Match {
        let is_in = |patterns: &[String], pod: &PodRef| {
            patterns.iter().any(|pattern| text::matches_pattern(pattern, &pod.namespace))
        };
        match about {
            _ if self.only.is_empty() && self.except.is_empty() => Match::Yes,
            PodOfFault::Pod(pod) => {
                ((self.only.is_empty() || is_in(&self.only, pod)) && !is_in(&self.except, pod)).into()
            }
            PodOfFault::NoPod => self.only.is_empty().into(),
            PodOfFault::Unnamed if self.only.is_empty() => unnamed("excludedNamespaces"),
            PodOfFault::Unnamed => unnamed("namespaces"),
        }
    }
}

/// The pod that a fault is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodOfFault<'f> {
    /// This one.
    Pod(&'f PodRef),
    /// None: it is about the node, the runtime or the like.
    NoPod,
    /// A pod that the probe could not identify.
    Unnamed,
}

impl<'f> PodOfFault<'f> {
    /// The pod that this fault is about.
    pub fn of(fault: &'f Fault) -> Self {
        Self::named(fault.kind, pod_of(fault))
    }

    /// The same, where only the type of the fault and the named pod are known.
    pub fn named(kind: FaultType, pod: Option<&'f PodRef>) -> Self {
        match pod {
            Some(pod) => Self::Pod(pod),
            None if kind.is_of_a_pod() => Self::Unnamed,
            None => Self::NoPod,
        }
    }
}

/// The pod that a fault names: the one that an action would touch, else the one that it is about.
pub fn pod_of(fault: &Fault) -> Option<&PodRef> {
    fault.target.pod.as_ref().or(fault.subject.pod.as_ref())
}

impl Matching {
    /// Whether the pod itself must be read for the answer.
    pub fn asks_of_pods(&self) -> bool {
        !self.owner_kinds.is_empty() || self.pods.as_ref().is_some_and(|selector| !selector.0.is_empty())
    }

    /// The pod labels that it asks for.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.pods.iter().flat_map(|selector| &selector.0).map(Requirement::key)
    }

    /// Whether all of it holds for a fault about this pod, or about none.
    pub fn holds(&self, about: PodOfFault<'_>, around: &MatchContext<'_>) -> Match {
        let of_node = self.of_runtime(around.runtime).and(|| self.of_kubelet(around.kubelet));
        of_node.and(|| self.of_pod(about, around.pods))
    }

    /// The field that asks for the pod itself.
    pub const fn field_of_pod(&self) -> &'static str {
        if self.pods.is_some() { "podSelector" } else { "ownerKinds" }
    }

    pub(crate) fn of_pod(&self, about: PodOfFault<'_>, pods: Option<&BTreeMap<PodRef, PodSeen>>) -> Match {
        if self.pods.is_none() && self.owner_kinds.is_empty() {
            return Match::Yes;
        }
        let field = self.field_of_pod();
        let pod = match about {
            PodOfFault::Pod(pod) => pod,
            PodOfFault::NoPod => return Match::No,
            // The existence of a pod is all that is asked for.
            PodOfFault::Unnamed if !self.asks_of_pods() => return Match::Yes,
            PodOfFault::Unnamed => return unnamed(field),
        };
        if !self.asks_of_pods() {
            return Match::Yes;
        }
        let lack = |what: String, passes: bool| Match::Unknown(MissingFact { field, what, passes });
        match pods.and_then(|pods| pods.get(pod)) {
            Some(PodSeen::Read(seen)) if seen.counts() => {
                let owner = seen.owner.as_deref().unwrap_or(NO_OWNER);
                let is_owner = self.owner_kinds.is_empty() || self.owner_kinds.contains(owner);
                let requirements = self.pods.iter().flat_map(|selector| &selector.0);
                requirements.fold(is_owner.into(), |sum: Match, one| sum.and(|| one.of_pod(seen)))
            }
            Some(PodSeen::Gone) => lack(
                format!("the API has no pod {pod} of that uid any more, and the controller has never seen it"),
                false,
            ),
            Some(PodSeen::Read(_)) => lack(format!("what was read of pod {pod} is too old, it is read again"), true),
            None => lack(format!("the labels and the owner of pod {pod} are not known yet"), true),
        }
    }

    pub(crate) fn of_runtime(&self, known: Option<&str>) -> Match {
        if self.runtimes.is_empty() {
            return Match::Yes;
        }
        let Some((name, text)) = known.and_then(|known| known.split_once("://")) else {
            return unreadable_version("runtimes", "container runtime", known);
        };
        let mut of_name = self.runtimes.iter().filter(|one| one.name == name).peekable();
        if of_name.peek().is_none() {
            return Match::No;
        }
        if of_name.clone().any(|one| one.versions.is_none()) {
            return Match::Yes;
        }
        match Version::parse(text) {
            Some(version) => of_name.any(|one| one.versions.as_ref().is_some_and(|all| all.holds(version))).into(),
            None => unreadable_version("runtimes", "container runtime", known),
        }
    }

    pub(crate) fn of_kubelet(&self, known: Option<&str>) -> Match {
        if self.kubelets.is_empty() {
            return Match::Yes;
        }
        match known.and_then(Version::parse) {
            Some(version) => self.kubelets.iter().any(|range| range.holds(version)).into(),
            None => unreadable_version("kubeletVersions", "kubelet", known),
        }
    }
}

fn unreadable_version(field: &'static str, of: &str, known: Option<&str>) -> Match {
    let found = known.map_or_else(|| "none".to_owned(), |known| format!("{:?}", bounded(known, MAX_LENGTH)));
    let what = format!(
        "the version of the node's {of} cannot be read (status.nodeInfo of the Node: expected one, found {found})"
    );
    Match::Unknown(MissingFact { field, what, passes: false })
}

fn unnamed(field: &'static str) -> Match {
    let what = "it is about a pod, and the probe does not know which".to_owned();
    Match::Unknown(MissingFact { field, what, passes: false })
}

/// One requirement on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// The label has one of these values.
    In(String, BTreeSet<String>),
    /// The label is absent or has none of these values.
    NotIn(String, BTreeSet<String>),
    /// The label is there.
    Exists(String),
    /// The label is not there.
    DoesNotExist(String),
}

impl Requirement {
    /// Whether this value of the label, or its absence, meets the requirement.
    pub fn is_met(&self, value: Option<&str>) -> bool {
        match self {
            Self::In(_, values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(_, values) => value.is_none_or(|value| !values.contains(value)),
            Self::Exists(_) => value.is_some(),
            Self::DoesNotExist(_) => value.is_none(),
        }
    }

    /// The label that it is about.
    pub fn key(&self) -> &str {
        match self {
            Self::In(key, _) | Self::NotIn(key, _) | Self::Exists(key) | Self::DoesNotExist(key) => key,
        }
    }

    /// Whether a pod meets the requirement. Perhaps not all of its labels are known.
    pub(crate) fn of_pod(&self, pod: &PodTraits) -> Match {
        let key = self.key();
        match pod.labels.get(key) {
            Some(value) => self.is_met(value.as_deref()).into(),
            None if pod.gone => {
                let what = format!("the pod's label {key} was not read while the API had the pod");
                Match::Unknown(MissingFact { field: "podSelector", what, passes: false })
            }
            None => {
                let what = format!(
                    "the pod's label {key} is not known yet (no more than the first {MAX_KEYS} for which policies ask are read)"
                );
                Match::Unknown(MissingFact { field: "podSelector", what, passes: true })
            }
        }
    }
}

/// The nodes that a policy selects. No requirement = all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(pub Vec<Requirement>);

impl Selector {
    /// Whether a node with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| requirement.is_met(labels.get(requirement.key()).map(String::as_str)))
    }
}

#[cfg(test)]
mod tests;
