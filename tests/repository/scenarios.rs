//! Golden scenarios: a readable timeline in, decisions and holds with their reasons out. `nrh simulate` runs the same files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::Command;

use nrh::simulate::{expect, of_files, text};

use crate::crds::yaml_files;
use crate::page::root;

#[test]
fn every_scenario_is_as_expected_and_as_before() {
    let mut all = yaml_files("tests/scenarios");
    all.retain(|path| !path.to_string_lossy().ends_with(".policy.yaml"));
    assert!(all.len() >= 15, "{}", all.len());
    let sample = root().join("config/samples/timeline.yaml");
    let notes = of_files(&sample, &[], false).unwrap().1.notes;
    assert!(notes.is_empty(), "the sample lacks what its policy asks for: {notes:?}");
    all.push(sample);
    for path in all {
        let is_sample = path.parent().is_some_and(|folder| folder.ends_with("samples"));
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let name = if is_sample { "sample".to_owned() } else { name };
        let (timeline, account) = of_files(&path, &[], false).unwrap();
        let table = text::table(&account);
        assert!(!timeline.description.is_empty() && !timeline.expect.is_empty(), "{name} says nothing");
        let unmet = expect::unmet(&timeline.expect, &account);
        assert!(unmet.is_empty(), "{name}:\n{}\n{table}", unmet.join("\n"));
        insta::with_settings!({ snapshot_path => "../scenarios/accounts", prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(name, table);
        });
    }
}

const POLICY: &str = "
apiVersion: v1
kind: List
items:
  - apiVersion: runtimehealth.io/v1alpha1
    kind: RemediationPolicy
    metadata: {name: orphans}
    spec:
      mode: Enforce
      nodeSelector: {matchLabels: {pool: a}}
      rules:
        - {name: orphan, match: {faults: [OrphanContainer]}, steps: [{action: CleanupOrphans}, {action: Notify}]}
";

/// The program with a timeline in the folder: exit code, and what it printed.
fn simulate(folder: &Path, timeline: &str, flags: &[&str]) -> (i32, String, String) {
    simulate_with(folder, POLICY, timeline, flags)
}

fn simulate_with(folder: &Path, policy: &str, timeline: &str, flags: &[&str]) -> (i32, String, String) {
    std::fs::write(folder.join("policy.yaml"), policy).unwrap();
    std::fs::write(folder.join("timeline.yaml"), timeline).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_nrh"));
    program
        .current_dir(folder)
        .args(["simulate", "--timeline", "timeline.yaml", "--policy", "policy.yaml"])
        .args(flags);
    let output = program.env_remove("KUBECONFIG").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_program_says_by_its_exit_code_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let orphan = "
nodes: [{name: worker, count: 2, labels: {pool: a}}]
events: [{at: 1m, nodes: [worker-1], fault: {type: OrphanContainer}}]
";
    let (code, table, _) = simulate(folder.path(), orphan, &[]);
    assert_eq!(code, 0);
    let all = "In all: 1 x does CleanupOrphans, 1 x ends Succeeded; at most 1 node at a time.";
    assert!(table.contains(all), "{table}");
    let unmet = format!("{orphan}expect: [{{does: Cordon}}]\n");
    let (code, report, error) = simulate(folder.path(), &unmet, &["-o", "json"]);
    assert_eq!(code, 1);
    assert!(error.contains("1 of 1 expectations are not met") && !error.contains("backtrace"), "{error}");
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["start"], &report["lines"][0]["seconds"]), (&"2026-01-05T03:00:00Z".into(), &60.into()));
    assert_eq!(report["unmet"].as_array().unwrap().len(), 1);
    let unknown = "
