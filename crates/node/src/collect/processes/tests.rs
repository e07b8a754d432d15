//! Made-up process tables with hostile contents, and real processes with real locks.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use super::*;
use crate::proc::fake::{CONTAINERD, Entry, Proc, Running, SHIM, copy};
use crate::waiting::wait_until;

mod crio;
mod elsewhere;
mod flood;
mod stuck;
mod wrapper;

/// The client of an OCI runtime, and the first process of a container that it makes.
const RUNC: Entry<'static> =
    Entry { command: b"runc", exe: "/usr/sbin/runc", args: "runc --root /r create --bundle /b abc", ..SHIM };
const INIT: Entry<'static> = Entry { command: b"runc:[2:INIT]", exe: "/runc", args: "runc init", nested: "1", ..SHIM };

impl Proc {
    /// So many seconds after boot, and with so many ticks of processor time for a process.
    fn at(&self, uptime: u32, pid: i32, ticks: u64) -> &Self {
        self.write("uptime", format!("{uptime}.00 1.0\n"));
        set_field(&self.file(&format!("{pid}/stat")), 14, &ticks.to_string());
        self
    }

    fn scanner(&self) -> Processes {
        Processes::new(self.path())
    }
}

/// Changes one field of a `stat` file.
fn set_field(path: &Path, number: usize, value: &str) {
    let stat = fs::read_to_string(path).unwrap();
    let (name, rest) = stat.rsplit_once(')').unwrap();
    let mut fields: Vec<&str> = rest.split_whitespace().collect();
    // The first one behind the name is field 3.
    fields[number - 3] = value;
    fs::write(path, format!("{name}) {}\n", fields.join(" "))).unwrap();
}

fn pids(table: &ProcessTable) -> Vec<i32> {
    let mut pids: Vec<i32> = table.processes.iter().map(|seen| seen.pid).collect();
    pids.sort_unstable();
    pids
}

/// The pids of all plugins.
fn plugins(table: &ProcessTable) -> Vec<i32> {
    let is_plugin = |seen: &&ProcessSeen| matches!(seen.role, ProcessRole::NetworkPlugin { .. });
    table.processes.iter().filter(is_plugin).map(|seen| seen.pid).collect()
}

#[test]
fn a_stopped_shim_is_seen_with_what_it_waits_in() {
    let root = Proc::new().with(&Entry { state: 'T', ..SHIM });
    let table = root.scanner().check(false, None).unwrap();
    let [seen] = table.processes.as_slice() else { panic!("{table:?}") };
    assert_eq!((seen.pid, seen.state, seen.wchan.as_deref()), (50, 'T', Some("do_signal_stop")));
    assert_eq!(seen.role, ProcessRole::Shim { id: "abc".to_owned(), living_children: 0 });
    assert_eq!(seen.age, Duration::from_secs(100));
}

#[test]
fn children_that_are_zombies_do_not_live() {
    let child = |pid, state| Entry {
        pid,
        parent: 50,
        state,
        command: b"pause",
        exe: "/pause",
        args: "/pause",
        nested: "1",
        ..SHIM
    };
    let root = Proc::new().with(&SHIM).with(&child(60, 'Z')).with(&child(61, 'S'));
    let table = root.scanner().check(false, None).unwrap();
    assert_eq!(table.processes[0].role, ProcessRole::Shim { id: "abc".to_owned(), living_children: 1 });
}

#[test]
fn shims_of_other_namespaces_and_of_nested_nodes_are_not_ours() {
    let moby = SHIM.args.replace("k8s.io", "moby");
    let root = Proc::new()
        .with(&Entry { pid: 51, args: &moby, ..SHIM })
        .with(&Entry { pid: 52, nested: "7", ..SHIM })
        .with(&Entry { pid: 53, exe: "/bin/sh", ..SHIM });
    assert_eq!(root.scanner().check(false, None).unwrap().processes, []);
    // Where Docker is the runtime it is the other way round, and one eye may learn that late.
    let root = root.with(&SHIM);
    let mut scanner = root.scanner();
    for (with_docker, expected) in [(false, 50), (true, 51), (false, 50)] {
        let table = scanner.check(with_docker, None).unwrap();
        assert_eq!(table.processes.iter().map(|seen| seen.pid).collect::<Vec<_>>(), [expected]);
    }
}

