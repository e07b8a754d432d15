//! The operator heals real faults on a real node, judged by the bed: the demo without its controls.
//!
//! The controls (the same injections under the dry run, which have to stay sick) take a quarter of an hour more; `make demo`
//! runs them.

use nrh_testbed::demo::{self, Options};

#[test]
fn incidents_on_a_real_node_are_healed_and_nothing_else_is_touched() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP incidents_on_a_real_node: real nodes need root on Linux");
        return;
    }
    let only =
        ["hung-container", "leaked-shim", "orphan-nothing-runs", "hung-network-plugin"].map(str::to_owned).to_vec();
    let report = tempfile::tempdir().unwrap();
    let options = Options { keep: false, only, no_controls: true, kwok: 3, report: report.path().join("report.json") };
    assert!(demo::run(&options).unwrap(), "{}", std::fs::read_to_string(&options.report).unwrap());
}
