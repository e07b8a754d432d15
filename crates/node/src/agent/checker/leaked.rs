//! The preflight for a shim that serves no container any more.

use std::sync::Arc;

use super::{Checker, asked, docker, recovered};
use crate::agent::target::PinnedProcess;
use crate::agent::verdict::Refusal;
use crate::collect;
use crate::proc;
use crate::proc::role::Proof;
use crate::runtime::Client;
use nrh_core::action::Signal;
use nrh_core::command::OutcomeReason;
use nrh_core::observation::{ContainerSeen, ContainerState, TaskAnswer};
use nrh_core::text::is_full_id;

impl Checker {
    /// Checks that no ready sandbox and no container that can be running has its id, and that it has no living child.
    pub(in crate::agent) async fn shim_still_leaked(&self, held: &Arc<PinnedProcess>) -> Result<(), Refusal> {
        let id = of_the_kubelets(held)?;
        let cri = self.runtime().await?;
        self.not_docker(&cri).await?;
        let lists = self.lists(&Client::Cri(cri.clone())).await?;
        if lists.before.iter().chain(&lists.after).any(|seen| seen.id == id && seen.ready) {
            return Err(recovered(format!("sandbox {id} of shim {} is ready", held.process.pid)));
        }
        let lives =
            |seen: &&ContainerSeen| (seen.sandbox_id == id || seen.id == id) && seen.state != ContainerState::Exited;
        if let Some(seen) = lists.containers.iter().find(lives) {
            let message = format!("container {} of shim {} is {:?}", seen.id, held.process.pid, seen.state);
            return Err(recovered(message));
        }
        self.shim_is_alone(held.process.pid).await?;
        self.shim_is_useless(held, id).await
    }

    /// Checks that the conmon is stopped, and that it is not to be killed: nothing would watch its container.
    pub(in crate::agent) async fn conmon_still_stopped(
        &self,
        held: &Arc<PinnedProcess>,
        signal: Option<Signal>,
    ) -> Result<(), Refusal> {
        let pid = held.process.pid;
        match (self.state(held).await?, signal) {
            (Some('T'), Some(Signal::Cont) | None) => Ok(()),
            (Some('T'), Some(Signal::Kill)) => {
                let message = format!("without conmon {pid} CRI-O would not hear of the end of its container");
                Err(Refusal::new(OutcomeReason::Protected, message))
            }
            _ => Err(recovered(format!("conmon {pid} is not stopped"))),
        }
    }

    /// Checks that the shim is stopped, or that it is older than any start of a sandbox and containerd knows no task of
    /// it.
    async fn shim_is_useless(&self, held: &Arc<PinnedProcess>, id: &str) -> Result<(), Refusal> {
        if self.state(held).await? == Some('T') {
            return Ok(());
        }
        if held.is_conmon() {
            return Err(recovered(format!("conmon {} runs: it ends by itself", held.process.pid)));
        }
        let (age, pid) = (self.age(held).await?, held.process.pid);
        let bound = self.thresholds.bound(&nrh_core::faults::leaked_shim::AGE);
        if age < bound {
            let (age, bound) = (age.as_secs(), bound.as_secs());
            return Err(recovered(format!(
                "shim {pid} runs and is {age}s old; a leaked one that runs is {bound}s old"
            )));
        }
        let tasks = self.tasks().await?;
        match collect::tasks::ask(&tasks, id, self.bounds.task).await {
            Ok(TaskAnswer::NotFound) => Ok(()),
            Ok(TaskAnswer::NoAnswer) => {
                Err(Refusal::cannot_check(format!("containerd knows a task of shim {pid}, which does not answer")))
            }
            Ok(_) => Err(recovered(format!("containerd knows the task of shim {pid}"))),
            Err(error) => Err(asked(&format!("task {id}"), &error)),
        }
    }

    /// Checks that its parent is process 1, and that it has no living child.
    pub(super) async fn shim_is_alone(&self, pid: i32) -> Result<(), Refusal> {
        let table = self.read("cannot read the process table", |prover| proc::table(prover.root())).await?;
        let Some(shim) = proc::find(&table, pid) else {
            return Err(Refusal::new(OutcomeReason::TargetGone, format!("shim {pid} has ended")));
        };
        if shim.living_children > 0 {
            return Err(recovered(format!("{} processes live below shim {pid}", shim.living_children)));
        }
        if shim.parent != 1 {
            let message = format!("shim {pid} is a child of process {}, a leaked one is a child of init", shim.parent);
            return Err(recovered(message));
        }
        Ok(())
    }
}

/// Returns the id that a shim serves, if the shim is one of the kubelet's. Nothing of Docker's is removed, whatever
/// name the queried runtime reports.
pub(super) fn of_the_kubelets(held: &PinnedProcess) -> Result<&str, Refusal> {
    let (Proof::Shim { id, .. } | Proof::Monitor { id, .. }) = &held.proof else {
        return Err(Refusal::cannot_check("the process is no shim"));
    };
    if held.is_of_docker() {
        return Err(docker::removes_nothing());
    }
    if !is_full_id(id) {
        let message = format!("shim {} serves {id:?}, which is no id that the kubelet's have", held.process.pid);
        return Err(Refusal::new(OutcomeReason::TargetChanged, message));
    }
    Ok(id)
}
