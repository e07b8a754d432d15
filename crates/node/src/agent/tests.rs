//! The executor against real processes and a fake runtime: each refusal, each act, and that nothing else was
//! touched.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_cri::v1;
use tonic::Code;

use super::claims::{Claims, Moment};
use super::{Agent, AgentSettings};
use crate::cri::endpoint::{Endpoint, NamedBy};
use crate::cri::fake::{self, Fake, Say, task};
use crate::waiting::wait_until;
use nrh_core::action::{Action, CleanupOrphans};
use nrh_core::command::OutcomeReason::{
    self, ActionsDisabled, AlreadyExecuted, AlreadyRebooted, AlreadyRequested, CheckFailed, Executed, Expired,
    KubeletBusy, Protected, Recovered, RequestFailed, TargetChanged, TargetGone, WrongNode,
};
use nrh_core::command::{ActionCommand, Outcome, OutcomeState};
use nrh_core::examples::CONT;
use nrh_core::fault::{FaultType, PodRef, ProcessRef, Role, Target};

mod cleanup;
mod client;
mod docker;
mod mark;
mod once;
mod process;
mod reboot;
mod release;
mod restart;
mod thaw;
mod unresponsive;

use process::{Running, Stage, id, process_ref};

/// A node: its processes, its runtime, its state folder.
struct Node {
    stage: Stage,
    runtime: Fake,
}

impl Node {
    fn new() -> Self {
        let runtime = Fake::start();
        runtime.say("Get", no_task());
        runtime.unsay("Status");
        Self { stage: Stage::new(), runtime }
    }

    /// What containerd says of one task.
    fn task_says(&self, id: &str, say: Say) {
        self.runtime.say(&format!("Get:{id}"), say);
    }

    fn agent(&self) -> Agent {
        Agent::new(self.settings())
    }

    fn claims(&self) -> Claims {
        let claims = Claims::new(&self.stage.path("state"));
        claims.prepare().unwrap();
        claims
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // This call may wait for network plugins.
        assert!(std::thread::panicking() || self.runtime.calls("Status") == 0, "a preflight has asked for the status");
    }
}

/// Whatever an executor is made for, a new one for each command.
trait Executes {
    fn settings(&self) -> AgentSettings;

    async fn execute(&self, command: &ActionCommand) -> Outcome {
        Agent::new(self.settings()).execute(command).await
    }

    async fn refuses(&self, command: &ActionCommand, reason: OutcomeReason) {
        refused(&self.execute(command).await, reason);
    }

    async fn refuses_saying(&self, command: &ActionCommand, reason: OutcomeReason, said: &str) {
        let outcome = self.execute(command).await;
        refused(&outcome, reason);
        assert!(outcome.message.contains(said), "{}", outcome.message);
    }
}

impl Executes for Node {
    fn settings(&self) -> AgentSettings {
        let endpoint = Endpoint::cri(self.runtime.socket(), NamedBy::Flag);
        let mut settings = AgentSettings::new("n1", &self.stage.path("state"), endpoint);
        settings.docker_socket = self.stage.path("docker.sock");
        settings.cni_folders = vec![self.stage.path("cni")];
        settings.bounds.call = Duration::from_millis(700);
        settings.bounds.task = Duration::from_millis(1500);
        settings.bounds.inspect = Duration::from_millis(700);
        settings.bounds.remove = Duration::from_millis(700);
        settings.bounds.stop_grace = Duration::from_secs(1);
        settings.thresholds.set_bound(&nrh_core::thresholds::LIST_DEADLINE, Duration::from_millis(700));
        settings.thresholds.set_bound(&nrh_core::faults::network_plugin_hung::AGE, Duration::ZERO);
        settings.thresholds.set_bound(&nrh_core::faults::runtime_client_hung::AGE, Duration::ZERO);
        // This machine may run a kubelet of its own; tests that want one at work say so.
        settings.thresholds.set_bound(&nrh_core::faults::kubelet::START_AGE, Duration::MAX);
        settings
    }
}

impl Executes for AgentSettings {
    fn settings(&self) -> AgentSettings {
        self.clone()
    }
}

