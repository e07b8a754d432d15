//! A node that systemd runs: its runtime and its kubelet are units, and systemd does with them what it does everywhere.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use nrh_testbed::systemd::UnitState;
use nrh_testbed::wait::until;
use nrh_testbed::{Bed, KubeletStart, Node, faults, process, view, work};
use rustix::process::Signal;

use crate::restarts::{CONTAINERD, KUBELET, join_apart, ready, running};

/// Longer than systemd waits before it starts either again.
const RESTART: Duration = Duration::from_secs(12);

#[test]
fn a_node_is_run_by_systemd() {
    let Some((bed, node)) = join_apart() else { return };
    let (bed, node) = (&*bed, &node);
    bed.apply(&work::pod("work", &node.name)).unwrap();
    until("the pod runs", || view::pod(bed, "default", "work").unwrap().unwrap().ready);

    units_are_what_runs(node);
    a_stopped_kubelet_stays_stopped(bed, node);
    a_killed_runtime_comes_back_and_its_pods_live_on(node);
    a_masked_unit_does_not_start(bed, node);
    a_unit_that_always_fails_is_given_up(node);
    faults_hit_units(bed, node);
}

/// The node's own pids of all processes of a name.
fn pids(node: &Node, name: &str) -> Vec<i32> {
    let members = process::members("pid", &process::namespace(node.init_pid(), "pid").unwrap());
    let named = members.into_iter().filter(|&pid| process::comm(pid).as_deref() == Some(name));
    named.filter_map(|pid| node.host_to_node(pid)).collect()
}

fn active(node: &Node, unit: &str) -> String {
    node.unit_state(unit).unwrap().active
}

/// When the kubelet has last told the API server that it lives.
pub fn renewed(bed: &Bed, node: &Node) -> String {
    let get = ["-n", "kube-node-lease", "get", "lease", &node.name, "-o", "jsonpath={.spec.renewTime}"];
    bed.kubectl(&get).unwrap_or_default()
}

fn units_are_what_runs(node: &Node) {
    assert_eq!(node.run("cat", &["/proc/1/comm"]).unwrap().trim(), "systemd");
    let well = UnitState {
        load: "loaded".into(),
        active: "active".into(),
        sub: "running".into(),
        file: "enabled".into(),
        result: "success".into(),
        restarts: 0,
    };
    for (unit, name) in [(KUBELET, "kubelet"), (CONTAINERD, "containerd")] {
        assert_eq!(node.unit_state(unit).unwrap(), well, "{unit}");
        let [pid] = pids(node, name)[..] else { panic!("{name}: {:?}", pids(node, name)) };
        let group = node.run("cat", &[&format!("/proc/{pid}/cgroup")]).unwrap();
        assert!(group.contains(&format!("/system.slice/{unit}\n")), "{group}");
    }
    // Whoever has no way to systemd but the node's bus.
    let [pid] = pids(node, "kubelet")[..] else { panic!("one kubelet") };
    assert!(manager(node, "GetUnitByPID", &["u", &pid.to_string()]).unwrap().contains("kubelet_2eservice"));
    let shims = pids(node, "containerd-shim");
    assert_eq!(shims.len(), 1);
    assert_eq!(process::parent(node.pid_to_host(shims[0]).unwrap()), Some(node.init_pid()));
}

/// Calls a method of systemd over the bus.
fn manager(node: &Node, method: &str, args: &[&str]) -> anyhow::Result<String> {
    let manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", method];
    node.run("busctl", &[&["call"], &manager[..], args].concat())
}

fn a_stopped_kubelet_stays_stopped(bed: &Bed, node: &Node) {
    node.stop_kubelet().unwrap();
    assert_eq!(active(node, KUBELET), "inactive");
    sleep(RESTART);
    assert_eq!((active(node, KUBELET).as_str(), pids(node, "kubelet")), ("inactive", Vec::new()));
    assert!(node.daemon("kubelet").is_none());
    let before = renewed(bed, node);
    node.start_kubelet(KubeletStart::default()).unwrap();
    until("the kubelet tells the API server again", || renewed(bed, node) != before);
    until("its node is Ready", || ready(bed, node));
}

