//! Jobs and commands of attempts that are over. Every pass finds them again, so a crash leaves nothing behind.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Ctx, ending};
use crate::budget::Slots;
use crate::command::ActionCommand;
use crate::context::{NodeContext, of_policy};
use crate::moment::since;
use crate::plan::Effect;
use crate::procedure;
use crate::remediation::{Executor, Remediation, StepRecord, StepState, remediation_of};

/// The remediations as they are after this pass.
pub(super) type After<'e> = BTreeMap<&'e str, &'e Remediation>;

/// The Jobs to delete, by node.
pub(super) fn jobs<'a>(ctx: Ctx<'a>, after: &After<'a>, slots: &Slots) -> BTreeMap<&'a str, Vec<Effect>> {
    let mut gone: BTreeMap<&str, Vec<Effect>> = BTreeMap::new();
    for (operation, job) in ctx.snapshot.jobs.iter().filter(|(_, job)| !job.finished) {
        let name = remediation_of(operation);
        let remediation = after.get(name).copied().or_else(|| ctx.snapshot.remediations.get(name));
        let is_over = match remediation {
            Some(remediation) => {
                let step = remediation.attempt(operation);
                // A remediation that is over gets no further step. A Job that it does not list belongs to another remediation,
                // which had the same name and was removed by force. An open remediation may only not show the Job yet.
                let is_of_another = remediation.phase.is_final();
                step.map_or(is_of_another, |step| step.state.is_final() || step.executor != Executor::Job)
            }
            // A remediation that is absent may only not be visible yet, if it has a slot or if the slots are unknown. One that
            // cannot be read may wait for its Job.
            None => slots.is_known() && !slots.holds(name) && !ctx.snapshot.unreadable.contains_key(name),
        };
        if is_over {
            let node = remediation.map_or("", |remediation| remediation.node.as_str());
            gone.entry(node).or_default().push(Effect::DeleteJob { operation_id: job.operation_id.clone() });
        }
    }
    gone
}

/// Whether the current command of the node is to be withdrawn.
pub(super) fn command(ctx: Ctx<'_>, node: &NodeContext<'_>, after: &[&Remediation]) -> Option<Effect> {
    let command = node.command()?;
    let is_awaited = |remediation: &Remediation, step: &StepRecord| match step.state {
        // While this command is awaited, the cache may show an older one. A withdrawal of the older one would remove this one.
        StepState::Started => step.executor == Executor::Probe && !is_withdrawn(ctx, node, remediation, step, command),
        // As far as is known, this command is not given yet, and it is given again later. An older command is withdrawn first.
        StepState::Scheduled => step.executor == Executor::Probe && step.operation_id == command.operation_id,
        _ => false,
    };
    if after.iter().any(|remediation| remediation.current_step().is_some_and(|step| is_awaited(remediation, step))) {
        return None;
    }
    // An unreadable remediation may wait for it.
    if ctx.snapshot.unreadable.contains_key(remediation_of(&command.operation_id)) {
        return None;
    }
    let is_known = after
        .iter()
        .copied()
        .chain(node.finished.iter().copied())
        .flat_map(|remediation| &remediation.steps)
        .any(|step| step.operation_id == command.operation_id);
    let ttl = Duration::from_secs(command.ttl_seconds.into());
    let is_old = since(ctx.snapshot.now, command.issued_at) > ttl.saturating_add(ctx.settings.answer_within);
    (is_known || is_old)
        .then(|| Effect::WithdrawCommand { node: node.name.to_owned(), operation_id: command.operation_id.clone() })
}

/// Whether the controller withdraws a command although the end of its attempt is still awaited.
fn is_withdrawn(
    ctx: Ctx<'_>,
    node: &NodeContext<'_>,
    remediation: &Remediation,
    step: &StepRecord,
    command: &ActionCommand,
) -> bool {
    if step.operation_id != command.operation_id {
        return false;
    }
    let is_late = since(ctx.snapshot.now, step.scheduled_at) > Duration::from_secs(command.ttl_seconds.into());
    let policy = of_policy::policy_of(ctx.cluster, remediation);
    let named = policy.and_then(|policy| of_policy::step_of(policy, remediation, step));
    let is_agreed =
        named.is_some_and(|named| !named.needs_approval() || remediation.approved(&step.operation_id).is_some());
    let is_wanted = is_agreed && ending::must_stop(ctx, node, remediation).is_none();
    procedure::of(&step.action).withdraws_command(step, is_late, is_wanted)
}
