//! Each injector on a real node: what it does, that Kubernetes does not repair it, and that lifting it does.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nrh_testbed::faults;
use nrh_testbed::view::{self, Allowed, Pod, Snapshot};
use nrh_testbed::wait::{SOON, until, until_within};
use nrh_testbed::{KubeletStart, Node, work};
use rustix::process::Signal;
use serde_json::json;

use crate::shared::Guest;
use crate::sick::{self, Place};

/// A node of its own on the shared bed, and pods on it.
struct Stage {
    bed: Guest,
    node: Node,
}

impl Stage {
    /// `None` where no bed can be.
    fn set(place: Place) -> Option<Self> {
        let (bed, node) = sick::join(place)?;
        let stage = Self { bed, node };
        stage.untainted();
        Some(stage)
    }

    /// Waits until the control plane has taken its taints off the node, which it does seconds after the node is Ready:
    /// they would be a difference between two snapshots.
    fn untainted(&self) {
        let taints = || self.bed.kubectl(&["get", "node", &self.node.name, "-o", "jsonpath={.spec.taints[*].key}"]);
        let clean = || taints().is_ok_and(|taints| !taints.contains("node.kubernetes.io/"));
        until("the control plane has taken its taints off the node", clean);
    }

    /// What a `DaemonSet` of this node is called: others have one for the same purpose.
    fn own(&self, name: &str) -> String {
        format!("{name}-{}", self.node.name)
    }

    /// A `DaemonSet` in the default namespace whose workload gets these arguments.
    fn daemon_set(&self, name: &str, arguments: &[&str]) {
        let name = self.own(name);
        let mut container = work::container("work", arguments);
        container["volumeMounts"] = json!([{"name": "causes", "mountPath": "/run/causes"}]);
        let spec = json!({
            "terminationGracePeriodSeconds": 2,
            "nodeSelector": {"kubernetes.io/hostname": self.node.name},
            "tolerations": [{"operator": "Exists"}],
            "volumes": [{"name": "causes", "hostPath": {"path": "/run/causes", "type": "DirectoryOrCreate"}}],
            "containers": [container],
        });
        self.bed.apply(&work::workload("DaemonSet", &name, &spec)).unwrap();
    }

    fn pods(&self) -> Vec<Pod> {
        view::pods(&self.bed, Some(&self.node.name)).unwrap()
    }

    /// The newest pod of a `DaemonSet`.
    fn pod(&self, owner: &str) -> Option<Pod> {
        let owner = self.own(owner);
        self.pods().into_iter().filter(|pod| pod.owner.as_deref() == Some(&owner)).min_by_key(|pod| pod.deleting)
    }

    fn runs(&self, uid: &str) -> Result<(), String> {
        view::pod_runs(&self.bed, &self.node, uid).unwrap()
    }

    /// Waits until the `DaemonSet` has a pod, whatever becomes of it.
    fn any_pod(&self, owner: &str) -> Pod {
        until("there is a pod", || self.pod(owner).is_some());
        self.pod(owner).unwrap()
    }

    /// Waits until the `DaemonSet` has a pod that really runs, other than `not`.
    fn running(&self, owner: &str, not: Option<&str>) -> Pod {
        let before = Instant::now();
        loop {
            let pod = self.pod(owner);
            let seen = match &pod {
                Some(pod) if Some(pod.uid.as_str()) != not => self.runs(&pod.uid),
                _ => Err("no pod".into()),
            };
            match seen {
                Ok(()) => return pod.unwrap(),
                Err(why) => assert!(before.elapsed() < SOON, "{owner}: {why}"),
            }
            sleep(Duration::from_millis(200));
        }
    }

    fn delete(&self, pod: &Pod) {
        self.bed.kubectl(&["delete", "pod", &pod.name, "--wait=false"]).unwrap();
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.bed, &[&self.node]).unwrap().of_its_nodes()
    }

    fn lists(&self) -> view::Lists {
        view::lists(&self.node.socket(), view::LIMIT).unwrap()
    }

    /// Whether a kubelet, not only its supervisor, runs.
    fn kubelet_runs(&self) -> bool {
        view::processes(self.node.init_pid()).unwrap().iter().any(|process| process.comm == "kubelet")
    }
}

