//! Bundles of made-up and real processes, of hangs, and of folders that take nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::proc::fake::{self, Running};
use crate::waiting::wait_until;
use nrh_api::evidence::LARGEST;
use nrh_api::health::{CollectorState, CollectorStatus, ProbeStatus};
use nrh_api::local::MAX_BUNDLES;
use nrh_core::examples::{Node, SANDBOX, fault, shim};
use nrh_core::fault::{FaultType, ProcessRef};

const TICKS: u64 = 90_000;

/// A node's `/proc` and state folder.
struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        for folder in ["proc", "state"] {
            fs::create_dir(host.0.path().join(folder)).unwrap();
        }
        host
    }

    fn settings(&self) -> EvidenceSettings {
        EvidenceSettings {
            proc: self.0.path().join("proc"),
            kmsg: self.0.path().join("kmsg"),
            ..EvidenceSettings::new("worker-1", "boot-1", &self.0.path().join("state"))
        }
    }

    fn path(&self, pid: i32, file: &str) -> PathBuf {
        self.0.path().join(format!("proc/{pid}/{file}"))
    }

    /// A process in this state, with so many threads.
    fn process(&self, pid: i32, state: char, threads: i32) {
        for id in 0..threads {
            let folder = self.path(pid, &format!("task/{}", pid + id));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("stat"), stat(pid + id, if id == 1 { 'D' } else { 'S' })).unwrap();
            fs::write(folder.join("wchan"), "futex_wait_queue").unwrap();
            fs::write(folder.join("stack"), "[<0>] futex_wait_queue+0x60/0x90\n".repeat(40)).unwrap();
        }
        fs::write(self.path(pid, "stat"), stat(pid, state)).unwrap();
        fs::write(self.path(pid, "wchan"), "io_schedule").unwrap();
        fs::write(self.path(pid, "stack"), "[<0>] io_schedule+0x46/0x70\n[<0>] wait_on_page_bit\n").unwrap();
        fs::write(self.path(pid, "status"), "Name:\tx\nSigCgt:\tfffffffd7fc1feff\n").unwrap();
        fs::write(self.path(pid, "limits"), "Limit  Soft Limit\nMax open files  1024  4096  files\n").unwrap();
        fs::write(self.path(pid, "cgroup"), "0::/system.slice/containerd.service\n").unwrap();
    }

    /// What whoever opens it must not.
    fn trap(&self, pid: i32, file: &str) {
        let _ = fs::remove_file(self.path(pid, file));
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, self.path(pid, file), mode).unwrap();
    }

    fn bundle(&self, name: &str) -> Bundle {
        serde_json::from_slice(&self.settings().folder.read(name).unwrap()).unwrap()
    }
}

/// A host whose process 4000 is in this state and has so many threads, and its evidence.
fn started(state: char, threads: i32) -> (Host, Evidence) {
    let host = Host::new();
    host.process(4000, state, threads);
    let evidence = Evidence::start(host.settings());
    (host, evidence)
}

fn stat(pid: i32, state: char) -> Vec<u8> {
    fake::stat(pid, b"containerd-shim", state, 1, TICKS)
}

/// A confirmed fault with this process as its target.
fn confirmed(kind: FaultType, pid: i32) -> Fault {
    let mut fault = Fault { state: FaultState::Confirmed, ..fault(kind) };
    fault.evidence = vec!["state T".into()];
    fault.target.process = shim("").1.process.map(|shim| ProcessRef { pid, start_ticks: TICKS, ..shim });
    fault
}

fn status(faults: Vec<Fault>) -> NodeRuntimeHealthStatus {
    let collector = CollectorStatus {
        name: "lists".into(),
        state: CollectorState::Hung,
        age_seconds: Some(65),
        message: "a call has been out for 65 s".into(),
    };
    let probe = ProbeStatus { collectors: vec![collector], ..ProbeStatus::default() };
    NodeRuntimeHealthStatus { probe: Some(probe), faults, ..NodeRuntimeHealthStatus::default() }
}

fn calls() -> CallCounts {
    CallCounts {
        out: [("lists".to_owned(), 1)].into(),
        abandoned: [("tasks".to_owned(), 2)].into(),
        ..CallCounts::default()
    }
}

