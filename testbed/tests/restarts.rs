//! Real nodes run by systemd, with the operator as shipped and a policy that restarts: what has failed comes back, in the right
//! order; what a person has stopped stays stopped; a runtime that hangs is restarted where the policy says so; another node is
//! untouched.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod until;

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use nrh_testbed::process::Identity;
use nrh_testbed::view::{self, Container};
use nrh_testbed::{Bed, BedOptions, Node, images, operator};
use rustix::process::Signal;
use serde_json::{Value, json};
use until::until;

const KUBELET: &str = "kubelet.service";
const CONTAINERD: &str = "containerd.service";
/// A threshold of a minute, an act, and what a busy machine adds.
const HEALED: Duration = Duration::from_mins(8);
const RUNS: Duration = Duration::from_mins(3);

/// Told in Azure/AgentBaker #7443 and bottlerocket-os/bottlerocket #4721.
#[test]
fn what_has_failed_is_started_again_and_what_a_person_has_stopped_is_not() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: real nodes need root on Linux");
        return;
    }
    let programs = operator::build().unwrap();
    let options = BedOptions { name: "restarts".into(), nodes: 4, units: true, ..BedOptions::default() };
    let bed = Bed::up(options).unwrap();
    let [well, both, stopped, hung] = bed.nodes() else { panic!("four nodes") };
    install(&bed, &programs, well);
    let before = daemons(well);
    thread::scope(|scope| {
        scope.spawn(|| both_down(&bed, both));
        scope.spawn(|| stopped_kubelet(&bed, stopped));
        scope.spawn(|| hung_runtime(&bed, hung));
    });
    assert_eq!(daemons(well), before, "{} was never sick", well.name);
    assert_eq!(episodes(&bed, well), Vec::<Value>::new());
    bed.down().unwrap();
}

/// The operator, on the one node that stays well; a policy that restarts; a workload on every node.
fn install(bed: &Bed, programs: &operator::Programs, well: &Node) {
    operator::load_image(bed, programs).unwrap();
    for node in bed.nodes().iter().filter(|node| node.name != well.name) {
        bed.kubectl(&["taint", "node", &node.name, "restarts/reserved=:NoSchedule"]).unwrap();
    }
    operator::apply_folder(bed, "config/default").unwrap();
    let labels = json!({"app": "work"});
    let work = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "work"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "work", "image": images::WORK_IMAGE, "imagePullPolicy": "Never", "args": ["work"]}]}}},
    });
    bed.kubectl_input(&["apply", "-f", "-"], &work.to_string()).unwrap();
    operator::wait(bed).unwrap();
    bed.kubectl(&["label", "node", &bed.nodes()[3].name, "restarts/careless=true"]).unwrap();
    let rule = |name: &str, fault: &str, action: &str, with: Value| {
        json!({"name": name, "match": {"faults": [fault]}, "steps": [
            {"action": action, "restart": with, "timeout": "5m"},
            {"action": "Notify"}]})
    };
    let policy = |name: &str, selector: Value, priority: i32, rules: Value| {
        json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy", "metadata": {"name": name},
            "spec": {"mode": "Enforce", "nodeSelector": selector, "priority": priority, "rules": rules,
                "limits": {"maxInFlight": 3, "maxUnhealthy": "100%"}}})
    };
    let careful = json!([
        rule("kubelet", "KubeletDown", "RestartKubelet", json!({})),
        rule("runtime", "RuntimeUnreachable", "RestartRuntime", json!({})),
    ]);
    let careless = json!([rule("runtime", "RuntimeUnreachable", "RestartRuntime", json!({"evenIfUnsafe": true}))]);
    for policy in [
        policy("restart", json!({}), 0, careful),
        policy("restart-what-hangs", json!({"matchLabels": {"restarts/careless": "true"}}), 10, careless),
    ] {
        bed.kubectl_input(&["apply", "-f", "-"], &policy.to_string()).unwrap();
    }
    for node in bed.nodes() {
        until(&format!("all of {} is well", node.name), RUNS, || {
            running(node).len() >= 2 && restart_safe(bed, node) == "True"
        });
    }
}

fn restart_safe(bed: &Bed, node: &Node) -> String {
    let path = r#"jsonpath={.status.conditions[?(@.type=="RestartSafe")].status}"#;
    bed.kubectl(&["get", "noderuntimehealth", &node.name, "-o", path]).unwrap_or_default()
}

