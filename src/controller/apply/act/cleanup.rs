//! Cordons taken back, and what people are told where the API server refuses to have a mark of ours taken off a node.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::marked;
use crate::api::{CONTROLLER_MANAGER, CORDON_ANNOTATION, TAINT_ANNOTATION};
use crate::controller::apply::{Applier, ApplyError};
use crate::controller::cache::fold::Ingest;
use crate::controller::cache::node as nodes;
use crate::controller::calls::CallError;
use crate::controller::events::Kind;
use crate::core::remediation::{self, Remediation};
use crate::core::text::bounded as cut;

/// How the message of a remediation goes on as long as the API server refuses to have put back what it did to its node.
const REFUSED: &str = "; not cleaned up: ";
/// Most that is kept of the message before that: the rest is for the refusal.
const KEPT: usize = 320;
/// Managers of fields that are nobody: what the API server writes for the oldest of more than ten, and for what was there before any
/// (`k8s.io/apimachinery`, `managedfields/internal`).
const NO_NAMES: [&str; 3] = ["", "ancient-changes", "before-first-apply"];
/// Most that is told of a manager's name, which is its client's own word.
const MAX_OWNER: usize = 64;

/// What a remediation has put on its node.
#[derive(Clone, Copy, Debug)]
pub(in crate::controller::apply) enum Mark {
    Cordon,
    Taint,
}

impl Mark {
    const fn name(self) -> &'static str {
        match self {
            Self::Cordon => "cordon",
            Self::Taint => "taint",
        }
    }

    const fn annotation(self) -> &'static str {
        match self {
            Self::Cordon => CORDON_ANNOTATION,
            Self::Taint => TAINT_ANNOTATION,
        }
    }
}

/// How a remediation lets go of a node's cordon.
#[derive(Debug)]
struct Release {
    patch: Value,
    /// Whether people are told on the Node, and as what.
    told: Option<Kind>,
    /// What it does, in words.
    what: String,
}

impl Applier {
    /// Removes the cordon, where the mark is still this remediation's. On another machine of that name the mark goes alone.
    pub(in crate::controller::apply) async fn uncordon(
        &self,
        name: &str,
        node: &str,
        successor: Option<&str>,
    ) -> Result<(), ApplyError> {
        let found = self.node_now(node).await?;
        let blocked = self.cache.lock().snapshot.remediations.get(name).cloned();
        // The watch that shows remediations may be further behind than anybody knows.
        if blocked.is_none() && !self.is_gone(name).await {
            return Err(ApplyError::NotNow(format!(
                "remediation {name}, whose cordon seemed to be left over, is there"
            )));
        }
        let ours = found.as_ref().filter(|found| nodes::cordoned_by(found).as_deref() == Some(name));
        if let Some(found) = ours {
            let Release { patch, told, what } = release(found, blocked.as_ref(), successor);
            if let Err(error) = self.patch_node(node, &patch).await {
                return Err(Box::pin(self.not_put_back(found, name, blocked.as_ref(), Mark::Cordon, error)).await);
            }
            if let Some(kind) = told {
                self.events.tell(found, kind, format!("remediation {name}: {what}"));
            }
            tracing::info!(remediation = name, node, "{what}");
        } else if let Some(found) = found.clone() {
            found.fold(&mut self.cache.lock(), Instant::now());
        }
        let Some(blocked) = blocked else { return Ok(()) };
        let next = remediation::uncordoned(&plain(&blocked), self.clock.now());
        // One that owes nothing any more stays as it is: it is about another machine, or was over when its mark came back.
        if next == blocked { Ok(()) } else { self.write_remediation(&next).await }
    }

    /// Tells people that the API server refuses to have a mark taken off a node: once, by an event and in the remediation that owes it, and
    /// with each try (which the recorder folds into one event) where there is none any more. Everything else that keeps a call from being
    /// answered passes by itself.
    pub(in crate::controller::apply) async fn not_put_back(
        &self,
        node: &Node,
        name: &str,
        blocked: Option<&Remediation>,
        mark: Mark,
        error: CallError,
    ) -> ApplyError {
        if !error.is_refusal() {
            return error.into();
        }
        let why = error.line();
        if let Some(remediation) = blocked {
            // It says so already, and so did an event.
            let Some(next) = noted(remediation, mark, &why) else { return error.into() };
            if let Err(unwritten) = self.write_remediation(&next).await {
                tracing::warn!(
                    remediation = name,
                    error = unwritten.line(),
                    "a cleanup is refused, and that was not recorded"
                );
                return error.into();
            }
        }
        let (what, annotation, node_name) = (mark.name(), mark.annotation(), node.name_any());
        let text = format!(
            "remediation {name}: its {what} stays on the node: {why}; tried again until that is accepted, or until the {what} is yours: \
             kubectl annotate node {node_name} {annotation}-"
        );
        self.events.tell(node, Kind::ActionNotExecuted, text);
        error.into()
    }
}

