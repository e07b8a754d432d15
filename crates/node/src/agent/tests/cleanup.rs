//! Removing exactly one leftover.

use super::*;
use crate::proc::fake::Running as Program;

/// A shim that serves nothing: stopped, a child of init, on no ready sandbox.
fn leaked(node: &Node, sandbox_id: &str) -> Running {
    let shim = node.stage.shim(sandbox_id).stopped();
    node.runtime.set(|world| {
        world.sandboxes = vec![sandbox(sandbox_id, false), sandbox(&id(), true)];
        world.containers = vec![container(&id(), sandbox_id, 2)];
    });
    shim
}

fn remove_shim(shim: &Running, sandbox_id: &str) -> ActionCommand {
    let target = process_target(shim.as_target(Role::Shim), sandbox_id);
    command(Action::CleanupOrphans(CleanupOrphans), FaultType::LeakedShim, target)
}

#[tokio::test]
async fn a_leaked_shim_is_ended_and_a_needed_one_is_not() {
    let (node, leaked_id, needed_id) = (Node::new(), id(), id());
    let shim = leaked(&node, &leaked_id);
    let needed = node.stage.shim(&needed_id).stopped();

    let containers = [(needed_id.clone(), id()), (id(), needed_id.clone())];
    for (of_container, of_sandbox) in &containers {
        for state in [0, 1, 3] {
            node.runtime.set(|world| world.containers = vec![container(of_container, of_sandbox, state)]);
            node.refuses(&remove_shim(&needed, &needed_id), Recovered).await;
        }
    }
    node.runtime.set(|world| {
        world.containers.clear();
        world.sandboxes.push(sandbox(&needed_id, true));
    });
    node.refuses(&remove_shim(&needed, &needed_id), Recovered).await;
    // Known as ready only to the second list.
    node.runtime.set(|world| {
        world.sandboxes_again = Some(world.sandboxes.clone());
        world.sandboxes.pop();
    });
    node.refuses(&remove_shim(&needed, &needed_id), Recovered).await;

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
    node.refuses_saying(&command(), Recovered, "s old").await;

    let old = || {
        let mut settings = node.settings();
        settings.thresholds.set_bound(&nrh_core::faults::leaked_shim::AGE, Duration::ZERO);
        Agent::new(settings)
    };
    for (says, reason) in
        [(task(2), Recovered), (silent_shim(), CheckFailed), (task(0), CheckFailed), (Say::Never, CheckFailed)]
    {
        node.task_says(&sandbox_id, says);
        refused(&old().execute(&command()).await, reason);
    }
    let by_hand = node.stage.shim("redis");
    refused(&old().execute(&remove_shim(&by_hand, "redis")).await, TargetChanged);
    assert!(by_hand.state().is_some() && shim.state().is_some());

    node.task_says(&sandbox_id, no_task());
    done(&old().execute(&command()).await);
    assert_eq!(shim.state(), None);
}

#[tokio::test]
async fn a_shim_with_a_parent_or_living_children_is_not_leaked() {
    let (node, with_parent) = (Node::new(), id());
    let _ = leaked(&node, &id());
    let name = format!("{with_parent}/containerd-shim-runc-v2");
    let child = node.stage.child(&name, &["-namespace", "k8s.io", "-id", &with_parent]).stopped();
    node.refuses_saying(&remove_shim(&child, &with_parent), Recovered, "child of").await;

    let with_child = id();
    let script = r#""$0" -c "read -r x < \"$1\"" & while :; do wait; done"#;
    let mut parent = std::process::Command::new(node.stage.program("parent/containerd-shim-runc-v2"));
    parent.arg("-c").arg(script).arg("/bin/sh").arg(node.stage.path("gate"));
    let mut parent = Program::start(parent.args(["-namespace", "k8s.io", "-id", &with_child]));
    let pid = parent.pid();
    let table = || crate::proc::table(std::path::Path::new("/proc")).unwrap();
    wait_until("a child", || table().iter().any(|process| process.parent == pid));
    let target = process_target(process_ref(Role::Shim, pid), &with_child);
    let command = command(Action::CleanupOrphans(CleanupOrphans), FaultType::LeakedShim, target);
    node.refuses_saying(&command, Recovered, "live below").await;
    assert_eq!(parent.0.try_wait().unwrap(), None);
}

