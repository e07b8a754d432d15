//! Whether this process could execute an action: it tries every permission that it needs, without effect.

use std::io;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

use super::checker::Checker;
use crate::cri::CriError;
use crate::docker::Docker;
use crate::proc::role::{Proof, Prover};
use crate::proc::{self, Handle};
use crate::runtime::Client;
use nrh_core::observation::RuntimeKind;

/// Returns what is missing, one sentence each; empty if nothing is missing.
pub(super) async fn check(checker: &Checker) -> Vec<String> {
    let state_dir = &checker.state_dir;
    let mut missing = Vec::new();
    if let Err(error) = writes(state_dir) {
        missing.push(format!("cannot keep claims in {}: {error}; mount it writable", state_dir.display()));
    }
    missing.extend(runtime(checker).await);
    let prover = checker.prover.clone();
    match checker.reader.run(checker.bounds.processes, move || processes(&prover)).await {
        Ok(Ok(found)) => missing.extend(found),
        Ok(Err(error)) => missing.push(format!("cannot read the process table: {error}")),
        Err(unanswered) => missing.push(unanswered.to_string()),
    }
    missing
}

/// Returns what keeps this process from the runtime. A runtime that does not answer is not reported here: it is a fault
/// that the executor can have to remediate.
async fn runtime(checker: &Checker) -> Option<String> {
    let socket = checker.endpoint.socket.display();
    let is_sick = |error: &CriError| match error {
        // If somebody configured this socket, it existed at that time.
        CriError::Missing(_) => !checker.endpoint.named_by.is_guess(),
        CriError::DeadlineInside => true,
        other => other.is_silence(),
    };
    let answer = async { Client::connect(&checker.endpoint).await?.version(checker.bounds.call).await };
    let seen = match answer.await {
        Ok(seen) => seen,
        Err(error) if is_sick(&error) => return None,
        Err(CriError::Other(_)) if checker.docker_is_silent().await => return None,
        Err(error) => return Some(format!("no runtime answers at {socket}: {error}")),
    };
    if RuntimeKind::of(&seen.name) != RuntimeKind::Docker {
        return None;
    }
    let version = Docker::at(&checker.docker_socket).version(checker.bounds.call).await;
    version
        .err()
        .filter(|error| !error.is_silence())
        .map(|error| format!("no Docker at {}: {error}", checker.docker_socket.display()))
}

fn writes(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let probe = folder.join(format!(".check-{}", std::process::id()));
    std::fs::write(&probe, b"x")?;
    std::fs::remove_file(&probe)
}

/// Tries the permissions on one shim; if no shim is running, they cannot be tested.
fn processes(prover: &Prover) -> io::Result<Vec<String>> {
    let table = proc::table(prover.root())?;
    // A runtime that is down is a fault to remediate. Other processes that only the node's own table shows prove that
    // this is the node's table.
    let mut daemon_seen = false;
    let mut shim = None;
    for process in &table {
        match prover.prove(&table, process) {
            Ok(Some(Proof::Runtime { .. } | Proof::Kubelet)) => daemon_seen = true,
            Ok(Some(Proof::Shim { .. })) if shim.is_none() => shim = Some(process.pid),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(vec![format!(
                    "cannot see what process {} ({}) executes: {error}; CAP_SYS_PTRACE is needed",
                    process.pid, process.command
                )]);
            }
            _ => {}
        }
    }
    Ok(match shim {
        Some(pid) => rights(prover.root(), pid),
        None if daemon_seen => Vec::new(),
        None => vec![
            "no process of a container runtime, a shim or a kubelet is in sight: this is not the node's process table (hostPID), or all of them are down"
                .to_owned(),
        ],
    })
}

fn rights(root: &Path, pid: i32) -> Vec<String> {
    let mut missing = Vec::new();
    let mut tried = |what: &str, result: io::Result<()>| match result {
        // A process in an uninterruptible wait says nothing about permissions.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock || proc::is_gone(&error) => {}
        Err(error) => missing.push(format!("{what} process {pid} (a shim): {error}")),
        Ok(()) => {}
    };
    tried("CAP_KILL or a security profile: cannot signal", signal_nothing(pid));
    match Handle::open(root, pid) {
        Err(error) => tried("cannot open", Err(error)),
        Ok(handle) => {
            tried("cannot read what the kernel does for", handle.wchan().map(drop));
            tried("CAP_SYS_PTRACE: cannot see the open files of", handle.locked_files().map(drop));
            tried("CAP_SYS_PTRACE: cannot read the environment of", handle.environ(["PATH"]).map(drop));
        }
    }
    missing
}

/// Signal 0 tests the permission and sends nothing; the pidfd ensures that the pid does not refer to another process.
fn signal_nothing(pid: i32) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(pid) else { return Ok(()) };
    let _held = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(test_kill_process(pid)?)
}
