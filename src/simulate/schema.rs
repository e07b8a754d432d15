//! What the definition of policies refuses before anything reads them: as the API server does where a policy is applied, and together,
//! so that a file with three slips is not mended three times.
//!
//! Of one plain value instead of another serde says more, so that is left to it; rules in CEL are the API server's alone.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use regex::Regex;
use serde_json::{Map, Value};

use crate::api::policy::unknown_name;
use crate::api::{RemediationPolicy, crds};
use crate::core::matching::LABEL_KEY;
use crate::core::text::bounded;
use kube::CustomResourceExt;

/// Longest value that is repeated, in bytes.
const SHOWN: usize = 64;
/// What every object may have beside what its definition names.
const OF_EACH: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Everything that the definition refuses in a policy: `spec.priority: expected at most 1000, found 5000`. Fields that it does not know
/// are taken out, so that the rest can be read.
pub fn wrong(policy: &mut Value) -> Vec<String> {
    let mut found = Vec::new();
    let (Some(schema), Some(object)) = (definition(), policy.as_object_mut()) else { return found };
    let known = schema.properties.unwrap_or_default();
    let names = || known.keys().map(String::as_str).chain(OF_EACH.into_iter().filter(|one| !known.contains_key(*one)));
    object.retain(|field, value| {
        match known.get(field) {
            _ if OF_EACH.contains(&field.as_str()) || field == "status" => return true,
            Some(schema) => check(value, schema, field, &mut found),
            None => found.push(no_field(field, names())),
        }
        known.contains_key(field)
    });
    found
}

/// The one of policies, with the bounds that every definition gets.
fn definition() -> Option<JSONSchemaProps> {
    let name = RemediationPolicy::crd_name();
    let (_, definition) = crds::all().into_iter().find(|(_, one)| one.metadata.name.as_deref() == Some(name))?;
    definition.spec.versions.into_iter().next()?.schema?.open_api_v3_schema
}

