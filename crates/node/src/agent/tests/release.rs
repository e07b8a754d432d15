//! Ending the wait of one hung process.

use super::reboot::reboot_for_process;
use super::*;
use nrh_core::examples::{KILL, SAFE_KILL};

/// A node with a frozen shim, and a neighbour that differs in nothing but its id.
pub(super) struct Frozen {
    pub node: Node,
    pub sandbox: String,
    pub shim: Running,
    pub neighbour: Running,
}

impl Frozen {
    fn new() -> Self {
        let (node, sandbox) = (Node::new(), id());
        let (shim, neighbour) = (node.stage.shim(&sandbox), node.stage.shim(&id()));
        Self::of(node, sandbox, shim, neighbour)
    }

    pub fn of(node: Node, sandbox: String, shim: Running, neighbour: Running) -> Self {
        shim.stop();
        neighbour.stop();
        Self { node, sandbox, shim, neighbour }
    }

    fn kill(&self) -> ActionCommand {
        let command = resume(&self.shim, &self.sandbox);
        ActionCommand { action: KILL, ..command }
    }

    #[track_caller]
    pub fn untouched(&self) {
        assert_eq!((self.shim.state(), self.shim.resumed()), (Some('T'), 0));
        self.neighbour_untouched();
    }

    #[track_caller]
    pub fn neighbour_untouched(&self) {
        assert_eq!((self.neighbour.state(), self.neighbour.resumed()), (Some('T'), 0));
        assert_eq!(self.node.runtime.writes(), [] as [String; 0]);
    }
}

#[tokio::test]
async fn a_frozen_shim_is_resumed_and_its_neighbour_is_not() {
    let frozen = Frozen::new();
    done(&frozen.node.execute(&resume(&frozen.shim, &frozen.sandbox)).await);
    wait_until("the trap", || frozen.shim.resumed() == 1);
    assert_ne!(frozen.shim.state(), Some('T'));
    frozen.neighbour_untouched();
}

/// A check may take minutes, and a person may cancel meanwhile. The same operation may be a Job's by then, so nothing is stored.
#[tokio::test]
async fn a_command_that_is_withdrawn_during_its_check_is_not_executed() {
    let frozen = Frozen::new();
    let command = resume(&frozen.shim, &frozen.sandbox);
    let outcome = Agent::new(frozen.node.settings()).execute_while(&command, || false).await;
    refused(&outcome, Expired);
    frozen.untouched();
    done(&frozen.node.execute(&command).await);
}

#[tokio::test]
async fn a_command_whose_time_passes_during_its_check_is_not_executed() {
    let (node, sandbox) = (Node::new(), id());
    let shim = node.stage.shim(&sandbox);
    // containerd waits 2 s for the shim.
    node.task_says(&sandbox, silent_shim());
    let command = resume(&shim, &sandbox);
    let mut read = node.agent().now().unwrap();
    read.uptime = read.uptime.saturating_sub(Duration::from_millis(58_500));
    node.claims().first_read(&command, &read).unwrap();
    node.refuses_saying(&command, Expired, "too old: first read 6").await;
    assert_eq!(shim.resumed(), 0);
}

#[tokio::test]
async fn a_frozen_shim_is_killed_only_when_running_pods_may_end() {
    let frozen = Frozen::new();
    let protected = ActionCommand { action: SAFE_KILL, ..frozen.kill() };
    frozen.node.refuses(&protected, Protected).await;
    frozen.untouched();
    done(&frozen.node.execute(&frozen.kill()).await);
    assert_eq!(frozen.shim.state(), None);
    frozen.neighbour_untouched();
}

#[tokio::test]
async fn a_kill_wants_the_runtime_awake() {
    let frozen = Frozen::new();
    frozen.node.runtime.say("Version", Say::Never);
    let start = std::time::Instant::now();
    frozen.node.refuses(&frozen.kill(), CheckFailed).await;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    frozen.untouched();
}

#[tokio::test]
async fn a_shim_that_waits_for_a_client_is_not_killed() {
    for verb in ["create", "update", "checkpoint"] {
        let (node, sandbox, container) = (Node::new(), id(), id());
        let (client, shim) = node.stage.client("k8s.io", &sandbox, verb, &id());
        node.task_says(&container, silent_shim());
        let mut command = ActionCommand { action: KILL, ..resume(&shim, &sandbox) };
        command.target.container_id = Some(container);
        node.refuses_saying(&command, KubeletBusy, &format!("process {}", client.pid)).await;
        assert!(shim.state().is_some() && client.state().is_some());
    }
}

