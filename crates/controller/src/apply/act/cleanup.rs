//! Removal of markers, and the report to people when the API server refuses to remove an owner annotation from a node.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::{Release, cordon_mark};
use crate::apply::{Applier, ApplyError, taint};
use crate::cache::fold::Ingest;
use crate::calls::CallError;
use crate::events::Kind;
use nrh_api::view::node as nodes;
use nrh_api::{CONTROLLER_MANAGER, CORDON_ANNOTATION, REMEDIATION_ANNOTATION, TAINT_ANNOTATION};
use nrh_core::remediation::{self, Marker, Remediation};
use nrh_core::text::bounded as cut;

/// Suffix of a remediation's message while the API server refuses the cleanup of its node.
const REFUSED: &str = "; not cleaned up: ";
/// Maximum length that is kept of the message before the suffix. The rest is for the refusal.
const KEPT: usize = 320;
/// Field managers that name nobody: what the API server writes for the oldest of more than ten managers, and for changes before
/// the first apply (`k8s.io/apimachinery`, `managedfields/internal`).
const NO_NAMES: [&str; 3] = ["", "ancient-changes", "before-first-apply"];
/// Maximum length that is repeated of a manager's name, which its client chooses.
const MAX_OWNER: usize = 64;

/// The marker in a word, and the annotation that names its owner.
const fn name_of(marker: &Marker) -> (&'static str, &'static str) {
    match marker {
        Marker::Cordon => ("cordon", CORDON_ANNOTATION),
        Marker::Taint => ("taint", TAINT_ANNOTATION),
        Marker::HandOff(_) => ("hand-off", REMEDIATION_ANNOTATION),
    }
}

impl Applier {
    /// Removes a marker of a remediation, if it is still the remediation's, and records that.
    pub(in crate::apply) async fn remove(
        &self,
        name: &str,
        node: &str,
        marker: &Marker,
        successor: Option<&str>,
    ) -> Result<(), ApplyError> {
        let owing = if let Marker::HandOff(handed) = marker {
            self.delete_hand_off(name, handed).await?;
            self.known(name)
        } else {
            Box::pin(self.remove_from_node(name, node, marker, successor)).await?
        };
        let Some(owing) = owing else { return Ok(()) };
        self.write_remediation(&remediation::removed(&plain(&owing), marker, self.clock.now())).await
    }

    /// Removes a marker from a node, if the owner annotation still names this remediation. Returns the remediation, if the cleanup
    /// of that marker is pending.
    async fn remove_from_node(
        &self,
        name: &str,
        node: &str,
        marker: &Marker,
        successor: Option<&str>,
    ) -> Result<Option<Remediation>, ApplyError> {
        let found = self.read_now::<Node>(node).await?;
        let uid = found.as_ref().and_then(ResourceExt::uid).unwrap_or_default();
        let has_pending =
            |remediation: &Remediation| remediation.node_uid == uid && remediation.cleanup.has_pending(marker);
        let owing = self.known(name).filter(has_pending);
        // The watch of remediations may be further behind than the controller knows.
        if owing.is_none() && !self.is_gone(name).await && self.known(name).is_none_or(|e| e.may_own(marker, &uid)) {
            let what = name_of(marker).0;
            let why = format!("remediation {name}, whose {what} seemed to be left over on Node {node}, may own it");
            return Err(ApplyError::NotNow(why));
        }
        let Some(found) = found else { return Ok(owing) };
        let release = match marker {
            Marker::Cordon => nodes::cordoned_by(&found)
                .filter(|owner| owner == name)
                .map(|_| release(&found, self.known(name).as_ref(), successor)),
            Marker::Taint => taint::release(&found, name),
            Marker::HandOff(_) => None,
        };
        if let Some(Release { patch, event, what }) = release {
            if let Err(error) = self.patch_node(node, &patch).await {
                return Err(Box::pin(self.report_refused_cleanup(&found, name, owing.as_ref(), marker, error)).await);
            }
            if let Some(kind) = event {
                self.events.send_event(&found, kind, format!("remediation {name}: {what}"));
            }
            tracing::info!(remediation = name, node, "{what}");
            return Ok(owing);
        }
        let tainted = owing.as_ref().filter(|_| *marker == Marker::Taint);
        if let Some(left) = tainted.and_then(|owing| taint::left(&found, owing)) {
            tracing::warn!(remediation = name, node, "{left}");
            self.events.send_event(&found, Kind::ActionNotExecuted, format!("remediation {name}: {left}"));
        }
        found.fold(&mut self.cache.lock(), Instant::now());
        Ok(owing)
    }

    /// The remediation as the watch shows it.
    pub(in crate::apply) fn known(&self, name: &str) -> Option<Remediation> {
        self.cache.lock().snapshot.remediations.get(name).cloned()
    }

