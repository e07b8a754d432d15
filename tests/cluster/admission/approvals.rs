//! Who may approve a step, which one, and in whose name.

use anyhow::Result;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::requests::{Cases, create, delete, merge};
use crate::objects::{REMEDIATIONS, remediation, step};

fn approval(by: &str, operation: &str) -> Value {
    json!({"spec": {"approval": {"approvedBy": by, "operationId": operation}}})
}

/// In their own name, by right, and only what waits.
pub async fn guarded(all: &Callers, cases: &mut Cases) -> Result<()> {
    let (ann, patcher) = (&all.approver, &all.patcher);
    let (ann_name, patcher_name) = ("system:serviceaccount:default:ann", "system:serviceaccount:default:patcher");
    let path = format!("{REMEDIATIONS}/approved");
    all.controller.until_allowed(&create(REMEDIATIONS, remediation("approved", "worker-1"))).await?;
    let steps = json!({"status": {"phase": "AwaitingApproval",
        "attempts": [step("op-1", "Failed"), step("op-2", "AwaitingApproval")]}});
    all.controller.must(&merge(format!("{path}/status"), steps)).await?;

    let right = "needs the verb approve on noderemediations";
    let waits = "expected the operation of a step of this remediation that awaits approval";
    cases.denied(patcher, "approve without the right", merge(&path, approval(patcher_name, "op-2")), right).await;
    let call = merge(&path, approval("system:serviceaccount:nrh-system:nrh-controller", "op-2"));
    cases.denied(&all.controller, "approve its own step", call, right).await;
    let call = merge(&path, approval(ann_name, "op-2"));
    cases.denied(&all.pod, "approve as a probe", call, "cannot patch resource").await;
    let name = "expected your own name, system:serviceaccount:default:ann";
    cases.denied(ann, "approve in another's name", merge(&path, approval("bob", "op-2")), name).await;
    let call = merge(&path, approval(ann_name, "op-2"));
    cases.denied(&all.admin, "the same as an administrator", call, "expected your own name").await;
    cases.denied(ann, "approve a step that is over", merge(&path, approval(ann_name, "op-1")), waits).await;
    cases.denied(ann, "approve a step that is not there", merge(&path, approval(ann_name, "op-3")), waits).await;
    let mut born = remediation("born-approved", "worker-1");
    born["spec"]["approval"] =
        json!({"approvedBy": "system:serviceaccount:nrh-system:nrh-controller", "operationId": "op-1"});
    cases.denied(&all.controller, "open an approved remediation", create(REMEDIATIONS, born), right).await;
    let call = merge(format!("{path}/status"), json!({"status": {"phase": "Running"}}));
    cases.denied(ann, "write a status", call, "cannot patch resource").await;
    let pinned = "needs the verb update on noderemediations";
    let held = json!({"metadata": {"finalizers": ["runtimehealth.io/x"]}});
    cases.denied(ann, "change what holds a remediation", merge(&path, held), pinned).await;
    let owned =
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "y"}]}});
    cases.denied(ann, "have it collected", merge(&path, owned.clone()), pinned).await;
    let call = merge(&path, json!({"metadata": {"finalizers": ["example.org/x"]}}));
    cases.allowed(&all.admin, "whatever an administrator does", call).await;
    cases.allowed(&all.controller, "its own finalizer", merge(&path, json!({"metadata": {"finalizers": null}}))).await;
    given_and_taken_back(all, cases, &path, right).await;
    let moved = all.admin.send(&merge(&path, json!({"spec": {"nodeName": "worker-2"}}))).await;
    let is_refused = matches!(&moved, Err((422, message)) if message.contains("cannot be changed"));
    cases.note("a remediation of another node", is_refused, &format!("{moved:?}"));
    all.admin.must(&delete(path, Value::Null)).await?;
    Ok(())
}

/// Who may approve may also take that back; nobody takes it from somebody else.
async fn given_and_taken_back(all: &Callers, cases: &mut Cases, path: &str, right: &str) {
    let (ann, patcher, ann_name) = (&all.approver, &all.patcher, "system:serviceaccount:default:ann");
    cases.allowed(ann, "approve what waits", merge(path, approval(ann_name, "op-2"))).await;
    let call = merge(path, json!({"metadata": {"labels": {"a": "b"}}}));
    cases.allowed(patcher, "change something else of an approved remediation", call).await;
    let call = merge(path, json!({"spec": {"approval": null}}));
    cases.denied(patcher, "take an approval back without the right", call, right).await;
    cases.allowed(ann, "take it back", merge(path, json!({"spec": {"approval": null}}))).await;
    cases.allowed(ann, "approve it again", merge(path, approval(ann_name, "op-2"))).await;
    let call = merge(path, approval("admin", "op-2"));
    let said = "somebody else has approved this operation already";
    cases.denied(&all.admin, "approve what somebody else has", call, said).await;
}
