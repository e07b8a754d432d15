//! What a cluster has gone through, recorded and played again: `nrh simulate` as a program, on a timeline that it has recorded of
//! the live cluster, with the policies as they stand there. It decides what the controller has decided.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nrh_testbed::wait::until;
use nrh_testbed::{Bed, operator};
use serde_json::{Value, json};

/// A recording ends when it is made. In play an act that was refused on the node, of which no timeline tells, is waited for as one
/// that did not help: for the step's five minutes.
const LONGER: &str = "20m";

/// What was decided for a node: actions in their order, and how its last remediation ended. How many remediations it takes hangs on seconds.
#[derive(Debug, Default, PartialEq)]
struct Decided {
    actions: Vec<String>,
    end: String,
}

type Decisions = BTreeMap<String, Decided>;

/// Records, plays, and compares with what the controller has done.
pub fn plays_as_it_was(bed: &Bed, nrh: &Path) {
    until("every remediation has come to its end", || done(bed).values().all(|node| !node.end.is_empty()));
    let done = done(bed);
    let folder = tempfile::tempdir().unwrap();
    let keep = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let run = |args: &[&str]| {
        let output = bed.command(nrh).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let recorded = run(&["simulate", "--record"]);
    let mut longer: Value = serde_saphyr::from_str(&recorded).unwrap();
    longer["until"] = json!(LONGER);
    let timeline = keep("timeline.yaml", &longer.to_string());
    let policies = keep("policies.yaml", &bed.kubectl(&["get", "remediationpolicies", "-o", "yaml"]).unwrap());
    let played = run(&["simulate", "--policy", &policies, "--timeline", &timeline, "-o", "json"]);
    assert_eq!(decided(&played), done, "{recorded}\n{played}");
    println!("played as it was: {done:#?}");
}

/// What the controller has done, by its remediations; without an end where one is not over.
fn done(bed: &Bed) -> Decisions {
    let mut remediations = operator::remediations(bed).unwrap();
    remediations.retain(|remediation| remediation["spec"]["mode"] == "Enforce");
    remediations.sort_by_key(|remediation| text(&remediation["status"]["startedAt"]));
    let mut done = Decisions::new();
    for remediation in remediations {
        let status = &remediation["status"];
        let node = done.entry(text(&remediation["spec"]["nodeName"])).or_default();
        node.actions.extend(status["attempts"].as_array().into_iter().flatten().map(|step| text(&step["action"])));
        node.end = if status["finishedAt"].is_string() { text(&status["phase"]) } else { String::new() };
    }
    done
}

/// The same of an account that `nrh simulate` has printed.
fn decided(account: &str) -> Decisions {
    let account: Value = serde_json::from_str(account).unwrap();
    let mut decided = Decisions::new();
    // What only would be done, and how each attempt went, is left out; so are the ends of dry runs.
    for line in account["lines"].as_array().unwrap() {
        let (node, detail) = (text(&line["node"]), text(&line["detail"]));
        match line["what"].as_str() {
            Some("does") => decided.entry(node).or_default().actions.push(detail),
            Some("ends") if detail != "Simulated" => decided.entry(node).or_default().end = detail,
            _ => {}
        }
    }
    decided
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
