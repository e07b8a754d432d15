//! Restarts: whose unit it is, what is checked before, and every reason to leave it alone.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::Instant;

use super::*;
use crate::agent::Bounds;
use crate::bus::fake::{Restarts, Systemd, unit};
use crate::bus::units::UnitSeen;
use crate::proc::fake::{self, Entry, IDLE};
use nrh_core::action::{Restart, RestartKubelet, RestartRuntime};
use nrh_core::fault::Daemon;
use nrh_core::restart_safety::{RestartSafety, Safety};
use nrh_core::tri_state::TriState;

pub(super) const KUBELET: &str = "kubelet.service";
pub(super) const CONTAINERD: &str = "containerd.service";
const DOCKER: &str = "docker.service";

/// A node with a made-up `/proc`, 1,000 s after boot, a runtime that answers, and a systemd.
pub(super) struct Daemons {
    pub(super) node: Node,
    pub(super) systemd: Systemd,
}

impl Daemons {
    pub(super) fn new(units: &[(&str, UnitSeen)], restarts: Restarts) -> Self {
        let node = Node::new();
        let proc = node.stage.path("proc");
        fs::create_dir_all(proc.join("sys/kernel/random")).unwrap();
        fs::write(proc.join("uptime"), "1000.00 1.0\n").unwrap();
        fs::write(proc.join("sys/kernel/random/boot_id"), "boot\n").unwrap();
        // At its usual place, as far as that can be in a test.
        fs::create_dir_all(node.stage.path("run/containerd")).unwrap();
        symlink(node.runtime.socket(), node.stage.path("run/containerd/containerd.sock")).unwrap();
        let systemd = Systemd::start(&node.stage.path("bus"), units, restarts);
        Self { node, systemd }
    }

    /// With one unit, which comes up again.
    fn of(name: &str, seen: UnitSeen) -> Self {
        Self::new(&[(name, seen)], Restarts::End("done", unit("active", "running")))
    }

    pub(super) fn of_kubelet(seen: UnitSeen) -> Self {
        Self::of(KUBELET, seen)
    }

    pub(super) fn of_runtime(seen: UnitSeen) -> Self {
        let daemons = Self::of(CONTAINERD, seen);
        daemons.silence();
        daemons
    }

    /// With a process of the runtime besides.
    fn of_running(seen: UnitSeen) -> Self {
        let daemons = Self::of_runtime(seen);
        daemons.containerd(CONTAINERD);
        daemons
    }

    /// The runtime gives no answer to a version call.
    fn silence(&self) {
        self.node.runtime.say("Version", Say::Never);
    }

    pub(super) fn proc(&self, path: &str) -> PathBuf {
        self.node.stage.path("proc").join(path)
    }

    /// A process that began this many seconds after boot.
    pub(super) fn with(&self, pid: i32, state: char, exe: &str, args: &str, unit: &str) {
        let folder = self.proc(&pid.to_string());
        let name: String = exe.rsplit('/').next().unwrap().chars().take(15).collect();
        Entry { pid, state, command: name.as_bytes(), exe, args, began: 100, ..IDLE }.write(&folder);
        fs::create_dir_all(folder.join("root")).unwrap();
        fs::create_dir_all(folder.join("fd")).unwrap();
        fs::write(folder.join("cgroup"), format!("12:pids:/x\n1:name=systemd:/system.slice/{unit}\n")).unwrap();
    }

    fn containerd(&self, unit: &str) {
        self.with(30, 'S', "/usr/bin/containerd", "containerd", unit);
    }

    fn shim(&self, state: char, unit: &str) {
        let args =
            format!("containerd-shim-runc-v2 -namespace k8s.io -id {} -address /run/containerd/containerd.sock", id());
        self.with(50, state, "/usr/bin/containerd-shim-runc-v2", &args, unit);
    }

    pub(super) fn kubelet(&self, port: u16, unit: &str) {
        self.kubelet_is("/usr/bin/kubelet", &format!("kubelet --healthz-port={port}"), unit);
    }