fn daemons(node: &Node) -> [Option<Identity>; 2] {
    [node.daemon("kubelet"), node.daemon("containerd")]
}

/// Ids of the containers that run on a node.
fn running(node: &Node) -> BTreeSet<String> {
    let Ok(lists) = view::lists(&view::socket(node), view::LIMIT) else { return BTreeSet::new() };
    lists.containers.into_iter().filter(Container::running).map(|container| container.id).collect()
}

/// Episodes of a node.
fn episodes(bed: &Bed, node: &Node) -> Vec<Value> {
    let Ok(text) = bed.kubectl(&["get", "nrem", "-o", "json"]) else { return Vec::new() };
    let list: Value = serde_json::from_str(&text).unwrap();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.into_iter().filter(|item| item["spec"]["nodeName"] == node.name.as_str()).collect()
}

/// Steps of all its episodes, in the order in which they were reserved: action, lane, state.
fn steps(bed: &Bed, node: &Node) -> Vec<[String; 3]> {
    let mut all: Vec<Value> = episodes(bed, node)
        .into_iter()
        .flat_map(|episode| episode["status"]["steps"].as_array().cloned().unwrap_or_default())
        .collect();
    all.sort_by_key(|step| step["reservedAt"].as_str().map(str::to_owned));
    let word = |step: &Value, of: &str| step[of].as_str().unwrap_or_default().to_owned();
    all.iter().map(|step| ["action", "lane", "state"].map(|of| word(step, of))).collect()
}

fn are(steps: &[[String; 3]], expected: &[[&str; 3]]) -> bool {
    steps.iter().map(|step| step.each_ref().map(String::as_str)).eq(expected.iter().copied())
}

fn ready(bed: &Bed, node: &Node) -> bool {
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    bed.kubectl(&["get", "node", &node.name, "-o", path]).is_ok_and(|status| status == "True")
}

/// Both have ended, and systemd does not start them again: nothing starts there any more, and nothing can be scheduled there to help.
fn both_down(bed: &Bed, node: &Node) {
    let (containers, before) = (running(node), daemons(node));
    for (unit, process) in [KUBELET, CONTAINERD].into_iter().zip(before) {
        node.unit_write(&format!("{unit}.d/50-once.conf"), "[Service]\nRestart=no\n").unwrap();
        process.unwrap().signal(Signal::KILL).unwrap();
        until(&format!("{unit} has failed"), RUNS, || node.unit_state(unit).unwrap().active == "failed");
    }
    until("runtime and kubelet are started again, in this order", HEALED, || {
        let expected = [["RestartRuntime", "Agent", "Succeeded"], ["RestartKubelet", "Agent", "Succeeded"]];
        are(&steps(bed, node), &expected)
    });
    until("the node is Ready", RUNS, || ready(bed, node));
    let after = daemons(node);
    assert!(after.iter().all(Option::is_some) && after != before, "{after:?}");
    assert_eq!(running(node), containers, "no container was ended");
}

/// A person has stopped the kubelet, and nothing in the policy says that it is to be started then.
fn stopped_kubelet(bed: &Bed, node: &Node) {
    node.unit_stop(KUBELET).unwrap();
    until("the stopped kubelet is left alone and people are told", HEALED, || {
        are(&steps(bed, node), &[["RestartKubelet", "Agent", "Refused"], ["Notify", "Api", "Succeeded"]])
    });
    let said = episodes(bed, node)[0]["status"]["steps"][0]["message"].to_string();
    assert!(said.contains("kubelet.service was stopped by somebody"), "{said}");
    assert_eq!(node.unit_state(KUBELET).unwrap().active, "inactive");
}

/// The runtime's process is there and answers nobody.
fn hung_runtime(bed: &Bed, node: &Node) {
    let (containers, runtime) = (running(node), node.daemon("containerd").unwrap());
    runtime.signal(Signal::STOP).unwrap();
    until("the hung runtime is restarted", HEALED, || {
        are(&steps(bed, node), &[["RestartRuntime", "Agent", "Succeeded"]])
    });
    assert!(node.daemon("containerd").is_some_and(|now| now != runtime));
    until("its containers are known again", RUNS, || running(node) == containers);
    assert_eq!(node.unit_state(CONTAINERD).unwrap().active, "active");
}
