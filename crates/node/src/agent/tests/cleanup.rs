//! Removing exactly one leftover.

use super::runtime::{Says, Wrong, container, sandbox};
use super::*;
use nrh_core::action::{Action, CleanupOrphans};

/// A shim that serves nothing: stopped, a child of init, on no ready sandbox. Skips where init is not the
/// one who adopts.
fn leaked(node: &Node, sandbox_id: &str) -> Running {
    let shim = node.stage.shim(sandbox_id);
    shim.stop();
    node.runtime.set(|world| {
        world.sandboxes = vec![sandbox(sandbox_id, false), sandbox(&id(), true)];
        world.containers = vec![container(&id(), sandbox_id, 2)];
    });
    shim
}

fn remove_shim(shim: &Running, sandbox_id: &str) -> ActionCommand {
    command(
        Action::CleanupOrphans(CleanupOrphans),
        FaultType::LeakedShim,
        process_target(shim.as_target(Role::Shim), sandbox_id),
    )
}

#[tokio::test]
async fn a_leaked_shim_is_ended_and_a_needed_one_is_not() {
    let (node, leaked_id, needed_id) = (Node::new(), id(), id());
    let shim = leaked(&node, &leaked_id);
    let needed = node.stage.shim(&needed_id);
    needed.stop();

    let containers = [(needed_id.clone(), id()), (id(), needed_id.clone())];
    for (of_container, of_sandbox) in &containers {
        for state in [0, 1, 3] {
            node.runtime.set(|world| world.containers = vec![container(of_container, of_sandbox, state)]);
            refused(&node.execute(&remove_shim(&needed, &needed_id)).await, OutcomeReason::Recovered);
        }
    }
    node.runtime.set(|world| {
        world.containers.clear();
        world.sandboxes.push(sandbox(&needed_id, true));
    });
    refused(&node.execute(&remove_shim(&needed, &needed_id)).await, OutcomeReason::Recovered);
    // Known as ready only to the second list.
    node.runtime.set(|world| {
        world.calls.clear();
        world.sandboxes_again = Some(world.sandboxes.clone());
        world.sandboxes.pop();
    });
    refused(&node.execute(&remove_shim(&needed, &needed_id)).await, OutcomeReason::Recovered);

    done(&node.execute(&remove_shim(&shim, &leaked_id)).await);
    assert_eq!(shim.state(), None);
    assert_eq!((needed.state(), needed.resumed()), (Some('T'), 0));
    assert_eq!(node.runtime.writes(), [] as [String; 0]);
}

#[tokio::test]
async fn a_shim_that_runs_is_ended_only_when_it_is_old_and_containerd_does_not_know_its_task() {
    let (node, sandbox_id) = (Node::new(), id());
    let shim = node.stage.shim(&sandbox_id);
    node.runtime.set(|world| world.sandboxes = vec![sandbox(&id(), true)]);
    let command = || remove_shim(&shim, &sandbox_id);
    let outcome = node.execute(&command()).await;
    refused(&outcome, OutcomeReason::Recovered);
    assert!(outcome.message.contains("s old"), "{}", outcome.message);

    let old = || {
        let mut settings = node.settings();
        settings.thresholds.set_bound(&nrh_core::faults::leaked_shim::AGE, Duration::ZERO);
        Agent::new(settings)
    };
    for (says, reason) in [
        (Says::Running, OutcomeReason::Recovered),
        (Says::Unknown, OutcomeReason::CheckFailed),
        (Says::UnknownAtOnce, OutcomeReason::CheckFailed),
        (Says::Nothing, OutcomeReason::CheckFailed),
    ] {
        node.runtime.set(|world| world.tasks.insert(sandbox_id.clone(), says));
        refused(&old().execute(&command()).await, reason);
    }
    let by_hand = node.stage.shim("redis");
    refused(&old().execute(&remove_shim(&by_hand, "redis")).await, OutcomeReason::TargetChanged);
    assert!(by_hand.state().is_some() && shim.state().is_some());

    node.runtime.set(|world| world.tasks.clear());
    done(&old().execute(&command()).await);
    assert_eq!(shim.state(), None);
}

