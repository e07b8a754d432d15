//! Who may have nodes handed to a remediator, and what the controller may do by the roles of others.

use anyhow::{Result, ensure};
use nrh::controller::hand_offs::rights::read;
use nrh::core::hand_off::TemplateRef;
use nrh_testbed::Bed;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::reach;
use crate::admission::requests::{Cases, create, delete, get, merge};
use crate::objects::{self, POLICIES};
use crate::plane;
use crate::remediators::{METAL, SELF_NODE, definitions, machine_rights, metal_role, template};

pub fn policy(name: &str, to: &[TemplateRef]) -> Value {
    let step = |template: &TemplateRef| json!({"action": "HandOff", "handOff": {"remediationTemplate": template}});
    let steps: Vec<Value> = to.iter().map(step).collect();
    objects::policy(name, "DiskFull", &json!(steps))
}

/// The kinds of two remediators, and the right to use one of them.
fn remediators_come(bed: &Bed) -> Result<()> {
    bed.kubectl(&["create", "namespace", "medik8s"])?;
    let verb = ["--verb=create", "--resource=selfnoderemediations.self-node-remediation.medik8s.io"];
    for (group, version, kind) in [
        ("self-node-remediation.medik8s.io", "v1alpha1", "SelfNodeRemediation"),
        ("infrastructure.cluster.x-k8s.io", "v1beta1", "Metal3Remediation"),
    ] {
        bed.apply(&definitions(group, version, kind))?;
    }
    bed.kubectl(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=180s"])?;
    bed.kubectl(&[&["create", "role", "reboots", "-n", "medik8s"], &verb[..]].concat())?;
    let to_olga = ["--role=reboots", "--serviceaccount=default:olga"];
    bed.kubectl(&[&["create", "rolebinding", "reboots", "-n", "medik8s"], &to_olga[..]].concat())?;
    Ok(())
}

/// A policy's author needs the right himself; what stands already needs no new one.
pub async fn by_those_who_may(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let olga = &all.operator;
    let own = [template(SELF_NODE, "SelfNodeRemediationTemplate")];
    let right =
        "needs the right himself to create selfnoderemediations.self-node-remediation.medik8s.io in namespace medik8s";
    cases.denied(olga, "hand off without the right", create(POLICIES, policy("reboots", &own)), right).await;
    for (kind, resource) in [
        ("Metal3RemediationTemplate", "create metal3remediations.infrastructure.cluster.x-k8s.io"),
        ("FixPolicyTemplate", "create fixpolicies."),
        ("BoxTemplate", "create boxes."),
        ("BatchTemplate", "create batches."),
        ("FenceClassTemplate", "create fenceclasses."),
    ] {
        let other = policy("others", &[template(METAL, kind)]);
        cases.denied(olga, kind, create(POLICIES, other), resource).await;
    }
    let many = ["A", "B", "C", "D"].map(|kind| template(METAL, &format!("{kind}Template")));
    let split = "to three kinds of objects at most";
    cases.denied(&all.admin, "four kinds at once", create(POLICIES, policy("many", &many)), split).await;
    cases.allowed(&all.admin, "three, whoever may all", create(POLICIES, policy("many", &many[..3]))).await;
    let call = create(POLICIES, policy("two", &[own[0].clone(), many[0].clone()]));
    cases.denied(olga, "a second one beside", call, "needs the right himself").await;

    remediators_come(bed)?;
    olga.until_allowed(&create(POLICIES, policy("reboots", &own))).await?;
    cases.note("hand off with the right", true, "");
    let mut elsewhere = own.clone();
    elsewhere[0].namespace = "elsewhere".into();
    let call = create(POLICIES, policy("far", &elsewhere));
    cases.denied(olga, "in another namespace", call, "in namespace elsewhere").await;

    // Without the right again: what stands may stand.
    bed.kubectl(&["delete", "rolebinding", "reboots", "-n", "medik8s"])?;
    olga.until_denied(&create(POLICIES, policy("again", &own))).await?;
    let path = format!("{POLICIES}/reboots");
    let spec = |value: Value| merge(&path, json!({"spec": value}));
    cases.allowed(olga, "label it", merge(&path, json!({"metadata": {"labels": {"a": "b"}}}))).await;
    cases.allowed(olga, "suspend it", spec(json!({"suspend": true}))).await;
    cases.allowed(olga, "limit it", spec(json!({"limits": {"maxInFlight": 2}}))).await;
    let status = merge(format!("{path}/status"), json!({"status": {"selected": 1}}));
    cases.allowed(&all.controller, "its status", status).await;
    let mut rules = policy("reboots", &own)["spec"]["rules"].clone();
    let tells = json!({"name": "tells", "match": {"faults": ["PidExhaustion"]}, "steps": [{"action": "Notify"}]});
    rules.as_array_mut().unwrap().push(tells);
    cases.allowed(olga, "another rule beside", spec(json!({"rules": rules}))).await;
    cases.denied(olga, "have it execute actions", spec(json!({"mode": "Enforce"})), right).await;
    cases.denied(olga, "on other nodes", spec(json!({"nodeSelector": {"matchLabels": {"a": "b"}}})), right).await;
    let mut wider = rules.clone();
    wider[0]["match"]["faults"] = json!(["DiskFull", "KubeletDown"]);
    cases.denied(olga, "for other faults", spec(json!({"rules": wider})), right).await;
    let mut sooner = rules.clone();
    sooner[0]["steps"][0]["handOff"]["remediationTemplate"]["name"] = json!("harsher");
    cases.denied(olga, "by another template", spec(json!({"rules": sooner})), right).await;
    rules[0]["steps"] = json!([{"action": "Notify"}]);
    cases.allowed(olga, "take it out", spec(json!({"rules": rules}))).await;
    for name in ["reboots", "many"] {
        all.admin.must(&delete(format!("{POLICIES}/{name}"), Value::Null)).await?;
    }
    reach::kept(all, cases, &policy("hands-off", &own), right).await
}

/// None by itself; those of the roles that carry our label, and with the sample those of the medik8s family.
pub async fn rights_of_the_controller(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let calls = all.controller.calls();
    let own = template(SELF_NODE, "SelfNodeRemediationTemplate");
    let metal = template(METAL, "Metal3RemediationTemplate");
    let object =
        json!({"apiVersion": SELF_NODE, "kind": "SelfNodeRemediation", "metadata": {"name": "worker-1"}, "spec": {}});
    let objects = format!("/apis/{SELF_NODE}/namespaces/medik8s/selfnoderemediations");
    cases.denied(&all.controller, "hand a node off", create(&objects, object.clone()), "cannot create resource").await;
    let lacks = read(&calls, &own).await?.lacks;
    let says = |lacks: &[String], part: &str| lacks.iter().any(|lack| lack.contains(part));
    let names =
        says(&lacks, "may not get selfnoderemediationtemplates.self-node-remediation.medik8s.io in namespace medik8s")
            && says(&lacks, "may not create, get, patch, delete selfnoderemediations.self-node-remediation.medik8s.io");
    cases.note("what the controller lacks is named", names, &format!("{lacks:?}"));
    let none = read(&calls, &template("none.example/v1", "NoneTemplate")).await?.lacks;
    let names = says(&none, "expected a kind NoneTemplate") && says(&none, "expected a kind None with");
    cases.note("a remediator that is not installed is named", names, &format!("{none:?}"));

    bed.kubectl(&["apply", "-f", &plane::folder("config/samples/hand-off-rights.yaml")])?;
    until_lacking(all, &own, Some("there is no such template")).await?;
    cases.note("a template that is not there is named", true, "");
    make_template(all, SELF_NODE, "SelfNodeRemediationTemplate", "selfnoderemediationtemplates").await?;
    until_lacking(all, &own, None).await?;
    cases.note("the role of the sample gives the rights", true, "");
    cases.note("and no others", !read(&calls, &metal).await?.lacks.is_empty(), "rights on Metal3Remediations");
    // That role counts once an administrator says so.
    all.admin.must(&create("/apis/rbac.authorization.k8s.io/v1/clusterroles", metal_role())).await?;
    make_template(all, METAL, "Metal3RemediationTemplate", "metal3remediationtemplates").await?;
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/nrh:hand-off";
    let given = all.admin.must(&get(role)).await?["rules"].to_string();
    cases.note("a role of the medik8s family gives nothing by itself", !given.contains("metal3remediations"), &given);
    let family = plane::folder("config/samples/hand-off-medik8s.yaml");
    bed.kubectl(&["apply", "-f", &family])?;
    until_lacking(all, &metal, Some("its remediator works on Machines; expected the kind Machine")).await?;
    cases.note("with the sample such a role gives them too, and Machines that are not there are named", true, "");
    bed.apply(&definitions("cluster.x-k8s.io", "v1beta1", "Machine"))?;
    until_lacking(all, &metal, Some("may not get machines.cluster.x-k8s.io in namespace medik8s")).await?;
    cases.note("the right to read Machines is named", true, "");
    bed.apply(&machine_rights())?;
    until_lacking(all, &metal, None).await?;
    cases.note("it comes from a role of the user's", true, "");
    cases.allowed(&all.controller, "hand a node off", create(&objects, object)).await;
    let one = format!("{objects}/worker-1");
    let mark = json!({"metadata": {"annotations": {"remediation.medik8s.io/nhc-timed-out": "2026-01-01T00:00:00Z"}}});
    cases.allowed(&all.controller, "say that its time is over", merge(&one, mark)).await;
    let status = merge(format!("{one}/status"), json!({"status": {"phase": "x"}}));
    cases.denied(&all.controller, "answer for the remediator", status, "cannot patch resource").await;
    cases.allowed(&all.controller, "check of it", get(&one)).await;
    cases.allowed(&all.controller, "delete it", delete(&one, Value::Null)).await;
    bed.kubectl(&["delete", "-f", &family])?;
    Ok(())
}

async fn make_template(all: &Callers, api_version: &str, kind: &str, plural: &str) -> Result<()> {
    let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "automatic"},
        "spec": {"template": {"spec": {}}}});
    all.admin.must(&create(format!("/apis/{api_version}/namespaces/medik8s/{plural}"), object)).await?;
    Ok(())
}

/// Until nothing is lacking, or this one thing.
async fn until_lacking(all: &Callers, template: &TemplateRef, only: Option<&str>) -> Result<()> {
    let calls = all.controller.calls();
    plane::soon(async || {
        let lacks = read(&calls, template).await?.lacks;
        let is_it = match (only, lacks.as_slice()) {
            (None, []) => true,
            (Some(part), [one]) => one.contains(part),
            _ => false,
        };
        ensure!(is_it, "expected the rights to be given by aggregation and {only:?} to be lacking, found {lacks:?}");
        Ok(())
    })
    .await
}
