//! The most that all collectors hold at once: both lists of the runtime and the process table at their bounds.

use std::fs;
use std::os::unix::fs::symlink;

use k8s_cri::v1;
use serde_json::json;

use super::*;
use crate::collect::HostPaths;
use crate::cri::fake;
use crate::docker::fake::{Fake as Docker, Say as Said, listed};
use crate::proc::fake::{Entry, Proc, SHIM, memory, peak_of};
use nrh_core::diagnose::diagnose;
use nrh_core::finding::Known;
use nrh_core::thresholds::Thresholds;

const MIB: usize = 1 << 20;
/// What `config/probe` lets a probe use.
const LIMIT: usize = 64 * MIB;
/// What a probe uses at rest, at most.
const REST: usize = 10 * MIB;
/// As `config/probe` has it.
const TUNABLES: &str =
    "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0:glibc.malloc.top_pad=4096:glibc.malloc.trim_threshold=65536";
/// Objects of a list that is kept just about.
const CONTAINERS: usize = 5_000;
const SANDBOXES: usize = 6_250;
/// Docker's sandboxes, and a label of theirs as it stands in its list.
const LABELLED: usize = 60;
const LABEL: &str = r#""123456":"","#;
/// Processes of a container, and those of the node's own: more than are kept.
const OF_CONTAINERS: i32 = 40_000;
const OWN: i32 = 10_000;

/// Annotations that make a list as long as an answer may be.
fn annotations(objects: usize, beside: usize) -> std::collections::HashMap<String, String> {
    [("note".to_owned(), "x".repeat(16 * MIB / objects - beside))].into()
}

fn largest() -> Fake {
    let fake = Fake::start();
    let id = |number: usize| format!("{number:064x}");
    let pod = |number: usize| [format!("import-28412345-{number:05}"), format!("11111111-2222-4333-8444-{number:012}")];
    let sandboxes = (0..SANDBOXES).map(|number| {
        let [name, uid] = pod(number);
        v1::PodSandbox {
            id: id(number),
            metadata: Some(fake::pod(&name, &uid, "import", 1)),
            annotations: annotations(SANDBOXES, 200),
            ..v1::PodSandbox::default()
        }
    });
    fake.say("ListPodSandbox", Say::message(&v1::ListPodSandboxResponse { items: sandboxes.collect() }));
    let containers = (0..CONTAINERS).map(|number| {
        let [name, uid] = pod(number);
        v1::Container {
            id: id(CONTAINERS + number),
            pod_sandbox_id: id(number),
            state: v1::ContainerState::ContainerExited as i32,
            labels: fake::labels(&name, &uid, "import", "work"),
            annotations: annotations(CONTAINERS, 420),
            ..v1::Container::default()
        }
    });
    fake.say("ListContainers", Say::message(&v1::ListContainersResponse { containers: containers.collect() }));
    fake
}

/// The same of Docker: sandboxes whose pods have as many labels as there is room for, and many containers.
fn largest_of_docker() -> Docker {
    let docker = Docker::start();
    let id = |number: usize| format!("{number:064x}");
    let labels = 16 * MIB / LABELLED / LABEL.len() - 10_000;
    let sandboxes = (0..LABELLED).map(|number| {
        let mut entry = listed(&id(number), "podsandbox", &id(number), "running");
        let all = entry["Labels"].as_object_mut().unwrap();
        all.extend((0..labels).map(|label| (format!("{label:06}"), json!(""))));
        entry
    });
    docker.say("Sandboxes", Said::Json(sandboxes.collect()));
    let containers = (0..CONTAINERS).map(|number| {
        let mut entry = listed(&id(LABELLED + number), "container", &id(number % LABELLED), "exited");
        entry["Labels"]["note"] = json!("x".repeat(16 * MIB / CONTAINERS - 700));
        entry
    });
    docker.say("Containers", Said::Json(containers.collect()));
    docker
}

/// Processes of a made-up `/proc`, all of one kind with the same files.
fn processes(proc: &Path, name: &str, parent: i32, group: &str, pids: impl Iterator<Item = i32>) {
    let folder = proc.join(format!("of-{name}"));
    let exe = format!("/usr/bin/{name}");
    Entry { pid: 1, parent, command: name.as_bytes(), exe: &exe, ..SHIM }.write(&folder);
    fs::write(folder.join("cgroup"), format!("0::{group}\n")).unwrap();
    for pid in pids {
        symlink(&folder, proc.join(pid.to_string())).unwrap();
    }
}

