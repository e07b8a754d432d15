//! Who may start a remediation by hand and who may cancel one, in whose name, and what nobody changes afterwards.

use anyhow::Result;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::requests::{Call, Caller, Cases, create, delete, merge};
use crate::objects::{REMEDIATIONS, remediation};

/// What makes a valid request one that must be refused.
type Change = fn(&mut Value);

const STAN: &str = "system:serviceaccount:default:stan";

fn manual(name: &str, by: &str) -> Value {
    let mut object = remediation(name, "worker-1");
    object["spec"]["manual"] = json!({"requestedBy": by, "fault": "OrphanContainer", "action": "CleanupOrphans"});
    object
}

fn cancel(by: &str) -> Value {
    json!({"spec": {"cancel": {"cancelledBy": by, "reason": "no"}}})
}

/// What the schema refuses.
async fn invalid(by: &Caller, cases: &mut Cases, what: &str, call: &Call, said: &str) {
    let answer = by.send(call).await;
    let is_refused = matches!(&answer, Err((422, message)) if message.contains(said));
    cases.note(what, is_refused, &format!("{answer:?}"));
}

/// Started in their own name, by two rights, under a name that operations can carry; and by nobody else.
pub async fn started(all: &Callers, cases: &mut Cases) -> Result<()> {
    let (stan, ann) = (&all.requester, &all.approver);
    let ask = |name: &str, by: &str| create(REMEDIATIONS, manual(name, by));
    // The role may take a moment to be known.
    stan.until_allowed(&ask("by-hand-first", STAN)).await?;
    cases.allowed(stan, "start a step manually", ask("by-hand", STAN)).await;
    let mut generated = manual("x", STAN);
    generated["metadata"] = json!({"generateName": "worker-1-by-hand-"});
    cases.allowed(stan, "the same under a generated name", create(REMEDIATIONS, generated)).await;

    let name = "expected your own name, system:serviceaccount:default:stan";
    cases.denied(stan, "start in another's name", ask("by-hand-w1", "bob"), name).await;
    cases.denied(&all.admin, "the same as an administrator", ask("by-hand-w2", STAN), "expected your own name").await;
    let by_controller = "the controller makes no manual requests";
    let controller = "system:serviceaccount:nrh-system:nrh-controller";
    cases.denied(&all.controller, "manual request", ask("by-hand-w3", controller), by_controller).await;
    cases.denied(ann, "start with the right to approve alone", ask("by-hand-w4", STAN), "cannot create resource").await;
    let rights = "needs the verbs remediate and approve on noderemediations";
    let patcher = "system:serviceaccount:default:patcher";
    cases.denied(&all.patcher, "start with the right to create alone", ask("by-hand-w5", patcher), rights).await;
    cases.denied(&all.pod, "manual request", ask("by-hand-w6", STAN), "cannot create resource").await;
    let opened = "the controller starts remediations";
    let call = create(REMEDIATIONS, remediation("by-hand-w7", "worker-1"));
    cases.denied(stan, "open a remediation without a manual request", call, opened).await;
    let call = create(REMEDIATIONS, remediation("by-hand-w8", "worker-1"));
    cases.denied(&all.admin, "the same as an administrator", call, opened).await;
    cases.allowed(&all.controller, "open a remediation", create(REMEDIATIONS, remediation("opened", "worker-1"))).await;

    for bad in ["by.hand", &"x".repeat(51)] {
        let said = "expected at most 50 lower-case letters, digits and dashes";
        invalid(stan, cases, "a name that operations cannot carry", &ask(bad, STAN), said).await;
    }
    let refused: [(&str, Change, &str); 4] = [
        ("a finalizer", |it| it["metadata"]["finalizers"] = json!(["example.org/x"]), "no owners and no finalizers"),
        ("a dry run", |it| it["spec"]["mode"] = json!("DryRun"), "expected mode Enforce"),
        ("an end within seconds", |it| it["spec"]["manual"]["startTimeout"] = json!("10s"), "must be at least 1m"),
        ("an action that is none", |it| it["spec"]["manual"]["action"] = json!("PowerOff"), "Unsupported value"),
    ];
    for (what, change, said) in refused {
        let mut object = manual("by-hand-w9", STAN);
        change(&mut object);
        invalid(stan, cases, &format!("a manual request with {what}"), &create(REMEDIATIONS, object), said).await;
    }

    let path = format!("{REMEDIATIONS}/by-hand");
    let stays = "a manual request cannot be changed";
    for change in [json!({"action": "RestartRuntime"}), json!({"requestedBy": "bob"}), Value::Null] {
        let call = merge(&path, json!({"spec": {"manual": change}}));
        invalid(stan, cases, "change what was wanted", &call, stays).await;
        invalid(&all.controller, cases, "change it as the controller", &call, stays).await;
    }
    let late = merge(
        format!("{REMEDIATIONS}/opened"),
        json!({"spec": {"manual": {"requestedBy": STAN, "fault": "OrphanContainer", "action": "CleanupOrphans"}}}),
    );
    invalid(stan, cases, "a manual request for a remediation of the controller's", &late, stays).await;
    let call = merge(format!("{path}/status"), json!({"status": {"phase": "Running"}}));
    cases.denied(stan, "write a status", call, "cannot patch resource").await;
    // As the controller begins one.
    let begun = json!({"metadata": {"finalizers": ["runtimehealth.io/remediation"], "labels": {"app.kubernetes.io/part-of": "nrh"}}});
    cases.allowed(&all.controller, "keep it from vanishing", merge(&path, begun)).await;
    let status = json!({"status": {"phase": "Running", "startedAt": "2026-01-01T00:00:00Z"}});
    cases.allowed(&all.controller, "make it a remediation", merge(format!("{path}/status"), status)).await;
    cases.allowed(&all.controller, "let it go", merge(&path, json!({"metadata": {"finalizers": null}}))).await;
    Ok(())
}

