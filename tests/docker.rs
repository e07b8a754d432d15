//! The probe's collectors and the executor against a real Docker Engine: a container whose `inspect` hangs while `docker ps`
//! answers is named and freed, and nothing that people have started by hand is taken for a leftover.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nrh::core::action::{Action, CleanupOrphans};
use nrh::core::command::{ActionCommand, Outcome, OutcomeReason, OutcomeState};
use nrh::core::diagnose::diagnose;
use nrh::core::examples::{CONT, KILL, command};
use nrh::core::fault::{Fault, FaultState, FaultType, Target};
use nrh::core::observation::{Reading, RuntimeKind};
use nrh::core::thresholds::Thresholds;
use nrh::core::tracker::Tracker;
use nrh::node::collect::HostPaths;
use nrh::node::collectors::{CollectorSettings, Collectors};
use nrh::node::cri::endpoint::Flags;
use nrh_testbed::docker::{Client, Docker, Kind, SOCKET};
use nrh_testbed::matrix::{Seen, Way, seconds};
use nrh_testbed::packages;
use nrh_testbed::wait::SOON;
use rustix::process::Signal;

/// How a client ends that waits for a container.
async fn ended(client: &mut Child) -> ExitStatus {
    for _ in 0..6000 {
        if let Some(status) = client.try_wait().unwrap() {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    client.kill().unwrap();
    panic!("Docker's client still waits after ten minutes");
}

/// An engine with a pod of one container: its sandbox and that.
fn engine() -> (Docker, String, String) {
    let docker = Docker::up().unwrap();
    let sandbox = docker.run(Kind::Sandbox, "POD", "web-0").unwrap();
    let app = docker.run(Kind::Work(&sandbox), "app", "web-0").unwrap();
    (docker, sandbox, app)
}

/// Collectors, diagnosis and tracker, as the probe has them.
struct Probe {
    collectors: Collectors,
    tracker: Tracker,
    faults: Vec<Fault>,
    began: Instant,
}

impl Probe {
    /// Checks the engine's own processes and files, from outside.
    fn start(docker: &Docker) -> Self {
        let host = HostPaths { root: docker.root_path("/"), proc: docker.root_path("/proc"), ..HostPaths::default() };
        let sockets = Flags { runtime: None, docker: Some(docker.root_path(SOCKET)) };
        let collectors = Collectors::start(CollectorSettings { sockets, host, ..CollectorSettings::default() });
        Self { collectors, tracker: Tracker::default(), faults: Vec::new(), began: Instant::now() }
    }

    fn check(&mut self) {
        let thresholds = Thresholds::default();
        let seen =
            self.collectors.observations(Duration::from_secs(1000) + self.began.elapsed(), Instant::now().into());
        let findings = diagnose(&seen, self.tracker.known(), &thresholds);
        self.faults = self.tracker.step(seen.now, Timestamp::UNIX_EPOCH, &findings, &thresholds).faults;
        // There is no kubelet in this test, to check or to read.
        self.faults.retain(|fault| !matches!(fault.kind, FaultType::KubeletDown | FaultType::ProbeDegraded));
        let mut ids = findings.ask;
        ids.extend(self.faults.iter().filter_map(|fault| fault.target.container_id.clone()));
        self.collectors.suspects(ids);
        self.collectors.set_urgent(!self.faults.is_empty());
    }

    async fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + SOON;
        loop {
            self.check();
            if done(self) {
                return;
            }
            assert!(Instant::now() < end, "waited {SOON:?} for {what}: {:#?}", self.faults);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// As [`Probe::until`], until a fault is confirmed; recorded as seen since `injected`.
    async fn confirms(&mut self, what: &str, kind: FaultType, injected: Instant) {
        self.until(what, |probe| probe.is_confirmed(kind)).await;
        let confirmed = seconds(injected.elapsed());
        Seen { confirmed, ..Seen::of(kind.as_str(), "Docker", Way::Real) }.record();
    }

    fn fault(&self, kind: FaultType) -> Option<&Fault> {
        self.faults.iter().find(|fault| fault.kind == kind)
    }

    fn is_confirmed(&self, kind: FaultType) -> bool {
        self.fault(kind).is_some_and(|fault| fault.state == FaultState::Confirmed)
    }
}

/// Gives a command to the executor as a Job does, on that node; this must come of it.
fn act(docker: &Docker, name: &str, action: Action, kind: FaultType, target: Target, expected: Comes) {
    let command = ActionCommand { action, fault_type: kind, target, issued_at: Timestamp::now(), ..command(name) };
    let mut program = docker.command(env!("CARGO_BIN_EXE_nrh"));
    program.args(["run-command", "--node-name=n1", "--outcome=/run/outcome", "--command"]);
    let output = program.arg(serde_json::to_string(&command).unwrap()).output().unwrap();
    let text = std::fs::read(docker.root_path("/run/outcome"));
    let outcome: Outcome = serde_json::from_slice(&text.unwrap_or_else(|error| panic!("{error}: {output:?}"))).unwrap();
    assert_eq!((outcome.state, outcome.reason), expected, "{name}: {outcome:?}");
}

type Comes = (OutcomeState, OutcomeReason);

const DONE: Comes = (OutcomeState::Done, OutcomeReason::Executed);

fn refused(reason: OutcomeReason) -> Comes {
    (OutcomeState::Refused, reason)
}

fn state(docker: &Docker, id: &str) -> String {
    docker.docker(&["inspect", "--format", "{{.State.Status}}", id]).unwrap().trim().to_owned()
}

/// What of the engine's containers runs, by its list, which waits for nobody.
fn running(docker: &Docker) -> Vec<String> {
    let list = docker.docker(&["ps", "--no-trunc", "--format", "{{.ID}}"]).unwrap();
    list.lines().map(ToOwned::to_owned).collect()
}

/// Each on an engine of its own, side by side: it is thresholds that take the time.
#[test]
fn what_hangs_or_is_left_behind_in_docker_is_named_and_ended() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: a Docker Engine of its own needs root on Linux");
        return;
    }
    // Once, before all of them find it missing.
    packages::ensure(packages::DOCKER).unwrap();
    let stories: [(&str, fn()); 4] = [
        ("hung-inspect", || play(a_container_that_hangs_is_named_and_freed_and_nobody_elses_is_touched())),
        ("leftovers", || play(what_a_restart_and_a_failed_removal_leave_behind_is_named())),
        ("hung-client", || play(a_start_that_hangs_in_the_low_level_runtime_is_named_and_ended(Client::Program))),
        ("hung-wrapper", || play(a_start_that_hangs_in_the_low_level_runtime_is_named_and_ended(Client::Script))),
    ];
    std::thread::scope(|scope| {
        for (name, story) in stories {
            std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, story).unwrap();
        }
    });
}

