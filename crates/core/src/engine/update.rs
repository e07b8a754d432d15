//! The result of one update of a remediation, while the engine builds it.

use crate::context::{Block, Requeue};
use crate::plan::{BlockReason, Blocked, Effect};
use crate::remediation::Remediation;

/// The result of one update of a remediation.
#[derive(Debug)]
pub(super) struct RemediationUpdate {
    /// The remediation after the update.
    pub remediation: Remediation,
    /// The action of the reserved step, or the cleanup.
    pub effect: Option<Effect>,
    /// What is blocked, and why.
    pub blocked: Vec<Blocked>,
    /// Whether the next action needs a new check by the probe.
    pub asks_for_check: bool,
}

impl RemediationUpdate {
    pub fn new(remediation: Remediation) -> Self {
        Self { remediation, effect: None, blocked: Vec::new(), asks_for_check: false }
    }

    /// Adds a block that concerns the node as a whole.
    pub fn block_node(&mut self, block: Block, requeue: &mut Requeue) {
        let (node, policy) = (self.remediation.node.clone(), self.remediation.policy.clone());
        self.blocked.push(block.about(node, None, Some(&policy), requeue));
    }

    /// Adds a block that concerns one of the faults.
    pub fn block(&mut self, fault_id: &str, block: Block, requeue: &mut Requeue) {
        self.asks_for_check |= block.reason == BlockReason::StaleEvidence;
        let (node, policy) = (self.remediation.node.clone(), self.remediation.policy.clone());
        self.blocked.push(block.about(node, Some(fault_id), Some(&policy), requeue));
    }
}
