//! Made-up numbers, and real processes with real limits.

use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::time::Instant;

use rustix::fs::{CWD, Mode, openat};

use super::*;
use crate::proc::fake::{self, Proc, Running};
use crate::waiting::wait_until;

fn daemon(process: &Running) -> Daemon {
    let start_ticks = process.handle().stat().unwrap().start_ticks;
    Daemon { owner: Owner::Runtime("test".to_owned()), pid: process.pid(), start_ticks }
}

/// A `/proc` with these numbers.
fn made_up(loadavg: &str, pid_max: &str, threads_max: &str, file_nr: &str) -> Proc {
    let proc = Proc::new();
    proc.write("loadavg", loadavg);
    proc.write("sys/kernel/pid_max", pid_max);
    proc.write("sys/kernel/threads-max", threads_max);
    proc.write("sys/fs/file-nr", file_nr);
    proc
}

fn of_node(folder: &Path) -> (Result<Usage, String>, Result<Usage, String>) {
    let seen = Host::new(folder).check(&Who::default()).unwrap();
    (seen.pids[0].usage.clone(), seen.files[0].usage.clone())
}

#[test]
fn the_lower_of_both_limits_counts() {
    let root = made_up("0.97 1.32 1.61 1/289 32163\n", "32768\n", "192730\n", "1289\t0\t9223372036854775807\n");
    let files = Usage { used: 1289, limit: 9_223_372_036_854_775_807 };
    assert_eq!(of_node(root.path()), (Ok(Usage { used: 289, limit: 32_768 }), Ok(files)));
    let root = made_up("0.97 1.32 1.61 1/289 32163\n", "4194304\n", "7700\n", "1 0 2\n");
    assert_eq!(of_node(root.path()).0, Ok(Usage { used: 289, limit: 7700 }));
}

#[test]
fn pods_whose_groups_are_at_no_usual_place_are_not_known() {
    let proc = made_up("0.97 1.32 1.61 1/289 32163\n", "32768\n", "192730\n", "1289\t0\t9223372036854775807\n");
    fs::create_dir_all(proc.file("40/root/sys/fs/cgroup")).unwrap();
    proc.write("40/stat", fake::stat(40, b"kubelet", 'S', 1, 7));
    let check = |none, cgroup_root: &str| {
        let daemons = vec![Daemon { owner: Owner::Kubelet, pid: 40, start_ticks: 7 }];
        let pod_groups = PodGroups { none, root: cgroup_root.to_owned() };
        let who = Who { daemons, listed: Some(BTreeSet::new()), pod_groups, ..Who::default() };
        let seen = Host::new(proc.path()).check(&who).unwrap();
        let pods = seen.pids.into_iter().find(|limit| limit.owner == Owner::Pods);
        (seen.untracked, pods.map(|limit| limit.usage))
    };
    let pods = |folder: &str| {
        let folder = format!("40/root/sys/fs/cgroup/{folder}");
        proc.write(&format!("{folder}/pids.max"), "100\n");
        proc.write(&format!("{folder}/pids.current"), "3\n");
    };
    let unknown = (Err(NO_PODS.to_owned()), Some(Err(NO_PODS.to_owned())));
    let known = (Ok(Vec::new()), Some(Ok(Usage { used: 3, limit: 100 })));
    pods("kubelet/kubepods");
    assert_eq!(check(false, ""), unknown);
    assert_eq!(check(true, ""), (Ok(Vec::new()), None), "there are none, and nothing of them is missed");
    assert_eq!(check(false, "/kubelet"), known);
    pods("kubepods");
    for none in [false, true] {
        assert_eq!(check(none, "/"), known);
    }
}