fn play(story: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(story);
}

async fn a_container_that_hangs_is_named_and_freed_and_nobody_elses_is_touched() {
    let (docker, sandbox, app) = engine();
    let sidecar = docker.run(Kind::Work(&sandbox), "sidecar", "web-0").unwrap();
    let by_hand = docker.run(Kind::ExternalCondition, "ci-job", "").unwrap();
    let mut probe = Probe::start(&docker);

    // Healthy: all of the kubelet's are asked, nobody else is, and nothing is wrong.
    let asked = |probe: &Probe| {
        let seen = probe.collectors.observations(Duration::ZERO, Instant::now().into());
        let answered: BTreeMap<_, _> =
            seen.tasks.iter().filter(|(_, reading)| matches!(reading, Reading::Done { .. })).collect();
        seen.kind == RuntimeKind::Docker && answered.len() == 3 && !seen.tasks.contains_key(&by_hand)
    };
    probe.until("every container's first answer", asked).await;
    assert_eq!(probe.faults, [], "a healthy engine");

    // Frozen, and nobody waits for it: Docker answers from memory, but the containerd behind it has asked the shim in vain.
    let (shim, pid) = docker.shim(&app).unwrap();
    let (foreign, foreign_pid) = docker.shim(&by_hand).unwrap();
    assert!(shim.signal(Signal::STOP).unwrap() && foreign.signal(Signal::STOP).unwrap());
    probe.confirms("the hung container", FaultType::HungContainer, Instant::now()).await;
    let evidence = &probe.fault(FaultType::HungContainer).unwrap().evidence;
    assert!(evidence.iter().any(|line| line.starts_with("Tasks/Get of")), "{evidence:?}");
    assert_eq!(state(&docker, &app), "running");

    // A stop takes the container's lock: from now on `inspect` of this one hangs, all else answers.
    let mut stop = docker.begin(&["stop", "-t", "1", &app]).unwrap();
    let inspected = |probe: &Probe| {
        let fault = probe.fault(FaultType::HungContainer);
        fault.is_some_and(|fault| fault.evidence.iter().any(|line| line.starts_with("inspect of")))
    };
    probe.until("an inspect that hangs", inspected).await;
    let fault = probe.fault(FaultType::HungContainer).unwrap().clone();
    assert!(fault.message.starts_with("container app of shop/web-0 does not answer"), "{}", fault.message);
    assert_eq!(fault.target.container_id.as_deref(), Some(app.as_str()));
    assert_eq!(fault.target.process.as_ref().map(|process| process.pid), Some(pid));
    assert_eq!(probe.faults.len(), 1, "{:#?}", probe.faults);
    assert_eq!(running(&docker).len(), 4, "docker ps answers, and shows nothing");

    // Commands about others are refused: one that answers, and one that is no kubelet's.
    let of = |id: &str, pid: i32| {
        let mut target = fault.target.clone();
        let (shim, _) = docker.shim(id).unwrap();
        let process = target.process.as_mut().unwrap();
        (process.pid, process.start_ticks) = (pid, shim.started);
        Target { container_id: Some(id.to_owned()), ..target }
    };
    let (_, sidecar_pid) = docker.shim(&sidecar).unwrap();
    let hung = FaultType::HungContainer;
    act(&docker, "answers", KILL, hung, of(&sidecar, sidecar_pid), refused(OutcomeReason::Recovered));
    for (name, action) in [("foreign-cont", CONT), ("foreign-kill", KILL)] {
        act(&docker, name, action, hung, of(&by_hand, foreign_pid), refused(OutcomeReason::TargetGone));
    }

    // Resumed: the stop that waited ends, and the fault goes.
    act(&docker, "resume", CONT, hung, fault.target.clone(), DONE);
    assert!(ended(&mut stop).await.success());
    probe.until("all well", |probe| probe.faults.is_empty()).await;
    assert!(state(&docker, &app).starts_with("exited"));

    // The same with a kill: Docker answers again, and only that container has ended.
    let (shim, _) = docker.shim(&sidecar).unwrap();
    shim.signal(Signal::STOP).unwrap();
    let mut stop = docker.begin(&["stop", "-t", "1", &sidecar]).unwrap();
    probe.until("the second one", |probe| probe.is_confirmed(FaultType::HungContainer)).await;
    let target = probe.fault(FaultType::HungContainer).unwrap().target.clone();
    assert_eq!(target.container_id.as_deref(), Some(sidecar.as_str()));
    act(&docker, "kill", KILL, hung, target, DONE);
    ended(&mut stop).await;
    probe.until("all well again", |probe| probe.faults.is_empty()).await;
    assert!(state(&docker, &sidecar).starts_with("exited"));
    let mut left = running(&docker);
    left.sort();
    let mut expected = vec![sandbox.clone(), by_hand.clone()];
    expected.sort();
    assert_eq!(left, expected);

    // The frozen shim of the hand-started one was there all the time, and nothing was held against it.
    assert!(foreign.alive());
    let (action, target) = (Action::CleanupOrphans(CleanupOrphans), of(&by_hand, foreign_pid));
    act(&docker, "remove", action, FaultType::LeakedShim, target, refused(OutcomeReason::Protected));
    foreign.signal(Signal::CONT).unwrap();
}

