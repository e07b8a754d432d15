//! The one process that an action may affect, held by a pidfd from before the preflight until after the action.
//!
//! The pidfd is opened first and everything is proven after it. As long as the pidfd does not report the end of its
//! process, no other process can have the pid, so the proof and the pidfd refer to the same process.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use super::verdict::Refusal;
use crate::proc::groups::CONMON_GROUP;
use crate::proc::role::init::KnownBy;
use crate::proc::role::{DOCKER_NAMESPACE, KUBELET_NAMESPACE, Proof, Prover};
use crate::proc::{self, Handle, RawProcess};
use nrh_core::action::Signal;
use nrh_core::command::OutcomeReason;
use nrh_core::fault::{ProcessRef, Role, Target};
use nrh_core::faults::runtime_client_hung::ENDING;

/// A proven process that cannot be confused with another one.
#[derive(Debug)]
pub(super) struct PinnedProcess {
    pidfd: OwnedFd,
    handle: Handle,
    /// The state of the process when it was proven.
    pub(super) process: RawProcess,
    pub(super) proof: Proof,
}

impl PinnedProcess {
    /// Opens the process, then proves it: the pid, start time, role and object of the command.
    pub(super) fn open(prover: &Prover, wanted: &ProcessRef, target: &Target) -> Result<Self, Refusal> {
        let pid = Pid::from_raw(wanted.pid).ok_or_else(|| changed(wanted, "it is no process id"))?;
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Err(gone(prover, wanted, target)),
            Err(error) => return Err(Refusal::cannot_check(format!("cannot hold process {}: {error}", wanted.pid))),
        };
        Self::prove(prover, wanted, target, pidfd)?.ok_or_else(|| gone(prover, wanted, target))
    }

    fn prove(prover: &Prover, wanted: &ProcessRef, target: &Target, pidfd: OwnedFd) -> Result<Option<Self>, Refusal> {
        let unproven = |error: io::Error| cannot_prove(wanted, &error);
        let handle = match Handle::open(prover.root(), wanted.pid) {
            Ok(handle) => handle,
            Err(error) if proc::is_gone(&error) => return Ok(None),
            Err(error) => return Err(unproven(error)),
        };
        let table = proc::table(prover.root()).map_err(unproven)?;
        let Some(process) = proc::find(&table, wanted.pid).filter(|process| !process.is_dead()) else {
            return Ok(None);
        };
        if process.start_ticks != wanted.start_ticks {
            let found = format!("it started at tick {}, the command names {}", process.start_ticks, wanted.start_ticks);
            return Err(changed(wanted, &found));
        }
        let proof = match prove(prover, wanted.role, &table, process, &handle) {
            Ok(Some(proof)) => proof,
            Ok(None) => return Err(changed(wanted, "its executable, arguments and parents prove no role")),
            Err(error) if proc::is_gone(&error) => return Ok(None),
            Err(error) => return Err(unproven(error)),
        };
        expect(wanted, target, &proof)?;
        let held = Self { pidfd, handle, process: process.clone(), proof };
        Ok((!held.has_ended()).then_some(held))
    }

    /// Proves the process again: it can have executed another file or ended since.
    pub(super) fn prove_again(&self, prover: &Prover, wanted: &ProcessRef, target: &Target) -> Result<(), Refusal> {
        let again = |error: io::Error| {
            if proc::is_gone(&error) { ended(wanted) } else { cannot_prove(wanted, &error) }
        };
        let table = proc::table(prover.root()).map_err(again)?;
        let process = proc::find(&table, wanted.pid).ok_or_else(|| ended(wanted))?;
        if self.has_ended() {
            return Err(ended(wanted));
        }
        match prove(prover, wanted.role, &table, process, &self.handle).map_err(again)? {
            Some(proof) if proof == self.proof => expect(wanted, target, &proof),
            Some(_) | None => Err(changed(wanted, "it is not what it was a moment ago")),
        }
    }

    /// The proof of the shim or the monitor: the process itself, or the one above the first process of a container.
    fn shim(&self) -> &Proof {
        match &self.proof {
            Proof::Init { above, .. } => above,
            proof => proof,
        }
    }

    pub(super) fn is_of_docker(&self) -> bool {
        matches!(self.shim(), Proof::Shim { namespace, .. } if namespace == DOCKER_NAMESPACE)
    }

    /// Whether its shim is CRI-O's conmon.
    pub(super) fn is_conmon(&self) -> bool {
        matches!(self.shim(), Proof::Monitor { .. })
    }

    /// Whether it is the first process of this container, which an OCI runtime is creating for CRI-O's conmon.
    pub(super) fn is_being_made_by_conmon(&self, container_id: &str) -> bool {
        let Proof::Init { known_by: KnownBy::Maker, above } = &self.proof else { return false };
        matches!(&**above, Proof::Monitor { id, .. } if id == container_id)
    }

    /// Returns the current scheduler state letter; `None` once the process has ended.
    pub(super) fn state(&self) -> io::Result<Option<char>> {
        if self.has_ended() {
            return Ok(None);
        }
        match self.handle.stat() {
            Ok(stat) => Ok(Some(stat.state).filter(|state| !proc::is_dead(*state))),
            Err(error) if proc::is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the file name of its executable.
    pub(super) fn program(&self) -> io::Result<String> {
        let exe = self.handle.exe()?;
        Ok(exe.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned())
    }

    /// Whether the process is in the cgroup of the container with this id.
    pub(super) fn is_inside(&self, container_id: &str) -> io::Result<bool> {
        // A conmon's own group has the id of its container too, and the client that it calls is in it.
        let is_group = |name: &str| name.contains(container_id) && !name.contains(CONMON_GROUP);
        let is_of = |folder: std::path::PathBuf| folder.iter().any(|name| is_group(&name.to_string_lossy()));
        Ok(self.handle.groups()?.folders("pids").any(is_of))
    }

    pub(super) fn age(&self, prover: &Prover) -> io::Result<Duration> {
        Ok(proc::age(self.process.start_ticks, proc::uptime(prover.root())?))
    }

    pub(super) fn holds(&self, path: &str) -> io::Result<bool> {
        Ok(self.handle.locked_files()?.iter().any(|file| file.path == path))
    }

    /// Returns the kernel function in which it waits, if the kernel reports it.
    pub(super) fn wchan(&self) -> Option<String> {
        self.handle.wchan().ok().flatten()
    }

    /// Whether the process has ended: another process can then have the pid, but the pidfd still refers to this one.
    pub(super) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        // A failed poll counts as an end: nothing is done then.
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_or(true, |ready| ready > 0)
    }

    /// Sends the signal to exactly this process.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        let signal = match signal {
            Signal::Cont => rustix::process::Signal::CONT,
            Signal::Kill => rustix::process::Signal::KILL,
        };
        Ok(pidfd_send_signal(&self.pidfd, signal)?)
    }
}

