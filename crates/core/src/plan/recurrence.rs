//! Faults that come back: what has healed one for a short while is an attempt that has failed, so the next step of the ladder
//! has its turn.
//!
//! Only where there is one that heals and that may be taken now, by nobody's word but the policy's. With none the same is done
//! again, as often as [`readiness`](super::readiness) lets it, and then it is left to a person. What keeps pods away (Cordon, Taint, Drain) is done anew each time: it is gone with its remediation.

use std::time::Duration;

use jiff::Timestamp;

use super::attempt;
use super::evidence::NodeContext;
use crate::moment::since;
use crate::policy::{Mode, OnFailure, Policy, Step};
use crate::remediation::{Remediation, RemediationFault, StepRecord};

/// The remediations of this very node (`uid`) that really acted and ended within the memory of failures.
pub(super) fn recent<'a>(
    finished: &[&'a Remediation],
    uid: Option<&str>,
    now: Timestamp,
    memory: Duration,
) -> Vec<&'a Remediation> {
    let is_recent = |remediation: &&&Remediation| {
        let is_real = remediation.mode == Mode::Enforce && Some(remediation.node_uid.as_str()) == uid;
        is_real && remediation.finished_at.is_some_and(|at| since(now, at) < memory)
    };
    finished.iter().filter(is_recent).copied().collect()
}

/// That a step has healed a fault as often as it may be tried, and that it has come back, if so.
pub(super) fn spent_reason(
    facts: &NodeContext<'_>,
    standing: &RemediationFault,
    policy: &Policy,
    step: &Step,
) -> Option<String> {
    if !step.heals() || step.on_failure == OnFailure::Stop {
        return None;
    }
    let times = times(facts, standing, policy, step);
    (times > 0 && times >= step.max_attempts)
        .then(|| format!("it came back {times} time(s) after this step had resolved it"))
}

/// How often it was healed lately by this very step, as the policy has it now, and came back.
fn times(facts: &NodeContext<'_>, standing: &RemediationFault, policy: &Policy, step: &Step) -> u32 {
    let healed = |remediation: &&&Remediation| {
        let fault = remediation.fault(&standing.id).filter(|was| was.rule == standing.rule);
        fault.is_some_and(RemediationFault::is_cured) && remediation.policy == policy.name
    };
    let is_it = |remediation: &Remediation, record: &StepRecord| {
        let is_here =
            record.fault_id == standing.id && record.step_index == standing.step_index && record.executed_at.is_some();
        is_here && attempt::step_of(policy, remediation, record).is_some_and(|named| named == step)
    };
    let of = |remediation: &&Remediation| remediation.steps.iter().filter(|record| is_it(remediation, record)).count();
    u32::try_from(facts.recent.iter().filter(healed).map(of).sum::<usize>()).unwrap_or(u32::MAX)
}