    /// A kubelet whose sockets are those of this test.
    fn kubelet_is(&self, exe: &str, args: &str, unit: &str) {
        self.with(40, 'S', exe, args, unit);
        fs::remove_dir(self.proc("40/fd")).unwrap();
        symlink("/proc/self/fd", self.proc("40/fd")).unwrap();
        symlink("/proc/self", self.proc("self")).unwrap();
    }

    /// Refuses it as [`Self::left_alone`] says.
    pub(super) async fn leaves_alone(&self, command: &ActionCommand, reason: OutcomeReason, said: &str) {
        self.left_alone(&self.execute(command).await, reason, said);
    }

    /// Refused for this reason with this in its sentence, and nothing asked for.
    #[track_caller]
    pub(super) fn left_alone(&self, outcome: &Outcome, reason: OutcomeReason, said: &str) {
        refused(outcome, reason);
        assert!(outcome.message.contains(said), "{}", outcome.message);
        assert_eq!(self.systemd.acts(), [] as [String; 0]);
    }
}

impl Executes for Daemons {
    fn settings(&self) -> AgentSettings {
        let mut settings = self.node.settings();
        settings.endpoint.socket = self.node.stage.path("run/containerd/containerd.sock");
        settings.proc = self.node.stage.path("proc");
        settings.bus = Some(self.systemd.socket.clone());
        settings.bounds.restart = Duration::from_millis(700);
        settings.thresholds.set_bound(&nrh_core::faults::kubelet::START_AGE, Duration::from_secs(30));
        settings
    }
}

fn action(daemon: Daemon, with: Restart) -> Action {
    match daemon {
        Daemon::Kubelet => Action::RestartKubelet(RestartKubelet(with)),
        Daemon::Runtime => Action::RestartRuntime(RestartRuntime(with)),
    }
}

fn restart_of(daemon: Daemon, fault_type: FaultType, with: Restart) -> ActionCommand {
    command(action(daemon, with), fault_type, Target::default())
}

/// The same command for another way to restart.
fn with(command: ActionCommand, with: Restart) -> ActionCommand {
    ActionCommand { action: action(command.action.traits().restarts.unwrap(), with), ..command }
}

fn kubelet() -> ActionCommand {
    restart_of(Daemon::Kubelet, FaultType::KubeletDown, Restart::default())
}

fn runtime() -> ActionCommand {
    restart_of(Daemon::Runtime, FaultType::RuntimeUnreachable, Restart::default())
}

fn named(command: ActionCommand, unit: &str) -> ActionCommand {
    with(command, Restart { unit: Some(unit.to_owned()), ..Restart::default() })
}

fn start_if_stopped(command: ActionCommand) -> ActionCommand {
    with(command, Restart { start_if_stopped: true, ..Restart::default() })
}

fn careless(command: ActionCommand) -> ActionCommand {
    with(command, Restart { skip_safety_check: true, ..Restart::default() })
}

fn careless_in(command: ActionCommand, unit: &str) -> ActionCommand {
    with(command, Restart { unit: Some(unit.to_owned()), skip_safety_check: true, ..Restart::default() })
}

/// A health check that says this.
pub(super) async fn healthz(answer: &'static str) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 256]).await;
            let _ = stream.write_all(format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await;
        }
    });
    port
}

#[tokio::test]
async fn a_kubelet_that_is_gone_is_started_once() {
    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    let command = kubelet();
    let outcome = daemons.execute(&command).await;
    done(&outcome);
    let said = "kubelet.service was failed (failed); systemd's restart of it: done; it is active (running)";
    assert_eq!(outcome.message, said);
    assert_eq!(daemons.execute(&command).await.message, said, "the same command tells what came of it");
    assert_eq!(daemons.systemd.acts(), ["ResetFailedUnit kubelet.service", "RestartUnit kubelet.service fail"]);
}