nodes: [{name: worker}]
events: [{at: 2m, policy: {name: leftover, suspend: true}}]
";
    let (code, _, error) = simulate(folder.path(), unknown, &[]);
    assert_eq!((code, error.contains("event 1 (at 0h02m00s): there is no policy leftover")), (2, true), "{error}");
    let other = orphan.replace("pool: a", "pool: b");
    let (code, _, error) = simulate(folder.path(), &other, &[]);
    assert_eq!((code, error.contains("policy orphans selects none of the nodes")), (0, true), "{error}");
    for (wrong, right, said) in [
        ("runtimehealth.io/v7", "runtimehealth.io/v1alpha1", "apiVersion: expected runtimehealth.io/v1alpha1, found"),
        (
            "faults: [OrphanContainer], namespaces: ['*-shop']",
            "faults: [OrphanContainer]",
            "with `*` at its end at most, found \"*-shop\"",
        ),
        ("{action: CleanupOrphans, approvalTimeout: 5m}", "{action: CleanupOrphans}", "without which nobody is asked"),
        (
            "{action: CleanupOrphan}",
            "{action: CleanupOrphans}",
            "spec.rules[0].steps[0].action: found \"CleanupOrphan\", did you mean CleanupOrphans? expected one of ",
        ),
        (
            "faults: [OrphanContainer], minDuration: 90",
            "faults: [OrphanContainer]",
            "spec.rules[0].match.minDuration: invalid type: integer `90`, expected a duration with its unit, such as 90s",
        ),
        (
            "nodeConditions: [{type: KernelDeadlock, status: True}]",
            "faults: [OrphanContainer]",
            "spec.rules[0].match.nodeConditions[0].status: invalid type: boolean `true`, expected string or map; a word that \
             YAML takes for true or false has to be in quotes",
        ),
        (
            "mode: Enforce\n      limits: {maxInFlight: -1}",
            "mode: Enforce",
            "spec.limits.maxInFlight: expected a number from 0",
        ),
        (
            "kind: RemediationPolicies",
            "kind: RemediationPolicy",
            "kind: expected RemediationPolicy, found \"RemediationP",
        ),
    ] {
        let (code, _, error) = simulate_with(folder.path(), &POLICY.replace(right, wrong), orphan, &[]);
        assert_eq!((code, error.contains(said)), (2, true), "{wrong}: {error}");
    }
    let (code, _, error) = simulate(folder.path(), orphan, &["--file", "x"]);
    assert_eq!((code, error.contains("--record")), (2, true), "{error}");
}

