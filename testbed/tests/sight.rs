//! The probe, installed as shipped, names what is injected into a real node, and takes it back when it is gone.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod until;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nrh_testbed::faults::{self, Injection};
use nrh_testbed::matrix::{Seen, Way, seconds};
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
        pods.into_iter().find(|pod| matches!(pod.owner.as_deref(), Some("work" | "crowd")) && pod.ready)
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
    /// Confirmed, and in no condition of the Node.
    Confirmed,
    /// Confirmed by the controller alone.
    ToTheController,
    /// Confirmed by the probe, and in this condition of the Node.
    On(&'static str),
}

/// Waits until nothing of this kind is told of a node that nobody has harmed: a kubelet that began a moment ago is
/// suspected until it has completed its start.
fn healthy(bed: &Bed, node: &Node, kind: &str) {
    until(&format!("nothing tells of {kind} before it is injected"), CLEARED, || {
        health(bed, node).is_some_and(|health| health["status"]["probe"]["heartbeatAt"].is_string())
            && fault(bed, node, kind).is_none()
    });
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
    healthy(bed, node, kind);
    let injection = inject(node, &uid).unwrap();
    let (mut seen, mut record) = (Value::Null, Seen::of(kind, "containerd", Way::Real));
    until(&format!("{kind} is named"), NAMED, || {
        seen = fault(bed, node, kind).unwrap_or_default();
        let pod = &seen["subject"]["pod"];
        seen["state"] == "Confirmed"
            || (shows == Shows::Suspected && !seen.is_null() && (pod.is_null() || pod["uid"] == uid))
    });
    let took = seconds(injection.elapsed());
    (record.named, record.confirmed) = if shows == Shows::Suspected { (took, None) } else { (None, took) };
    if let Shows::On(condition) = shows {
        until("it stands on the Node", CLEARED, || on_node(bed, node, condition).as_deref() == Some("True"));
    }
    if shows != Shows::ToTheController {
        // The same on the node itself, without the API server.
        let told = node.run(nrh.to_str().unwrap(), &["status"]).unwrap();
        assert!(told.contains(&format!("fault {kind}")) && told.contains("took the last report"), "{told}");
    }
    if let Shows::On(_) = shows {
        kept(bed, nrh, node, kind);
    }
    injection.lift(node).unwrap();
    record.gone = seconds(until(&format!("{kind} is gone"), CLEARED, || fault(bed, node, kind).is_none()));
    record.record();
    if let Shows::On(condition) = shows {
        until("it stands on the Node no more", CLEARED, || on_node(bed, node, condition).as_deref() == Some("False"));
    }
    seen
}

/// The report names what was kept of a fault before anything was done, and the node prints it without the API server.
fn kept(bed: &Bed, nrh: &Path, node: &Node, kind: &str) {
    let mut name = String::new();
    until(&format!("the evidence of {kind} is kept"), CLEARED, || {
        let bundle = fault(bed, node, kind).map(|fault| fault["evidenceBundle"].clone()).unwrap_or_default();
        bundle.as_str().is_some_and(|bundle| {
            bundle.clone_into(&mut name);
            true
        })
    });
    let told = node.run(nrh.to_str().unwrap(), &["evidence", "--local", "--fault", &name]).unwrap();
    for part in [&format!("bundle {name}: node {}", node.name), &format!("fault {kind} (Confirmed"), "runtime process"]
    {
        assert!(told.contains(part), "{part:?} is missing in:\n{told}");
    }
}

/// How a condition stands in a node's object.
fn condition(bed: &Bed, node: &Node, kind: &str) -> String {
    let path = format!(r#"jsonpath={{.status.conditions[?(@.type=="{kind}")].status}}"#);
    bed.kubectl(&["get", "noderuntimehealth", &node.name, "-o", &path]).unwrap_or_default()
}

/// A DaemonSet of so many containers on nodes with this label.
fn workload(bed: &Bed, name: &str, containers: usize, node: &Value) {
    let labels = json!({"app": name});
    let container = |number: usize| {
        let name = format!("work-{number}");
        json!({"name": name, "image": images::WORK_IMAGE, "imagePullPolicy": "Never", "args": ["work"]})
    };
    let containers: Vec<Value> = (0..containers).map(container).collect();
    let work = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
            "nodeSelector": node, "tolerations": [{"operator": "Exists"}], "containers": containers}}},
    });
    bed.kubectl_input(&["apply", "-f", "-"], &work.to_string()).unwrap();
}

