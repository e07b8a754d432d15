//! What is judged of objects, without a cluster; `tests/cluster` runs the command on a real one.

use jiff::Timestamp;
use kube::core::Status;
use serde_json::{Value, json};

use super::installation::{judge_admission, judge_controller, judge_definitions, judge_policies, judge_tried};
use super::nodes::{describe, grouped};
use super::{Finding, Verdict};
use crate::api::view::guard::Guarded;
use crate::api::{NodeRuntimeHealth, RemediationPolicy, crds};
use crate::controller::admission::{JOBS, POLICIES};

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

fn shows(finding: &Finding, verdict: Verdict, part: &str) {
    assert!(finding.verdict == verdict && finding.message.contains(part), "expected {verdict:?} {part:?}: {finding:?}");
}

#[test]
fn definitions_have_to_be_whole_established_and_of_this_version() {
    let mut all: Vec<_> = crds::all().into_iter().map(|(_, crd)| serde_json::to_value(crd).unwrap()).collect();
    for crd in &mut all {
        crd["status"] = json!({"conditions": [{"type": "Established", "status": "True"}], "acceptedNames": {"kind": "", "plural": ""}, "storedVersions": []});
    }
    let judged = |all: &[Value]| judge_definitions(&all.iter().cloned().map(read).collect::<Vec<_>>());
    shows(&judged(&all), Verdict::Ok, "all 5, of this version");
    shows(&judged(&all[1..]), Verdict::Failed, "is missing");
    let mut older = all.clone();
    older[2]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["more"] =
        json!({"type": "string"});
    shows(&judged(&older), Verdict::Warning, "of another version");
    all[4]["status"]["conditions"][0]["status"] = json!("False");
    shows(&judged(&all), Verdict::Failed, "is not established");
}

#[test]
fn each_admission_policy_has_to_deny() {
    let policy = |name: &str| read(json!({"metadata": {"name": name}, "spec": {"failurePolicy": "Fail"}}));
    let binding = |name: &str| {
        read(json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"],
            "paramRef": {"namespace": "nrh-system", "selector": {}}}}))
    };
    let (policies, bindings) = (POLICIES.map(policy), POLICIES.map(binding));
    shows(&judge_admission(&policies, &bindings), Verdict::Ok, "in place");
    shows(&judge_admission(&policies[1..], &bindings), Verdict::Failed, "nrh-approvals is missing");
    shows(&judge_admission(&policies, &bindings[1..]), Verdict::Failed, "no binding");
    let warned = json!({"metadata": {"name": POLICIES[0]}, "spec": {"failurePolicy": "Fail"},
        "status": {"typeChecking": {"expressionWarnings": [{"fieldRef": "spec", "warning": "undefined field"}]}}});
    let mut some = policies.to_vec();
    some[0] = read(warned);
    shows(&judge_admission(&some, &bindings), Verdict::Warning, "nrh-approvals");
}

#[test]
fn admission_that_could_not_be_tried_is_ok_only_for_one_who_may_create_no_jobs() {
    let of = |code: u16, message: &str| {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        let error = kube::Error::Api(Box::new(status)).into();
        judge_tried(Err(error), Finding::new("admission policies", Verdict::Ok, "all in place"))
    };
    let right = "jobs.batch is forbidden: User \"ann\" cannot create resource \"jobs\" in API group \"batch\"";
    shows(&of(403, right), Verdict::Ok, "all in place; not tested: you may not create Jobs in nrh-node");
    let refused =
        format!("jobs.batch is forbidden: ValidatingAdmissionPolicy '{JOBS}' with binding '{JOBS}' denied request");
    assert_eq!(of(403, &refused).message, "all in place");
    for (code, message) in [
        (403, "jobs.batch \"nrh-check-x\" is forbidden: exceeded quota: count/jobs.batch"),
        (404, "namespaces \"nrh-node\" not found"),
        (500, "failed calling webhook: cannot create resource \"jobs\""),
    ] {
        shows(&of(code, message), Verdict::Unknown, &format!("all in place; not tested: {message}"));
    }
    let passed = judge_tried(Ok(()), Finding::new("admission policies", Verdict::Ok, "all in place"));
    shows(&passed, Verdict::Failed, "lets a Job through");
}

#[test]
fn a_controller_leads_only_with_a_lease_that_is_renewed() {
    let deployment = |available: u32| {
        Some(read(
            json!({"spec": {"replicas": 2, "selector": {}, "template": {}}, "status": {"availableReplicas": available}}),
        ))
    };
    let lease = |at: &str| Some(read(json!({"spec": {"holderIdentity": "nrh-controller-x", "renewTime": at}})));
    let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
    let fresh = lease("2026-01-01T00:00:58.000000Z");
    let judged = |deployment: &Option<_>, lease: &Option<_>| judge_controller(deployment.as_ref(), lease.as_ref(), now);
    shows(&judged(&deployment(2), &fresh), Verdict::Ok, "nrh-controller-x leads");
    shows(&judged(&deployment(1), &fresh), Verdict::Warning, "1 of 2");
    shows(&judged(&deployment(0), &fresh), Verdict::Failed, "0 of 2");
    shows(&judged(&deployment(2), &lease("2026-01-01T00:00:20.000000Z")), Verdict::Failed, "none leads");
    shows(&judged(&deployment(2), &None), Verdict::Failed, "none leads");
    shows(&judged(&None, &fresh), Verdict::Failed, "is missing: `kubectl apply -k YOUR-OVERLAY`");
}