/// Told in kubernetes/node-problem-detector #444.
#[tokio::test]
async fn a_kubelet_whose_health_check_fails_is_restarted_and_one_that_is_well_or_young_is_not() {
    let daemons = Daemons::of_kubelet(unit("active", "running"));
    daemons.kubelet(healthz("500 Internal Server Error").await, KUBELET);
    done(&daemons.execute(&kubelet()).await);

    let daemons = Daemons::of_kubelet(unit("active", "running"));
    daemons.kubelet(healthz("200 OK").await, KUBELET);
    daemons.leaves_alone(&kubelet(), Recovered, "its health check is good").await;

    let daemons = Daemons::of_kubelet(unit("active", "running"));
    daemons.kubelet(healthz("500 Internal Server Error").await, KUBELET);
    fs::write(daemons.proc("uptime"), "110.00 1.0\n").unwrap();
    daemons.leaves_alone(&kubelet(), KubeletBusy, "began 10s ago").await;
}

#[tokio::test]
async fn what_the_probe_sees_now_stops_a_restart_that_was_safe_when_it_was_decided() {
    let says = |kubelet: TriState, runtime: TriState| {
        let of = |safe, reason: &str| Safety { safe, reasons: vec![reason.to_owned()], down: false };
        RestartSafety {
            kubelet: of(kubelet, "of the kubelet"),
            runtime: of(runtime, "of the runtime"),
            ..Default::default()
        }
    };
    let (yes, no, unknown) = (TriState::True, TriState::False, TriState::Unknown);
    for (last, expected) in [
        (None, Some("has not checked yet")),
        (Some((61, says(yes, yes))), Some(" s old")),
        (Some((0, says(no, yes))), Some("a restart of the kubelet does harm: of the kubelet")),
        (Some((0, says(unknown, yes))), Some("is not known: of the kubelet")),
        (Some((0, says(yes, no))), None),
    ] {
        let daemons = Daemons::of_kubelet(unit("failed", "failed"));
        let at = |age| Instant::now().checked_sub(Duration::from_secs(age)).unwrap();
        let (_sender, last) = watch::channel(last.map(|(age, safety)| (at(age), safety)));
        let settings = AgentSettings { restart_safety: Some(last), ..daemons.settings() };
        let outcome = settings.execute(&kubelet()).await;
        let Some(said) = expected else {
            done(&outcome);
            continue;
        };
        daemons.left_alone(&outcome, CheckFailed, said);
        let unconditional = ActionCommand { operation_id: "careless".into(), ..careless(kubelet()) };
        done(&settings.execute(&unconditional).await);
    }
}

/// `MicroShift`'s kubelet answers at the default port, and its process has another name.
#[tokio::test]
async fn a_health_check_that_answers_contradicts_a_table_without_a_kubelet() {
    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    let port = healthz("200 OK").await;
    let settings = AgentSettings { healthz: (Ipv4Addr::LOCALHOST, port).into(), ..daemons.settings() };
    let outcome = settings.execute(&kubelet()).await;
    daemons.left_alone(&outcome, CheckFailed, "a kubelet's health check answers at 127.0.0.1");
}

/// The kubelet's own settings are in k3s's files: its health check may be elsewhere.
#[tokio::test]
async fn a_refused_health_check_at_a_guessed_place_proves_nothing() {
    let k3s = || Daemons::of("k3s.service", unit("active", "running"));
    let daemons = k3s();
    daemons.with(40, 'S', "/usr/local/bin/k3s", "k3s --healthz-port=1", "k3s.service");
    let command = named(kubelet(), "k3s.service");
    daemons.leaves_alone(&command, CheckFailed, "its health check elsewhere").await;
    let daemons = k3s();
    let port = healthz("500 Internal Server Error").await;
    daemons.kubelet_is("/usr/local/bin/k3s", &format!("k3s --healthz-port={port}"), "k3s.service");
    done(&daemons.execute(&command).await);
}