/// The shim of a VM calls no `runc create`, and answers nobody while it creates a container.
#[tokio::test]
async fn the_shim_of_a_vm_is_not_killed_while_a_container_of_its_sandbox_is_in_creation() {
    let (node, sandbox, made) = (Node::new(), id(), id());
    let flags = ["-namespace", "k8s.io", "-id", &sandbox];
    let shim = node.stage.orphan(&format!("{}/containerd-shim-kata-v2", id()), &flags);
    node.task_says(&sandbox, silent_shim());
    node.runtime.set(|world| world.containers = vec![container(&made, &sandbox, 0), container(&id(), &id(), 0)]);
    let kill = || ActionCommand { action: KILL, ..resume(&shim, &sandbox) };
    node.refuses_saying(&kill(), KubeletBusy, &format!("may be creating container {made}")).await;
    node.runtime.say("ListContainers", fails());
    node.refuses(&kill(), CheckFailed).await;
    assert!(shim.state().is_some());
    node.runtime.unsay("ListContainers");
    node.runtime.set(|world| world.containers = vec![container(&made, &sandbox, 1)]);
    done(&node.execute(&kill()).await);
}

#[tokio::test]
async fn a_shim_that_runs_is_released_only_while_a_task_of_it_does_not_answer() {
    let (node, sandbox, container) = (Node::new(), id(), id());
    let shim = node.stage.shim(&sandbox);
    let with_container = || {
        let mut command = resume(&shim, &sandbox);
        command.target.container_id = Some(container.clone());
        command
    };
    let tasks_say = |of_container: Say, of_sandbox: Say| {
        node.task_says(&container, of_container);
        node.task_says(&sandbox, of_sandbox);
    };
    for (of_container, of_sandbox) in [(silent_shim(), no_task()), (gave_up(), no_task()), (no_task(), Say::Never)] {
        tasks_say(of_container, of_sandbox);
        // What was not stopped does not run again.
        failed(&node.execute(&with_container()).await, "in state S and not stopped; it is in state");
    }
    wait_until("three traps", || shim.resumed() == 3);

    tasks_say(task(2), task(2));
    node.refuses(&with_container(), Recovered).await;
    tasks_say(no_task(), no_task());
    node.refuses(&with_container(), Recovered).await;

    tasks_say(task(0), no_task());
    node.refuses(&with_container(), CheckFailed).await;

    node.runtime.say("Version", fails());
    node.refuses(&with_container(), CheckFailed).await;
    let mut settings = node.settings();
    settings.endpoint.socket = node.stage.path("none.sock");
    settings.refuses(&with_container(), CheckFailed).await;
    assert_eq!(shim.resumed(), 3);
}

#[tokio::test]
async fn another_process_under_the_pid_is_left_alone() {
    let frozen = Frozen::new();
    let mut command = resume(&frozen.shim, &frozen.sandbox);
    let process = command.target.process.as_mut().unwrap();
    process.start_ticks -= 1;
    frozen.node.refuses(&command, TargetChanged).await;

    let mut command = resume(&frozen.shim, &id());
    command.target.container_id = Some(id());
    frozen.node.refuses(&command, TargetChanged).await;

    let command = resume(&frozen.neighbour, &frozen.sandbox);
    frozen.node.refuses(&command, TargetChanged).await;
    frozen.untouched();
}

#[tokio::test]
async fn a_process_that_is_no_shim_of_the_kubelets_is_left_alone() {
    let (node, sandbox) = (Node::new(), id());
    let docker = node.stage.shim_of("moby", &sandbox);
    let liar = node.stage.orphan("sleep", &["-namespace", "k8s.io", "-id", &sandbox]);
    let call = node.stage.orphan("call/containerd-shim-runc-v2", &["-namespace", "k8s.io", "-id", &sandbox, "delete"]);
    for process in [&docker, &liar, &call] {
        process.stop();
        node.refuses(&resume(process, &sandbox), TargetChanged).await;
        assert_eq!((process.state(), process.resumed()), (Some('T'), 0));
    }
    // Right process, wrong role in the command.
    let shim = node.stage.shim(&sandbox).stopped();
    let target = process_target(shim.as_target(Role::NetworkPlugin), &sandbox);
    let command = command(SAFE_KILL, FaultType::NetworkPluginHung, target);
    node.refuses(&command, TargetChanged).await;
    assert_eq!(shim.state(), Some('T'));
}

#[tokio::test]
async fn a_process_that_has_ended_is_gone_or_was_replaced() {
    let (node, sandbox) = (Node::new(), id());
    let first = node.stage.shim(&sandbox);
    let command = resume(&first, &sandbox);
    drop(first);
    wait_until("the end", || {
        crate::proc::Handle::open(std::path::Path::new("/proc"), command.target.process.as_ref().unwrap().pid).is_err()
    });
    node.refuses(&command, TargetGone).await;

    let second = node.stage.shim(&sandbox).stopped();
    let again = ActionCommand { operation_id: "again".to_owned(), ..command };
    node.refuses_saying(&again, TargetChanged, &second.pid.to_string()).await;
    assert_eq!((second.state(), second.resumed()), (Some('T'), 0));
}