#[tokio::test]
async fn without_both_lists_nothing_is_removed() {
    let (node, sandbox_id) = (Node::new(), id());
    let shim = leaked(&node, &sandbox_id);
    let orphan = orphan_of(&node, 1);
    for method in ["ListPodSandbox", "ListContainers"] {
        for say in [fails(), Say::Never] {
            node.runtime.say(method, say);
            let start = std::time::Instant::now();
            node.refuses(&remove_shim(&shim, &sandbox_id), CheckFailed).await;
            node.refuses(&remove(&orphan), CheckFailed).await;
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        }
        node.runtime.unsay(method);
    }
    node.runtime.say("ListContainers", Say::Never);
    let mut settings = node.settings();
    settings.bounds.check = Duration::from_millis(50);
    settings.bounds.call = Duration::from_hours(1);
    settings.refuses(&remove_shim(&shim, &sandbox_id), CheckFailed).await;
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

fn node_with_orphan(state: i32) -> (Node, Orphan) {
    let node = Node::new();
    let orphan = orphan_of(&node, state);
    (node, orphan)
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
    let (node, orphan) = node_with_orphan(1);
    done(&node.execute(&remove(&orphan)).await);
    let expected = [format!("StopContainer:{}", orphan.container), format!("RemoveContainer:{}", orphan.container)];
    assert_eq!(node.runtime.writes(), expected);
}

#[tokio::test]
async fn an_orphan_that_has_ended_is_removed_where_no_kubelet_works() {
    let (node, orphan) = node_with_orphan(2);
    done(&node.execute(&remove(&orphan)).await);
    assert_eq!(node.runtime.writes(), [format!("RemoveContainer:{}", orphan.container)]);
}

#[tokio::test]
async fn a_removal_that_the_runtime_does_not_confirm_has_failed_within_its_bound() {
    let node = Node::new();
    let mut settings = node.settings();
    settings.bounds.verify = Duration::from_secs(1);
    for (say, last, most) in [(fails(), "fails on purpose", usize::MAX), (Say::Never, "", 2)] {
        let orphan = orphan_of(&node, 2);
        node.runtime.say("ContainerStatus", say);
        let outcome = settings.execute(&remove(&orphan)).await;
        failed(&outcome, "the runtime does not say within 1 s that it is gone");
        assert!(outcome.message.contains(last), "{}", outcome.message);
        assert_eq!(node.runtime.writes().last(), Some(&format!("RemoveContainer:{}", orphan.container)));
        let queries = node.runtime.calls(&format!("ContainerStatus:{}", orphan.container));
        assert!((1..=most).contains(&queries), "each query has the whole bound: {queries}");
    }
}

#[tokio::test]
async fn a_container_whose_sandbox_is_there_is_no_orphan() {
    let (node, orphan) = node_with_orphan(1);
    node.runtime.set(|world| world.sandboxes.push(sandbox(&orphan.sandbox, false)));
    node.refuses(&remove(&orphan), Recovered).await;

    let orphan = orphan_of(&node, 1);
    node.runtime.set(|world| world.sandboxes_again = Some(vec![sandbox(&orphan.sandbox, true)]));
    node.refuses(&remove(&orphan), Recovered).await;

    let orphan = orphan_of(&node, 1);
    node.runtime.set(|world| world.sandboxes_again = None);
    // Known when asked for, though in no list.
    node.runtime.say(&format!("PodSandboxStatus:{}", orphan.sandbox), fake::sandbox_status(0));
    node.refuses(&remove(&orphan), Recovered).await;
    assert_eq!(node.runtime.writes(), [] as [String; 0]);
}

#[tokio::test]
async fn a_direct_question_without_an_answer_is_no_proof() {
    let (node, orphan) = node_with_orphan(1);
    for say in [fails(), Say::Never] {
        node.runtime.say("PodSandboxStatus", say);
        node.refuses(&remove(&orphan), CheckFailed).await;
    }
    assert_eq!(node.runtime.writes(), [] as [String; 0]);
}

#[tokio::test]
async fn only_the_container_that_was_commanded_is_removed() {
    let (node, orphan) = node_with_orphan(1);
    let unknown = Orphan { container: id(), sandbox: orphan.sandbox.clone() };
    node.refuses(&remove(&unknown), TargetGone).await;
    let elsewhere = Orphan { container: orphan.container.clone(), sandbox: id() };
    node.refuses(&remove(&elsewhere), TargetChanged).await;
    let mut other_pod = remove(&orphan);
    other_pod.target.pod = Some(pod("uid-2"));
    node.refuses(&other_pod, TargetChanged).await;
    let short = Orphan { container: orphan.container[..12].to_owned(), sandbox: orphan.sandbox.clone() };
    node.refuses(&remove(&short), CheckFailed).await;
    node.runtime.set(|world| world.containers[1].labels.clear());
    node.refuses(&remove(&orphan), TargetChanged).await;
    assert_eq!(node.runtime.writes(), [] as [String; 0]);
}

#[tokio::test]
async fn many_at_once_are_a_list_with_a_hole() {
    let (node, orphan) = node_with_orphan(1);
    node.runtime.set(|world| world.containers.extend((0..10).map(|_| container(&id(), &id(), 1))));
    node.refuses(&remove(&orphan), CheckFailed).await;
    assert_eq!(node.runtime.writes(), [] as [String; 0]);
}

#[tokio::test]
async fn a_kubelet_at_work_keeps_what_it_keeps_and_is_not_disturbed() {
    let node = Node::new();
    let _kubelet = node.stage.child("kubelet", &[]);
    let mut settings = node.settings();
    settings.thresholds.set_bound(&nrh_core::faults::kubelet::START_AGE, Duration::ZERO);

    let ended = orphan_of(&node, 2);
    settings.refuses(&remove(&ended), Protected).await;

    let now = i64::try_from(Timestamp::now().as_nanosecond()).unwrap();
    let orphan = orphan_of(&node, 1);
    node.runtime.set(|world| world.containers[0].created_at = now - 60_000_000_000);
    settings.refuses(&remove(&orphan), KubeletBusy).await;
    let orphan = orphan_of(&node, 1);
    node.runtime.set(|world| world.sandboxes[0].created_at = now);
    settings.refuses(&remove(&orphan), KubeletBusy).await;
    assert_eq!(node.runtime.writes(), [] as [String; 0]);

    let orphan = orphan_of(&node, 1);
    node.runtime.set(|world| world.sandboxes[0].created_at = now - 180_000_000_000);
    done(&settings.execute(&remove(&orphan)).await);
}

#[tokio::test]
async fn a_container_that_cannot_be_stopped_is_not_removed() {
    let (node, orphan) = node_with_orphan(1);
    for say in [fails(), Say::Never] {
        node.runtime.say("StopContainer", say);
        let command = remove(&orphan);
        let outcome = node.execute(&command).await;
        failed(&outcome, "");
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
    node.refuses(&remove_shim(&needed, &lives), Recovered).await;
    node.refuses(&remove_shim(&running, &at_end), Recovered).await;
    node.refuses(&remove_shim(&podman, &ended), TargetChanged).await;
    done(&node.execute(&remove_shim(&left, &ended)).await);
    assert_eq!((left.state(), needed.state(), podman.state()), (None, Some('T'), Some('T')));
    assert_eq!(node.runtime.writes(), [] as [String; 0]);
}
