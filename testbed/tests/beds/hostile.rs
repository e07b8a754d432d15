//! What tenants and vendors do to real nodes: more processes than the probe keeps, a script in place of the OCI runtime, a pod that
//! goes later than it should.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nrh_testbed::faults;
use nrh_testbed::matrix::{Seen, Way, seconds};
use nrh_testbed::view::{self, Pod};
use nrh_testbed::wait::{SOON, until};
use nrh_testbed::{Bed, BedOptions, Node, images, operator, process, work};
use serde_json::{Value, json};

use crate::shared::{Guest, Shared};
use crate::sight::{confirmed, fault, gone, health};

static HOSTILE: Shared = Shared::new(up);

/// Whose node it is. The first node of the bed stays well: there the controller runs.
#[derive(Clone, Copy, Debug)]
enum Place {
    Flooded = 1,
    Wrapped,
    Rolled,
    Frozen,
}

/// Half of the processes that a node gets: together more than the probe keeps, and fewer than a small machine has pids for.
const HALF: usize = 9_000;
/// What the probe keeps of a process table, whatever it is.
const KEPT: usize = 16_384;
/// How long nothing may be told of a node on which all is well.
const QUIET: Duration = Duration::from_mins(1);

/// How long the pod of a rolling update stays after its grace period.
const OVERDUE: Duration = Duration::from_secs(20);
/// Longer than a pod may be overdue before it counts as stuck.
const NEVER_STUCK: Duration = Duration::from_mins(3);

fn up(programs: &operator::Programs) -> Bed {
    let nodes = Place::Frozen as usize + 1;
    let bed = Bed::up(BedOptions { name: "hostile".into(), nodes, ..BedOptions::default() }).unwrap();
    operator::load_image(&bed, bed.nodes(), programs).unwrap();
    let others: Vec<&str> = bed.nodes().iter().skip(1).map(|node| node.name.as_str()).collect();
    bed.kubectl(&[&["taint", "node"], others.as_slice(), &["hostile/reserved=:NoSchedule"]].concat()).unwrap();
    operator::apply_folder(&bed, "config/default").unwrap();
    operator::wait(&bed).unwrap();
    bed
}

fn join(place: Place) -> Option<(Guest, Node)> {
    let bed = HOSTILE.join()?;
    let node = bed.nodes()[place as usize].clone();
    Some((bed, node))
}

/// Makes a pod of the usual container, with these fields of its spec instead.
fn pod(bed: &Bed, node: &Node, name: &str, changes: &Value) {
    let mut pod = work::pod(name, &node.name);
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    pod["spec"].as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    bed.apply(&pod).unwrap();
}

fn ready(bed: &Bed, name: &str) -> Pod {
    let find = || view::pod(bed, "default", name).unwrap().filter(|pod| pod.ready);
    until(&format!("pod {name} runs"), || find().is_some());
    find().unwrap()
}