/// A restart of the daemon leaves frozen shims behind. That of the kubelet's container is named, that of somebody else's
/// is not; and a removal that has failed is told from one that is under way.
async fn what_a_restart_and_a_failed_removal_leave_behind_is_named() {
    let (docker, sandbox, app) = engine();
    let dead = docker.run(Kind::Work(&sandbox), "dead", "web-0").unwrap();
    let by_hand = docker.run(Kind::ExternalCondition, "ci-job", "").unwrap();
    let _cleanup = fail_removal(&docker, &dead);
    assert!(docker.docker(&["rm", "-f", &dead]).is_err(), "an immutable file cannot be removed");

    let (mut probe, failed) = (Probe::start(&docker), Instant::now());
    probe.until("the failed removal", |probe| probe.fault(FaultType::ContainerStuck).is_some()).await;
    let named = seconds(failed.elapsed());
    Seen { named, ..Seen::of(FaultType::ContainerStuck.as_str(), "Docker", Way::Real) }.record();
    let stuck = probe.fault(FaultType::ContainerStuck).unwrap();
    assert!(stuck.message.starts_with("Docker cannot remove container dead of shop/web-0: "), "{}", stuck.message);
    assert!(stuck.message.contains("operation not permitted"), "{}", stuck.message);

    let (shim, _) = docker.shim(&app).unwrap();
    let (foreign, _) = docker.shim(&by_hand).unwrap();
    assert!(shim.signal(Signal::STOP).unwrap() && foreign.signal(Signal::STOP).unwrap());
    docker.restart().unwrap();
    let restarted = Instant::now();
    assert!(shim.alive() && foreign.alive(), "frozen shims are left behind");
    probe.confirms("the leaked shim", FaultType::LeakedShim, restarted).await;
    let leaked: Vec<_> = probe.faults.iter().filter(|fault| fault.kind == FaultType::LeakedShim).collect();
    assert_eq!(leaked.iter().map(|fault| fault.subject.id.as_deref()).collect::<Vec<_>>(), [Some(app.as_str())]);
    assert!(probe.fault(FaultType::HungContainer).is_none(), "{:#?}", probe.faults);
}

