//! Reboots: once for one boot, never for what has recovered, never past who holds it up.

use std::fs;

use super::restart::{CONTAINERD, Daemons, KUBELET, healthz};
use super::*;
use crate::bus::fake::{Login, Reboots, Restarts, Systemd, unit};
use nrh_core::action::{Action, Reboot};

/// As the stand-in remembers it: the login manager is asked without a person at hand.
const REBOOT: &str = "Reboot ";

fn reboot_for(fault_type: FaultType) -> ActionCommand {
    ActionCommand {
        boot_id: Some("boot".to_owned()),
        ..command(Action::Reboot(Reboot::default()), fault_type, Target::default())
    }
}

fn silent_runtime() -> Daemons {
    Daemons::of_runtime(unit("failed", "failed"))
}

/// Reboots for the process of this command. The boot is this machine's, and the login manager is a stand-in.
pub(super) async fn reboot_for_process(node: &Node, settings: AgentSettings, command: &ActionCommand) -> Outcome {
    let operation_id = id().split_off(48);
    let systemd = Systemd::start(&node.stage.path(&operation_id), &[], Restarts::Never);
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned();
    let command = ActionCommand { boot_id: Some(boot_id), operation_id, ..command.clone() };
    let command = ActionCommand { action: Action::Reboot(Reboot::default()), ..command };
    let outcome = Agent::new(AgentSettings { bus: Some(systemd.socket.clone()), ..settings }).execute(&command).await;
    assert_eq!(systemd.acts(), vec![REBOOT; usize::from(outcome.state == OutcomeState::Done)]);
    outcome
}

#[track_caller]
fn rebooted(daemons: &Daemons, times: usize) {
    assert_eq!(daemons.systemd.acts(), vec![REBOOT; times]);
}

#[tokio::test]
async fn a_node_is_told_once_and_by_its_next_boot_it_is_done() {
    let daemons = silent_runtime();
    let command = reboot_for(FaultType::RuntimeUnreachable);
    let first = daemons.execute(&command).await;
    done(&first);
    assert_eq!(first.message, "the login manager was asked to reboot the node");
    assert_eq!(daemons.execute(&command).await, first, "another collector, or the probe after a restart");
    // A new leader gives it anew, in its own term.
    assert_eq!(daemons.execute(&ActionCommand { epoch: 9, ..command.clone() }).await, first);
    rebooted(&daemons, 1);

    // The machine is back: of all that was kept in /run nothing is left, and the same command still stands in the API.
    fs::remove_dir_all(daemons.node.stage.path("state")).unwrap();
    fs::write(daemons.proc("sys/kernel/random/boot_id"), "boot-2\n").unwrap();
    for _ in 0..3 {
        let again = daemons.execute(&command).await;
        refused(&again, OutcomeReason::AlreadyRebooted);
        assert!(again.message.contains("names boot boot, the current boot is boot-2"), "{}", again.message);
    }
    rebooted(&daemons, 1);
}

#[tokio::test]
async fn who_has_died_right_after_the_call_does_not_call_again() {
    let daemons = silent_runtime();
    let command = reboot_for(FaultType::RuntimeUnreachable);
    let claims = super::super::claims::Claims::new(&daemons.node.stage.path("state"));
    claims.prepare().unwrap();
    assert!(claims.claim(&command, None).unwrap());
    daemons.left_alone(&daemons.execute(&command).await, OutcomeReason::AlreadyExecuted, "ended without a result");
}

#[tokio::test]
async fn without_the_boot_that_is_to_end_nothing_is_done() {
    let daemons = silent_runtime();
    let command = reboot_for(FaultType::RuntimeUnreachable);
    for boot_id in [None, Some(String::new()), Some("../boot".to_owned())] {
        let outcome = daemons.execute(&ActionCommand { boot_id, ..command.clone() }).await;
        daemons.left_alone(&outcome, OutcomeReason::CheckFailed, "must name the boot that is to end");
    }
    let outcome = daemons.execute(&ActionCommand { boot_id: Some("other".into()), ..command.clone() }).await;
    daemons.left_alone(&outcome, OutcomeReason::AlreadyRebooted, "the current boot is boot");
    fs::remove_file(daemons.proc("sys/kernel/random/boot_id")).unwrap();
    daemons.left_alone(&daemons.execute(&command).await, OutcomeReason::CheckFailed, "cannot read the boot id");
    let off = AgentSettings { allow_actions: false, ..daemons.settings() };
    daemons.left_alone(&Agent::new(off).execute(&command).await, OutcomeReason::ActionsDisabled, "are disabled");
}

/// Told in NVIDIA/NVSentinel #1387.
#[tokio::test]
async fn what_has_recovered_or_cannot_be_looked_at_is_not_rebooted_for() {
    let daemons = silent_runtime();
    daemons.node.runtime.set(|world| world.wrong.clear());
    let outcome = daemons.execute(&reboot_for(FaultType::RuntimeUnreachable)).await;
    daemons.left_alone(&outcome, OutcomeReason::Recovered, "answers a version call");
    for kind in FaultType::ALL {
        if kind.spec().remedy.new_boot.is_err() {
            let outcome = daemons.execute(&reboot_for(kind)).await;
            daemons.left_alone(&outcome, OutcomeReason::CheckFailed, "no second check");
        }
    }
    for kind in [FaultType::HungContainer, FaultType::NetworkPluginHung, FaultType::RuntimeClientHung] {
        daemons.left_alone(
            &daemons.execute(&reboot_for(kind)).await,
            OutcomeReason::CheckFailed,
            "no process is named",
        );
    }
    let daemons = Daemons::of_kubelet(unit("active", "running"));
    daemons.kubelet(healthz("200 OK").await, KUBELET);
    let outcome = daemons.execute(&reboot_for(FaultType::KubeletDown)).await;
    daemons.left_alone(&outcome, OutcomeReason::Recovered, "its health check is good");
}

