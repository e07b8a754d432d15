//! Recurrence of faults. If a step resolves a fault and the fault soon comes back, that attempt counts as failed. The engine then
//! selects the next step of the rule.
//!
//! This applies only if there is a next step that resolves the fault, may run now, and needs no approval beyond the policy. Without
//! such a step the engine repeats the same step, as often as [`readiness`](super::readiness) allows. After that a person takes over.
//! Steps that keep pods away (Cordon, Taint, Drain) run again each time: their effect ends with their remediation.

use crate::context::{NodeContext, of_policy};
use crate::policy::{OnFailure, Policy, Step};
use crate::remediation::{Remediation, RemediationFault, StepRecord};

/// The reason why a step is used up: it resolved the fault as often as it may be tried, and the fault came back. Else `None`.
pub(super) fn spent_reason(
    node: &NodeContext<'_>,
    open_fault: &RemediationFault,
    policy: &Policy,
    step: &Step,
) -> Option<String> {
    if !step.resolves() || step.on_failure == OnFailure::Stop {
        return None;
    }
    let times = times(node, open_fault, policy, step);
    (times > 0 && times >= step.max_attempts)
        .then(|| format!("it came back {times} time(s) after this step had resolved it"))
}

/// How often this very step, as the policy defines it now, resolved the fault recently before the fault came back.
fn times(node: &NodeContext<'_>, open_fault: &RemediationFault, policy: &Policy, step: &Step) -> u32 {
    let resolved = |remediation: &&&Remediation| {
        let fault = remediation.fault(&open_fault.id).filter(|was| was.rule == open_fault.rule);
        fault.is_some_and(RemediationFault::is_resolved_by_steps) && remediation.policy == policy.name
    };
    let is_it = |remediation: &Remediation, record: &StepRecord| {
        let is_here = record.fault_id == open_fault.id
            && record.step_index == open_fault.step_index
            && record.executed_at.is_some();
        is_here && of_policy::step_of(policy, remediation, record).is_some_and(|named| named == step)
    };
    let of = |remediation: &&Remediation| remediation.steps.iter().filter(|record| is_it(remediation, record)).count();
    u32::try_from(node.recent.iter().filter(resolved).map(of).sum::<usize>()).unwrap_or(u32::MAX)
}
