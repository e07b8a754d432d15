//! `Cordon`: when the controller cordons a node, and what a missing cordon means.

use super::{AttemptContext, Procedure, StepContext};
use crate::action::{ActionType, Cordon};
use crate::context::{Block, ClusterContext, NodeContext};
use crate::fault::Fault;
use crate::moment::since;
use crate::plan::Operation;
use crate::remediation::{Executor, Remediation, StepRecord};
use crate::snapshot::NodeView;

impl Procedure for Cordon {
    fn addresses(&self, fault: &Fault, _: &NodeContext<'_>) -> Result<(), &'static str> {
        fault.kind.spec().remedy.fewer_pods
    }

    /// A cordon lasts for the whole remediation, unless a remediator has made the node schedulable again.
    fn is_done(&self, remediation: &Remediation) -> bool {
        remediation.cleanup.uncordoned_at.is_none() && remediation.cordoned_at().is_some()
    }

    fn admit(&self, _: &StepContext<'_>) -> Result<Executor, Block> {
        Ok(Executor::Controller)
    }

    fn plan_cleanup(&self, remediation: &mut Remediation, _: &StepRecord) {
        (remediation.cleanup.cordoned, remediation.cleanup.uncordoned_at) = (true, None);
    }

    fn operation(&self, _: &AttemptContext<'_>, _: &Fault) -> Option<Operation> {
        Some(Operation::Cordon)
    }
}

/// Whether somebody else made the node schedulable again. Our owner annotation on a schedulable node is proof. A node without
/// annotation and cordon is proof only after the time that a cache may lag.
pub(crate) fn was_removed(ctx: ClusterContext<'_>, facts: &NodeContext<'_>, remediation: &Remediation) -> bool {
    let Some(view) = facts.view else { return false };
    // With no work left, the cordon was due for cleanup anyway. The controller may have removed it, and only the record of that
    // is missing.
    let is_wanted = remediation.is_quarantined() || remediation.wants_its_marks();
    // The step is about to cordon the node, perhaps again after a remediator or the cleanup uncordoned it.
    let is_cordoning = remediation.current_step().is_some_and(|step| step.action == ActionType::Cordon);
    if !remediation.cleanup.owes_cordon() || view.unschedulable || !is_wanted || is_cordoning {
        return false;
    }
    let Some(executed_at) = remediation.cordoned_at() else { return false };
    match view.cordoned_by.as_deref() {
        Some(mark) => mark == remediation.name,
        None => since(ctx.snapshot.now, executed_at) >= ctx.settings.cache_lag,
    }
}

/// Records that the cordon is gone from the node of a remediation with no work left: the controller removed it, and only the record
/// of that is missing. Returns false while the view of the node may be older than the cordon.
pub(crate) fn record_removed(ctx: ClusterContext<'_>, facts: &NodeContext<'_>, remediation: &mut Remediation) -> bool {
    let Some(view) = facts.view.filter(|view| view.uid == remediation.node_uid) else { return true };
    if !remediation.cleanup.owes_cordon()
        || remediation.wants_its_marks()
        || view.unschedulable
        || view.cordoned_by.is_some()
    {
        return true;
    }
    let Some(executed_at) = remediation.cordoned_at() else { return true };
    let is_sure = since(ctx.snapshot.now, executed_at) >= ctx.settings.cache_lag;
    if is_sure {
        remediation.cleanup.uncordoned_at = Some(ctx.snapshot.now);
    }
    is_sure
}

/// Whether an owner annotation is stale: no remediation stands behind it.
pub(crate) fn is_stray(ctx: ClusterContext<'_>, view: &NodeView, mark: &str, is_slot: impl Fn(&str) -> bool) -> bool {
    match ctx.snapshot.remediations.get(mark) {
        // At once: after its record is gone, nothing shows that the annotation is of another machine, or whose cordon that is.
        Some(remediation) => !remediation.is_live() || remediation.node_uid != view.uid,
        // The cache may not have seen the remediation yet. With a slot it exists and is only unseen. Without a ledger this is
        // unknown.
        None => ctx.snapshot.ledger.is_some() && !is_slot(mark),
    }
}