/// Kubelets up to 1.23 call the plugins themselves where Docker is the runtime.
#[test]
fn a_plugin_that_a_kubelet_called_is_one_and_its_other_children_are_not_examined() {
    let kubelet = Entry { pid: 40, command: b"kubelet", exe: "/usr/bin/kubelet", args: "kubelet", ..SHIM };
    let plugin = Entry { command: b"ptp", exe: "/opt/cni/bin/ptp", args: "ptp", parent: 40, ..SHIM };
    let mount = Entry { pid: 60, command: b"mount.nfs", exe: "/sbin/mount.nfs", state: 'D', ..plugin };
    let root = Proc::new().with(&kubelet).with(&plugin).with(&mount);
    root.write("50/environ", "CNI_COMMAND=ADD\0CNI_CONTAINERID=s1\0");
    let table = root.scanner().check(true, None).unwrap();
    assert_eq!((plugins(&table), table.unproven), (vec![50], Vec::new()));
}

#[test]
fn hostile_names_forge_nothing() {
    for command in [&b"a) R 1 (b"[..], b") T 1", b"a b\nc", b"\xff\xfe(", b""] {
        let root = Proc::new().with(&SHIM).with(&Entry { pid: 70, command, exe: "/bin/sleep", ..SHIM });
        let table = root.scanner().check(false, None).unwrap();
        assert_eq!(table.processes.iter().map(|seen| seen.pid).collect::<Vec<_>>(), [50], "{command:?}");
    }
}

#[test]
fn what_was_proven_is_remembered_while_its_memory_may_not_be_read() {
    let root = Proc::new().with(&SHIM);
    let mut scanner = root.scanner();
    assert_eq!(scanner.check(false, None).unwrap().processes.len(), 1);
    // In state D nothing behind the memory lock may be read: reading these would fail the test by name.
    let root = root.with(&Entry { state: 'D', args: "must not be read", ..SHIM });
    let seen = scanner.check(false, None).unwrap().processes;
    assert_eq!((seen.len(), seen[0].state), (1, 'D'));
    assert_eq!(seen[0].role, ProcessRole::Shim { id: "abc".to_owned(), living_children: 0 });
    // An eye that never saw it before cannot say what it is, and neither guesses nor leaves it out.
    let table = root.scanner().check(false, None).unwrap();
    assert_eq!(table.processes, []);
    let candidates: Vec<_> = table.unproven.iter().map(|one| (one.pid, one.state, one.possible_role)).collect();
    assert_eq!(candidates, [(50, 'D', PossibleRole::Shim)]);
}

#[test]
fn a_plugin_that_outlives_its_caller_is_seen_from_memory_and_anew() {
    let plugin = Entry { command: b"host-local", exe: "/opt/cni/bin/host-local", args: "host-local", ..SHIM };
    let call = "CNI_COMMAND=ADD\0CNI_CONTAINERID=s1\0CNI_ARGS=K8S_POD_NAMESPACE=d;K8S_POD_NAME=p;K8S_POD_UID=u1;X=2\0CNI_NETNS=/run/netns/x\0";
    let called = Proc::new().with(&CONTAINERD).with(&Entry { parent: 40, ..plugin });
    called.write("50/environ", call);
    let mut scanner = called.scanner();
    let is_seen = |table: ProcessTable| {
        table.processes.iter().any(|seen| {
            matches!(&seen.role, ProcessRole::NetworkPlugin { sandbox_id: Some(id), pod_uid: Some(uid), pod_name: Some(name), .. }
                if id == "s1" && uid == "u1" && name == "d/p")
        })
    };
    assert!(is_seen(scanner.check(false, None).unwrap()));
    let left = called.with(&plugin);
    left.write("50/environ", call);
    assert!(is_seen(scanner.check(false, None).unwrap()) && is_seen(left.scanner().check(false, None).unwrap()));
    // Without the whole of a call it may be anything, and memory says no more than a new proof.
    left.write("50/environ", "CNI_COMMAND=ADD\0CNI_CONTAINERID=s1\0");
    assert_eq!(left.scanner().check(false, None).unwrap().processes.len(), 1);
    assert!(is_seen(scanner.check(false, None).unwrap()), "its environment does not change while it lives");
}

