//! The last decision about one operation, made from what was read immediately before it.

use std::collections::BTreeMap;

use super::slot::SlotReservation;
use super::{Ctx, advance, decide};
use crate::budget::Slots;
use crate::context::{Block, ClusterContext, Requeue, gather, unreadable};
use crate::plan::{BlockReason, Effect, Operation, PlanSettings};
use crate::remediation::{StepRecord, StepState};
use crate::snapshot::Snapshot;

/// Decides once more whether an operation starts now: with the same code as the pass that planned it, from a snapshot in which the
/// objects of its node are as they were just read. Returns the operation as this decision makes it.
///
/// The slot of the remediation must be stored. What concerns other nodes or other faults is left to the pass: limits of the fleet,
/// storms, and whether a remediation ends in favour of another policy.
///
/// # Errors
/// A sentence for people: why it does not start.
pub fn preflight(
    snapshot: &Snapshot,
    settings: &PlanSettings,
    remediation: &str,
    operation_id: &str,
) -> Result<Operation, String> {
    let until_now = decide::taken_as_now(snapshot);
    let snapshot = until_now.as_ref().unwrap_or(snapshot);
    let known = snapshot.remediations.get(remediation);
    let known = known.ok_or_else(|| format!("remediation {remediation} is gone"))?;
    let (name, node_name) = (&known.name, known.node.as_str());
    if known.phase.is_final() {
        return Err(format!("remediation {name} is at an end ({})", known.phase.as_str()));
    }
    let is_its = |step: &&StepRecord| {
        step.operation_id == operation_id && matches!(step.state, StepState::Scheduled | StepState::Started)
    };
    let current = known.current_step().filter(is_its);
    let current = current.ok_or_else(|| format!("remediation {name} has no attempt {operation_id} to start"))?;
    let policies = decide::by_order(snapshot);
    let by_name = decide::by_name(&policies);
    let cluster = ClusterContext { snapshot, settings, policies: &by_name };
    let nodes = gather::gather(cluster, &policies, Some(node_name), &mut Requeue::default());
    let scopes = BTreeMap::new();
    // Whether the remediation of another fault may begin depends on the fleet. Here none begins.
    let ctx =
        Ctx { judge: |_, _| Err(Block::new(BlockReason::LowerUrgency, "")), ..Ctx::new(cluster, &nodes, &scopes) };
    let node = nodes.get(node_name).ok_or_else(|| format!("node {node_name} is gone"))?;
    if unreadable::is_frozen(node) {
        unreadable::may_begin(node).map_err(|block| block.message().to_owned())?;
    }
    let mut slots = Slots::reconcile(snapshot, settings);
    let update = advance::take(ctx, node, known, SlotReservation::Made, &mut slots);
    if let Some(Effect::Act { operation_id: planned, operation, .. }) = update.effect
        && planned == operation_id
    {
        return Ok(operation);
    }
    let blocked = update.blocked.iter().find(|blocked| blocked.fault_id.as_ref() == Some(&current.fault_id));
    Err(match (update.remediation.attempt(operation_id), blocked) {
        (Some(ended), _) if ended.state.is_final() => ended.message.clone(),
        (_, Some(blocked)) => blocked.message.clone(),
        _ => format!("{} of remediation {name} has started, or waits for its next round", current.phrase()),
    })
}
