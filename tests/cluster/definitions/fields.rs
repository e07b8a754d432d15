//! Each field of a policy, put out of its range: refused by a real API server, by name. What is tried follows from the schema, and
//! that no field is left out as well.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use http::Request;
use kube::Client;
use nrh::api::crds;
use nrh_testbed::Bed;
use serde_json::{Value, json};

/// Where policies are made; nothing of it stays.
const POLICIES: &str = "/apis/runtimehealth.io/v1alpha1/remediationpolicies?dryRun=All";

/// One value that is none, at one place.
struct Bad {
    path: String,
    policy: Value,
    what: &'static str,
}

/// Goes through a policy and its schema side by side.
struct Walk<'p> {
    whole: &'p Value,
    bad: Vec<Bad>,
    seen: BTreeSet<String>,
}

impl Walk<'_> {
    fn down(&mut self, pointer: &str, path: &str, general: &str, schema: &Value) {
        let here = self.whole.pointer(pointer).cloned().unwrap_or_default();
        self.seen.insert(general.to_owned());
        for (what, value) in out_of_range(schema, &here) {
            let mut policy = self.whole.clone();
            *policy.pointer_mut(pointer).unwrap() = value;
            self.bad.push(Bad { path: path.to_owned(), policy, what });
        }
        for (name, child) in schema["properties"].as_object().into_iter().flatten() {
            if here.get(name).is_some() {
                self.down(&format!("{pointer}/{name}"), &format!("{path}.{name}"), &format!("{general}.{name}"), child);
            }
        }
        for (name, _) in here.as_object().into_iter().flatten().filter(|_| schema["additionalProperties"].is_object()) {
            let child = &schema["additionalProperties"];
            self.down(&format!("{pointer}/{name}"), &format!("{path}.{name}"), &format!("{general}{{}}"), child);
        }
        for (i, _) in here.as_array().into_iter().flatten().enumerate() {
            self.down(&format!("{pointer}/{i}"), &format!("{path}[{i}]"), &format!("{general}[]"), &schema["items"]);
        }
    }
}

/// What the schema must not let through.
fn out_of_range(schema: &Value, here: &Value) -> Vec<(&'static str, Value)> {
    let number = |bound: &str| format!("{:.0}", schema[bound].as_f64()?).parse::<i64>().ok();
    let size = |bound: &str| schema[bound].as_u64().and_then(|bound| usize::try_from(bound).ok());
    let is_lenient = schema["x-kubernetes-int-or-string"] == true;
    let mut bad = vec![("of another type", if schema["type"] == "object" { json!("x") } else { json!({"x": 1}) })];
    bad.extend(number("minimum").map(|least| ("below the least", json!(least - 1))));
    bad.extend(number("maximum").map(|most| ("above the most", json!(most + 1))));
    bad.extend(size("maxLength").map(|most| ("too long", json!("x".repeat(most + 1)))));
    bad.extend(size("minLength").map(|least| ("too short", json!("x".repeat(least - 1)))));
    bad.extend(schema["enum"].is_array().then(|| ("none of those there are", json!("Nonsense"))));
    bad.extend(schema["pattern"].is_string().then(|| ("of another form", json!("{not a name}"))));
    bad.extend(size("minItems").map(|_| ("empty", json!([]))));
    if let (Some(most), Some(first)) = (size("maxItems"), here.get(0)) {
        bad.push(("too many", vec![first.clone(); most + 1].into()));
    }
    if let Some(most) = size("maxProperties") {
        let many: serde_json::Map<_, _> = (0..=most).map(|number| (format!("k{number}"), json!("v"))).collect();
        bad.push(("too many", many.into()));
    }
    if is_lenient {
        bad.extend([("negative", json!(-1)), ("more than all", json!("101%")), ("no percent", json!("many"))]);
    }
    // What has a rule instead of a bound: a duration.
    if schema["type"] == "string" && schema["x-kubernetes-validations"].to_string().contains("a duration") {
        bad.extend([
            ("too short a time", json!("0s")),
            ("too long a time", json!("24h1s")),
            ("no time", json!("soon")),
        ]);
    }
    bad
}

fn fields(general: &str, schema: &Value, all: &mut BTreeSet<String>) {
    all.insert(general.to_owned());
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        fields(&format!("{general}.{name}"), child, all);
    }
    if schema["additionalProperties"].is_object() {
        fields(&format!("{general}{{}}"), &schema["additionalProperties"], all);
    }
    if schema["items"].is_object() {
        fields(&format!("{general}[]"), &schema["items"], all);
    }
}

fn spec() -> Value {
    let (_, crd) = crds::all().into_iter().find(|(_, crd)| crd.spec.names.kind == "RemediationPolicy").unwrap();
    let schema = serde_json::to_value(crd.spec.versions[0].schema.as_ref().unwrap()).unwrap();
    schema["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// Everything that is to be refused. Fails where a field of the schema is not in the policy.
fn all_bad(policy: &Value) -> Vec<Bad> {
    let schema = spec();
    let mut walk = Walk { whole: policy, bad: Vec::new(), seen: BTreeSet::new() };
    walk.down("/spec", "spec", "spec", &schema);
    let mut all = BTreeSet::new();
    fields("spec", &schema, &mut all);
    let left: Vec<&String> = all.difference(&walk.seen).collect();
    assert!(left.is_empty(), "tests/cluster/definitions/policy.yaml has no {left:?}");
    walk.bad
}

pub async fn answer(client: &Client, policy: &Value) -> Result<(), String> {
    let request = Request::post(POLICIES).header("content-type", "application/json");
    let request = request.body(policy.to_string().into_bytes()).map_err(|error| error.to_string())?;
    match client.request::<Value>(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status.message.clone()),
        Err(error) => Err(error.to_string()),
    }
}

/// Each alone, on the API server.
pub fn out_of_range_is_refused_by_name(bed: &Bed) {
    let policy: Value = serde_saphyr::from_str(include_str!("policy.yaml")).unwrap();
    let all = all_bad(&policy);
    assert!(all.len() > 250, "{}", all.len());
    let wrong = bed
        .run(async |client| {
            answer(&client, &policy).await.map_err(anyhow::Error::msg).context("the policy itself")?;
            let mut wrong = Vec::new();
            for Bad { path, policy, what } in &all {
                match answer(&client, policy).await {
                    Ok(()) => wrong.push(format!("{path}: {what}: was taken")),
                    Err(said) if said.contains(path) => {}
                    Err(said) => wrong.push(format!("{path}: {what}: not named: {said}")),
                }
            }
            Ok(wrong)
        })
        .unwrap();
    println!("{} values out of range, each refused by the name of its field", all.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}
