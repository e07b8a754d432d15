//! Files that cannot be used are named, with what was found in them.

use std::fs;
use std::path::Path;

use crate::simulate::{of_files, policies};

const TIMELINE: &str = "{nodes: [{name: w}], events: []}";

fn named(name: &str) -> String {
    format!(
        "{{apiVersion: runtimehealth.io/v1alpha1, kind: RemediationPolicy, metadata: {{name: {name}}}, spec: {{rules: [{{name: r, \
         match: {{faults: [DiskFull]}}, steps: [{{action: Notify}}]}}]}}}}"
    )
}

/// Why a policy of this text cannot be used.
fn refused(folder: &Path, policy: &str) -> String {
    let file = folder.join("policy.yaml");
    fs::write(&file, policy).unwrap();
    format!("{:#}", policies(&file).unwrap_err())
}

#[test]
fn two_policies_of_one_name_are_named_with_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["timeline.yaml", "a.yaml", "b.yaml"].map(|name| folder.path().join(name));
    for (file, text) in files.iter().zip([TIMELINE, &named("same"), &named("same")]) {
        fs::write(file, text).unwrap();
    }
    let [timeline, a, b] = &files;
    let error = of_files(timeline, &[a.clone(), b.clone()], false).unwrap_err().to_string();
    let said = format!("two policies of the name same, in {} and in {}: ", a.display(), b.display());
    assert!(error.contains(&said), "{error}");
}

#[test]
fn what_is_there_instead_of_a_policy_is_told() {
    let folder = tempfile::tempdir().unwrap();
    for (text, found) in [
        ("", "no object"),
        ("---\n", "no object"),
        ("kind: A\n---\nkind: B\n", "A, B"),
        ("x: 1", "an object without kind"),
    ] {
        let error = refused(folder.path(), text);
        assert!(error.ends_with(&format!("policy.yaml: found {found}")), "{text:?}: {error}");
    }
}

#[test]
fn what_cannot_be_read_hides_nothing_that_is_wrong_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let rule =
        |fields: &str| format!("{{name: same, match: {{faults: [DiskFull]}}, steps: [{{action: Notify, {fields}}}]}}");
    let rules = format!(
        "rules: [{}, {}], windows: [{{type: Allow, schedule: '0 25 * * *', duration: 1h}}]",
        rule("maxAttempts: x"),
        rule("timeout: 1s")
    );
    let text = named("p");
    let (start, _) = text.split_once("rules: ").unwrap();
    let error = refused(folder.path(), &format!("{start}{rules}}}}}"));
    for said in [
        "spec.rules[0].steps[0].maxAttempts: invalid type: string \"x\", expected a whole number",
        "spec.rules[0]: the name is used twice",
        "spec.windows[0].schedule: \"0 25 * * *\" is not a schedule: \"25\" is no hour (0-23)",
    ] {
        assert!(error.contains(said), "{said:?} is missing in:\n{error}");
    }
    // The rest of a rule may be wrong only because a part of it was removed.
    let typo = refused(folder.path(), &named("p").replace("faults: [DiskFull]", "faults: [DiskFul]"));
    assert!(typo.contains("did you mean DiskFull?") && !typo.contains("expected at least one of faults"), "{typo}");
}

#[test]
fn a_value_that_is_none_of_its_field_is_told_in_words_of_people() {
    let folder = tempfile::tempdir().unwrap();
    let with = |fields: &str| named("p").replace("spec: {", &format!("spec: {{{fields}, "));
    for (fields, said) in [
        ("priority: high", "spec.priority: invalid type: string \"high\", expected a whole number"),
        (
            "limits: {maxInFlight: -1}",
            "spec.limits.maxInFlight: expected a number from 0, or a percent in quotes such as \"30%\", found -1",
        ),
        (
            "windows: [{type: Allow, schedule: '0 2 * * *', duration: 30h}]",
            "spec.windows[0].duration: expected a duration from 1s to 24h, found \"30h\"",
        ),
    ] {
        let error = refused(folder.path(), &with(fields));
        assert!(error.ends_with(said), "{fields}: {error}");
    }
}