/// Whether this is another machine than the one that the remediation is about.
fn is_another(node: &Node, remediation: &Remediation) -> bool {
    node.uid().as_deref() != Some(remediation.node_uid.as_str())
}

/// How the remediation lets go of the cordon that carries its name.
fn release(node: &Node, blocked: Option<&Remediation>, successor: Option<&str>) -> Release {
    let is_closed = nodes::view(node).unschedulable;
    if blocked.is_some_and(|remediation| is_another(node, remediation)) {
        let why = "which is another machine than the one that was cordoned";
        return mark_alone(node, is_closed, why, "since nobody here knows who has cordoned this one");
    }
    if let Some(other) = others_cordon(node).filter(|_| is_closed) {
        let by = format!("since {other} has cordoned it");
        return mark_alone(node, is_closed, "which was opened since and cordoned by somebody else", &by);
    }
    if let Some(successor) = successor.filter(|_| is_closed) {
        return Release {
            patch: marked(node, successor),
            told: None,
            what: format!("remediation {successor} takes over the cordon"),
        };
    }
    let (patch, what) = put_back(node);
    Release { patch, told: Some(Kind::Uncordoned), what }
}

/// A mark says nothing of who has cordoned the node: a tool may have saved it and put it on the next machine of that name, and a person
/// may have opened the node and cordoned it again while nobody here looked.
fn mark_alone(node: &Node, is_closed: bool, why: &str, by: &str) -> Release {
    let patch = json!({"metadata": without_mark(node)});
    let what = format!("the mark of our cordon is off the node, {why}");
    if !is_closed {
        return Release { patch, told: Some(Kind::Uncordoned), what };
    }
    let name = node.name_any();
    let what = format!("{what}; it stays unschedulable, {by}: kubectl uncordon {name} opens it");
    Release { patch, told: Some(Kind::ActionNotExecuted), what }
}

/// Who else than this controller has made the node unschedulable, by its managed fields: whoever changes a field last has it. Where
/// they name nobody, or only what the API server writes in place of older names, the mark alone counts.
fn others_cordon(node: &Node) -> Option<String> {
    let has_it = |entry: &&ManagedFieldsEntry| {
        let spec = entry.fields_v1.as_ref().and_then(|fields| fields.0.get("f:spec"));
        spec.is_some_and(|spec| spec.get("f:unschedulable").is_some())
    };
    let owners = node.managed_fields().iter().filter(has_it).map(|entry| entry.manager.as_deref().unwrap_or_default());
    let owners: Vec<&str> = owners.collect();
    let is_open = owners.iter().any(|owner| *owner == CONTROLLER_MANAGER || NO_NAMES.contains(owner));
    owners.first().filter(|_| !is_open).map(|owner| cut(owner, MAX_OWNER))
}

fn without_mark(node: &Node) -> Value {
    json!({"resourceVersion": node.resource_version(), "annotations": {CORDON_ANNOTATION: null}})
}

/// The write that ends our part in a node's cordon, and what it does, in words. A node that somebody has begun to take out
/// of service meanwhile stays unschedulable: whoever did that found it cordoned and had no need to do so again.
fn put_back(node: &Node) -> (Value, String) {
    let metadata = without_mark(node);
    if let Some(mark) = nodes::maintained(node).first() {
        let what = format!("the node stays unschedulable, without our mark: {mark} says that others are at work on it");
        return (json!({"metadata": metadata}), what);
    }
    let patch = json!({"metadata": metadata, "spec": {"unschedulable": null}});
    (patch, "the node is schedulable again".to_owned())
}

/// The remediation that says that its mark cannot be taken off; none where it says so already: no sentence of the API server's, which may
/// be another one each time, is written again and again.
fn noted(remediation: &Remediation, mark: Mark, why: &str) -> Option<Remediation> {
    let note = format!("{REFUSED}its {}", mark.name());
    if remediation.message.contains(&note) {
        return None;
    }
    let mut next = remediation.clone();
    next.say(&format!("{}{note}: {why}", cut(message(remediation), KEPT)));
    Some(next)
}

/// The remediation without that.
pub(in crate::controller::apply) fn plain(remediation: &Remediation) -> Remediation {
    Remediation { message: message(remediation).to_owned(), ..remediation.clone() }
}

