//! The probe, installed as shipped, names what is injected into a real node, and takes it back when it is gone.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod until;

use std::path::Path;
use std::thread;
use std::time::Duration;

use nrh_testbed::faults::{self, Injection};
use nrh_testbed::{Bed, BedOptions, Node, images, operator, view};
use serde_json::{Value, json};
use until::until;

/// A threshold of a minute and a half, and what a busy machine adds.
const NAMED: Duration = Duration::from_mins(4);
/// Two clean looks, also after the kubelet was away.
const CLEARED: Duration = Duration::from_mins(2);
/// Until a pod runs.
const RUNS: Duration = Duration::from_mins(2);

/// What a node's object says of one kind of fault.
fn fault(bed: &Bed, node: &Node, kind: &str) -> Option<Value> {
    let text = bed.kubectl(&["get", "noderuntimehealth", &node.name, "-o", "json"]).ok()?;
    let health: Value = serde_json::from_str(&text).ok()?;
    let faults = health["status"]["faults"].as_array()?.clone();
    faults.into_iter().find(|fault| fault["type"] == kind)
}

/// The uid of the workload's running pod on a node.
fn victim(bed: &Bed, node: &Node) -> String {
    let find = || {
        let pods = view::pods(&|| bed.command("kubectl"), Some(&node.name)).unwrap();
        pods.into_iter().find(|pod| pod.owner.as_deref() == Some("work") && pod.ready)
    };
    until("the workload runs", RUNS, || find().is_some());
    find().unwrap().uid
}

/// Injects, waits until the fault is named (and confirmed, if asked), then lifts and waits until it is gone.
fn sees(
    bed: &Bed,
    nrh: &Path,
    node: &Node,
    kind: &str,
    confirmed: bool,
    inject: fn(&Node, &str) -> anyhow::Result<Injection>,
) -> Value {
    let uid = victim(bed, node);
    assert_eq!(fault(bed, node, kind), None, "before anything is injected");
    let injection = inject(node, &uid).unwrap();
    let mut seen = Value::Null;
    until(&format!("{kind} is named"), NAMED, || {
        seen = fault(bed, node, kind).unwrap_or_default();
        seen["state"] == "Confirmed" || (!confirmed && seen["subject"]["pod"]["uid"] == uid)
    });
    // The same on the node itself, without the API server.
    let told = node.run(nrh.to_str().unwrap(), &["status"]).unwrap();
    assert!(told.contains(&format!("fault {kind}")) && told.contains("took the last report"), "{told}");
    injection.lift(node).unwrap();
    until(&format!("{kind} is gone"), CLEARED, || fault(bed, node, kind).is_none());
    seen
}

#[test]
fn faults_of_the_runtime_are_named_on_real_nodes_and_taken_back() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: real nodes need root on Linux");
        return;
    }
    let nrh = operator::build().unwrap();
    let bed = Bed::up(BedOptions { name: "sight".into(), nodes: 2, ..BedOptions::default() }).unwrap();
    operator::load_image(&bed, &nrh).unwrap();
    operator::apply_folder(&bed, "config/default").unwrap();
    let labels = json!({"app": "work"});
    let container = json!({"name": "work", "image": images::WORK_IMAGE, "imagePullPolicy": "Never", "args": ["work"]});
    let work = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "work"},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"tolerations": [{"operator": "Exists"}], "containers": [container]}}},
    });
    bed.kubectl_input(&["apply", "-f", "-"], &work.to_string()).unwrap();
    operator::wait(&bed).unwrap();
    let [one, two] = bed.nodes() else { panic!("two nodes") };
    let (blocked, doubled) = thread::scope(|scope| {
        let blocked = scope.spawn(|| sees(&bed, &nrh, one, "RuntimeUpdateBlocked", true, faults::block_update));
        // Its grace is ten minutes: that it is seen is what only a real runtime can show.
        let doubled = scope.spawn(|| sees(&bed, &nrh, two, "DuplicateSandbox", false, faults::duplicate_sandbox));
        (blocked.join().unwrap(), doubled.join().unwrap())
    });
    assert!(blocked["message"].as_str().unwrap().contains("lists its sandboxes, but not its containers"), "{blocked}");
    assert!(blocked["evidence"].to_string().contains("a stopped shim"), "{blocked}");
    assert_eq!(doubled["state"], "Suspected", "{doubled}");
    assert!(doubled["message"].as_str().unwrap().contains("are ready at once"), "{doubled}");
    bed.down().unwrap();
}
