//! The preflight where Docker is the runtime: Docker's own answer decides about the release of a container, and nothing
//! is removed.

use std::sync::Arc;

use super::unit::is_docker;
use super::{Checker, asked, recovered, same_object};
use crate::agent::target::PinnedProcess;
use crate::agent::verdict::Refusal;
use crate::collect::tasks::ask;
use crate::cri::tasks::Tasks;
use crate::cri::{Cri, CriError};
use crate::docker::Docker;
use crate::proc::role::Proof;
use crate::runtime::Client;
use nrh_core::action::Signal;
use nrh_core::command::OutcomeReason;
use nrh_core::fault::Target;
use nrh_core::observation::{ContainerSeen, ContainerState, RuntimeKind, TaskAnswer};
use nrh_core::text::bounded;

/// Why no leftover is removed if Docker is the runtime.
pub(super) fn removes_nothing() -> Refusal {
    let message = "the runtime of this node is Docker: this version removes no orphan there, since it cannot distinguish them from containers that people have started";
    Refusal::new(OutcomeReason::Protected, message)
}

impl Checker {
    /// Whether the runtime is cri-dockerd, and the Docker behind it does not answer.
    pub(in crate::agent) async fn docker_is_silent(&self) -> bool {
        is_docker(&self.endpoint)
            && Docker::at(&self.docker_socket).version(self.bounds.call).await.is_err_and(|error| error.is_silence())
    }

    /// Refuses a removal if Docker is the runtime.
    pub(super) async fn not_docker(&self, cri: &Cri) -> Result<(), Refusal> {
        let seen = cri.version(self.bounds.call).await.map_err(|error| asked("its version", &error))?;
        if RuntimeKind::of(&seen.name) == RuntimeKind::Docker { Err(removes_nothing()) } else { Ok(()) }
    }

    /// Checks that the runtime is Docker, and that the shim's container is a running container of the kubelet's, in the
    /// pod of the command. For a resumption or a reboot, a stopped shim suffices. For a kill it must be unresponsive, or
    /// stopped or stuck in the kernel while Docker does not answer for that container and answers for others.
    pub(super) async fn docker_container_still_hung(
        &self,
        target: &Target,
        held: &Arc<PinnedProcess>,
        signal: Option<Signal>,
    ) -> Result<(), Refusal> {
        let Proof::Shim { id, .. } = &held.proof else { return Err(Refusal::cannot_check("the process is no shim")) };
        self.runtime_is_docker(held.process.pid).await?;
        let docker = Docker::at(&self.docker_socket);
        let listed = self.of_the_commanded_pod(&docker, target, id).await?;
        if listed != ContainerState::Running {
            return Err(recovered(format!("container {id} is {listed:?}")));
        }
        let state = self.state(held).await?;
        if signal == Some(Signal::Kill) && state != Some('T') {
            self.waits_for_no_client(held).await?;
        }
        match (signal, state) {
            (Some(Signal::Cont) | None, Some('T')) => return Ok(()),
            (Some(Signal::Cont), _) => {}
            // This proves more than silence of Docker, which answers from memory until something waits for the shim.
            _ if self.shim_gives_no_answer(id).await => return Ok(()),
            // Copying out of a container holds Docker's lock on it for the whole time of the copy, while its shim is
            // healthy.
            (_, Some('T' | 'D')) => {}
            _ => {
                let pid = held.process.pid;
                return Err(recovered(format!(
                    "shim {pid} is neither stopped nor stuck in the kernel, and answers: it blocks nothing"
                )));
            }
        }
        match docker.inspect(id, self.bounds.inspect).await {
            // Silence about one container proves nothing while Docker answers no query.
            Err(CriError::Deadline(_)) => {
                docker.answers(self.bounds.call).await.map_err(|error| asked("any container", &error))
            }
            Ok(_) if state == Some('T') => {
                let pid = held.process.pid;
                let message = format!(
                    "shim {pid} is stopped, but Docker answers for container {id}: nothing waits for it yet: resume it with SIGCONT"
                );
                Err(Refusal::new(OutcomeReason::Protected, message))
            }
            Ok(_) | Err(CriError::NotFound) => Err(recovered(format!("Docker answers for container {id}"))),
            Err(error) => Err(asked(&format!("container {id}"), &error)),
        }
    }

    /// Whether the containerd behind Docker has queried the shim without an answer.
    async fn shim_gives_no_answer(&self, id: &str) -> bool {
        match Tasks::of_docker(&self.docker_socket).await {
            Some(tasks) => matches!(ask(&tasks, id, self.bounds.task).await, Ok(TaskAnswer::NoAnswer)),
            None => false,
        }
    }

    pub(in crate::agent) async fn runtime_is_docker(&self, pid: i32) -> Result<(), Refusal> {
        let client = Client::connect(&self.endpoint).await.map_err(|error| asked("a connection", &error))?;
        let seen = client.version(self.bounds.call).await.map_err(|error| asked("its version", &error))?;
        if RuntimeKind::of(&seen.name) == RuntimeKind::Docker {
            return Ok(());
        }
        let message = format!(
            "process {pid} belongs to Docker, but the runtime of this node is {}: the kubelet does not manage it",
            seen.name
        );
        Err(Refusal::new(OutcomeReason::TargetChanged, bounded(&message, 256)))
    }

    /// Checks that Docker lists the container with the labels of the command's pod; returns the listed state. A list
    /// does not wait for any container. A sandbox is a container too, and Docker's list of containers lacks it: a command
    /// names it as the sandbox alone, or as both where a client works on it.
    pub(super) async fn of_the_commanded_pod(
        &self,
        docker: &Docker,
        target: &Target,
        id: &str,
    ) -> Result<ContainerState, Refusal> {
        let bound = self.bounds.call;
        let listed = if target.container_id.is_some() && target.container_id != target.sandbox_id {
            docker.containers(bound).await.map_err(|error| asked("the list of containers", &error))?
        } else {
            let list = docker.sandboxes(bound).await.map_err(|error| asked("the list of sandboxes", &error))?;
            list.into_iter()
                .map(|seen| ContainerSeen {
                    sandbox_id: seen.id.clone(),
                    id: seen.id,
                    name: String::new(),
                    pod: Some(seen.pod).filter(|pod| !pod.uid.is_empty()),
                    state: if seen.ready { ContainerState::Running } else { ContainerState::Exited },
                    attempt: seen.attempt,
                })
                .collect()
        };
        let Some(seen) = listed.iter().find(|seen| seen.id == id) else {
            let message = format!("Docker lists no container {id} of a kubelet");
            return Err(Refusal::new(OutcomeReason::TargetGone, message));
        };
        same_object(seen, target)?;
        Ok(seen.state)
    }
}
