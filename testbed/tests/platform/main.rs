//! The operator as shipped on one platform of the support matrix: two whole machines on which it is installed unchanged, says nothing
//! false while pods come and go, resolves the incidents of the demo, comes through interruptions, reboots for real, and names faults that
//! only a whole machine can have.
//!
//! `NRH_PLATFORM` names the platform, `NRH_CHURN_MINUTES` how long pods come and go, `NRH_PLATFORM_ACTS` some of the incidents, and
//! `NRH_PLATFORM_PARTS` some of what follows them. What holds is recorded; `make support` writes it into docs/reference/support.md.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod actions;
mod faults;
mod interruptions;
mod user_namespace;

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use interruptions::survives;
use nrh_testbed::demo::{self, Options, report::Report};
use nrh_testbed::machine::BOOTS;
use nrh_testbed::matrix::support::Proof;
use nrh_testbed::wait::{LONG, until, until_within};
use nrh_testbed::{Bed, BedOptions, Node, Platform, faults as inject, operator, process, view};
use serde_json::Value;

/// The first of these need no unit of the runtime's or the kubelet's alone.
const ACTS: [&str; 5] = ["hung-container", "hung-network-plugin", "leaked-shim", "orphan-nothing-runs", "back-off-pod"];
const ACTS_ANYWHERE: usize = 2;
/// Its name, what it shows, and the test, which tells what it has seen.
type Part = (&'static str, &'static str, fn(&mut Bed) -> String);
/// What follows the acts.
const PARTS: [Part; 13] = [
    ("churn", "nothing false while pods come and go", churn),
    ("user-namespace", "a container in a user namespace resolved", user_namespace::is_resolved),
    ("power-loss", "well again after a power loss", |bed| survives(bed, &interruptions::POWER_LOSS)),
    ("panic", "well again after a kernel panic", |bed| survives(bed, &interruptions::PANIC)),
    ("kubelet-upgrade", "well again after another version of the kubelet", interruptions::survives_other_kubelet),
    ("runtime-upgrade", "well again after another version of containerd", interruptions::survives_other_containerd),
    ("roll-out", "well again after a roll-out of the operator", interruptions::survives_roll_outs),
    ("pause", "well again after a pause of 10 min", |bed| survives(bed, &interruptions::PAUSE)),
    ("network-loss", "well again after 5 min without network", |bed| survives(bed, &interruptions::NETWORK_LOSS)),
    ("reboot", "`Reboot`", reboots_once),
    ("footprint", "probe, resident", footprint),
    ("faults", "faults made on a whole machine", faults::are_named),
    ("actions", "further actions, each once", actions::are_taken),
];
/// Workloads of the demo whose pods come and go.
const WORKLOADS: [&str; 3] = ["daemonset/log-shipper", "daemonset/node-metrics", "daemonset/mesh-agent"];
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Time between two roll-outs.
const ROLL_OUT: Duration = Duration::from_secs(30);
/// No single question to the cluster takes longer.
const LONGEST_LOOK: Duration = Duration::from_mins(5);
/// Reboots the node of a hung container, as no shipped policy does.
const REBOOT: &str = "
apiVersion: runtimehealth.io/v1alpha1
kind: RemediationPolicy
metadata: {name: reboot}
spec:
  mode: Enforce
  rules:
  - name: hung
    match: {faults: [HungContainer]}
    steps:
    - {action: Cordon}
    - {action: Drain, drain: {ignoreRuntimeHang: true}, timeout: 5m, onFailure: Continue}
    - {action: Reboot, approval: Automatic, timeout: 30m, verify: {stableFor: 30s}}
  limits: {maxInFlight: 1, maxUnhealthy: 100%}
";

