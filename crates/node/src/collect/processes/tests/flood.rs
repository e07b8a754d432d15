//! More processes than a table has room for: what a pod starts hides nothing of the node's own, and what is missing is no evidence.

use super::*;

const CONTAINERD: Entry<'static> = Entry { pid: 900, ..super::CONTAINERD };

impl Proc {
    /// Processes of a pod's container, as root sees them there: in PID and mount namespaces and a control group of their own.
    fn with_pod(mut self, pids: impl IntoIterator<Item = i32>, parent: i32, command: &[u8]) -> Self {
        for pid in pids {
            self = self.with(&Entry { pid, parent, command, exe: "/app", args: "/app", nested: "7", ..SHIM });
            self.write(&format!("{pid}/cgroup"), format!("0::/kubepods/besteffort/pod1/{}\n", "c".repeat(64)));
        }
        self
    }

    fn small(&self, bounds: Bounds) -> Processes {
        Processes { bounds, ..self.scanner() }
    }
}

const SMALL: Bounds = Bounds { kept: 8, own: 8, parents: 8, time: Duration::from_secs(20) };

#[test]
fn a_pod_with_many_processes_hides_none_of_the_nodes_own() {
    let root = Proc::new().with_pod(2..40, 1, b"bomb").with_pod(60..100, 800, b"bomb");
    let root = root.with(&Entry { pid: 800, ..SHIM }).with(&CONTAINERD);
    let table = root.small(SMALL).check(false, None).unwrap();
    assert_eq!(pids(&table), [800, 900]);
    assert_eq!(table.left_out.processes, None, "all of the node's own are there");
    let shim = table.processes.iter().find(|seen| seen.pid == 800).unwrap();
    assert_eq!(shim.role.serves(), Some(("abc", 40)), "those left out are counted");
    // The folder is read in any order: between none and eight of the 78 are kept.
    let told = table.left_out.inits.clone().unwrap();
    assert!(told.starts_with("beyond 8 processes, 7") && told.contains("of containers"), "{told}");
    assert_eq!(table.left_out.to_string(), told);
}

#[test]
fn too_many_processes_of_the_nodes_own_are_told() {
    let mut root = Proc::new().with_pod(2..12, 1, b"bomb");
    for pid in 100..140 {
        root = root.with(&Entry { pid, command: b"sleep", exe: "/bin/sleep", args: "sleep", ..SHIM });
    }
    let table = root.with(&CONTAINERD).small(SMALL).check(false, None).unwrap();
    let told = table.left_out.processes.unwrap();
    assert!(told.contains("more than 8 processes of its own"), "{told}");
}

#[test]
fn what_was_proven_before_is_read_first_and_the_rest_is_told_as_missing() {
    let root = Proc::new().with(&SHIM).with(&CONTAINERD);
    let mut scanner = root.small(Bounds { kept: 2, time: Duration::ZERO, ..SMALL });
    assert_eq!(pids(&scanner.check(false, None).unwrap()), [50, 900]);
    let root = root.with_pod(2..40, 1, b"bomb");
    let table = scanner.check(false, None).unwrap();
    assert_eq!(pids(&table), [50, 900]);
    let told = table.left_out.processes.unwrap();
    assert!(told.contains("too long to be read: after 2 processes"), "{told}");
    drop(root);
}

#[test]
fn children_of_more_parents_than_are_counted_may_be_missing() {
    let mut root = Proc::new();
    for pid in 2..60 {
        root = root.with_pod([pid], pid + 1000, b"chain");
    }
    let table = root.with(&SHIM).small(SMALL).check(false, None).unwrap();
    assert!(table.left_out.processes.unwrap().contains("children of more than 8"));
}

#[test]
fn of_too_many_processes_of_the_runtime_daemons_and_silent_ones_are_kept() {
    let mut root = Proc::new().with(&CONTAINERD);
    for pid in 50..60 {
        root = root.with(&Entry { pid, state: if pid == 57 { 'T' } else { 'S' }, ..SHIM });
    }
    let mut scanner = Processes { most: 3, ..root.scanner() };
    let table = scanner.check(false, None).unwrap();
    assert_eq!(pids(&table), [50, 57, 900]);
    assert_eq!(table.left_out.processes.unwrap(), "8 processes of the runtime are not kept beyond 3");
}

#[test]
fn what_a_container_calls_its_processes_takes_no_room_from_what_a_client_makes() {
    let client = Entry { pid: 70, parent: 50, ..RUNC };
    let root = Proc::new().with(&SHIM).with(&client).with(&CONTAINERD);
    let root = root.with_pod([2000], 70, b"runc:[2:INIT]");
    // Children of the shim may be what they are called; children of those are not.
    let root = root.with_pod(100..1200, 50, b"runc:[2:INIT]").with_pod(1300..1400, 100, b"runc:[2:INIT]");
    let other = SHIM.args.replace("abc", "other");
    let root = root.with(&Entry { pid: 1500, args: &other, ..SHIM });
    let root = root.with_pod([1999], 1500, b"runc:[1:CHILD]");
    let table = root.scanner().check(false, None).unwrap();
    assert_eq!(table.inits.len(), 1024);
    assert_eq!(table.inits[0].pid, 2000);
    assert!(table.inits.iter().any(|init| (init.pid, init.serves.as_str()) == (1999, "other")));
    assert!(table.inits.iter().all(|init| !(1300..1400).contains(&init.pid)));
    let told = table.left_out.inits.unwrap();
    assert!(told.starts_with("78 processes that may be the first of a container"), "{told}");
    assert_eq!(table.left_out.processes, None);
}
