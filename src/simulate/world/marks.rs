//! The marks that episodes put on a node of a timeline, and take back: cordons and taints.

use super::{World, WorldNode};
use crate::core::episode::ActResult;

/// Cordons the node, unless somebody else has. `is_left` = an earlier episode has left it cordoned to this one.
pub(super) fn cordon(node: &mut WorldNode, episode: &str, is_left: bool) -> ActResult {
    let is_mine = is_left || node.view.cordoned_by.as_deref() == Some(episode);
    if node.view.unschedulable && !is_mine {
        return ActResult::AlreadyCordoned;
    }
    (node.view.unschedulable, node.view.cordoned_by) = (true, Some(episode.to_owned()));
    ActResult::Done { message: "done".to_owned() }
}

/// Taints the node, unless somebody else has; none = not now, the taint of another episode goes first.
pub(super) fn taint(node: &mut WorldNode, episode: &str) -> Option<ActResult> {
    let mark = node.view.tainted_by.as_deref();
    if mark.is_some_and(|mark| mark != episode) {
        return None;
    }
    if node.view.tainted && mark.is_none() {
        return Some(ActResult::AlreadyTainted);
    }
    (node.view.tainted, node.view.tainted_by) = (true, Some(episode.to_owned()));
    Some(ActResult::Done { message: "done".to_owned() })
}

impl World {
    pub(super) fn uncordon(&mut self, episode: &str, node: &str, heir: Option<&String>) {
        if let Some(node) = self.nodes.get_mut(node)
            && node.view.cordoned_by.as_deref() == Some(episode)
        {
            if let Some(heir) = heir.filter(|_| node.view.unschedulable) {
                node.view.cordoned_by = Some(heir.clone());
                return;
            }
            node.view.cordoned_by = None;
            node.view.unschedulable = false;
            self.log.push((node.view.uid.clone(), "uncordon".into()));
        }
    }

    pub(super) fn untaint(&mut self, episode: &str, node: &str) {
        if let Some(node) = self.nodes.get_mut(node)
            && node.view.tainted_by.as_deref() == Some(episode)
        {
            (node.view.tainted, node.view.tainted_by) = (false, None);
            self.log.push((node.view.uid.clone(), "untaint".into()));
        }
    }
}