/// What the remediation says of itself, without that.
fn message(remediation: &Remediation) -> &str {
    remediation.message.split_once(REFUSED).map_or(remediation.message.as_str(), |(plain, _)| plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{NodeRemediation, convert};

    fn node(extra: &Value) -> Node {
        let mut node =
            json!({"metadata": {"name": "w1", "uid": "n1", "resourceVersion": "7"}, "spec": {"unschedulable": true}});
        node.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(node).unwrap()
    }

    /// A remediation of the node with that uid.
    fn of(uid: &str) -> Remediation {
        let object = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": "e"},
            "spec": {"nodeName": "w1", "nodeUid": uid, "policy": "p", "mode": "Enforce"},
            "status": {"phase": "Running", "message": "HungContainer is gone now", "startedAt": "2025-01-01T00:00:00Z"}});
        convert::remediation(&serde_json::from_value::<NodeRemediation>(object).unwrap())
    }

    #[test]
    fn a_node_that_others_take_out_of_service_stays_cordoned() {
        let frees = |extra: Value| put_back(&node(&extra)).0.pointer("/spec/unschedulable").is_some();
        assert!(frees(json!({})));
        let condition =
            |status: &str| json!({"status": {"conditions": [{"type": "DrainInProgress", "status": status}]}});
        assert!(frees(condition("False")));
        assert!(!frees(condition("True")));
        let taint = json!({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"});
        assert!(!frees(json!({"spec": {"unschedulable": true, "taints": [taint]}})));
        let (patch, what) = put_back(&node(&condition("True")));
        assert_eq!(patch["metadata"]["annotations"][CORDON_ANNOTATION], Value::Null, "our mark goes all the same");
        assert!(what.contains("DrainInProgress"), "{what}");
    }

    #[test]
    fn on_another_machine_the_mark_goes_alone() {
        let mark_off = json!({"metadata": {"resourceVersion": "7", "annotations": {CORDON_ANNOTATION: null}}});
        let (open, closed) = (node(&json!({"spec": {}})), node(&json!({})));
        let of_closed = release(&closed, Some(&of("n0")), Some("successor"));
        assert_eq!((of_closed.patch, of_closed.told), (mark_off.clone(), Some(Kind::ActionNotExecuted)));
        assert!(of_closed.what.ends_with("kubectl uncordon w1 opens it"), "{}", of_closed.what);
        let of_open = release(&open, Some(&of("n0")), None);
        assert_eq!((of_open.patch, of_open.told), (mark_off, Some(Kind::Uncordoned)));
        // On its own one, and where nobody knows any more which that was, the cordon goes with it.
        for blocked in [Some(of("n1")), None] {
            assert_eq!(release(&closed, blocked.as_ref(), None).patch["spec"], json!({"unschedulable": null}));
            let left = release(&closed, blocked.as_ref(), Some("successor"));
            assert_eq!(left.patch["metadata"]["annotations"][CORDON_ANNOTATION], "successor");
            assert_eq!((left.patch.get("spec"), left.told), (None, None));
        }
    }

    #[test]
    fn a_cordon_that_somebody_has_put_on_since_stays() {
        let owned = |managers: &[&str]| {
            let entry = |manager: &&str| {
                json!({"manager": manager, "operation": "Update", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}})
            };
            let other = json!({"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:labels": {}}}});
            let entries: Vec<Value> = managers.iter().map(entry).chain([other]).collect();
            node(&json!({"metadata": {"name": "w1", "uid": "n1", "resourceVersion": "7", "managedFields": entries}}))
        };
        let mark_off = json!({"metadata": {"resourceVersion": "7", "annotations": {CORDON_ANNOTATION: null}}});
        for successor in [None, Some("successor")] {
            let theirs = release(&owned(&["kubectl"]), Some(&of("n1")), successor);
            assert_eq!((theirs.patch, theirs.told), (mark_off.clone(), Some(Kind::ActionNotExecuted)));
            let said = "it stays unschedulable, since kubectl has cordoned it: kubectl uncordon w1 opens it";
            assert!(theirs.what.ends_with(said), "{}", theirs.what);
        }
        let no_names: [&[&str]; 5] = [
            &[],
            &[CONTROLLER_MANAGER],
            &[CONTROLLER_MANAGER, "kubectl"],
            &["ancient-changes"],
            &["before-first-apply"],
        ];
        for ours in no_names {
            let patch = release(&owned(ours), Some(&of("n1")), None).patch;
            assert_eq!(patch["spec"], json!({"unschedulable": null}), "{ours:?}");
        }
    }

    #[test]
    fn a_refused_undo_is_noted_once_and_the_note_goes_with_it() {
        let refused = noted(&of("n1"), Mark::Taint, "patching Node w1 failed: not here (403)").unwrap();
        let said = "HungContainer is gone now; not cleaned up: its taint: patching Node w1 failed: not here (403)";
        assert_eq!(refused.message, said);
        assert_eq!(noted(&refused, Mark::Taint, "another sentence"), None);
        let next = noted(&refused, Mark::Cordon, "no").unwrap();
        assert_eq!(next.message, "HungContainer is gone now; not cleaned up: its cordon: no");
        assert_eq!(plain(&next), of("n1"));
        let long = Remediation { message: "x".repeat(512), ..of("n1") };
        let noted_long = noted(&long, Mark::Cordon, &"y".repeat(512)).unwrap();
        assert!(noted_long.message.len() <= 512 && noted(&noted_long, Mark::Cordon, "no").is_none());
    }
}