    /// Notifies people that the API server refuses the removal of an owner annotation. If the remediation with the pending
    /// cleanup exists, it does so once, by an Event and in the remediation. If it no longer exists, it does so with each try,
    /// which the recorder folds into one Event. Every other cause of an unanswered call passes by itself.
    pub(in crate::apply) async fn report_refused_cleanup(
        &self,
        node: &Node,
        name: &str,
        owing: Option<&Remediation>,
        marker: &Marker,
        error: CallError,
    ) -> ApplyError {
        if !error.is_refusal() {
            return error.into();
        }
        let why = error.line();
        let (what, annotation) = name_of(marker);
        if let Some(remediation) = owing {
            // The remediation already says so, and an Event did.
            let Some(next) = noted(remediation, what, &why) else { return error.into() };
            if let Err(unwritten) = self.write_remediation(&next).await {
                tracing::warn!(
                    remediation = name,
                    error = unwritten.line(),
                    "a cleanup is refused, and that was not recorded"
                );
                return error.into();
            }
        }
        let node_name = node.name_any();
        let text = format!(
            "remediation {name}: its {what} stays on the node: {why}. The controller retries until the API server accepts the removal. To \
             keep the {what}: kubectl annotate node {node_name} {annotation}-"
        );
        self.events.send_event(node, Kind::ActionNotExecuted, text);
        error.into()
    }
}

/// How the remediation releases the cordon that carries its name.
fn release(node: &Node, known: Option<&Remediation>, successor: Option<&str>) -> Release {
    let is_closed = nodes::view(node).unschedulable;
    if known.is_some_and(|remediation| node.uid().as_deref() != Some(remediation.node_uid.as_str())) {
        let why = "because another machine now has this name";
        return mark_alone(node, is_closed, why, "because its cordon has an unknown owner");
    }
    if let Some(other) = others_cordon(node).filter(|_| is_closed) {
        let by = format!("since {other} has cordoned it");
        return mark_alone(node, is_closed, "because another client cordoned it again", &by);
    }
    if let Some(successor) = successor.filter(|_| is_closed) {
        return Release {
            patch: json!({"metadata": cordon_mark(node, Some(successor))}),
            event: None,
            what: format!("remediation {successor} takes over the cordon"),
        };
    }
    release_cordon_and_uncordon(node)
}

/// Removes the owner annotation only, because it does not prove who cordoned the node. A tool may have saved the annotation and
/// put it on the next machine of that name. A person may have uncordoned the node and cordoned it again while the controller did
/// not watch.
fn mark_alone(node: &Node, is_closed: bool, why: &str, by: &str) -> Release {
    let patch = json!({"metadata": cordon_mark(node, None)});
    let what = format!("the annotation of our cordon was removed, {why}");
    if !is_closed {
        return Release { patch, event: Some(Kind::Uncordoned), what };
    }
    let name = node.name_any();
    let what = format!("{what}; it stays unschedulable, {by}; to make it schedulable: kubectl uncordon {name}");
    Release { patch, event: Some(Kind::ActionNotExecuted), what }
}

/// Who other than this controller has made the node unschedulable, by its managed fields: the last client that changes a field
/// owns it. If they name nobody, or only what the API server writes in place of older names, the annotation alone counts.
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

/// The write that ends this controller's part in a node's cordon, and its effect in words. If somebody else has begun to take the
/// node out of service meanwhile, it stays unschedulable. They found it cordoned and had no need to cordon it again.
fn release_cordon_and_uncordon(node: &Node) -> Release {
    let metadata = cordon_mark(node, None);
    let why = if node.metadata.deletion_timestamp.is_some() {
        Some("it is being deleted".to_owned())
    } else {
        nodes::maintained(node).first().map(|mark| {
            let name = node.name_any();
            format!("{mark} shows that another tool maintains it; kubectl uncordon {name} makes it schedulable")
        })
    };
    if let Some(why) = why {
        let what = format!("the node stays unschedulable, without our annotation: {why}");
        return Release { patch: json!({"metadata": metadata}), event: Some(Kind::ActionNotExecuted), what };
    }
    let patch = json!({"metadata": metadata, "spec": {"unschedulable": null}});
    Release { patch, event: Some(Kind::Uncordoned), what: "the node is schedulable again".to_owned() }
}

/// The remediation with the note that its owner annotation cannot be removed; `None` if it already says so. The API server's
/// sentence may differ each time, and must not be written again and again.
fn noted(remediation: &Remediation, what: &str, why: &str) -> Option<Remediation> {
    let note = format!("{REFUSED}its {what}");
    if remediation.message.contains(&note) {
        return None;
    }
    let mut next = remediation.clone();
    next.say(&format!("{}{note}: {why}", cut(message(remediation), KEPT)));
    Some(next)
}