#[test]
#[ignore = "slow: make platform"]
fn what_is_promised_holds_on_the_platform() {
    if !is_root() {
        return;
    }
    let platform = platform();
    // A row has its place, whichever of them a run shows. What fails leaves an empty cell.
    let unseen = |row: usize, promise: &str| {
        let order = u8::try_from(row).unwrap();
        let proof = Proof { platform: platform.name.into(), order, promise: promise.into(), seen: String::new() };
        proof.record_nothing();
        proof
    };
    let record = |proof: Proof, seen: String| {
        println!("{}: {}: {seen}", proof.platform, proof.promise);
        Proof { seen, ..proof }.record();
    };
    let asked = std::env::var("NRH_PLATFORM_PARTS").ok();
    let asked: Option<Vec<&str>> = asked.as_deref().map(|text| text.split(',').collect());
    let known = |name: &&str| PARTS.iter().any(|(part, ..)| part == name);
    assert!(asked.iter().flatten().all(known), "a part that there is not: {asked:?}");
    let programs = operator::shipped().unwrap();
    let options = BedOptions { name: "platform".into(), nodes: 0, machines: 2, platform, ..BedOptions::default() };
    let bed = Bed::up(options).unwrap();
    record(unseen(0, "parts"), parts(&bed));

    let folder = tempfile::tempdir().unwrap();
    let acts = if platform.has_usual_places() { ACTS.len() } else { ACTS_ANYWHERE };
    let wanted = std::env::var("NRH_PLATFORM_ACTS").unwrap_or_else(|_| ACTS[..acts].join(","));
    let only = wanted.split(',').map(ToOwned::to_owned).collect();
    let installed = unseen(1, "`config/default` installs unchanged");
    let row = |act: &str| unseen(2 + ACTS.iter().position(|name| *name == act).unwrap(), &format!("`{act}` resolved"));
    let resolved: Vec<Proof> = wanted.split(',').map(row).collect();
    let report = folder.path().join("report.json");
    let options =
        Options { fake: false, machines: Some(platform), keep: false, only, no_controls: true, kwok: 0, report };
    let (mut bed, ok) = demo::play(bed, programs, &options).unwrap();
    let text = std::fs::read_to_string(&options.report).unwrap();
    assert!(ok, "{text}");
    record(installed, "yes".into());
    let report: Report = serde_json::from_str(&text).unwrap();
    for proof in resolved {
        let act = report.acts.iter().find(|act| proof.promise == format!("`{}` resolved", act.act)).unwrap();
        record(proof, format!("after {:.0} s", act.seconds.healed.unwrap()));
    }
    for (at, (name, promise, part)) in PARTS.iter().enumerate() {
        if asked.as_ref().is_none_or(|asked| asked.contains(name)) {
            let proof = unseen(2 + ACTS.len() + at, promise);
            record(proof, part(&mut bed));
        }
    }

    leaves_nothing(bed);
}

/// A light node beside it takes what is drained, and half of what two machines compute.
#[test]
#[ignore = "slow: make test-slow"]
fn a_machine_is_rebooted_once_and_is_well_again() {
    if !is_root() {
        return;
    }
    let programs = operator::shipped().unwrap();
    let options = BedOptions { name: "rebooted".into(), nodes: 1, machines: 1, ..BedOptions::default() };
    let mut bed = Bed::up(options).unwrap();
    operator::install(&bed, &programs).unwrap();
    bed.apply(&demo::some_workloads(&["net-a"])).unwrap();
    bed.kubectl(&["-n", demo::NAMESPACE, "rollout", "status", "daemonset/net-a", "--timeout=600s"]).unwrap();
    println!("{}", reboots_once(&mut bed));
    leaves_nothing(bed);
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: machines need root on Linux: tap devices in a network namespace");
    }
    root
}

fn leaves_nothing(bed: Bed) {
    let (name, network, _held) = (bed.name().to_owned(), bed.network_id().to_owned(), bed.network().unwrap());
    bed.down().unwrap();
    assert_eq!(Bed::leftovers(&name, &network), Vec::<String>::new());
    assert!(process::members("net", &network).is_empty());
}

/// The platform that is asked for.
fn platform() -> Platform {
    std::env::var("NRH_PLATFORM").map_or_else(|_| Platform::default(), |name| Platform::named(&name).unwrap())
}

/// What the first machine consists of, by its own word and its kubelet's.
fn parts(bed: &Bed) -> String {
    let script = r#"
. /etc/os-release; echo "Debian $VERSION_ID"; echo "Linux $(uname -r | cut -d. -f1-2)"
name=$(sed -n 's|.*BinaryName = "\(.*\)"|\1|p' /etc/containerd/config.toml); "$name" --version | head -n 1 | sed 's/ version//'
case $(stat -fc %T /sys/fs/cgroup) in cgroup2fs) echo "cgroup v2";; *) echo "cgroup v1";; esac
[ ! -d /sys/kernel/security/apparmor ] || echo AppArmor
[ "$(cat /sys/fs/selinux/enforce 2>/dev/null)" != 1 ] || echo SELinux"#;
    let node = &bed.nodes()[0];
    let path = "jsonpath={.status.nodeInfo.containerRuntimeVersion},kubelet {.status.nodeInfo.kubeletVersion}";
    let versions = bed.kubectl(&["get", "node", &node.name, "-o", path]).unwrap();
    let parts = node.script(script, &[]).unwrap();
    let parts: Vec<&str> = parts.lines().chain(versions.trim().split(',')).collect();
    parts.join(", ").replace("://", " ").replace("kubelet v", "kubelet ")
}

