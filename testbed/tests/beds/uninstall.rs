//! The operator is removed as the README says while it has a node cordoned: the cordon is taken back, nothing stays. Installed again on
//! the same API server, it repairs.

use std::collections::BTreeSet;

use nrh_testbed::wait::until;
use nrh_testbed::{Bed, BedOptions, faults, operator, process, view, work};

use crate::shared::{alone, is_root, room};

/// A policy that cordons, repairs, and then watches for minutes whether that lasts.
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
    - {action: ReleaseHungProcess, releaseHungProcess: {signal: SIGCONT}, timeout: 15m, verify: {stableFor: 10m}}
  limits: {maxInFlight: 1, maxUnhealthy: 100%}
";

/// What a cluster has is compared by name: everything cluster-wide, and roles.
fn everything(bed: &Bed) -> BTreeSet<String> {
    let kinds = "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,priorityclasses,\
                 validatingadmissionpolicies,validatingadmissionpolicybindings,roles,rolebindings,nodes";
    let text = bed.kubectl(&["get", kinds, "-A", "-o", "name"]).unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn an_uninstall_takes_the_cordon_back_and_leaves_nothing() {
    if !is_root() {
        return;
    }
    let _room = room();
    let programs = operator::built().unwrap();
    let coming_up = alone();
    let bed = Bed::up(BedOptions { name: "removed".into(), ..BedOptions::default() }).unwrap();
    let before = everything(&bed);
    operator::install(&bed, &programs).unwrap();
    drop(coming_up);
    takes_the_cordon_back_and_leaves_nothing(&bed, &before);
    bed.down().unwrap();
}

/// Removes the operator, and what is left has to be what was there `before` it.
fn takes_the_cordon_back_and_leaves_nothing(bed: &Bed, before: &BTreeSet<String>) {
    let kubectl = |args: &[&str]| bed.kubectl(args).unwrap();
    let installed = everything(bed);
    assert!(installed.len() > before.len() + 10, "{installed:?}");
    kubectl(&["delete", "remediationpolicies", "--all", "--timeout=480s"]);
    let node = &bed.nodes()[1];
    bed.apply(&work::pod("victim", &node.name)).unwrap();
    let victim = || view::pod(bed, "default", "victim").unwrap().unwrap();
    until("the victim runs", || victim().ready);
    bed.apply(POLICY).unwrap();
    let frozen = faults::freeze_shim(node, &victim().uid).unwrap();
    let unschedulable = || kubectl(&["get", "node", &node.name, "-o", "jsonpath={.spec.unschedulable}"]) == "true";
    until("the node is cordoned", unschedulable);

    // The commands of docs/how-to/upgrade-and-uninstall.md, in its order.
    kubectl(&["delete", "remediationpolicies", "--all", "--timeout=480s"]);
    kubectl(&["delete", "noderemediations", "--all", "--timeout=480s"]);
    assert!(!unschedulable(), "the cordon is taken back before the remediation is gone");
    let standing = || {
        let types =
            kubectl(&["get", "nodes", "real-1", "real-2", "-o", "jsonpath={.items[*].status.conditions[*].type}"]);
        types.split_whitespace().any(|kind| kind == "RestartUnsafe")
    };
    assert!(standing(), "the controller writes conditions of Nodes by default");
    kubectl(&["-n", "nrh-system", "set", "env", "deployment/nrh-controller", "NRH_NODE_CONDITIONS="]);
    until("the conditions of the Nodes are removed", || !standing());
    let labelled = || {
        let kinds = "ns,crd,clusterrole,clusterrolebinding,validatingadmissionpolicy,\
                     validatingadmissionpolicybinding,flowschema,prioritylevelconfiguration";
        kubectl(&["get", kinds, "-l", "app.kubernetes.io/part-of=nrh", "-o", "name"])
    };
    assert!(labelled().lines().count() > 30, "{}", labelled());
    let folder = nrh_testbed::workspace().join("config/default").display().to_string();
    // The namespaces take what is in them along.
    kubectl(&["delete", "--ignore-not-found", "-k", &folder, "--timeout=480s"]);

    assert_eq!(labelled(), "");
    assert_eq!(everything(bed), *before);
    let ours = "jsonpath={.items[*].metadata.annotations} {.items[*].metadata.labels} {.items[*].spec}";
    let nodes = kubectl(&["get", "nodes", "real-1", "real-2", "-o", ours]);
    assert!(nodes.contains("kubernetes.io/hostname") && !nodes.contains("runtimehealth.io"), "{nodes}");

    frozen.lift(node).unwrap();
    operator::apply_folder(bed, "config/default").unwrap();
    operator::wait(bed).unwrap();
    bed.apply(POLICY).unwrap();
    let frozen = faults::freeze_shim(node, &victim().uid).unwrap();
    let shim = frozen.victim.process.unwrap();
    until("the shim is resumed", || process::state(shim.pid).is_some_and(|state| state != 'T'));
}