/// A start that hangs in `runc create`: Docker waits for it for ever. Its process is named, ended on Docker's word, and the
/// engine goes on. A script around `runc` is known as what it is, too.
async fn a_start_that_hangs_in_the_low_level_runtime_is_named_and_ended(how: Client) {
    let (docker, sandbox, app) = engine();
    let stuck = docker.create(Kind::Work(&sandbox), "stuck", "web-0").unwrap();
    docker.hang_clients(how).unwrap();
    let mut start = docker.begin(&["start", &stuck]).unwrap();
    let began = Instant::now();
    let mut probe = Probe::start(&docker);
    probe.until("runc to be called", |_| docker.clients(&stuck).len() == 1).await;
    docker.release_clients().unwrap();

    let kind = FaultType::RuntimeClientHung;
    probe.confirms("the hung client", kind, began).await;
    let fault = probe.fault(kind).unwrap().clone();
    assert!(
        fault.message.starts_with("`create` of container stuck of shop/web-0 has made no progress for 30 s"),
        "{}",
        fault.message
    );
    let process = fault.target.process.clone().unwrap();
    assert_eq!(vec![process.pid], docker.clients(&stuck));
    assert_eq!(fault.target.container_id.as_deref(), Some(stuck.as_str()));

    // Under the name of another container nothing is done.
    let other = Target { container_id: Some(app.clone()), ..fault.target.clone() };
    act(&docker, "other", KILL, kind, other, refused(OutcomeReason::TargetChanged));
    assert_eq!(docker.clients(&stuck).len(), 1);

    act(&docker, "end", KILL, kind, fault.target, DONE);
    assert!(!ended(&mut start).await.success());
    probe.until("no client that hangs", |probe| probe.fault(kind).is_none()).await;
    assert_eq!(state(&docker, &app), "running");
    // Docker starts it at the next try.
    docker.docker(&["start", &stuck]).unwrap();
    probe.until("all well", |probe| probe.faults.is_empty()).await;
    assert_eq!(running(&docker).len(), 3);
}

/// Makes a file of a container immutable for as long as this lives.
struct Immutable(PathBuf);

impl Drop for Immutable {
    fn drop(&mut self) {
        let _ = std::process::Command::new("chattr").arg("-i").arg(&self.0).status();
    }
}

fn fail_removal(docker: &Docker, id: &str) -> Immutable {
    let layer = docker.docker(&["inspect", "--format", "{{.ID}}", id]).unwrap();
    assert_eq!(layer.trim(), id);
    let mount =
        std::fs::read_to_string(docker.root_path(format!("/var/lib/docker/image/vfs/layerdb/mounts/{id}/mount-id")));
    let file = docker.root_path(format!("/var/lib/docker/vfs/dir/{}/workload", mount.unwrap().trim()));
    let status = std::process::Command::new("chattr").arg("+i").arg(&file).status().unwrap();
    assert!(status.success(), "chattr +i {}", file.display());
    Immutable(file)
}
