//! Handling of calls that the API server rejects because of the controller's permissions, an admission policy or a schema.
//!
//! Such a call has changed nothing and says nothing about the use of the step, so it is no attempt. The answer comes within
//! milliseconds, so the engine tries nothing further for the fault before the step's cool-down ends, and then the same step again.
//! After some tries only notifications follow: no node gets a harsher step because of the controller's own mistake.

use std::time::Duration;

use super::Ctx;
use crate::context::Block;
use crate::moment::{after, clock, since};
use crate::plan::BlockReason;
use crate::policy::Rule;
use crate::remediation::{Remediation, RemediationFault};

/// How often the engine tries a step that the API server rejects.
pub(super) const TRIES: usize = 3;
/// Minimum wait after a rejection, whatever the cool-down of the step is.
const LEAST_WAIT: Duration = Duration::from_secs(10);

/// Blocks every step for the fault while the last attempt was rejected too recently.
pub(super) fn cooled_down(
    ctx: Ctx<'_>,
    remediation: &Remediation,
    open_fault: &RemediationFault,
    rule: &Rule,
) -> Result<(), Block> {
    let last =
        remediation.steps.iter().rev().find(|record| record.fault_id == open_fault.id && record.state.is_final());
    let Some(record) = last.filter(|record| record.is_refused_call()) else { return Ok(()) };
    let Some(finished) = record.finished_at else { return Ok(()) };
    let wait = rule.step(record.step_index).map_or(LEAST_WAIT, |step| step.cooldown.max(LEAST_WAIT));
    let age = since(ctx.snapshot.now, finished);
    if age >= wait {
        return Ok(());
    }
    let message = format!(
        "{} for {}: {}; nothing was touched, nothing further is tried for it before {}",
        record.phrase(),
        open_fault.kind,
        record.short_message(),
        clock(after(finished, wait))
    );
    Err(Block::new(BlockReason::RequestRejected, &message).until(wait.saturating_sub(age)))
}