/// The product as shipped, with the mirror of conditions, and a workload on every node; on the third one with ten
/// containers.
fn install(bed: &Bed, programs: &operator::Programs) {
    operator::load_image(bed, programs).unwrap();
    operator::apply_folder(bed, "config/default").unwrap();
    // As the component config/node-conditions does.
    let rights = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/node-conditions/rbac.yaml");
    bed.kubectl(&["apply", "-f", rights]).unwrap();
    bed.kubectl(&["set", "env", "-n", "nrh-system", "deployment/nrh-controller", "NRH_NODE_CONDITIONS=all"]).unwrap();
    let crowded = bed.nodes()[2].name.as_str();
    bed.kubectl(&["label", "node", "--all", "crowd=none"]).unwrap();
    bed.kubectl(&["label", "node", "--overwrite", crowded, "crowd=ten"]).unwrap();
    workload(bed, "work", 1, &json!({"crowd": "none"}));
    workload(bed, "crowd", 10, &json!({"crowd": "ten"}));
    operator::wait(bed).unwrap();
}

/// Told in aws/eks-node-monitoring-agent #179.
#[test]
fn what_is_injected_into_real_nodes_is_named_and_taken_back() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: real nodes need root on Linux");
        return;
    }
    let programs = operator::build().unwrap();
    let nrh = &programs.nrh;
    let bed = Bed::up(BedOptions { name: "sight".into(), nodes: 7, ..BedOptions::default() }).unwrap();
    install(&bed, &programs);
    let [blocked, doubled, starting, dying, lacking, stalled, slow] = bed.nodes() else { panic!("seven nodes") };
    // Side by side: it is thresholds that take the time.
    thread::scope(|scope| {
        scope.spawn(|| blocked_update(&bed, nrh, blocked));
        scope.spawn(|| {
            missing_network(&bed, nrh, doubled);
            deaf_shim(&bed, nrh, doubled);
            duplicate_sandbox(&bed, nrh, doubled);
        });
        scope.spawn(|| blocked_start(&bed, nrh, starting));
        scope.spawn(|| {
            frozen_kubelet(&bed, nrh, dying);
            crash_loop(&bed, dying);
        });
        scope.spawn(|| lacking_node(&bed, lacking));
        scope.spawn(|| stalled_sync_loop(&bed, stalled));
        scope.spawn(|| slow_relists(&bed, slow));
    });
    bed.down().unwrap();
}

fn blocked_update(bed: &Bed, nrh: &Path, node: &Node) {
    let shows = Shows::On("ContainerRuntimeUnhealthy");
    let seen = sees(bed, nrh, node, "RuntimeUpdateBlocked", shows, faults::block_update);
    assert!(seen["message"].as_str().unwrap().contains("lists its sandboxes, but not its containers"), "{seen}");
    assert!(seen["evidence"].to_string().contains("a stopped shim"), "{seen}");
    // It outlives its fault, and comes out of the probe's pod.
    let args = ["evidence", &node.name, "--fault", "RuntimeUpdateBlocked", "--json"];
    let told = bed.command(nrh).args(args).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let bundles: Vec<Value> = serde_json::from_slice(&told.stdout).unwrap();
    let processes = bundles[0]["processes"].as_array().unwrap();
    assert!(processes.iter().any(|process| process["state"] == "T"), "the stopped shim: {processes:?}");
    assert!(processes.iter().any(|process| process["part"] == "runtime" && process["limits"]["lines"].is_array()));
}

