//! Interruptions of a machine during a remediation. Afterwards nothing is lost, executed twice, or reported wrongly.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nrh_testbed::matrix::{Seen, Way, seconds};
use nrh_testbed::wait::{until, until_within};
use nrh_testbed::{Bed, Node, assets, faults as inject, operator, view};
use serde_json::{Value, json};

use crate::{BOOT_ID, faults_of, has_ended, names, platform, remediations, report, victim};

/// How long no fault may be confirmed afterwards.
const QUIET: Duration = Duration::from_mins(1);
/// How long a machine does not run.
const PAUSED: Duration = Duration::from_mins(10);
/// The threshold of the fault, and what an emulated machine adds.
const ATTEMPTED: Duration = Duration::from_mins(5);
/// How long a machine has no network.
const UNPLUGGED: Duration = Duration::from_mins(5);

/// What happens to a machine.
pub struct Interruption<'a> {
    /// Whether the machine boots.
    boots: bool,
    /// Whether it is the machine of the leading controller, or the other one.
    on_leader: bool,
    /// Makes it happen, and waits until it is over.
    happens: &'a dyn Fn(&mut Bed, &str),
}

impl<'a> Interruption<'a> {
    const fn of(on_leader: bool, happens: &'a dyn Fn(&mut Bed, &str)) -> Self {
        Self { boots: false, on_leader, happens }
    }
}

/// What the machine has not written to its disk is lost.
pub const POWER_LOSS: Interruption<'_> =
    Interruption { boots: true, ..Interruption::of(false, &|bed, name| bed.cut_power(name).unwrap()) };

/// The kernel panics, and the machine boots 10 s later.
pub const PANIC: Interruption<'_> = Interruption { boots: true, ..Interruption::of(true, &panics) };

/// The host of the machine stands still. The other controller leads meanwhile, and the former leader goes on.
pub const PAUSE: Interruption<'_> = Interruption::of(true, &pauses);

/// The machine goes on by itself.
pub const NETWORK_LOSS: Interruption<'_> = Interruption::of(false, &loses_network);

/// The operator is rolled out by another tag of its image.
const ROLL_OUT: Interruption<'_> = Interruption::of(true, &|bed, _| runs_image(bed, OTHER_IMAGE));

/// The operator is rolled out by its former tag.
const ROLL_BACK: Interruption<'_> = Interruption::of(false, &|bed, _| runs_image(bed, operator::IMAGE));

/// containerd's minor version before the newest, and Kubernetes'.
const OTHER_CONTAINERD: &str = "2.3.7";
const OTHER_KUBELET: &str = "1.35.4";

/// The same image under another tag.
const OTHER_IMAGE: &str = "runtimehealth.io/nrh:other";

