//! Real nodes run by systemd, with the operator and a policy that restarts: what has failed comes back once, alone or
//! both in the right order; what a person has stopped stays stopped; a runtime that hangs is restarted where the policy says so;
//! another node is untouched. What was recorded of all this plays as it was.

use std::collections::BTreeSet;
use std::thread;

use nrh_testbed::process::Identity;
use nrh_testbed::view::{self, Container};
use nrh_testbed::wait::until;
use nrh_testbed::{AuditEntry, Bed, BedOptions, Node, operator, work};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::recorded;
use crate::shared::{Guest, Shared};
use crate::sight::condition;

pub const KUBELET: &str = "kubelet.service";
pub const CONTAINERD: &str = "containerd.service";
/// It is not started again by systemd, and each of its starts is a line in a file.
const ONCE: &str = "[Service]\nRestart=no\nExecStartPre=sh -c 'echo started >>/run/%n.starts'\n";

/// Nodes under systemd: seven for the test of this file, and one on which only systemd is at work.
static UNITS: Shared = Shared::new(|_| {
    let options = BedOptions { name: "units".into(), nodes: 8, units: true, ..BedOptions::default() };
    let bed = Bed::up(options).unwrap();
    // Whoever stands on the last one wants no operator there.
    bed.kubectl(&["label", "node", &bed.nodes()[7].name, "runtimehealth.io/probe=disabled", "restarts=none"]).unwrap();
    bed
});

/// Joins the bed, on the node that the operator leaves alone.
pub fn join_apart() -> Option<(Guest, Node)> {
    let bed = UNITS.join()?;
    let node = bed.nodes()[7].clone();
    Some((bed, node))
}

/// Told in Azure/AgentBaker #7443 and bottlerocket-os/bottlerocket #4721.
#[test]
fn what_has_failed_is_started_again_and_what_a_person_has_stopped_is_not() {
    let Some(bed) = UNITS.join() else { return };
    let programs = bed.programs();
    let [well, both, kubelet, runtime, stopped, stopped_runtime, hung, _] = bed.nodes() else { panic!("eight nodes") };
    install(&bed, programs, well, hung);
    // It must not be taken for the kubelet's while that one is down.
    runtime.start_host_containerd().unwrap();
    let of_host = || runtime.unit_process("host-containerd.service");
    let (before, host) = (daemons(well), of_host());
    thread::scope(|scope| {
        scope.spawn(|| both_down(&bed, both));
        scope.spawn(|| one_down(&bed, kubelet, KUBELET, "RestartKubelet"));
        scope.spawn(|| one_down(&bed, runtime, CONTAINERD, "RestartRuntime"));
        scope.spawn(|| stopped_by_a_person(&bed, stopped, KUBELET, "RestartKubelet"));
        scope.spawn(|| stopped_by_a_person(&bed, stopped_runtime, CONTAINERD, "RestartRuntime"));
        scope.spawn(|| hung_runtime(&bed, hung));
    });
    // Some of it was over before the rest: nothing more was done about that in the meantime.
    for (node, unit, count) in
        [(both, CONTAINERD, 1), (both, KUBELET, 1), (kubelet, KUBELET, 1), (runtime, CONTAINERD, 1)]
    {
        assert_eq!(starts(node, unit), count, "starts of {unit} on {}", node.name);
    }
    assert!(host.is_some() && host == of_host(), "{host:?}");
    for (node, unit) in [(stopped, KUBELET), (stopped_runtime, CONTAINERD)] {
        assert_eq!(node.unit_state(unit).unwrap().active, "inactive", "{unit} on {}", node.name);
    }
    assert_eq!(daemons(well), before, "{} was never sick", well.name);
    assert_eq!(remediations(&bed, well), Vec::<Value>::new());
    let is_job = |entry: &AuditEntry| entry.object_ref.as_ref().is_some_and(|object| object.resource == "jobs");
    let mut jobs = bed.audit().unwrap();
    jobs.retain(|entry| entry.verb == "create" && entry.is_write() && is_job(entry));
    assert!(jobs.is_empty(), "all was done by the agents: {jobs:#?}");
    recorded::plays_as_it_was(&bed, &programs.nrh);
}

