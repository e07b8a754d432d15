//! Faults that only a whole machine can have, made there for real: named, and all but `NodeFlapping` taken back when they are gone.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nrh_testbed::matrix::{Seen, Way, seconds};
use nrh_testbed::wait::until_within;
use nrh_testbed::{Bed, Node};
use serde_json::json;

use crate::{faults_of, names, platform, use_policy};

/// The longest threshold is ten minutes.
const NAMED: Duration = Duration::from_mins(20);
/// `Ready` of a node follows its kubelet's silence after 50 s. Less than the five minutes until the next report.
const NOTICED: Duration = Duration::from_mins(3);
/// Changes of `Ready` that are flapping.
const CHANGES: usize = 6;
/// A condition that another tool writes, and a policy that asks for it.
const CONDITION: &str = "KernelDeadlock";
const POLICY: &str = r#"
apiVersion: runtimehealth.io/v1alpha1
kind: RemediationPolicy
metadata: {name: kernel}
spec:
  mode: DryRun
  rules:
  - name: kernel
    match: {nodeConditions: [{type: KernelDeadlock, status: "True"}]}
    steps: [{action: Notify}]
"#;

/// A fault of one machine.
struct Fault {
    kind: &'static str,
    /// Scripts for the machine.
    make: &'static str,
    undo: &'static str,
}

/// All at once: none hides another.
const OF_THE_HOST: [Fault; 4] = [
    Fault {
        kind: "ClockUnsynchronised",
        make: "date -s @$(($(date +%s) + 90))",
        undo: "date -s @$(($(date +%s) - 90))",
    },
    Fault {
        kind: "UntrackedPodProcess",
        // Beside a container of a pod that is there: the kubelet ends what is left of one that is not.
        make: r#"
scope=$(find /sys/fs/cgroup/kubepods.slice /sys/fs/cgroup/pids/kubepods -type d 2>/dev/null | grep -E '[0-9a-f]{64}' | head -n 1)
[ -n "$scope" ]
group=$(echo "$scope" | sed -E "s/[0-9a-f]{64}/$(printf %064d 7)/")
mkdir "$group"
setsid sleep 4712 >/dev/null 2>&1 </dev/null &
echo $! >"$group/cgroup.procs""#,
        // The bracket keeps pkill from its own shell.
        undo: r#"
pkill -f '[s]leep 4712'
sleep 1
rmdir "$(find /sys/fs/cgroup -type d -name "*$(printf %064d 7)*")""#,
    },
    Fault {
        kind: "PidExhaustion",
        // The threads that are left must suffice for the commands that undo it.
        make: "
cat /proc/sys/kernel/threads-max >/run/threads-max
for i in $(seq 1600); do sleep 4711 >/dev/null 2>&1 </dev/null & done
used=$(cut -d/ -f2 /proc/loadavg | cut -d' ' -f1)
echo $((used * 100 / 95)) >/proc/sys/kernel/threads-max",
        undo: "cat /run/threads-max >/proc/sys/kernel/threads-max; pkill -f '[s]leep 4711'",
    },
    Fault { kind: "DbusUnresponsive", make: "pkill -STOP -x dbus-daemon", undo: "pkill -CONT -x dbus-daemon" },
];

/// Both by a stopped runtime: the kubelet reports the second after three minutes.
const OF_THE_RUNTIME: [Fault; 2] = [
    Fault { kind: "RuntimeUnreachable", make: STOP_RUNTIME, undo: RESUME_RUNTIME },
    Fault { kind: "PlegStalled", make: STOP_RUNTIME, undo: RESUME_RUNTIME },
];
/// A kubelet by all of its names.
const KUBELET: &str = r#"pkill "-$1" -x 'kubelet|k3s-agent|kubelite'"#;
const STOP_RUNTIME: &str = "pkill -STOP -x 'containerd|dockerd|crio'";
const RESUME_RUNTIME: &str = "pkill -CONT -x 'containerd|dockerd|crio'";