/// The node of the leading controller.
fn leader(bed: &Bed) -> String {
    let get = |words: &[&str], path: &str| {
        bed.kubectl(&[&["-n", "nrh-system", "get"], words, &["-o", &format!("jsonpath={path}")]].concat()).unwrap()
    };
    let holder = get(&["lease", "nrh-controller"], "{.spec.holderIdentity}");
    let pods = get(&["pods"], r#"{range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}"#);
    let mut pods = pods.lines().filter_map(|line| line.split_once(' '));
    pods.find(|(pod, _)| holder.starts_with(pod))
        .unwrap_or_else(|| panic!("{holder:?} leads, and is no pod"))
        .1
        .to_owned()
}

/// Has controller and probes run by an image of this name, as a person does who applies the manifests with it.
fn runs_image(bed: &Bed, image: &str) {
    let folder = nrh_testbed::workspace().join("config/default");
    let manifests = bed.kubectl(&["kustomize", folder.to_str().unwrap()]).unwrap();
    assert!(manifests.contains(operator::IMAGE));
    bed.apply(&manifests.replace(operator::IMAGE, image)).unwrap();
    operator::wait(bed).unwrap();
    let path = "jsonpath={.items[*].spec.containers[*].image}";
    for namespace in ["nrh-system", "nrh-node"] {
        let names = ["-n", namespace, "get", "pods", "-l", "app.kubernetes.io/part-of=nrh", "-o", path];
        until("all pods run by that image", || {
            let images = bed.kubectl(&names).unwrap();
            !images.is_empty() && images.split(' ').all(|one| one == image)
        });
    }
}

fn pauses(bed: &mut Bed, name: &str) {
    let node = bed.node(name).unwrap();
    node.set_paused(true).unwrap();
    sleep(PAUSED);
    let led = leader(bed);
    node.set_paused(false).unwrap();
    assert_ne!(led, name, "the other controller has not taken over");
}

fn panics(bed: &mut Bed, name: &str) {
    let node = bed.node(name).unwrap();
    let before = node.read(BOOT_ID).unwrap();
    node.script("setsid sh -c 'sleep 1; echo c >/proc/sysrq-trigger' >/dev/null 2>&1 </dev/null &", &[]).unwrap();
    until("the machine has booted", || node.read(BOOT_ID).is_ok_and(|now| now.len() > 30 && now != before));
}

fn loses_network(bed: &mut Bed, name: &str) {
    let node = bed.node(name).unwrap();
    let lost = Instant::now();
    node.set_plugged(false).unwrap();
    let kind = "ProbeNotReporting";
    until_within("its silence is named", UNPLUGGED, || names(bed, name, kind));
    Seen { named: seconds(lost.elapsed()), ..Seen::of(kind, platform().runtime(), Way::Real) }.record();
    sleep(UNPLUGGED.saturating_sub(lost.elapsed()));
    node.set_plugged(true).unwrap();
}

/// Rolls the operator out and back. The tag is made first: the roll-out has to begin while the remediation is open.
pub fn survives_roll_outs(bed: &mut Bed) -> String {
    for node in bed.nodes() {
        node.script(platform().tag(), &[operator::IMAGE, OTHER_IMAGE]).unwrap();
    }
    let rolled_out = survives(bed, &ROLL_OUT);
    format!("{rolled_out}, and {} when it is rolled back", survives(bed, &ROLL_BACK))
}

/// Has another version of containerd run, and the platform's own again. Where that is a package, it only restarts.
pub fn survives_other_containerd(bed: &mut Bed) -> String {
    let Some(own) = crate::platform().containerd else {
        let restarts = |bed: &mut Bed, name: &str| bed.node(name).unwrap().restart_containerd().unwrap();
        return format!("restarted: {}", survives(bed, &Interruption::of(false, &restarts)));
    };
    survives_versions(bed, false, [OTHER_CONTAINERD, own], &|node, version| node.change_containerd(version).unwrap())
}

/// Has another version of the kubelet run, and the bed's own again. Where the platform names one, it only restarts.
pub fn survives_other_kubelet(bed: &mut Bed) -> String {
    let platform = crate::platform();
    let own = assets::find(&platform.programs(&[assets::NODE]).unwrap(), "kubelet").unwrap();
    if platform.kubernetes.is_some() {
        let restarts = |bed: &mut Bed, name: &str| bed.node(name).unwrap().change_kubelet(&own).unwrap();
        return format!("restarted: {}", survives(bed, &Interruption::of(true, &restarts)));
    }
    let other = assets::kubernetes(OTHER_KUBELET).unwrap().join("kubelet");
    survives_versions(bed, true, [OTHER_KUBELET, assets::kubernetes_version()], &|node, version| {
        node.change_kubelet(if version == OTHER_KUBELET { &other } else { &own }).unwrap();
    })
}

/// Goes back to the first of these versions on one machine, and forward to the second.
fn survives_versions(bed: &mut Bed, on_leader: bool, versions: [&str; 2], change: &dyn Fn(&Node, &str)) -> String {
    let path = "jsonpath={.status.nodeInfo.kubeletVersion} {.status.nodeInfo.containerRuntimeVersion}";
    let survived = versions.map(|version| {
        let runs = |bed: &mut Bed, name: &str| {
            change(bed.node(name).unwrap(), version);
            until("the node has that version", || {
                bed.kubectl(&["get", "node", name, "-o", path]).unwrap().split(' ').any(|one| one.ends_with(version))
            });
        };
        format!("{version} {}", survives(bed, &Interruption::of(on_leader, &runs)))
    });
    survived.join(", ")
}

/// Hangs a container, and interrupts its machine once the controller has scheduled an attempt.
pub fn survives(bed: &mut Bed, interruption: &Interruption<'_>) -> String {
    let led = leader(bed);
    let node = bed.nodes().iter().find(|node| (node.name == led) == interruption.on_leader).unwrap().clone();
    let name = node.name.as_str();
    let victim = victim(bed, &node);
    let known = remediations(bed, name).len();
    let new = |bed: &Bed| -> Vec<Value> {
        remediations(bed, name).into_iter().skip(known).filter(|one| one["spec"]["mode"] == "Enforce").collect()
    };
    let attempts = |bed: &Bed| -> Vec<Value> {
        new(bed).iter().flat_map(|one| one["status"]["attempts"].as_array().cloned().unwrap_or_default()).collect()
    };
    let before = node.read(BOOT_ID).unwrap();
    inject::freeze_shim(&node, &victim.uid).unwrap();
    let end = Instant::now() + ATTEMPTED;
    while attempts(bed).is_empty() {
        assert!(Instant::now() < end, "nothing is done about it");
        sleep(Duration::from_millis(300));
    }
    assert!(!new(bed).iter().all(has_ended), "it was over before the interruption: {:#?}", new(bed));

    let cut = Instant::now();
    (interruption.happens)(bed, name);
    let node = bed.node(name).unwrap();
    // Only a check that begins now has this answer.
    let token = format!("after-{}", cut.elapsed().as_millis());
    let ask = json!({"spec": {"checkRequested": token}}).to_string();
    bed.kubectl(&["patch", "noderuntimehealth", name, "--type=merge", "-p", &ask]).unwrap();
    let runs = || view::pod_runs(bed, node, &victim.uid).is_ok_and(|runs| runs.is_ok());
    until("the node is well, by a new check", || {
        report(bed, name)["probe"]["checkAnswered"] == token
            && !faults_of(bed, name).iter().any(is_unexpected)
            && runs()
    });
    let took = cut.elapsed().as_secs();
    let after = node.read(BOOT_ID).unwrap();
    assert_eq!(before != after, interruption.boots, "{before} {after}");
    assert_eq!(report(bed, name)["probe"]["bootId"], after.trim());
    until("no remediation goes on", || new(bed).iter().all(has_ended));
    let end = Instant::now() + QUIET;
    while Instant::now() < end {
        let named: Vec<_> =
            bed.nodes().iter().flat_map(|node| faults_of(bed, &node.name)).filter(is_unexpected).collect();
        assert!(named.iter().all(|fault| fault["state"] != "Confirmed"), "confirmed after it was over: {named:#?}");
        sleep(Duration::from_secs(2));
    }
    let executed = |one: &&Value| one["executedAt"].is_string() && one["action"] != "Notify";
    assert!(attempts(bed).iter().filter(executed).count() <= 1, "executed twice: {:#?}", new(bed));
    // After a boot nobody knows whether the action or the boot has helped.
    let succeeded = new(bed).last().is_some_and(|last| last["status"]["phase"] == "Succeeded");
    assert!(interruption.boots || succeeded, "{:#?}", new(bed));
    format!("after {took} s")
}

/// Whether no fault of this kind can be there after an interruption. `NodeFlapping` can: each part interrupts the node once more.
fn is_unexpected(fault: &Value) -> bool {
    fault["type"] != "NodeFlapping"
}