#[tokio::test]
async fn what_the_kubelet_would_wait_for_or_die_of_comes_first() {
    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    daemons.shim('T', CONTAINERD);
    daemons.leaves_alone(&kubelet(), Protected, "is stopped").await;
    done(&daemons.execute(&careless(kubelet())).await);
    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    daemons.shim('S', CONTAINERD);
    done(&daemons.execute(&kubelet()).await);

    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    daemons.node.runtime.set(|world| world.containers.push(container(&id(), &id(), 1)));
    daemons.leaves_alone(&kubelet(), Protected, "clean it up first").await;

    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    daemons.node.runtime.say("ListContainers", Say::Never);
    daemons.leaves_alone(&kubelet(), CheckFailed, "the list of containers").await;
}

/// A mount that hangs keeps one process of many for ever.
#[tokio::test]
async fn of_what_waits_in_the_kernel_only_what_may_matter_forbids_a_restart() {
    let client = |daemons: &Daemons| daemons.with(31, 'D', "/usr/bin/runc", "runc create x", CONTAINERD);
    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    client(&daemons);
    done(&daemons.execute(&kubelet()).await);
    for name in ["containerd-shim-runc-v2", "conmon"] {
        let daemons = Daemons::of_kubelet(unit("failed", "failed"));
        daemons.with(50, 'D', &format!("/usr/bin/{name}"), "x", CONTAINERD);
        daemons.leaves_alone(&kubelet(), CheckFailed, "cannot prove what process 50 (con").await;
        done(&daemons.execute(&careless(kubelet())).await);
    }
    let daemons = Daemons::of_runtime(unit("failed", "failed"));
    client(&daemons);
    daemons.leaves_alone(&runtime(), CheckFailed, "cannot prove what process 31 (runc) is").await;
    done(&daemons.execute(&careless(runtime())).await);
}

#[tokio::test]
async fn a_kubelet_is_started_beside_what_has_ended_unless_it_may_die_of_that() {
    for (version, state, starts) in [
        (Some("v1.36.1"), 2, true),
        (Some("v1.36.1"), 0, false),
        (Some("v1.36.1"), 1, false),
        (Some("v1.36.1"), 3, false),
        (Some("v1.23.17"), 2, false),
        (None, 2, false),
    ] {
        let daemons = Daemons::of_kubelet(unit("failed", "failed"));
        daemons.node.runtime.set(|world| world.containers.push(container(&id(), &id(), state)));
        let settings = AgentSettings { kubelet_version: version.map(ToOwned::to_owned), ..daemons.settings() };
        let outcome = settings.execute(&kubelet()).await;
        if starts {
            done(&outcome);
        } else {
            daemons.left_alone(&outcome, Protected, version.unwrap_or("version is not known"));
        }
    }
}

#[tokio::test]
async fn a_list_with_a_hole_is_no_list_without_orphans() {
    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    let containers = (0..10).map(|_| container(&id(), &id(), 1)).collect();
    daemons.node.runtime.set(|world| world.containers = containers);
    daemons.leaves_alone(&kubelet(), CheckFailed, "a list with a hole").await;
}

