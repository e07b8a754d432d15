//! The cordon of a remediation, for the actions that are done only under it.

use crate::context::NodeContext;
use crate::remediation::Remediation;

/// Whether the node shows the cordon of this remediation.
pub(super) fn is_shown(node: &NodeContext<'_>, remediation: &Remediation) -> bool {
    let mark = node.view.filter(|view| view.unschedulable).and_then(|view| view.cordoned_by.as_deref());
    mark == Some(remediation.name.as_str())
}
