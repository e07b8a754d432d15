//! What no step needs any more: Jobs and orders of attempts that are over. Found anew in every pass, so that a
//! crash leaves nothing behind.

use std::collections::BTreeMap;

use super::evidence::NodeContext;
use super::{Ctx, Effect, reboot};
use crate::budget::Slots;
use crate::moment::since;
use crate::remediation::{Executor, Remediation, StepRecord, StepState, remediation_of};

/// Remediations as they are after this pass.
pub(super) type After<'e> = BTreeMap<&'e str, &'e Remediation>;

/// Jobs that are to be deleted, by node.
pub(super) fn jobs<'a>(ctx: Ctx<'a>, after: &After<'a>, slots: &Slots) -> BTreeMap<&'a str, Vec<Effect>> {
    let mut gone: BTreeMap<&str, Vec<Effect>> = BTreeMap::new();
    for (operation, job) in ctx.snapshot.jobs.iter().filter(|(_, job)| !job.finished) {
        let name = remediation_of(operation);
        let remediation = after.get(name).copied().or_else(|| ctx.snapshot.remediations.get(name));
        let is_over = match remediation {
            Some(remediation) => {
                let step = remediation.attempt(operation);
                // One that is over gets no further step: a Job that it does not know is of another one that had its name, and was
                // removed by force. One that is not may only not show it yet.
                let is_of_another = remediation.phase.is_final();
                step.map_or(is_of_another, |step| step.state.is_final() || step.executor != Executor::Job)
            }
            // A remediation that does not show may only not show yet: with a slot, or while nobody knows the slots. One that cannot
            // be read may wait for its Job.
            None => slots.is_known() && !slots.holds(name) && !ctx.snapshot.unreadable.contains_key(name),
        };
        if is_over {
            let node = remediation.map_or("", |remediation| remediation.node.as_str());
            gone.entry(node).or_default().push(Effect::DeleteJob { operation_id: job.operation_id.clone() });
        }
    }
    gone
}

/// Whether the order that stands is to be withdrawn.
pub(super) fn order(ctx: Ctx<'_>, facts: &NodeContext<'_>, after: &[&Remediation]) -> Option<Effect> {
    let order = facts.order()?;
    let is_awaited = |remediation: &Remediation, step: &StepRecord| match step.state {
        // While ours is awaited the cache may show an older one: to take that back would take ours.
        StepState::Started => {
            step.executor == Executor::Probe && !reboot::is_over(ctx, facts, remediation, step, order)
        }
        // Not given yet as far as anybody knows, and given again after: an older one makes room.
        StepState::Scheduled => step.executor == Executor::Probe && step.operation_id == order.operation_id,
        _ => false,
    };
    if after.iter().any(|remediation| remediation.current_step().is_some_and(|step| is_awaited(remediation, step))) {
        return None;
    }
    let is_known = after
        .iter()
        .copied()
        .chain(facts.finished.iter().copied())
        .flat_map(|remediation| &remediation.steps)
        .any(|step| step.operation_id == order.operation_id);
    let ttl = std::time::Duration::from_secs(order.ttl_seconds.into());
    let is_old = since(ctx.snapshot.now, order.issued_at) > ttl.saturating_add(ctx.settings.answer_within);
    (is_known || is_old).then(|| Effect::WithdrawOrder { node: facts.name.to_owned() })
}