fn a_killed_runtime_comes_back_and_its_pods_live_on(node: &Node) {
    let (containers, shims) = (running(node), pids(node, "containerd-shim"));
    assert_eq!((containers.len(), shims.len()), (1, 1));
    let runtime = node.daemon("containerd").unwrap();
    runtime.signal(Signal::KILL).unwrap();
    until("systemd starts containerd again", || {
        active(node, CONTAINERD) == "active" && node.daemon("containerd").is_some_and(|now| now != runtime)
    });
    assert_eq!(node.unit_state(CONTAINERD).unwrap().restarts, 1);
    until("its container is known again", || running(node) == containers);
    assert_eq!(pids(node, "containerd-shim"), shims);

    // Neither does a restart end them, over the bus as the operator would ask for it.
    let runtime = node.daemon("containerd").unwrap();
    manager(node, "RestartUnit", &["ss", CONTAINERD, "fail"]).unwrap();
    until("containerd is restarted", || !runtime.alive() && active(node, CONTAINERD) == "active");
    until("its container is known once more", || running(node) == containers);
    assert_eq!(pids(node, "containerd-shim"), shims);
}

/// The bed's faults do to units what they do elsewhere.
fn faults_hit_units(bed: &Bed, node: &Node) {
    faults::kill_kubelet(node).unwrap();
    until("systemd notices its end", || active(node, KUBELET) == "activating");
    until("systemd starts the kubelet again", || node.daemon("kubelet").is_some());
    let uid = view::pod(bed, "default", "work").unwrap().unwrap().uid;
    let leaked = faults::leaked_shim(node, &uid).unwrap();
    let shim = leaked.victim.process.unwrap();
    assert_eq!(process::parent(shim.pid), Some(node.init_pid()));
    let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", shim.pid)).unwrap();
    assert!(cgroup.contains(CONTAINERD), "{cgroup}");
    leaked.lift(node).unwrap();
    assert!(shim.wait_gone(RESTART));
}

fn a_masked_unit_does_not_start(bed: &Bed, node: &Node) {
    node.systemctl(&["mask", KUBELET]).unwrap();
    let state = node.unit_state(KUBELET).unwrap();
    // What runs goes on.
    assert_eq!([&state.load, &state.file, &state.active].map(String::as_str), ["masked", "masked", "active"]);
    let refused = manager(node, "RestartUnit", &["ss", KUBELET, "fail"]).unwrap_err().to_string();
    assert!(refused.contains("is masked"), "{refused}");
    assert_eq!(pids(node, "kubelet").len(), 1);
    node.unit_stop(KUBELET).unwrap();
    assert!(node.unit_start(KUBELET).unwrap_err().to_string().contains("is masked"));
    assert!(pids(node, "kubelet").is_empty());

    node.systemctl(&["unmask", KUBELET]).unwrap();
    let before = renewed(bed, node);
    node.unit_start(KUBELET).unwrap();
    assert_eq!(node.unit_state(KUBELET).unwrap().file, "enabled");
    until("the kubelet tells the API server again", || renewed(bed, node) != before);
}

fn a_unit_that_always_fails_is_given_up(node: &Node) {
    const FAILS: &str = "fails.service";
    node.unit_write(
        FAILS,
        "[Unit]\nStartLimitIntervalSec=1h\nStartLimitBurst=3\n\
         [Service]\nExecStart=false\nRestart=always\nRestartSec=100ms\n",
    )
    .unwrap();
    node.unit_start(FAILS).unwrap();
    until("systemd gives it up", || active(node, FAILS) == "failed");
    assert_eq!(node.unit_state(FAILS).unwrap().restarts, 3);
    assert!(node.unit_start(FAILS).is_err(), "it was started too often already");
    assert_eq!(active(node, FAILS), "failed");
    // Forgotten, it starts, and fails, again.
    node.systemctl(&["reset-failed", FAILS]).unwrap();
    assert_eq!(active(node, FAILS), "inactive");
    node.unit_start(FAILS).unwrap();
    until("systemd gives it up again", || active(node, FAILS) == "failed");
}
