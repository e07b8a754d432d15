//! Interruptions of a machine in the midst of a remediation. Nothing may be lost, done twice or said falsely afterwards.

use std::thread::sleep;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nrh_testbed::matrix::{Seen, Way, seconds};
use nrh_testbed::{Bed, KubeletStart, faults as inject, operator, view};

use crate::{BOOT_ID, confirmed, faults_of, has_ended, remediations, report, until, victim};

/// The threshold of the fault, and what an emulated machine adds.
const ATTEMPTED: Duration = Duration::from_mins(5);
/// A boot, the start of all pods, and what an emulated machine adds.
const WELL: Duration = Duration::from_mins(10);
/// How long nothing false may be said afterwards.
const QUIET: Duration = Duration::from_mins(1);
/// How long a machine does not run.
const PAUSED: Duration = Duration::from_mins(10);
/// How long a machine has no network.
const UNPLUGGED: Duration = Duration::from_mins(5);

/// What happens to a machine.
pub struct Interruption {
    /// Whether the machine boots anew.
    boots: bool,
    /// Which of the machines. The controllers are on the second one.
    machine: usize,
    /// Makes it happen, and waits until it is over.
    happens: fn(&mut Bed, &str),
}

/// What a machine has not written to its disk is lost.
pub const POWER_LOSS: Interruption =
    Interruption { boots: true, machine: 0, happens: |bed, name| bed.cut_power(name).unwrap() };

/// The kernel panics, and the machine boots 10 s later.
pub const PANIC: Interruption = Interruption { boots: true, machine: 1, happens: panics };

/// The host of a machine stands still. Kubernetes replaces the controllers meanwhile, and the former ones wake up.
pub const PAUSE: Interruption = Interruption {
    boots: false,
    machine: 1,
    happens: |bed, name| {
        bed.node(name).unwrap().set_paused(true).unwrap();
        sleep(PAUSED);
        bed.node(name).unwrap().set_paused(false).unwrap();
    },
};

/// The machine goes on by itself.
pub const NETWORK_LOSS: Interruption = Interruption { boots: false, machine: 0, happens: loses_network };

/// Another image of the operator, while it is at work.
pub const UPGRADE: Interruption =
    Interruption { boots: false, machine: 1, happens: |bed, _| runs_image(bed, "runtimehealth.io/nrh:next") };

/// The former image.
pub const ROLLBACK: Interruption =
    Interruption { boots: false, machine: 0, happens: |bed, _| runs_image(bed, operator::IMAGE) };

/// containerd ends and starts, as with each of its upgrades.
pub const RUNTIME_RESTART: Interruption = Interruption {
    boots: false,
    machine: 1,
    happens: |bed, name| bed.node(name).unwrap().restart_containerd().unwrap(),
};

/// The kubelet ends and starts, as with each of its upgrades.
pub const KUBELET_RESTART: Interruption = Interruption {
    boots: false,
    machine: 0,
    happens: |bed, name| {
        bed.node(name).unwrap().stop_kubelet().unwrap();
        bed.node(name).unwrap().start_kubelet(KubeletStart::default()).unwrap();
    },
};

/// Has controller and probes run by an image of this name, as a person does who applies the manifests with it.
fn runs_image(bed: &Bed, image: &str) {
    for node in bed.nodes() {
        let words = ["-n", "k8s.io", "images", "tag", "--force", operator::IMAGE, image];
        if image != operator::IMAGE {
            node.run("ctr", &words).unwrap();
        }
    }
    let folder = nrh_testbed::workspace().join("config/default");
    let manifests = bed.kubectl(&["kustomize", folder.to_str().unwrap()]).unwrap();
    bed.kubectl_input(&["apply", "-f", "-"], &manifests.replace(operator::IMAGE, image)).unwrap();
    operator::wait(bed).unwrap();
}

fn panics(bed: &mut Bed, name: &str) {
    let node = bed.node(name).unwrap();
    let before = node.read(BOOT_ID).unwrap();
    node.script("setsid sh -c 'sleep 1; echo c >/proc/sysrq-trigger' >/dev/null 2>&1 </dev/null &", &[]).unwrap();
    until("the machine has booted", WELL, || node.read(BOOT_ID).is_ok_and(|now| now.len() > 30 && now != before));
}

fn loses_network(bed: &mut Bed, name: &str) {
    let node = bed.node(name).unwrap();
    let lost = Instant::now();
    node.set_plugged(false).unwrap();
    let kind = "ProbeNotReporting";
    until("its silence is named", UNPLUGGED, || faults_of(bed, name).iter().any(|fault| fault["type"] == kind));
    Seen { named: seconds(lost.elapsed()), ..Seen::of(kind, "containerd", Way::Real) }.record();
    sleep(UNPLUGGED.saturating_sub(lost.elapsed()));
    node.set_plugged(true).unwrap();
}

/// Hangs a container, and interrupts its machine as soon as something is done about it: that was decided about a container of before.
pub fn survives(bed: &mut Bed, interruption: &Interruption) -> String {
    let node = bed.nodes()[interruption.machine].clone();
    let name = node.name.as_str();
    let victim = victim(bed, &node);
    let known = remediations(bed, name).len();
    let attempts = |bed: &Bed| -> usize {
        let new = remediations(bed, name).into_iter().skip(known);
        new.map(|one| one["status"]["attempts"].as_array().map_or(0, Vec::len)).sum()
    };
    let before = node.read(BOOT_ID).unwrap();
    inject::freeze_shim(&node, &victim.uid).unwrap();
    until("something is done about it", ATTEMPTED, || attempts(bed) == 1);

    let cut = Instant::now();
    (interruption.happens)(bed, name);
    let over = Timestamp::now();
    let node = bed.node(name).unwrap();
    let runs = || view::pod_runs(&|| bed.command("kubectl"), node, &victim.uid).is_ok_and(|runs| runs.yes());
    until("the node is well, by a report of since then", WELL, || {
        let report = report(bed, name);
        let reported: Option<Timestamp> = report["probe"]["heartbeatAt"].as_str().and_then(|text| text.parse().ok());
        reported > Some(over) && faults_of(bed, name).is_empty() && runs()
    });
    let took = cut.elapsed().as_secs();
    let after = node.read(BOOT_ID).unwrap();
    assert_eq!(before != after, interruption.boots, "{before} {after}");
    assert_eq!(report(bed, name)["probe"]["bootId"], after.trim());
    until("no remediation goes on", WELL, || remediations(bed, name).iter().all(has_ended));
    let end = Instant::now() + QUIET;
    while Instant::now() < end {
        assert_eq!(confirmed(bed), Vec::<String>::new(), "said after it was over");
        sleep(Duration::from_secs(2));
    }
    assert_eq!(attempts(bed), 1, "{:#?}", remediations(bed, name));
    format!("after {took} s")
}