#[tokio::test]
async fn a_person_who_took_a_unit_out_of_service_is_heard_and_so_is_systemd() {
    let file = |file: &str, active: &str, sub| UnitSeen { file: file.to_owned(), ..unit(active, sub) };
    let load = |load: &str| UnitSeen { load: load.to_owned(), ..unit("inactive", "dead") };
    for (seen, reason, said) in [
        (file("masked", "inactive", "dead"), Protected, "is masked"),
        (load("masked"), Protected, "is masked"),
        (file("disabled", "inactive", "dead"), Protected, "is disabled"),
        (file("disabled", "failed", "failed"), Protected, "is disabled"),
        (unit("activating", "auto-restart"), Protected, "restart loop"),
        (unit("activating", "start"), KubeletBusy, "systemd is changing it"),
        (unit("deactivating", "stop-sigterm"), KubeletBusy, "systemd is changing it"),
        (unit("maintenance", "cleaning"), KubeletBusy, "systemd is changing it"),
        (UnitSeen { job: 7, ..unit("inactive", "dead") }, KubeletBusy, "systemd is changing it"),
        (load("error"), CheckFailed, "cannot be loaded"),
        // Nobody sees a process where systemd sees one.
        (unit("active", "running"), CheckFailed, "no process of the kubelet runs"),
    ] {
        let daemons = Daemons::of_kubelet(seen);
        daemons.left_alone(&daemons.execute(&careless(kubelet())).await, reason, said);
        daemons.left_alone(&daemons.execute(&start_if_stopped(kubelet())).await, reason, said);
    }
    // What was only stopped is started where the policy says so, and only then.
    for seen in [unit("inactive", "dead"), file("static", "inactive", "dead")] {
        let daemons = Daemons::of_kubelet(seen);
        daemons.leaves_alone(&careless(kubelet()), Protected, "was stopped, by a person").await;
        done(&daemons.execute(&start_if_stopped(kubelet())).await);
        assert_eq!(daemons.systemd.acts(), ["RestartUnit kubelet.service fail"]);
    }
    // And nobody sees a process gone that is there.
    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    daemons.kubelet(healthz("500 Internal Server Error").await, KUBELET);
    daemons.leaves_alone(&kubelet(), CheckFailed, "process 40 of the kubelet runs").await;
}

#[tokio::test]
async fn a_unit_that_is_not_plainly_the_daemons_has_to_be_named() {
    let bad = "500 Internal Server Error";
    let daemons = Daemons::of("k3s.service", unit("active", "running"));
    daemons.kubelet(healthz(bad).await, "k3s.service");
    daemons.leaves_alone(&kubelet(), Protected, "part of k3s.service, not of kubelet.service").await;
    daemons.leaves_alone(&named(kubelet(), KUBELET), Protected, "part of k3s").await;
    done(&daemons.execute(&named(kubelet(), "k3s.service")).await);
    // Nor is a kubelet.service taken for the kubelet of k3s while that is gone.
    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    let mut settings = daemons.settings();
    for socket in ["/run/k3s/containerd/containerd.sock", "/run/k0s/containerd.sock"] {
        settings.endpoint.socket = PathBuf::from(socket);
        let outcome = settings.execute(&careless(kubelet())).await;
        daemons.left_alone(&outcome, Protected, "the kubelet is inside something larger");
    }
    settings.endpoint.socket = PathBuf::from("/run/k3s/containerd/containerd.sock");
    daemons.left_alone(&settings.execute(&runtime()).await, Protected, "is at no usual place");

    // Neither is one started beside a kubelet that runs in none.
    let daemons = Daemons::of_kubelet(unit("inactive", "dead"));
    daemons.kubelet(healthz(bad).await, "session-1.scope");
    daemons.leaves_alone(&named(kubelet(), KUBELET), Protected, "in no unit").await;

    // systemd knows a kubelet that has moved itself into another control group.
    let daemons = Daemons::of_kubelet(UnitSeen { main_pid: 40, ..unit("active", "running") });
    daemons.kubelet(healthz(bad).await, "podruntime");
    done(&daemons.execute(&kubelet()).await);
    // That of k0s, which has started it, moves to the group of a unit that the node does not have.
    let k0s = UnitSeen { main_pid: 35, ..unit("active", "running") };
    let daemons = Daemons::of("k0sworker.service", k0s);
    daemons.kubelet(healthz(bad).await, CONTAINERD);
    fs::write(daemons.proc("40/stat"), fake::stat(40, b"kubelet", 'S', 35, 100)).unwrap();
    done(&daemons.execute(&named(kubelet(), "k0sworker.service")).await);

    let daemons = Daemons::new(&[], Restarts::Never);
    daemons.leaves_alone(&kubelet(), CheckFailed, "kubelet.service is not known").await;
    for unit in ["../kubelet.service", "kubelet.socket", "kubelet", ".service", "a b.service"] {
        daemons.leaves_alone(&named(kubelet(), unit), CheckFailed, "is not the name of a service").await;
    }
}

