//! Conditions that other tools (or the kubelet) write on a Node, as far as policies ask for them.
//!
//! What such a condition means is defined by its tool, and so is its polarity. True of node-problem-detector is a problem. True
//! of the kubelet and of the EKS node monitoring agent is none. So a rule names type and status, and the condition is a fault
//! only where some policy that selects the node asks for it.
//!
//! The controller counts how long a condition has lasted, from when it first saw it. It counts for each rule, by all that the
//! rule asks for of that type. So a change of the reason, or to another status that the rule asks for as well, does not start the
//! time again. The times in a condition prove little. A tool that changes the reason back and forth moves `lastTransitionTime`
//! each time. A tool that restarts may write it anew. `lastHeartbeatTime` is years old where nothing ever changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::fault::{ConditionStatus, Fault, FaultType, MAX_LINE, Subject, SubjectKind};
use super::node_condition::NodeCondition;
use super::text::bounded;
use super::tri_state::TriState;

/// Longest type of a condition, in bytes. A policy cannot ask for a longer one.
pub const MAX_TYPE: usize = 316;
/// Longest reason that is kept, in bytes, as in a policy.
pub const MAX_REASON: usize = 256;
/// Longest message that is kept, in bytes.
const MAX_MESSAGE: usize = 256;
/// Most conditions of one Node that are kept.
const MAX_CONDITIONS: usize = 64;
/// Most conditions of one node that are faults at the same time.
pub const MAX_NOTICED: usize = 16;

/// A condition, as the Node has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExternalCondition {
    /// Its type.
    pub kind: String,
    /// Its status.
    pub status: TriState,
    /// The tool's reason; may be empty.
    pub reason: String,
    /// The tool's message; may be empty.
    pub message: String,
}

impl ExternalCondition {
    /// A condition with these texts, bounded. `None` where no policy can ask for it: its type is empty, too long or one that this
    /// controller writes itself, or its status is unknown to Kubernetes.
    pub fn new(kind: &str, status: &str, reason: &str, message: &str) -> Option<Self> {
        if !can_be_asked_for(kind) {
            return None;
        }
        let status = TriState::ALL.into_iter().find(|known| known.as_str() == status)?;
        let (reason, message) = (bounded(reason, MAX_REASON), bounded(message, MAX_MESSAGE));
        Some(Self { kind: kind.to_owned(), status, reason, message })
    }

    fn subject(&self) -> Subject {
        let status = ConditionStatus { status: self.status, reason: self.reason.clone() };
        Subject { condition: Some(status), ..Subject::named(SubjectKind::Condition, bounded(&self.kind, MAX_TYPE)) }
    }
}

/// Whether a policy may ask for conditions of this type.
pub fn can_be_asked_for(kind: &str) -> bool {
    !kind.is_empty() && kind.len() <= MAX_TYPE && NodeCondition::named(kind).is_none()
}

/// All conditions of a Node that are kept, sorted by type.
pub fn sorted(conditions: impl IntoIterator<Item = ExternalCondition>) -> Arc<[ExternalCondition]> {
    let mut all: Vec<ExternalCondition> = conditions.into_iter().take(MAX_CONDITIONS).collect();
    all.sort();
    all.dedup();
    all.into()
}

/// The state of a condition on a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionState<'a> {
    /// The Node has no condition of this type.
    Absent,
    /// The Node has this one.
    As(&'a ExternalCondition),
    /// The Node has two of this type, which no API server should accept. It is unknown which of them is valid.
    Contradictory,
}

/// The state of the condition of this type among those of a Node.
pub fn state_of<'a>(conditions: &'a [ExternalCondition], kind: &str) -> ConditionState<'a> {
    let mut of_type = conditions.iter().filter(|one| one.kind == kind);
    match (of_type.next(), of_type.next()) {
        (None, _) => ConditionState::Absent,
        (Some(one), None) => ConditionState::As(one),
        (Some(_), Some(_)) => ConditionState::Contradictory,
    }
}

/// What a rule asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConditionMatcher {
    /// Type of the condition.
    pub kind: String,
    /// The status that counts as the fault.
    pub status: TriState,
    /// The reasons that it asks for; empty = any.
    pub reasons: BTreeSet<String>,
}

impl ConditionMatcher {
    fn matches(&self, kind: &str, status: TriState, reason: &str) -> bool {
        self.kind == kind && self.status == status && (self.reasons.is_empty() || self.reasons.contains(reason))
    }

    /// Whether the condition is as asked for.
    pub fn is_met_by(&self, condition: &ExternalCondition) -> bool {
        self.matches(&condition.kind, condition.status, &condition.reason)
    }

