//! A rule that needs a right gets more to do also when nobody touches it: by its place among the rules of its policy, and by
//! what its policy goes before.

use anyhow::Result;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::requests::{Cases, create, delete, merge};
use crate::objects::POLICIES;

/// A rule that tells people of these faults, and does nothing else.
fn tells(name: &str, faults: &Value) -> Value {
    json!({"name": name, "match": {"faults": faults}, "steps": [{"action": "Notify"}]})
}

/// Nobody without the right lets more faults come to the first rule of `policy`, whose steps need it. `right` is what the refusal
/// says.
pub async fn kept(all: &Callers, cases: &mut Cases, policy: &Value, right: &str) -> Result<()> {
    let (olga, name) = (&all.operator, policy["metadata"]["name"].as_str().unwrap_or_default());
    let path = format!("{POLICIES}/{name}");
    let (mut harsh, mut made) = (policy["spec"]["rules"][0].clone(), policy.clone());
    harsh["match"] = json!({"faults": ["HungContainer", "KubeletDown", "DiskFull"]});
    let (hung, full) = (tells("hung", &json!(["HungContainer"])), tells("full", &json!(["DiskFull"])));
    let last = tells("last", &json!(["PidExhaustion"]));
    let rules = |rules: &[&Value]| json!({"rules": rules});
    made["spec"] = rules(&[&hung, &full, &harsh, &last]);
    made["spec"]["priority"] = json!(10);
    all.admin.must(&create(POLICIES, made)).await?;

    let spec = |spec: Value| merge(&path, json!({"spec": spec}));
    let other = tells("hung", &json!(["LeakedShim"]));
    let mut narrowed = hung.clone();
    narrowed["match"]["namespaces"] = json!(["default"]);
    for (what, change) in [
        ("a rule before it goes", rules(&[&full, &harsh, &last])),
        ("all rules before it go", rules(&[&harsh, &last])),
        ("a rule before it is for other faults", rules(&[&other, &full, &harsh, &last])),
        ("a rule before it is for fewer pods", rules(&[&narrowed, &full, &harsh, &last])),
        ("it moves ahead", rules(&[&hung, &harsh, &full, &last])),
        ("it moves to the front", rules(&[&harsh, &hung, &full, &last])),
        ("it takes the name of the one before it", {
            let (mut first, mut second) = (harsh.clone(), full.clone());
            (first["name"], second["name"]) = (json!("full"), harsh["name"].clone());
            rules(&[&hung, &first, &second, &last])
        }),
        ("its policy goes before others", json!({"priority": 11})),
    ] {
        cases.denied(olga, &format!("{name}: {what}"), spec(change), right).await;
    }

    let mut resolves = hung.clone();
    resolves["steps"] = json!([{"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGCONT"}}]);
    resolves["name"] = json!("hung-and-healed");
    let more = tells("more", &json!(["KubeletDown"]));
    for (what, change) in [
        ("the rules before it change places", rules(&[&full, &hung, &harsh, &last])),
        ("a rule before it does something else", rules(&[&resolves, &full, &harsh, &last])),
        ("a rule behind it goes", rules(&[&hung, &full, &harsh])),
        ("its policy goes behind others", json!({"priority": 9})),
        ("another rule comes before it", rules(&[&more, &hung, &full, &harsh])),
    ] {
        cases.allowed(olga, &format!("{name}: {what}"), spec(change)).await;
    }
    let back = rules(&[&hung, &full, &harsh]);
    cases.denied(olga, &format!("{name}: what came before it goes again"), spec(back), right).await;
    all.admin.must(&delete(&path, Value::Null)).await?;
    as_large_as_may_be(all, cases, policy, right).await
}

/// The question is paid for in a policy with all the rules that it may have.
async fn as_large_as_may_be(all: &Callers, cases: &mut Cases, policy: &Value, right: &str) -> Result<()> {
    let (olga, name) = (&all.operator, policy["metadata"]["name"].as_str().unwrap_or_default());
    let path = format!("{POLICIES}/{name}");
    let rule = |number: usize| {
        let mut rule = policy["spec"]["rules"][0].clone();
        let namespaces: Vec<String> = (0..32).map(|other| format!("{}-{number}-{other}", "n".repeat(50))).collect();
        rule["name"] = json!(format!("{}-{number}", "r".repeat(60)));
        rule["match"] = json!({"faults": ["HungContainer"], "namespaces": namespaces});
        rule
    };
    let mut rules: Vec<Value> = (0..16).map(rule).collect();
    let mut made = policy.clone();
    made["spec"]["rules"] = json!(rules);
    all.admin.must(&create(POLICIES, made)).await?;
    let spec = |rules: &[Value]| merge(&path, json!({"spec": {"rules": rules, "limits": {"maxInFlight": 2}}}));
    cases.allowed(olga, &format!("{name}: limit sixteen rules"), spec(&rules)).await;
    cases.allowed(olga, &format!("{name}: take out the last of sixteen"), spec(&rules[..15])).await;
    rules.swap(13, 14);
    cases.denied(olga, &format!("{name}: exchange two of fifteen"), spec(&rules[..15]), right).await;
    all.admin.must(&delete(&path, Value::Null)).await?;
    Ok(())
}