/// Offers it, waits for its end, and tells the name that is reported then.
async fn noted(evidence: &mut Evidence, fault: &Fault) -> Option<String> {
    let seen = Node::unavailable();
    let mut now = status(vec![fault.clone()]);
    evidence.note(&mut now, &seen, &calls());
    assert_eq!(now.faults[0].evidence_bundle, None, "nothing is kept yet");
    timeout(Duration::from_secs(30), evidence.ended()).await.unwrap();
    evidence.note(&mut now, &seen, &calls());
    now.faults.remove(0).evidence_bundle
}

#[tokio::test]
async fn a_bundle_holds_what_the_kernel_and_the_collectors_tell() {
    let (host, mut evidence) = started('T', 3);
    fs::write(host.0.path().join("kmsg"), "6,1,5000000,-;task containerd-shim blocked\n").unwrap();
    let name = noted(&mut evidence, &confirmed(FaultType::HungContainer, 4000)).await.unwrap();
    assert_eq!(evidence.counts(), Counts { kept: 1, lost: 0 });
    let bundle = host.bundle(&name);
    assert_eq!((bundle.name.as_str(), bundle.node.as_str(), bundle.boot_id.as_str()), (&*name, "worker-1", "boot-1"));
    assert_eq!((bundle.fault.evidence[0].as_str(), bundle.collectors[0].age_seconds), ("state T", Some(65)));
    assert_eq!((bundle.calls.out["lists"], bundle.calls.abandoned["tasks"]), (1, 2));
    let [process] = bundle.processes.as_slice() else { panic!("{:?}", bundle.processes) };
    assert_eq!((process.part.as_str(), process.state.as_str(), process.note.as_str()), ("target", "T", ""));
    assert_eq!(process.wchan.as_deref(), Some("io_schedule"));
    assert_eq!(process.caught_signals.as_deref(), Some("fffffffd7fc1feff"));
    assert_eq!(process.stack.lines[0], "[<0>] io_schedule+0x46/0x70");
    assert_eq!(process.groups.lines, ["0::/system.slice/containerd.service"]);
    assert!(process.limits.lines[1].starts_with("Max open files"), "{:?}", process.limits);
    assert_eq!(process.thread_states, [("D".to_owned(), 1), ("S".to_owned(), 2)].into());
    assert_eq!((process.threads[0].id, process.threads[0].state.as_str()), (4001, "D"), "the one that waits is first");
    assert_eq!(bundle.kernel_log.lines, ["5.000000 task containerd-shim blocked"]);
    assert!(bundle.journal.note.contains("journalctl -u containerd"), "{:?}", bundle.journal);
    assert_eq!(bundle.goroutines, Section::default());
}

#[tokio::test]
async fn a_suspicion_has_none_and_a_restart_repeats_none() {
    let (host, mut evidence) = started('T', 1);
    let mut suspected = status(vec![fault(FaultType::HungContainer)]);
    evidence.note(&mut suspected, &Node::unavailable(), &calls());
    assert!(timeout(Duration::from_millis(200), evidence.ended()).await.is_err());
    let one = confirmed(FaultType::HungContainer, 4000);
    let name = noted(&mut evidence, &one).await.unwrap();
    let written = host.settings().folder.read(&name).unwrap();
    for mut evidence in [evidence, Evidence::start(host.settings())] {
        let mut again = status(vec![one.clone()]);
        evidence.note(&mut again, &Node::unavailable(), &calls());
        assert_eq!(again.faults[0].evidence_bundle.as_deref(), Some(&*name));
        assert!(timeout(Duration::from_millis(200), evidence.ended()).await.is_err());
    }
    assert_eq!(host.settings().folder.read(&name).unwrap(), written);
}

#[tokio::test]
async fn arguments_environment_and_files_of_a_process_are_never_opened() {
    let (host, mut evidence) = started('D', 2);
    // Pipes without a writer: whoever opened one would hang, and the bundle would say so.
    for file in ["cmdline", "environ", "exe", "maps", "smaps", "mem", "mountinfo", "cwd", "root"] {
        host.trap(4000, file);
    }
    let name = noted(&mut evidence, &confirmed(FaultType::UninterruptibleProcess, 4000)).await.unwrap();
    let bundle = host.bundle(&name);
    assert_eq!((bundle.processes[0].state.as_str(), bundle.processes[0].note.as_str()), ("D", ""));
}

