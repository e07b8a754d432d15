//! The cordons and taints that remediations set on a node of a timeline, and remove, with their owner annotations.

use super::{World, WorldNode};
use nrh_core::command::OutcomeReason;
use nrh_core::remediation::ActionResult;
use nrh_core::taint::{KeyedTaint, TAINT_KEY, TaintEffect, TaintMark, TaintState};

/// Cordons the node, unless somebody else has. `is_left`: an earlier remediation has left its cordon to this one.
pub(super) fn cordon(node: &mut WorldNode, remediation: &str, is_left: bool) -> ActionResult {
    let is_mine = is_left || node.view.cordoned_by.as_deref() == Some(remediation);
    if node.view.unschedulable && !is_mine {
        return ActionResult::AlreadyCordoned;
    }
    (node.view.unschedulable, node.view.cordoned_by) = (true, Some(remediation.to_owned()));
    ActionResult::Done { message: "done".to_owned() }
}

/// Taints the node, unless somebody else has. None: not now, because the annotation of another remediation must be removed first.
pub(super) fn taint(node: &mut WorldNode, remediation: &str, effect: TaintEffect) -> Option<ActionResult> {
    let view = &mut node.view;
    match TaintState::of(&view.taints, view.tainted_by.as_ref(), remediation, effect) {
        TaintState::Marked(_) => return None,
        TaintState::Somebodys => return Some(ActionResult::AlreadyTainted),
        TaintState::OwnOther(_) => {
            return Some(ActionResult::Refused {
                reason: OutcomeReason::Protected,
                message: "another effect".to_owned(),
            });
        }
        TaintState::Own | TaintState::TakenOff => {}
        TaintState::Nothing => {
            view.taints.insert(KeyedTaint::plain(effect));
            view.tainted_by = Some(TaintMark::new(remediation, effect));
        }
    }
    Some(ActionResult::Done { message: "done".to_owned() })
}

/// Somebody else sets a taint with our key on the node, or removes all with our key. Returns the message.
pub fn tainted_by_others(node: &mut WorldNode, tainted: bool) -> String {
    let theirs = KeyedTaint::plain(TaintEffect::NoSchedule);
    if tainted {
        let sentence = format!("somebody else puts the taint {theirs} on the node");
        node.view.taints.insert(theirs);
        return sentence;
    }
    node.view.taints.clear();
    format!("somebody else takes the taint {TAINT_KEY} off the node")
}

impl World {
    pub(super) fn uncordon(&mut self, remediation: &str, node: &str, heir: Option<&String>) {
        let uid = self.state.remediations.get(remediation).map(|known| known.node_uid.as_str());
        if let Some(node) = self.nodes.get_mut(node)
            && node.view.cordoned_by.as_deref() == Some(remediation)
        {
            // This is another machine with that name, so the owner of the cordon is unknown.
            if uid.is_some_and(|uid| uid != node.view.uid) {
                node.view.cordoned_by = None;
                self.log.push((node.view.uid.clone(), "mark off".into()));
                return;
            }
            if let Some(heir) = heir.filter(|_| node.view.unschedulable) {
                node.view.cordoned_by = Some(heir.clone());
                return;
            }
            node.view.cordoned_by = None;
            node.view.unschedulable = false;
            self.log.push((node.view.uid.clone(), "uncordon".into()));
        }
    }

    pub(super) fn untaint(&mut self, remediation: &str, node: &str) {
        if let Some(node) = self.nodes.get_mut(node)
            && let Some(mark) = node.view.tainted_by.take_if(|mark| mark.remediation == remediation)
        {
            node.view.taints.retain(|taint| !mark.effect.is_some_and(|effect| taint.is_plain(effect)));
            self.log.push((node.view.uid.clone(), "untaint".into()));
        }
    }
}
