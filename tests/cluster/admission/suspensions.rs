//! Who suspends a node, and who lifts that: anybody with the right to change its object, in their own name.

use anyhow::Result;
use nrh_testbed::Bed;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::requests::{Call, Cases, create, delete, get, merge, report};
use crate::objects::{REPORTS, ours};
use crate::plane;

const OLGA: &str = "system:serviceaccount:default:olga";
const SAID: &str = "spec.suspendedBy: expected your own name with spec.suspend and spec.reason, ";

fn spec(value: &Value) -> Call {
    merge(report("worker-2"), json!({ "spec": value }))
}

/// Who suspends nodes takes no report away by what hangs on it; who may delete it may, and so may the garbage collector.
pub async fn owned(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let (olga, admin, path) = (&all.operator, &all.admin, report("worker-2"));
    let said = "to change finalizers or owners of a report needs the verb delete";
    let before = admin.must(&get(&path)).await?["metadata"]["ownerReferences"].clone();
    let metadata = |value: Value| merge(&path, json!({ "metadata": value }));
    let mut other = before.clone();
    other[0]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    for (what, value) in [
        ("another owner of a report", json!({"ownerReferences": other})),
        ("a report without an owner", json!({"ownerReferences": null})),
        ("a report that cannot go", json!({"finalizers": ["example.org/keep"]})),
    ] {
        cases.denied(olga, what, metadata(value), said).await;
    }
    cases.allowed(olga, "a label of a report", metadata(json!({"labels": {"seen": "yes"}}))).await;
    let call = metadata(json!({"finalizers": ["example.org/keep"]}));
    cases.allowed(admin, "a finalizer, whoever may delete it", call).await;
    cases.denied(olga, "a finalizer off", metadata(json!({"finalizers": null})), said).await;
    cases.allowed(admin, "the finalizer off, whoever may delete it", metadata(json!({"finalizers": null}))).await;
    cases.allowed(admin, "no owner, whoever may delete it", metadata(json!({"ownerReferences": null}))).await;
    cases.allowed(admin, "the owner again", metadata(json!({"ownerReferences": before}))).await;
    // Deleted in the foreground it goes by a finalizer that the garbage collector takes off.
    admin.must(&create(REPORTS, ours("NodeRuntimeHealth", "born", json!({})))).await?;
    bed.kubectl(&["delete", "noderuntimehealth", "born", "--cascade=foreground", "--timeout=600s"])?;
    cases.note("the garbage collector takes its finalizer off", true, "");
    Ok(())
}

/// In their own name, whatever they say; and an object from before anybody was named can be kept and changed.
pub async fn signed(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let (olga, admin) = (&all.operator, &all.admin);
    let expected = format!("{SAID}{OLGA} (nrh suspend writes it");
    cases.denied(olga, "suspend in another's", spec(&json!({"suspend": true, "suspendedBy": "ann"})), &expected).await;
    cases.denied(olga, "write a reason in nobody's name", spec(&json!({"reason": "x"})), &expected).await;
    cases.denied(olga, "name another", spec(&json!({"suspendedBy": "ann"})), &expected).await;
    let born = create(REPORTS, ours("NodeRuntimeHealth", "born", json!({"suspend": true})));
    cases.allowed(admin, "make a suspended one", born).await;
    cases.allowed(admin, "take it away", delete(report("born"), Value::Null)).await;
    // A brake that a script pulls holds, whoever it was; and it stays nobody's, until somebody suspends in his own name.
    cases.allowed(olga, "suspend in nobody's name", spec(&json!({"suspend": true, "reason": "x"}))).await;
    cases.allowed(admin, "write another reason in nobody's name", spec(&json!({"reason": "y"}))).await;
    cases.denied(admin, "name another for it", spec(&json!({"suspendedBy": "ann"})), SAID).await;
    cases.allowed(admin, "lift it", spec(&json!({"suspend": false, "reason": null}))).await;
    let suspension = json!({"suspend": true, "suspendedBy": OLGA, "reason": "disk swap"});
    cases.allowed(olga, "suspend in her own name", spec(&suspension)).await;
    cases.denied(admin, "put other words into her mouth", spec(&json!({"reason": "none"})), SAID).await;
    cases.denied(admin, "take her name off", spec(&json!({"suspendedBy": null})), SAID).await;
    cases.denied(admin, "lift it in her name", spec(&json!({"suspend": false})), SAID).await;
    let label = |value: &str| merge(report("worker-2"), json!({"metadata": {"labels": {"a": value}}}));
    cases.allowed(admin, "change something else of a suspended node", label("b")).await;
    cases.allowed(olga, "lift her own", spec(&json!({"suspend": false}))).await;
    cases.denied(admin, "suspend it again in her name", spec(&json!({"suspend": true})), SAID).await;
    cases.denied(admin, "suspend it in another's", spec(&json!({"suspend": true, "suspendedBy": "ann"})), SAID).await;
    cases.allowed(olga, "suspend it again", spec(&json!({"suspend": true}))).await;
    let call = spec(&json!({"suspend": false, "suspendedBy": null, "reason": null}));
    cases.allowed(admin, "lift what she has", call).await;

    // One from before the name was asked for.
    let binding = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/nrh-exclusions";
    admin.must(&delete(binding, Value::Null)).await?;
    olga.until_allowed(&spec(&json!({"suspend": true, "reason": "long ago"}))).await?;
    bed.kubectl(&["apply", "-f", &plane::folder("config/admission/exclusions.yaml")])?;
    olga.until_denied(&spec(&json!({"suspendedBy": "ann"}))).await?;
    cases.allowed(olga, "change something else of an object from before", label("c")).await;
    let (found, stood) =
        (admin.must(&get(report("worker-2"))).await?["spec"].clone(), json!({"suspend": true, "reason": "long ago"}));
    cases.note("its exclusion stands", found == stood, &found.to_string());
    cases.allowed(olga, "change its reason in nobody's name", spec(&json!({"reason": "x"}))).await;
    cases.allowed(olga, "lift it", spec(&json!({"suspend": false}))).await;
    let call = merge(format!("{}/status", report("worker-2")), json!({"status": {"kubeletVersion": "v1.36.0"}}));
    cases.allowed(&all.controller, "change what else hangs on it", call).await;
    Ok(())
}