/// Whoever can write a policy must not start whatever the node has.
#[tokio::test]
async fn a_unit_that_holds_both_daemons_is_restarted_only_where_both_may_be() {
    let port = healthz("500 Internal Server Error").await;
    let whole_group = || UnitSeen { kill: "control-group".into(), ..unit("active", "running") };
    let both_in = |seen: UnitSeen| {
        let daemons = Daemons::of("k3s.service", seen);
        daemons.containerd("k3s.service");
        daemons.kubelet(port, "k3s.service");
        daemons
    };
    let both = || both_in(unit("active", "running"));
    let [kubelet, runtime] = [kubelet(), runtime()].map(|command| named(command, "k3s.service"));

    let daemons = both();
    daemons.silence();
    daemons.node.runtime.set(|world| world.containers.push(container(&id(), &id(), 1)));
    daemons.leaves_alone(&runtime, Protected, "clean it up first").await;

    let daemons = both();
    daemons.with(31, 'S', "/usr/bin/runc", &format!("runc create --bundle /b {}", id()), "k3s.service");
    daemons.leaves_alone(&kubelet, KubeletBusy, "would cut it off").await;

    let daemons = both_in(whole_group());
    daemons.shim('S', "k3s.service");
    daemons.leaves_alone(&kubelet, Protected, "KillMode=control-group").await;
    let careless = careless_in(self::kubelet(), "k3s.service");
    daemons.leaves_alone(&careless, Protected, "KillMode=control-group").await;
    // The runtime has died, and systemd is about to start it again.
    let bereft = Daemons::of("k3s.service", whole_group());
    bereft.kubelet(port, "k3s.service");
    bereft.shim('S', "k3s.service");
    bereft.leaves_alone(&careless, Protected, "KillMode=control-group").await;
    daemons.silence();
    done(&daemons.execute(&careless_in(self::runtime(), "k3s.service")).await);
    let bound = UnitSeen { restarted_with: vec![CONTAINERD.into()], ..unit("active", "running") };
    let daemons = Daemons::of_kubelet(bound);
    daemons.kubelet(port, KUBELET);
    daemons.containerd(CONTAINERD);
    daemons.leaves_alone(&self::kubelet(), Protected, "systemd restarts containerd").await;
    // The usual unit of a kubelet holds no runtime.
    let daemons = Daemons::of_kubelet(whole_group());
    daemons.kubelet(port, KUBELET);
    daemons.containerd(CONTAINERD);
    done(&daemons.execute(&self::kubelet()).await);

    done(&both().execute(&kubelet).await);
    let daemons = both();
    daemons.silence();
    done(&daemons.execute(&runtime).await);
}

#[tokio::test]
async fn a_named_unit_without_a_process_has_to_be_one_that_starts_with_the_node() {
    const OFF: &str = "systemd-poweroff.service";
    for (file, allowed) in [("static", false), ("indirect", false), ("", false), ("enabled", true), ("linked", true)] {
        let seen = UnitSeen { file: file.to_owned(), ..unit("failed", "failed") };
        let daemons = Daemons::of(OFF, seen);
        let outcome = daemons.execute(&named(kubelet(), OFF)).await;
        if allowed {
            done(&outcome);
        } else {
            daemons.left_alone(&outcome, Protected, "does not start at boot");
        }
    }
}

#[tokio::test]
async fn a_runtime_that_is_silent_or_gone_is_restarted_and_one_that_answers_is_not() {
    let daemons = Daemons::of_running(unit("active", "running"));
    done(&daemons.execute(&runtime()).await);
    assert_eq!(daemons.systemd.acts(), ["RestartUnit containerd.service fail"], "what runs has not failed");

    done(&Daemons::of_runtime(unit("failed", "failed")).execute(&runtime()).await);

    let daemons = Daemons::of_running(unit("active", "running"));
    daemons.node.runtime.unsay("Version");
    daemons.leaves_alone(&runtime(), Recovered, "answers a version call").await;
    let list = restart_of(Daemon::Runtime, FaultType::RuntimeListHung, Restart::default());
    daemons.leaves_alone(&list, Recovered, "lists its sandboxes").await;
    let list = ActionCommand { operation_id: "again".into(), ..list };
    daemons.node.runtime.say("ListPodSandbox", Say::Never);
    done(&daemons.execute(&list).await);
}

