//! Whether the cause of a stuck pod was looked for on its node, before anything is done about the pod or given up for it.
//!
//! A pod that is not created, or does not go, waits for something below it as a rule: a hung shim, `runc create` or network plugin.
//! Found a moment later, that would be a second remediation beside one that has failed.

use std::time::Duration;

use super::evidence::NodeFacts;
use super::{Block, BlockReason, Ctx, protect};
use crate::fault::{Fault, FaultState, FaultType};
use crate::stuck::{self, Pattern};

/// What a pod may wait for on its node.
const CAUSES: [FaultType; 3] = [FaultType::HungContainer, FaultType::RuntimeClientHung, FaultType::NetworkPluginHung];
/// For how long a probe is waited for that cannot look everywhere.
const LONGEST: Duration = Duration::from_mins(10);
/// When it is asked again whether the probe has looked.
const AGAIN: Duration = Duration::from_secs(5);

/// Whether the probe has looked for the cause since the pod is stuck, and suspects none.
pub(super) fn looked_for(ctx: Ctx<'_>, facts: &NodeFacts<'_>, fault: &Fault) -> Result<(), Block> {
    let thresholds = &ctx.settings.thresholds;
    let pod = protect::suspect(facts, fault).filter(|_| fault.kind == FaultType::StuckDaemonSetPod);
    let Some((pod, (pattern, at_read))) = pod.and_then(|pod| Some((pod, stuck::pattern(pod, thresholds)?))) else {
        return Ok(());
    };
    let bound = match pattern {
        Pattern::Terminating => thresholds.stuck_terminating,
        Pattern::Creating => thresholds.stuck_creating,
        Pattern::BackOff => return Ok(()),
    };
    let stuck_for = at_read.saturating_add(pod.read).saturating_sub(bound);
    if stuck_for >= LONGEST {
        return Ok(());
    }
    let suspected = protect::hung_process(facts, fault).filter(|seen| seen.fault.state == FaultState::Suspected);
    if let Some(cause) = suspected {
        let message = format!(
            "pod {}: {} ({}) is suspected to be the cause, and is confirmed or cleared first",
            pod.pod, cause.fault.kind, cause.fault.subject
        );
        return Err(Block::new(BlockReason::NotConfirmed, &message));
    }
    let has_reported = facts.arrived().is_some_and(|arrived| arrived < stuck_for);
    let has_looked = facts.report.is_some_and(|report| CAUSES.iter().all(|kind| !report.unlooked.contains(kind)));
    if has_reported && has_looked {
        return Ok(());
    }
    let message =
        format!("pod {}: its cause on {} is checked before any action; a new check was requested", pod.pod, facts.name);
    Err(Block::new(BlockReason::StaleEvidence, &message).until(AGAIN))
}