/// Cancelled in their own name, by right, once and for good, before its end.
pub async fn cancelled(all: &Callers, cases: &mut Cases) -> Result<()> {
    let (ann, patcher) = (&all.approver, &all.patcher);
    let (ann_name, patcher_name) = ("system:serviceaccount:default:ann", "system:serviceaccount:default:patcher");
    let path = format!("{REMEDIATIONS}/by-hand");
    let right = "needs the verb cancel on noderemediations";
    cases.denied(patcher, "cancel without the right", merge(&path, cancel(patcher_name)), right).await;
    let controller = "system:serviceaccount:nrh-system:nrh-controller";
    cases.denied(&all.controller, "cancel a remediation manually", merge(&path, cancel(controller)), right).await;
    cases.denied(&all.pod, "cancel as a probe", merge(&path, cancel(ann_name)), "cannot patch resource").await;
    let name = "expected your own name, system:serviceaccount:default:ann";
    cases.denied(ann, "cancel in another's name", merge(&path, cancel("bob")), name).await;
    let mut born = remediation("born-cancelled", "worker-1");
    born["spec"]["cancel"] = json!({"cancelledBy": controller});
    cases.denied(&all.controller, "open a cancelled remediation", create(REMEDIATIONS, born), right).await;
    let ended = format!("{REMEDIATIONS}/opened/status");
    let over = json!({"status": {"phase": "Succeeded", "startedAt": "2026-01-01T00:00:00Z"}});
    all.controller.must(&merge(&ended, over)).await?;
    let call = merge(format!("{REMEDIATIONS}/opened"), cancel(ann_name));
    cases.denied(ann, "cancel what is over", call, "expected a remediation that is not at its end").await;
    cases.allowed(ann, "cancel what runs", merge(&path, cancel(ann_name))).await;
    let stays = "a cancelled remediation stays cancelled";
    for change in [Value::Null, json!({"cancelledBy": ann_name, "reason": "another"})] {
        let call = merge(&path, json!({"spec": {"cancel": change}}));
        invalid(ann, cases, "take a no back, or change it", &call, stays).await;
    }
    let call = merge(&path, json!({"metadata": {"labels": {"a": "b"}}}));
    cases.allowed(patcher, "change something else of a cancelled remediation", call).await;
    let waiting = format!("{REMEDIATIONS}/by-hand-first");
    let olga = json!({"spec": {"cancel": {"cancelledBy": "system:serviceaccount:default:olga"}}});
    cases.allowed(&all.operator, "take back a manual request", merge(&waiting, olga)).await;
    all.admin.must(&delete(REMEDIATIONS, Value::Null)).await?;
    Ok(())
}