/// Azure's CNI plugin starts `azure-vnet-telemetry`, which stays.
#[test]
fn a_daemon_that_a_plugin_has_started_is_no_plugin() {
    let vnet = Entry { command: b"azure-vnet", exe: "/opt/cni/bin/azure-vnet", args: "azure-vnet", parent: 40, ..SHIM };
    let exe = "/opt/cni/bin/azure-vnet-telemetry";
    let daemon = Entry {
        pid: 60,
        command: b"azure-vnet-tele",
        exe,
        args: "azure-vnet-telemetry -d /opt/cni/bin",
        parent: 50,
        ..SHIM
    };
    let root = Proc::new().with(&CONTAINERD).with(&vnet).with(&daemon);
    let call = "CNI_COMMAND=ADD\0CNI_CONTAINERID=s1\0CNI_NETNS=/run/netns/x\0";
    for pid in [50, 60] {
        root.write(&format!("{pid}/environ"), call);
    }
    let mut scanner = root.scanner();
    assert_eq!(plugins(&scanner.check(false, None).unwrap()), [50]);
    fs::remove_dir_all(root.file("50")).unwrap();
    let left = root.with(&Entry { parent: 1, ..daemon });
    assert_eq!(plugins(&scanner.check(false, None).unwrap()), [] as [i32; 0]);
    assert_eq!(plugins(&left.scanner().check(false, None).unwrap()), [] as [i32; 0]);
}

#[test]
fn a_pid_that_has_become_another_process_is_proven_anew() {
    let root = Proc::new().with(&SHIM);
    let mut scanner = root.scanner();
    assert_eq!(scanner.check(false, None).unwrap().processes.len(), 1);
    let root = root.with(&Entry { command: b"sleep", exe: "/bin/sleep", args: "sleep 5", ..SHIM });
    assert_eq!(scanner.check(false, None).unwrap().processes, []);
    drop(root);
}

#[test]
fn a_table_that_cannot_be_read_is_an_error_and_never_an_empty_one() {
    let root = Proc::new().with(&SHIM);
    fs::write(root.file("50/stat"), "50 (containerd-shim").unwrap();
    assert!(root.scanner().check(false, None).is_err());
    fs::remove_file(root.file("uptime")).unwrap();
    assert!(root.scanner().check(false, None).is_err());
}

