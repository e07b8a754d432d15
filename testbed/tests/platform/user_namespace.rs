//! A pod whose users are not the node's.

use std::time::Instant;

use nrh_testbed::wait::until;
use nrh_testbed::{Bed, demo, faults as inject, view};

use crate::{has_ended, remediations};

const WORKLOAD: &str = "daemonset/mesh-agent";

/// Gives the pods of a workload user namespaces of their own, hangs the container of one, and has it released.
pub fn is_resolved(bed: &mut Bed) -> String {
    let node = &bed.nodes()[1];
    let kubectl = |args: &[&str]| bed.kubectl(&[&["-n", demo::NAMESPACE], args].concat()).unwrap();
    let patch = r#"{"spec": {"template": {"spec": {"hostUsers": false}}}}"#;
    kubectl(&["patch", WORKLOAD, "-p", patch]);
    kubectl(&["rollout", "status", WORKLOAD, "--timeout=300s"]);
    let pods = view::pods(bed, Some(&node.name)).unwrap();
    let is_of_workload =
        |pod: &view::Pod| pod.ready && pod.owner.as_deref().is_some_and(|owner| WORKLOAD.ends_with(owner));
    let pod = pods.into_iter().find(is_of_workload).unwrap();
    let first = node.script(USERS, &[&pod.uid.replace('-', "_"), &pod.uid]).unwrap();
    assert!(first.trim().parse::<u32>().unwrap() >= 65536, "user 0 of the pod is user {first} of the node");

    let known = remediations(bed, &node.name).len();
    let started = Instant::now();
    inject::freeze_shim(node, &pod.uid).unwrap();
    until("its remediation has ended", || remediations(bed, &node.name).iter().skip(known).any(has_ended));
    let took = started.elapsed().as_secs();
    let done = remediations(bed, &node.name).pop().unwrap();
    assert_eq!(done["status"]["phase"], "Succeeded", "{done:#}");
    assert_eq!(view::pod_runs(bed, node, &pod.uid).unwrap(), Ok(()));
    format!("after {took} s")
}

/// The user of the node that is user 0 in a pod, whose UID is given as the groups of both drivers have it.
const USERS: &str = r#"
procs=$(find /sys/fs/cgroup -name cgroup.procs -path "*pod$1*" -o -name cgroup.procs -path "*pod$2*")
awk '{ print $2; exit }' "/proc/$(cat $procs | head -n 1)/uid_map""#;