fn check(value: &mut Value, schema: &JSONSchemaProps, at: &str, found: &mut Vec<String>) {
    match value {
        Value::String(_) | Value::Number(_) | Value::Bool(_) if is_compound(schema) => {
            let shown = bounded(&value.to_string(), SHOWN);
            found.push(format!("{at}: expected {}, found {shown}", form(schema, Some(value))));
        }
        Value::Object(fields) => of_object(fields, schema, at, found),
        Value::Array(items) => of_array(items, schema, at, found),
        Value::String(text) => of_text(text, schema, at, found),
        Value::Number(number) => {
            let is = number.as_f64().unwrap_or_default();
            let bounds = [
                schema.minimum.filter(|least| is < *least).map(|least| format!("at least {least}")),
                schema.maximum.filter(|most| is > *most).map(|most| format!("at most {most}")),
            ];
            found.extend(bounds.into_iter().flatten().map(|bound| format!("{at}: expected {bound}, found {number}")));
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// Whether the schema is of a list, or of an object with fields.
fn is_compound(schema: &JSONSchemaProps) -> bool {
    let kind = schema.type_.as_deref();
    kind == Some("array") || (kind == Some("object") && schema.properties.is_some())
}

/// How a list or an object of this schema is written: `{message: …}`, or a list of the one value that was found instead.
fn form(schema: &JSONSchemaProps, found: Option<&Value>) -> String {
    match (&schema.items, &schema.properties) {
        (Some(JSONSchemaPropsOrArray::Schema(of_each)), _) if is_compound(of_each) => {
            format!("a list of {}", form(of_each, None))
        }
        (Some(_), _) => {
            let item = found.map(|found| found.as_str().map_or_else(|| found.to_string(), ToOwned::to_owned));
            item.map_or_else(|| "a list".to_owned(), |item| format!("a list, write [{}]", bounded(&item, SHOWN)))
        }
        (None, Some(fields)) => {
            let fields: Vec<String> = fields.keys().map(|field| format!("{field}: …")).collect();
            format!("{{{}}}", fields.join(", "))
        }
        (None, None) => "a list".to_owned(),
    }
}

fn of_object(fields: &mut Map<String, Value>, schema: &JSONSchemaProps, at: &str, found: &mut Vec<String>) {
    out_of_bounds(fields.len(), (schema.min_properties, schema.max_properties), at, found);
    let labels = at.ends_with(".matchLabels");
    fields.retain(|field, value| {
        let at = format!("{at}.{}", bounded(field, SHOWN));
        let known = schema.properties.as_ref().and_then(|known| known.get(field));
        match (known, &schema.additional_properties, &schema.properties) {
            (Some(schema), _, _) => check(value, schema, &at, found),
            (None, Some(JSONSchemaPropsOrBool::Schema(schema)), _) => {
                if labels && !fits(LABEL_KEY, field) {
                    found.push(format!(
                        "{at}: expected the key of a label, such as pool or node.kubernetes.io/instance-type"
                    ));
                }
                check(value, schema, &at, found);
            }
            (None, _, Some(known)) => {
                found.push(no_field(&at, known.keys().map(String::as_str)));
                return false;
            }
            // Of what is not described nothing is refused.
            (None, _, None) => {}
        }
        true
    });
}

fn of_array(items: &mut [Value], schema: &JSONSchemaProps, at: &str, found: &mut Vec<String>) {
    out_of_bounds(items.len(), (schema.min_items, schema.max_items), at, found);
    let Some(JSONSchemaPropsOrArray::Schema(of_each)) = &schema.items else { return };
    for (number, item) in items.iter_mut().enumerate() {
        check(item, of_each, &format!("{at}[{number}]"), found);
    }
}

fn of_text(text: &str, schema: &JSONSchemaProps, at: &str, found: &mut Vec<String>) {
    let shown = bounded(text, SHOWN);
    let known: Vec<&str> = schema.enum_.iter().flatten().filter_map(|one| one.0.as_str()).collect();
    if !known.is_empty() && !known.contains(&text) {
        found.push(format!("{at}: {}", unknown_name(text, &known)));
        return;
    }
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(least) = schema.min_length.filter(|least| length < *least) {
        found.push(format!("{at}: expected at least {least} characters, found {shown:?}"));
    } else if let Some(most) = schema.max_length.filter(|most| length > *most) {
        found.push(format!("{at}: expected at most {most} characters, found {length}: {shown:?}"));
    } else if let Some(pattern) = schema.pattern.as_deref().filter(|pattern| !fits(pattern, text)) {
        found.push(format!("{at}: expected a text like `{pattern}`, found {shown:?}"));
    }
}

fn out_of_bounds(count: usize, (least, most): (Option<i64>, Option<i64>), at: &str, found: &mut Vec<String>) {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    if let Some(least) = least.filter(|least| count < *least) {
        found.push(format!("{at}: expected at least {least}, found {count}"));
    }
    if let Some(most) = most.filter(|most| count > *most) {
        found.push(format!("{at}: expected at most {most}, found {count}"));
    }
}

fn no_field<'n>(at: &str, known: impl Iterator<Item = &'n str>) -> String {
    format!("{at}: there is no such field, expected one of {}", known.collect::<Vec<_>>().join(", "))
}

/// Whether the text is like the pattern; a pattern that cannot be read asks for nothing.
fn fits(pattern: &str, text: &str) -> bool {
    Regex::new(pattern).map_or(true, |pattern| pattern.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(policy: &str) -> Vec<String> {
        wrong(&mut serde_saphyr::from_str(policy).unwrap())
    }

    #[test]
    fn every_slip_is_told_at_its_place() {
        let all = complaints(
            "{apiVersion: a, kind: b, metadata: {whatever: 1}, specs: {}, spec: {mod: Enforce, priority: 5000, nodeSelector: {matchLabels: \
             {blue team: x, pool: 'a b', colour: ok}}, limits: {perTopology: [{topologyKey: '', maxInFlight: 1}]}, rules: [{name: r, match: \
             {faults: [HungContainre], podSelector: {matchExpressions: [{key: -app, operator: Exists}]}}, steps: [{action: Notify, \
             atempts: 1}]}]}}",
        );
        let expected = [
            "spec.limits.perTopology[0].topologyKey: expected at least 1 characters, found \"\"",
            "spec.mod: there is no such field, expected one of history, limits, mode, ",
            "spec.nodeSelector.matchLabels.blue team: expected the key of a label",
            "spec.nodeSelector.matchLabels.pool: expected a text like `",
            "spec.priority: expected at most 1000, found 5000",
            "spec.rules[0].match.faults[0]: found \"HungContainre\", did you mean HungContainer? expected one of ",
            "spec.rules[0].match.podSelector.matchExpressions[0].key: expected a text like `",
            "spec.rules[0].steps[0].atempts: there is no such field, expected one of action, ",
            "specs: there is no such field, expected one of spec, status, apiVersion",
        ];
        for sentence in expected {
            assert!(all.iter().any(|one| one.starts_with(sentence)), "{sentence} is missing in {all:#?}");
        }
        assert_eq!(all.len(), expected.len(), "{all:#?}");
    }

    #[test]
    fn what_has_to_have_something_in_it_may_be_left_out_and_not_be_empty() {
        let all = complaints(
            "{spec: {rules: [{name: r, match: {faults: [DiskFull], ownerKinds: [], runtimes: []}, steps: []}]}}",
        );
        for field in ["match.ownerKinds", "match.runtimes", "steps"] {
            let sentence = format!("spec.rules[0].{field}: expected at least 1, found 0");
            assert!(all.contains(&sentence), "{sentence:?} is missing in {all:#?}");
        }
    }

    #[test]
    fn one_value_instead_of_a_list_or_of_fields_is_told_how_to_write_it() {
        let all = complaints(
            "{spec: {rules: [{name: r, match: {faults: HungContainer}, steps: [{action: Notify, notify: text, verify: 5s}]}, {name: s, \
             match: {faults: [DiskFull]}, steps: Notify}], windows: 7}}",
        );
        let expected = [
            "spec.rules[0].match.faults: expected a list, write [HungContainer], found \"HungContainer\"",
            "spec.rules[0].steps[0].notify: expected {message: …}, found \"text\"",
            "spec.rules[0].steps[0].verify: expected {stableFor: …}, found \"5s\"",
            "spec.rules[1].steps: expected a list of {action: …, ",
            "spec.windows: expected a list of {actions: …, ",
        ];
        assert_eq!(all.len(), expected.len(), "{all:#?}");
        for sentence in expected {
            assert!(all.iter().any(|one| one.starts_with(sentence)), "{sentence} is missing in {all:#?}");
        }
    }

    #[test]
    fn every_pattern_of_the_definition_can_be_read() {
        fn patterns(of: &JSONSchemaProps, all: &mut Vec<String>) {
            all.extend(of.pattern.clone());
            of.properties.iter().flat_map(|known| known.values()).for_each(|one| patterns(one, all));
            if let Some(JSONSchemaPropsOrArray::Schema(one)) = &of.items {
                patterns(one, all);
            }
            if let Some(JSONSchemaPropsOrBool::Schema(one)) = &of.additional_properties {
                patterns(one, all);
            }
        }
        let mut all = vec![LABEL_KEY.to_owned()];
        patterns(&definition().unwrap(), &mut all);
        assert!(all.len() > 10, "{all:?}");
        for pattern in all {
            assert!(Regex::new(&pattern).is_ok(), "{pattern} would ask for nothing");
        }
    }

    #[test]
    fn nothing_is_found_where_nothing_is_to_be_found() {
        assert_eq!(complaints(include_str!("../../config/samples/policy.yaml")), Vec::<String>::new());
        assert_eq!(
            complaints("{spec: {priority: null, mode: true}}"),
            Vec::<String>::new(),
            "serde says more of types"
        );
        assert_eq!(wrong(&mut Value::Null), Vec::<String>::new());
    }
}