/// A stand-in containerd starts one plugin that takes a lock and hangs, and two that wait for that lock.
#[test]
fn the_plugin_that_holds_the_lock_is_named_among_those_that_wait() {
    let folder = tempfile::tempdir().unwrap();
    let plugins = folder.path().join("cni");
    fs::create_dir(&plugins).unwrap();
    let lock = folder.path().join("lock");
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    copy("/bin/sh", &plugins.join("host-local"));
    copy("/usr/bin/flock", &plugins.join("ptp"));
    let daemon = folder.path().join("containerd");
    copy("/bin/sh", &daemon);
    let mut runtime = Running::start(Command::new(&daemon).stdin(Stdio::piped()));
    let input = runtime.0.stdin.as_mut().unwrap();
    let holder = format!(
        "CNI_COMMAND=ADD CNI_CONTAINERID=s1 {}/host-local -c 'exec 9>{}; flock 9; read x < {}' &",
        plugins.display(),
        lock.display(),
        fifo.display()
    );
    let waiter =
        |id: &str| format!("CNI_COMMAND=ADD CNI_CONTAINERID={id} {}/ptp {} true &", plugins.display(), lock.display());
    // The program that runs the tests may hold a lock, which all its processes inherit.
    writeln!(input, "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-\n{holder}").unwrap();
    let mut scanner = Processes::with(Prover::new(Path::new(proc::PROC)).with_cni_folders(vec![plugins.clone()]));
    let plugins_seen = |scanner: &mut Processes| -> Vec<ProcessSeen> {
        let processes = scanner.check(false, None).unwrap().processes;
        processes.into_iter().filter(|seen| matches!(seen.role, ProcessRole::NetworkPlugin { .. })).collect()
    };
    let path = lock.display().to_string();
    let holds = |pid| Handle::open(Path::new(proc::PROC), pid).and_then(|handle| handle.locked_files());
    // The others come once the first has its lock.
    wait_until("the holder", || {
        let mut seen = plugins_seen(&mut scanner).into_iter();
        seen.any(|seen| holds(seen.pid).is_ok_and(|files| files.iter().any(|file| file.path == path)))
    });
    writeln!(input, "{}\n{}\nwait", waiter("s2"), waiter("s3")).unwrap();
    let mut last = Vec::new();
    wait_until("all three to be old enough and named", || {
        last = plugins_seen(&mut scanner);
        last.len() == 3 && last.iter().all(|seen| seen.age >= YOUNG)
    });
    for seen in &last {
        let ProcessRole::NetworkPlugin { plugin, sandbox_id, holds, waits, waiters, .. } = &seen.role else { continue };
        if plugin == "host-local" {
            assert_eq!((holds.as_slice(), *waits, *waiters), (&[path.clone()][..], false, 2), "{seen:?}");
            assert_eq!(sandbox_id.as_deref(), Some("s1"));
        } else {
            assert_eq!((holds.len(), *waits, *waiters), (0, true, 0), "{seen:?}");
        }
    }
}

/// A plugin of containerd that holds the lock of one file, for which process 4712 waits.
fn plugin_with_a_lock() -> Proc {
    let plugin =
        Entry { parent: 40, command: b"host-local", exe: "/opt/cni/bin/host-local", args: "host-local", ..SHIM };
    let root = Proc::new().with(&CONTAINERD).with(&plugin);
    root.write("50/environ", "CNI_COMMAND=ADD\0CNI_CONTAINERID=s1\0");
    root.write("50/fdinfo/9", "lock:\t1: FLOCK  ADVISORY  WRITE 50 08:01:5 0 EOF\n");
    fs::create_dir(root.file("50/fd")).unwrap();
    symlink("/var/lib/cni/lock", root.file("50/fd/9")).unwrap();
    root
}

fn lock_facts(table: &ProcessTable) -> (&[String], bool, u32) {
    let facts = table.processes.iter().find_map(|seen| match &seen.role {
        ProcessRole::NetworkPlugin { holds, waits, waiters, .. } => Some((holds.as_slice(), *waits, *waiters)),
        _ => None,
    });
    facts.unwrap()
}

