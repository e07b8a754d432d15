//! The probe, installed as shipped, names what is injected into a real node, and takes it back when it is gone.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod until;

use std::path::{Path, PathBuf};
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

/// A node's object.
fn health(bed: &Bed, node: &Node) -> Option<Value> {
    let text = bed.kubectl(&["get", "noderuntimehealth", &node.name, "-o", "json"]).ok()?;
    serde_json::from_str(&text).ok()
}

/// What a node's object says of one kind of fault, be it the probe's to find or the controller's.
fn fault(bed: &Bed, node: &Node, kind: &str) -> Option<Value> {
    let status = health(bed, node)?["status"].clone();
    let lists = [&status["faults"], &status["clusterFaults"]];
    let found = lists.into_iter().filter_map(Value::as_array).flatten().find(|fault| fault["type"] == kind);
    found.cloned()
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

/// Time until what is confirmed the latest of what the node itself does wrong: a wait of a minute and two more.
const HOST_NAMED: Duration = Duration::from_mins(8);

/// How a condition stands on a Node.
fn on_node(bed: &Bed, node: &Node, kind: &str) -> Option<String> {
    let text = bed.kubectl(&["get", "node", &node.name, "-o", "json"]).ok()?;
    let node: Value = serde_json::from_str(&text).ok()?;
    let conditions = node["status"]["conditions"].as_array()?.clone();
    conditions.into_iter().find(|one| one["type"] == kind).and_then(|one| one["status"].as_str().map(str::to_owned))
}

/// Where a fault shows that is injected.
#[derive(Clone, Copy, PartialEq)]
enum Shows {
    /// To be named is enough: to confirm it takes too long.
    Suspected,
    /// Confirmed by the controller alone.
    ToTheController,
    /// Confirmed by the probe, and in this condition of the Node.
    On(&'static str),
}

/// Injects, waits until the fault is named, then lifts and waits until it is gone.
fn sees(
    bed: &Bed,
    nrh: &Path,
    node: &Node,
    kind: &str,
    shows: Shows,
    inject: fn(&Node, &str) -> anyhow::Result<Injection>,
) -> Value {
    let uid = victim(bed, node);
    assert_eq!(fault(bed, node, kind), None, "before anything is injected");
    let injection = inject(node, &uid).unwrap();
    let mut seen = Value::Null;
    until(&format!("{kind} is named"), NAMED, || {
        seen = fault(bed, node, kind).unwrap_or_default();
        seen["state"] == "Confirmed" || (shows == Shows::Suspected && seen["subject"]["pod"]["uid"] == uid)
    });
    if let Shows::On(condition) = shows {
        until("it stands on the Node", CLEARED, || on_node(bed, node, condition).as_deref() == Some("True"));
    }
    if shows != Shows::ToTheController {
        // The same on the node itself, without the API server.
        let told = node.run(nrh.to_str().unwrap(), &["status"]).unwrap();
        assert!(told.contains(&format!("fault {kind}")) && told.contains("took the last report"), "{told}");
    }
    injection.lift(node).unwrap();
    until(&format!("{kind} is gone"), CLEARED, || fault(bed, node, kind).is_none());
    if let Shows::On(condition) = shows {
        until("it stands on the Node no more", CLEARED, || on_node(bed, node, condition).as_deref() == Some("False"));
    }
    seen
}

/// How a condition stands in a node's object.
fn condition(bed: &Bed, node: &Node, kind: &str) -> String {
    let path = format!(r#"jsonpath={{.status.conditions[?(@.type=="{kind}")].status}}"#);
    bed.kubectl(&["get", "noderuntimehealth", &node.name, "-o", &path]).unwrap_or_default()
}

/// Two nodes with the product as shipped, its binary, and a workload of so many containers; `None`, and loudly so, where
/// none can be.
fn installed(name: &str, containers: usize) -> Option<(Bed, PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: real nodes need root on Linux");
        return None;
    }
    let nrh = operator::build().unwrap();
    let bed = Bed::up(BedOptions { name: name.into(), nodes: 2, ..BedOptions::default() }).unwrap();
    operator::load_image(&bed, &nrh).unwrap();
    operator::apply_folder(&bed, "config/default").unwrap();
    // As the component config/node-conditions does.
    let rights = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/node-conditions/rbac.yaml");
    bed.kubectl(&["apply", "-f", rights]).unwrap();
    bed.kubectl(&["set", "env", "-n", "nrh-system", "deployment/nrh-controller", "NRH_NODE_CONDITIONS=all"]).unwrap();
    let labels = json!({"app": "work"});
    let container = |number: usize| {
        let name = format!("work-{number}");
        json!({"name": name, "image": images::WORK_IMAGE, "imagePullPolicy": "Never", "args": ["work"]})
    };
    let containers: Vec<Value> = (0..containers).map(container).collect();
    let work = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "work"},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"tolerations": [{"operator": "Exists"}], "containers": containers}}},
    });
    bed.kubectl_input(&["apply", "-f", "-"], &work.to_string()).unwrap();
    operator::wait(&bed).unwrap();
    Some((bed, nrh))
}

