//! The bed on which nodes are made sick: the operator, installed by the shipped manifests, sees everything and, in its dry run, touches nothing.

use nrh_testbed::{Bed, BedOptions, Node, operator, work};
use serde_json::{Value, json};

use crate::shared::{Guest, Shared};

static SICK: Shared = Shared::new(up);

/// Whose node it is. The first node of the bed stays well: there the controller runs.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    FrozenShim = 1,
    LeakedShim,
    OldKubelet,
    HungPlugin,
    CrashLoop,
    BlockedUpdate,
    Doubled,
    BlockedStart,
    FrozenKubelet,
    DyingKubelet,
    Lacking,
    StalledSyncLoop,
    SlowRelists,
}

const NODES: usize = Place::SlowRelists as usize + 1;

/// Joins the bed: its guest and the test's own node.
pub fn join(place: Place) -> Option<(Guest, Node)> {
    let bed = SICK.join()?;
    let node = node(&bed, place).clone();
    Some((bed, node))
}

fn node(bed: &Bed, place: Place) -> &Node {
    &bed.nodes()[place as usize]
}

fn up(programs: &operator::Programs) -> Bed {
    let bed = Bed::up(BedOptions { name: "sick".into(), nodes: NODES, ..BedOptions::default() }).unwrap();
    install(&bed, programs);
    bed
}

/// The shipped manifests, its controller on the node that stays well; and a workload on the nodes
/// whose faults it has to see, on one of them with ten containers.
fn install(bed: &Bed, programs: &operator::Programs) {
    operator::load_image(bed, bed.nodes(), programs).unwrap();
    let sick: Vec<&str> = bed.nodes().iter().skip(1).map(|node| node.name.as_str()).collect();
    bed.kubectl(&[&["taint", "node"], sick.as_slice(), &["sick/reserved=:NoSchedule"]].concat()).unwrap();
    operator::apply_folder(bed, "config/default").unwrap();
    let crowded = node(bed, Place::BlockedStart).name.as_str();
    let seen: Vec<&str> = sick.into_iter().skip(Place::BlockedUpdate as usize - 1).collect();
    bed.kubectl(&[&["label", "node"], seen.as_slice(), &["crowd=none"]].concat()).unwrap();
    bed.kubectl(&["label", "node", "--overwrite", crowded, "crowd=ten"]).unwrap();
    workload(bed, "work", 1, &json!({"crowd": "none"}));
    workload(bed, "crowd", 10, &json!({"crowd": "ten"}));
    operator::wait(bed).unwrap();
}

/// A DaemonSet of so many containers on nodes with this label.
fn workload(bed: &Bed, name: &str, containers: usize, node: &Value) {
    let container = |number: usize| work::container(&format!("work-{number}"), &["work"]);
    let containers: Vec<Value> = (0..containers).map(container).collect();
    let spec = json!({"nodeSelector": node, "tolerations": [{"operator": "Exists"}], "containers": containers});
    bed.apply(&work::workload("DaemonSet", name, &spec)).unwrap();
}
