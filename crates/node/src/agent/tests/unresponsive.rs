//! Ending a shim for which the runtime may wait at its start.

use super::restart::CONTAINERD;
use super::*;
use crate::bus::fake::{Restarts, Systemd, unit};
use crate::bus::units::UnitSeen;

fn end(shim: &Running, sandbox_id: &str) -> ActionCommand {
    let target = process_target(shim.as_target(Role::Shim), sandbox_id);
    command(Action::CleanupOrphans(CleanupOrphans), FaultType::UnresponsiveShim, target)
}

#[tokio::test]
async fn an_unresponsive_shim_is_ended_while_the_runtime_is_silent_and_no_other() {
    let (node, sandbox) = (Node::new(), id());
    let (shim, neighbour) = (node.stage.shim(&sandbox), node.stage.shim(&id()));
    shim.stop();
    neighbour.stop();
    // The runtime answers: nothing waits.
    node.refuses(&end(&shim, &sandbox), Recovered).await;
    // What it says is no silence.
    node.runtime.say("Version", fails());
    node.refuses(&end(&shim, &sandbox), CheckFailed).await;
    assert_eq!(shim.state(), Some('T'));
    node.runtime.say("Version", Say::Never);
    done(&node.execute(&end(&shim, &sandbox)).await);
    assert_eq!((shim.state(), neighbour.state()), (None, Some('T')));

    // Nobody listens any more.
    let mut settings = node.settings();
    settings.endpoint.socket = node.stage.path("deserted.sock");
    drop(std::os::unix::net::UnixListener::bind(&settings.endpoint.socket).unwrap());
    let again = node.stage.shim(&sandbox).stopped();
    done(&settings.execute(&end(&again, &sandbox)).await);
    assert_eq!((again.state(), neighbour.state()), (None, Some('T')));
}

#[tokio::test]
async fn a_missing_socket_is_silence_only_where_systemd_says_that_the_runtime_does_not_run() {
    let (node, sandbox, shim) = stopped();
    let mut settings = node.settings();
    settings.endpoint.socket = node.stage.path("run/containerd/containerd.sock");
    for (bus, seen, is_silent) in [
        ("runs", unit("active", "running"), false),
        ("unknown", UnitSeen { load: "not-found".to_owned(), ..unit("inactive", "dead") }, false),
        ("starts", unit("activating", "start"), true),
    ] {
        let systemd = Systemd::start(&node.stage.path(bus), &[(CONTAINERD, seen)], Restarts::Never);
        settings.bus = Some(systemd.socket.clone());
        let outcome = settings.execute(&end(&shim, &sandbox)).await;
        came_to(&outcome, if is_silent { Executed } else { CheckFailed });
        assert_eq!(shim.state().is_none(), is_silent, "{bus}");
    }
}

#[tokio::test]
async fn a_shim_that_runs_or_has_something_alive_below_it_is_left_alone() {
    let node = Node::new();
    node.runtime.say("Version", Say::Never);
    let sandbox = id();
    let runs = node.stage.shim(&sandbox);
    node.refuses(&end(&runs, &sandbox), Recovered).await;
    // Below this one is a client at work, and its parent is not process 1.
    let sandbox = id();
    let (client, shim) = node.stage.client("k8s.io", &sandbox, "create", &id());
    shim.stop();
    node.refuses(&end(&shim, &sandbox), Recovered).await;
    // That of a VM may hold it, with no child at all.
    let sandbox = id();
    let name = format!("{}/containerd-shim-kata-v2", id());
    let vm = node.stage.orphan(&name, &["-namespace", "k8s.io", "-id", &sandbox]).stopped();
    node.refuses(&end(&vm, &sandbox), Protected).await;
    let sandbox = id();
    let docker = node.stage.shim_of("moby", &sandbox).stopped();
    let refusal = node.execute(&end(&docker, &sandbox)).await;
    assert_eq!(refusal.state, OutcomeState::Refused, "{}", refusal.message);
    assert!([&runs, &client, &shim, &vm, &docker].into_iter().all(|process| process.state().is_some()));
}
