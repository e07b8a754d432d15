//! Our taint on a node, put there and taken off. The taints of a node are one list that many write: each write carries the
//! resource version of what was read, and a conflict is looked at anew.

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use kube::api::Api;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::recheck::Live;
use super::{Applier, ApplyError};
use crate::api::TAINT_ANNOTATION;
use crate::controller::cache::fold::Folds;
use crate::controller::cache::node as nodes;
use crate::controller::calls::bounded_opt;
use crate::controller::events::Kind;
use crate::core::episode::{self, ActResult};
use crate::core::taint::{TAINT_KEY, TaintEffect};

impl Applier {
    /// Puts the taint on the node, with the mark that makes it this episode's.
    pub(super) async fn taint(&self, name: &str, effect: TaintEffect, live: &Live) -> Result<ActResult, ApplyError> {
        let node = &live.node;
        match (nodes::is_tainted(node), nodes::tainted_by(node)) {
            (true, Some(mark)) if mark == name => {
                return Ok(ActResult::Done { message: "the node carries this episode's taint".to_owned() });
            }
            // What another episode has left is taken off first.
            (_, Some(mark)) if mark != name => {
                return Err(ApplyError::NotNow(format!(
                    "Node {} carries the mark of episode {mark} for its taint, which is taken off first",
                    node.name_any()
                )));
            }
            (true, _) => return Ok(ActResult::AlreadyTainted),
            (false, _) => {}
        }
        let mut taints = others(node);
        taints.push(Taint { key: TAINT_KEY.to_owned(), effect: effect.as_str().to_owned(), ..Taint::default() });
        self.patch_node(&node.name_any(), &patch(node, &taints, Some(name))).await?;
        Ok(ActResult::Done { message: format!("the node has the taint {TAINT_KEY}:{}", effect.as_str()) })
    }

    /// Takes the taint off, where the mark is still this episode's.
    pub(super) async fn untaint(&self, name: &str, node: &str) -> Result<(), ApplyError> {
        let api: Api<Node> = self.calls.read();
        let found = bounded_opt(|| format!("reading Node {node}"), api.get(node)).await?;
        let held = self.cache.lock().snapshot.episodes.get(name).cloned();
        // The watch that shows episodes may be further behind than anybody knows.
        if held.is_none() && !self.is_gone(name).await {
            return Err(ApplyError::NotNow(format!("episode {name}, whose taint seemed to be left over, is there")));
        }
        let ours = found.as_ref().filter(|found| {
            let same = held.as_ref().is_none_or(|episode| found.uid().as_deref() == Some(episode.node_uid.as_str()));
            same && nodes::tainted_by(found).as_deref() == Some(name)
        });
        if let Some(found) = ours {
            self.patch_node(node, &patch(found, &others(found), None)).await?;
            self.events.tell(found, Kind::Untainted, format!("episode {name}: our taint is off the node"));
            tracing::info!(episode = name, node, "our taint is off the node");
        } else if let Some(found) = found.clone() {
            found.fold(&mut self.cache.lock(), Instant::now());
        }
        match held {
            Some(episode) => self.write_episode(&episode::untainted(&episode, self.clock.now())).await,
            None => Ok(()),
        }
    }
}

/// The taints of the node that are not ours, as they stand.
fn others(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    taints.into_iter().filter(|taint| taint.key != TAINT_KEY).collect()
}

/// The write that leaves the node with these taints and this mark.
fn patch(node: &Node, taints: &[Taint], mark: Option<&str>) -> Value {
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
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "w1", "resourceVersion": "7", "annotations": {TAINT_ANNOTATION: "e1"}},
            "spec": {"taints": [others_taint, {"key": TAINT_KEY, "effect": "NoSchedule"}]},
        }))
        .unwrap();
        assert!(nodes::is_tainted(&node));
        let off = patch(&node, &others(&node), None);
        assert_eq!(off["spec"]["taints"], json!([others_taint]));
        assert_eq!(off["metadata"], json!({"resourceVersion": "7", "annotations": {TAINT_ANNOTATION: null}}));
    }
}