fn proc() -> Proc {
    let proc = Proc::new();
    processes(proc.path(), "containerd", 1, "/system.slice/containerd.service", 100..101);
    processes(proc.path(), "containerd-shim", 1, "/system.slice/containerd.service", 101..102);
    processes(proc.path(), "some-own-daemon", 1, "/system.slice/x.service", 1000..1000 + OWN);
    // Below a shim: each of them may be an OCI runtime until it is checked.
    let group = format!("/kubepods/besteffort/pod1/{}", "c".repeat(64));
    processes(proc.path(), "process-of-a-pod", 101, &group, 100_000..100_000 + OF_CONTAINERS);
    proc
}

fn state<T>(reading: &Reading<T>) -> String {
    match reading {
        Reading::Never => "nothing".to_owned(),
        Reading::Done { took, .. } => format!("a look of {took:?}"),
        Reading::Hung { out } => format!("one that is out for {out:?}"),
        Reading::Failed { error, .. } => error.clone(),
        Reading::Unavailable { reason } => reason.clone(),
    }
}

/// Collects and judges as a probe does, until all has been checked so often.
async fn rounds_of_checks(settings: CollectorSettings, rounds: u64) {
    let bound = |pace: Pace| Pace { deadline: ms(60_000), bound: ms(120_000), ..pace };
    let paces = Paces { lists: bound(quick().lists), processes: bound(quick().processes), ..quick() };
    let collectors = Collectors::start(CollectorSettings { paces, ..settings });
    let checked = async {
        loop {
            let seen = now(&collectors);
            diagnose(&seen, Known::default(), &Thresholds::default());
            let table = seen.processes.value().map_or(0, |table| table.round);
            if table >= rounds && round(&seen).is_some_and(|lists| lists >= rounds) {
                return seen;
            }
            tokio::time::sleep(ms(50)).await;
        }
    };
    let Ok(seen) = tokio::time::timeout(Duration::from_mins(5), checked).await else {
        let Observations { lists, processes, .. } = now(&collectors);
        panic!("after five minutes: {} of lists, {} of processes", state(&lists), state(&processes));
    };
    let (lists, table) = (seen.lists.value().unwrap(), seen.processes.value().unwrap());
    println!("{} sandboxes, {} containers; {}", lists.sandboxes.len(), lists.containers.len(), table.left_out);
}

fn at(socket: &Path, proc: &Path, is_docker: bool) -> CollectorSettings {
    let host = HostPaths { proc: proc.to_owned(), root: socket.parent().unwrap().to_owned(), ..HostPaths::default() };
    let endpoint = is_docker.then(|| Endpoint::docker(socket.to_owned(), NamedBy::Kubelet));
    let sockets = if is_docker { Flags::default() } else { named(socket.to_owned()) };
    CollectorSettings { saved_endpoint: endpoint, sockets, host, ..CollectorSettings::default() }
}

/// No test: the process whose memory is measured below.
#[tokio::test]
#[ignore = "run by another test, as a process of its own"]
async fn measured() {
    let path = |name: &str| PathBuf::from(std::env::var_os(name).unwrap());
    let small = Proc::new();
    // What is used of the program itself, and what a probe uses at rest, is there before.
    rounds_of_checks(at(&path("NRH_TEST_SMALL"), small.path(), false), 3).await;
    let before = memory("VmRSS:");
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let is_docker = std::env::var("NRH_TEST_KIND").unwrap() == "docker";
    rounds_of_checks(at(&path("NRH_TEST_LARGEST"), &path("NRH_TEST_PROC"), is_docker), 2).await;
    println!("peak: {} KiB", memory("VmHWM:").saturating_sub(before) >> 10);
}

fn measure(kind: &str, largest: &Path, listed: &str) {
    let (small, proc) = (Fake::start(), proc());
    let environment = [
        ("NRH_TEST_SMALL", small.socket().into_os_string()),
        ("NRH_TEST_LARGEST", largest.into()),
        ("NRH_TEST_PROC", proc.path().into()),
        ("NRH_TEST_KIND", kind.into()),
        ("GLIBC_TUNABLES", TUNABLES.into()),
    ];
    let (said, peak) = peak_of(module_path!(), &environment);
    println!("{said}");
    // On a slow machine the processor time for the rest of the table may be over first: that is told before.
    assert!(said.contains(listed) && said.contains("beyond "), "{said}");
    assert!(peak + REST <= LIMIT, "{said}");
}

#[test]
fn lists_and_processes_at_their_bounds_leave_a_probe_within_its_memory() {
    let fake = largest();
    measure("containerd", &fake.socket(), &format!("{SANDBOXES} sandboxes, {CONTAINERS} containers; "));
}

#[test]
fn the_same_with_docker_whose_lists_are_json() {
    let fake = largest_of_docker();
    measure("docker", &fake.socket(), &format!("{LABELLED} sandboxes, {CONTAINERS} containers; "));
}
