//! Reboots: once for one boot, never for what has recovered, never past who holds it up.

use std::fs;
use std::os::unix::fs::symlink;

use super::restart::{CONTAINERD, Daemons, KUBELET, healthz};
use super::*;
use crate::bus::fake::{Login, Reboots, Restarts, Systemd, unit};
use crate::bus::units::UnitSeen;
use nrh_core::action::Reboot;

/// As the stand-in remembers it: the login manager is asked without a person at hand.
const REBOOT: &str = "Reboot ";

fn reboot_for(fault_type: FaultType) -> ActionCommand {
    ActionCommand {
        boot_id: Some("boot".to_owned()),
        ..command(Action::Reboot(Reboot::default()), fault_type, Target::default())
    }
}

/// The same for a runtime that is silent.
fn reboot() -> ActionCommand {
    reboot_for(FaultType::RuntimeUnreachable)
}

fn silent_runtime() -> Daemons {
    Daemons::of_runtime(unit("failed", "failed"))
}

/// Reboots for the process of this command. The boot is this machine's, and the login manager is a stand-in.
pub(super) async fn reboot_for_process(node: &Node, settings: AgentSettings, command: &ActionCommand) -> Outcome {
    let operation_id = id().split_off(48);
    let units = [("docker.service", unit("active", "running"))];
    let systemd = Systemd::start(&node.stage.path(&operation_id), &units, Restarts::Never);
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
    let command = reboot();
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
        daemons.refuses_saying(&command, AlreadyRebooted, "names boot boot, the current boot is boot-2").await;
    }
    rebooted(&daemons, 1);
}

#[tokio::test]
async fn who_has_died_right_after_the_call_does_not_call_again() {
    let daemons = silent_runtime();
    let command = reboot();
    assert!(daemons.node.claims().claim(&command, None).unwrap());
    daemons.leaves_alone(&command, AlreadyExecuted, "ended without a result").await;
}

#[tokio::test]
async fn without_the_boot_that_is_to_end_nothing_is_done() {
    let daemons = silent_runtime();
    let command = reboot();
    for boot_id in [None, Some(String::new()), Some("../boot".to_owned())] {
        let unnamed = ActionCommand { boot_id, ..command.clone() };
        daemons.leaves_alone(&unnamed, CheckFailed, "must name the boot that is to end").await;
    }
    let other = ActionCommand { boot_id: Some("other".into()), ..command.clone() };
    daemons.leaves_alone(&other, AlreadyRebooted, "the current boot is boot").await;
    fs::remove_file(daemons.proc("sys/kernel/random/boot_id")).unwrap();
    daemons.leaves_alone(&command, CheckFailed, "cannot read the boot id").await;
    let off = AgentSettings { allow_actions: false, ..daemons.settings() };
    daemons.left_alone(&off.execute(&command).await, ActionsDisabled, "are disabled");
}

/// Told in NVIDIA/NVSentinel #1387.
#[tokio::test]
async fn what_has_recovered_or_cannot_be_looked_at_is_not_rebooted_for() {
    let daemons = silent_runtime();
    daemons.node.runtime.unsay("Version");
    daemons.leaves_alone(&reboot(), Recovered, "answers a version call").await;
    for kind in FaultType::ALL {
        if kind.spec().remedy.new_boot.is_err() {
            daemons.leaves_alone(&reboot_for(kind), CheckFailed, "no preflight").await;
        }
    }
    for kind in [FaultType::HungContainer, FaultType::NetworkPluginHung, FaultType::RuntimeClientHung] {
        daemons.leaves_alone(&reboot_for(kind), CheckFailed, "no process is named").await;
    }
    let daemons = Daemons::of_kubelet(unit("active", "running"));
    daemons.kubelet(healthz("200 OK").await, KUBELET);
    daemons.leaves_alone(&reboot_for(FaultType::KubeletDown), Recovered, "its health check is good").await;
}

#[tokio::test]
async fn a_socket_that_is_not_there_is_no_sign_unless_systemd_says_that_the_runtime_does_not_run() {
    let command = reboot();
    let missing = |seen| {
        let daemons = Daemons::of_runtime(seen);
        fs::remove_file(daemons.node.stage.path("run/containerd/containerd.sock")).unwrap();
        daemons
    };
    let daemons = missing(unit("active", "running"));
    daemons.leaves_alone(&command, CheckFailed, "no runtime socket").await;
    let mut settings = daemons.settings();
    // Nor is one at a place of which no unit is known.
    settings.endpoint.socket = "/x/none.sock".into();
    daemons.left_alone(&settings.execute(&command).await, CheckFailed, "no runtime socket");
    let daemons = missing(unit("failed", "failed"));
    done(&daemons.execute(&command).await);
    rebooted(&daemons, 1);
}

#[tokio::test]
async fn a_daemon_that_somebody_has_stopped_is_no_reason_for_a_reboot() {
    let daemons = Daemons::of_kubelet(unit("inactive", "dead"));
    daemons.leaves_alone(&reboot_for(FaultType::KubeletDown), Protected, "kubelet.service was stopped").await;
    let daemons = Daemons::of_runtime(unit("inactive", "dead"));
    daemons.leaves_alone(&reboot(), Protected, &format!("{CONTAINERD} was stopped")).await;
    let daemons = Daemons::of_kubelet(unit("active", "running"));
    daemons.leaves_alone(&reboot_for(FaultType::KubeletDown), CheckFailed, "but no process of it runs").await;
    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    done(&daemons.execute(&reboot_for(FaultType::KubeletDown)).await);
    rebooted(&daemons, 1);
}