#[tokio::test]
async fn a_socket_that_is_not_there_is_no_sign_unless_systemd_says_that_the_runtime_does_not_run() {
    let command = reboot_for(FaultType::RuntimeUnreachable);
    let missing = |seen| {
        let daemons = Daemons::of_runtime(seen);
        fs::remove_file(daemons.node.stage.path("run/containerd/containerd.sock")).unwrap();
        daemons
    };
    let daemons = missing(unit("active", "running"));
    daemons.left_alone(&daemons.execute(&command).await, OutcomeReason::CheckFailed, "no runtime socket");
    let mut settings = daemons.settings();
    // Nor is one at a place of which no unit is known.
    settings.endpoint.socket = "/x/none.sock".into();
    let outcome = Agent::new(settings).execute(&command).await;
    daemons.left_alone(&outcome, OutcomeReason::CheckFailed, "no runtime socket");
    let daemons = missing(unit("failed", "failed"));
    done(&daemons.execute(&command).await);
    rebooted(&daemons, 1);
}

#[tokio::test]
async fn a_daemon_that_somebody_has_stopped_is_no_reason_for_a_reboot() {
    let daemons = Daemons::of_kubelet(unit("inactive", "dead"));
    let outcome = daemons.execute(&reboot_for(FaultType::KubeletDown)).await;
    daemons.left_alone(&outcome, OutcomeReason::Protected, "kubelet.service was stopped");
    let daemons = Daemons::of_runtime(unit("inactive", "dead"));
    let outcome = daemons.execute(&reboot_for(FaultType::RuntimeUnreachable)).await;
    daemons.left_alone(&outcome, OutcomeReason::Protected, &format!("{CONTAINERD} was stopped"));
    let daemons = Daemons::of_kubelet(unit("active", "running"));
    let outcome = daemons.execute(&reboot_for(FaultType::KubeletDown)).await;
    daemons.left_alone(&outcome, OutcomeReason::CheckFailed, "but no process of it runs");
    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    done(&daemons.execute(&reboot_for(FaultType::KubeletDown)).await);
    rebooted(&daemons, 1);
}

#[tokio::test]
async fn the_login_manager_and_who_blocks_a_shutdown_have_their_say() {
    let command = || reboot_for(FaultType::RuntimeUnreachable);
    for (can, said) in
        [("no", "polkit or the machine"), ("na", "has no reboot"), ("challenge", "password"), ("", "expected")]
    {
        let daemons = silent_runtime();
        daemons.systemd.login(Login { can, ..Login::default() });
        daemons.left_alone(&daemons.execute(&command()).await, OutcomeReason::Protected, said);
    }
    let upgrade = |how| ["sleep:shutdown", "unattended-upgrades", "packages are written", how];
    // One that blocks only as long as nobody forces it is respected, too.
    for how in ["block", "block-weak"] {
        let daemons = silent_runtime();
        daemons.systemd.login(Login { locks: vec![upgrade("delay"), upgrade(how)], ..Login::default() });
        let outcome = daemons.execute(&command()).await;
        let said = "blocked by unattended-upgrades (process 77: packages are written)";
        daemons.left_alone(&outcome, OutcomeReason::Protected, said);
    }
    let daemons = silent_runtime();
    let locks = vec![["sleep", "x", "y", "block"], ["shutdown", "kubelet", "pods end", "delay"]];
    daemons.systemd.login(Login { locks, ..Login::default() });
    let outcome = daemons.execute(&command()).await;
    done(&outcome);
    assert!(outcome.message.ends_with("which waits for kubelet (process 77: pods end)"), "{}", outcome.message);
    // That the answer cannot be understood does not mean that nobody blocks it.
    let daemons = silent_runtime();
    daemons.systemd.login(Login { locks: vec![upgrade("block")], cut_short: true, ..Login::default() });
    daemons.left_alone(&daemons.execute(&command()).await, OutcomeReason::CheckFailed, "ListInhibitors");
}

#[tokio::test]
async fn what_was_asked_for_is_told_from_what_was_refused() {
    // That the login manager has gone before it answered is the bus's word, not its own.
    let gone = Reboots::Refuse("org.freedesktop.DBus.Error.NoReply");
    for reboots in [Reboots::Never, Reboots::Cut, gone] {
        let daemons = silent_runtime();
        daemons.systemd.login(Login { reboots, ..Login::default() });
        let command = reboot_for(FaultType::RuntimeUnreachable);
        let outcome = daemons.execute(&command).await;
        done(&outcome);
        assert!(outcome.message.ends_with("the boot id will show it"), "{}", outcome.message);
        assert_eq!(daemons.execute(&command).await, outcome);
        rebooted(&daemons, 1);
    }
    let daemons = silent_runtime();
    daemons
        .systemd
        .login(Login { reboots: Reboots::Refuse("org.freedesktop.DBus.Error.AccessDenied"), ..Login::default() });
    let outcome = daemons.execute(&reboot_for(FaultType::RuntimeUnreachable)).await;
    assert_eq!((outcome.state, outcome.reason), (OutcomeState::Failed, OutcomeReason::RequestFailed));
    assert!(outcome.message.contains("AccessDenied: because of a test"), "{}", outcome.message);
    let mut settings = silent_runtime().settings();
    settings.bus = Some(daemons.node.stage.path("no-bus"));
    refused(
        &Agent::new(settings).execute(&reboot_for(FaultType::RuntimeUnreachable)).await,
        OutcomeReason::CheckFailed,
    );
}
