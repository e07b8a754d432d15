//! The probe, installed by the shipped manifests, names what is injected into a real node, and takes it back when it is gone.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nrh_testbed::faults::{self, Injection};
use nrh_testbed::images::{FORGED, FORGED_IMAGE};
use nrh_testbed::matrix::{Seen, Way, seconds};
use nrh_testbed::wait::{SOON, until, until_within};
use nrh_testbed::{Bed, Node, operator, view};
use serde_json::{Value, json};

use crate::sick::{self, Place};

/// A node's object.
pub fn health(bed: &Bed, node: &Node) -> Option<Value> {
    operator::health(bed, &node.name).ok()
}

/// What a node's object says of one kind of fault, be it the probe's to find or the controller's.
pub fn fault(bed: &Bed, node: &Node, kind: &str) -> Option<Value> {
    operator::faults(&health(bed, node)?).find(|fault| fault["type"] == kind).cloned()
}

/// The uid of the workload's running pod on a node.
fn victim(bed: &Bed, node: &Node) -> String {
    let find = || {
        let pods = view::pods(bed, Some(&node.name)).unwrap();
        pods.into_iter().find(|pod| matches!(pod.owner.as_deref(), Some("work" | "crowd")) && pod.ready)
    };
    until("the workload runs", || find().is_some());
    find().unwrap().uid
}

/// How a condition stands on a Node.
fn on_node(bed: &Bed, node: &Node, kind: &str) -> Option<String> {
    let node = bed.get(&["node", &node.name]).ok()?;
    let conditions = node["status"]["conditions"].as_array()?.clone();
    conditions.into_iter().find(|one| one["type"] == kind).and_then(|one| one["status"].as_str().map(str::to_owned))
}

/// Waits until a fault is confirmed; what the node's object says of it then.
pub fn confirmed(bed: &Bed, node: &Node, kind: &str, limit: Duration) -> Value {
    let mut seen = Value::Null;
    until_within(&format!("{kind} is confirmed"), limit, || {
        seen = fault(bed, node, kind).unwrap_or_default();
        seen["state"] == "Confirmed"
    });
    seen
}

