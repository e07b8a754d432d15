//! The process table against real processes.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::fake::{Running, copy};
use super::role::{Proof, Prover};
use super::table::Bounds;
use super::*;
use crate::waiting::wait_until;

fn root() -> PathBuf {
    PathBuf::from(PROC)
}

/// Whether a process has so many arguments: before its program has begun it has none, or its parent's.
fn has_args(pid: i32, number: usize) -> bool {
    Handle::open(&root(), pid).is_ok_and(|handle| handle.args().is_ok_and(|args| args.len() == number))
}

#[test]
fn the_table_knows_children_and_their_ends() {
    let child = Running::start(Command::new("sh").args(["-c", "sleep 60 & sleep 0 & exec sleep 60"]));
    let pid = child.pid();
    wait_until("one living child and one zombie", || {
        let table = table(&root()).unwrap();
        let has_zombie = table.iter().any(|process| process.parent == pid && process.is_dead());
        has_zombie && find(&table, pid).is_some_and(|shell| shell.living_children == 1)
    });
    let table = table(&root()).unwrap();
    let me = i32::try_from(std::process::id()).unwrap();
    assert_eq!(find(&table, pid).unwrap().parent, me);
    let grandchild = table.iter().find(|process| process.parent == pid && !process.is_dead()).unwrap();
    assert!(ancestors(&table, grandchild, 8).any(|parent| parent.pid == me));
}

/// Processes in PID and mount namespaces of their own, as a pod has them.
#[test]
fn hundreds_of_processes_of_a_pod_are_counted_and_hide_none_of_the_nodes_own() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: namespaces need root");
        return;
    }
    // A name of its own: other tests start `sleep` too, and may end before it.
    let folder = tempfile::tempdir().unwrap();
    let sleeper = folder.path().join("of-the-pod");
    copy("/bin/sleep", &sleeper);
    let script = "i=0; while [ $i -lt 300 ]; do $0 600 & i=$((i + 1)); done; wait";
    let unshare = ["--pid", "--fork", "--kill-child", "--mount", "sh", "-c", script, sleeper.to_str().unwrap()];
    let flood = Running::start(Command::new("unshare").args(unshare));
    let read = || Table::read(&root(), [], Bounds { kept: 1, ..Bounds::USUAL }).unwrap();
    wait_until("300 processes", || read().left_out >= 300);
    let part = read();
    assert_eq!(part.lack, None);
    let me = i32::try_from(std::process::id()).unwrap();
    assert!(find(&part.processes, me).is_some());
    // Its shell is left out, and counted as a child.
    assert_eq!(find(&part.processes, flood.pid()).map(|process| process.living_children), Some(1));
    assert_eq!(part.processes.iter().filter(|process| process.command == "of-the-pod").count(), 0);
}

#[test]
fn a_handle_never_tells_about_a_successor() {
    let mut child = Running::start(Command::new("sleep").arg("60"));
    let handle = child.handle();
    wait_until("exec", || handle.stat().unwrap().command == "sleep");
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    for error in [handle.stat().unwrap_err(), handle.args().unwrap_err(), handle.exe().unwrap_err()] {
        assert!(is_gone(&error), "{error}");
    }
    assert!(is_gone(&Handle::open(&root(), child.pid()).unwrap_err()));
}

#[test]
fn details_of_a_real_process() {
    let child = Running::start(Command::new("sleep").arg("60").env("CNI_COMMAND", "ADD"));
    let handle = child.handle();
    wait_until("exec", || handle.args().is_ok_and(|args| args == ["sleep", "60"]));
    assert_eq!(handle.exe().unwrap().file_name().unwrap(), "sleep");
    assert_eq!(handle.environ(["CNI_COMMAND", "NOT_THERE"]).unwrap(), [Some("ADD".to_owned()), None]);
    assert!(handle.is_of_node(&root()).unwrap());
    let age = age(handle.stat().unwrap().start_ticks, uptime(&root()).unwrap());
    assert!(age < Duration::from_secs(30), "{age:?}");
    assert_eq!(boot_id(&root()).unwrap().len(), 36);
}

