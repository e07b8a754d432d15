//! A bed from its beginning to its end: its nodes work as nodes do, an image of the project's runs on them, the operator repairs
//! real faults on it, and nothing of the bed stays. Judged by the bed alone.
//!
//! The controls of the demo (the same injections under the dry run, which have to stay sick) take a quarter of an hour more;
//! `make demo` runs them.

use nrh_testbed::demo::{self, Options};
use nrh_testbed::{Bed, BedOptions, operator, process};

use crate::shared::{alone, is_root, mounts, room};
use crate::{bed, images};

/// The orphan twice: where nothing runs any more, and while the probe's pod still does.
const ACTS: [&str; 5] =
    ["hung-container", "leaked-shim", "orphan-nothing-runs", "orphan-probe-runs", "hung-network-plugin"];

/// Told in kubernetes-sigs/cluster-api #12711 and Azure/AKS #4507.
#[test]
fn incidents_on_a_real_node_are_healed_and_nothing_else_is_touched() {
    if !is_root() {
        return;
    }
    let _room = room();
    let mounted = mounts();
    let programs = operator::built().unwrap();
    let coming_up = alone();
    let bed = Bed::up(BedOptions { name: "healed".into(), ..BedOptions::default() }).unwrap();
    drop(coming_up);
    bed::two_real_nodes_run_pods(&bed);
    images::an_image_of_a_final_stage_runs_and_a_pod_reaches_the_api_server(&bed);

    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let only = ACTS.map(str::to_owned).into();
    let options = Options { fake: false, machines: None, keep: false, only, no_controls: true, kwok: 0, report };
    bed.add_kwok_nodes(2).unwrap();
    let (bed, ok) = demo::play(bed, programs, &options).unwrap();
    assert!(ok, "{}", std::fs::read_to_string(&options.report).unwrap());

    let (name, network, _held) = (bed.name().to_owned(), bed.network_id().to_owned(), bed.network().unwrap());
    assert!(!process::members("net", &network).is_empty());
    bed.down().unwrap();
    assert_eq!(Bed::leftovers(&name, &network), Vec::<String>::new());
    assert!(process::members("net", &network).is_empty());
    assert_eq!(mounts(), mounted);
}