/// Waits until a fault is no longer reported.
pub fn gone(bed: &Bed, node: &Node, kind: &str) -> Duration {
    until(&format!("{kind} is gone"), || fault(bed, node, kind).is_none())
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
    until(&format!("nothing tells of {kind} before it is injected"), || {
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
    until(&format!("{kind} is named"), || {
        seen = fault(bed, node, kind).unwrap_or_default();
        let pod = &seen["subject"]["pod"];
        seen["state"] == "Confirmed"
            || (shows == Shows::Suspected && !seen.is_null() && (pod.is_null() || pod["uid"] == uid))
    });
    let took = seconds(injection.elapsed());
    (record.named, record.confirmed) = if shows == Shows::Suspected { (took, None) } else { (None, took) };
    if let Shows::On(condition) = shows {
        until("it stands on the Node", || on_node(bed, node, condition).as_deref() == Some("True"));
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
    record.gone = seconds(gone(bed, node, kind));
    record.record();
    if let Shows::On(condition) = shows {
        until("it stands on the Node no more", || on_node(bed, node, condition).as_deref() == Some("False"));
    }
    seen
}

/// The report names what was kept of a fault before anything was done, and the node prints it without the API server.
fn kept(bed: &Bed, nrh: &Path, node: &Node, kind: &str) {
    let mut name = String::new();
    until(&format!("the evidence of {kind} is kept"), || {
        let bundle = fault(bed, node, kind).and_then(|fault| fault["evidenceBundle"].as_str().map(str::to_owned));
        bundle.map(|bundle| name = bundle).is_some()
    });
    let told = node.run(nrh.to_str().unwrap(), &["evidence", "--local", "--fault", &name]).unwrap();
    for part in [&format!("bundle {name}: node {}", node.name), &format!("fault {kind} (Confirmed"), "runtime process"]
    {
        assert!(told.contains(part), "{part:?} is missing in:\n{told}");
    }
}

/// How a condition stands in a node's object.
pub fn condition(bed: &Bed, node: &Node, kind: &str) -> String {
    let path = format!(r#"jsonpath={{.status.conditions[?(@.type=="{kind}")].status}}"#);
    bed.kubectl(&["get", "noderuntimehealth", &node.name, "-o", &path]).unwrap_or_default()
}

/// Joins the shared bed, and goes on where one can be: with the bed, the operator's program, and a node.
fn on(place: Place, test: impl FnOnce(&Bed, &Path, &Node)) {
    if let Some((bed, node)) = sick::join(place) {
        test(&bed, &bed.programs().nrh, &node);
    }
}

/// Told in aws/eks-node-monitoring-agent #179.
#[test]
fn a_blocked_update_is_named_with_its_evidence_and_taken_back() {
    on(Place::BlockedUpdate, |bed, nrh, node| {
        let shows = Shows::On("ContainerRuntimeUnhealthy");
        let seen = sees(bed, nrh, node, "RuntimeUpdateBlocked", shows, faults::block_update);
        assert!(seen["message"].as_str().unwrap().contains("lists its sandboxes, but not its containers"), "{seen}");
        assert!(seen["evidence"].to_string().contains("a stopped shim"), "{seen}");
        // It outlives its fault, and comes out of the probe's pod.
        let args = ["evidence", &node.name, "--fault", "RuntimeUpdateBlocked", "-o", "json"];
        let told = bed.command(nrh).args(args).output().unwrap();
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        let bundles: Vec<Value> = serde_json::from_slice(&told.stdout).unwrap();
        let processes = bundles[0]["processes"].as_array().unwrap();
        assert!(processes.iter().any(|process| process["state"] == "T"), "the stopped shim: {processes:?}");
        assert!(processes.iter().any(|process| process["part"] == "runtime" && process["limits"]["lines"].is_array()));
    });
}

#[test]
fn a_shim_that_only_seems_to_sleep_a_missing_network_an_unresponsive_shim_and_a_duplicate_sandbox_are_named_and_taken_back()
 {
    on(Place::Doubled, |bed, nrh, node| {
        sleeping_shim(bed, nrh, node);
        missing_network(bed, nrh, node);
        unresponsive_shim(bed, nrh, node);
        duplicate_sandbox(bed, nrh, node);
    });
}

/// Twice 15 s for each container behind the stopped shim: five minutes, of which no one else says anything.
#[test]
fn a_kubelet_whose_start_is_blocked_is_named_although_its_node_is_ready() {
    on(Place::BlockedStart, |bed, nrh, node| {
        until("the kubelet's version is told, and that it has started the probe's pod", || {
            health(bed, node).is_some_and(|health| {
                health["status"]["kubeletVersion"].is_string() && health["status"]["kubelet"]["createsPods"] == true
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
    });
}

#[test]
fn a_frozen_kubelet_is_named_and_taken_back() {
    on(Place::FrozenKubelet, |bed, nrh, node| {
        let shows = Shows::On("KubeletUnhealthy");
        let seen = sees(bed, nrh, node, "KubeletDown", shows, |node, _| faults::freeze_kubelet(node));
        assert!(seen["message"].as_str().unwrap().contains("its health check fails"), "{seen}");
        assert!(seen["evidence"].to_string().contains("no answer"), "{seen}");
    });
}

/// Six that complete their start within half an hour are a loop, which is confirmed a minute later. Each has to be seen, although a
/// process that is older than the next one is called like it.
#[test]
fn a_kubelet_that_dies_again_and_again_is_named() {
    on(Place::DyingKubelet, |bed, nrh, node| {
        healthy(bed, node, "KubeletCrashLoop");
        forge(bed, node);
        for _ in 0..7 {
            until("the probe has seen a kubelet", || started(nrh, node).is_some());
            let before = started(nrh, node);
            faults::kill_kubelet(node).unwrap();
            until("the probe has seen the next kubelet", || started(nrh, node).is_some_and(|now| Some(now) != before));
        }
        let seen = confirmed(bed, node, "KubeletCrashLoop", SOON);
        assert!(seen["message"].as_str().unwrap().contains("again and again"), "{seen}");
        let faults = health(bed, node).unwrap()["status"]["faults"].to_string();
        assert!(!faults.contains(&"f".repeat(64)), "a shim or a plugin of a pod was believed: {faults}");
        // The time is that of seven kills: the test's.
        Seen::of("KubeletCrashLoop", "containerd", Way::Real).record();
    });
}

/// What the node itself lacks, all at once: each is told apart from the others.
#[test]
fn what_a_node_lacks_is_named_each_for_itself_and_taken_back() {
    on(Place::Lacking, |bed, _, node| {
        let uid = victim(bed, node);
        until("a healthy node is seen whole", || {
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
            until(&format!("{kind} is named"), || {
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
            gone(bed, node, &kind);
            record.gone = seconds(lifted.elapsed());
            record.record();
        }
        full_run(bed, node);
    });
}

/// At rest the kubelet's port is asked every ten minutes: something else that is wrong makes the probe check sooner.
#[test]
fn a_sync_loop_that_stands_still_is_named_while_the_node_is_ready() {
    on(Place::StalledSyncLoop, |bed, _, node| {
        let seen = sees_at_the_port(bed, node, "SyncLoopStalled", "SyncLoopRunning", |bed, node, _| {
            let injection = faults::dead_mount(node).unwrap();
            thread::sleep(CHECK_FAILS);
            let frozen = faults::freeze_shim(node, &victim(bed, node)).unwrap();
            until_within("a stalled sync loop is named", PORT_NAMED, || fault(bed, node, "SyncLoopStalled").is_some());
            frozen.lift(node).unwrap();
            injection
        });
        assert!(seen["message"].as_str().unwrap().contains("stands still"), "{seen}");
    });
}

#[test]
fn relists_that_are_slow_are_named_while_the_node_is_ready() {
    on(Place::SlowRelists, |bed, _, node| {
        let seen = sees_at_the_port(bed, node, "PlegSlow", "PlegHealthy", |_, node, uid| {
            faults::slow_lists(node, uid).unwrap()
        });
        assert!(seen["message"].as_str().unwrap().contains("30 s or more"), "{seen}");
    });
}

/// Nothing of its process shows that it hangs, and nobody else asks it anything.
fn sleeping_shim(bed: &Bed, nrh: &Path, node: &Node) {
    if !faults::has_unified() {
        eprintln!("SKIP: no control groups of version 2 to freeze a shim in");
        return;
    }
    until("all containers have answered", || condition(bed, node, "ContainersResponsive") == "True");
    let shows = Shows::On("ContainersUnresponsive");
    let seen = sees(bed, nrh, node, "HungContainer", shows, faults::sleeping_shim);
    assert!(seen["target"]["process"]["state"] == "S", "{seen}");
    assert!(seen["message"].as_str().unwrap().contains("does not answer while the runtime does"), "{seen}");
}

/// Its grace is five minutes.
fn missing_network(bed: &Bed, nrh: &Path, node: &Node) {
    let seen = sees(bed, nrh, node, "NetworkNotReady", Shows::Suspected, |node, _| faults::take_network(node));
    assert!(seen["message"].as_str().unwrap().contains("NetworkPluginNotReady"), "{seen}");
}

fn unresponsive_shim(bed: &Bed, nrh: &Path, node: &Node) {
    let seen = sees(bed, nrh, node, "UnresponsiveShim", Shows::Confirmed, faults::unresponsive_shim);
    assert!(seen["target"]["process"]["state"] == "T" && seen["subject"]["kind"] == "Shim", "{seen}");
}

/// Its grace is ten minutes: that it is seen is what only a real runtime can show.
fn duplicate_sandbox(bed: &Bed, nrh: &Path, node: &Node) {
    let seen = sees(bed, nrh, node, "DuplicateSandbox", Shows::Suspected, faults::duplicate_sandbox);
    assert_eq!(seen["state"], "Suspected", "{seen}");
    assert!(seen["message"].as_str().unwrap().contains("are ready at once"), "{seen}");
}

/// When the kubelet was started that runs, if it has completed its start, as the probe says on the node itself.
fn started(nrh: &Path, node: &Node) -> Option<String> {
    let told: Value = serde_json::from_str(&node.run(nrh.to_str().unwrap(), &["status", "-o", "json"]).ok()?).unwrap();
    let kubelet = &told["status"]["kubelet"];
    kubelet["startedAt"].as_str().filter(|_| kubelet["started"] == true).map(str::to_owned)
}

/// A pod of no user of the node's, whose programs are called like a kubelet, a shim and a network plugin, among the node's processes.
fn forge(bed: &Bed, node: &Node) {
    let [kubelet, shim, plugin, runtime] = FORGED.map(|name| format!("/{name}"));
    let serves = ["-namespace", "k8s.io", "-id", &"f".repeat(64)];
    let container = |name: &str, command: &[&str]| json!({"name": name, "image": FORGED_IMAGE, "command": command});
    // Its parent is called like what calls plugins.
    let mut hung = container("plugin", &[&runtime, &plugin, "work"]);
    hung["env"] =
        json!([{"name": "CNI_COMMAND", "value": "ADD"}, {"name": "CNI_CONTAINERID", "value": "f".repeat(64)}]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "forger", "namespace": "default"},
        "spec": {"nodeName": node.name, "hostPID": true, "hostNetwork": true, "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsUser": 65534}, "tolerations": [{"operator": "Exists"}],
            "containers": [container("kubelet", &[&kubelet]), container("shim", &[&[shim.as_str()], &serves[..]].concat()), hung]}});
    bed.apply(&pod).unwrap();
    bed.kubectl(&["wait", "pod", "forger", "--for=condition=Ready", "--timeout=480s"]).unwrap();
}

/// One injection, the fault it makes, and whether that is confirmed soon enough to be waited for.
type Made = (Injection, &'static str, bool);

/// The folder of the runtime's sockets has no room. It is checked apart: `/run` that takes no writes hides it.
fn full_run(bed: &Bed, node: &Node) {
    let kind = "RunFilesystemFull";
    let injection = faults::full_run(node).unwrap();
    confirmed(bed, node, kind, SOON);
    let confirmed = seconds(injection.elapsed());
    injection.lift(node).unwrap();
    let gone = seconds(gone(bed, node, kind));
    Seen { confirmed, gone, ..Seen::of(kind, "containerd", Way::Real) }.record();
}

/// The kubelet's own check waits five minutes, the probe two more, and checks once a minute by then; one that is slow is
/// waited for as long.
const PORT_NAMED: Duration = Duration::from_mins(13);

/// Until the kubelet's own check fails: it waits five minutes.
const CHECK_FAILS: Duration = Duration::from_secs(315);

/// Injects, waits until the fault is confirmed while the node is Ready, then lifts and waits until the check is clean.
fn sees_at_the_port(
    bed: &Bed,
    node: &Node,
    kind: &str,
    shown: &str,
    inject: fn(&Bed, &Node, &str) -> Injection,
) -> Value {
    let uid = victim(bed, node);
    // With the rights and the certificate of a real kubelet it is told, after two checks.
    until("the kubelet's port tells of a healthy node", || condition(bed, node, shown) == "True");
    let injection = inject(bed, node, &uid);
    let seen = confirmed(bed, node, kind, PORT_NAMED);
    let confirmed = seconds(injection.elapsed());
    assert_eq!(on_node(bed, node, "Ready").as_deref(), Some("True"), "grey: the node says that all is well");
    until("its condition says so", || condition(bed, node, shown) == "False");
    injection.lift(node).unwrap();
    let gone = seconds(gone(bed, node, kind));
    Seen { confirmed, gone, ..Seen::of(kind, "containerd", Way::Real) }.record();
    until("its condition is clean", || condition(bed, node, shown) == "True");
    seen
}