#[tokio::test]
async fn a_list_that_is_only_slow_is_not_hung() {
    let daemons = Daemons::of_running(unit("active", "running"));
    daemons.node.runtime.unsay("Version");
    let empty = Say::message(&v1::ListPodSandboxResponse::default());
    daemons.node.runtime.say("ListPodSandbox", Say::Late(Duration::from_millis(1500), Box::new(empty)));
    let mut settings = daemons.settings();
    settings.thresholds.set_bound(&nrh_core::thresholds::LIST_DEADLINE, Duration::from_secs(20));
    // The call for the list is not of the time that the other checks have.
    settings.bounds.check = Duration::from_secs(1);
    let list = restart_of(Daemon::Runtime, FaultType::RuntimeListHung, Restart::default());
    daemons.left_alone(&settings.execute(&list).await, Recovered, "lists its sandboxes");
    // The controller waits three minutes for both.
    let restart = |check| Bounds::default().after(Duration::from_secs(check)).restart.as_secs();
    assert_eq!([restart(2), restart(120), restart(170)], [90, 50, 20]);
}

#[tokio::test]
async fn what_a_restart_of_the_runtime_would_cut_off_or_end_is_left_alone() {
    let daemons = Daemons::of_running(unit("active", "running"));
    daemons.with(31, 'S', "/usr/bin/runc", &format!("runc create --bundle /b {}", id()), CONTAINERD);
    daemons.leaves_alone(&runtime(), KubeletBusy, "would cut it off").await;
    done(&daemons.execute(&careless(runtime())).await);

    // One whose stop ends all of its processes ends the containers with it, unless their shims are elsewhere, as CRI-O's are.
    let of_group = || Daemons::of_running(UnitSeen { kill: "control-group".into(), ..unit("active", "running") });
    let daemons = of_group();
    daemons.shim('S', "cri.scope");
    done(&daemons.execute(&runtime()).await);
    let daemons = of_group();
    daemons.shim('S', CONTAINERD);
    daemons.leaves_alone(&runtime(), Protected, "KillMode=control-group").await;
    done(&daemons.execute(&careless(runtime())).await);

    // Docker's restart may end every container: a person has to name it.
    let daemons = Daemons::of_running(unit("active", "running"));
    let mut settings = daemons.settings();
    settings.endpoint.socket = daemons.node.stage.path("cri-dockerd.sock");
    daemons.left_alone(&settings.execute(&runtime()).await, Protected, "the runtime is Docker");
    let outcome = settings.execute(&named(runtime(), "cri-docker.service")).await;
    daemons.left_alone(&outcome, CheckFailed, "is not known to systemd");

    let daemons = Daemons::of(DOCKER, unit("active", "running"));
    daemons.with(30, 'S', "/usr/bin/dockerd", "dockerd", DOCKER);
    daemons.silence();
    daemons.leaves_alone(&named(runtime(), DOCKER), Protected, "live-restore").await;
    done(&daemons.execute(&careless_in(runtime(), DOCKER)).await);

    let restarts_docker =
        UnitSeen { restarted_with: vec!["x.service".into(), DOCKER.into()], ..unit("active", "running") };
    let daemons = Daemons::of_running(restarts_docker);
    daemons.with(31, 'S', "/usr/bin/dockerd", "dockerd", DOCKER);
    daemons.leaves_alone(&named(runtime(), CONTAINERD), Protected, "dockerd stops with containerd.service").await;

    // Another containerd beside one that is gone: the kubelet's may be that, unless the unit is named.
    let daemons = Daemons::of_runtime(unit("failed", "failed"));
    daemons.containerd("host-containerd.service");
    daemons.leaves_alone(&runtime(), Protected, "part of host-containerd.service").await;
    done(&daemons.execute(&named(runtime(), CONTAINERD)).await);

    // It is provably not, where it listens at another socket than the one that the kubelet's shims name.
    let daemons = Daemons::of_runtime(unit("failed", "failed"));
    let me = i32::try_from(std::process::id()).unwrap();
    daemons.with(me, 'S', "/usr/bin/containerd", "containerd", "host-containerd.service");
    fs::remove_dir(daemons.proc(&format!("{me}/fd"))).unwrap();
    let host = daemons.node.stage.path("run/host-containerd/containerd.sock");
    let _listener = fake::listens(&daemons.proc(&me.to_string()), &host);
    daemons.leaves_alone(&runtime(), Protected, "part of host-containerd.service").await;
    daemons.shim('S', CONTAINERD);
    daemons.leaves_alone(&named(runtime(), "host-containerd.service"), Protected, "is not the kubelet's runtime").await;
    done(&daemons.execute(&runtime()).await);
}