/// Proves a role. A container's first process is in a PID namespace of its own, where only its parents prove anything.
fn prove(
    prover: &Prover,
    role: Role,
    table: &[RawProcess],
    process: &RawProcess,
    handle: &Handle,
) -> io::Result<Option<Proof>> {
    match role {
        Role::ContainerInit => prover.prove_init(table, process),
        _ => prover.prove_handle(table, process, handle),
    }
}

/// Checks that the proof matches the object of the command.
fn expect(wanted: &ProcessRef, target: &Target, proof: &Proof) -> Result<(), Refusal> {
    if proof.role() != Some(wanted.role) {
        return Err(changed(wanted, &format!("its role is proven as {proof:?}")));
    }
    expect_object(wanted, target, proof)
}

fn expect_object(wanted: &ProcessRef, target: &Target, proof: &Proof) -> Result<(), Refusal> {
    match proof {
        Proof::Init { above, .. } => expect_object(wanted, target, above),
        // With Docker every container has its own shim, so the shim of the sandbox is a different one.
        Proof::Shim { id, namespace, .. } if namespace == DOCKER_NAMESPACE => {
            if target.container_id.as_ref().or(target.sandbox_id.as_ref()) == Some(id) {
                return Ok(());
            }
            let commanded = target.container_id.as_deref().unwrap_or_else(|| commanded_id(target));
            Err(changed(wanted, &format!("it serves {id} for Docker, the command names {commanded}")))
        }
        Proof::Shim { namespace, .. } if namespace != KUBELET_NAMESPACE => {
            Err(changed(wanted, &format!("it serves namespace {namespace:?}, ours is {KUBELET_NAMESPACE:?}")))
        }
        Proof::Shim { id, .. } | Proof::Monitor { id, .. }
            if ![&target.sandbox_id, &target.container_id].contains(&&Some(id.clone())) =>
        {
            Err(changed(wanted, &format!("it serves {id}, the command names {}", commanded_id(target))))
        }
        Proof::RuntimeClient { verb, .. } if !ENDING.contains(&verb.as_str()) => {
            Err(changed(wanted, &format!("it is at `{verb}`, which is not to be cut off")))
        }
        Proof::RuntimeClient { container_id, .. } if *container_id != target.container_id => {
            let found = container_id.as_deref().unwrap_or("none");
            let commanded = target.container_id.as_deref().unwrap_or("none");
            Err(changed(wanted, &format!("it works on container {found}, the command names {commanded}")))
        }
        Proof::NetworkPlugin { command: None, .. } => {
            Err(changed(wanted, "its environment names no CNI_COMMAND, so nothing proves that it is a plugin's call"))
        }
        Proof::NetworkPlugin { sandbox_id: Some(id), .. } if target.sandbox_id.as_ref().is_some_and(|t| t != id) => {
            Err(changed(wanted, &format!("it was called for {id}, the command names {}", commanded_id(target))))
        }
        _ => Ok(()),
    }
}