#[test]
fn an_argument_list_that_is_too_long_is_an_error() {
    let child = Running::start(Command::new("sleep").arg("60").arg0("a".repeat(70_000)));
    let handle = child.handle();
    wait_until("exec", || handle.args().is_err());
}

#[test]
fn a_lock_is_found_although_its_taker_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let lock = folder.path().join("ipam.lock");
    let script = format!("exec 9>{0}; flock 9; exec sleep 60", lock.display());
    let holder = Running::start(Command::new("sh").arg("-c").arg(&script));
    let handle = holder.handle();
    let path = lock.display().to_string();
    // The program that runs the tests may hold a lock, which all its processes inherit.
    let held = || handle.locked_files().unwrap().into_iter().filter(|file| file.path == path).collect::<Vec<_>>();
    wait_until("the lock", || !held().is_empty());
    wait_until("sleep", || handle.stat().unwrap().command == "sleep");
    let held = held();
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].kind, locks::LockKind::Flock);

    let waiter = Running::start(Command::new("flock").arg(&lock).arg("true"));
    let pid = waiter.pid();
    wait_until("the waiter", || {
        let locks = locks(&root(), |lock| lock.file == held[0].file).unwrap().locks;
        locks.iter().any(|lock| lock.waiters.contains(&pid))
    });
    let wchan = Handle::open(&root(), pid).unwrap().wchan().unwrap();
    assert!(wchan.as_deref().is_none_or(waits_for_lock), "{wchan:?}");
}

/// A stand-in runtime: a shell under the name of containerd that starts `line` and stays.
fn runtime(folder: &std::path::Path, name: &str, line: &str) -> Running {
    let daemon = folder.join(name).join("containerd");
    copy("/bin/sh", &daemon);
    started(&daemon, line)
}

/// Starts a shell of any name, which starts `line` and stays.
fn started(shell: &Path, line: &str) -> Running {
    let mut child = Running::start(Command::new(shell).stdin(Stdio::piped()));
    writeln!(child.0.stdin.as_mut().unwrap(), "{line} &\nwait").unwrap();
    child
}

/// The same behind a link: a shell of one name, called by another one.
fn linked(folder: &Path, executable: &str, name: &str, line: &str) -> Running {
    let (executable, shell) = (folder.join(executable), folder.join(name));
    if !executable.exists() {
        copy("/bin/sh", &executable);
    }
    let _ = std::fs::remove_file(&shell);
    std::os::unix::fs::symlink(&executable, &shell).unwrap();
    started(&shell, line)
}

/// What this process is proven to be, as it is held.
fn proof(pid: i32, prover: &Prover) -> Option<Proof> {
    let table = table(&root()).unwrap();
    let handle = Handle::open(&root(), pid).unwrap();
    prover.prove_handle(&table, find(&table, pid).unwrap(), &handle).unwrap()
}

fn proofs_below(parent: i32, prover: &Prover) -> Vec<Proof> {
    let table = table(&root()).unwrap();
    let below = table.iter().filter(|process| process.parent == parent);
    below.filter_map(|process| prover.prove(&table, process).ok().flatten()).collect()
}