fn command(action: Action, fault_type: FaultType, target: Target) -> ActionCommand {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    ActionCommand {
        epoch: 3,
        action,
        fault_type,
        target,
        issued_at: Timestamp::now(),
        ..nrh_core::examples::command(&format!("op-{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
    }
}

fn process_target(process: ProcessRef, sandbox_id: &str) -> Target {
    Target { process: Some(process), sandbox_id: Some(sandbox_id.to_owned()), ..Target::default() }
}

fn resume(shim: &Running, sandbox_id: &str) -> ActionCommand {
    let target = process_target(shim.as_target(Role::Shim), sandbox_id);
    command(CONT, FaultType::HungContainer, target)
}

/// A node with a stopped shim, and the id of its sandbox.
fn stopped() -> (Node, String, Running) {
    let (node, sandbox) = (Node::new(), id());
    let shim = node.stage.shim(&sandbox).stopped();
    (node, sandbox, shim)
}

/// Executed, or refused for another reason.
#[track_caller]
fn came_to(outcome: &Outcome, reason: OutcomeReason) {
    let state = if reason == Executed { OutcomeState::Done } else { OutcomeState::Refused };
    assert_eq!((outcome.state, outcome.reason), (state, reason), "{}", outcome.message);
}

#[track_caller]
fn refused(outcome: &Outcome, reason: OutcomeReason) {
    assert_ne!(reason, Executed);
    came_to(outcome, reason);
}

#[track_caller]
fn done(outcome: &Outcome) {
    came_to(outcome, Executed);
}

/// Begun, and failed with this in its sentence.
#[track_caller]
fn failed(outcome: &Outcome, said: &str) {
    let is_it = (outcome.state, outcome.reason) == (OutcomeState::Failed, RequestFailed);
    assert!(is_it && outcome.message.contains(said), "{said}: {outcome:?}");
}

#[tokio::test]
async fn commands_for_others_or_out_of_time_are_refused() {
    let (node, sandbox, shim) = stopped();

    let other = ActionCommand { node: "n2".to_owned(), ..resume(&shim, &sandbox) };
    node.refuses(&other, WrongNode).await;

    let two_hours = Timestamp::now() - SignedDuration::from_hours(2);
    let old = ActionCommand { issued_at: two_hours, ..resume(&shim, &sandbox) };
    node.refuses(&old, Expired).await;

    let newer = ActionCommand { epoch: 9, target: Target::default(), ..resume(&shim, &sandbox) };
    let _ = node.execute(&newer).await;
    let target = Target { container_id: Some(id()), ..Target::default() };
    let newer = command(Action::CleanupOrphans(CleanupOrphans), FaultType::OrphanContainer, target);
    let newer = ActionCommand { epoch: 9, ..newer };
    node.refuses(&newer, TargetGone).await;
    node.refuses(&resume(&shim, &sandbox), Expired).await;

    let off = AgentSettings { allow_actions: false, ..node.settings() };
    let command = ActionCommand { epoch: 9, ..resume(&shim, &sandbox) };
    off.refuses(&command, ActionsDisabled).await;

    assert_eq!((shim.state(), shim.resumed()), (Some('T'), 0));
    done(&node.execute(&command).await);
}

#[tokio::test]
async fn a_command_read_too_long_ago_is_refused_although_clocks_agree() {
    let (node, sandbox, shim) = stopped();
    let command = ActionCommand { ttl_seconds: 1, ..resume(&shim, &sandbox) };
    let claims = node.claims();
    let now = node.agent().now().unwrap();
    claims.first_read(&command, &now).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    node.refuses(&command, Expired).await;
    assert_eq!(shim.state(), Some('T'));

    let command = ActionCommand { operation_id: "boot".to_owned(), ..resume(&shim, &sandbox) };
    let before = Moment { boot: "another".to_owned(), uptime: Duration::ZERO };
    claims.first_read(&command, &before).unwrap();
    node.refuses(&command, Expired).await;
    assert_eq!(shim.state(), Some('T'));
}

#[tokio::test]
async fn malformed_commands_are_refused() {
    let (node, sandbox, shim) = stopped();
    let good = || resume(&shim, &sandbox);
    let long = "x".repeat(64);
    for operation in ["", "../epoch", "a/b", "A", "-a", "a-", ".", long.as_str()] {
        let command = ActionCommand { operation_id: operation.to_owned(), ..good() };
        node.refuses(&command, CheckFailed).await;
    }
    for ttl_seconds in [0, 3601, u32::MAX] {
        node.refuses(&ActionCommand { ttl_seconds, ..good() }, CheckFailed).await;
    }
    // A shim without the id it serves, nothing at all, and faults that this version cannot check again.
    let no_id = Target { process: good().target.process, ..Target::default() };
    for command in [
        ActionCommand { target: no_id, ..good() },
        ActionCommand { target: Target::default(), ..good() },
        ActionCommand { fault_type: FaultType::RuntimeListHung, ..good() },
        ActionCommand { fault_type: FaultType::LeakedShim, ..good() },
        ActionCommand { action: Action::CleanupOrphans(CleanupOrphans), ..good() },
    ] {
        node.refuses(&command, CheckFailed).await;
    }
    for pid in [i32::MIN, -1, 0, 1, i32::try_from(std::process::id()).unwrap()] {
        let mut command = good();
        command.target.process = Some(ProcessRef { pid, ..shim.as_target(Role::Shim) });
        node.refuses(&command, TargetChanged).await;
    }
    assert_eq!((shim.state(), shim.resumed()), (Some('T'), 0));
}

#[tokio::test]
async fn without_its_memory_nothing_is_done() {
    let (node, sandbox, shim) = stopped();
    std::fs::write(node.stage.path("state"), "not a folder").unwrap();
    node.refuses(&resume(&shim, &sandbox), CheckFailed).await;
    assert_eq!(shim.state(), Some('T'));
    let missing = node.agent().self_check().await;
    assert!(missing.iter().any(|line| line.contains("cannot keep claims")), "{missing:?}");
}

#[tokio::test]
async fn the_self_check_names_what_is_missing() {
    let node = Node::new();
    let mut settings = node.settings();
    let runtime = node.stage.child("runtime/containerd", &[]);
    let shim = node.stage.shim(&id());
    assert_eq!(Agent::new(settings.clone()).self_check().await, [] as [String; 0]);
    settings.endpoint.socket = node.stage.path("none.sock");
    // One that somebody has named, and that is not there, is a runtime that is down.
    assert_eq!(Agent::new(settings.clone()).self_check().await, [] as [String; 0]);
    settings.endpoint.named_by = NamedBy::Nobody;
    settings.allow_actions = false;
    let missing = Agent::new(settings).self_check().await;
    assert_eq!(missing.len(), 2, "{missing:?}");
    assert!(missing[0].contains("none.sock") && missing[1].contains("are disabled"), "{missing:?}");
    assert_eq!((shim.resumed(), runtime.resumed()), (0, 0));
}

fn no_task() -> Say {
    Say::Error(Code::NotFound, "no such task".to_owned())
}

/// What containerd says of the task of an unresponsive shim, after its own wait.
fn silent_shim() -> Say {
    Say::Late(Duration::from_secs(2), Box::new(task(0)))
}

fn gave_up() -> Say {
    Say::Error(Code::DeadlineExceeded, "context deadline exceeded".to_owned())
}

fn fails() -> Say {
    Say::Error(Code::Internal, "fails on purpose".to_owned())
}

fn sandbox(id: &str, ready: bool) -> v1::PodSandbox {
    let metadata = Some(fake::pod("p", "uid-1", "d", 0));
    v1::PodSandbox { metadata, state: i32::from(!ready), created_at: 1, ..fake::sandbox(id) }
}

/// States: 0 created, 1 running, 2 exited, 3 unknown.
fn container(id: &str, sandbox: &str, state: i32) -> v1::Container {
    let labels = fake::labels("p", "uid-1", "d", "c");
    v1::Container { state, created_at: 1, labels, ..fake::container(id, sandbox) }
}

fn pod(uid: &str) -> PodRef {
    PodRef { namespace: "d".to_owned(), name: "p".to_owned(), uid: uid.to_owned() }
}
