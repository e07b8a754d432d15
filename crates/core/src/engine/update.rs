//! The result of one update of a remediation, while the engine builds it.

use std::collections::BTreeMap;

use super::slot::SlotReservation;
use crate::context::{Block, Requeue};
use crate::fault::FaultType;
use crate::plan::{BlockReason, Blocked, Effect};
use crate::remediation::Remediation;

#[derive(Debug)]
pub(super) struct RemediationUpdate {
    pub remediation: Remediation,
    /// Whether it has the slot that its actions need.
    pub slot: SlotReservation,
    /// Why nothing starts for faults of these kinds, after a storm.
    pub held: BTreeMap<FaultType, Block>,
    /// The action of the reserved step, or the cleanup.
    pub effect: Option<Effect>,
    pub blocked: Vec<Blocked>,
    /// Whether the next action needs a new check by the probe.
    pub asks_for_check: bool,
    pub requeue: Requeue,
}

impl RemediationUpdate {
    pub fn new(remediation: Remediation, slot: SlotReservation) -> Self {
        Self {
            remediation,
            slot,
            held: BTreeMap::new(),
            effect: None,
            blocked: Vec::new(),
            asks_for_check: false,
            requeue: Requeue::default(),
        }
    }

    /// Whether a step that acts on a fault of this kind may start: the slot is stored, and no storm holds it.
    pub fn may_start(&self, kind: FaultType) -> Result<(), Block> {
        self.slot.require()?;
        self.held.get(&kind).cloned().map_or(Ok(()), Err)
    }

    /// Adds a block that concerns the node as a whole.
    pub fn block_node(&mut self, block: Block) {
        self.add(None, block);
    }

    /// Adds a block that concerns one of the faults.
    pub fn block(&mut self, fault_id: &str, block: Block) {
        self.asks_for_check |= block.reason == BlockReason::StaleEvidence;
        self.add(Some(fault_id), block);
    }

    fn add(&mut self, fault_id: Option<&str>, block: Block) {
        let Remediation { node, policy, .. } = &self.remediation;
        self.blocked.push(block.about(node, fault_id, Some(policy), &mut self.requeue));
    }
}