#[tokio::test]
async fn a_daemon_out_of_files_is_restarted_and_one_with_plenty_is_not() {
    let command = restart_of(Daemon::Kubelet, FaultType::FdExhaustion, Restart::default());
    for (limit, scarce) in [(10_000, false), (64, true)] {
        let daemons = Daemons::of_kubelet(unit("active", "running"));
        daemons.with(40, 'S', "/usr/bin/kubelet", "kubelet", KUBELET);
        fs::write(daemons.proc("40/status"), "Uid:\t0\t0\t0\t0\nNSpid:\t40\nFDSize:\t256\n").unwrap();
        fs::write(daemons.proc("40/limits"), format!("Limit  Soft\nMax open files   {limit}   {limit}   files\n"))
            .unwrap();
        let outcome =
            daemons.execute(&ActionCommand { operation_id: format!("files-{limit}"), ..command.clone() }).await;
        if scarce {
            done(&outcome);
        } else {
            daemons.left_alone(&outcome, Recovered, "does not use 90%");
        }
    }
}

#[tokio::test]
async fn a_restart_that_fails_or_does_not_end_is_told_as_it_is() {
    let stands = || [(KUBELET, unit("failed", "failed"))];
    let daemons = Daemons::new(&stands(), Restarts::End("failed", unit("failed", "failed")));
    failed(&daemons.execute(&kubelet()).await, "systemd's restart of it: failed; it is failed (failed)");
    let daemons = Daemons::new(&stands(), Restarts::Never);
    let outcome = daemons.execute(&kubelet()).await;
    done(&outcome);
    assert!(outcome.message.contains("the result was not seen"));
    assert!(outcome.message.ends_with("systemd goes on with it"));
    let daemons = Daemons::new(&stands(), Restarts::Refuse("org.freedesktop.DBus.Error.AccessDenied"));
    failed(&daemons.execute(&kubelet()).await, "was not restarted: asked for the restart: org.freedesktop.DBus");
}

#[tokio::test]
async fn without_systemd_and_for_other_faults_nothing_is_restarted() {
    let daemons = Daemons::of_kubelet(unit("failed", "failed"));
    for command in [
        restart_of(Daemon::Kubelet, FaultType::KubeletStartBlocked, Restart::default()),
        restart_of(Daemon::Kubelet, FaultType::RuntimeUnreachable, Restart::default()),
        restart_of(Daemon::Runtime, FaultType::KubeletDown, Restart::default()),
        restart_of(Daemon::Runtime, FaultType::NetworkPluginHung, Restart::default()),
    ] {
        daemons.leaves_alone(&command, CheckFailed, "no preflight").await;
    }
    let mut settings = daemons.settings();
    settings.bus = Some(daemons.node.stage.path("no-bus"));
    settings.refuses(&kubelet(), CheckFailed).await;
}
