//! Manual requests: the step that a person requests on one node, until it starts. From then on the request is a remediation like
//! any other, in the same object.
//!
//! ```text
//! a person writes the object ─► waiting (no slot, nothing owed, keeps nobody from the node)
//!        ├ it can begin: slot stored, status written ─► the remediation itself
//!        └ it can never begin, or not in time ─► Cancelled, with the reason
//! ```

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::fault::Fault;
use super::matching::MatchContext;
use super::policy::{ActionType, Mode, Policy, Rule, Step};
use super::remediation::{Cancel, ManualRequest, Phase, Remediation};
use super::text::bounded;

/// Longest name that a person may give the object. The names of its operations derive from it, and are labels.
pub const MAX_NAME: usize = 50;
/// Part of each such name. No remediation that the engine opens has it in its name.
pub const MARK: &str = "by-hand";
/// Maximum number of waiting manual requests. Further ones are refused.
pub const MAX_WAITING: usize = 100;

/// A manual request that has not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenManualRequest {
    /// Name of the object, and of the remediation that it becomes.
    pub name: String,
    /// Uid and resource version.
    pub identity: (String, String),
    /// The node.
    pub node: String,
    /// Uid of the requested Node object. A node replaced under the same name is another node.
    pub node_uid: String,
    /// The policy with the steps, limits and windows for it.
    pub policy: String,
    /// Mode, as written. Nothing starts in a dry run.
    pub mode: Mode,
    /// The request.
    pub manual: ManualRequest,
    /// Whether a person has cancelled it.
    pub cancel: Option<Cancel>,
    /// Whether the object is being deleted.
    pub deleting: bool,
    /// When it was created, by the API server's clock.
    pub asked_at: Timestamp,
    /// Why it has not started, as last reported.
    pub message: String,
}

impl OpenManualRequest {
    /// The remediation that it becomes now, without faults and steps yet.
    pub fn begun(&self, now: Timestamp) -> Remediation {
        Remediation {
            name: self.name.clone(),
            identity: Some(self.identity.clone()),
            node: self.node.clone(),
            node_uid: self.node_uid.clone(),
            policy: self.policy.clone(),
            mode: self.mode,
            deleting: self.deleting,
            cancel: self.cancel.clone(),
            manual: Some(self.manual.clone()),
            started_at: now,
            ..Remediation::default()
        }
    }

    /// The record that nothing was started, and why.
    pub fn refused(&self, why: &str, now: Timestamp) -> Remediation {
        let mut remediation = Remediation { phase: Phase::Cancelled, finished_at: Some(now), ..self.begun(now) };
        remediation.say(why);
        remediation
    }

    /// The request in one phrase: `CleanupOrphans for OrphanContainer, by ann`.
    pub fn phrase(&self) -> String {
        let ManualRequest { requested_by: by, fault, action, .. } = &self.manual;
        bounded(&format!("{} for {fault}, by {by}", action.as_str()), 200)
    }

    /// Whether the names of operations can derive from its name.
    pub fn has_usable_name(&self) -> bool {
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        self.name.len() <= MAX_NAME
            && self.name.contains(MARK)
            && self.name.starts_with(is_word)
            && self.name.ends_with(is_word)
            && self.name.chars().all(|c| is_word(c) || c == '-')
    }
}

/// A step that a person can request.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'p> {
    /// Its policy.
    pub policy: &'p Policy,
    /// Its rule.
    pub rule: &'p Rule,
    /// Its step index, from 0.
    pub step_index: usize,
    /// The step itself.
    pub step: &'p Step,
}

/// The steps that can be requested for a fault on a node with these labels. They are those of the policy that remediates the
/// fault, and of any other policy without precedence for it: such a request is refused with that reason. Where it is unknown
/// whether a rule applies to the fault, the engine blocks the request until it is known.
pub fn choices<'p>(
    policies: &'p [Policy],
    labels: &BTreeMap<String, String>,
    around: &MatchContext<'_>,
    fault: &Fault,
    action: Option<ActionType>,
) -> Vec<Choice<'p>> {
    let mut policies: Vec<&Policy> = policies.iter().filter(|policy| policy.selector.matches(labels)).collect();
    policies.sort_by(|a, b| a.order(b));
    let acts = |policy: &&Policy| policy.mode == Mode::Enforce && !policy.suspend;
    let mut choices = Vec::new();
    for policy in policies.into_iter().filter(acts) {
        let Some((rule, _)) = policy.rule_for(fault, around) else { continue };
        for (step_index, step) in steps(rule, action) {
            // Others are never started by themselves, or not for this fault.
            let traits = step.action.traits();
            let is_possible = !traits.under_cordon && (traits.addresses)(fault.kind).is_ok();
            // Only the first step of each action: the others follow it.
            let is_first = steps(rule, Some(step.action.kind())).next().is_some_and(|(first, _)| first == step_index);
            if is_possible && is_first {
                choices.push(Choice { policy, rule, step_index, step });
            }
        }
    }
    choices
}

/// The steps of a rule that a person can request, each with its index: of one action, or of all.
pub fn steps(rule: &Rule, action: Option<ActionType>) -> impl Iterator<Item = (usize, &Step)> {
    let is_meant = move |step: &Step| step.mode == Mode::Enforce && action.is_none_or(|of| step.action.kind() == of);
    rule.steps.iter().enumerate().filter(move |(_, step)| is_meant(step))
}
