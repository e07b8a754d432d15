//! Why a rule does not apply to a fault, and whether it still does. The engine and the preflight of an action ask the same.

use std::collections::BTreeSet;

use super::{Policy, Rule};
use crate::fault::{Fault, FaultType};
use crate::matching::{
    MAX_KEY, MAX_KEYS, Match, MatchContext, Matching, MissingFact, NO_OWNER, PodOfFault, PodSeen, PodTraits,
    Requirement,
};
use crate::text::bounded;

/// Longest list of what a rule asks for, in bytes.
const MAX_ASKED: usize = 120;

/// Whether a rule still applies to a fault that it remediates. The severity does not count: a fault that changes keeps its steps.
#[derive(Clone, Debug, PartialEq)]
pub enum Applicability<'p> {
    /// The rule still applies.
    Yes,
    /// An earlier rule applies to the fault by now.
    Other(&'p Rule),
    /// Its own `match` is not met any more, and why.
    No(String),
    /// It is unknown whether this rule applies: the rule itself, or an earlier one.
    Perhaps(&'p Rule, MissingFact),
}

impl Policy {
    /// Whether this rule of the policy still applies to the fault.
    pub fn still_means<'p>(&'p self, rule: &'p Rule, fault: &Fault, around: &MatchContext<'_>) -> Applicability<'p> {
        // The probe may report a condition with another reason for a while.
        if fault.kind != FaultType::NodeCondition && !rule.names(fault) {
            return Applicability::No(format!("match.faults does not name {}", fault.kind));
        }
        // Its own no is a no, whatever is unknown about the others.
        let own = rule.asks(fault, around);
        if own == Match::No {
            return Applicability::No(why_not(rule, fault, around));
        }
        let before = self.rules.iter().take_while(|other| other.name != rule.name);
        let mut ambiguous = None;
        // A rule that asks for nothing would have applied already when this rule was chosen.
        for other in before.filter(|other| other.is_restricted()) {
            match other.matches(fault, around) {
                Match::Yes => return ambiguous.unwrap_or(Applicability::Other(other)),
                Match::Unknown(lack) => {
                    ambiguous.get_or_insert(Applicability::Perhaps(other, lack));
                }
                Match::No => {}
            }
        }
        match own {
            Match::Unknown(lack) => ambiguous.unwrap_or(Applicability::Perhaps(rule, lack)),
            Match::Yes | Match::No => ambiguous.unwrap_or(Applicability::Yes),
        }
    }
}

/// Why no rule of a policy applies to a fault, by the nearest rule: it names the fault, and fails at the last check.
/// `None`: no rule names the fault.
pub fn why_none(policy: &Policy, fault: &Fault, around: &MatchContext<'_>) -> Option<String> {
    let near = |rule: &&Rule| {
        let about = PodOfFault::of(fault);
        let is_no = |answer: Match| answer == Match::No;
        match () {
            () if !rule.is_for(fault) => 0,
            () if is_no(rule.namespaces.hold(about)) => 1,
            () if is_no(rule.matching.of_runtime(around.runtime)) => 2,
            () if is_no(rule.matching.of_kubelet(around.kubelet)) => 3,
            () => 4,
        }
    };
    let rules = policy.rules.iter().filter(|rule| rule.names(fault));
    // The first of several equally near rules.
    let nearest = rules.rev().max_by_key(near)?;
    Some(format!("rule {} is not for it: {}", nearest.name, why_not(nearest, fault, around)))
}

/// The field of `match` by which a rule does not apply to a fault: what it asks for, and what was found.
fn why_not(rule: &Rule, fault: &Fault, around: &MatchContext<'_>) -> String {
    let about = PodOfFault::of(fault);
    if !rule.is_for(fault) {
        let (least, found) = (rule.min_severity.as_str(), fault.severity.as_str());
        return format!("match.minSeverity is {least}, and its severity is {found}");
    }
    let namespaces = &rule.namespaces;
    if namespaces.hold(about) == Match::No {
        let PodOfFault::Pod(pod) = about else {
            return "match.namespaces asks for a pod, and it is about none".to_owned();
        };
        let only = Match::No == super::Namespaces { except: Vec::new(), ..namespaces.clone() }.hold(about);
        let (field, expected) =
            if only { ("namespaces", &namespaces.only) } else { ("excludedNamespaces", &namespaces.except) };
        return format!("match.{field} is {}, and its pod is {pod}", list(expected.iter().map(String::as_str)));
    }
    of_matching(&rule.matching, about, around)
}