#[test]
fn what_is_open_is_played_to_its_end_or_told() {
    let folder = tempfile::tempdir().unwrap();
    let asks =
        POLICY.replace("{action: CleanupOrphans}", "{action: CleanupOrphans, approval: Manual, approvalTimeout: 3h}");
    let orphan = "
nodes: [{name: worker, labels: {pool: a}}]
events: [{at: 1m, nodes: [worker], fault: {type: OrphanContainer}}]
";
    let (code, table, _) = simulate_with(folder.path(), &asks, orphan, &[]);
    assert_eq!(code, 0);
    for said in [
        "3h01m00s   worker step TimedOut",
        "ends Failed",
        "ends at 3h01m05s (2026-01-05T06:01:05Z); at the end 1 fault is blocked.",
    ] {
        assert!(table.contains(said), "{said:?} is missing in:\n{table}");
    }
    // What lies beyond the end was not tried.
    for beyond in ["{does: Cordon, after: 10h, atMost: 0}", "{does: Cordon, by: 10h, atMost: 0}"] {
        let (code, _, error) = simulate_with(folder.path(), &asks, &format!("{orphan}expect: [{beyond}]\n"), &[]);
        let is_told = error.contains("; the timeline was over at 3h01m05s: write a later `until`");
        assert_eq!((code, is_told), (1, true), "{beyond}: {error}");
    }
    // What came is there, whatever lies beyond.
    let came = format!("{orphan}expect: [{{ends: Failed, by: 10h}}]\n");
    assert_eq!(simulate_with(folder.path(), &asks, &came, &[]).0, 0);
    // What is begun after that, as what cannot be resolved is once an hour, does not prolong it.
    let queue = "
nodes: [{name: worker, count: 8, labels: {pool: a}}]
events: [{at: 1m, nodes: ['*'], every: 1m, fault: {type: OrphanContainer, clearedBy: []}}]
";
    let one = POLICY.replace("mode: Enforce", "mode: Enforce\n      limits: {maxInFlight: 1, maxUnhealthy: 100%}");
    let slow = one.replace("{action: CleanupOrphans}", "{action: CleanupOrphans, timeout: 20m}");
    let (_, table, _) = simulate_with(folder.path(), &slow, queue, &[]);
    assert!(table.contains("ends Failed") && table.contains(", and ends at 1h2"), "{table}");
    let until = format!("{orphan}until: 2h\n");
    let (_, table, _) = simulate_with(folder.path(), &asks, &until, &[]);
    assert!(table.contains("2h00m00s   worker open AwaitingApproval"), "{table}");
    let end = "ends at 2h00m00s (2026-01-05T05:00:00Z); at the end 1 remediation is open, 1 fault is blocked.";
    assert!(table.contains(end), "{table}");
    // Nothing waits for ever, however long the last one may take.
    let (_, report, _) = simulate_with(folder.path(), &asks.replace("3h", "24h"), orphan, &["-o", "json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["end"], "2026-01-06T03:01:05Z");
    let last = report["lines"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["what"], &last["detail"]), (&"blocked".into(), &"StepsExhausted".into()), "{last}");
    let words = |line: &serde_json::Value| line["what"].is_string() && !line["detail"].is_object();
    assert!(report["lines"].as_array().unwrap().iter().all(words), "{report}");
}

#[test]
fn slips_of_a_file_are_told_together_and_each_once() {
    let folder = tempfile::tempdir().unwrap();
    let slips = POLICY
        .replace("mode: Enforce", "mode: Enforce\n      priority: 5000")
        .replace("{action: CleanupOrphans}", "{action: CleanupOrphans, atempts: 2}")
        .replace("mode: Enforce", "mode: Enforce\n      limits: {maxInFlight: -1}")
        .replace(
            "{action: Notify}",
            "{action: Notify, approval: Manual, timeout: 1d}, {action: Notify, timeout: 1hour}",
        );
    let orphan = "nodes: [{name: worker}]\nevents: [{at: 1m, nodes: [worker], fault: {type: OrphanContainer}}]\n";
    let (code, _, error) = simulate_with(folder.path(), &slips, orphan, &[]);
    assert_eq!(code, 2);
    for said in [
        "policy orphans:\n  spec.priority: expected at most 1000, found 5000",
        "\n  spec.rules[0].steps[0].atempts: there is no such field, expected one of action, ",
        "\n  spec.rules[0].steps[1].timeout: ",
        "\n  spec.rules[0].steps[2].timeout: ",
        "\n  spec.limits.maxInFlight: ",
    ] {
        assert_eq!(error.matches(said).count(), 1, "{said:?} in:\n{error}");
    }
    let (code, _, error) = simulate(folder.path(), "nodes: [{name: w, colour: red}]\nevents: []\n", &[]);
    assert_eq!((code, error.matches("colour").count(), error.matches('\n').count()), (2, 1, 1), "{error}");
}

#[test]
fn what_happens_to_a_node_that_is_gone_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let gone = "
nodes: [{name: worker, count: 2, labels: {pool: a}}]
events:
  - {at: 1m, nodes: [worker-1], machine: Removed}
  - {at: 2m, nodes: [worker-1], fault: {type: OrphanContainer}}
";
    let (code, table, _) = simulate(folder.path(), gone, &[]);
    assert_eq!(code, 0);
    let says = ["nothing happens: the node is gone", "In all: nothing is done."];
    assert!(says.iter().all(|text| table.contains(text)), "{table}");
}
