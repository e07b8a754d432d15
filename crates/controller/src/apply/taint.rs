//! Adds and removes the controller's taint on a node. The taints of a node are one list with many writers. So each write carries
//! the resource version of what was read, and a conflict is checked again.

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::act::cleanup::{Mark, plain};
use super::preflight::Live;
use super::{Applier, ApplyError};
use crate::cache::fold::Ingest;
use crate::events::Kind;
use nrh_api::TAINT_ANNOTATION;
use nrh_api::view::node as nodes;
use nrh_core::command::OutcomeReason;
use nrh_core::remediation::{self, ActionResult, Remediation};
use nrh_core::taint::{KeyedTaint, TAINT_KEY, TaintEffect, TaintMark, TaintState};

impl Applier {
    /// Adds the taint to the node, with the annotation that names this remediation as its owner.
    pub(super) async fn taint(&self, name: &str, effect: TaintEffect, live: &Live) -> Result<ActionResult, ApplyError> {
        let (node, view) = (&live.node, nodes::view(&live.node));
        match TaintState::of(&view.taints, view.tainted_by.as_ref(), name, effect) {
            TaintState::Nothing => {
                let mut taints = others(node, None);
                taints.push(Taint {
                    key: TAINT_KEY.to_owned(),
                    effect: effect.as_str().to_owned(),
                    ..Taint::default()
                });
                let mark = TaintMark::new(name, effect);
                let after = self.patch_node(&node.name_any(), &patch(node, &taints, Some(&mark))).await?;
                let now = if nodes::view(&after).carries(effect) {
                    "has it now"
                } else {
                    "has none now either, by the API server's answer"
                };
                Ok(ActionResult::Done {
                    message: format!("the node had no taint {TAINT_KEY}:{} and {now}", effect.as_str()),
                })
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

    /// Removes the taint, if the owner annotation still names this remediation.
    pub(super) async fn untaint(&self, name: &str, node: &str) -> Result<(), ApplyError> {
        let found = self.node_now(node).await?;
        let uid = found.as_ref().and_then(ResourceExt::uid).unwrap_or_default();
        let owes = |remediation: &Remediation| remediation.node_uid == uid && remediation.cleanup.owes_taint();
        let blocked = self.known(name).filter(owes);
        // The watch of remediations may be further behind than the controller knows.
        if blocked.is_none() && !self.is_gone(name).await && self.known(name).is_none_or(|e| e.may_own_taint_of(&uid)) {
            return Err(ApplyError::NotNow(format!(
                "remediation {name}, whose taint seemed to be left over on Node {node}, may own it"
            )));
        }
        if let Some((found, mark)) = found.as_ref().and_then(|found| Some((found, marked(found, name)?))) {
            if let Err(error) = self.patch_node(node, &patch(found, &others(found, mark.effect), None)).await {
                return Err(Box::pin(self.not_put_back(found, name, blocked.as_ref(), Mark::Taint, error)).await);
            }
            let is_on = mark.effect.is_some_and(|effect| nodes::view(found).carries(effect));
            let what = if is_on { "our taint is off the node" } else { "the mark of our taint is off the node" };
            self.events.tell(found, Kind::Untainted, format!("remediation {name}: {what}"));
            tracing::info!(remediation = name, node, "{what}");
        } else if let Some(found) = &found {
            if let Some(left) = blocked.as_ref().and_then(|remediation| unmarked(found, remediation)) {
                let what = format!(
                    "remediation {name}: the taint {left} stays on the node: somebody has taken our mark {TAINT_ANNOTATION} off, so \
                     nobody here takes it for ours any more"
                );
                tracing::warn!(remediation = name, node, taint = %left, "our taint has lost its mark, and stays");
                self.events.tell(found, Kind::ActionNotExecuted, what);
            }
            found.clone().fold(&mut self.cache.lock(), Instant::now());
        }
        match blocked {
            Some(remediation) => {
                self.write_remediation(&remediation::untainted(&plain(&remediation), self.clock.now())).await
            }
            None => Ok(()),
        }
    }

    /// The remediation as the watch shows it.
    fn known(&self, name: &str) -> Option<Remediation> {
        self.cache.lock().snapshot.remediations.get(name).cloned()
    }
}

/// The owner annotation on the node, if it names this remediation.
fn marked(node: &Node, remediation: &str) -> Option<TaintMark> {
    nodes::tainted_by(node).filter(|mark| mark.remediation == remediation)
}

/// What looks like the taint that the remediation has added to the node, without an owner annotation.
fn unmarked(node: &Node, remediation: &Remediation) -> Option<KeyedTaint> {
    let effect = remediation.taint().filter(|_| nodes::tainted_by(node).is_none())?;
    nodes::view(node).carries(effect).then(|| KeyedTaint::plain(effect))
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
