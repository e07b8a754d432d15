//! The operator heals real faults on a real node, judged by the bed: the demo without its controls.
//!
//! The controls (the same injections under the dry run, which have to stay sick) take a quarter of an hour more; `make demo`
//! runs them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use nrh_testbed::demo::{self, Options};

fn heals(acts: &[&str]) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP {acts:?}: real nodes need root on Linux");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let only = acts.iter().map(|act| (*act).to_owned()).collect();
    let options = Options {
        fake: false,
        keep: false,
        only,
        no_controls: true,
        kwok: 2,
        report: folder.path().join("report.json"),
    };
    assert!(demo::run(&options).unwrap(), "{}", std::fs::read_to_string(&options.report).unwrap());
}

/// Told in kubernetes-sigs/cluster-api #12711 and Azure/AKS #4507.
#[test]
fn incidents_on_a_real_node_are_healed_and_nothing_else_is_touched() {
    heals(&["hung-container", "leaked-shim", "orphan-nothing-runs", "hung-network-plugin"]);
}

#[test]
fn an_orphan_is_removed_by_the_probes_pod_while_that_still_runs() {
    heals(&["orphan-probe-runs"]);
}
