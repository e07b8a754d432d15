//! The operator is removed as the README says while it has a node cordoned: the cordon is taken back, nothing stays.

#![allow(clippy::unwrap_used)]

mod until;

use std::time::Duration;

use nrh_testbed::{Bed, BedOptions, faults, images, operator, view};
use serde_json::json;
use until::until;

/// A policy that cordons, heals, and then looks for minutes whether that lasts.
const POLICY: &str = "
apiVersion: runtimehealth.io/v1alpha1
kind: RemediationPolicy
metadata: {name: cordon}
spec:
  mode: Enforce
  rules:
  - name: hung
    match: {faults: [HungContainer]}
    steps:
    - {action: Cordon}
    - {action: ReleaseHungProcess, releaseHungProcess: {signal: Cont}, timeout: 15m, verify: {for: 10m}}
  limits: {maxInFlight: 1, maxUnhealthy: 100%}
";

#[test]
fn an_uninstall_while_a_node_is_cordoned_takes_the_cordon_back_and_leaves_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: a real node needs root");
        return;
    }
    let programs = operator::build().unwrap();
    let bed = Bed::up(BedOptions { name: "uninstall".into(), ..BedOptions::default() }).unwrap();
    let kubectl = |args: &[&str]| bed.kubectl(args).unwrap();
    // What a cluster has before is not ours: everything cluster-wide is compared by name.
    let everything = || {
        let kinds = "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,priorityclasses,\
                     validatingadmissionpolicies,validatingadmissionpolicybindings,roles,rolebindings,nodes";
        let text = kubectl(&["get", kinds, "-A", "-o", "name"]);
        text.split_whitespace().map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let before = everything();
    operator::load_image(&bed, &programs).unwrap();
    operator::apply_folder(&bed, "config/default").unwrap();
    operator::wait(&bed).unwrap();
    assert!(everything().len() > before.len() + 10, "{:?}", everything());

    let node = &bed.nodes()[0];
    let labels = json!({"app": "victim"});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "victim", "labels": labels}, "spec": {
        "nodeName": node.name, "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "work", "image": images::WORK_IMAGE, "imagePullPolicy": "Never", "args": ["work"]}],
    }});
    bed.kubectl_input(&["apply", "-f", "-"], &pod.to_string()).unwrap();
    let victim = || view::pod(&|| bed.command("kubectl"), "default", "victim").unwrap().unwrap();
    until("the victim runs", Duration::from_mins(3), || victim().ready);
    bed.kubectl_input(&["apply", "-f", "-"], POLICY).unwrap();
    let frozen = faults::freeze_shim(node, &victim().uid).unwrap();
    let unschedulable = || kubectl(&["get", "node", &node.name, "-o", "jsonpath={.spec.unschedulable}"]) == "true";
    until("the node is cordoned", Duration::from_mins(3), unschedulable);

    // The README's three commands, in its order.
    kubectl(&["delete", "remediationpolicies", "--all", "--timeout=180s"]);
    kubectl(&["delete", "noderemediations", "--all", "--timeout=180s"]);
    assert!(!unschedulable(), "the cordon is taken back before the episode is gone");
    let folder = nrh_testbed::workspace().join("config/default").display().to_string();
    kubectl(&["delete", "-k", &folder, "--timeout=300s"]);

    assert_eq!(everything(), before);
    let ours = "jsonpath={.items[*].metadata.annotations} {.items[*].metadata.labels} {.items[*].spec}";
    let nodes = kubectl(&["get", "nodes", "-o", ours]);
    assert!(nodes.contains("kubernetes.io/hostname") && !nodes.contains("runtimehealth.io"), "{nodes}");
    frozen.lift(node).unwrap();
    bed.down().unwrap();
}
