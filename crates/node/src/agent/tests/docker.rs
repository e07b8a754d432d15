//! Docker as the runtime: a shim is released on Docker's word, and nothing is removed.

use std::ops::Deref;

use serde_json::json;

use super::reboot::reboot_for_process;
use super::release::Frozen;
use super::*;
use crate::docker::fake::{Fake as Docker, Say as Said, listed};
use nrh_core::examples::{KILL, SAFE_KILL};

/// A node whose runtime is Docker, with the frozen shim of one container.
struct Docked {
    frozen: Frozen,
    docker: Docker,
    container: String,
}

impl Deref for Docked {
    type Target = Frozen;

    fn deref(&self) -> &Frozen {
        &self.frozen
    }
}

impl Docked {
    fn new() -> Self {
        let (node, docker, sandbox, container) = (Node::new(), Docker::start(), id(), id());
        node.runtime.name("docker");
        let (shim, neighbour) = (node.stage.shim_of("moby", &container), node.stage.shim_of("moby", &id()));
        docker.lists(&[&sandbox], &[(&container, &sandbox)]);
        Self { frozen: Frozen::of(node, sandbox, shim, neighbour), docker, container }
    }

    fn hang(&self) {
        self.docker.say(&format!("Inspect:{}", self.container), Said::Never);
    }

    /// The containerd behind Docker says this of a container.
    fn containerd_says(&self, container: &str, say: Say) {
        let beside = self.docker.socket().with_file_name("containerd");
        std::fs::create_dir_all(&beside).unwrap();
        let _ = std::os::unix::fs::symlink(self.node.runtime.socket(), beside.join("containerd.sock"));
        self.node.task_says(container, say);
    }

    fn command(&self, action: Action) -> ActionCommand {
        let target = Target {
            container_id: Some(self.container.clone()),
            pod: Some(pod(&format!("uid-{}", &self.sandbox[..1]))),
            ..process_target(self.shim.as_target(Role::Shim), &self.sandbox)
        };
        command(action, FaultType::HungContainer, target)
    }

    /// Refuses for this reason both to resume the shim and to kill it.
    async fn refuses_both(&self, reason: OutcomeReason) {
        for action in [CONT, KILL] {
            self.refuses(&self.command(action), reason).await;
        }
    }
}

impl Executes for Docked {
    fn settings(&self) -> AgentSettings {
        AgentSettings { docker_socket: self.docker.socket(), ..self.node.settings() }
    }
}

#[tokio::test]
async fn a_stopped_shim_of_a_listed_container_is_resumed_whether_or_not_anybody_waits() {
    let docked = Docked::new();
    done(&docked.execute(&docked.command(CONT)).await);
    wait_until("the trap", || docked.shim.resumed() == 1);
    docked.neighbour_untouched();
}

#[tokio::test]
async fn a_shim_is_killed_only_while_docker_does_not_answer_for_its_container() {
    let docked = Docked::new();
    docked.refuses_saying(&docked.command(KILL), Protected, "resume it with SIGCONT").await;
    done(&reboot_for_process(&docked.node, docked.settings(), &docked.command(KILL)).await);
    docked.hang();
    let protected = docked.command(SAFE_KILL);
    docked.refuses(&protected, Protected).await;
    docked.untouched();
    done(&docked.execute(&docked.command(KILL)).await);
    assert_eq!(docked.shim.state(), None);
    docked.neighbour_untouched();
}

#[tokio::test]
async fn a_stopped_shim_that_answers_nobody_is_killed_although_docker_answers_from_memory() {
    let docked = Docked::new();
    docked.containerd_says(&docked.container, task(2));
    docked.refuses(&docked.command(KILL), Protected).await;
    docked.untouched();
    docked.containerd_says(&docked.container, gave_up());
    done(&docked.execute(&docked.command(KILL)).await);
    assert_eq!(docked.shim.state(), None);
    docked.neighbour_untouched();
}

#[tokio::test]
async fn a_shim_that_waits_for_a_client_is_not_killed() {
    let docked = Docked::new();
    let (client, shim) = docked.node.stage.client("moby", &docked.container, "update", &docked.container);
    docked.containerd_says(&docked.container, gave_up());
    let mut command = docked.command(KILL);
    command.target.process = Some(shim.as_target(Role::Shim));
    docked.refuses(&command, KubeletBusy).await;
    assert!(shim.state().is_some() && client.state().is_some());
    docked.untouched();
}

#[tokio::test]
async fn a_docker_that_answers_for_nobody_proves_nothing() {
    let docked = Docked::new();
    docked.hang();
    docked.docker.say("Inspect", Said::Never);
    docked.refuses(&docked.command(KILL), CheckFailed).await;
    docked.docker.say("Containers", Said::Error(500, "?".to_owned()));
    docked.refuses(&docked.command(CONT), CheckFailed).await;
    docked.untouched();
}