fn end(plugin: &Running, sandbox_id: &str, lock: Option<String>) -> ActionCommand {
    let target = Target { lock, ..process_target(plugin.as_target(Role::NetworkPlugin), sandbox_id) };
    command(SAFE_KILL, FaultType::NetworkPluginHung, target)
}

#[tokio::test]
async fn a_hung_plugin_is_ended_and_its_sibling_is_not() {
    let (node, sandbox) = (Node::new(), id());
    let lock = node.stage.path("ipam.lock");
    let (plugin, runtime) = node.stage.plugin("ptp", &[("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", &sandbox)], &lock);
    let other_lock = node.stage.path("other.lock");
    let (sibling, _its) =
        node.stage.plugin("host-local", &[("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", &id())], &other_lock);
    let locked = Some(lock.display().to_string());

    let mut strict = node.settings();
    strict.thresholds.set_bound(&nrh_core::faults::network_plugin_hung::AGE, Duration::from_mins(1));
    strict.refuses(&end(&plugin, &sandbox, locked.clone()), Recovered).await;
    let elsewhere = Some(other_lock.display().to_string());
    node.refuses(&end(&plugin, &sandbox, elsewhere), Recovered).await;
    node.refuses(&end(&plugin, &id(), locked.clone()), TargetChanged).await;
    assert!(plugin.state().is_some());

    done(&node.execute(&end(&plugin, &sandbox, locked)).await);
    assert_eq!(plugin.state(), None);
    assert!(sibling.state().is_some());
    drop(runtime);
}

#[tokio::test]
async fn a_process_is_no_plugin_without_its_environment_or_its_runtime() {
    let (node, sandbox) = (Node::new(), id());
    let (plain, _runtime) = node.stage.plugin("ptp", &[("X", "1")], &node.stage.path("a.lock"));
    node.refuses(&end(&plain, &sandbox, None), TargetChanged).await;
    let alone = node.stage.child("cni/bridge", &[]);
    node.refuses(&end(&alone, &sandbox, None), TargetChanged).await;
    assert!(plain.state().is_some() && alone.state().is_some());
}

#[tokio::test]
async fn a_shim_inside_a_container_is_left_alone() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: a PID namespace of its own needs root");
        return;
    }
    let (node, sandbox) = (Node::new(), id());
    let outer = node.stage.child_by(
        "unshare",
        &["-p", "-f", "--kill-child"],
        "nested/containerd-shim-runc-v2",
        &["-namespace", "k8s.io", "-id", &sandbox],
    );
    let table = crate::proc::table(std::path::Path::new("/proc")).unwrap();
    let inner = table.iter().find(|process| process.parent == outer.pid).unwrap();
    let target = process_target(process_ref(Role::Shim, inner.pid), &sandbox);
    let command = command(Action::CleanupOrphans(CleanupOrphans), FaultType::LeakedShim, target);
    node.refuses(&command, TargetChanged).await;
    assert!(outer.state().is_some() && outer.resumed() == 0);
}

#[tokio::test]
async fn a_stopped_conmon_is_resumed_and_never_killed() {
    let (node, container) = (Node::new(), id());
    let conmon = node.stage.conmon(&container, "k8s_main_web-0_default_uid-web_0");
    let resume = resume(&conmon, &container);
    node.refuses(&resume, Recovered).await;
    refused(&reboot_for_process(&node, node.settings(), &resume).await, Recovered);
    conmon.stop();
    let kill = ActionCommand { action: KILL, operation_id: "kill".to_owned(), ..resume.clone() };
    node.refuses(&kill, Protected).await;
    assert_eq!((conmon.state(), conmon.resumed()), (Some('T'), 0));
    // A reboot ends the container too, with a new conmon after it.
    done(&reboot_for_process(&node, node.settings(), &resume).await);
    done(&node.execute(&ActionCommand { operation_id: "again".to_owned(), ..resume }).await);
    wait_until("the trap", || conmon.resumed() == 1);
    // Another container's, and one that is not CRI-O's.
    node.refuses(&super::resume(&conmon, &id()), TargetChanged).await;
    let podman = node.stage.conmon(&container, "agitated_bell").stopped();
    node.refuses(&super::resume(&podman, &container), TargetChanged).await;
    assert_eq!(node.runtime.writes(), [] as [String; 0]);
}
