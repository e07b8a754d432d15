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

/// How a condition stands on a Node.
fn on_node(bed: &Bed, node: &Node, kind: &str) -> Option<String> {
    let text = bed.kubectl(&["get", "node", &node.name, "-o", "json"]).ok()?;
    let node: Value = serde_json::from_str(&text).ok()?;
    let conditions = node["status"]["conditions"].as_array()?.clone();
    conditions.into_iter().find(|one| one["type"] == kind).and_then(|one| one["status"].as_str().map(str::to_owned))
}

/// Injects, waits until the fault is named, then lifts and waits until it is gone. `confirmed` is the condition of the
/// Node in which a confirmed fault shows; without it, to be named is enough.
fn sees(
    bed: &Bed,
    nrh: &Path,
    node: &Node,
    kind: &str,
    confirmed: Option<&str>,
    inject: fn(&Node, &str) -> anyhow::Result<Injection>,
) -> Value {
    let uid = victim(bed, node);
    assert_eq!(fault(bed, node, kind), None, "before anything is injected");
    let injection = inject(node, &uid).unwrap();
    let mut seen = Value::Null;
    until(&format!("{kind} is named"), NAMED, || {
        seen = fault(bed, node, kind).unwrap_or_default();
        seen["state"] == "Confirmed" || (confirmed.is_none() && seen["subject"]["pod"]["uid"] == uid)
    });
    if let Some(condition) = confirmed {
        until("it stands on the Node", CLEARED, || on_node(bed, node, condition).as_deref() == Some("True"));
    }
    // The same on the node itself, without the API server.
    let told = node.run(nrh.to_str().unwrap(), &["status"]).unwrap();
    assert!(told.contains(&format!("fault {kind}")) && told.contains("took the last report"), "{told}");
    injection.lift(node).unwrap();
    until(&format!("{kind} is gone"), CLEARED, || fault(bed, node, kind).is_none());
    if let Some(condition) = confirmed {
        until("it stands on the Node no more", CLEARED, || on_node(bed, node, condition).as_deref() == Some("False"));
    }
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
    // As the component config/node-conditions does.
    let rights = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/node-conditions/rbac.yaml");
    bed.kubectl(&["apply", "-f", rights]).unwrap();
    bed.kubectl(&["set", "env", "-n", "nrh-system", "deployment/nrh-controller", "NRH_NODE_CONDITIONS=all"]).unwrap();
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
        let blocked = scope.spawn(|| {
            sees(&bed, &nrh, one, "RuntimeUpdateBlocked", Some("ContainerRuntimeUnhealthy"), faults::block_update)
        });
        // Its grace is ten minutes: that it is seen is what only a real runtime can show.
        let doubled = scope.spawn(|| sees(&bed, &nrh, two, "DuplicateSandbox", None, faults::duplicate_sandbox));
        (blocked.join().unwrap(), doubled.join().unwrap())
    });
    assert!(blocked["message"].as_str().unwrap().contains("lists its sandboxes, but not its containers"), "{blocked}");
    assert!(blocked["evidence"].to_string().contains("a stopped shim"), "{blocked}");
    assert_eq!(doubled["state"], "Suspected", "{doubled}");
    assert!(doubled["message"].as_str().unwrap().contains("are ready at once"), "{doubled}");
    bed.down().unwrap();
}