/// A pod of so many processes that wait until somebody writes, with the machine's shell.
fn flood(bed: &Bed, node: &Node, name: &str, mut spec: Value) {
    let script = format!(
        "mkfifo /flood/never; i=0; while [ $i -lt {HALF} ]; do ( read x </flood/never ) & i=$((i+1)); done; wait"
    );
    let folders = ["bin", "lib", "lib64"];
    let of_host = folders.map(|name| json!({"name": name, "hostPath": {"path": format!("/{name}")}}));
    let mut volumes = of_host.to_vec();
    volumes.push(json!({"name": "flood", "emptyDir": {}}));
    let mounts = folders.map(|name| json!({"name": name, "mountPath": format!("/{name}"), "readOnly": true}));
    let mut mounts = mounts.to_vec();
    mounts.push(json!({"name": "flood", "mountPath": "/flood"}));
    spec["restartPolicy"] = json!("Never");
    spec["volumes"] = json!(volumes);
    spec["containers"] = json!([{"name": "flood", "image": images::WORK_IMAGE, "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script], "env": [{"name": "PATH", "value": "/bin"}], "volumeMounts": mounts}]);
    pod(bed, node, name, &spec);
}

/// The node's own pids.
fn pids(node: &Node) -> Vec<i32> {
    let entries = fs::read_dir(node.root_path("/proc")).unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The probe's process, and the most memory that it has ever had, in KiB.
fn probe(node: &Node) -> (i32, u64) {
    let named = |pid: &i32| {
        fs::read_to_string(node.root_path(format!("/proc/{pid}/comm"))).is_ok_and(|name| name.trim() == "nrh-probe")
    };
    let pid = pids(node).into_iter().find(named).unwrap();
    let status = fs::read_to_string(node.root_path(format!("/proc/{pid}/status"))).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    (pid, most.trim().trim_end_matches(" kB").parse().unwrap())
}

/// What a node's report says of the collector of processes, where every collector is as it should be.
fn processes(bed: &Bed, node: &Node) -> Option<String> {
    let collectors = health(bed, node)?["status"]["probe"]["collectors"].as_array()?.clone();
    let is_well =
        |collector: &Value| collector["state"] == "Ok" || collector["name"] == "tasks" || collector["name"] == "bus";
    let collector = collectors.iter().find(|collector| collector["name"] == "processes")?;
    collectors.iter().all(is_well).then(|| collector["message"].as_str().unwrap_or_default().to_owned())
}

/// Kinds of faults that a node's report has, beside this one.
fn others(bed: &Bed, node: &Node, but: &str) -> Vec<String> {
    let faults = health(bed, node).map(|health| health["status"]["faults"].clone()).unwrap_or_default();
    let kinds = faults.as_array().into_iter().flatten().map(|fault| fault["type"].as_str().unwrap().to_owned());
    kinds.filter(|kind| kind != but).collect()
}

/// One pod that may do nothing at all, and one that shares the node's process ids and is root there.
#[test]
fn more_processes_than_are_kept_hide_no_hung_shim_and_are_no_fault() {
    let Some((bed, node)) = join(Place::Flooded) else { return };
    until("the probe has reported a node that is well", || {
        processes(&bed, &node).is_some_and(|collector| collector.is_empty())
    });
    // A kubelet that has just begun is suspected for a moment.
    until("nothing is said of the node", || others(&bed, &node, "").is_empty());
    let (probe_before, least) = probe(&node);

    let tenant =
        json!({"securityContext": {"runAsUser": 65534, "runAsNonRoot": true}, "automountServiceAccountToken": false});
    flood(&bed, &node, "tenant", tenant);
    flood(&bed, &node, "shared", json!({"hostPID": true, "securityContext": {"runAsUser": 0}}));
    until("both have their processes", || pids(&node).len() > 2 * HALF);

    // Its shim comes after all of them.
    pod(&bed, &node, "late", &json!({}));
    let late = ready(&bed, "late");
    let frozen = faults::freeze_shim(&node, &late.uid).unwrap();
    let shim = frozen.victim.node_pid.unwrap();
    let before = pids(&node).into_iter().filter(|pid| *pid < shim).count();
    assert!(before > KEPT, "{before} processes come before the shim: all of them have room");
    let seen = confirmed(&bed, &node, "HungContainer", SOON);
    assert_eq!(
        (&seen["subject"]["pod"]["uid"], &seen["target"]["process"]["pid"]),
        (&json!(late.uid), &json!(shim)),
        "{seen}"
    );
    let mut message = String::new();
    until("the probe reports on the processes", || processes(&bed, &node).map(|reported| message = reported).is_some());
    println!("processes: {message}");
    assert!(message.contains(&format!("beyond {KEPT} processes")) && message.contains("are not checked"), "{message}");
    assert_eq!(others(&bed, &node, "HungContainer"), Vec::<String>::new());
    frozen.lift(&node).unwrap();
    gone(&bed, &node, "HungContainer");
    let (probe_after, most) = probe(&node);
    println!("most memory of the probe: {least} KiB before, {most} KiB since");
    assert_eq!(probe_after, probe_before, "it was started anew");
    assert!(most < 64 << 10, "{most} KiB");

    // Killed all at once, those of the second pod would be left to its shim, which does not come to an end with them.
    for name in ["tenant", "shared"] {
        bed.kubectl(&["exec", name, "--", "/bin/sh", "-c", ": >/flood/never"]).unwrap();
    }
    bed.kubectl(&["wait", "pod", "tenant", "shared", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=480s"])
        .unwrap();
    bed.kubectl(&["delete", "pod", "tenant", "shared", "late", "--timeout=480s"]).unwrap();
}

/// Vendors of devices put scripts in front of `runc`. The processes of such a node are called otherwise, and nothing else is.
#[test]
fn a_create_that_hangs_in_a_script_around_the_oci_runtime_is_named() {
    let Some((bed, node)) = join(Place::Wrapped) else { return };
    faults::wrap_runtime(&node).unwrap();
    let names = ["first", "second", "third"];
    for name in names {
        let mut container = work::container("work", &["work"]);
        // Each question goes through the script, too.
        container["readinessProbe"] =
            json!({"exec": {"command": ["/workload", "reach"]}, "periodSeconds": 1, "timeoutSeconds": 10});
        pod(&bed, &node, name, &json!({"containers": [container]}));
    }
    for name in names {
        ready(&bed, name);
    }
    bed.kubectl(&["delete", "pod", "third", "--timeout=480s"]).unwrap();
    let began = Instant::now();
    while began.elapsed() < QUIET {
        assert_eq!(others(&bed, &node, ""), Vec::<String>::new());
        sleep(Duration::from_secs(2));
    }

    let hung = faults::hang_create(&node).unwrap();
    let script = hung.victim.process.unwrap();
    let mut seen = Value::Null;
    until("the script is confirmed", || {
        assert!(script.alive(), "somebody has ended the script: {seen}");
        seen = fault(&bed, &node, "RuntimeClientHung").unwrap_or_default();
        assert_eq!(others(&bed, &node, "RuntimeClientHung"), Vec::<String>::new());
        seen["state"] == "Confirmed"
    });
    let process = &seen["target"]["process"];
    assert_eq!((&process["role"], &process["pid"]), (&json!("RuntimeClient"), &json!(hung.victim.node_pid)), "{seen}");
    assert_eq!(json!(hung.victim.sandbox), seen["target"]["sandboxId"], "{seen}");
    assert!(seen["message"].as_str().unwrap().starts_with("`create` of container"), "{seen}");
    hung.lift(&node).unwrap();
    until("the script has ended", || !process::Identity::alive(&script));
    gone(&bed, &node, "RuntimeClientHung");
}

/// A person would thaw the group by hand: the pod goes on.
#[test]
fn a_pod_whose_first_process_is_frozen_runs_once_its_control_group_is_thawed() {
    let Some((bed, node)) = join(Place::Frozen) else { return };
    faults::wrap_runtime(&node).unwrap();
    let policy = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy", "metadata": {"name": "thaw"},
        "spec": {"mode": "Enforce", "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": node.name}},
            "rules": [{"name": "thaw", "match": {"faults": ["FrozenCgroup"]}, "steps": [{"action": "ThawCgroup"}]}],
            "limits": {"maxInFlight": 1, "maxUnhealthy": "100%"}}});
    until("a report of the node", || health(&bed, &node).is_some_and(|health| health["status"].is_object()));

    let frozen = faults::freeze_init(&node, || pod(&bed, &node, "frozen", &json!({}))).unwrap();
    let init = frozen.victim.process.unwrap();
    let mut record = Seen::of("FrozenCgroup", "containerd", Way::Real);
    let seen = confirmed(&bed, &node, "FrozenCgroup", SOON);
    record.confirmed = seconds(frozen.elapsed());
    // Not before: the fault may be gone between two reads of the report.
    bed.apply(&policy).unwrap();
    let process = &seen["target"]["process"];
    assert_eq!(
        (&process["role"], &process["pid"]),
        (&json!("ContainerInit"), &json!(frozen.victim.node_pid)),
        "{seen}"
    );
    ready(&bed, "frozen");
    assert!(init.alive(), "the pod runs by another process than the one that was frozen");
    gone(&bed, &node, "FrozenCgroup");
    record.record();

    let is_ours = |one: &Value| one["spec"]["nodeName"] == json!(node.name) && one["spec"]["policy"] == "thaw";
    let ours = operator::remediations(&bed).unwrap().into_iter().find(is_ours).unwrap();
    println!("remediation: {ours}");
    assert!(ours.to_string().contains("it was frozen, and is not frozen any more"), "{ours}");
    bed.kubectl(&["delete", "remediationpolicy", "thaw"]).unwrap();
    bed.kubectl(&["delete", "pod", "frozen", "--timeout=480s"]).unwrap();
}

/// A shim that answers late makes its pod go late.
#[test]
fn a_slow_rolling_update_of_a_daemon_set_is_no_stuck_pod() {
    let Some((bed, node)) = join(Place::Rolled) else { return };
    let grace = 5;
    let spec = json!({"nodeSelector": {"kubernetes.io/hostname": node.name}, "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": grace, "containers": [work::container("work", &["work"])]});
    bed.apply(&work::workload("DaemonSet", "rolled", &spec)).unwrap();
    let pods = || {
        let pods = view::pods(&bed, Some(&node.name)).unwrap();
        pods.into_iter().filter(|pod| pod.owner.as_deref() == Some("rolled")).collect::<Vec<_>>()
    };
    until("its pod runs", || pods().iter().any(|pod| pod.ready));
    let old = pods().remove(0);

    let frozen = faults::freeze_shim(&node, &old.uid).unwrap();
    bed.kubectl(&["rollout", "restart", "daemonset/rolled"]).unwrap();
    let is_stuck = || fault(&bed, &node, "StuckDaemonSetPod");
    let mut held = Some(frozen);
    until("the pod has gone late and its successor runs", || {
        if let Some(frozen) = held.take_if(|frozen| frozen.elapsed() > OVERDUE + Duration::from_secs(grace)) {
            frozen.lift(&node).unwrap();
        }
        assert_eq!(is_stuck(), None);
        held.is_none() && pods().iter().all(|pod| pod.uid != old.uid && pod.ready) && !pods().is_empty()
    });
    let gone = Instant::now();
    while gone.elapsed() < NEVER_STUCK {
        assert_eq!(is_stuck(), None, "{:?} after the pod was gone", gone.elapsed());
        sleep(Duration::from_secs(1));
    }
    bed.kubectl(&["delete", "daemonset", "rolled", "--timeout=480s"]).unwrap();
}