#[tokio::test]
async fn a_container_that_is_not_the_commanded_pods_or_runs_no_more_keeps_its_shim() {
    let docked = Docked::new();
    docked.hang();
    // Started by hand: Docker lists it under no pod.
    docked.docker.lists(&[&docked.sandbox], &[]);
    docked.hang();
    docked.refuses_both(TargetGone).await;
    let entry =
        |state: &str, sandbox: &str| Said::Json(json!([listed(&docked.container, "container", sandbox, state)]));
    docked.docker.say("Containers", entry("exited", &docked.sandbox));
    docked.refuses_both(Recovered).await;
    docked.docker.say("Containers", entry("running", &id()));
    docked.refuses_both(TargetChanged).await;
    docked.docker.say("Containers", entry("running", &docked.sandbox));
    let mut other = docked.command(KILL);
    other.target.pod = Some(pod("another"));
    docked.refuses(&other, TargetChanged).await;
    // The sandbox's shim is another one, and so is a neighbour's.
    let mut other = docked.command(KILL);
    (other.target.container_id, other.target.sandbox_id) = (Some(id()), Some(docked.container.clone()));
    docked.refuses(&other, TargetChanged).await;
    docked.untouched();
}

#[tokio::test]
async fn a_shim_of_dockers_on_a_node_with_another_runtime_is_nobodys() {
    let docked = Docked::new();
    docked.hang();
    docked.node.runtime.name("containerd");
    docked.refuses_both(TargetChanged).await;
    docked.untouched();
}

#[tokio::test]
async fn a_hung_sandbox_is_released_by_its_own_shim() {
    let docked = Docked::new();
    let shim = docked.node.stage.shim_of("moby", &docked.sandbox).stopped();
    docked.docker.say(&format!("Inspect:{}", docked.sandbox), Said::Never);
    let target = process_target(shim.as_target(Role::Shim), &docked.sandbox);
    let command = command(KILL, FaultType::HungContainer, target);
    done(&docked.execute(&command).await);
    assert_eq!(shim.state(), None);
    docked.untouched();
}

#[tokio::test]
async fn nothing_is_removed() {
    let docked = Docked::new();
    let leaked = process_target(docked.shim.as_target(Role::Shim), &docked.container);
    let leaked = command(Action::CleanupOrphans(CleanupOrphans), FaultType::LeakedShim, leaked);
    let target = Target { container_id: Some(docked.container.clone()), ..Target::default() };
    let orphan = command(Action::CleanupOrphans(CleanupOrphans), FaultType::OrphanContainer, target);
    for command in [&leaked, &orphan] {
        docked.refuses_saying(command, Protected, "Docker").await;
    }
    let mut settings = docked.node.settings();
    settings.endpoint = Endpoint::docker(docked.docker.socket(), NamedBy::Kubelet);
    let again = ActionCommand { operation_id: "again".to_owned(), ..orphan };
    settings.refuses(&again, Protected).await;
    docked.untouched();
}

#[tokio::test]
async fn without_dockers_socket_it_cannot_act_and_says_so() {
    let docked = Docked::new();
    let _runtime = docked.node.stage.child("runtime/dockerd", &[]);
    let missing = docked.node.agent().self_check().await;
    assert!(missing.iter().any(|line| line.contains("no Docker at")), "{missing:?}");
    assert_eq!(Agent::new(docked.settings()).self_check().await, [] as [String; 0]);
}

/// cri-dockerd itself answers, with an error of its own.
#[tokio::test]
async fn a_docker_that_hangs_behind_cri_dockerd_is_a_fault_and_no_missing_capability() {
    let docked = Docked::new();
    docked.node.runtime.say("Version", fails());
    let socket = docked.node.stage.path("cri-dockerd.sock");
    std::os::unix::fs::symlink(docked.node.runtime.socket(), &socket).unwrap();
    let mut settings = docked.settings();
    settings.endpoint.socket = socket;
    let command = command(CONT, FaultType::RuntimeUnreachable, Target::default());
    let missing = Agent::new(settings.clone()).self_check().await;
    assert!(missing.iter().any(|line| line.contains("no runtime answers")), "{missing:?}");
    let outcome = reboot_for_process(&docked.node, settings.clone(), &command).await;
    refused(&outcome, CheckFailed);
    docked.docker.say("Version", Said::Never);
    assert_eq!(Agent::new(settings.clone()).self_check().await, [] as [String; 0]);
    done(&reboot_for_process(&docked.node, settings, &command).await);
}
