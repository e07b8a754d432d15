//! The preflight for a client of the low-level runtime (`runc create` and similar).

use std::sync::Arc;
use std::time::Duration;

use super::unresponsive::SHIM_OF_RUNC;
use super::{Checker, asked, recovered};
use crate::agent::target::PinnedProcess;
use crate::agent::verdict::Refusal;
use crate::cri::Cri;
use crate::docker::Docker;
use crate::proc::role::{DOCKER_NAMESPACE, KUBELET_NAMESPACE, Proof, Prover};
use crate::proc::{self, RawProcess};
use nrh_core::command::OutcomeReason;
use nrh_core::fault::Target;
use nrh_core::faults::runtime_client_hung::{AGE, CONFIRM, MAX_WRAPPERS, is_awaited};
use nrh_core::observation::{ContainerSeen, ContainerState};
use nrh_core::text::bounded;
use nrh_core::thresholds::NO_PROGRESS_TIME;

/// How long the executor watches a client that is younger than a hung one.
const WATCHED: Duration = Duration::from_secs(5);

impl Checker {
    /// Checks that the shim waits for no client. It may answer nobody meanwhile.
    pub(super) async fn waits_for_no_client(&self, shim: &PinnedProcess) -> Result<(), Refusal> {
        let pid = shim.process.pid;
        let client = move |prover: &Prover, table: &[RawProcess], one: &RawProcess| {
            if proc::ancestors(table, one, MAX_WRAPPERS + 1).all(|up| up.pid != pid) {
                return Ok(None);
            }
            Ok(match prover.prove(table, one)? {
                Some(Proof::RuntimeClient { verb, .. }) if is_awaited(&verb) => {
                    Some(format!("`{verb}` ({}, process {})", bounded(&one.command, 64), one.pid))
                }
                _ => None,
            })
        };
        let Some(client) = self.find_process("cannot read the process table", client).await? else { return Ok(()) };
        let message = format!("shim {pid} may only wait for {client}: that client has to end first");
        Err(Refusal::new(OutcomeReason::KubeletBusy, message))
    }

    /// Checks that the shim creates no container, if it does so itself, without a client, as the shim of a VM does. It answers nobody
    /// meanwhile.
    pub(super) async fn makes_no_container(&self, shim: &Arc<PinnedProcess>, cri: &Cri) -> Result<(), Refusal> {
        let program = self.program(shim).await?;
        if program.starts_with(SHIM_OF_RUNC) {
            return Ok(());
        }
        let listed = cri.containers(self.bounds.call).await.map_err(|error| asked("the list of containers", &error))?;
        let is_in_creation = |seen: &&ContainerSeen| {
            seen.state == ContainerState::Created && shim.proof.serves(&[KUBELET_NAMESPACE]) == Some(&seen.sandbox_id)
        };
        let Some(seen) = listed.items.iter().find(is_in_creation) else { return Ok(()) };
        let message = format!("shim {} ({program}) may be creating container {}", shim.process.pid, seen.id);
        Err(Refusal::new(OutcomeReason::KubeletBusy, message))
    }

    /// Checks that the client is as old as a hung one or makes no progress, and that it works for the kubelet. Its
    /// caller, directly or through a wrapper, must be the shim of the command's sandbox, or a shim of Docker for a
    /// container of the command's pod.
    pub(super) async fn client_still_hung(&self, target: &Target, held: &Arc<PinnedProcess>) -> Result<(), Refusal> {
        let still =
            self.thresholds.bound(&NO_PROGRESS_TIME).saturating_add(self.thresholds.confirm(&CONFIRM).grace_period);
        self.as_old_as(held, still.min(self.thresholds.bound(&AGE))).await?;
        if self.age(held).await? < self.thresholds.bound(&AGE) {
            self.makes_no_progress(held).await?;
        }
        let (pid, parent) = (held.process.pid, held.process.parent);
        // The first process of a container can still have the name of the client that created it.
        let (read, id) = (Arc::clone(held), target.container_id.clone().unwrap_or_default());
        if self.read(&format!("the groups of process {pid}"), move |_| read.is_inside(&id)).await? {
            let message = format!("process {pid} is in the container's own control group: it is no client any more");
            return Err(Refusal::new(OutcomeReason::TargetChanged, message));
        }
        let changed = |found: String| Err(Refusal::new(OutcomeReason::TargetChanged, found));
        match self.caller(parent).await? {
            Some(Proof::Shim { id, namespace, .. }) if namespace == KUBELET_NAMESPACE => {
                if target.sandbox_id.as_ref() == Some(&id) {
                    return Ok(());
                }
                let commanded = target.sandbox_id.as_deref().unwrap_or("none");
                changed(format!("client {pid} was called by the shim of {id}, the command names {commanded}"))
            }
            Some(Proof::Shim { id, namespace, .. }) if namespace == DOCKER_NAMESPACE => {
                if target.container_id.as_ref() != Some(&id) {
                    return changed(format!(
                        "client {pid} was called by the shim of {id}, which is not the one in the command"
                    ));
                }
                self.runtime_is_docker(pid).await?;
                self.of_the_commanded_pod(&Docker::at(&self.docker_socket), target, &id).await.map(drop)
            }
            Some(Proof::Monitor { id, pod: Some(_) }) if target.container_id.as_ref() == Some(&id) => Ok(()),
            // Nobody else uses CRI-O.
            Some(Proof::Runtime { name }) if name == "crio" => Ok(()),
            _ => changed(format!(
                "what has called client {pid}, whose parent is process {parent}, is no shim of the kubelet's"
            )),
        }
    }

    async fn makes_no_progress(&self, held: &Arc<PinnedProcess>) -> Result<(), Refusal> {
        let before = self.progress(held).await?;
        tokio::time::sleep(WATCHED).await;
        let pid = held.process.pid;
        match (before, self.progress(held).await?) {
            (Some(before), Some(now)) if before.abs_diff(now) <= proc::NO_PROGRESS => Ok(()),
            (Some(_), Some(_)) => Err(recovered(format!(
                "client {pid} or a process below it has worked within the last {} s",
                WATCHED.as_secs()
            ))),
            _ => Err(Refusal::new(OutcomeReason::TargetGone, format!("client {pid} has ended"))),
        }
    }

    async fn progress(&self, held: &Arc<PinnedProcess>) -> Result<Option<u64>, Refusal> {
        let (pid, start_ticks) = (held.process.pid, held.process.start_ticks);
        let read = move |prover: &Prover| {
            let table = proc::table(prover.root())?;
            let process = proc::find(&table, pid).filter(|process| process.start_ticks == start_ticks);
            Ok(process.map(|process| proc::progress(&table, process)))
        };
        self.read(&format!("cannot watch client {pid}"), read).await
    }

    /// Returns the current proof of a process; for a wrapper around an OCI runtime, the proof of its caller.
    async fn caller(&self, pid: i32) -> Result<Option<Proof>, Refusal> {
        let prove = move |prover: &Prover| {
            let table = proc::table(prover.root())?;
            let mut pid = pid;
            for _ in 0..=MAX_WRAPPERS {
                let Some(process) = proc::find(&table, pid) else { return Ok(None) };
                match prover.prove(&table, process)? {
                    Some(Proof::RuntimeClient { .. }) => pid = process.parent,
                    proof => return Ok(proof),
                }
            }
            Ok(None)
        };
        self.read(&format!("cannot prove what process {pid} is"), prove).await
    }
}