#[test]
fn a_frozen_shim_keeps_its_pod_terminating_until_it_is_resumed() {
    let Some(stage) = Stage::set(Place::FrozenShim) else { return };
    stage.daemon_set("agent", &["work"]);
    stage.daemon_set("other", &["work"]);
    let (pod, other) = (stage.running("agent", None), stage.running("other", None));
    let before = stage.snapshot();

    let frozen = faults::freeze_shim(&stage.node, &pod.uid).unwrap();
    println!("injected: {frozen:?}");
    let why = stage.runs(&pod.uid).expect_err("a frozen shim answers");
    assert!(why.contains("Tasks/Get"), "{why}");
    // The other pod's shim answers, and the API server and the lists see nothing at all.
    until("the other pod's shim answers", || stage.runs(&other.uid).is_ok());
    assert!(stage.pod("agent").unwrap().ready);
    let lists = stage.lists();
    assert!(lists.containers.iter().find(|c| c.id == frozen.victim.containers[0]).unwrap().running());

    stage.delete(&pod);
    sleep(Duration::from_secs(20));
    let stuck = stage.pod("agent").unwrap();
    assert!(stuck.uid == pod.uid && stuck.deleting && stuck.ready, "{stuck:?}");

    frozen.lift(&stage.node).unwrap();
    let lifted = Instant::now();
    stage.running("agent", Some(&pod.uid));
    println!("successor runs after the resume: {:.1?}", lifted.elapsed());

    let (changes, counts) = view::diff(&before, &stage.snapshot(), &Allowed::default().pods("default", "agent-"));
    assert_eq!(changes, []);
    println!("untouched: {counts:?}");
    assert!(counts.pods > 0 && counts.containers > 0 && counts.processes > 0);

    // The judge is awake: the loss of one bystander's process is seen.
    let workload = view::processes(stage.node.init_pid()).unwrap();
    let sandbox = stage.lists().sandbox_of(&other.uid).unwrap().id.clone();
    let workload = workload.iter().find(|p| p.shim_of.as_ref() == Some(&sandbox) && p.comm == "workload").unwrap();
    assert!(workload.identity().signal(Signal::KILL).unwrap());
    until("the bystander runs again", || stage.runs(&other.uid).is_ok());
    let (changes, _) = view::diff(&before, &stage.snapshot(), &Allowed::default().pods("default", "agent-"));
    assert!(changes.iter().any(|change| change.what == view::What::Process), "{changes:?}");
}

#[test]
fn a_leaked_shim_stays_when_its_pod_is_long_replaced() {
    let Some(stage) = Stage::set(Place::LeakedShim) else { return };
    stage.daemon_set("agent", &["work"]);
    stage.daemon_set("other", &["work"]);
    let (pod, other) = (stage.running("agent", None), stage.running("other", None));
    let before = stage.snapshot();

    let leaked = faults::leaked_shim(&stage.node, &pod.uid).unwrap();
    println!("containerd is back after {:.1?}", leaked.elapsed());
    // Kubernetes replaces the sandbox, not the pod, and is content.
    assert_eq!(stage.running("agent", None).uid, pod.uid);
    println!("pod runs again after {:.1?}", leaked.elapsed());
    sleep(Duration::from_secs(10));
    assert!(leaked.is_there(&stage.node));
    let shim = leaked.victim.process.unwrap().pid;
    let processes = view::processes(stage.node.init_pid()).unwrap();
    let shim = processes.iter().find(|process| process.host_pid == shim).unwrap();
    assert_eq!(
        (shim.state, shim.host_ppid, shim.shim_of.as_ref()),
        ('T', stage.node.init_pid(), leaked.victim.sandbox.as_ref())
    );
    let lists = stage.lists();
    assert!(lists.sandboxes.iter().all(|s| Some(&s.id) != leaked.victim.sandbox.as_ref() || !s.ready));

    leaked.lift(&stage.node).unwrap();
    until("the shim is gone", || !leaked.is_there(&stage.node));
    until("both shims answer", || stage.runs(&pod.uid).is_ok() && stage.runs(&other.uid).is_ok());
    let allowed = Allowed::default().pods("default", "agent-").program(&stage.node.name, "containerd");
    assert_eq!(view::diff(&before, &stage.snapshot(), &allowed).0, []);
}

#[test]
fn an_orphan_keeps_an_old_kubelet_from_starting_on_a_node_where_nothing_runs() {
    let Some(stage) = Stage::set(Place::OldKubelet) else { return };
    stage.daemon_set("agent", &["work"]);
    stage.daemon_set("other", &["work"]);
    let (pod, other) = (stage.running("agent", None), stage.running("other", None));
    let node = &stage.node;

    let before = stage.snapshot();

    let lost = faults::lose_sandbox(node, &pod.uid).unwrap();
    println!("orphan after {:.1?}", lost.elapsed());
    let lists = stage.lists();
    let orphans: Vec<_> = lists.orphans().collect();
    assert_eq!(orphans.len(), 1);
    assert!(orphans[0].id == lost.victim.containers[0] && orphans[0].running(), "{orphans:?}");

    let stopped = faults::stop_all_containers(node).unwrap();
    println!("{} containers stopped in {:.1?}", stopped.victim.containers.len(), stopped.elapsed());
    assert!(view::processes(node.init_pid()).unwrap().iter().all(|process| process.comm != "workload"));

    node.start_kubelet(KubeletStart { start_check: true }).unwrap();
    let starts = || std::fs::read_to_string(node.root_path("/var/log/kubelet-starts.log")).unwrap_or_default();
    until("two starts were refused", || starts().matches("refused by the start check").count() >= 2);
    assert!(!stage.kubelet_runs());
    let message = format!("no PodsandBox found with Id '{}'", lost.victim.sandbox.as_ref().unwrap());
    assert!(std::fs::read_to_string(node.log("kubelet")).unwrap().contains(&message));

    lost.lift(node).unwrap();
    let lifted = Instant::now();
    until("the kubelet runs", || stage.kubelet_runs());
    until("its pods run", || stage.runs(&pod.uid).is_ok() && stage.runs(&other.uid).is_ok());
    println!("node healed {:.1?} after the orphan's removal", lifted.elapsed());
    // Nothing of the injection may look like a fault of its own for long afterwards.
    until("nothing is left of what was stopped", || {
        let (lists, processes) = (stage.lists(), view::processes(node.init_pid()).unwrap());
        let known = |id: &String| lists.sandboxes.iter().any(|s| s.id == *id && s.ready);
        processes.iter().all(|process| process.shim_of.as_ref().is_none_or(known))
    });
    stage.untainted();
    let mut allowed = Allowed::default().stopped_node(&node.name);
    for program in ["containerd", "testbed", "kubelet"] {
        allowed = allowed.program(&node.name, program);
    }
    assert_eq!(view::diff(&before, &stage.snapshot(), &allowed).0, []);
}