#[test]
fn a_plugin_that_is_a_script_is_proven_by_arguments_environment_and_parent() {
    let folder = tempfile::tempdir().unwrap();
    let plugins = folder.path().join("cni");
    std::fs::create_dir(&plugins).unwrap();
    let plugin = plugins.join("ptp");
    std::fs::write(&plugin, "#!/bin/sh\nread -r line < \"$1\"\n").unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let prover = Prover::new(&root()).with_cni_folders(vec![plugins]);
    let line = |environ: &str| format!("env {environ} sh {} {}", plugin.display(), fifo.display());

    let with = runtime(folder.path(), "with", &line("CNI_COMMAND=ADD CNI_CONTAINERID=abc"));
    // Before its program has begun, a child is what its parent is.
    let is_plugin = |proof: &Proof| matches!(proof, Proof::NetworkPlugin { .. });
    wait_until("the plugin", || proofs_below(with.pid(), &prover).iter().any(is_plugin));
    let expected = Proof::NetworkPlugin {
        plugin: "ptp".to_owned(),
        command: Some("ADD".to_owned()),
        sandbox_id: Some("abc".to_owned()),
        pod_uid: None,
        pod_name: None,
    };
    assert_eq!(proofs_below(with.pid(), &prover), std::slice::from_ref(&expected));
    let elsewhere = Prover::new(&root()).with_cni_folders(Vec::new());
    let Proof::NetworkPlugin { command, sandbox_id, pod_uid, pod_name, .. } = expected else { unreachable!() };
    let by_environment = Proof::NetworkPlugin { plugin: "sh".to_owned(), command, sandbox_id, pod_uid, pod_name };
    assert_eq!(proofs_below(with.pid(), &elsewhere), [by_environment], "its folder is not on the list");

    let without = runtime(folder.path(), "without", &line("X=1"));
    let pid = without.pid();
    wait_until("the script", || {
        let table = table(&root()).unwrap();
        table.iter().any(|process| process.parent == pid && process.command == "sh" && has_args(process.pid, 3))
    });
    for prover in [&prover, &elsewhere] {
        assert_eq!(proofs_below(pid, prover), [], "a script without CNI_COMMAND was taken for a plugin");
    }
}

#[test]
fn the_containerd_inside_k3s_is_known_by_its_name_and_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let of = |executable: &str, link: &str| {
        let child = linked(folder.path(), executable, link, "sleep 60");
        wait_until("the program", || table(&root()).unwrap().iter().any(|p| p.parent == child.pid()));
        assert_eq!(find(&table(&root()).unwrap(), child.pid()).unwrap().command, link);
        proof(child.pid(), &Prover::new(&root()))
    };
    assert_eq!(of("k3s", "containerd"), Some(Proof::Runtime { name: "containerd".to_owned() }));
    for other in ["k3s-agent", "runc", "kubelet", "containerd-shim"] {
        assert_eq!(of("k3s", other), None, "{other}");
    }
    assert_eq!(of("other", "containerd"), None);
}

/// With `--docker`, k3s contains cri-dockerd.
#[test]
fn a_plugin_that_k3s_itself_calls_is_proven() {
    let folder = tempfile::tempdir().unwrap();
    let plugins = folder.path().join("cni");
    let plugin = plugins.join("ptp");
    copy("/bin/sleep", &plugin);
    let prover = Prover::new(&root()).with_cni_folders(vec![plugins]);
    let called_by = |executable: &str| {
        let call = format!("CNI_COMMAND=ADD CNI_CONTAINERID=abc {} 60", plugin.display());
        let daemon = linked(folder.path(), executable, "k3s-agent", &call);
        wait_until("the plugin", || {
            table(&root()).unwrap().iter().any(|process| process.parent == daemon.pid() && process.command == "ptp")
        });
        proofs_below(daemon.pid(), &prover)
    };
    assert!(matches!(&called_by("k3s")[..], [Proof::NetworkPlugin { plugin, .. }] if plugin == "ptp"));
    assert_eq!(called_by("other"), []);
}

#[test]
fn a_plugin_that_no_runtime_called_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("ptp");
    copy("/bin/sleep", &plugin);
    let child = Running::start(Command::new(&plugin).arg("60").env("CNI_COMMAND", "ADD"));
    wait_until("exec", || has_args(child.pid(), 2));
    let prover = Prover::new(&root()).with_cni_folders(vec![folder.path().to_owned()]);
    assert_eq!(proof(child.pid(), &prover), None);
}

#[test]
fn a_name_alone_proves_no_role() {
    let folder = tempfile::tempdir().unwrap();
    let liar = folder.path().join("containerd-shim-runc-v2");
    std::fs::write(&liar, "#!/bin/sh\nread -r line\n").unwrap();
    let mut command = Command::new("/bin/sh");
    command.arg(&liar).args(["-namespace", "k8s.io", "-id", "abc"]).arg0("containerd-shim-runc-v2");
    let child = Running::start(command.stdin(Stdio::piped()));
    wait_until("exec", || has_args(child.pid(), 6));
    assert_eq!(proof(child.pid(), &Prover::new(&root())), None);
}