/// Its grace is five minutes.
fn missing_network(bed: &Bed, nrh: &Path, node: &Node) {
    let seen = sees(bed, nrh, node, "NetworkNotReady", Shows::Suspected, |node, _| faults::take_network(node));
    assert!(seen["message"].as_str().unwrap().contains("NetworkPluginNotReady"), "{seen}");
}

fn deaf_shim(bed: &Bed, nrh: &Path, node: &Node) {
    let seen = sees(bed, nrh, node, "DeafShim", Shows::Confirmed, faults::deaf_shim);
    assert!(seen["target"]["process"]["state"] == "T" && seen["subject"]["kind"] == "Shim", "{seen}");
}

/// Its grace is ten minutes: that it is seen is what only a real runtime can show.
fn duplicate_sandbox(bed: &Bed, nrh: &Path, node: &Node) {
    let seen = sees(bed, nrh, node, "DuplicateSandbox", Shows::Suspected, faults::duplicate_sandbox);
    assert_eq!(seen["state"], "Suspected", "{seen}");
    assert!(seen["message"].as_str().unwrap().contains("are ready at once"), "{seen}");
}

/// Twice 15 s for each container behind the stopped shim: five minutes, of which no one else says anything.
fn blocked_start(bed: &Bed, nrh: &Path, node: &Node) {
    until("the kubelet's version is told, and that it has started the probe's pod", RUNS, || {
        health(bed, node).is_some_and(|health| {
            health["status"]["kubeletVersion"].is_string() && health["status"]["kubelet"]["makesPods"] == true
        })
    });
    let kubelet = health(bed, node).unwrap()["status"]["kubelet"].clone();
    let settings = &kubelet["settings"];
    assert_eq!((&settings["source"], &settings["requestTimeoutSeconds"]), (&json!("Default"), &json!(120)));
    let shows = Shows::ToTheController;
    let seen = sees(bed, nrh, node, "KubeletStartBlocked", shows, faults::block_kubelet_start);
    let message = seen["message"].as_str().unwrap();
    assert!(message.contains("although the node is Ready"), "{seen}");
    assert!(message.contains("likely cause: HungContainer"), "{seen}");
}

fn frozen_kubelet(bed: &Bed, nrh: &Path, node: &Node) {
    let shows = Shows::On("KubeletUnhealthy");
    let seen = sees(bed, nrh, node, "KubeletDown", shows, |node, _| faults::freeze_kubelet(node));
    assert!(seen["message"].as_str().unwrap().contains("its health check fails"), "{seen}");
    assert!(seen["evidence"].to_string().contains("no answer"), "{seen}");
}

/// A kubelet dies for the sixth time after three minutes, and the loop is confirmed a minute later.
fn crash_loop(bed: &Bed, node: &Node) {
    healthy(bed, node, "KubeletCrashLoop");
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
    assert!(seen["message"].as_str().unwrap().contains("again and again"), "{seen}");
    // Seven kills, a minute apart: the time is that of the test.
    Seen::of("KubeletCrashLoop", "containerd", Way::Real).record();
}