#[tokio::test]
async fn a_read_that_never_returns_costs_what_comes_after_it_only() {
    let (host, mut evidence) = started('D', 2);
    host.trap(4000, "stack");
    let began = Instant::now();
    let name = noted(&mut evidence, &confirmed(FaultType::UninterruptibleProcess, 4000)).await.unwrap();
    assert!(began.elapsed() < DEADLINE * 3, "{:?}", began.elapsed());
    let bundle = host.bundle(&name);
    let process = &bundle.processes[0];
    assert!(process.note.contains("longer than"), "{process:?}");
    assert_eq!((process.state.as_str(), process.thread_states["D"], process.threads.len()), ("D", 1, 0));
    // The thread that hangs ends with the test.
    drop(fs::OpenOptions::new().write(true).open(host.path(4000, "stack")));
}

#[tokio::test]
async fn a_process_that_is_another_one_now_is_not_told_of() {
    let (host, mut evidence) = started('S', 1);
    let mut one = confirmed(FaultType::HungContainer, 4000);
    one.target.process.as_mut().unwrap().start_ticks = TICKS + 1;
    let name = noted(&mut evidence, &one).await.unwrap();
    let process = host.bundle(&name).processes.remove(0);
    assert_eq!((process.note.as_str(), process.state.as_str(), process.stack.lines.len()), ("it has ended", "", 0));
}

#[tokio::test]
async fn the_largest_bundle_stays_within_its_bound_and_says_what_it_lacks() {
    let host = Host::new();
    fs::write(host.0.path().join("kmsg"), "6,1,5000000,-;\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\ x\n".repeat(150))
        .unwrap();
    let mut node = Node::healthy();
    let stuck: Vec<i32> = (0..8).map(|number| 5000 + number * 600).collect();
    for pid in &stuck {
        host.process(*pid, 'D', 300);
    }
    let one =
        node.table().iter().find(|process| matches!(process.role, nrh_core::observation::ProcessRole::Shim { .. }));
    let one = one.unwrap().clone();
    node.table().clear();
    for pid in &stuck {
        let shim = nrh_core::observation::ProcessSeen { pid: *pid, start_ticks: TICKS, state: 'D', ..one.clone() };
        node.table().push(shim);
    }
    let mut large = confirmed(FaultType::RuntimeUpdateBlocked, stuck[0]);
    large.evidence = vec!["\"\\".repeat(256); 8];
    (large.message, large.impact) = ("\"".repeat(512), "\\".repeat(512));
    let mut evidence = Evidence::start(host.settings());
    let mut now = status(vec![large]);
    now.probe.as_mut().unwrap().collectors =
        vec![CollectorStatus { message: "\"".repeat(256), ..now.probe.as_ref().unwrap().collectors[0].clone() }; 8];
    evidence.note(&mut now, &node, &calls());
    timeout(Duration::from_secs(30), evidence.ended()).await.unwrap();
    let name = name(&now.faults[0]);
    let text = host.settings().folder.read(&name).unwrap();
    let bundle = host.bundle(&name);
    assert_eq!(bundle.processes.len(), 6);
    assert!(text.len() <= LARGEST && text.len() > LARGEST / 2, "{}", text.len());
    assert!(bundle.processes[0].note.contains("no room") && bundle.processes[0].thread_states["S"] == 299);
}