/// Rolls workloads out again and again, while no fault may be confirmed. Says how many were suspected and went.
fn churn(bed: &mut Bed) -> String {
    let minutes = std::env::var("NRH_CHURN_MINUTES").map_or(2, |minutes| minutes.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let (mut confirmed, mut suspected) = (BTreeMap::new(), BTreeMap::new());
    while Instant::now() < end {
        bed.kubectl(&[&["-n", demo::NAMESPACE, "rollout", "restart"], &WORKLOADS[..]].concat()).unwrap();
        let next = Instant::now() + ROLL_OUT;
        while Instant::now() < next {
            for fault in bed.nodes().iter().flat_map(|node| faults_of(bed, &node.name)) {
                let kept = if fault["state"] == "Confirmed" { &mut confirmed } else { &mut suspected };
                kept.insert(fault["id"].to_string(), fault["message"].to_string());
            }
            sleep(Duration::from_secs(2));
        }
    }
    assert!(confirmed.is_empty(), "confirmed while pods only came and went: {confirmed:#?}");
    println!("suspected while pods only came and went: {suspected:#?}");
    if suspected.is_empty() {
        format!("{minutes} min")
    } else {
        format!("{minutes} min, {} suspected", suspected.len())
    }
}

/// Gives the operator the right to drain.
fn allow_drains(bed: &Bed) {
    bed.kubectl(&["apply", "-f", nrh_testbed::workspace().join("config/samples/drain-rights.yaml").to_str().unwrap()])
        .unwrap();
}

/// Replaces all policies.
fn use_policy(bed: &Bed, policy: &str) {
    bed.kubectl(&["delete", "remediationpolicies", "--all", "--timeout=180s"]).unwrap();
    bed.apply(policy).unwrap();
}

/// What the probe of a node reports.
fn report(bed: &Bed, node: &str) -> Value {
    operator::health(bed, node).unwrap()["status"].take()
}

/// The faults of a node, be they the probe's to find or the controller's.
fn faults_of(bed: &Bed, node: &str) -> Vec<Value> {
    operator::faults(&operator::health(bed, node).unwrap()).cloned().collect()
}

/// Whether a node's object names a fault of this kind.
fn names(bed: &Bed, node: &str, kind: &str) -> bool {
    faults_of(bed, node).iter().any(|fault| fault["type"] == kind)
}

/// A pod of the demo on a node that runs, and that no roll-out replaces.
fn victim(bed: &Bed, node: &Node) -> view::Pod {
    let pods = view::pods(bed, Some(&node.name)).unwrap();
    let stays =
        |pod: &view::Pod| pod.owner.as_deref().is_some_and(|owner| !WORKLOADS.iter().any(|name| name.ends_with(owner)));
    pods.into_iter().find(|pod| pod.namespace == demo::NAMESPACE && pod.ready && stays(pod)).unwrap()
}

/// The remediations of a node, the oldest first.
fn remediations(bed: &Bed, node: &str) -> Vec<Value> {
    operator::remediations(bed).unwrap().into_iter().filter(|one| one["spec"]["nodeName"] == *node).collect()
}

/// Whether nothing more is done in a remediation.
fn has_ended(remediation: &Value) -> bool {
    ["Quarantined", "Succeeded", "Failed", "Cancelled", "Simulated"]
        .iter()
        .any(|phase| remediation["status"]["phase"] == **phase)
}

/// Hangs a container for good, and has its node rebooted.
fn reboots_once(bed: &mut Bed) -> String {
    // Not the one that the incidents were on: what was done there lately would speak against more.
    let node = &bed.nodes()[1];
    let kubectl = |args: &[&str]| bed.kubectl(args).unwrap();
    let boot = || node.read(BOOT_ID).unwrap_or_default();
    let boots = || node.read(BOOTS).unwrap().lines().count();
    let (before, known) = (boot(), boots());
    allow_drains(bed);
    use_policy(bed, REBOOT);
    let victim = victim(bed, node);
    let started = Instant::now();
    inject::freeze_shim(node, &victim.uid).unwrap();
    let remediation = || {
        let of_policy = |one: &Value| one["spec"]["policy"] == "reboot";
        remediations(bed, &node.name).into_iter().find(of_policy).unwrap_or_default()
    };
    until_within("the remediation is over, or its time", LONG + LONGEST_LOOK, || {
        has_ended(&remediation()) || started.elapsed() > LONG
    });
    let took = started.elapsed().as_secs();
    until("the machine answers", || boot().len() > 30);
    let (after, done) = (boot(), remediation());
    assert_eq!(done["status"]["phase"], "Succeeded", "{done:#}\n{:#?}", faults_of(bed, &node.name));
    assert!(before.len() > 30 && after.len() > 30 && before != after, "{before} {after}");
    let attempts = done["status"]["attempts"].as_array().unwrap();
    let reboots = attempts.iter().filter(|attempt| attempt["action"] == "Reboot").count();
    assert_eq!((reboots, boots()), (1, known + 1), "{done:#}");
    assert_ne!(kubectl(&["get", "node", &node.name, "-o", "jsonpath={.spec.unschedulable}"]), "true");
    format!("once, well again after {took} s")
}

/// Resident memory of the probe of the first machine.
fn footprint(bed: &mut Bed) -> String {
    let node = &bed.nodes()[0];
    let script = r#"grep VmRSS "/proc/$(pgrep -xo nrh-probe)/status" | tr -dc 0-9"#;
    let kib: u64 = node.script(script, &[]).unwrap().trim().parse().unwrap();
    format!("{}.{} MiB", kib / 1024, kib % 1024 * 10 / 1024)
}