fn of_matching(matching: &Matching, about: PodOfFault<'_>, around: &MatchContext<'_>) -> String {
    let known = |known: Option<&str>| bounded(known.unwrap_or("not known"), crate::version::MAX_LENGTH);
    if matching.of_runtime(around.runtime) == Match::No {
        let expected = matching.runtimes.iter().map(|one| match &one.versions {
            Some(versions) => format!("{} {versions}", one.name),
            None => one.name.clone(),
        });
        let found = known(around.runtime);
        return format!("match.runtimes asks for {}, and the node's is {found}", list(expected));
    }
    if matching.of_kubelet(around.kubelet) == Match::No {
        let expected = list(matching.kubelets.iter().map(ToString::to_string));
        return format!("match.kubeletVersions asks for {expected}, and the node's is {}", known(around.kubelet));
    }
    let field = matching.field_of_pod();
    let PodOfFault::Pod(pod) = about else { return format!("match.{field} asks for a pod, and it is about none") };
    let Some(PodSeen::Read(seen)) = around.pods.and_then(|pods| pods.get(pod)) else {
        return format!("match.{field} is not met by pod {pod}");
    };
    let owner = seen.owner.as_deref().unwrap_or(NO_OWNER);
    if !matching.owner_kinds.is_empty() && !matching.owner_kinds.contains(owner) {
        let expected = list(matching.owner_kinds.iter().map(String::as_str));
        return format!("match.ownerKinds asks for {expected}, and the owner of pod {pod} is {owner}, {}", seen.was());
    }
    let expected = matching.pods.iter().flat_map(|selector| &selector.0);
    let unmet = expected.into_iter().find(|one| one.of_pod(seen) == Match::No);
    match unmet {
        Some(one) => {
            let (expected, found) = (bounded(&one.to_string(), MAX_ASKED), label(seen, one.key()));
            format!("match.podSelector asks for {expected}, and pod {pod} has {found}, {}", seen.was())
        }
        None => format!("match.{field} is not met by pod {pod}"),
    }
}

fn label(seen: &PodTraits, key: &str) -> String {
    match seen.labels.get(key) {
        Some(Some(value)) => format!("{key}={value}"),
        Some(None) | None => format!("no label {key}"),
    }
}

fn list<T: AsRef<str>>(all: impl Iterator<Item = T>) -> String {
    let all: Vec<T> = all.collect();
    let texts: Vec<&str> = all.iter().map(AsRef::as_ref).collect();
    bounded(&texts.join(" or "), MAX_ASKED)
}

impl std::fmt::Display for Requirement {
    /// The notation of `kubectl get -l`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |values: &std::collections::BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(",");
        match self {
            Self::In(key, values) => match (values.len(), values.first()) {
                (1, Some(value)) => write!(f, "{key}={value}"),
                _ => write!(f, "{key} in ({})", list(values)),
            },
            Self::NotIn(key, values) => write!(f, "{key} notin ({})", list(values)),
            Self::Exists(key) => f.write_str(key),
            Self::DoesNotExist(key) => write!(f, "!{key}"),
        }
    }
}

/// The pod labels that policies ask for, in order. No more than the controller ever reads.
pub fn asked_keys<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> BTreeSet<String> {
    let rules = policies.into_iter().flat_map(|policy| &policy.rules);
    let keys: BTreeSet<&str> = rules.flat_map(|rule| rule.matching.keys()).filter(|key| key.len() <= MAX_KEY).collect();
    keys.into_iter().take(MAX_KEYS).map(ToOwned::to_owned).collect()
}

/// Whether any of these policies asks for anything of pods.
pub fn asks_of_pods<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> bool {
    policies.into_iter().flat_map(|policy| &policy.rules).any(|rule| rule.matching.asks_of_pods())
}