#[test]
fn a_hung_network_plugin_holds_up_every_later_pod() {
    let Some(stage) = Stage::set(Place::HungPlugin) else { return };
    let node = &stage.node;
    stage.daemon_set("other", &["work"]);
    stage.running("other", None);

    let gate = faults::hang_cni_add(node).unwrap();
    stage.daemon_set("first", &["work"]);
    let hung = faults::await_gate_holder(node, &gate).unwrap();
    println!("hung: {hung:?}");
    stage.daemon_set("second", &["work"]);
    stage.daemon_set("third", &["work"]);
    let locks = || view::locks(&node.root_path(faults::GATE_LOCK)).unwrap();
    until("two wait behind one", || locks().waiters.len() == 2);
    assert_eq!(locks().holders, [hung.victim.process.unwrap().pid]);
    sleep(Duration::from_secs(15));
    for name in ["first", "second", "third"] {
        let pod = stage.pod(name).unwrap();
        assert!(pod.phase == "Pending" && stage.runs(&pod.uid).is_err(), "{pod:?}");
        assert_eq!(stage.lists().sandbox_of(&pod.uid), None);
    }

    hung.victim.process.unwrap().signal(Signal::KILL).unwrap();
    let killed = Instant::now();
    for name in ["second", "third", "first"] {
        stage.running(name, None);
        println!("{name} runs {:.1?} after the kill", killed.elapsed());
    }

    // Taking a pod away can hang as well: Ready by the API, its container long gone.
    let pod = stage.running("first", None);
    let gate = faults::hang_cni_del(node).unwrap();
    stage.delete(&pod);
    let hung = faults::await_gate_holder(node, &gate).unwrap();
    sleep(Duration::from_secs(5));
    let stuck = stage.pod("first").unwrap();
    println!("while DEL hangs: {stuck:?}");
    assert!(stuck.uid == pod.uid && stuck.deleting, "{stuck:?}");
    assert!(!stage.lists().sandbox_of(&pod.uid).unwrap().ready);
    // The other way out: the cause ends by itself.
    hung.lift(node).unwrap();
    stage.running("first", Some(&pod.uid));
    assert_eq!(locks(), view::Locks::default());
}

#[test]
fn a_crash_loop_goes_on_after_its_cause_and_ends_with_its_pod() {
    let Some(stage) = Stage::set(Place::CrashLoop) else { return };
    let cause = faults::set_cause(&stage.node, "/run/causes/agent").unwrap();
    stage.daemon_set("agent", &["fail-while", "/run/causes/agent"]);
    let pod = stage.any_pod("agent");
    let back_off = || view::back_off(&stage.node, &pod.uid).unwrap();
    // It has to last beyond what follows, on a slow machine as well.
    until_within("a back-off of 40 s", 2 * SOON, || back_off() >= Some(Duration::from_secs(40)));
    cause.lift(&stage.node).unwrap();
    sleep(Duration::from_secs(5));
    let looping = stage.pod("agent").unwrap().containers.remove(0);
    println!("in back-off: {looping:?}");
    assert!(looping.restarts >= 1 && looping.finished.is_some(), "{looping:?}");
    // Before the kubelet names the next back-off, this alone tells how long the last one was.
    let waited = looping.started.zip(looping.finished_before).map(|(start, end)| start.duration_since(end));
    println!("waited before its last start: {waited:?}");
    assert!(looping.restarts < 2 || waited.is_some_and(|waited| waited.as_secs() >= 9), "{looping:?}");
    assert!(stage.runs(&pod.uid).is_err());
    stage.delete(&pod);
    let deleted = Instant::now();
    stage.running("agent", Some(&pod.uid));
    println!("successor runs {:.1?} after the deletion", deleted.elapsed());
}