#[tokio::test]
async fn a_program_that_somebody_has_stopped_is_no_reason_for_a_reboot() {
    use FaultType::{KubeletDown, RuntimeUnreachable};
    const K3S: &str = "k3s/containerd/containerd.sock";
    const MICROK8S: &str = "microk8s/common/run/containerd.sock";
    const KUBELITE: &str = "snap.microk8s.daemon-kubelite.service";
    const SNAP: &str = "snap.microk8s.daemon-containerd.service";
    let [runs, stopped, failed] =
        [("active", "running"), ("inactive", "dead"), ("failed", "failed")].map(|(active, sub)| unit(active, sub));
    let masked = UnitSeen { load: "masked".to_owned(), ..stopped.clone() };
    let docker = |docker: &UnitSeen, shim: &UnitSeen| {
        vec![("docker.service", docker.clone()), ("cri-docker.service", shim.clone())]
    };
    let unknown = UnitSeen { load: "not-found".to_owned(), ..stopped.clone() };
    for (fault_type, socket, units, refusal) in [
        (
            RuntimeUnreachable,
            "containerd/containerd.sock",
            vec![(CONTAINERD, unknown)],
            Some((CheckFailed, "not known")),
        ),
        (KubeletDown, K3S, vec![("k3s.service", stopped.clone())], Some((Protected, "k3s.service was stopped"))),
        (KubeletDown, K3S, vec![("rke2-agent.service", masked)], Some((Protected, "rke2-agent.service is masked"))),
        (KubeletDown, K3S, vec![("k3s.service", failed.clone())], None),
        (KubeletDown, K3S, vec![("k3s.service", stopped.clone()), ("k3s-agent.service", runs.clone())], None),
        (KubeletDown, K3S, vec![(KUBELET, stopped.clone())], Some((CheckFailed, "loads none of k3s.service, "))),
        (KubeletDown, "k0s/x.sock", vec![("k0sworker.service", stopped.clone())], Some((Protected, "was stopped"))),
        (KubeletDown, MICROK8S, vec![(KUBELITE, stopped.clone()), (SNAP, runs.clone())], Some((Protected, KUBELITE))),
        (
            RuntimeUnreachable,
            MICROK8S,
            vec![(KUBELITE, runs.clone()), (SNAP, stopped.clone())],
            Some((Protected, SNAP)),
        ),
        (RuntimeUnreachable, "cri-dockerd.sock", docker(&stopped, &runs), Some((Protected, "docker.service"))),
        (RuntimeUnreachable, "cri-dockerd.sock", docker(&runs, &stopped), Some((Protected, "cri-docker.service"))),
        (RuntimeUnreachable, "cri-dockerd.sock", docker(&failed, &runs), None),
        (RuntimeUnreachable, "elsewhere.sock", vec![(CONTAINERD, stopped.clone())], Some((Protected, CONTAINERD))),
    ] {
        let daemons = Daemons::new(&units, Restarts::Never);
        daemons.node.runtime.say("Version", Say::Never);
        let mut settings = daemons.settings();
        settings.endpoint.socket = daemons.node.stage.path(socket);
        fs::create_dir_all(settings.endpoint.socket.parent().unwrap()).unwrap();
        symlink(daemons.node.runtime.socket(), &settings.endpoint.socket).unwrap();
        let outcome = settings.execute(&reboot_for(fault_type)).await;
        match refusal {
            Some((reason, said)) => daemons.left_alone(&outcome, reason, said),
            None => done(&outcome),
        }
    }
}

#[tokio::test]
async fn the_login_manager_and_who_blocks_a_shutdown_have_their_say() {
    for (can, said) in
        [("no", "polkit or the machine"), ("na", "has no reboot"), ("challenge", "password"), ("", "expected")]
    {
        let daemons = silent_runtime();
        daemons.systemd.login(Login { can, ..Login::default() });
        daemons.leaves_alone(&reboot(), Protected, said).await;
    }
    let upgrade = |how| ["sleep:shutdown", "unattended-upgrades", "packages are written", how];
    // One that blocks only as long as nobody forces it is respected, too.
    for how in ["block", "block-weak"] {
        let daemons = silent_runtime();
        daemons.systemd.login(Login { locks: vec![upgrade("delay"), upgrade(how)], ..Login::default() });
        let outcome = daemons.execute(&reboot()).await;
        let said = "blocked by unattended-upgrades (process 77: packages are written)";
        daemons.left_alone(&outcome, Protected, said);
    }
    let daemons = silent_runtime();
    let locks = vec![["sleep", "x", "y", "block"], ["shutdown", "kubelet", "pods end", "delay"]];
    daemons.systemd.login(Login { locks, ..Login::default() });
    let outcome = daemons.execute(&reboot()).await;
    done(&outcome);
    assert!(outcome.message.ends_with("which waits for kubelet (process 77: pods end)"), "{}", outcome.message);
    // That the answer cannot be understood does not mean that nobody blocks it.
    let daemons = silent_runtime();
    daemons.systemd.login(Login { locks: vec![upgrade("block")], cut_short: true, ..Login::default() });
    daemons.leaves_alone(&reboot(), CheckFailed, "ListInhibitors").await;
}

#[tokio::test]
async fn what_was_asked_for_is_told_from_what_was_refused() {
    // That the login manager has gone before it answered is the bus's word, not its own.
    let gone = Reboots::Refuse("org.freedesktop.DBus.Error.NoReply");
    for reboots in [Reboots::Never, Reboots::Cut, gone] {
        let daemons = silent_runtime();
        daemons.systemd.login(Login { reboots, ..Login::default() });
        let command = reboot();
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
    let outcome = daemons.execute(&reboot()).await;
    failed(&outcome, "AccessDenied: because of a test");
    let mut settings = silent_runtime().settings();
    settings.bus = Some(daemons.node.stage.path("no-bus"));
    settings.refuses(&reboot(), CheckFailed).await;
}
