//! The marks that remediations put on a node of a timeline, and take back: cordons and taints.

use super::{World, WorldNode};
use nrh_core::command::OutcomeReason;
use nrh_core::remediation::ActionResult;
use nrh_core::taint::{KeyedTaint, TAINT_KEY, TaintEffect, TaintMark, TaintState};

/// Cordons the node, unless somebody else has. `is_left` = an earlier remediation has left it cordoned to this one.
pub(super) fn cordon(node: &mut WorldNode, remediation: &str, is_left: bool) -> ActionResult {
    let is_mine = is_left || node.view.cordoned_by.as_deref() == Some(remediation);
    if node.view.unschedulable && !is_mine {
        return ActionResult::AlreadyCordoned;
    }
    (node.view.unschedulable, node.view.cordoned_by) = (true, Some(remediation.to_owned()));
    ActionResult::Done { message: "done".to_owned() }
}

/// Taints the node, unless somebody else has; none = not now, the mark of another remediation goes first.
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

/// Somebody else puts a taint with our key on the node, or takes all with our key off; says so.
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
        let uid = self.remediations.get(remediation).map(|known| known.node_uid.as_str());
        if let Some(node) = self.nodes.get_mut(node)
            && node.view.cordoned_by.as_deref() == Some(remediation)
        {
            // On another machine of that name: whose the cordon is nobody knows.
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
