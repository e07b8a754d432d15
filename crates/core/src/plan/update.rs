//! What one turn of a remediation comes to, as it is put together.

use super::{Block, BlockReason, Blocked, Effect, Wake};
use crate::remediation::Remediation;

/// What one turn of a remediation came to.
#[derive(Debug)]
pub(super) struct RemediationUpdate {
    /// The remediation after it.
    pub remediation: Remediation,
    /// The act on the reserved step, or the undo.
    pub effect: Option<Effect>,
    /// What is held.
    pub blocked: Vec<Blocked>,
    /// Whether a fresh look is needed to go on.
    pub look: bool,
}

impl RemediationUpdate {
    pub fn new(remediation: Remediation) -> Self {
        Self { remediation, effect: None, blocked: Vec::new(), look: false }
    }

    /// A no that is about the node as a whole.
    pub fn block_node(&mut self, block: Block, wake: &mut Wake) {
        let (node, policy) = (self.remediation.node.clone(), self.remediation.policy.clone());
        self.blocked.push(block.about(node, None, Some(&policy), wake));
    }

    /// A no about one of its faults.
    pub fn block(&mut self, fault_id: &str, block: Block, wake: &mut Wake) {
        self.look |= block.reason == BlockReason::StaleEvidence;
        let (node, policy) = (self.remediation.node.clone(), self.remediation.policy.clone());
        self.blocked.push(block.about(node, Some(fault_id), Some(&policy), wake));
    }
}
