//! `nrh cancel`: a person cancels a remediation, or a manual request that has not started.

use anyhow::bail;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::api::view::guard::{Guarded, UnreadableObject};
use crate::api::{NODE_LABEL, NodeRemediation, convert};
use crate::caller::{client, refused, whoami, within};
use crate::cli::CancelArgs;
use crate::core::remediation::Cancel;
use crate::core::text::bounded;
use crate::objects;
use crate::terminal::print;

/// Longest line about a remediation, in bytes.
const MAX_LINE: usize = 512;

/// Something that can be cancelled.
#[derive(Debug)]
struct Live {
    name: String,
    node: String,
    line: String,
}

/// Runs `nrh cancel`.
///
/// # Errors
/// The cluster does not answer, nothing of that name can be cancelled, several can, or the API server refuses.
pub async fn run(args: CancelArgs) -> anyhow::Result<()> {
    cancel(client(&args.cluster).await?, args).await
}

pub(crate) async fn cancel(client: Client, args: CancelArgs) -> anyhow::Result<()> {
    let (listed, unreadable) = objects::read::<NodeRemediation>(client.clone()).await?;
    let live: Vec<Live> = listed.iter().filter_map(live).collect();
    let unreadable: Vec<Live> = unreadable.into_iter().filter_map(unjudged).collect();
    // Only the API server knows whether one that cannot be read is finished, so a person has to name it exactly.
    let one = match unreadable.iter().find(|one| one.name == args.what) {
        Some(one) => one,
        None => meant(&live, &args.what)?,
    };
    let cancel = Cancel { cancelled_by: whoami(client.clone()).await?, reason: args.reason };
    let patch = Patch::Merge(json!({"spec": {"cancel": cancel}}));
    // The answer is the object, which may still be one that cannot be read.
    let api: Api<Guarded<NodeRemediation>> = Api::all(client);
    within(api.patch(&one.name, &PatchParams::default(), &patch)).await.map_err(|error| {
        let right = "the verbs patch and cancel on noderemediations: ClusterRole nrh:approver, nrh:operator or nrh:manual-remediation";
        refused(error, &format!("cannot cancel {}", one.name), right)
    })?;
    print(&format!(
        "cancelled {}: {}; the controller starts no further step and removes what it changed on node {}, once the node has answered; \
         `kubectl get nrem {}` shows the result\n",
        cancel.by_whom(),
        one.line,
        one.node,
        one.name
    ))
}

/// The object, if it is neither finished nor cancelled.
fn live(object: &NodeRemediation) -> Option<Live> {
    if object.spec.cancel.is_some() {
        return None;
    }
    let line = if let Some(manual) = convert::manual(object) {
        format!("{}, manual request ({}): {}", manual.name, manual.phrase(), manual.message)
    } else {
        let remediation = convert::remediation(object);
        if remediation.phase.is_final() && !remediation.is_quarantined() {
            return None;
        }
        format!("{}, {}: {}", remediation.name, remediation.phase.as_str(), remediation.message)
    };
    let name = object.metadata.name.clone()?;
    // Names and messages come from the cluster: they must not move the reader's cursor.
    Some(Live { name, node: bounded(&object.spec.node_name, MAX_LINE), line: bounded(&line, MAX_LINE) })
}

/// An object that cannot be read: whether it is finished is not known.
fn unjudged(object: UnreadableObject) -> Option<Live> {
    let name = object.metadata.name?;
    let node = object.metadata.labels.and_then(|mut labels| labels.remove(NODE_LABEL));
    let line = format!("{name}, which cannot be read");
    Some(Live { name, node: node.unwrap_or_else(|| "(not known)".to_owned()), line })
}

/// The object of this name, or the one of this node.
fn meant<'l>(live: &'l [Live], what: &str) -> anyhow::Result<&'l Live> {
    if let Some(one) = live.iter().find(|one| one.name == what) {
        return Ok(one);
    }
    let lines = |some: &[&Live]| some.iter().map(|one| format!("  {}", one.line)).collect::<Vec<_>>().join("\n");
    let its: Vec<&Live> = live.iter().filter(|one| one.node == what).collect();
    match its.as_slice() {
        [one] => Ok(one),
        [] => bail!(
            "no remediation of that name, and none on node {what}, is under way, waits or keeps a cordon; `kubectl get nrem` \
             lists all with their nodes and phases"
        ),
        several => bail!("there are several on node {what}: say which\n{}", lines(several)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn object(name: &str, node: &str, phase: &str, more: &Value) -> NodeRemediation {
        let mut spec = json!({"nodeName": node, "nodeUid": "u", "policy": "p", "mode": "Enforce"});
        spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        let status = if phase.is_empty() {
            Value::Null
        } else {
            json!({"phase": phase, "message": "m", "startedAt": "2026-01-01T00:00:00Z"})
        };
        let object = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": name},
            "spec": spec, "status": status});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn what_is_not_at_its_end_is_found_by_its_name_or_its_node() {
        let manual = json!({"manual": {"requestedBy": "ann", "fault": "OrphanContainer", "action": "CleanupOrphans"}});
        let none = json!({});
        let all = [
            object("a", "w1", "Running", &none),
            object("b", "w1", "Succeeded", &none),
            object("c", "w2", "Quarantined", &none),
            object("d", "w2", "", &manual),
            object("e", "w3", "Pending", &json!({"cancel": {"cancelledBy": "bob"}})),
        ];
        let live: Vec<Live> = all.iter().filter_map(live).collect();
        assert_eq!(meant(&live, "w1").unwrap().name, "a");
        assert_eq!(meant(&live, "c").unwrap().name, "c");
        let several = meant(&live, "w2").unwrap_err().to_string();
        for part in ["say which", "d, manual request (CleanupOrphans for OrphanContainer, by ann)"] {
            assert!(several.contains(part), "{several}");
        }
        for gone in ["b", "e", "w3", "x"] {
            let error = meant(&live, gone).unwrap_err().to_string();
            assert!(error.contains(&format!("node {gone},")) && error.contains("kubectl get nrem"), "{error}");
        }
    }
}