/// The operator, on the one node that stays well; a policy that restarts; a workload on every node.
fn install(bed: &Bed, programs: &operator::Programs, well: &Node, careless: &Node) {
    // On the last node, another test kills the runtime at the same time.
    operator::load_image(bed, &bed.nodes()[..7], programs).unwrap();
    for node in bed.nodes().iter().filter(|node| node.name != well.name) {
        bed.kubectl(&["taint", "node", &node.name, "restarts/reserved=:NoSchedule"]).unwrap();
    }
    operator::apply_folder(bed, "config/default").unwrap();
    let spec = json!({
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "restarts", "operator": "DoesNotExist"}]}]}}},
        "containers": [work::container("work", &["work"])],
    });
    bed.apply(&work::workload("DaemonSet", "work", &spec)).unwrap();
    operator::wait(bed).unwrap();
    bed.kubectl(&["label", "node", &careless.name, "restarts/careless=true"]).unwrap();
    let rule = |name: &str, fault: &str, action: &str, with: Value| {
        json!({"name": name, "match": {"faults": [fault]}, "steps": [
            {"action": action, "restart": with, "timeout": "5m"},
            {"action": "Notify"}]})
    };
    let policy = |name: &str, selector: Value, priority: i32, rules: Value| {
        json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy", "metadata": {"name": name},
            "spec": {"mode": "Enforce", "nodeSelector": selector, "priority": priority, "rules": rules,
                "limits": {"maxInFlight": 5, "maxUnhealthy": "100%"}}})
    };
    let careful = json!([
        rule("kubelet", "KubeletDown", "RestartKubelet", json!({})),
        rule("runtime", "RuntimeUnreachable", "RestartRuntime", json!({})),
    ]);
    let careless = json!([rule("runtime", "RuntimeUnreachable", "RestartRuntime", json!({"skipSafetyCheck": true}))]);
    for policy in [
        policy("restart", json!({}), 0, careful),
        policy("restart-what-hangs", json!({"matchLabels": {"restarts/careless": "true"}}), 10, careless),
    ] {
        bed.apply(&policy).unwrap();
    }
    for node in &bed.nodes()[..7] {
        until(&format!("all of {} is well", node.name), || {
            running(node).len() >= 2 && condition(bed, node, "RestartSafe") == "True"
        });
    }
}

fn daemons(node: &Node) -> [Option<Identity>; 2] {
    [node.daemon("kubelet"), node.daemon("containerd")]
}

/// Ids of the containers that run on a node.
pub fn running(node: &Node) -> BTreeSet<String> {
    let Ok(lists) = view::lists(&node.socket(), view::LIMIT) else { return BTreeSet::new() };
    lists.containers.into_iter().filter(Container::running).map(|container| container.id).collect()
}

/// Remediations of a node; none where nobody answers.
fn remediations(bed: &Bed, node: &Node) -> Vec<Value> {
    let all = operator::remediations(bed).unwrap_or_default();
    all.into_iter().filter(|one| one["spec"]["nodeName"] == node.name.as_str()).collect()
}

/// Steps of all its remediations, in the order in which they were scheduled: action, executor, state.
fn steps(bed: &Bed, node: &Node) -> Vec<[String; 3]> {
    let mut all: Vec<Value> = remediations(bed, node)
        .into_iter()
        .flat_map(|remediation| remediation["status"]["attempts"].as_array().cloned().unwrap_or_default())
        .collect();
    all.sort_by_key(|step| step["scheduledAt"].as_str().map(str::to_owned));
    let word = |step: &Value, of: &str| step[of].as_str().unwrap_or_default().to_owned();
    all.iter().map(|step| ["action", "executor", "state"].map(|of| word(step, of))).collect()
}

fn are(steps: &[[String; 3]], expected: &[[&str; 3]]) -> bool {
    steps.iter().map(|step| step.each_ref().map(String::as_str)).eq(expected.iter().copied())
}

pub fn ready(bed: &Bed, node: &Node) -> bool {
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    bed.kubectl(&["get", "node", &node.name, "-o", path]).is_ok_and(|status| status == "True")
}

/// The kubelet's last word about whether the node is Ready.
fn heartbeat(bed: &Bed, node: &Node) -> String {
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].lastHeartbeatTime}"#;
    bed.kubectl(&["get", "node", &node.name, "-o", path]).unwrap_or_default()
}