/// The remediation without that note.
fn plain(remediation: &Remediation) -> Remediation {
    Remediation { message: message(remediation).to_owned(), ..remediation.clone() }
}

/// The remediation's own message, without that note.
fn message(remediation: &Remediation) -> &str {
    remediation.message.split_once(REFUSED).map_or(remediation.message.as_str(), |(plain, _)| plain)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use nrh_api::{NodeRemediation, convert};

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
        let frees =
            |extra: Value| release_cordon_and_uncordon(&node(&extra)).patch.pointer("/spec/unschedulable").is_some();
        assert!(frees(json!({})));
        assert_eq!(release_cordon_and_uncordon(&node(&json!({}))).event, Some(Kind::Uncordoned));
        let condition =
            |status: &str| json!({"status": {"conditions": [{"type": "DrainInProgress", "status": status}]}});
        assert!(frees(condition("False")));
        assert!(!frees(condition("True")));
        for key in ["karpenter.sh/disrupted", "medik8s.io/drain"] {
            let taint = json!({"key": key, "effect": "NoSchedule"});
            assert!(!frees(json!({"spec": {"unschedulable": true, "taints": [taint]}})), "{key}");
        }
        let Release { patch, event, what } = release_cordon_and_uncordon(&node(&condition("True")));
        assert_eq!(event, Some(Kind::ActionNotExecuted), "it is not uncordoned");
        assert_eq!(patch["metadata"]["annotations"][CORDON_ANNOTATION], Value::Null, "our mark goes all the same");
        assert!(what.contains("DrainInProgress"), "{what}");
        assert!(what.ends_with("kubectl uncordon w1 makes it schedulable"), "{what}");
    }

    #[test]
    fn a_node_that_is_being_deleted_stays_closed() {
        let mut node = node(&json!({}));
        node.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let left = release(&node, Some(&of("n1")), None);
        assert_eq!((left.patch.get("spec"), left.event), (None, Some(Kind::ActionNotExecuted)));
        assert_eq!(left.patch["metadata"]["annotations"][CORDON_ANNOTATION], Value::Null);
    }

    #[test]
    fn on_another_machine_the_mark_goes_alone() {
        let mark_off = json!({"metadata": {"resourceVersion": "7", "annotations": {CORDON_ANNOTATION: null}}});
        let (open, closed) = (node(&json!({"spec": {}})), node(&json!({})));
        let of_closed = release(&closed, Some(&of("n0")), Some("successor"));
        assert_eq!((of_closed.patch, of_closed.event), (mark_off.clone(), Some(Kind::ActionNotExecuted)));
        assert!(of_closed.what.ends_with("to make it schedulable: kubectl uncordon w1"), "{}", of_closed.what);
        let of_open = release(&open, Some(&of("n0")), None);
        assert_eq!((of_open.patch, of_open.event), (mark_off, Some(Kind::Uncordoned)));
        // On its own machine, and if nobody knows which machine that was, the cordon is removed together with the annotation.
        for blocked in [Some(of("n1")), None] {
            assert_eq!(release(&closed, blocked.as_ref(), None).patch["spec"], json!({"unschedulable": null}));
            let left = release(&closed, blocked.as_ref(), Some("successor"));
            assert_eq!(left.patch["metadata"]["annotations"][CORDON_ANNOTATION], "successor");
            assert_eq!((left.patch.get("spec"), left.event), (None, None));
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
            assert_eq!((theirs.patch, theirs.event), (mark_off.clone(), Some(Kind::ActionNotExecuted)));
            let expected =
                "it stays unschedulable, since kubectl has cordoned it; to make it schedulable: kubectl uncordon w1";
            assert!(theirs.what.ends_with(expected), "{}", theirs.what);
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
        let refused = noted(&of("n1"), "taint", "patching Node w1 failed: not here (403)").unwrap();
        let expected = "HungContainer is gone now; not cleaned up: its taint: patching Node w1 failed: not here (403)";
        assert_eq!(refused.message, expected);
        assert_eq!(noted(&refused, "taint", "another sentence"), None);
        let next = noted(&refused, "cordon", "no").unwrap();
        assert_eq!(next.message, "HungContainer is gone now; not cleaned up: its cordon: no");
        assert_eq!(plain(&next), of("n1"));
        let long = Remediation { message: "x".repeat(512), ..of("n1") };
        let noted_long = noted(&long, "cordon", &"y".repeat(512)).unwrap();
        assert!(noted_long.message.len() <= 512 && noted(&noted_long, "cordon", "no").is_none());
    }
}
