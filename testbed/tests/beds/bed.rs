//! The bed itself: it comes up, its nodes work, and whatever way it ends, nothing of it is left.
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt,
    process::{Child, Command, Stdio},
    time::Duration,
};

use nrh_testbed::{
    Bed, BedOptions, KubeletStart, process,
    wait::{ENDS, LONGEST_PAUSE, SOON, poll},
    work,
};
use serde_json::{Value, json};

use crate::shared::{is_root, room};
use crate::units::renewed;

/// Asks again until the answer satisfies; fails with the last answer.
fn eventually<T: std::fmt::Debug>(limit: Duration, ask: impl FnMut() -> T, good: impl Fn(&T) -> bool) -> T {
    poll(limit, LONGEST_PAUSE, ask, good).unwrap_or_else(|last| panic!("after {limit:?} still {last:?}"))
}

/// A `DaemonSet` whose pods start only when they reach the API server the way in-cluster clients do.
fn daemon_set(name: &str, host_network: bool) -> Value {
    let reach = work::container("reach", &["reach"]);
    let spec = json!({"hostNetwork": host_network, "terminationGracePeriodSeconds": 1, "initContainers": [reach],
        "containers": [work::container("work", &["work"])]});
    work::workload("DaemonSet", name, &spec)
}

/// Node and state of each pod with a label: `real-1 Running true 0`.
fn pods(bed: &Bed, app: &str) -> Vec<String> {
    let list = bed.get(&["pods", "-l", &format!("app={app}")]).unwrap();
    let line = |pod: &Value| {
        let status = &pod["status"];
        let (node, phase) = (pod["spec"]["nodeName"].as_str().unwrap_or("-"), status["phase"].as_str().unwrap_or("-"));
        format!("{node} {phase} {}", status["containerStatuses"][0]["ready"].as_bool().unwrap_or(false))
    };
    let mut lines: Vec<_> = list["items"].as_array().unwrap().iter().map(line).collect();
    lines.sort();
    lines
}

const BOTH_RUN: [&str; 2] = ["real-1 Running true", "real-2 Running true"];

/// Two real nodes run pods, with all that a node has at its usual paths.
pub fn two_real_nodes_run_pods(bed: &Bed) {
    let names: Vec<_> = bed.nodes().iter().map(|n| n.name.as_str()).collect();
    assert_eq!(names, ["real-1", "real-2"]);
    assert!(bed.kubectl(&["version"]).unwrap().contains("Server Version: v1.36.3"));

    for (name, host_network) in [("pod-network", false), ("host-network", true)] {
        bed.apply(&daemon_set(name, host_network)).unwrap();
    }
    for name in ["pod-network", "host-network"] {
        eventually(SOON, || pods(bed, name), |pods| *pods == BOTH_RUN);
    }
    assert!(bed.kubectl(&["logs", "daemonset/pod-network", "-c", "reach"]).unwrap().contains("10.0.0.1:443 answers"));

    default_paths_hold(bed);
    programs_stop_and_start(bed);
    requests_are_recorded(bed);
    bed.kubectl(&["delete", "daemonset", "pod-network", "host-network"]).unwrap();
    eventually(SOON, || [pods(bed, "pod-network"), pods(bed, "host-network")].concat(), Vec::is_empty);
}

