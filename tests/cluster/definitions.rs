//! Our definitions on a real API server: taken without a warning, and what makes no sense is refused with a sentence.

mod fields;
mod ranges;
mod windows;

use std::fs;
use std::process::Output;

use nrh::api::crds;
use nrh_testbed::Bed;
use serde_json::{Value, json};

use crate::objects::{ours, remediation};
use crate::plane::{self, folder};

fn kubectl(bed: &Bed, args: &[&str]) -> Output {
    bed.command("kubectl").args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Applies and asserts success without a word on standard error.
fn applies(bed: &Bed, args: &[&str]) {
    let output = kubectl(bed, args);
    assert!(output.status.success(), "kubectl {args:?}: {}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "a warning of the server to kubectl {args:?}");
}

#[test]
fn takes_the_definitions_and_refuses_what_makes_no_sense() {
    let Some(bed) = plane::up("definitions") else { return };
    established(&bed);
    good_policies(&bed);
    bad_policies(&bed);
    fields::out_of_range_is_refused_by_name(&bed);
    ranges::that_hold_nothing_are_refused(&bed);
    windows::schedules_like_the_parser(&bed);
    windows::zones_like_the_parser(&bed);
    windows::that_stand_are_let_be(&bed, &folder("crds"));
    hostile_reports(&bed);
    explained(&bed);
    immutable_remediations(&bed);
    bed.down().unwrap();
}

fn established(bed: &Bed) {
    let crds = folder("crds");
    applies(bed, &["apply", "-k", &crds]);
    applies(bed, &["apply", "--server-side", "--force-conflicts", "-k", &crds]);
    for (_, crd) in crds::all() {
        let name = format!("crd/{}", crd.metadata.name.as_deref().unwrap());
        applies(bed, &["wait", "--for=condition=Established", "--timeout=180s", &name]);
        let object = bed.get(&[&name]).unwrap();
        for condition in object["status"]["conditions"].as_array().unwrap() {
            let good = ["Established", "NamesAccepted"].contains(&condition["type"].as_str().unwrap());
            assert!(good && condition["status"] == "True", "{name}: {condition}");
        }
    }
}

fn good_policies(bed: &Bed) {
    applies(bed, &["apply", "-k", &folder("config/policies/dry-run")]);
    applies(bed, &["apply", "-k", &folder("config/policies")]);
    applies(bed, &["apply", "--server-side", "--force-conflicts", "-k", &folder("config/policies")]);
    for sample in ["policy", "hand-off", "drain", "taint", "reboot", "mark-for-reboot"] {
        applies(bed, &["apply", "--dry-run=server", "-f", &folder(&format!("config/samples/{sample}.yaml"))]);
    }
}

fn bad_policies(bed: &Bed) {
    let files = fs::read_dir(folder("tests/cluster/definitions/refused")).unwrap();
    let texts = files.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    let rows: Vec<Value> = texts.flat_map(|text| serde_saphyr::from_str::<Vec<Value>>(&text).unwrap()).collect();
    assert!(rows.len() >= 95, "{}", rows.len());
    for row in rows {
        let (name, sentence) = (row["name"].as_str().unwrap(), row["refused"].as_str().unwrap());
        let policy = ours("RemediationPolicy", &format!("bad-{name}"), row["spec"].clone());
        match bed.apply(&policy) {
            Ok(()) => panic!("{name}: was taken"),
            Err(found) => assert!(found.to_string().contains(sentence), "{name}: expected {sentence:?}, found {found}"),
        }
    }
}

fn fault(number: usize) -> Value {
    json!({"id": format!("hungcontainer-{number}"), "type": "HungContainer", "severity": "High", "state": "Confirmed",
        "subject": {"kind": "Container"}, "message": "m", "firstSeen": "2026-01-01T00:00:00Z"})
}

fn hostile_reports(bed: &Bed) {
    bed.apply(&ours("NodeRuntimeHealth", "hostile", json!({}))).unwrap();
    let patch = |status: Value| {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), json!({"status": status}).to_string()).unwrap();
        let path = file.path().display().to_string();
        kubectl(bed, &["patch", "nrh", "hostile", "--subresource=status", "--type=merge", "--patch-file", &path])
    };
    let fits: Vec<Value> = (0..64).map(fault).collect();
    let output = patch(json!({"faults": fits}));
    assert!(output.status.success(), "64 faults: {}", said(&output));

    let megabyte = "x".repeat(1 << 20);
    let with = |field: &str, value: Value| {
        let mut one = fault(0);
        one[field] = value;
        json!({"faults": [one]})
    };
    let cases = [
        ("10,000 faults", json!({"faults": (0..10_000).map(fault).collect::<Vec<_>>()}), "must have at most 64 items"),
        ("a megabyte of message", with("message", json!(megabyte)), "may not be more than 512"),
        ("a megabyte of date", with("firstSeen", json!(megabyte)), "date-time"),
        ("a thousand lines of evidence", with("evidence", json!(vec!["x"; 1000])), "must have at most 8 items"),
        ("a fault of another world", with("type", json!("Ghost")), "Unsupported value"),
        (
            "process number 1",
            with(
                "target",
                json!({"process": {"role": "Shim", "pid": 1, "startTicks": 1, "state": "S", "command": "init"}}),
            ),
            "should be greater than or equal to 2",
        ),
        ("a count below zero", with("durationSeconds", json!(-1)), "should be greater than or equal to 0"),
        (
            "an endless condition",
            json!({"conditions": [{"type": "RestartSafe", "status": "True", "reason": "Clean", "message": megabyte, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
            "may not be more than 1024",
        ),
        (
            "a condition that is neither",
            json!({"conditions": [{"type": "RestartSafe", "status": "Perhaps", "reason": "Clean", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
            "Unsupported value",
        ),
    ];
    for (what, status, sentence) in cases {
        let output = patch(status);
        assert!(!output.status.success(), "{what} was taken");
        let found: String = said(&output).chars().take(2000).collect();
        let is_said = said(&output).to_lowercase().contains(&sentence.to_lowercase());
        assert!(is_said, "{what}: expected {sentence:?}, found {found}");
    }
}

fn explained(bed: &Bed) {
    for (field, words) in [
        ("noderuntimehealth.status.faults.durationSeconds", "Seconds since it was first seen"),
        ("remediationpolicy.spec.limits.maxUnhealthy", "Default 30%"),
        ("noderemediation.status.attempts.executor", "Probe"),
    ] {
        let text = bed.kubectl(&["explain", field]).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words), "{field}: {text}");
    }
    assert!(bed.kubectl(&["get", "nrh"]).unwrap().contains("RESTART-SAFE"));
}

fn immutable_remediations(bed: &Bed) {
    bed.apply(&remediation("e", "a")).unwrap();
    let error = bed.apply(&remediation("e", "b")).unwrap_err().to_string();
    let refusal = "the node, policy and mode of a remediation cannot be changed; cancel it instead";
    assert!(error.contains(refusal), "{error}");
}
