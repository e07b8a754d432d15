//! A block of an action: its reason, and when the engine decides again.

use std::time::Duration;

use crate::blocked::BlockReason;
use crate::fault::MAX_LINE;
use crate::plan::Blocked;
use crate::text::bounded;

/// Minimum time until the next pass: a decision must not trigger itself in a loop.
const SOONEST: Duration = Duration::from_millis(100);

/// Why something is not done now.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub reason: BlockReason,
    message: String,
    until: Option<Duration>,
    is_of_node: bool,
}

impl Block {
    /// A block that lasts until something happens. The message must not contain ages: the controller writes it to objects, and an
    /// age would change it in every pass.
    pub fn new(reason: BlockReason, message: &str) -> Self {
        Self { reason, message: bounded(message, MAX_LINE), until: None, is_of_node: false }
    }

    /// Marks the block as one of the node as a whole, whatever the step is.
    pub const fn of_node(mut self) -> Self {
        self.is_of_node = true;
        self
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the next check of the probe ends the block.
    pub const fn awaits_check(&self) -> bool {
        matches!(self.reason, BlockReason::ProbeNotReporting | BlockReason::StaleEvidence)
    }

    /// Whether nobody can act on the node, or check it, or the fault may be going away: that says nothing about any step.
    pub const fn prevents_any_try(&self) -> bool {
        self.is_of_node || self.awaits_check() || matches!(self.reason, BlockReason::NotConfirmed)
    }

    /// Whether it is unknown which rule the fault is for.
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self.reason, BlockReason::PodUnknown | BlockReason::RuleAmbiguous)
    }

    /// Whether the step may run at another time and nothing else blocks it.
    pub const fn waits_for_window(&self) -> bool {
        matches!(self.reason, BlockReason::OutsideWindow | BlockReason::NodeLimit)
    }

    /// Whether the block says nothing about the step: nobody could try it, or nobody knew enough about the fault. Such a step costs no
    /// attempt, and no harsher step replaces it.
    pub const fn is_no_verdict(&self) -> bool {
        self.prevents_any_try() || self.waits_for_window() || self.is_ambiguous()
    }

    /// Whether a wait of that length is useless: the node has reached its limit, and the limit lasts longer.
    pub fn outlasts(&self, wait: Duration) -> bool {
        self.reason == BlockReason::NodeLimit && self.until.is_some_and(|until| until > wait)
    }

    /// Sets a time after which the block may end.
    pub fn until(mut self, until: Duration) -> Self {
        self.until = Some(until);
        self
    }

    /// The block as it is reported.
    pub fn about(self, node: &str, fault: Option<&str>, policy: Option<&str>, requeue: &mut Requeue) -> Blocked {
        if let Some(until) = self.until {
            requeue.after(until);
        }
        Blocked {
            node: node.to_owned(),
            fault_id: fault.map(ToOwned::to_owned),
            policy: policy.map(ToOwned::to_owned),
            reason: self.reason,
            message: self.message,
        }
    }
}

impl From<(BlockReason, String)> for Block {
    fn from((reason, message): (BlockReason, String)) -> Self {
        Self::new(reason, &message)
    }
}

/// When to decide again, if nothing happens before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requeue(Option<Duration>);

impl Requeue {
    /// Decides again after `wait` at the latest.
    pub fn after(&mut self, wait: Duration) {
        let wait = wait.max(SOONEST);
        self.0 = Some(self.0.map_or(wait, |known| known.min(wait)));
    }

    /// Decides again when the other one asks for it, if that is earlier.
    pub fn merge(&mut self, other: Self) {
        if let Some(wait) = other.0 {
            self.after(wait);
        }
    }

    /// Decides again when something of that age passes the limit; never, if it has passed it.
    pub fn when_past(&mut self, limit: Duration, age: Duration) {
        if age <= limit {
            self.after(limit.saturating_sub(age));
        }
    }

    pub const fn get(self) -> Option<Duration> {
        self.0
    }
}