#[tokio::test]
async fn a_folder_that_takes_nothing_costs_the_bundle_and_nothing_else() {
    let host = Host::new();
    host.process(4000, 'T', 1);
    // A file in its place: also root cannot make a folder there.
    fs::write(host.0.path().join("state/evidence"), "").unwrap();
    let mut evidence = Evidence::start(host.settings());
    let gate = evidence.gate();
    let one = confirmed(FaultType::HungContainer, 4000);
    assert_eq!(noted(&mut evidence, &one).await, None);
    assert_eq!(evidence.counts(), Counts { kept: 0, lost: 1 });
    timeout(Duration::from_secs(5), gate.pass(&one.id)).await.unwrap();
    // It is not tried at every judgement.
    evidence.note(&mut status(vec![one]), &Node::unavailable(), &calls());
    assert!(timeout(Duration::from_millis(200), evidence.ended()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_command_waits_for_the_evidence_of_its_own_fault_but_not_for_ever() {
    let pending = watch::Sender::new(None);
    let gate = Gate(pending.subscribe());
    let began = Instant::now();
    gate.pass("f").await;
    assert_eq!(began.elapsed(), BEFORE_ACT, "nothing was judged yet");
    pending.send_replace(Some(["f".to_owned()].into()));
    gate.pass("other").await;
    assert_eq!(began.elapsed(), BEFORE_ACT);
    let done = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        pending.send_replace(Some(BTreeSet::new()));
    };
    tokio::join!(gate.pass("f"), done);
    assert_eq!(began.elapsed(), BEFORE_ACT + Duration::from_secs(1));
}

#[tokio::test]
async fn more_faults_than_the_queue_holds_all_get_theirs() {
    let (_host, mut evidence) = started('T', 1);
    let faults = (0..40).map(|number| Fault {
        id: Fault::identity(FaultType::HungContainer, &number.to_string()),
        ..confirmed(FaultType::HungContainer, 4000)
    });
    let mut now = status(faults.collect());
    for _ in 0..40 {
        evidence.note(&mut now, &Node::unavailable(), &calls());
        timeout(Duration::from_secs(30), evidence.ended()).await.unwrap();
    }
    evidence.note(&mut now, &Node::unavailable(), &calls());
    let named = now.faults.iter().filter(|fault| fault.evidence_bundle.is_some()).count();
    assert_eq!((evidence.counts().kept, named), (40, MAX_BUNDLES), "the oldest have made room, and are not made anew");
    assert!(timeout(Duration::from_millis(200), evidence.ended()).await.is_err());
}

#[test]
fn a_runtime_without_a_handler_is_not_to_be_signalled() {
    let daemon = |command: &str, caught: &str| ProcessEvidence {
        command: command.into(),
        pid: 700,
        caught_signals: Some(caught.into()),
        ..ProcessEvidence::default()
    };
    let blocked = fault(FaultType::RuntimeUpdateBlocked);
    let note = |daemon: &ProcessEvidence| goroutines(&blocked, Some(daemon)).note;
    assert!(note(&daemon("containerd", "fffffffd7fc1feff")).contains("/tmp/containerd.700.stacks.log"));
    assert!(note(&daemon("containerd", "0000000000000000")).contains("would end it"));
    assert!(note(&daemon("cri-dockerd", "fffffffd7fc1feff")).contains("not known to tell"));
    assert_eq!(goroutines(&fault(FaultType::DiskFull), Some(&daemon("containerd", "0"))), Section::default());
}

#[tokio::test]
async fn a_real_process_is_told_of_as_far_as_the_kernel_allows() {
    let child = Running::start(std::process::Command::new("sleep").arg("60"));
    let stat = || child.handle().stat().unwrap();
    // One that runs just now has no stack to be told.
    wait_until("its sleep", || stat().state == 'S' && stat().command == "sleep");
    let host = Host::new();
    let settings = EvidenceSettings { proc: PathBuf::from(proc::PROC), ..host.settings() };
    let mut evidence = Evidence::start(settings);
    let mut one = confirmed(FaultType::HungContainer, child.pid());
    one.target.process.as_mut().unwrap().start_ticks = stat().start_ticks;
    let name = noted(&mut evidence, &one).await.unwrap();
    drop(child);
    let process = host.bundle(&name).processes.remove(0);
    assert_eq!(process.note, "", "{process:?}");
    assert!(process.limits.lines.iter().any(|line| line.starts_with("Max open files")), "{process:?}");
    assert!(!process.stack.lines.is_empty() || process.stack.note.contains("/stack"), "{process:?}");
    let file = host.0.path().join(format!("state/evidence/{name}.json"));
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!name.contains(SANDBOX));
}