/// The process of the command is gone. If another process does the same work now, that one is not the target of the
/// command.
fn gone(prover: &Prover, wanted: &ProcessRef, target: &Target) -> Refusal {
    let successor = proc::table(prover.root()).ok().and_then(|table| {
        let same = |process: &&RawProcess| {
            let proof = prover.prove(&table, process).ok().flatten();
            proof.is_some_and(|proof| names_object(&proof, target) && expect(wanted, target, &proof).is_ok())
        };
        table.iter().find(same).map(|process| process.pid)
    });
    match successor {
        Some(pid) => changed(wanted, &format!("it has ended, and process {pid} is at its work now")),
        None => ended(wanted),
    }
}

/// Whether the proof and the command name the same object. Plugins without a name are never the same.
fn names_object(proof: &Proof, target: &Target) -> bool {
    match proof {
        Proof::Shim { .. } | Proof::Monitor { .. } | Proof::RuntimeClient { .. } => true,
        Proof::NetworkPlugin { sandbox_id, .. } => sandbox_id.is_some() && *sandbox_id == target.sandbox_id,
        Proof::Init { .. } | Proof::Runtime { .. } | Proof::Kubelet => false,
    }
}

fn commanded_id(target: &Target) -> &str {
    target.sandbox_id.as_deref().or(target.container_id.as_deref()).unwrap_or("none")
}

fn changed(wanted: &ProcessRef, found: &str) -> Refusal {
    let message = format!("process {} is not the {:?} of the command: {found}", wanted.pid, wanted.role);
    Refusal::new(OutcomeReason::TargetChanged, message)
}

fn ended(wanted: &ProcessRef) -> Refusal {
    Refusal::new(OutcomeReason::TargetGone, format!("process {} ({:?}) has ended", wanted.pid, wanted.role))
}

fn cannot_prove(wanted: &ProcessRef, error: &io::Error) -> Refusal {
    Refusal::cannot_check(format!("cannot prove what process {} is: {error}", wanted.pid))
}
