//! The actions on a node that no incident of the demo needs, each once: restarts of both units, a taint, and a reboot that another tool
//! does for a mark.

use std::time::{Duration, Instant};

use nrh_testbed::wait::{LONG, SOON, until, until_within};
use nrh_testbed::{Bed, Node, faults as inject};
use serde_json::{Value, json};

use crate::{BOOT_ID, LONGEST_LOOK, allow_drains, has_ended, platform, remediations, use_policy, victim};

/// What kured searches for.
const MARK: &str = "/run/reboot-required";
/// Ends the main process of a unit, which systemd does not start again.
const FAIL: &str = r#"
mkdir -p "/etc/systemd/system/$1.d"
printf '[Service]\nRestart=no\n' >"/etc/systemd/system/$1.d/50-once.conf"
systemctl daemon-reload
kill -KILL "$(systemctl show --property MainPID --value "$1")""#;
const UNDO: &str = r#"rm -r "/etc/systemd/system/$1.d/50-once.conf"; systemctl daemon-reload"#;

/// Has each of them taken on the second machine; tells which.
pub fn are_taken(bed: &mut Bed) -> String {
    let [runtime, kubelet] = platform().units().map(|unit| format!("{unit}.service"));
    let rule =
        |fault: &str, steps: Value| json!({"name": fault.to_lowercase(), "match": {"faults": [fault]}, "steps": steps});
    let restart = |action: &str, unit: &str| json!([{"action": action, "restart": {"unit": unit}, "timeout": "5m"}]);
    let mark = json!([
        {"action": "Taint"},
        {"action": "MarkForReboot", "approval": "Automatic", "markForReboot": {"path": MARK}, "timeout": "15m",
            "verify": {"stableFor": "30s"}},
    ]);
    let policy = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy", "metadata": {"name": "actions"},
        "spec": {"mode": "Enforce", "limits": {"maxInFlight": 1, "maxUnhealthy": "100%"}, "rules": [
            rule("KubeletDown", restart("RestartKubelet", &kubelet)),
            rule("RuntimeUnreachable", restart("RestartRuntime", &runtime)),
            rule("HungContainer", mark)]}});
    allow_drains(bed);
    use_policy(bed, &policy.to_string());
    let node = bed.nodes()[1].clone();
    let restarts = [(&kubelet, "RestartKubelet"), (&runtime, "RestartRuntime")];
    // Where one unit runs both, its end is that of both.
    let restarts = if runtime == kubelet { &restarts[..0] } else { &restarts[..] };
    for (unit, action) in restarts {
        let seconds = resolved(bed, &node, SOON, action, || drop(node.script(FAIL, &[unit]).unwrap()));
        node.script(UNDO, &[unit]).unwrap();
        println!("{action} of {unit}: resolved after {seconds} s");
    }
    marked(bed, &node);
    restarts.iter().map(|(_, action)| *action).chain(["Taint", "MarkForReboot"]).collect::<Vec<_>>().join(", ")
}

/// Waits until a remediation has resolved what happens, by this action and once; returns the seconds.
fn resolved(bed: &Bed, node: &Node, within: Duration, action: &str, happens: impl FnOnce()) -> u64 {
    let known = remediations(bed, &node.name).len();
    let new = || remediations(bed, &node.name).into_iter().nth(known).unwrap_or_default();
    let began = Instant::now();
    happens();
    until_within(&format!("{action} is over, or its time"), within + LONGEST_LOOK, || {
        has_ended(&new()) || began.elapsed() > within
    });
    let done = new();
    let attempts = done["status"]["attempts"].as_array().cloned().unwrap_or_default();
    let taken = attempts.iter().filter(|one| one["action"] == action && one["state"] == "Succeeded").count();
    assert_eq!((done["status"]["phase"].as_str(), taken), (Some("Succeeded"), 1), "{done:#}");
    began.elapsed().as_secs()
}

/// Hangs a container for good; its node is tainted, marked, and rebooted as kured does.
fn marked(bed: &Bed, node: &Node) {
    let boot = || node.read(BOOT_ID).unwrap_or_default();
    let (before, victim) = (boot(), victim(bed, node));
    let taints = || bed.kubectl(&["get", "node", &node.name, "-o", "jsonpath={.spec.taints[*].key}"]).unwrap();
    let seconds = resolved(bed, node, LONG, "MarkForReboot", || {
        inject::freeze_shim(node, &victim.uid).unwrap();
        until("the node is marked", || node.read(MARK).is_ok());
        assert!(taints().contains("runtimehealth.io/unhealthy"), "{}", taints());
        node.script("setsid sh -c 'sleep 1; systemctl reboot' >/dev/null 2>&1 </dev/null &", &[]).unwrap();
    });
    assert!(before.len() > 30 && before != boot(), "{before}");
    assert!(!taints().contains("runtimehealth.io/unhealthy"), "{}", taints());
    assert!(node.read(MARK).is_err(), "the mark is still there");
    println!("MarkForReboot: resolved after {seconds} s");
}