#[test]
fn a_policy_that_is_not_ready_is_named_with_its_error_and_a_suspension_with_its_reason() {
    let policy = |status: Value| {
        Guarded::read(&json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy",
            "metadata": {"name": "p", "generation": 2}, "spec": {"mode": "Enforce", "rules": []}, "status": status}))
    };
    let ready = |status: &str| {
        json!({"conditions": [{"type": "Ready", "status": status, "reason": "InvalidSpec", "message": "rule r: no such fault",
            "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    };
    let mut older: Guarded<RemediationPolicy> = policy(ready("True"));
    older.0.as_mut().unwrap().metadata.generation = Some(3);
    let broken = Guarded::read(&json!({"metadata": {"name": "q"}, "spec": {"mode": 1}}));
    let all = [policy(ready("True")), policy(ready("False")), policy(json!({})), older, broken];
    let judged = judge_policies(&all, None);
    shows(&judged[0], Verdict::Ok, "1 of 5 ready, 4 in mode Enforce");
    shows(&judged[1], Verdict::Failed, "InvalidSpec: rule r: no such fault");
    shows(&judged[2], Verdict::Unknown, "not judged it yet");
    shows(&judged[3], Verdict::Unknown, "not judged it yet");
    shows(&judged[4], Verdict::Failed, "cannot be read: spec.mode");
    let config = read(
        json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationConfig", "metadata": {"name": "cluster"},
        "spec": {"suspend": true, "reason": "network", "suspendedBy": "ann"}}),
    );
    let judged = judge_policies(&[], Some(&config));
    shows(&judged[0], Verdict::Warning, "suspended in the whole cluster, by ann: network");
    shows(&judged[1], Verdict::Warning, "no step is planned");
}

fn report(probe: &Value, runtime: &str) -> Guarded<NodeRuntimeHealth> {
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    Guarded::read(
        &json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth", "metadata": {"name": "w1"}, "spec": {},
        "status": {"probe": probe, "runtime": {"version": "containerd://2.4.2", "endpoint": "/run/c.sock"},
            "conditions": [condition("RuntimeReady", runtime), condition("ProbeReporting", "True")]}}),
    )
}

fn probe(version: &str, lacks: &[&str]) -> Value {
    json!({"version": version, "mode": "Pod", "bootId": "b", "sequence": 1, "intervalSeconds": 300,
        "actionsEnabled": lacks.is_empty(), "missingCapabilities": lacks})
}

#[test]
fn a_node_that_is_to_have_no_probe_is_not_held_against_the_operator() {
    let of = |labels: Value, report: Option<&Guarded<NodeRuntimeHealth>>| {
        describe(&json!({"metadata": {"name": "w1", "labels": labels}}), report).remove(0)
    };
    let checked = json!({"kubernetes.io/os": "linux", "type": "gpu", "runtimehealth.io/probe": "enabled"});
    assert_eq!(of(checked, None).0, Verdict::Failed);
    assert_eq!(of(Value::Null, None).0, Verdict::Failed);
    // A unit checks and acts in spite of the label.
    let (disabled, bad) = (json!({"runtimehealth.io/probe": "disabled"}), report(&probe("0.0.9", &[]), "True"));
    assert_eq!(of(disabled, Some(&bad)).0, Verdict::Warning);
    let daemon_set = include_str!("../../config/probe/daemonset.yaml");
    for (label, value) in [
        ("runtimehealth.io/probe", "disabled"),
        ("type", "virtual-kubelet"),
        ("type", "kwok"),
        ("eks.amazonaws.com/compute-type", "fargate"),
        ("kubernetes.io/os", "windows"),
    ] {
        for silent in [None, Some(&report(&Value::Null, "True"))] {
            let expected = (Verdict::Ok, format!("not checked: its label is {label}={value}"));
            assert_eq!(of(json!({label: value}), silent), expected);
        }
        let is_excluded = daemon_set.contains(value) || daemon_set.contains(&format!("{label}: linux"));
        assert!(daemon_set.contains(label) && is_excluded, "{label}={value}");
    }
}

#[test]
fn of_each_node_is_said_what_it_lacks() {
    let version = env!("CARGO_PKG_VERSION");
    let verdicts = |words: Vec<(Verdict, String)>| words.into_iter().map(|(verdict, _)| verdict).collect::<Vec<_>>();
    assert_eq!(verdicts(describe(&json!({}), Some(&report(&probe(version, &[]), "True")))), [Verdict::Ok]);
    let lacking = describe(&json!({}), Some(&report(&probe("0.0.9", &["no socket of systemd"]), "Unknown")));
    let (warning, unknown) = (Verdict::Warning, Verdict::Unknown);
    assert_eq!(verdicts(lacking.clone()), [warning, warning, warning, unknown], "{lacking:?}");
    assert!(lacking[1].1.contains("no socket of systemd"), "{lacking:?}");
    assert_eq!(verdicts(describe(&json!({}), None)), [Verdict::Failed]);
    assert_eq!(verdicts(describe(&json!({}), Some(&report(&Value::Null, "True")))), [Verdict::Failed]);
    let broken = Guarded::read(&json!({"metadata": {"name": "w1"}, "spec": {"suspend": 1}}));
    assert_eq!(verdicts(describe(&json!({}), Some(&broken))), [Verdict::Failed]);
}

#[test]
fn nodes_of_which_the_same_is_said_are_one_line_the_worst_first() {
    let good = (Verdict::Ok, "fine".to_owned());
    let bad = (Verdict::Failed, "silent".to_owned());
    let mut words: Vec<_> = (0..7).map(|number| (format!("w{number}"), good.clone())).collect();
    words.push(("w9".to_owned(), bad));
    let lines = grouped(words);
    let subjects: Vec<&str> = lines.iter().map(|line| line.subject.as_str()).collect();
    assert_eq!(subjects, ["node w9", "7 nodes (w0, w1, w2, w3, w4, …)"]);
}
