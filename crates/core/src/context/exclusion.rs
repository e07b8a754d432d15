//! What excludes a whole node from remediation.

use super::{Block, NodeContext, unreadable};
use crate::blocked::BlockReason;

/// Why remediation must leave the whole node alone, if so.
pub(crate) fn leave_alone(node: &NodeContext<'_>) -> Option<String> {
    leave_alone_but(node, &[])
}

/// The same, as a block.
pub(crate) fn excluded(node: &NodeContext<'_>) -> Result<(), Block> {
    let reason = match () {
        () if suspended(node).is_some() => BlockReason::Suspended,
        () if unreadable::of_node(node).is_some() => BlockReason::ActionsDisabled,
        () => BlockReason::Excluded,
    };
    leave_alone(node).map_or(Ok(()), |why| Err(Block::new(reason, &why)))
}

pub(crate) fn is_suspended(node: &NodeContext<'_>) -> bool {
    node.report.is_some_and(|report| report.suspended.is_some())
}

/// Why remediation must leave this node alone for a reason of its own, not a cluster-wide one. A suspension of all remediation is
/// shown in its own object: on the nodes it would be a write to each of them.
pub(crate) fn of_the_node(node: &NodeContext<'_>) -> Option<String> {
    leave_alone(node).filter(|_| node.cluster.snapshot.suspended.is_none())
}

/// Why remediation must leave the whole node alone, where the given exclusions do not count.
pub(crate) fn leave_alone_but(node: &NodeContext<'_>, passed: &[&str]) -> Option<String> {
    let view = node.view?;
    if view.deleting {
        return Some(format!("node {} is being deleted", node.name));
    }
    if let Some(why) = suspended(node).or_else(|| unreadable::of_node(node)) {
        return Some(why);
    }
    let first = view.exclusions.iter().filter(|one| !passed.contains(&one.as_str())).min()?;
    Some(format!("node {} is excluded: {first}", node.name))
}

/// Why all remediation is suspended: a person has suspended it.
pub(crate) fn all_suspended(by: Option<&str>) -> Option<String> {
    Some(format!("remediation is suspended in the whole cluster (RemediationConfig cluster): {}", by?))
}

/// Why a person's suspension covers the node: the node or all remediation is suspended.
pub(crate) fn suspended(node: &NodeContext<'_>) -> Option<String> {
    if let Some(why) = all_suspended(node.cluster.snapshot.suspended.as_deref()) {
        return Some(why);
    }
    let reason = node.report?.suspended.as_ref()?;
    Some(format!("remediation of node {} is suspended (spec.suspend of its NodeRuntimeHealth): {reason}", node.name))
}