/// One injection, the fault it makes, and whether that is confirmed soon enough to be waited for.
type Made = (Injection, &'static str, bool);

/// What the node itself lacks, all at once: each is told apart from the others.
fn lacking_node(bed: &Bed, node: &Node) {
    let uid = victim(bed, node);
    until("a healthy node is seen whole", CLEARED, || {
        ["HostHealthy", "StorageReady", "ClientCertificateValid"]
            .iter()
            .all(|kind| condition(bed, node, kind) == "True")
    });
    let mut made: Vec<Made> = vec![
        (faults::full_disk(node).unwrap(), "DiskFull", false),
        (faults::read_only_run(node).unwrap(), "ReadOnlyFilesystem", true),
        (faults::few_files(node).unwrap(), "FdExhaustion", true),
        (faults::expired_certificate(node).unwrap(), "ClientCertificateExpiring", false),
    ];
    if faults::has_freezer() {
        made.push((faults::waiting_shim(node, &uid).unwrap(), "UninterruptibleProcess", false));
    } else {
        eprintln!("SKIP: no freezer of version 1 to make a shim wait");
    }
    let mut records = Vec::new();
    for (injection, kind, confirmed) in &made {
        let mut seen = Value::Null;
        until(&format!("{kind} is named"), HOST_NAMED, || {
            seen = fault(bed, node, kind).unwrap_or_default();
            seen["state"] == "Confirmed" || (!confirmed && seen["state"] == "Suspected")
        });
        println!("{kind}: {}", seen["message"]);
        let took = seconds(injection.elapsed());
        let (named, confirmed) = if *confirmed { (None, took) } else { (took, None) };
        records.push(Seen { named, confirmed, ..Seen::of(kind, "containerd", Way::Real) });
    }
    for (injection, kind, _) in made.iter().rev() {
        injection.lift(node).unwrap();
        println!("{kind} is lifted");
    }
    let lifted = Instant::now();
    for record in &mut records {
        let kind = record.fault.clone();
        until(&format!("{kind} is gone"), HOST_NAMED, || fault(bed, node, &kind).is_none());
        record.gone = seconds(lifted.elapsed());
        record.record();
    }
}

/// The kubelet's own check waits five minutes, the probe two more, and looks once a minute by then; one that is slow is
/// waited for as long.
const PORT_NAMED: Duration = Duration::from_mins(13);

/// Until the kubelet's own check fails: it waits five minutes.
const CHECK_FAILS: Duration = Duration::from_secs(315);

/// At rest the kubelet's port is asked every ten minutes: something else that is wrong makes the probe look sooner.
fn stalled_sync_loop(bed: &Bed, node: &Node) {
    let seen = sees_at_the_port(bed, node, "SyncLoopStalled", "SyncLoopRunning", |bed, node, _| {
        let injection = faults::dead_mount(node).unwrap();
        thread::sleep(CHECK_FAILS);
        let frozen = faults::freeze_shim(node, &victim(bed, node)).unwrap();
        until("a stalled sync loop is named", PORT_NAMED, || fault(bed, node, "SyncLoopStalled").is_some());
        frozen.lift(node).unwrap();
        injection
    });
    assert!(seen["message"].as_str().unwrap().contains("stands still"), "{seen}");
}

fn slow_relists(bed: &Bed, node: &Node) {
    let seen =
        sees_at_the_port(bed, node, "PlegSlow", "PodsWatched", |_, node, uid| faults::slow_lists(node, uid).unwrap());
    assert!(seen["message"].as_str().unwrap().contains("30 s or more"), "{seen}");
}

/// Injects, waits until the fault is confirmed while the node is Ready, then lifts and waits until the look is clean.
fn sees_at_the_port(
    bed: &Bed,
    node: &Node,
    kind: &str,
    shown: &str,
    inject: fn(&Bed, &Node, &str) -> Injection,
) -> Value {
    let uid = victim(bed, node);
    // With the rights and the certificate of a real kubelet it is told, as soon as two looks have been had.
    until("the kubelet's port tells of a healthy node", CLEARED, || condition(bed, node, shown) == "True");
    let injection = inject(bed, node, &uid);
    let mut seen = Value::Null;
    until(&format!("{kind} is confirmed"), PORT_NAMED, || {
        seen = fault(bed, node, kind).unwrap_or_default();
        seen["state"] == "Confirmed"
    });
    let confirmed = seconds(injection.elapsed());
    assert_eq!(on_node(bed, node, "Ready").as_deref(), Some("True"), "grey: the node says that all is well");
    until("its condition says so", CLEARED, || condition(bed, node, shown) == "False");
    injection.lift(node).unwrap();
    let gone = seconds(until(&format!("{kind} is gone"), HOST_NAMED, || fault(bed, node, kind).is_none()));
    Seen { confirmed, gone, ..Seen::of(kind, "containerd", Way::Real) }.record();
    until("its condition is clean", CLEARED, || condition(bed, node, shown) == "True");
    seen
}
