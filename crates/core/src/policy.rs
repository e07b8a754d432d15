//! A remediation policy as the engine reads it: validated, with every default filled in.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::external_condition::ConditionMatcher;
use super::fault::{Fault, FaultType, Severity};
use super::matching::{Match, MatchContext, Matching, MissingFact, PodOfFault};
use super::window::Window;

pub use super::action::{Action, ActionType, Quarantine};
pub use super::fault::Daemon;
pub use super::matching::{Namespaces, Requirement, Selector};
pub use applicability::{Applicability, asked_keys, asks_of_pods, why_none};
pub use limits::{Amount, FaultLimit, History, Limits, NodeLimit, StormLimit, TopologyLimit};

mod applicability;
mod limits;

/// Whether decisions are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// Decide and record, touch nothing.
    #[default]
    DryRun,
    /// Decide and act.
    Enforce,
}

/// What follows a step that has failed as often as it may be tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// The next step.
    #[default]
    Continue,
    /// No further step but Notify.
    Stop,
}

/// Whether a person has to agree before a step is done. Automatic (default; `Reboot` and `MarkForReboot` have no default: write it):
/// nobody is asked. Manual: it waits until a person has approved this very attempt (`nrh approve`), and the node's remediation holds its
/// slot meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ApprovalMode {
    /// Nobody has to.
    #[default]
    Automatic,
    /// It waits until a person has approved this very attempt.
    Manual,
}

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What the step does.
    pub action: Action,
    /// Time from the action to a verified resolution. After it, the step has failed.
    pub timeout: Duration,
    /// How often it may be tried.
    pub max_attempts: u32,
    /// Least time between the end of one attempt and the next.
    pub cooldown: Duration,
    /// For how long the fault must stay away before the step counts as a success.
    pub stable_for: Duration,
    /// What follows when it has failed for the last time.
    pub on_failure: OnFailure,
    /// Whether a person has to approve the step first.
    pub approval: ApprovalMode,
    /// How long it waits for the approval. After it, people are notified and no harsher step follows.
    pub approval_timeout: Duration,
    /// `DryRun`: the step is recorded in its turn and not executed, as if it did not exist, in a policy that enforces.
    pub mode: Mode,
}

impl Step {
    /// Whether the step waits for a person's approval.
    pub fn needs_approval(&self) -> bool {
        self.approval == ApprovalMode::Manual
    }

    /// Whether it does more than notify people.
    pub fn acts(&self) -> bool {
        self.mode == Mode::Enforce && !self.action.notifies()
    }

    /// Whether it may resolve a fault: it does more than notify people or keep pods away.
    pub fn resolves(&self) -> bool {
        self.acts() && self.action.resolves()
    }

    /// Whether it disturbs what runs on the node.
    pub fn disturbs(&self) -> bool {
        self.acts() && self.action.disturbs()
    }
}

/// What a rule applies to, and its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name, unique in the policy.
    pub name: String,
    /// Types of fault.
    pub faults: BTreeSet<FaultType>,
    /// Conditions of the Node that the rule applies to as well, any of them.
    pub conditions: Vec<ConditionMatcher>,
    /// Minimum severity.
    pub min_severity: Severity,
    /// Which namespaces its pod may be in.
    pub namespaces: Namespaces,
    /// What the pod and the node of the fault must match.
    pub matching: Matching,
    /// How long a fault must have been Confirmed and present before the first step.
    pub min_duration: Duration,
    /// The steps, the cheapest safe step first.
    pub steps: Vec<Step>,
}

impl Rule {
    /// Whether it does more than notify people.
    pub fn acts(&self) -> bool {
        self.steps.iter().any(Step::acts)
    }

    /// The step at this index.
    pub fn step(&self, index: u32) -> Option<&Step> {
        self.steps.get(usize::try_from(index).ok()?)
    }

    /// Whether the cordon stays after the remediation, for its own sake.
    pub fn keeps_cordon(&self) -> bool {
        self.steps.iter().any(|step| step.action.quarantine().is_some())
    }

    /// Index of the first step from this one on that only notifies people, or the end of the steps where there is none.
    pub fn next_notify_step(&self, from: u32) -> u32 {
        let notifies = |step: &Step| step.mode == Mode::Enforce && step.action.notifies();
        let mut later = self.steps.iter().enumerate().skip(usize::try_from(from).unwrap_or(usize::MAX));
        let place = later.find(|(_, step)| notifies(step)).map_or(self.steps.len(), |(place, _)| place);
        u32::try_from(place).unwrap_or(u32::MAX).max(from)
    }

