//! The markers of remediations as a node shows them: whose they are, and who has removed them.

use super::hand_off;
use crate::context::NodeContext;
use crate::moment::since;
use crate::remediation::{Marker, Remediation};
use crate::snapshot::NodeView;

impl Marker {
    /// Those that a Node shows, in the order in which the end of a remediation removes them.
    pub(crate) const ON_NODES: [Self; 2] = [Self::Taint, Self::Cordon];

    /// The remediation that the owner annotation on the node names.
    pub(crate) fn owner_on<'v>(&self, view: &'v NodeView) -> Option<&'v str> {
        match self {
            Self::Cordon => view.cordoned_by.as_deref(),
            Self::Taint => view.tainted_by.as_ref().map(|mark| mark.remediation.as_str()),
            Self::HandOff(_) => None,
        }
    }

    /// Whether the node has it. Other taints with the controller's key prove nothing.
    fn is_on(&self, view: &NodeView, remediation: &Remediation) -> bool {
        match self {
            Self::Cordon => view.unschedulable,
            Self::Taint => {
                let mark = view.tainted_by.as_ref().filter(|mark| mark.remediation == remediation.name);
                let effect = mark.and_then(|mark| mark.effect).or_else(|| remediation.taint());
                effect.is_some_and(|effect| view.carries(effect))
            }
            Self::HandOff(_) => false,
        }
    }

    /// Whether the node has it, with the owner annotation of this remediation.
    pub(super) fn is_own_on(&self, node: &NodeContext<'_>, remediation: &Remediation) -> bool {
        let owner = node.view.filter(|view| self.is_on(view, remediation)).and_then(|view| self.owner_on(view));
        owner == Some(remediation.name.as_str())
    }

    /// Whether the controller has nothing left to remove: nothing on another node, or under the owner annotation of somebody else, is
    /// this remediation's.
    pub(crate) fn is_gone(&self, node: &NodeContext<'_>, remediation: &Remediation) -> bool {
        if let Self::HandOff(handed) = self {
            return hand_off::is_given_up(node.cluster, remediation, handed);
        }
        let view = node.view.filter(|view| view.uid == remediation.node_uid);
        view.is_none_or(|view| self.owner_on(view).is_some_and(|owner| owner != remediation.name))
    }
}

/// What somebody else has removed from the node, in words. The owner annotation without the marker is proof. A node without both
/// counts only after the time by which the cache may lag.
pub(crate) fn removed_by_a_person(node: &NodeContext<'_>, remediation: &Remediation) -> Option<String> {
    let view = node.view?;
    // With no work left, the marker was due for removal: the controller may have removed it, and only the record is missing.
    if !remediation.is_quarantined() && !remediation.wants_its_marks() {
        return None;
    }
    let is_removed = |marker: &&Marker| {
        // The step is about to mark the node, perhaps again after a remediator or the cleanup removed the marker.
        let is_marking = remediation.current_step().is_some_and(|step| step.action == marker.action());
        let Some(at) = remediation.pending_since(marker).filter(|_| !is_marking && !marker.is_on(view, remediation))
        else {
            return false;
        };
        match marker.owner_on(view) {
            Some(owner) => owner == remediation.name,
            None => since(node.cluster.snapshot.now, at) >= node.cluster.settings.cache_lag,
        }
    };
    let how = match Marker::ON_NODES.iter().find(is_removed)? {
        Marker::Taint => "removed our taint from",
        _ => "uncordoned",
    };
    Some(format!("a person {how} node {}", remediation.node))
}

/// Records the markers that are already off the node of a remediation with no work left. The controller removed them, and only
/// the record of that is missing.
/// A fault that joins the remediation later must not find a pending cleanup of a missing marker and mistake that for a stop by a
/// person.
/// Returns false while this is unknown, because the view may be older than the markers. Then no fault joins.
pub(crate) fn record_removed(node: &NodeContext<'_>, remediation: &mut Remediation) -> bool {
    let view = node.view.filter(|view| view.uid == remediation.node_uid && !remediation.wants_its_marks());
    let Some(view) = view else { return true };
    let mut is_known = true;
    for marker in &Marker::ON_NODES {
        let is_there = marker.owner_on(view).is_some() || marker.is_on(view, remediation);
        let Some(at) = remediation.pending_since(marker).filter(|_| !is_there) else { continue };
        if since(node.cluster.snapshot.now, at) >= node.cluster.settings.cache_lag {
            remediation.cleanup.remove(marker, node.cluster.snapshot.now);
        } else {
            is_known = false;
        }
    }
    is_known
}
