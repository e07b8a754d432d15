//! Whether the probe has checked a node for the cause of a stuck pod.

use std::time::Duration;

use super::{Block, NodeContext, pods};
use crate::blocked::BlockReason;
use crate::fault::Fault;
use crate::faults::{ShowsIn, stuck_daemon_set_pod};
use crate::stuck::{self, Pattern};

/// Whether the cause of a stuck pod was not checked. A person must know this before taking over.
pub(crate) fn was_not_checked(node: &NodeContext<'_>, fault: &Fault) -> bool {
    waits_for(node, fault).is_some_and(|stuck_for| unchecked(node, fault, stuck_for).is_some())
}

/// How long the pod has been stuck, if it may wait for something on its node.
pub(crate) fn waits_for(node: &NodeContext<'_>, fault: &Fault) -> Option<Duration> {
    let pod = pods::suspect(node, fault).filter(|_| fault.kind.spec().shows_in == ShowsIn::Pod)?;
    let (pattern, at_read) = stuck::pattern(pod)?;
    let bound = match pattern {
        Pattern::Terminating => stuck_daemon_set_pod::TERMINATING,
        Pattern::Creating => stuck_daemon_set_pod::CREATING,
        Pattern::BackOff => return None,
    };
    Some(at_read.saturating_add(pod.read).saturating_sub(bound))
}

/// Blocks if the probe has not checked everything since the pod became stuck.
pub(crate) fn unchecked(node: &NodeContext<'_>, fault: &Fault, stuck_for: Duration) -> Option<Block> {
    let has_reported = node.arrived().is_some_and(|arrived| arrived < stuck_for);
    let has_checked =
        node.report.is_some_and(|report| report.unchecked.iter().all(|kind| kind.spec().remedy.hung_process.is_err()));
    if has_reported && has_checked {
        return None;
    }
    let message =
        format!("{fault}: the probe of {} has not checked its cause yet; a new check was requested", node.name);
    Some(Block::new(BlockReason::StaleEvidence, &message))
}
