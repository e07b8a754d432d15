//! What follows on a call that the API server refused: our own rights, an admission policy or a schema say no.
//!
//! Such a call has touched nothing and says nothing about the step's worth, so it costs no attempt. It is answered
//! within milliseconds, though. So nothing further is tried for the fault before the step's cool-down, and then the
//! same step again. After some tries only notifications follow: no node gets a harsher step for our own mistake.

use std::time::Duration;

use super::evidence::NodeContext;
use super::{Block, BlockReason, Ctx};
use crate::moment::{clock, since};
use crate::policy::{ActionType, Rule, Step};
use crate::remediation::{Remediation, RemediationFault, StepRecord};
use crate::text::bounded;

/// How often a step is tried that the API server refuses.
pub(super) const TRIES: usize = 3;
/// Least time after a refusal, whatever the step's cool-down says.
const LEAST_WAIT: Duration = Duration::from_secs(10);
/// Most of the API server's sentence that is repeated; what is longer stands in the record.
const MAX_SENTENCE: usize = 320;

/// How long nothing further is tried for the fault.
fn wait(rule: &Rule, record: &StepRecord) -> Duration {
    let step = usize::try_from(record.step_index).ok().and_then(|step_index| rule.steps.get(step_index));
    step.map_or(LEAST_WAIT, cool_down)
}

/// The cool-down of a refused step.
fn cool_down(step: &Step) -> Duration {
    step.cooldown.max(LEAST_WAIT)
}

/// The message that the API server refused the last step before this notification; `None` = it did not.
pub(super) fn not_executed(facts: &NodeContext<'_>, notification: &StepRecord) -> Option<String> {
    let steps = facts.open.iter().flat_map(|remediation| &remediation.steps);
    let mut before = steps.filter(|step| step.fault_id == notification.fault_id && step.action != ActionType::Notify);
    let refused = before.next_back().filter(|step| step.is_refused_call())?;
    let said = bounded(&refused.message, MAX_SENTENCE);
    Some(format!("{} was not executed, because the API server refused it: {said}", refused.phrase()))
}

/// Whether the last thing tried for the fault was refused so shortly ago that nothing else is tried yet, on
/// whatever step.
pub(super) fn cooled_down(
    ctx: Ctx<'_>,
    remediation: &Remediation,
    standing: &RemediationFault,
    rule: &Rule,
) -> Result<(), Block> {
    let last = remediation.steps.iter().rev().find(|record| record.fault_id == standing.id && record.state.is_final());
    let Some(record) = last.filter(|record| record.is_refused_call()) else { return Ok(()) };
    let Some(finished) = record.finished_at else { return Ok(()) };
    let (wait, age) = (wait(rule, record), since(ctx.snapshot.now, finished));
    if age >= wait {
        return Ok(());
    }
    let message = format!(
        "{} for {}: {}; nothing was touched, nothing further is tried for it before {}",
        record.phrase(),
        standing.kind,
        bounded(&record.message, MAX_SENTENCE),
        clock(finished.checked_add(wait).unwrap_or(finished))
    );
    Err(Block::new(BlockReason::RequestRejected, &message).until(wait.saturating_sub(age)))
}
