//! What the policy of a remediation says about it now.

use super::{Block, ClusterContext, NodeContext};
use crate::blocked::BlockReason;
use crate::fault::Fault;
use crate::matching::MissingFact;
use crate::policy::{Applicability, Mode, Policy, Rule, Step};
use crate::remediation::{Remediation, RemediationFault, Resolution, StepRecord};

pub(crate) fn policy_of<'a>(ctx: ClusterContext<'a>, remediation: &Remediation) -> Option<&'a Policy> {
    ctx.policies.get(remediation.policy.as_str()).copied()
}

/// The step of the policy that the attempt was made for, if the policy still has it.
pub(crate) fn step_of<'p>(policy: &'p Policy, remediation: &Remediation, record: &StepRecord) -> Option<&'p Step> {
    let rule = policy.rule(&remediation.fault(&record.fault_id)?.rule)?;
    let step = rule.step(record.step_index)?;
    // A policy that has changed must not turn one action into another. A step that is a dry run now does not count as the step.
    (step.action.is_recorded_as(&record.action) && step.mode == Mode::Enforce).then_some(step)
}

/// Why the remediation takes no further step, by its policy alone.
pub(crate) fn policy_stops(node: &NodeContext<'_>, remediation: &Remediation) -> Option<String> {
    let policy = policy_of(node.cluster, remediation)?;
    if let Some(why) = stopped_reason(policy) {
        return Some(why);
    }
    if !node.policies.iter().any(|selecting| selecting.name == policy.name) {
        return Some(format!("policy {} does not select node {} any more", policy.name, remediation.node));
    }
    let open = || remediation.faults.iter().filter(|fault| fault.state == Resolution::Open);
    for seen in open().filter_map(|fault| node.find(&fault.id)) {
        if let Some(now) = node.other_for(&seen.fault, policy) {
            return Some(format!(
                "policy {} has taken over {} of node {}",
                now.name, seen.fault.kind, remediation.node
            ));
        }
    }
    // An unknown match ends nothing. A match that is known by now ends the remediation, so that the matching rule can apply.
    let ruled = open().filter_map(|fault| Some((node.find(&fault.id)?.fault.as_ref(), policy.rule(&fault.rule)?)));
    for (fault, rule) in ruled {
        let name = &policy.name;
        match policy.still_means(rule, fault, &node.around) {
            Applicability::Other(other) => {
                let (other, rule) = (&other.name, &rule.name);
                return Some(format!(
                    "{fault} is for rule {other} of policy {name} by now, which precedes rule {rule}"
                ));
            }
            Applicability::No(why) => {
                return Some(format!("rule {} of policy {name} is not for {fault} any more: {why}", rule.name));
            }
            Applicability::Yes | Applicability::Perhaps(..) => {}
        }
    }
    let is_lost = |fault: &&RemediationFault| fault.state != Resolution::Resolved && policy.rule(&fault.rule).is_none();
    let lost = remediation.faults.iter().find(is_lost)?;
    Some(format!("policy {} has no rule {} any more", policy.name, lost.rule))
}

/// Why the policy as a whole is stopped: a person has stopped it.
pub(crate) fn stopped_reason(policy: &Policy) -> Option<String> {
    if policy.suspend {
        return Some(format!("policy {} is suspended", policy.name));
    }
    (policy.mode != Mode::Enforce).then(|| format!("policy {} is a dry run now", policy.name))
}

/// The rule of the policy that applies to the fault, if one does; a block while that is unknown.
pub(crate) fn known_rule<'p>(
    node: &NodeContext<'_>,
    policy: &'p Policy,
    fault: &Fault,
) -> Result<Option<&'p Rule>, Block> {
    match node.rule_of(policy, fault) {
        Some((rule, Some(lack))) => Err(uncertain(policy, rule, fault, &lack)),
        known => Ok(known.map(|(rule, _)| rule)),
    }
}

/// The block while it is unknown whether a rule matches the fault. Until then no later rule and no other policy gets the fault.
pub(crate) fn uncertain(policy: &Policy, rule: &Rule, fault: &Fault, lack: &MissingFact) -> Block {
    let (reason, todo) = if lack.passes {
        (
            BlockReason::PodUnknown,
            "it is read every few seconds; if this stays, the controller's log says why".to_owned(),
        )
    } else {
        let todo = format!("resolve it manually, or put a rule without {} before this one", lack.field);
        (BlockReason::RuleAmbiguous, todo)
    };
    let message = format!(
        "{fault}: it is not known whether rule {} of policy {} applies, by match.{}: {}; no other rule takes it meanwhile: {todo}",
        rule.name, policy.name, lack.field, lack.what
    );
    Block::new(reason, &message)
}