    /// Index of the next step after a step that is not done. After evictions with `onFailure: Stop` nothing harsher follows, whatever
    /// kept the controller from them.
    pub fn step_after_skip(&self, step: &Step, step_index: u32) -> u32 {
        let next = step_index.saturating_add(1);
        let stops = step.action.traits().evicts_pods && step.on_failure == OnFailure::Stop;
        if stops { self.next_notify_step(next) } else { next }
    }

    /// Whether the rule applies to this fault, as far as its pod and its node are known.
    pub fn matches(&self, fault: &Fault, around: &MatchContext<'_>) -> Match {
        Match::from(self.is_for(fault)).and(|| self.asks(fault, around))
    }

    /// Whether the pod and the node of a fault match what the rule asks for, whatever the fault is.
    pub fn asks(&self, fault: &Fault, around: &MatchContext<'_>) -> Match {
        let about = PodOfFault::of(fault);
        self.namespaces.hold(about).and(|| self.matching.holds(about, around))
    }

    /// Whether it asks for anything of pods or nodes.
    pub fn is_restricted(&self) -> bool {
        self.matching != Matching::default() || self.namespaces != Namespaces::default()
    }

    /// Whether it applies to this fault by type and severity, whatever its pod and node are.
    pub fn is_for(&self, fault: &Fault) -> bool {
        self.names(fault) && fault.severity >= self.min_severity
    }

    /// Whether it names this type of fault, or this condition with its status.
    pub fn names(&self, fault: &Fault) -> bool {
        match fault.kind {
            // A condition alone is not enough: the rule must ask for it.
            FaultType::NodeCondition => self.conditions.iter().any(|matcher| matcher.is_for(fault)),
            kind => self.faults.contains(&kind),
        }
    }
}

/// A validated policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Name of the object.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its generation.
    pub generation: i64,
    /// Which nodes it selects.
    pub selector: Selector,
    /// Higher wins where two policies select one node; then the name decides.
    pub priority: i32,
    /// Whether it enforces its decisions.
    pub mode: Mode,
    /// Nothing starts and nothing continues, except recovery and cleanup.
    pub suspend: bool,
    /// Reasons to start nothing new. Remediations in progress finish.
    pub pause_requests: Vec<String>,
    /// Whether the current object is invalid and this is its last valid version. Until a person repairs it, the policy keeps its
    /// faults and its open remediations, but no step starts.
    pub is_broken: bool,
    /// When steps may start.
    pub windows: Vec<Window>,
    /// Which steps apply to which faults.
    pub rules: Vec<Rule>,
    /// Limits.
    pub limits: Limits,
    /// How many finished remediations are kept.
    pub history: History,
}

impl Policy {
    /// The first of its rules that applies to this fault, or may apply, with what is unknown. Until that is known, no later rule
    /// applies.
    pub fn rule_for(&self, fault: &Fault, around: &MatchContext<'_>) -> Option<(&Rule, Option<MissingFact>)> {
        self.perhaps_for(fault, around).next()
    }

    /// The rules that may apply to this fault, each with what is unknown, up to the first that certainly applies.
    pub fn perhaps_for(
        &self,
        fault: &Fault,
        around: &MatchContext<'_>,
    ) -> impl Iterator<Item = (&Rule, Option<MissingFact>)> {
        let mut is_sure = false;
        self.rules
            .iter()
            .map_while(move |rule| {
                if is_sure {
                    return None;
                }
                let answer = rule.matches(fault, around);
                is_sure = answer == Match::Yes;
                Some((rule, answer))
            })
            .filter_map(|(rule, answer)| match answer {
                Match::Yes => Some((rule, None)),
                Match::Unknown(lack) => Some((rule, Some(lack))),
                Match::No => None,
            })
    }

    /// Every type of step that it may execute.
    pub fn actions(&self) -> BTreeSet<ActionType> {
        let steps = self.rules.iter().flat_map(|rule| &rule.steps).filter(|step| step.mode == Mode::Enforce);
        steps.map(|step| step.action.kind()).collect()
    }

    /// The rule of that name.
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.name == name)
    }

    /// Precedence over `other` on a node that both select: higher priority, then name.
    pub fn order(&self, other: &Self) -> std::cmp::Ordering {
        other
            .priority
            .cmp(&self.priority)
            .then_with(|| self.name.cmp(&other.name))
            .then_with(|| self.uid.cmp(&other.uid))
    }
}