/// Waits until the node is Ready by a word of its kubelet that is not that one: the next may follow only minutes later.
fn ready_anew(bed: &Bed, node: &Node, last: &str) {
    until(&format!("{} is Ready", node.name), || ready(bed, node) && heartbeat(bed, node) != last);
}

/// A unit's process is killed, and systemd does not start it again.
fn fail(node: &Node, unit: &str) {
    node.unit_write(&format!("{unit}.d/50-once.conf"), ONCE).unwrap();
    node.unit_process(unit).unwrap().signal(Signal::KILL).unwrap();
    until(&format!("{unit} of {} has failed", node.name), || node.unit_state(unit).unwrap().active == "failed");
}

/// How often a unit was started since it failed, by whomever.
fn starts(node: &Node, unit: &str) -> usize {
    node.run("cat", &[&format!("/run/{unit}.starts")]).map_or(0, |text| text.lines().count())
}

/// One of them has ended, and systemd does not start it again; the other goes on.
fn one_down(bed: &Bed, node: &Node, unit: &str, action: &str) {
    let (containers, before) = (running(node), daemons(node));
    fail(node, unit);
    let last = heartbeat(bed, node);
    until(&format!("{unit} of {} is started again", node.name), || {
        are(&steps(bed, node), &[[action, "Probe", "Succeeded"]])
    });
    assert_eq!(starts(node, unit), 1);
    let (after, is_kubelet) = (daemons(node), unit == KUBELET);
    let same = [before[0] == after[0], before[1] == after[1]];
    assert!(after.iter().all(Option::is_some) && same == [!is_kubelet, is_kubelet], "{before:?}, then {after:?}");
    ready_anew(bed, node, &last);
    until("no container was ended", || running(node) == containers);
    // The command stood in the node's own object, and the answer stands beside it.
    let report = operator::health(bed, &node.name).unwrap();
    let (answer, step) = (&report["status"]["commandResult"], &remediations(bed, node)[0]["status"]["attempts"][0]);
    assert_eq!((&answer["operationId"], answer["state"].as_str()), (&step["operationId"], Some("Done")));
}

/// Both have ended, and systemd does not start them again: nothing starts there any more, and nothing can be scheduled there to help.
fn both_down(bed: &Bed, node: &Node) {
    let (containers, before) = (running(node), daemons(node));
    fail(node, KUBELET);
    fail(node, CONTAINERD);
    let last = heartbeat(bed, node);
    until("runtime and kubelet are started again, in this order", || {
        let expected = [["RestartRuntime", "Probe", "Succeeded"], ["RestartKubelet", "Probe", "Succeeded"]];
        are(&steps(bed, node), &expected)
    });
    ready_anew(bed, node, &last);
    let after = daemons(node);
    assert!(after.iter().all(Option::is_some) && after != before, "{after:?}");
    until("no container was ended", || running(node) == containers);
}

/// A person has stopped a unit, and nothing in the policy says that it is to be started then.
fn stopped_by_a_person(bed: &Bed, node: &Node, unit: &str, action: &str) {
    node.unit_stop(unit).unwrap();
    until(&format!("{unit}, which a person has stopped, is left alone and people are told"), || {
        are(&steps(bed, node), &[[action, "Probe", "Refused"], ["Notify", "Controller", "Succeeded"]])
    });
    let said = remediations(bed, node)[0]["status"]["attempts"][0]["message"].to_string();
    assert!(said.contains(&format!("{unit} was stopped, by a person")), "{said}");
    assert_eq!(node.unit_state(unit).unwrap().active, "inactive");
}

/// The runtime's process is there and answers nobody.
fn hung_runtime(bed: &Bed, node: &Node) {
    let (containers, runtime) = (running(node), node.daemon("containerd").unwrap());
    runtime.signal(Signal::STOP).unwrap();
    until("the hung runtime is restarted", || are(&steps(bed, node), &[["RestartRuntime", "Probe", "Succeeded"]]));
    assert!(node.daemon("containerd").is_some_and(|now| now != runtime));
    until("its containers are known again", || running(node) == containers);
    assert_eq!(node.unit_state(CONTAINERD).unwrap().active, "active");
}