#[test]
fn odd_numbers_are_no_numbers() {
    for (loadavg, pid_max, file_nr) in [("", "32768", "1 0"), ("1 2 3 4 5", "32768", "x 0 1"), ("1 2 3 4/5", "max", "")]
    {
        let root = made_up(loadavg, pid_max, "100", file_nr);
        let (pids, files) = of_node(root.path());
        assert!(pids.is_err() && files.is_err(), "{pids:?} {files:?}");
    }
    let root = made_up("1 2 3 4/5 6", &"9".repeat(4096), "100", "1 0 2");
    assert!(of_node(root.path()).0.is_err(), "longer than any number");
}

#[test]
fn the_real_numbers_of_this_machine_are_read() {
    let (pids, files) = of_node(Path::new(proc::PROC));
    let (pids, files) = (pids.unwrap(), files.unwrap());
    assert!(pids.used > 10 && pids.used < pids.limit, "{pids:?}");
    assert!(files.used > 10 && files.used < files.limit, "{files:?}");
}

/// Checks one process until it has come so far.
fn until(daemon: &Daemon, done: impl Fn(&HostSeen) -> bool) -> HostSeen {
    let who = Who { daemons: vec![daemon.clone()], ..Who::default() };
    let (mut host, began) = (Host::new(Path::new(proc::PROC)), Instant::now());
    loop {
        let seen = host.check(&who).unwrap();
        if done(&seen) {
            return seen;
        }
        assert!(began.elapsed() < Duration::from_secs(50), "{seen:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn of_daemon(seen: &HostSeen) -> Option<Result<Usage, String>> {
    seen.files.get(1).map(|limit| limit.usage.clone())
}

#[test]
fn open_files_are_counted_exactly_where_they_are_near_their_limit() {
    let script = "ulimit -n 20; for f in 3 4 5 6 7 8 9; do eval \"exec $f</dev/null\"; done; exec sleep 60";
    let shell = Running::start(Command::new("bash").args(["-c", script]));
    // Seven, the first three, and what the tests themselves were given.
    let open = || u64::try_from(fs::read_dir(format!("/proc/{}/fd", shell.0.id())).unwrap().count()).unwrap();
    let exact = |seen: &HostSeen| {
        let used = open();
        used >= 10 && of_daemon(seen).is_some_and(|usage| usage == Ok(Usage { used, limit: 20 }))
    };
    let seen = until(&daemon(&shell), exact);
    assert_eq!(seen.files[1].owner, Owner::Runtime("test".to_owned()));
    assert_eq!(seen.unseen, None);
    // Far from it, room is good enough: not less than what is open.
    let sleep = Running::start(Command::new("bash").args(["-c", "ulimit -n 4096; exec sleep 60"]));
    let seen = until(&daemon(&sleep), |seen| of_daemon(seen).is_some_and(|usage| usage.is_ok_and(|u| u.limit == 4096)));
    let usage = of_daemon(&seen).unwrap().unwrap();
    assert!(usage.used >= 3 && usage.used <= 256, "{usage:?}");
}

#[test]
fn a_daemon_that_has_ended_is_not_seen_and_no_other_in_its_place() {
    let sleep = Running::start(Command::new("sleep").arg("60"));
    let other = Daemon { start_ticks: 1, ..daemon(&sleep) };
    let who = Who { daemons: vec![other], ..Who::default() };
    let seen = Host::new(Path::new(proc::PROC)).check(&who).unwrap();
    assert!(seen.unseen.as_ref().is_some_and(|why| why.contains("test cannot be checked")), "{seen:?}");
    assert!(seen.daemons.is_empty() && seen.files.len() == 1);
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

/// A group of the `pids` or `freezer` controller (version 1), or of version 2, that ends with the test. `None` where this
/// machine or this user cannot make one.
struct Group {
    path: PathBuf,
    member: Option<Running>,
}

impl Group {
    fn new(parent: &str, name: &str) -> Option<Self> {
        let parent = Path::new(parent);
        // Where both versions are in use, the folder above them is none of a controller.
        if !parent.join("cgroup.procs").exists() {
            return None;
        }
        let path = parent.join(format!("nrh-test-{name}-{}", std::process::id()));
        fs::create_dir(&path).ok().map(|()| Self { path, member: None })
    }

    fn set(&self, file: &str, text: &str) {
        fs::write(self.path.join(file), text).unwrap();
    }

    /// Moves a new process into it, which ends with it.
    fn join(&mut self) -> Daemon {
        let sleep = Running::start(Command::new("sleep").arg("60"));
        let daemon = daemon(&sleep);
        self.set("cgroup.procs", &daemon.pid.to_string());
        self.member = Some(sleep);
        daemon
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for (file, text) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
            let file = fs::OpenOptions::new().write(true).open(self.path.join(file));
            let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
        }
        self.member = None;
        let began = Instant::now();
        while fs::remove_dir(&self.path).is_err() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn the_limit_of_a_daemons_own_group_is_found() {
    let Some(mut group) = Group::new("/sys/fs/cgroup/pids", "limit") else {
        return eprintln!("SKIP: no controller `pids` of version 1 to make a group in");
    };
    group.set("pids.max", "1");
    let daemon = group.join();
    until(&daemon, |seen| seen.pids.iter().any(|limit| limit.usage == Ok(Usage { used: 1, limit: 1 })));
}

#[test]
fn a_frozen_group_is_told_whatever_the_process_waits_in() {
    let mut tried = 0;
    for (parent, file, text) in [
        ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN"),
        ("/sys/fs/cgroup/unified", "cgroup.freeze", "1"),
        ("/sys/fs/cgroup", "cgroup.freeze", "1"),
    ] {
        let Some(mut group) = Group::new(parent, "freeze") else { continue };
        if !group.path.join(file).exists() {
            continue;
        }
        let Daemon { pid, start_ticks, .. } = group.join();
        let init = InitSeen { pid, start_ticks, age: Duration::from_mins(1), serves: "s".to_owned() };
        let root = Handle::open(Path::new(proc::PROC), own_pid()).and_then(|handle| handle.root()).unwrap();
        let host = Host::new(Path::new(proc::PROC));
        let who = Who { inits: vec![init], ..Who::default() };
        assert_eq!(host.frozen(&root, &who), Ok(Vec::new()), "{parent}");
        group.set(file, text);
        let mut found = Vec::new();
        wait_until("the freeze", || {
            found = host.frozen(&root, &who).unwrap();
            !found.is_empty()
        });
        assert_eq!((found.len(), found[0].process.pid, found[0].serves.as_str()), (1, pid, "s"), "{parent}");
        assert!(found[0].group.contains("nrh-test-freeze"), "{found:?}");
        tried += 1;
    }
    if tried == 0 {
        eprintln!("SKIP: no freezer to make a group in");
    }
}

/// As from inside a control-group namespace, where the path of a process names no folder below the node's root.
#[test]
fn whether_a_group_that_is_not_found_is_frozen_is_unknown_unless_the_process_is_young() {
    let empty = tempfile::tempdir().unwrap();
    let root = openat(CWD, empty.path(), rooted::FOLDER, Mode::empty()).unwrap();
    let own = Handle::open(Path::new(proc::PROC), own_pid()).unwrap().stat().unwrap();
    let of = |age: Duration| {
        let init = InitSeen { pid: own_pid(), start_ticks: own.start_ticks, age, serves: "s".to_owned() };
        Host::new(Path::new(proc::PROC)).frozen(&root, &Who { inits: vec![init], ..Who::default() })
    };
    assert_eq!(of(Duration::from_secs(1)), Ok(Vec::new()));
    assert!(of(NOT_YOUNG).unwrap_err().contains("is not found"));

    let pods = PodGroups::default();
    assert!(pods.open(&root).unwrap().is_empty());
    fs::create_dir_all(empty.path().join("sys/fs/cgroup/kubepods")).unwrap();
    assert_eq!(pods.open(&root).unwrap().len(), 1);
}

/// A probe in a pod sees the groups of other pods relative to its own.
#[test]
fn the_frozen_group_of_another_pod_is_found_from_inside_a_control_group_namespace() {
    for (cgroup_root, above, prefix) in [("", "", ""), ("/kubelet", "kubelet.slice", "kubelet-")] {
        let node = tempfile::tempdir().unwrap();
        let root = openat(CWD, node.path(), rooted::FOLDER, Mode::empty()).unwrap();
        let (pod, scope) = (format!("{prefix}kubepods-besteffort-pod7.slice"), "cri-containerd-1.scope");
        let pods = Path::new("sys/fs/cgroup").join(above).join(format!("{prefix}kubepods.slice"));
        let group = |class: &str, member: &str, frozen: &str| {
            let folder = pods.join(format!("{prefix}kubepods-{class}.slice")).join(&pod).join(scope);
            fs::create_dir_all(node.path().join(&folder)).unwrap();
            fs::write(node.path().join(&folder).join("cgroup.procs"), member).unwrap();
            let events = format!("populated 1\nfrozen {frozen}\n");
            fs::write(node.path().join(&folder).join("cgroup.events"), events).unwrap();
            folder
        };
        let shown = Groups(format!("0::/../../{pod}/{scope}\n"));
        let pod_groups = PodGroups { root: cgroup_root.to_owned(), ..PodGroups::default() };
        let frozen_group = || frozen_group(&root, &pod_groups, &shown, 7);
        group("burstable", "6\n", "1");
        assert_eq!(frozen_group().unwrap_err().kind(), io::ErrorKind::NotFound, "that of another process");
        group("besteffort", "7\n", "0");
        assert_eq!(frozen_group().unwrap(), None);
        let frozen = group("besteffort", "7\n", "1");
        assert_eq!(frozen_group().unwrap(), Some(frozen));
    }
}

/// A hook that `runc create` runs where systemd does not manage the freezer.
#[test]
fn what_is_at_the_top_of_a_hierarchy_is_not_frozen() {
    let node = tempfile::tempdir().unwrap();
    let root = openat(CWD, node.path(), rooted::FOLDER, Mode::empty()).unwrap();
    let freezer = node.path().join("sys/fs/cgroup/freezer");
    fs::create_dir_all(&freezer).unwrap();
    fs::write(freezer.join("cgroup.procs"), "7\n").unwrap();
    let groups = Groups("4:freezer:/\n1:name=systemd:/system.slice/containerd.service\n".to_owned());
    let frozen = |pid| frozen_group(&root, &PodGroups::default(), &groups, pid);
    assert_eq!(frozen(7).unwrap(), None);
    assert_eq!(frozen(8).unwrap_err().kind(), io::ErrorKind::NotFound, "it is elsewhere by now");
}

/// A thread of a frozen process (version 1) is in state D and does not run: the nearest thing to a dead disk that a test can
/// make and take back.
#[test]
fn a_thread_that_does_not_run_waits_for_longer_at_each_check() {
    let Some(mut group) = Group::new("/sys/fs/cgroup/freezer", "wait") else {
        return eprintln!("SKIP: no freezer of version 1 to make a group in");
    };
    let daemon = group.join();
    group.set("freezer.state", "FROZEN");
    let waited = |seen: &HostSeen| {
        let waiting = seen.daemons.first().and_then(|daemon| daemon.waiting.as_ref().ok());
        waiting.and_then(|waiting| waiting.as_ref()).map(|thread| thread.waited)
    };
    let seen = until(&daemon, |seen| waited(seen).is_some_and(|waited| waited >= Duration::from_millis(300)));
    assert_eq!(seen.daemons[0].waiting.as_ref().unwrap().as_ref().unwrap().thread, daemon.pid);
    group.set("freezer.state", "THAWED");
    until(&daemon, |seen| waited(seen).is_none());
}