#[tokio::test]
async fn a_shim_with_a_parent_or_living_children_is_not_leaked() {
    let (node, with_parent) = (Node::new(), id());
    let _ = leaked(&node, &id());
    let name = format!("{with_parent}/containerd-shim-runc-v2");
    let child = node.stage.child(&name, &["-namespace", "k8s.io", "-id", &with_parent]);
    child.stop();
    let outcome = node.execute(&remove_shim(&child, &with_parent)).await;
    refused(&outcome, OutcomeReason::Recovered);
    assert!(outcome.message.contains("child of"), "{}", outcome.message);

    let with_child = id();
    let script = r#""$0" -c "read -r x < \"$1\"" & while :; do wait; done"#;
    let mut parent = std::process::Command::new(node.stage.program("parent/containerd-shim-runc-v2"));
    parent.arg("-c").arg(script).arg("/bin/sh").arg(node.stage.path("gate"));
    let mut parent = parent.args(["-namespace", "k8s.io", "-id", &with_child]).spawn().unwrap();
    let pid = i32::try_from(parent.id()).unwrap();
    let table = || crate::proc::table(std::path::Path::new("/proc")).unwrap();
    wait_until("a child", || table().iter().any(|process| process.parent == pid));
    let found = table();
    let found = crate::proc::find(&found, pid).unwrap();
    let process = ProcessRef {
        role: Role::Shim,
        pid,
        start_ticks: found.start_ticks,
        state: "S".to_owned(),
        wchan: None,
        command: String::new(),
    };
    let command =
        command(Action::CleanupOrphans(CleanupOrphans), FaultType::LeakedShim, process_target(process, &with_child));
    let outcome = node.execute(&command).await;
    refused(&outcome, OutcomeReason::Recovered);
    assert!(outcome.message.contains("live below"), "{}", outcome.message);
    assert_eq!(parent.try_wait().unwrap(), None);
    for process in table().iter().filter(|process| process.parent == pid) {
        let pid = rustix::process::Pid::from_raw(process.pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
}

#[tokio::test]
async fn without_both_lists_nothing_is_removed() {
    let (node, sandbox_id) = (Node::new(), id());
    let shim = leaked(&node, &sandbox_id);
    let orphan = orphan_of(&node, 1);
    for method in ["ListPodSandbox", "ListContainers"] {
        for wrong in [Wrong::Fails, Wrong::Hangs] {
            node.runtime.set(|world| world.wrong = [(method.to_owned(), wrong)].into());
            let start = std::time::Instant::now();
            refused(&node.execute(&remove_shim(&shim, &sandbox_id)).await, OutcomeReason::CheckFailed);
            refused(&node.execute(&remove(&orphan)).await, OutcomeReason::CheckFailed);
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        }
    }
    let mut settings = node.settings();
    settings.bounds.check = Duration::from_millis(50);
    settings.bounds.call = Duration::from_hours(1);
    refused(&Agent::new(settings).execute(&remove_shim(&shim, &sandbox_id)).await, OutcomeReason::CheckFailed);
    assert_eq!((shim.state(), node.runtime.writes()), (Some('T'), vec![]));
}

struct Orphan {
    container: String,
    sandbox: String,
}

/// A container whose sandbox is gone, beside a healthy pod of the same name.
fn orphan_of(node: &Node, state: i32) -> Orphan {
    let orphan = Orphan { container: id(), sandbox: id() };
    let healthy = id();
    node.runtime.set(|world| {
        world.sandboxes = vec![sandbox(&healthy, true)];
        world.containers = vec![container(&id(), &healthy, 1), container(&orphan.container, &orphan.sandbox, state)];
    });
    orphan
}

fn remove(orphan: &Orphan) -> ActionCommand {
    let target = Target {
        container_id: Some(orphan.container.clone()),
        sandbox_id: Some(orphan.sandbox.clone()),
        pod: Some(pod("uid-1")),
        ..Target::default()
    };
    command(Action::CleanupOrphans(CleanupOrphans), FaultType::OrphanContainer, target)
}

#[tokio::test]
async fn exactly_the_orphan_is_stopped_and_removed() {
    let node = Node::new();
    let orphan = orphan_of(&node, 1);
    done(&node.execute(&remove(&orphan)).await);
    let expected = [format!("StopContainer {}", orphan.container), format!("RemoveContainer {}", orphan.container)];
    assert_eq!(node.runtime.writes(), expected);
}

#[tokio::test]
async fn an_orphan_that_has_ended_is_removed_where_no_kubelet_works() {
    let node = Node::new();
    let orphan = orphan_of(&node, 2);
    done(&node.execute(&remove(&orphan)).await);
    assert_eq!(node.runtime.writes(), [format!("RemoveContainer {}", orphan.container)]);
}

#[tokio::test]
async fn a_container_whose_sandbox_is_there_is_no_orphan() {
    let node = Node::new();
    let orphan = orphan_of(&node, 1);
    node.runtime.set(|world| world.sandboxes.push(sandbox(&orphan.sandbox, false)));
    refused(&node.execute(&remove(&orphan)).await, OutcomeReason::Recovered);

    let orphan = orphan_of(&node, 1);
    node.runtime.set(|world| {
        world.calls.clear();
        world.sandboxes_again = Some(vec![sandbox(&orphan.sandbox, true)]);
    });
    refused(&node.execute(&remove(&orphan)).await, OutcomeReason::Recovered);

    let orphan = orphan_of(&node, 1);
    node.runtime.set(|world| {
        world.sandboxes_again = None;
        world.hidden = vec![orphan.sandbox.clone()];
    });
    refused(&node.execute(&remove(&orphan)).await, OutcomeReason::Recovered);
    assert_eq!(node.runtime.writes(), [] as [String; 0]);
}

#[tokio::test]
async fn a_direct_question_without_an_answer_is_no_proof() {
    let node = Node::new();
    let orphan = orphan_of(&node, 1);
    for wrong in [Wrong::Fails, Wrong::Hangs] {
        node.runtime.set(|world| world.wrong = [("PodSandboxStatus".to_owned(), wrong)].into());
        refused(&node.execute(&remove(&orphan)).await, OutcomeReason::CheckFailed);
    }
    assert_eq!(node.runtime.writes(), [] as [String; 0]);
}

#[tokio::test]
async fn only_the_container_that_was_commanded_is_removed() {
    let node = Node::new();
    let orphan = orphan_of(&node, 1);
    let unknown = Orphan { container: id(), sandbox: orphan.sandbox.clone() };
    refused(&node.execute(&remove(&unknown)).await, OutcomeReason::TargetGone);
    let elsewhere = Orphan { container: orphan.container.clone(), sandbox: id() };
    refused(&node.execute(&remove(&elsewhere)).await, OutcomeReason::TargetChanged);
    let mut other_pod = remove(&orphan);
    other_pod.target.pod = Some(pod("uid-2"));
    refused(&node.execute(&other_pod).await, OutcomeReason::TargetChanged);
    let short = Orphan { container: orphan.container[..12].to_owned(), sandbox: orphan.sandbox.clone() };
    refused(&node.execute(&remove(&short)).await, OutcomeReason::CheckFailed);
    node.runtime.set(|world| world.containers[1].labels.clear());
    refused(&node.execute(&remove(&orphan)).await, OutcomeReason::TargetChanged);
    assert_eq!(node.runtime.writes(), [] as [String; 0]);
}

#[tokio::test]
async fn many_at_once_are_a_list_with_a_hole() {
    let node = Node::new();
    let orphan = orphan_of(&node, 1);
    node.runtime.set(|world| world.containers.extend((0..10).map(|_| container(&id(), &id(), 1))));
    refused(&node.execute(&remove(&orphan)).await, OutcomeReason::CheckFailed);
    assert_eq!(node.runtime.writes(), [] as [String; 0]);
}

#[tokio::test]
async fn a_kubelet_at_work_keeps_what_it_keeps_and_is_not_disturbed() {
    let node = Node::new();
    let _kubelet = node.stage.child("kubelet", &[]);
    let mut settings = node.settings();
    settings.thresholds.set_bound(&nrh_core::faults::kubelet::START_AGE, Duration::ZERO);
    let agent = Agent::new(settings);

    let ended = orphan_of(&node, 2);
    refused(&agent.execute(&remove(&ended)).await, OutcomeReason::Protected);

    let now = i64::try_from(Timestamp::now().as_nanosecond()).unwrap();
    let orphan = orphan_of(&node, 1);
    node.runtime.set(|world| world.containers[0].created_at = now - 60_000_000_000);
    refused(&agent.execute(&remove(&orphan)).await, OutcomeReason::KubeletBusy);
    let orphan = orphan_of(&node, 1);
    node.runtime.set(|world| world.sandboxes[0].created_at = now);
    refused(&agent.execute(&remove(&orphan)).await, OutcomeReason::KubeletBusy);
    assert_eq!(node.runtime.writes(), [] as [String; 0]);

    let orphan = orphan_of(&node, 1);
    node.runtime.set(|world| world.sandboxes[0].created_at = now - 180_000_000_000);
    done(&agent.execute(&remove(&orphan)).await);
}

#[tokio::test]
async fn a_container_that_cannot_be_stopped_is_not_removed() {
    let node = Node::new();
    let orphan = orphan_of(&node, 1);
    for wrong in [Wrong::Fails, Wrong::Hangs] {
        node.runtime.set(|world| world.wrong = [("StopContainer".to_owned(), wrong)].into());
        let command = remove(&orphan);
        let outcome = node.execute(&command).await;
        assert_eq!((outcome.state, outcome.reason), (OutcomeState::Failed, OutcomeReason::RequestFailed));
        assert_eq!(node.execute(&command).await, outcome, "a failed operation is not tried again");
    }
    assert!(!node.runtime.writes().iter().any(|call| call.starts_with("Remove")));
}

#[tokio::test]
async fn a_stopped_conmon_whose_container_has_ended_is_ended_and_no_other() {
    let (node, ended, lives) = (Node::new(), id(), id());
    let conmon = |id: &str| node.stage.conmon(id, "k8s_main_web-0_default_uid-web_0");
    let at_end = id();
    let (left, needed, running) = (conmon(&ended), conmon(&lives), conmon(&at_end));
    let podman = node.stage.conmon(&ended, "agitated_bell");
    [&left, &needed, &podman].into_iter().for_each(Running::stop);
    let sandbox_id = id();
    node.runtime.set(|world| {
        world.sandboxes = vec![sandbox(&sandbox_id, true)];
        world.containers = vec![container(&ended, &sandbox_id, 2), container(&lives, &sandbox_id, 1)];
    });
    refused(&node.execute(&remove_shim(&needed, &lives)).await, OutcomeReason::Recovered);
    refused(&node.execute(&remove_shim(&running, &at_end)).await, OutcomeReason::Recovered);
    refused(&node.execute(&remove_shim(&podman, &ended)).await, OutcomeReason::TargetChanged);
    done(&node.execute(&remove_shim(&left, &ended)).await);
    assert_eq!((left.state(), needed.state(), podman.state()), (None, Some('T'), Some('T')));
    assert_eq!(node.runtime.writes(), [] as [String; 0]);
}
