//! Stabilization of remediations whose faults are all gone while their node flaps. Such a fault may be back a minute later. So
//! the node stays as it is, and the remediation stays open, until nothing has changed for a while.
//!
//! The wait has a limit, whatever the node does: the remediation holds a slot, and the node is to become available to pods again.

use std::time::Duration;

use jiff::Timestamp;

use super::update::RemediationUpdate;
use super::{Ctx, ending};
use crate::action::Action;
use crate::context::{Block, NodeContext, of_policy};
use crate::flap::QUIET;
use crate::moment::{clock, since};
use crate::plan::BlockReason;
use crate::remediation::{Phase, Remediation, Resolution, STILL_FLAPPING_SUFFIX};

/// Maximum wait, as a multiple of the requested stabilization time.
const MAX_FACTOR: u32 = 3;
/// Longest wait, unless the stabilization time itself is longer: the remediation holds a slot, and other faults of the node wait.
const MAX_WAIT: Duration = Duration::from_hours(1);

/// The requested stabilization time. A node that flaps changes more often than that. A policy may ask for more.
fn quiet(ctx: Ctx<'_>, remediation: &Remediation) -> Duration {
    let policy = of_policy::policy_of(ctx.cluster, remediation);
    let rules = remediation.faults.iter().filter_map(|fault| policy?.rule(&fault.rule));
    let delay = |action: &Action| action.quarantine().map(|quarantine| quarantine.healthy_delay);
    rules.flat_map(|rule| &rule.steps).filter_map(|step| delay(&step.action)).fold(QUIET, Duration::max)
}

/// The latest end of the wait. It counts from the last activity of the remediation, so a change of the node does not delay it.
fn until(remediation: &Remediation, quiet: Duration) -> Option<Timestamp> {
    remediation.last_activity().checked_add((quiet * MAX_FACTOR).min(quiet.max(MAX_WAIT))).ok()
}

/// Whether all faults of the remediation are resolved and only its cleanup is left.
fn is_resolved(remediation: &Remediation) -> bool {
    let is_gone =
        !remediation.faults.is_empty() && remediation.faults.iter().all(|fault| fault.state == Resolution::Resolved);
    is_gone && remediation.current_step().is_none()
}

/// Whether the end of a resolved remediation waits because its node flaps. If so, the remediation reports it.
pub(super) fn is_awaited(ctx: Ctx<'_>, node: &NodeContext<'_>, update: &mut RemediationUpdate) -> bool {
    let remediation = &update.remediation;
    let is_at_it = update.effect.is_some() || remediation.cleanup.pending_hand_off().is_some();
    if remediation.phase.is_final() || is_at_it || !is_resolved(remediation) {
        return false;
    }
    // If something stops the remediation, or somebody makes the node schedulable, there is no wait.
    let is_opened = remediation.cleanup.has_pending_cordon() && node.view.is_none_or(|view| !view.unschedulable);
    if is_opened || ending::must_stop(ctx, node, remediation).is_some() {
        return false;
    }
    let (quiet, now) = (quiet(ctx, remediation), ctx.snapshot.now);
    let Some(flap) = node.flap.filter(|flap| flap.flapping.is_some() && flap.unchanged < quiet) else { return false };
    let gone = remediation.no_longer_found();
    let Some(until) = until(remediation, quiet).filter(|until| *until > now) else {
        update.remediation.say(&format!("{gone}{STILL_FLAPPING_SUFFIX}"));
        return false;
    };
    update.requeue.after(quiet.saturating_sub(flap.unchanged).min(since(until, now)));
    let (minutes, latest) = (quiet.as_secs().div_ceil(60), clock(until));
    let message = format!(
        "{gone}, but the node flaps (condition NodeStable): watched until nothing has changed for {minutes} min, until \
         {latest} at the latest"
    );
    update.remediation.phase = Phase::Verifying;
    update.remediation.say(&message);
    update.block_node(Block::new(BlockReason::NodeFlapping, &message));
    true
}
