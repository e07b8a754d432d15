//! OCI runtimes that are called otherwise, and scripts around them.

use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A child of the shim with this executable and these arguments, in which `ID` stands for an id.
fn below_shim(exe: &str, command: &[u8], args: &str) -> Proc {
    let args = args.replace("ID", ID);
    Proc::new().with(&SHIM).with(&Entry { pid: 60, parent: 50, command, exe, args: &args, ..SHIM })
}

fn clients(table: &ProcessTable) -> Vec<(i32, String, Option<String>)> {
    let client = |seen: &ProcessSeen| match &seen.role {
        ProcessRole::RuntimeClient { verb, container_id } => Some((seen.pid, verb.clone(), container_id.clone())),
        _ => None,
    };
    table.processes.iter().filter_map(client).collect()
}

#[test]
fn a_wrapper_is_known_by_its_place_and_its_verb() {
    let global = "--root /run/containerd/runc/k8s.io --log /l/log.json --log-format json --systemd-cgroup";
    for (exe, command, args) in [
        ("/bin/dash", "wrapper", "/bin/sh /usr/local/bin/wrapper GLOBAL create --bundle /b --pid-file /p ID"),
        ("/bin/bash", "wrapper", "/bin/bash -e /usr/local/bin/wrapper GLOBAL create --bundle /b ID"),
        ("/usr/bin/nvidia-container-runtime", "nvidia-containe", "nvidia-container-runtime GLOBAL create ID"),
        ("/opt/kuasar", "kuasar", "kuasar GLOBAL create --no-pivot ID"),
    ] {
        let args = args.replace("GLOBAL", global);
        let table = below_shim(exe, command.as_bytes(), &args).scanner().check(false, None).unwrap();
        assert_eq!(clients(&table), [(60, "create".to_owned(), Some(ID.to_owned()))], "{args}");
    }
    let kill = below_shim("/bin/dash", b"wrapper", "/bin/sh /w --root /r kill --all ID 9");
    assert_eq!(clients(&kill.scanner().check(false, None).unwrap()), [(60, "kill".to_owned(), Some(ID.to_owned()))]);
}

#[test]
fn a_client_stands_still_until_it_or_what_it_has_called_works_begins_or_ends() {
    let child = |pid, parent| Entry { pid, parent, command: b"hook", exe: "/bin/hook", args: "hook", ..SHIM };
    let root = below_shim("/usr/bin/runc", b"runc", "runc create ID").with(&child(61, 60)).with(&child(62, 61));
    let mut scanner = root.scanner();
    let mut still = |uptime: u32, pid: i32, ticks: u64| {
        root.at(uptime, pid, ticks);
        let table = scanner.check(false, None).unwrap();
        let client = table.processes.iter().find(|seen| seen.pid == 60).unwrap();
        assert!(table.processes.iter().all(|seen| seen.pid == 60 || seen.still.is_none()), "{table:?}");
        client.still.unwrap().as_secs()
    };
    assert_eq!([still(1000, 60, 5), still(1010, 60, 5), still(1020, 60, 7)], [0, 10, 20], "two ticks are a wake-up");
    assert_eq!([still(1030, 60, 8), still(1040, 60, 8)], [0, 10], "it has worked");
    assert_eq!([still(1050, 62, 50), still(1060, 62, 50)], [0, 10], "a process below it has");
    fs::remove_dir_all(root.file("62")).unwrap();
    assert_eq!([still(1070, 60, 8), still(1080, 60, 8)], [0, 10], "one below it has ended");
}

#[test]
fn without_a_verb_an_id_or_the_place_it_is_none() {
    for args in ["/bin/sh /w --root /r create", "/bin/sh /w start abc", "logger --for ID", "/bin/sh -c exec"] {
        let table = below_shim("/bin/dash", b"wrapper", args).scanner().check(false, None).unwrap();
        assert_eq!(clients(&table), [], "{args}");
    }
    let line = "/bin/sh /w --root /r create --bundle /b ID";
    // Inside a container, as another user, below a process that is only called like a shim, and below none.
    let inside = below_shim("/bin/dash", b"wrapper", line);
    inside.write("60/cgroup", format!("0::/kubepods/pod1/{ID}\n"));
    let other = below_shim("/bin/dash", b"wrapper", line);
    other.write("60/status", "Uid:\t65534\t65534\t0\t0\nNSpid:\t60\n");
    let forged = below_shim("/bin/dash", b"wrapper", line).with(&Entry { exe: "/tmp/app", ..SHIM });
    let alone = below_shim("/bin/dash", b"wrapper", line).with(&Entry { command: b"cron", exe: "/sbin/cron", ..SHIM });
    for (root, what) in [(inside, "inside"), (other, "other"), (forged, "forged"), (alone, "alone")] {
        assert_eq!(clients(&root.scanner().check(false, None).unwrap()), [], "{what}");
    }
}

#[test]
fn a_wrapper_and_what_it_has_called_are_both_seen() {
    let root = below_shim("/bin/dash", b"wrapper", "/bin/sh /w --root /r create --bundle /b ID");
    let args = format!("runc --root /r create --bundle /b {ID}");
    let runc = Entry { pid: 61, parent: 60, args: &args, ..RUNC };
    let init = Entry { pid: 62, parent: 61, ..INIT };
    let table = root.with(&runc).with(&init).scanner().check(false, None).unwrap();
    assert_eq!(clients(&table).iter().map(|(pid, ..)| *pid).collect::<Vec<_>>(), [60, 61]);
    assert_eq!(table.inits.iter().map(|init| init.pid).collect::<Vec<_>>(), [62]);
}

#[test]
fn processes_of_containers_are_judged_once() {
    let root = below_shim("/app", b"app", "/app start ID");
    root.write("60/cgroup", format!("0::/kubepods/pod1/{ID}\n"));
    let mut scanner = root.scanner();
    assert_eq!(clients(&scanner.check(false, None).unwrap()), []);
    // Reading these again would fail the test by name.
    root.write("60/cgroup", "0::/system.slice/containerd.service\n");
    assert_eq!(clients(&scanner.check(false, None).unwrap()), []);
    // Under another name it is another program.
    let args = format!("/app start {ID}");
    let entry = Entry { pid: 60, parent: 50, command: b"other", exe: "/other", args: &args, ..SHIM };
    assert_eq!(clients(&root.with(&entry).scanner().check(false, None).unwrap()).len(), 1);
}

/// Its arguments cannot be read while it waits, and nothing else tells what it is.
#[test]
fn a_wrapper_that_waits_uninterruptibly_may_be_a_client() {
    let line = "/bin/sh /w --root /r create --bundle /b ID";
    let root = below_shim("/bin/dash", b"wrapper", line);
    let stuck = Entry { pid: 60, parent: 50, state: 'D', command: b"wrapper", exe: "/bin/dash", ..SHIM };
    let root = root.with(&stuck);
    let candidates = || {
        let table = root.scanner().check(false, None).unwrap();
        table.unproven.iter().map(|one| (one.pid, one.possible_role)).collect::<Vec<_>>()
    };
    for pid in ["1", "60"] {
        fs::create_dir_all(root.file(pid).join("ns")).unwrap();
        std::os::unix::fs::symlink("mnt:[1]", root.file(pid).join("ns/mnt")).unwrap();
    }
    assert_eq!(candidates(), [(60, PossibleRole::RuntimeClient)]);
    // A pod that shares the node's process ids has started it in the node's mount namespace, as CSI drivers start mounts.
    root.write("60/cgroup", format!("0::/kubepods/pod1/{ID}\n"));
    assert_eq!(candidates(), []);
}
