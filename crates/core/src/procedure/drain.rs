//! `Drain`: whether pods may be evicted, and whether the kubelet can end them.
//!
//! The controller drains only a node that carries the cordon of this remediation, since evicted pods would come back to any other.

use super::{AttemptContext, Procedure, StepContext};
use crate::action::{Action, Drain};
use crate::context::{Block, ClusterContext, NodeContext};
use crate::drain::{CannotEnd, cannot_end};
use crate::fault::Fault;
use crate::plan::{BlockReason, Operation};
use crate::remediation::{Marker, Remediation, StepRecord, StepState};
use crate::snapshot::TriState;

impl Procedure for Drain {
    /// The remediation has drained the node in this same way since its cordon.
    fn is_done(&self, remediation: &Remediation) -> bool {
        let since = remediation.cordoned_at();
        let is_it = |record: &StepRecord| {
            matches!(&record.action, Action::Drain(params) if params == self)
                && record.state == StepState::Succeeded
                && record.finished_at >= since
        };
        remediation.steps.iter().any(is_it)
    }

    fn require_available(&self, node: &NodeContext<'_>) -> Result<(), Block> {
        if node.cluster.snapshot.may_evict == TriState::False {
            return require_eviction_permission(node.cluster);
        }
        match termination_blocker(node, self) {
            Some(CannotEnd::Known(why)) => Err(drain_blocked(node, &why)),
            _ => Ok(()),
        }
    }

    fn skip_reason(&self, node: &NodeContext<'_>, remediation: &Remediation) -> Option<String> {
        if let Err(block) = self.require_available(node) {
            return Some(format!("skipped: {}", block.message()));
        }
        if remediation.pending_since(&Marker::Cordon).is_some() {
            return None;
        }
        let node = &remediation.node;
        Some(format!("skipped: node {node} was cordoned by someone else; drain it manually, or uncordon it first"))
    }

    fn admit(&self, cx: &StepContext<'_>) -> Result<(), Block> {
        require_eviction_permission(cx.node.cluster)?;
        match termination_blocker(cx.node, self) {
            Some(CannotEnd::Known(why) | CannotEnd::Uncertain(why)) => Err(drain_blocked(cx.node, &why)),
            None => Ok(()),
        }
    }

    fn require_prepared(&self, node: &NodeContext<'_>, remediation: &Remediation) -> Result<(), Block> {
        if Marker::Cordon.is_own_on(node, remediation) {
            return Ok(());
        }
        let message = format!(
            "node {} does not show the cordon of its remediation (any more): it is not drained, since evicted pods would come back",
            node.name
        );
        Err(Block::new(BlockReason::ActionsDisabled, &message))
    }

    fn operation(&self, _: &AttemptContext<'_>, _: &Fault) -> Option<Operation> {
        Some(Operation::Drain(self.clone()))
    }

    fn end_reason(&self, node: &NodeContext<'_>) -> Option<String> {
        match termination_blocker(node, self) {
            Some(CannotEnd::Known(why)) => {
                Some(format!("no further pod is evicted, since evicted pods do not end there: {why}"))
            }
            _ => None,
        }
    }

    fn admit_round(&self, node: &NodeContext<'_>, remediation: &Remediation) -> Result<(), Block> {
        require_eviction_permission(node.cluster)?;
        if let Some(CannotEnd::Uncertain(why)) = termination_blocker(node, self) {
            return Err(drain_blocked(node, &why));
        }
        self.require_prepared(node, remediation)
    }
}

/// Requires that the controller may evict pods. While that is unknown, it drains no node.
fn require_eviction_permission(cluster: ClusterContext<'_>) -> Result<(), Block> {
    let message = match cluster.snapshot.may_evict {
        TriState::True => return Ok(()),
        TriState::False => {
            "the controller may not evict pods (create pods/eviction), so no node is drained: bind ClusterRole nrh:drain \
             (config/samples/drain-rights.yaml); the controller checks it again regularly"
        }
        TriState::Unknown => {
            "it is not known yet whether the controller may evict pods (create pods/eviction), so no node is drained; the \
             controller checks it again regularly"
        }
    };
    Err(Block::new(BlockReason::ActionsDisabled, message))
}

/// Returns what keeps the node from ending pods, unless the policy ignores that.
fn termination_blocker(node: &NodeContext<'_>, params: &Drain) -> Option<CannotEnd> {
    let works = node.heartbeat().map_or(TriState::Unknown, |heartbeat| heartbeat.kubelet_works);
    let ready = node.view.map_or(TriState::Unknown, |view| view.ready);
    let found = || cannot_end(ready, works, node.seen.iter().map(|seen| seen.fault.as_ref()));
    (!params.ignore_runtime_hang).then(found).flatten()
}

fn drain_blocked(node: &NodeContext<'_>, why: &str) -> Block {
    let message = format!(
        "node {} is not drained, since evicted pods would not end there: {why}; resolve that first (or set drain.ignoreRuntimeHang)",
        node.name
    );
    Block::new(BlockReason::ActionsDisabled, &message)
}
