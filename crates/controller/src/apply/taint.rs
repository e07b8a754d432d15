//! Adds and removes the controller's taint on a node. The taints of a node are one list with many writers. So each write carries
//! the resource version of what was read, and a conflict is checked again.

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::act::Release;
use super::preflight::PreflightState;
use super::{Applier, ApplyError};
use crate::events::Kind;
use nrh_api::TAINT_ANNOTATION;
use nrh_api::view::node as nodes;
use nrh_core::command::OutcomeReason;
use nrh_core::remediation::{ActionResult, Remediation};
use nrh_core::taint::{KeyedTaint, TAINT_KEY, TaintEffect, TaintMark, TaintState};

impl Applier {
    /// Adds the taint to the node, with the annotation that names this remediation as its owner.
    pub(super) async fn taint(
        &self,
        name: &str,
        effect: TaintEffect,
        live: &PreflightState,
    ) -> Result<ActionResult, ApplyError> {
        let (node, view) = (&live.node, nodes::view(&live.node));
        match TaintState::of(&view.taints, view.tainted_by.as_ref(), name, effect) {
            TaintState::Nothing => {
                let ours = Taint { key: TAINT_KEY.to_owned(), effect: effect.as_str().to_owned(), ..Taint::default() };
                let mut taints = others(node, None);
                taints.push(ours);
                let mark = TaintMark::new(name, effect);
                let after = self.patch_node(&node.name_any(), &patch(node, &taints, Some(&mark))).await?;
                let now = if nodes::view(&after).carries(effect) {
                    "has it now"
                } else {
                    "has none now either, by the API server's answer"
                };
                let message = format!("the node had no taint {TAINT_KEY}:{} and {now}", effect.as_str());
                Ok(ActionResult::Done { message })
            }
            TaintState::Own => {
                Ok(ActionResult::Done { message: "the node carries this remediation's taint".to_owned() })
            }
            // The taint is not added again. The next decision handles the annotation without the taint.
            TaintState::TakenOff => {
                let message = "the node carried this remediation's taint, and somebody has taken that off".to_owned();
                Ok(ActionResult::Done { message })
            }
            TaintState::OwnOther(other) => {
                let message = format!(
                    "the node carries this remediation's taint with {}: {} is not put in its place",
                    other.as_str(),
                    effect.as_str()
                );
                Ok(ActionResult::Refused { reason: OutcomeReason::Protected, message })
            }
            // The taint that another remediation has left is removed first.
            TaintState::Marked(mark) => Err(ApplyError::NotNow(format!(
                "Node {} carries the mark of remediation {mark} for its taint, which is taken off first",
                node.name_any()
            ))),
            TaintState::Somebodys => Ok(ActionResult::AlreadyTainted),
        }
    }
}

/// How the remediation releases the taint that carries its name.
pub(super) fn release(node: &Node, remediation: &str) -> Option<Release> {
    let mark = marked(node, remediation)?;
    let is_on = mark.effect.is_some_and(|effect| nodes::view(node).carries(effect));
    let what = if is_on { "our taint is off the node" } else { "the mark of our taint is off the node" };
    Some(Release {
        patch: patch(node, &others(node, mark.effect), None),
        event: Some(Kind::Untainted),
        what: what.to_owned(),
    })
}

/// The owner annotation on the node, if it names this remediation.
fn marked(node: &Node, remediation: &str) -> Option<TaintMark> {
    nodes::tainted_by(node).filter(|mark| mark.remediation == remediation)
}

/// That the taint of the remediation stays on the node, if it has lost its owner annotation.
pub(super) fn left(node: &Node, remediation: &Remediation) -> Option<String> {
    let effect = remediation.taint().filter(|_| nodes::tainted_by(node).is_none())?;
    nodes::view(node).carries(effect).then(|| {
        format!(
            "the taint {} stays on the node: somebody has taken our mark {TAINT_ANNOTATION} off, so nobody here takes it for ours any \
             more",
            KeyedTaint::plain(effect)
        )
    })
}

/// The unchanged taints of the node without the controller's taint of this effect. A taint with the controller's key and another
/// effect, or with a value, belongs to somebody else.
fn others(node: &Node, ours: Option<TaintEffect>) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let is_ours =
        |taint: &Taint| taint.key == TAINT_KEY && ours.is_some_and(|effect| nodes::keyed(taint).is_plain(effect));
    taints.into_iter().filter(|taint| !is_ours(taint)).collect()
}

/// The write after which the node has these taints and this owner annotation.
fn patch(node: &Node, taints: &[Taint], mark: Option<&TaintMark>) -> Value {
    let mark = mark.map(ToString::to_string);
    let metadata = json!({"resourceVersion": node.resource_version(), "annotations": {TAINT_ANNOTATION: mark}});
    json!({"metadata": metadata, "spec": {"taints": taints}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_put_on_the_node_stays_as_it_is() {
        let others_taint =
            json!({"key": "dedicated", "value": "gpu", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"});
        let soft = json!({"key": TAINT_KEY, "effect": "PreferNoSchedule"});
        let mine = json!({"key": TAINT_KEY, "value": "mine", "effect": "NoExecute"});
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "w1", "resourceVersion": "7", "annotations": {TAINT_ANNOTATION: "e1:NoSchedule"}},
            "spec": {"taints": [others_taint, soft, {"key": TAINT_KEY, "effect": "NoSchedule"}, mine]},
        }))
        .unwrap();
        let mark = marked(&node, "e1").unwrap();
        let off = patch(&node, &others(&node, mark.effect), None);
        assert_eq!(off["spec"]["taints"], json!([others_taint, soft, mine]), "also with our key");
        assert_eq!(off["metadata"], json!({"resourceVersion": "7", "annotations": {TAINT_ANNOTATION: null}}));
        assert_eq!(marked(&node, "e2"), None);
        // An annotation that does not name the effect removes none.
        let vague = patch(&node, &others(&node, TaintMark::read("e1").effect), None);
        assert_eq!(vague["spec"]["taints"].as_array().unwrap().len(), 4);
    }
}
