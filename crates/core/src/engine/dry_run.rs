//! Dry runs: what is recorded of one, and for how long it keeps its node as a remediation would.

use std::time::Duration;

use super::PolicyContext;
use super::update::RemediationUpdate;
use crate::budget::Slots;
use crate::context::{Block, NodeContext, ObservedFault, Requeue};
use crate::moment::since;
use crate::plan::BlockReason;
use crate::policy::{Policy, Rule};
use crate::remediation::{Cleanup, Phase, Remediation, Resolution, StepState};

/// How long the controller does not simulate a simulated fault again, whatever the node's clock says.
const SIMULATED_ONCE: Duration = Duration::from_mins(10);

/// Gives a simulated remediation a virtual slot and its node, for as long as its step would take. Returns the policy that would
/// then have the node.
pub(super) fn remember_simulated<'a>(
    node: &NodeContext<'a>,
    slots: &mut Slots,
    requeue: &mut Requeue,
) -> Option<&'a Policy> {
    let mut first = None;
    for remediation in node.finished.iter().filter(|remediation| remediation.phase == Phase::Simulated) {
        let Some(policy) = node.cluster.policies.get(remediation.policy.as_str()) else { continue };
        // Steps before the last one are dry runs of their own.
        let step = remediation.steps.last();
        let rule = step.and_then(|step| remediation.fault(&step.fault_id)).and_then(|fault| policy.rule(&fault.rule));
        let step = step.zip(rule).and_then(|(step, rule)| rule.step(step.step_index));
        let timeout = step.map_or(node.cluster.settings.answer_within, |step| step.timeout);
        let age = since(node.cluster.snapshot.now, remediation.started_at);
        let is_there = remediation.faults.iter().any(|fault| node.find(&fault.id).is_some());
        if age < timeout && is_there {
            requeue.after(timeout.saturating_sub(age));
            slots.simulate(remediation);
            first.get_or_insert(*policy);
        }
    }
    first
}

/// Returns the remediation that has simulated this occurrence of the fault.
pub(super) fn simulated<'f>(cx: PolicyContext<'f>, seen: &ObservedFault<'_>) -> Option<&'f Remediation> {
    let uid = cx.node.view.map(|view| view.uid.as_str());
    cx.node.finished.iter().copied().rev().find(|remediation| {
        let is_same = remediation.phase == Phase::Simulated
            && remediation.policy == cx.policy.name
            && Some(remediation.node_uid.as_str()) == uid
            && remediation.fault(&seen.fault.id).is_some();
        // The node's clock may be ahead of the controller's clock.
        let is_later = since(seen.fault.first_seen, remediation.started_at) > SIMULATED_ONCE;
        is_same && (!is_later || since(cx.snapshot.now, remediation.started_at) < SIMULATED_ONCE)
    })
}

pub(super) fn block(policy: &Policy, known: Option<&Remediation>) -> Block {
    let records = known.map_or_else(
        || ", which records and does nothing".to_owned(),
        |remediation| format!("; it {} (remediation {})", remediation.message, remediation.name),
    );
    Block::new(BlockReason::DryRun, &format!("policy {} is a dry run{records}", policy.name))
}

/// Turns a begun remediation into the record of a dry run. The controller touches nothing, and no cleanup is pending.
pub(super) fn simulate(cx: PolicyContext<'_>, update: &mut RemediationUpdate, ready: &[(&ObservedFault<'_>, &Rule)]) {
    update.effect = None;
    let now = cx.snapshot.now;
    let remediation = &mut update.remediation;
    if let Some(step) = remediation.current_step_mut() {
        step.finish(StepState::Simulated, "not done: the policy is a dry run", now);
    }
    remediation.cleanup = Cleanup::default();
    for fault in &mut remediation.faults {
        fault.state = Resolution::Open;
    }
    remediation.phase = Phase::Simulated;
    remediation.finished_at = Some(now);
    remediation.say(&format!("would start {}", remediation.message));
    update.blocked.clear();
    let block = block(cx.policy, Some(&update.remediation));
    for (seen, _) in ready {
        update.block(&seen.fault.id, block.clone());
    }
}
