//! Whether the evidence of a fault is good enough to act on.

use std::time::Duration;

use super::{Block, NodeContext, ObservedFault, Probe};
use crate::blocked::BlockReason;
use crate::fault::FaultType;
use crate::faults::ShowsIn;

/// When a check that was asked for is expected.
const AGAIN: Duration = Duration::from_secs(5);

/// Checks that the evidence is good enough to act on: the probe reports, about this node, and has checked recently.
pub(crate) fn require_fresh(node: &NodeContext<'_>, seen: &ObservedFault<'_>) -> Result<(), Block> {
    let fault = &seen.fault;
    if fault.kind.spec().shows_in == ShowsIn::Heartbeats {
        return Ok(());
    }
    match node.probe {
        Probe::Reporting if node.arrived().is_none() => {
            let message = format!(
                "{fault}: when the probe of {} reported last is not known, as after a start of the controller or a change of the node's clock; a new check was requested",
                node.name
            );
            return Err(Block::new(BlockReason::StaleEvidence, &message).until(AGAIN));
        }
        Probe::Reporting => {}
        Probe::WrongNode => {
            let message = format!("the report on {} is about another node of that name", node.name);
            return Err(Block::new(BlockReason::NodeReplaced, &message));
        }
        Probe::Never | Probe::Missed | Probe::Silent => {
            let message = format!(
                "{}: the probe of {} has missed its promised heartbeat, so its state is unknown; blocked until it reports again",
                fault.kind, node.name
            );
            return Err(Block::new(BlockReason::ProbeNotReporting, &message));
        }
    }
    let limit = node.cluster.settings.evidence_max_age;
    if seen.checked > limit {
        let message = format!("{fault}: its last check is older than {}s; a new check was requested", limit.as_secs());
        return Err(Block::new(BlockReason::StaleEvidence, &message).until(AGAIN));
    }
    Ok(())
}

/// Checks whether the node's probe may act. Where actions are disabled, or the probe's self-check failed, nothing acts on the
/// node, whichever executor would do it.
pub(crate) fn may_be_touched(node: &NodeContext<'_>, kind: FaultType) -> Result<(), Block> {
    if node.heartbeat().is_some_and(|heartbeat| heartbeat.actions_enabled) {
        return Ok(());
    }
    let message = format!(
        "{kind} on {}: no action is executed on this node, since actions are disabled there (--allow-actions is off, or the self-check of its probe failed)",
        node.name
    );
    Err(Block::new(BlockReason::ActionsDisabled, &message).of_node())
}
