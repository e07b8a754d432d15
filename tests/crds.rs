//! The definitions of our kinds: written from the types, bounded everywhere, explained everywhere, and taken by a
//! real API server, which refuses what makes no sense with a sentence.

use std::fs;
use std::path::{Path, PathBuf};

use nrh::api::{RemediationPolicy, convert, crds};
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All YAML files of a folder, in order.
fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension().is_some_and(|e| e == "yaml") && path.file_stem().is_some_and(|s| s != "kustomization")
        })
        .collect();
    found.sort();
    found
}

#[test]
fn the_files_are_what_the_code_says() {
    let mut expected: Vec<PathBuf> = Vec::new();
    for (file, crd) in crds::all() {
        let path = root().join("crds").join(file);
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert!(written == crds::yaml(&crd).unwrap(), "{} differs from the types: run `make crds`", path.display());
        expected.push(path);
    }
    expected.sort();
    assert_eq!(yaml_files("crds"), expected, "a definition that no type stands behind");
}

/// Calls `check` for every schema of every definition, with its path.
fn walk(check: &mut dyn FnMut(&str, &Value)) {
    fn down(path: &str, schema: &Value, check: &mut dyn FnMut(&str, &Value)) {
        check(path, schema);
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            down(&format!("{path}.{name}"), property, check);
        }
        if schema["items"].is_object() {
            down(&format!("{path}[]"), &schema["items"], check);
        }
        if schema["additionalProperties"].is_object() {
            down(&format!("{path}{{}}"), &schema["additionalProperties"], check);
        }
    }
    for (file, crd) in crds::all() {
        for version in &crd.spec.versions {
            let schema = serde_json::to_value(version.schema.as_ref().unwrap()).unwrap();
            down(file.trim_end_matches(".yaml"), &schema["openAPIV3Schema"], check);
        }
    }
}

#[test]
fn everything_has_a_bound() {
    let mut wrong = Vec::new();
    walk(&mut |path, schema| {
        let bounded = match schema["type"].as_str() {
            // The server checks the form of a date, and that bounds it.
            Some("string") => {
                schema["maxLength"].is_number() || schema["enum"].is_array() || schema["format"] == "date-time"
            }
            Some("array") => schema["maxItems"].is_number(),
            Some("object") => schema["additionalProperties"].is_null() || schema["maxProperties"].is_number(),
            Some("integer") => schema["minimum"].is_number() || path.ends_with("Generation"),
            Some("boolean") => true,
            None => schema["x-kubernetes-int-or-string"] == true && schema["maxLength"].is_number(),
            Some(_) => false,
        };
        if !bounded {
            wrong.push(path.to_owned());
        }
    });
    assert!(wrong.is_empty(), "a hostile value of any size would fit here: {wrong:#?}");
}

#[test]
fn every_field_is_explained() {
    let mut wrong = Vec::new();
    let mut fields = 0;
    walk(&mut |path, schema| {
        let field = path.contains('.') && !path.ends_with(']') && !path.ends_with('}');
        let words = schema["description"].as_str().unwrap_or_default().split_whitespace().count();
        fields += usize::from(field);
        if field && words < 3 {
            wrong.push(path.to_owned());
        }
        let text = schema["description"].as_str().unwrap_or_default().to_lowercase();
        if field && path.ends_with("Seconds") && !text.contains("second") {
            wrong.push(format!("{path}: no unit"));
        }
    });
    assert!(fields > 100, "expected all fields of three kinds, found {fields}");
    assert!(wrong.is_empty(), "`kubectl explain` has no answer for: {wrong:#?}");
}

#[test]
fn nothing_that_the_server_warns_about() {
    let known = ["date-time", "int32", "int64"];
    walk(&mut |path, schema| {
        let format = schema["format"].as_str();
        assert!(format.is_none_or(|format| known.contains(&format)), "{path}: unknown format {format:?}");
        // A null would count as present in CEL and hide a missing value.
        assert!(schema["nullable"].is_null(), "{path}");
    });
}

fn policy(text: &str) -> RemediationPolicy {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn every_policy_in_the_repository_is_valid() {
    let mut seen = 0;
    for path in ["config/policies", "config/policies/dry-run"]
        .into_iter()
        .flat_map(yaml_files)
        .chain([root().join("config/samples/policy.yaml")])
    {
        let read = convert::policy(&policy(&fs::read_to_string(&path).unwrap()));
        assert!(read.is_ok(), "{}: {read:?}", path.display());
        seen += 1;
    }
    assert!(seen >= 5);
}

#[test]
fn a_bare_policy_has_finite_limits() {
    let bare = policy(
        "{apiVersion: runtimehealth.io/v1alpha1, kind: RemediationPolicy, metadata: {name: bare},
          spec: {rules: [{name: r, match: {faults: [LeakedShim]}, steps: [{action: CleanupOrphans}]}]}}",
    );
    let read = convert::policy(&bare).unwrap();
    assert_eq!(read.limits.max_in_flight, nrh::core::policy::Amount::Count(1));
    assert_eq!(read.limits.max_unhealthy, nrh::core::policy::Amount::Percent(30));
    assert_eq!(read.mode, nrh::core::policy::Mode::DryRun);
}

#[test]
fn what_slips_past_the_server_is_found_with_all_its_errors() {
    let mut slipped = policy(&fs::read_to_string(root().join("config/samples/policy.yaml")).unwrap());
    let rule = &mut slipped.spec.rules[0];
    rule.steps[0].attempts = 9;
    rule.steps[0].verify.hold_for = nrh::api::HumanDuration::from_secs(3600);
    rule.steps[1].release_hung_process = None;
    let last = rule.steps.pop().unwrap();
    rule.steps.insert(0, last);
    let twin = rule.clone();
    slipped.spec.rules.push(twin);
    let errors = convert::policy(&slipped).unwrap_err().0;
    for sentence in [
        "name is used twice",
        "attempts: expected 1 to 5, found 9",
        "could never succeed",
        "releaseHungProcess: needed",
        "Notify ends the ladder",
    ] {
        assert!(errors.iter().any(|error| error.contains(sentence)), "{sentence}: {errors:#?}");
    }
}
