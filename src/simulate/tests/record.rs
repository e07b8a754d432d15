//! What is recorded of a cluster plays as it was.

use crate::core::plan::BlockReason;
use crate::core::remediation::Phase;
use crate::core::snapshot::{Snapshot, TriState};
use crate::simulate;
use crate::simulate::account::What;
use crate::simulate::record::record;
use crate::simulate::timeline::{Event, Timeline};
use nrh_simulate::play;

/// The snapshot at the end of a timeline.
fn after(text: &str, policy: &str) -> Snapshot {
    let timeline = Timeline::parse(text).unwrap();
    let policy = simulate::policy(serde_saphyr::from_str(policy).unwrap()).unwrap();
    play::end_of(&timeline, &[policy]).snapshot()
}

const POLICY: &str = include_str!("../../../config/policies/orphans.yaml");

#[test]
fn what_is_recorded_plays_as_it_was() {
    let text = "
nodes: [{name: worker, count: 4, labels: {pool: a}}]
events:
  - {at: 1m, nodes: [worker-1], fault: {type: OrphanContainer, pod: shop/cart}}
  - {at: 9m, nodes: [worker-2], fault: {type: LeakedShim, clearedBy: []}}
  - {at: 20m, nodes: [worker-3], fault: {type: DiskFull}}
until: 30m
";
    let recorded = record(&after(text, POLICY));
    assert_eq!(recorded.events.len(), 3, "{:#?}", recorded.events);
    let again = serde_saphyr::to_string(&recorded).unwrap();
    let read = Timeline::parse(&again).unwrap_or_else(|error| panic!("{error:#}: {again}"));
    assert_eq!(read.nodes.len(), 4);
    assert!(read.nodes.iter().all(|node| node.labels.get("pool").map(String::as_str) == Some("a")));
    assert!(read.nodes.iter().all(|node| node.labels.len() == 1), "what each node has need not be said");
    let windows = record(&after(&text.replace("pool: a", "kubernetes.io/os: windows"), POLICY));
    assert_eq!(windows.nodes[0].labels.get("kubernetes.io/os").map(String::as_str), Some("windows"));
    let policy = simulate::policy(serde_saphyr::from_str(POLICY).unwrap()).unwrap();
    let account = play::play(&read, &[policy]);
    let ends: Vec<_> = account
        .lines
        .iter()
        .filter(|line| matches!(line.what, What::Ends(_)))
        .map(|line| (line.node.as_deref().unwrap_or_default(), line.what))
        .collect();
    assert_eq!(ends, [("worker-1", What::Ends(Phase::Succeeded)), ("worker-2", What::Ends(Phase::Failed))]);
}

#[test]
fn what_rules_ask_about_pods_and_nodes_is_recorded() {
    let policy = "
apiVersion: runtimehealth.io/v1alpha1
kind: RemediationPolicy
metadata: {name: web}
spec:
  mode: Enforce
  rules:
    - name: r
      match:
        faults: [HungContainer]
        podSelector: {matchExpressions: [{key: app, operator: In, values: [web]}, {key: tier, operator: DoesNotExist}]}
        ownerKinds: [None]
        runtimes: [{name: containerd}]
      steps: [{action: Notify}]
";
    let text = "
nodes: [{name: worker, count: 2, kubeletVersion: v1.36.1, runtimeVersion: 'containerd://1.7.24'}]
events:
  - {at: 1m, nodes: [worker-1], fault: {type: HungContainer, pod: shop/a, podLabels: {app: web}, podOwner: None}}
  - {at: 1m, nodes: [worker-2], fault: {type: HungContainer, pod: shop/b}}
until: 30m
";
    let recorded = record(&after(text, policy));
    let again = serde_saphyr::to_string(&recorded).unwrap();
    let read = Timeline::parse(&again).unwrap_or_else(|error| panic!("{error:#}: {again}"));
    assert!(read.nodes.iter().all(|node| node.runtime_version.as_deref() == Some("containerd://1.7.24")));
    let faults: Vec<_> = read.events.iter().filter_map(|event| event.fault.clone()).collect();
    let told: Vec<_> = faults.iter().map(|fault| (fault.pod_labels.clone(), fault.pod_owner.as_deref())).collect();
    let labels = [("app".to_owned(), "web".to_owned())].into();
    assert_eq!(told, [(Some(labels), Some("None")), (None, None)]);
    let policy = simulate::policy(serde_saphyr::from_str(policy).unwrap()).unwrap();
    let lines = play::play(&read, &[policy]).lines;
    let blocked = |node: &str| {
        lines.iter().any(|line| {
            line.node.as_deref() == Some(node) && matches!(line.what, What::Blocked(BlockReason::PodUnknown))
        })
    };
    assert_eq!((blocked("worker-1"), blocked("worker-2")), (false, true));
}

#[test]
fn conditions_that_a_policy_asks_for_are_recorded_and_no_others() {
    let policy = "
apiVersion: runtimehealth.io/v1alpha1
kind: RemediationPolicy
metadata: {name: kernel}
spec:
  mode: Enforce
  rules:
    - name: r
      match: {nodeConditions: [{type: KernelDeadlock, status: 'True'}]}
      steps: [{action: Notify}]
";
    let text = "
nodes: [{name: worker, count: 4}]
events:
  - {at: 1m, nodes: [worker-1], condition: {type: KernelDeadlock, status: 'True', reason: DockerHung}}
  - {at: 9m, nodes: [worker-1], condition: {type: KernelDeadlock}}
  - {at: 20m, nodes: [worker-2], condition: {type: KernelDeadlock, status: 'True'}}
  - {at: 20m, nodes: [worker-3], condition: {type: Other, status: 'True'}}
until: 30m
";
    let mut seen = after(text, policy);
    let told = |recorded: &Timeline| -> Vec<(String, Option<TriState>, String)> {
        let of = |event: &Event| event.condition.clone().map(|one| (event.nodes[0].clone(), one.status, one.reason));
        recorded.events.iter().filter_map(of).collect()
    };
    let worker = |number: u8| format!("worker-{number}");
    let recorded = record(&seen);
    let expected = [
        (worker(1), Some(TriState::True), "DockerHung".to_owned()),
        (worker(1), None, String::new()),
        (worker(2), Some(TriState::True), String::new()),
    ];
    assert_eq!(told(&recorded), expected);
    let again = serde_saphyr::to_string(&recorded).unwrap();
    let read = Timeline::parse(&again).unwrap_or_else(|error| panic!("{error:#}: {again}"));
    assert_eq!(told(&read), expected);
    // Without a remediation only what stands there now is known.
    seen.remediations.clear();
    assert_eq!(told(&record(&seen)), expected[2..]);
}
