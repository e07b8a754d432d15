//! What the policy of a remediation says about it now.

use super::{ClusterContext, NodeContext};
use crate::command::{Restart, Signal};
use crate::policy::{Action, Applicability, Mode, Policy, Step};
use crate::remediation::{Remediation, Resolution, StepRecord};

/// The policy of the remediation, if it still exists.
pub(crate) fn policy_of<'a>(ctx: ClusterContext<'a>, remediation: &Remediation) -> Option<&'a Policy> {
    ctx.policies.get(remediation.policy.as_str()).copied()
}

/// The step of the policy that the attempt was made for, if the policy still has it.
pub(crate) fn step_of<'p>(policy: &'p Policy, remediation: &Remediation, record: &StepRecord) -> Option<&'p Step> {
    let rule = policy.rule(&remediation.fault(&record.fault_id)?.rule)?;
    let step = rule.steps.get(usize::try_from(record.step_index).ok()?)?;
    // A policy that has changed meanwhile must not turn one action into another. A step that is a dry run now does not count as
    // the step.
    let is_same = step.action.kind() == record.action
        && signal(&step.action) == record.signal
        && restart_with(&step.action) == record.restart
        && step.action.hand_off() == record.hand_off.as_ref()
        && step.action.taint() == record.taint
        && step.action.drain() == record.drain.as_ref()
        && step.action.reboot() == record.reboot.as_ref()
        && step.action.mark_for_reboot() == record.mark_for_reboot.as_ref();
    (is_same && step.mode == Mode::Enforce).then_some(step)
}

/// Why the remediation takes no further step, by its policy alone.
pub(crate) fn policy_stops(
    ctx: ClusterContext<'_>,
    facts: &NodeContext<'_>,
    remediation: &Remediation,
) -> Option<String> {
    let policy = policy_of(ctx, remediation)?;
    if let Some(why) = stopped_reason(policy) {
        return Some(why);
    }
    if !facts.policies.iter().any(|selecting| selecting.name == policy.name) {
        return Some(format!("policy {} does not select node {} any more", policy.name, remediation.node));
    }
    let standing = remediation.faults.iter().filter(|fault| fault.state == Resolution::Open);
    for seen in standing.filter_map(|fault| facts.find(&fault.id)) {
        if let Some(now) = facts.other_for(&seen.fault, policy) {
            return Some(format!(
                "policy {} has taken over {} of node {}",
                now.name, seen.fault.kind, remediation.node
            ));
        }
    }
    // An unknown match ends nothing. A match that is known by now ends the remediation, so that the matching rule can apply.
    let open = remediation.faults.iter().filter(|fault| fault.state == Resolution::Open);
    let ruled = open.filter_map(|fault| Some((facts.find(&fault.id)?.fault.as_ref(), policy.rule(&fault.rule)?)));
    for (fault, rule) in ruled {
        let (what, name) = (format!("{} ({})", fault.kind, fault.subject), &policy.name);
        match policy.still_means(rule, fault, &facts.around) {
            Applicability::Other(other) => {
                let (other, rule) = (&other.name, &rule.name);
                return Some(format!(
                    "{what} is for rule {other} of policy {name} by now, which goes before rule {rule}"
                ));
            }
            Applicability::No(why) => {
                return Some(format!("rule {} of policy {name} is not for {what} any more: {why}", rule.name));
            }
            Applicability::Yes | Applicability::Perhaps(..) => {}
        }
    }
    let lost = remediation.faults.iter().find(|fault| policy.rule(&fault.rule).is_none())?;
    Some(format!("policy {} has no rule {} any more", policy.name, lost.rule))
}

/// Why the policy as a whole is stopped: a person has stopped it.
pub(crate) fn stopped_reason(policy: &Policy) -> Option<String> {
    if policy.suspend {
        return Some(format!("policy {} is suspended", policy.name));
    }
    (policy.mode != Mode::Enforce).then(|| format!("policy {} is a dry run now", policy.name))
}

/// Returns how an action restarts its daemon.
pub(crate) fn restart_with(action: &Action) -> Option<Restart> {
    match action {
        Action::Restart { with, .. } => Some(with.clone()),
        _ => None,
    }
}

/// Returns the signal that an action sends.
pub(crate) const fn signal(action: &Action) -> Option<Signal> {
    match action {
        Action::ReleaseHungProcess { signal, .. } => Some(*signal),
        _ => None,
    }
}