/// Makes them on both machines at once; tells which.
pub fn are_named(bed: &mut Bed) -> String {
    use_policy(bed, POLICY);
    let bed = &*bed;
    thread::scope(|threads| {
        threads.spawn(|| together(bed, &bed.nodes()[0], &OF_THE_HOST));
        for fault in &OF_THE_RUNTIME {
            together(bed, &bed.nodes()[1], std::slice::from_ref(fault));
        }
        condition(bed, &bed.nodes()[1]);
        flapping(bed, &bed.nodes()[1]);
    });
    let kinds: Vec<_> = OF_THE_HOST.iter().chain(&OF_THE_RUNTIME).map(|fault| fault.kind).collect();
    format!("{}, NodeCondition, NodeFlapping", kinds.join(", "))
}

/// Makes all of them, undoes each once it is confirmed, and waits until none is reported.
fn together(bed: &Bed, node: &Node, faults: &[Fault]) {
    struct Made<'f> {
        fault: &'f Fault,
        at: Instant,
        undone: Option<Instant>,
        seen: Seen,
    }
    let mut all: Vec<Made<'_>> = Vec::new();
    for fault in faults {
        let at = Instant::now();
        node.script(fault.make, &[]).unwrap();
        all.push(Made { fault, at, undone: None, seen: Seen::of(fault.kind, platform().runtime(), Way::Real) });
    }
    until_within(&format!("the faults of {} are named and taken back", node.name), NAMED, || {
        let reported = faults_of(bed, &node.name);
        for one in &mut all {
            let found = reported.iter().find(|fault| fault["type"] == one.fault.kind);
            match (found, one.undone) {
                (Some(found), None) if found["state"] == "Confirmed" => {
                    one.seen.confirmed = seconds(one.at.elapsed());
                    println!("{}: {}: {}", node.name, one.fault.kind, found["message"]);
                    node.script(one.fault.undo, &[]).unwrap();
                    one.undone = Some(Instant::now());
                }
                (None, Some(undone)) if one.seen.gone.is_none() => {
                    one.seen.gone = seconds(undone.elapsed());
                    one.seen.record();
                }
                _ => {}
            }
        }
        all.iter().all(|one| one.seen.gone.is_some())
    });
}

/// Waits until a node's object names a fault, or names it no more; returns the seconds.
fn named(bed: &Bed, node: &Node, kind: &str, is_named: bool) -> Option<u64> {
    let what = format!("{kind} is {} of {}", if is_named { "said" } else { "no longer said" }, node.name);
    seconds(until_within(&what, NOTICED, || names(bed, &node.name, kind) == is_named))
}

/// A condition as another tool writes it.
fn condition(bed: &Bed, node: &Node) {
    let kind = "NodeCondition";
    let set = |status: &str| {
        let now = jiff::Timestamp::now().to_string();
        let one = json!({"type": CONDITION, "status": status, "reason": "Test", "message": "a task is blocked",
            "lastTransitionTime": now, "lastHeartbeatTime": now});
        let patch = json!({"status": {"conditions": [one]}}).to_string();
        bed.kubectl(&["patch", "node", &node.name, "--subresource=status", "--type=strategic", "-p", &patch]).unwrap();
    };
    set("True");
    let seen = named(bed, node, kind, true);
    set("False");
    Seen { named: seen, gone: named(bed, node, kind, false), ..Seen::of(kind, platform().runtime(), Way::Real) }
        .record();
}

/// A kubelet that comes and goes.
fn flapping(bed: &Bed, node: &Node) {
    let began = Instant::now();
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    let ready = || bed.kubectl(&["get", "node", &node.name, "-o", path]).unwrap() == "True";
    for change in 0..CHANGES {
        let stops = change % 2 == 0;
        node.script(KUBELET, &[if stops { "STOP" } else { "CONT" }]).unwrap();
        until_within("the node's Ready follows its kubelet", NOTICED, || ready() != stops);
        sleep(Duration::from_secs(2));
    }
    named(bed, node, "NodeFlapping", true);
    Seen { named: seconds(began.elapsed()), ..Seen::of("NodeFlapping", platform().runtime(), Way::Real) }.record();
}