/// Any pod can take locks by the ten thousand, each on one byte of its own file.
#[test]
fn a_table_of_locks_that_somebody_has_filled_hides_no_plugin() {
    let root = plugin_with_a_lock();
    let mut text = String::new();
    let fill = |text: &mut String, bytes: usize| {
        while text.len() < bytes {
            text.push_str("7: POSIX  ADVISORY  WRITE 4711 08:01:77 1 1\n");
        }
    };
    fill(&mut text, 5 << 20);
    text += "8: FLOCK  ADVISORY  WRITE 50 08:01:5 0 EOF\n8: -> FLOCK  ADVISORY  WRITE 4712 08:01:5 0 EOF\n";
    root.write("locks", &text);
    let table = root.scanner().check(false, None).unwrap();
    assert_eq!(lock_facts(&table), (&["/var/lib/cni/lock".to_owned()][..], false, 1));
    assert_eq!(table.left_out.locks, None);

    text.clear();
    fill(&mut text, 17 << 20);
    root.write("locks", &text);
    let table = root.scanner().check(false, None).unwrap();
    assert_eq!(lock_facts(&table), (&[][..], false, 0));
    assert!(table.left_out.locks.unwrap().contains("known in part"));
    // Neither its wait channel nor the table says what it waits for: it is not blamed.
    root.write("50/wchan", "0");
    assert_eq!(lock_facts(&root.scanner().check(false, None).unwrap()), (&[][..], true, 0));

    fs::remove_file(root.file("locks")).unwrap();
    let table = root.scanner().check(false, None).unwrap();
    assert_eq!(table.processes.len(), 2);
    assert!(table.left_out.locks.unwrap().contains("cannot be read"));
}

#[test]
fn a_shim_that_waits_and_does_not_run_is_told_by_the_time_it_was_seen_so() {
    let root = Proc::new().with(&SHIM);
    let mut scanner = root.scanner();
    assert_eq!(scanner.check(false, None).unwrap().processes[0].waited, None);
    let root = root.with(&Entry { state: 'D', ..SHIM });
    // After so many switches.
    let mut at = |uptime: u32, switches: u32| {
        root.write("uptime", format!("{uptime}.00 1.0\n"));
        let counts = format!("voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t0\n");
        root.write("50/status", format!("Uid:\t0\t0\t0\t0\nNSpid:\t50\n{counts}"));
        scanner.check(false, None).unwrap().processes[0].waited.map(|waited| waited.as_secs())
    };
    assert_eq!([at(1000, 7), at(1015, 7), at(1075, 7)], [Some(0), Some(15), Some(75)]);
    assert_eq!(at(1090, 8), Some(0), "it has run");
    // A probe that has just begun knows no more than that it waits now; nor what it is.
    let table = root.scanner().check(false, None).unwrap();
    assert_eq!((table.unproven[0].waited, table.unproven[0].start_ticks), (Some(Duration::ZERO), 90_000));
}

#[test]
fn the_first_process_of_a_container_is_known_by_its_shim() {
    let init = |pid, parent, command: &'static [u8]| Entry { pid, parent, command, ..INIT };
    let client = Entry { pid: 60, parent: 50, ..RUNC };
    let root = Proc::new()
        .with(&SHIM)
        .with(&client)
        .with(&init(61, 60, b"runc:[2:INIT]"))
        .with(&init(62, 50, b"runc:[1:CHILD]"))
        .with(&init(63, 50, b"sleep"))
        .with(&init(64, 1, b"runc:[2:INIT]"));
    let found = |root: &Proc, with_docker| -> Vec<(i32, String)> {
        let inits = root.scanner().check(with_docker, None).unwrap().inits;
        inits.into_iter().map(|init| (init.pid, init.serves)).collect()
    };
    assert_eq!(found(&root, false), [(61, "abc".to_owned()), (62, "abc".to_owned())]);
    // Where Docker is the runtime its shims are the kubelet's, and no others.
    assert_eq!(found(&root, true), []);
    let root = root.with(&Entry { args: &SHIM.args.replace("k8s.io", "moby"), ..SHIM });
    assert_eq!(found(&root, false), []);
    assert_eq!(found(&root, true), [(61, "abc".to_owned()), (62, "abc".to_owned())]);
    // Younger than ten seconds.
    root.write("uptime", "909.00 1.0\n");
    assert_eq!(root.scanner().check(false, None).unwrap().inits, []);
}