/// What a node finds at the paths where everybody looks, and that nothing of it is the machine's.
fn default_paths_hold(bed: &Bed) {
    let [one, two] = bed.nodes() else { panic!("two nodes") };
    assert_eq!(one.run("hostname", &[]).unwrap().trim(), "real-1");
    for path in ["/run/containerd/containerd.sock", "/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/config.yaml"] {
        assert!(one.root_path(path).exists(), "{path}");
        assert_ne!(
            fs::metadata(one.root_path(path)).unwrap().ino(),
            fs::metadata(two.root_path(path)).unwrap().ino(),
            "{path}"
        );
    }
    // The kubelet's own credentials are what a probe outside of any pod uses.
    let kubeconfig = "--kubeconfig=/etc/kubernetes/kubelet.conf";
    assert_eq!(
        two.run("kubectl", &[kubeconfig, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]).unwrap(),
        "system:node:real-2"
    );
    // Each node sees its own processes only, under pids of its own.
    let shims: Vec<_> = process::members("pid", &process::namespace(one.init_pid(), "pid").unwrap())
        .into_iter()
        .filter(|&pid| process::comm(pid).is_some_and(|c| c.starts_with("containerd-shim")))
        .collect();
    assert_eq!(shims.len(), 2);
    let inside = one.host_to_node(shims[0]).unwrap();
    assert_eq!(one.pid_to_host(inside), Some(shims[0]));
    assert!(one.run("cat", &[&format!("/proc/{inside}/comm")]).unwrap().starts_with("containerd-shim"));
    assert_eq!(two.host_to_node(shims[0]), None);
    // Control groups as well, or the runtime of one node would touch the other's.
    let groups = |node: &nrh_testbed::Node| {
        node.run("sh", &["-c", "for g in /sys/fs/cgroup/*/k8s.io/*/ /sys/fs/cgroup/k8s.io/*/; do [ -d $g ] && basename $g; done | sort -u"])
    };
    let (first, second) = (groups(one).unwrap_or_default(), groups(two).unwrap_or_default());
    assert!(first.lines().all(|g| !second.contains(g)), "{first} {second}");
    // Nothing leaves: every address is a local one or unreachable.
    assert!(one.run("ip", &["route", "get", "192.0.2.1"]).unwrap().contains("dev lo"));
}

fn programs_stop_and_start(bed: &Bed) {
    let node = bed.node("real-1").unwrap();
    let runtime = node.daemon("containerd").unwrap();
    node.restart_containerd().unwrap();
    assert!(!runtime.alive());
    assert_ne!(node.daemon("containerd"), Some(runtime));
    node.stop_kubelet().unwrap();
    let kubelets = || {
        let members = process::members("pid", &process::namespace(node.init_pid(), "pid").unwrap());
        members.into_iter().filter(|&pid| process::comm(pid).as_deref() == Some("kubelet")).count()
    };
    assert_eq!(kubelets(), 0);
    // A kubelet that was stopped soon enough has never made a lease.
    let renewed = || renewed(bed, node);
    let before = renewed();
    node.start_kubelet(KubeletStart::default()).unwrap();
    eventually(ENDS, kubelets, |&n| n == 1);
    // Until it reports, what the API says of its pods is from before its stop.
    eventually(SOON, renewed, |now| !now.is_empty() && *now != before);
    eventually(SOON, || pods(bed, "pod-network"), |pods| *pods == BOTH_RUN);
}

fn requests_are_recorded(bed: &Bed) {
    let audit = bed.audit().unwrap();
    let created: Vec<_> = audit
        .iter()
        .filter(|e| {
            e.is_write() && e.code() == 201 && e.object_ref.as_ref().is_some_and(|o| o.resource == "daemonsets")
        })
        .map(|e| e.user.username.as_str())
        .collect();
    assert_eq!(created, ["admin", "admin"]);
    assert!(audit.iter().any(|e| e.user.username == "system:node:real-1" && e.verb == "patch"));
    let version = bed.run(async |client| Ok(client.apiserver_version().await?)).unwrap();
    assert_eq!(version.git_version, "v1.36.3");
}

/// The owner of a bed, killed as hard as can be; also when the test fails before that.
struct Owner(Child);

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_owner_leaves_nothing_running() {
    if !is_root() {
        return;
    }
    let _room = room();
    let mut command = Command::new(env!("CARGO_BIN_EXE_testbed"));
    command.args(["--name", "killed", "up", "--nodes", "1", "--kwok", "20"]).stdout(Stdio::piped());
    let mut owner = Owner(command.spawn().unwrap());
    let mut lines = BufReader::new(owner.0.stdout.take().unwrap()).lines();
    let first = lines.next().expect("the bed did not come up").unwrap();
    assert!(first.contains("is up"), "{first}");
    let name = format!("killed-{}", owner.0.id());
    let bed = Bed::attach(&name).unwrap();
    let (network, _held) = (bed.network_id().to_owned(), bed.network().unwrap());
    bed.wait_ready(21).unwrap();
    assert!(process::members("net", &network).len() > 8);

    drop(owner);
    eventually(ENDS, || process::members("net", &network), Vec::is_empty);
    assert!(!bed.realm().init.alive());
    drop(bed);
    // Folders cannot remove themselves: the next bed does it.
    let options = BedOptions { name: "next".into(), control_plane_only: true, ..BedOptions::default() };
    let next = Bed::up(options).unwrap();
    assert_eq!(Bed::leftovers(&name, &network), Vec::<String>::new());
    next.down().unwrap();
}