    /// Whether a fault is about such a condition.
    pub fn is_for(&self, fault: &Fault) -> bool {
        let named = fault.subject.name.as_deref().zip(fault.subject.condition.as_ref());
        fault.kind == FaultType::NodeCondition
            && named.is_some_and(|(kind, found)| self.matches(kind, found.status, &found.reason))
    }
}

/// All that one rule asks for of one type. Any of them is enough.
pub type Asking = BTreeSet<ConditionMatcher>;

/// What each of these rules asks for of one type.
pub fn askings<'a>(rules: impl IntoIterator<Item = &'a [ConditionMatcher]>, kind: &str) -> Vec<Asking> {
    let of_rule =
        |matchers: &[ConditionMatcher]| matchers.iter().filter(|one| one.kind == kind).cloned().collect::<Asking>();
    rules.into_iter().map(of_rule).filter(|asking| !asking.is_empty()).collect()
}

/// The statuses that form one fault with this one: those that some rule asks for together with it, and so on.
pub fn statuses_with(status: TriState, askings: &[Asking]) -> BTreeSet<TriState> {
    let mut all = BTreeSet::from([status]);
    // There are three statuses, so after two rounds no further one joins.
    for _ in 0..2 {
        let joined = |asking: &&Asking| asking.iter().any(|matcher| all.contains(&matcher.status));
        let more: Vec<TriState> = askings.iter().filter(joined).flatten().map(|matcher| matcher.status).collect();
        all.extend(more);
    }
    all
}

/// How long a rule has seen a condition as it asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lasted {
    /// Without a gap.
    pub unbroken: Duration,
    /// In total, where no gap was long (see [`Flaps`](super::flaps::Flaps)). This counts while the condition or the node flaps.
    pub all_in_all: Duration,
}

/// A condition on a node as some policy asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedCondition {
    /// The condition. Its message is the one from when it was first seen with this status and reason: some tools write a time or
    /// a count into it with every heartbeat.
    pub condition: ExternalCondition,
    /// Its status, and those that form the same fault.
    pub statuses: BTreeSet<TriState>,
    /// When the controller first saw it in any of these statuses without a gap since, by its wall clock.
    pub first_seen: Timestamp,
    /// How long each rule that asks for it as it is now has seen it, by all that the rule asks for of this type.
    pub lasted: BTreeMap<Asking, Lasted>,
    /// Whether it comes and goes so often that it flaps, by the same figures as a node.
    pub flaps: bool,
}

impl ObservedCondition {
    /// Identity of the fault: the same for one type and the statuses that are asked for together, whatever the reason.
    pub fn id(&self, node: &str) -> String {
        let statuses: Vec<&str> = self.statuses.iter().map(|status| status.as_str()).collect();
        let what = format!("{node}/{}/{}", self.condition.kind, statuses.join("+"));
        Fault::identity(FaultType::NodeCondition, &what)
    }

    /// The longest time without a gap for which any rule has seen it.
    pub fn longest(&self) -> Duration {
        self.lasted.values().map(|lasted| lasted.unbroken).max().unwrap_or_default()
    }

    /// How long it has been present for a rule that asks for this. `node_flaps`: whether its node flaps.
    pub fn lasted_for(&self, matchers: &[ConditionMatcher], node_flaps: bool) -> Duration {
        let asking = askings([matchers], &self.condition.kind).pop().unwrap_or_default();
        let Some(lasted) = self.lasted.get(&asking) else { return Duration::ZERO };
        if self.flaps || node_flaps { lasted.unbroken.max(lasted.all_in_all) } else { lasted.unbroken }
    }

    /// The fault that the condition is. It is confirmed at once: the tool that wrote it has checked, and a rule can require a
    /// duration. `is_heard`: whether the node's kubelet still writes to the Node.
    pub fn fault(&self, node: &str, is_heard: bool) -> Fault {
        let ExternalCondition { kind, status, reason, message } = &self.condition;
        let line = |text: &str| bounded(text, MAX_LINE);
        let what = match reason.as_str() {
            "" => format!("condition {kind} of the Node is {}", status.as_str()),
            reason => format!("condition {kind} of the Node is {} ({reason})", status.as_str()),
        };
        let mut evidence = vec![line(&what)];
        if !message.is_empty() {
            evidence.push(line(&format!("its message: {message}")));
        }
        if !is_heard {
            evidence.push("nothing is heard of the node's kubelet: the condition is what was said last".to_owned());
        }
        let text = if message.is_empty() { what } else { format!("{what}: {message}") };
        Fault {
            id: self.id(node),
            subject: self.condition.subject(),
            message: line(&text),
            impact: "the tool that wrote it defines what it means: the probe has not checked it".to_owned(),
            first_seen: self.first_seen,
            duration_seconds: self.longest().as_secs(),
            evidence,
            ..Fault::new(FaultType::NodeCondition, node)
        }
    }
}

#[cfg(test)]
mod tests;