#[test]
fn faults_of_the_runtime_are_named_on_real_nodes_and_taken_back() {
    let Some((bed, nrh)) = installed("sight", 1) else { return };
    let [one, two] = bed.nodes() else { panic!("two nodes") };
    let (blocked, doubled) = thread::scope(|scope| {
        let blocked = scope.spawn(|| {
            sees(&bed, &nrh, one, "RuntimeUpdateBlocked", Shows::On("ContainerRuntimeUnhealthy"), faults::block_update)
        });
        // Its grace is ten minutes: that it is seen is what only a real runtime can show.
        let doubled =
            scope.spawn(|| sees(&bed, &nrh, two, "DuplicateSandbox", Shows::Suspected, faults::duplicate_sandbox));
        (blocked.join().unwrap(), doubled.join().unwrap())
    });
    assert!(blocked["message"].as_str().unwrap().contains("lists its sandboxes, but not its containers"), "{blocked}");
    assert!(blocked["evidence"].to_string().contains("a stopped shim"), "{blocked}");
    assert_eq!(doubled["state"], "Suspected", "{doubled}");
    assert!(doubled["message"].as_str().unwrap().contains("are ready at once"), "{doubled}");
    bed.down().unwrap();
}

/// A kubelet dies for the sixth time after three minutes, and the loop is confirmed a minute later.
fn crash_loop(bed: &Bed, node: &Node) -> Value {
    assert_eq!(fault(bed, node, "KubeletCrashLoop"), None, "before anything is injected");
    for _ in 0..7 {
        faults::kill_kubelet(node).unwrap();
        // The next one is there after 5 s, and counts as started after 20 s more; the probe looks every 30 s.
        thread::sleep(Duration::from_mins(1));
    }
    let mut seen = Value::Null;
    until("KubeletCrashLoop is confirmed", NAMED, || {
        seen = fault(bed, node, "KubeletCrashLoop").unwrap_or_default();
        seen["state"] == "Confirmed"
    });
    seen
}

#[test]
fn faults_of_the_kubelet_are_named_on_real_nodes_and_taken_back() {
    // Twice 15 s for each container behind the stopped shim: five minutes, of which no one else says anything.
    let Some((bed, nrh)) = installed("sight-kubelet", 10) else { return };
    let [one, two] = bed.nodes() else { panic!("two nodes") };
    until("the controller tells the kubelet's version", RUNS, || {
        health(&bed, one).is_some_and(|health| health["status"]["kubeletVersion"].as_str().is_some())
    });
    let settings = health(&bed, one).unwrap()["status"]["kubelet"]["settings"].clone();
    assert_eq!((&settings["source"], &settings["requestTimeoutSeconds"]), (&json!("Default"), &json!(120)));
    assert_eq!(health(&bed, one).unwrap()["status"]["kubelet"]["makesPods"], true, "it has started the probe's pod");

    let (blocked, (looped, frozen)) = thread::scope(|scope| {
        let blocked = scope.spawn(|| {
            sees(&bed, &nrh, one, "KubeletStartBlocked", Shows::ToTheController, faults::block_kubelet_start)
        });
        let others = scope.spawn(|| {
            let frozen = sees(&bed, &nrh, two, "KubeletDown", Shows::On("KubeletUnhealthy"), |node, _| {
                faults::freeze_kubelet(node)
            });
            (crash_loop(&bed, two), frozen)
        });
        (blocked.join().unwrap(), others.join().unwrap())
    });
    let message = blocked["message"].as_str().unwrap();
    assert!(message.contains("although the node is Ready"), "{blocked}");
    assert!(message.contains("likely cause: HungContainer"), "{blocked}");
    assert!(frozen["message"].as_str().unwrap().contains("its health check fails"), "{frozen}");
    assert!(frozen["evidence"].to_string().contains("no answer"), "{frozen}");
    assert!(looped["message"].as_str().unwrap().contains("again and again"), "{looped}");
    bed.down().unwrap();
}

/// One injection, the fault it makes, and whether that is confirmed soon enough to be waited for.
type Made = (Injection, &'static str, bool);

#[test]
fn faults_of_the_node_itself_are_named_and_taken_back() {
    let Some((bed, _)) = installed("sight-host", 1) else { return };
    let [node, _] = bed.nodes() else { panic!("two nodes") };
    let uid = victim(&bed, node);
    until("a healthy node is seen whole", CLEARED, || {
        ["HostHealthy", "StorageReady", "ClientCertificateValid"]
            .iter()
            .all(|kind| condition(&bed, node, kind) == "True")
    });
    let mut made: Vec<Made> = vec![
        (faults::full_disk(node).unwrap(), "DiskFull", false),
        (faults::read_only_run(node).unwrap(), "ReadOnlyFilesystem", true),
        (faults::few_files(node).unwrap(), "FdExhaustion", true),
        (faults::expired_certificate(node).unwrap(), "ClientCertificateExpiring", false),
    ];
    if faults::has_freezer() {
        made.push((faults::waiting_shim(node, &uid).unwrap(), "UninterruptibleProcess", true));
    } else {
        eprintln!("SKIP: no freezer of version 1 to make a shim wait");
    }
    for (_, kind, confirmed) in &made {
        let mut seen = Value::Null;
        until(&format!("{kind} is named"), HOST_NAMED, || {
            seen = fault(&bed, node, kind).unwrap_or_default();
            seen["state"] == "Confirmed" || (!confirmed && seen["state"] == "Suspected")
        });
        println!("{kind}: {}", seen["message"]);
    }
    for (injection, kind, _) in made.iter().rev() {
        injection.lift(node).unwrap();
        println!("{kind} is lifted");
    }
    for (_, kind, _) in &made {
        until(&format!("{kind} is gone"), HOST_NAMED, || fault(&bed, node, kind).is_none());
    }
    bed.down().unwrap();
}
