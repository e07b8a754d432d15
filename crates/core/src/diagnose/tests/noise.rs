//! What happens on healthy nodes every day. Over none of these timelines is anything ever confirmed, whenever the probe restarts and
//! whatever the wall clock does. What is suspected for a while is named, so that a timeline that nobody notices shows too.

mod of_the_host;
mod of_the_port;

use jiff::{SignedDuration, Timestamp};
use nrh_testbed_matrix::{Seen, Way};

use super::crio::with_crio;
use super::docker::removal;
use super::duplicate_sandbox::second_sandbox;
use super::stuck_containers::ghost;
use super::unresponsive_shims::unresponsive;
use super::*;
use crate::fault::FaultState;
use crate::observation::RemovalState;
use crate::tracker::Tracker;

/// Seconds between two checks of everything.
const STEP: usize = 5;
/// Time since boot at which timelines begin.
const START: u64 = 1000;

/// What one second of a timeline changes on a healthy node.
type Change = fn(&mut Node, u64);

struct Timeline {
    name: &'static str,
    /// For how many seconds of it the change is made.
    changed: u64,
    seconds: u64,
    /// What is suspected on the way, and nothing else.
    felt: &'static [FaultType],
    /// Makes a healthy node one with another runtime.
    base: fn(&mut Node),
    change: Change,
}

/// These timelines, on nodes with another runtime.
fn on_runtime(base: fn(&mut Node), timelines: Vec<Timeline>) -> Vec<Timeline> {
    timelines.into_iter().map(|timeline| Timeline { base, ..timeline }).collect()
}

const fn timeline(name: &'static str, seconds: u64, felt: &'static [FaultType], change: Change) -> Timeline {
    at_first(name, seconds, seconds, felt, change)
}

/// One whose change is made for so many seconds at first, and not any more after that.
const fn at_first(
    name: &'static str,
    changed: u64,
    seconds: u64,
    felt: &'static [FaultType],
    change: Change,
) -> Timeline {
    Timeline { name, changed, seconds, felt, base: |_| {}, change }
}

/// A kubelet that has run for so many seconds; `None` = none runs.
fn kubelet(node: &mut Node, age: Option<u64>) {
    let kubelet = node.kubelet();
    kubelet.process = age.map(|age| (61, START * 100, Duration::from_secs(age)));
    kubelet.healthz = age.map(|age| age >= 5);
    if age.is_none() {
        node.table().retain(|process| process.role != ProcessRole::Kubelet);
    }
}

/// The runtime has no network plugin.
fn no_network(node: &mut Node) {
    let network = NetworkSeen { ready: false, reason: "NetworkPluginNotReady".into(), message: "no conf".into() };
    node.status = done(StatusSeen { network: Some(network) });
}

/// A pod of its own with one container in this state, whose task was not asked yet.
fn one_more(node: &mut Node, number: u64, ready: bool, state: ContainerState) {
    let id = format!("{number:064x}");
    let name = format!("pod-{number}");
    let made = ContainerSeen { pod: Some(pod(&name)), state, ..container(&format!("work-{number}"), &id, "work") };
    node.list().sandboxes.push(SandboxSeen { ready, ..sandbox(&id, &name) });
    node.list().sandboxes_again.push(id);
    node.list().containers.push(made);
}

fn lonely_shim(node: &mut Node, pid: i32, id: &str) {
    node.table().push(process(pid, ProcessRole::Shim { id: id.into(), living_children: 0 }));
}

/// Tasks are asked in turn: what they said was said before the list, as it may be on a real node.
fn answer_before_the_list(node: &mut Node) {
    for reading in node.tasks.values_mut() {
        if let Reading::Done { age, .. } = reading {
            *age = Duration::from_secs(1);
        }
    }
}

fn timelines() -> Vec<Timeline> {
    let all = [
        of_the_runtime(),
        of_the_kubelet(),
        of_pods(),
        of_networks(),
        on_runtime(with_docker, of_docker()),
        on_runtime(with_crio, of_crio()),
        of_others(),
        of_the_host::timelines(),
        of_the_host::of_disks(),
        of_the_port::timelines(),
        of_the_host::of_bus_and_clock(),
    ];
    all.into_iter().flatten().collect()
}

fn of_the_runtime() -> Vec<Timeline> {
    use FaultType as F;
    vec![
        timeline("a quiet hour", 3600, &[], |_, _| {}),
        at_first("lists fail for a minute", 60, 90, &[], |node, _| node.lists = failed("transport error")),
        at_first("a list of containers takes 79 s", 79, 120, &[F::RuntimeUpdateBlocked], |node, t| {
            node.lists = hung(t);
        }),
        at_first("a list of sandboxes takes 79 s", 79, 120, &[F::RuntimeListHung], |node, t| {
            (node.lists, node.sandbox_list_hung) = (hung(t), true);
        }),
        timeline("half of the sandboxes are missing from the lists", 900, &[], |node, _| {
            for number in 0..10 {
                one_more(node, number, true, ContainerState::Running);
                let id = node.list().containers.last().unwrap().id.clone();
                node.list().orphan_checks.insert(id, OrphanCheck::Confirmed);
            }
            node.list().sandboxes.truncate(2);
            node.list().sandboxes_again.truncate(2);
        }),
        at_first("a restart of the runtime", 12, 120, &[F::RuntimeUnreachable], |node, _| {
            (node.runtime, node.lists) = (failed("connection refused"), failed("connection refused"));
            node.table().retain(|process| process.role != ProcessRole::Runtime);
        }),
        timeline("an upgrade of the runtime", 120, &[F::RuntimeUnreachable], |node, t| {
            if t < 29 {
                (node.runtime, node.lists) = (failed("no such file"), failed("no such file"));
            } else {
                node.runtime = done(RuntimeSeen { name: "containerd".into(), version: "2.1.0".into() });
            }
        }),
        at_first("a version call takes 25 s", 25, 120, &[F::RuntimeUnreachable], |node, t| node.runtime = hung(t)),
    ]
}

fn of_the_kubelet() -> Vec<Timeline> {
    use FaultType as F;
    vec![
        timeline("a restart of the kubelet", 120, &[F::KubeletDown], |node, t| {
            kubelet(node, t.checked_sub(4));
        }),
        timeline("an upgrade of the kubelet takes 55 s", 180, &[F::KubeletDown], |node, t| {
            kubelet(node, t.checked_sub(55));
        }),
        timeline("three restarts of the kubelet in a row", 180, &[F::KubeletDown], |node, t| {
            let since = if t < 120 { t % 40 } else { t - 80 };
            kubelet(node, since.checked_sub(5));
        }),
        timeline("a person restarts the kubelet five times in ten minutes", 1500, &[F::KubeletDown], |node, t| {
            let since = if t < 400 { t % 100 } else { t - 400 };
            kubelet(node, since.checked_sub(5));
        }),
        timeline("a kubelet that is restarted every five minutes", 3600, &[F::KubeletDown], |node, t| {
            kubelet(node, (t % 400).checked_sub(5));
        }),
        at_first("the kubelet's health check fails for half a minute", 30, 90, &[F::KubeletDown], |node, _| {
            node.kubelet().healthz = Some(false);
        }),
        timeline(
            "a node boots, and the probe before all others",
            300,
            &[F::KubeletDown, F::ProbeDegraded],
            |node, t| {
                if t < 30 {
                    (node.runtime, node.lists) = (Reading::Never, unavailable("no socket"));
                    node.tasks.clear();
                    node.table().clear();
                }
                kubelet(node, t.checked_sub(45));
            },
        ),
    ]
}

fn of_pods() -> Vec<Timeline> {
    use FaultType as F;
    vec![
        timeline("five hundred pods are created at once", 300, &[], |node, t| {
            for number in (0..500).take_while(|number| number / 10 < t) {
                let made = number / 10 + 30 < t;
                one_more(node, number, true, if made { ContainerState::Running } else { ContainerState::Created });
            }
        }),
        timeline("five hundred pods are deleted at once", 300, &[F::LeakedShim], |node, t| {
            for number in (0..500).skip_while(|number| number / 10 + 20 < t) {
                one_more(node, number, false, ContainerState::Exited);
                let id = format!("{number:064x}");
                lonely_shim(node, 1000 + i32::try_from(number).unwrap(), &id);
                node.tasks.insert(id, done(TaskAnswer::NotFound));
            }
        }),
        at_first("a sandbox is removed before its container", 20, 60, &[F::OrphanContainer], |node, _| {
            node.orphan(ContainerState::Running);
        }),
        timeline("the dead instance that a kubelet keeps for an hour", 3600, &[], |node, _| {
            node.orphan(ContainerState::Exited);
        }),
        at_first("a pod whose sandbox is replaced", 60, 120, &[F::DuplicateSandbox], |node, _| second_sandbox(node)),
        at_first("a slow disk: tasks do not answer for 35 s", 35, 120, &[F::HungContainer], |node, _| {
            work(node, done(TaskAnswer::NoAnswer));
        }),
        at_first("one question to a task is out for 35 s", 35, 120, &[F::HungContainer], |node, t| work(node, hung(t))),
        timeline(
            "a node short of CPU: tasks, plugins and clients take minutes",
            600,
            &[
                FaultType::HungContainer,
                FaultType::NetworkPluginHung,
                FaultType::RuntimeUnreachable,
                FaultType::LostTask,
            ],
            |node, t| {
                node.pressure.cpu = 97;
                match t {
                    0..170 => work(node, done(TaskAnswer::NoAnswer)),
                    180..230 => node.runtime = failed("connection refused"),
                    300..470 => work(node, done(TaskAnswer::Ended)),
                    _ => {}
                }
                if t < 230 {
                    node.table().push(plugin(300, t, NEW, &[], false));
                }
            },
        ),
        at_first("a shim is stopped for a checkpoint", 30, 120, &[F::HungContainer], |node, _| node.freeze(SANDBOX)),
        timeline("a container in a crash loop", 600, &[], |node, t| {
            let attempt = u32::try_from(t / 10).unwrap();
            let ended = t % 10 < 5;
            let it = node.list().containers.iter_mut().find(|container| container.id == WORK).unwrap();
            (it.attempt, it.state) = (attempt, if ended { ContainerState::Exited } else { ContainerState::Running });
            work(node, done(if ended { TaskAnswer::NotFound } else { TaskAnswer::Answered }));
        }),
        at_first("an end that the list shows a minute late", 60, 120, &[F::LostTask], |node, _| {
            work(node, done(TaskAnswer::Ended));
        }),
    ]
}

fn of_networks() -> Vec<Timeline> {
    use FaultType as F;
    vec![
        at_first("a network plugin takes 59 s", 60, 120, &[], |node, t| {
            node.table().push(plugin(400, t, NEW, &["/var/lib/cni/lock"], false));
        }),
        at_first("a network plugin takes 75 s", 76, 120, &[F::NetworkPluginHung], |node, t| {
            node.table().push(plugin(400, t, NEW, &["/var/lib/cni/lock"], false));
        }),
        timeline("a hundred pods one after another through one lock", 600, &[], |node, t| {
            let number = i32::try_from(t / 6).unwrap();
            node.table().push(plugin(400 + number, t % 6, &format!("{number:064x}"), &["/var/lib/cni/lock"], false));
            node.table().push(plugin(900 + number, t % 6, NEW, &[], true));
        }),
        at_first("a driver's hook keeps a start for four minutes", 240, 400, &[F::ContainerStuck], |node, t| {
            node.runtime_client("create", t);
            node.unfinished(WORK, ContainerState::Created, t);
        }),
        timeline("people attach to containers and watch them for an hour", 3600, &[], |node, t| {
            for (pid, verb) in [(301, "exec"), (302, "events"), (303, "run")] {
                let client =
                    process(pid, ProcessRole::RuntimeClient { verb: verb.into(), container_id: Some(WORK.into()) });
                node.table().push(ProcessSeen { age: Duration::from_secs(t), parent: 100, ..client });
            }
        }),
        at_first("containers wait to be started for nine minutes", 540, 900, &[F::ContainerStuck], |node, t| {
            node.unfinished(WORK, ContainerState::Created, t);
        }),
        at_first("a network plugin comes four minutes after its node", 240, 900, &[F::NetworkNotReady], |node, _| {
            no_network(node);
        }),
        at_first(
            "a runtime comes back beside a deaf shim",
            25,
            300,
            &[F::UnresponsiveShim, F::RuntimeUnreachable],
            |node, _| {
                unresponsive(node);
            },
        ),
        timeline("an image is pulled for ten minutes", 600, &[], |node, _| {
            node.list().containers.retain(|container| container.sandbox_id == OTHER);
        }),
        timeline("a debug container is added", 120, &[], |node, t| {
            let state = if t < 3 { ContainerState::Created } else { ContainerState::Running };
            node.list().containers.push(ContainerSeen { state, ..container("debug", SANDBOX, "debugger-x2x4v") });
            if t >= 30 {
                node.tasks.insert("debug".into(), done(TaskAnswer::Answered));
            }
        }),
        timeline("an interrupted start beside a container that runs", 1200, &[], |node, _| {
            let left = ContainerSeen { state: ContainerState::Created, ..container("left", SANDBOX, "work") };
            node.list().containers.push(left);
            node.list().containers.iter_mut().filter(|c| c.id == WORK).for_each(|c| c.attempt = 1);
        }),
    ]
}

/// The same node, were its runtime Docker.
fn with_docker(node: &mut Node) {
    *node = docker::healthy();
}

fn of_docker() -> Vec<Timeline> {
    use FaultType as F;
    vec![
        timeline("a quiet hour with Docker", 3600, &[], |_, _| {}),
        at_first("something holds a container of Docker's for 35 s", 35, 120, &[F::HungContainer], |node, t| {
            work(node, hung(t));
        }),
        at_first("Docker answers for no container for ten minutes", 600, 900, &[], |node, _| {
            for reading in node.tasks.values_mut() {
                *reading = failed("out for 30 s, and Docker has answered no other question since it was due");
            }
        }),
        at_first("a debugger stops a shim of Docker's for an hour", 3600, 3900, &[F::HungContainer], |node, _| {
            node.shim(WORK).state = 'T';
        }),
        at_first("Docker restarts, and all containers with it", 60, 300, &[F::RuntimeUnreachable], |node, t| {
            if t < 24 {
                (node.runtime, node.lists) = (failed("connection refused"), failed("connection refused"));
            }
            node.tasks.clear();
        }),
        at_first("an end that Docker notices after half a minute", 30, 120, &[F::LostTask], |node, _| {
            work(node, done(TaskAnswer::ProcessGone));
        }),
        timeline("people start and stop containers of their own", 1200, &[], |node, t| {
            for (pid, state, living_children) in [(500, 'S', 1), (501, 'S', 0), (502, 'T', 0), (503, 'T', 1)] {
                let id = format!("{:064x}", t / 30 * 10 + u64::try_from(pid).unwrap());
                let shim = process(pid, ProcessRole::Shim { id, living_children });
                node.table().push(ProcessSeen { state, ..shim });
            }
        }),
        timeline("a stopped shim under a Docker of somebody's own", 3600, &[], |node, _| {
            lonely_shim(node, 500, NEW);
            node.table().last_mut().unwrap().state = 'T';
        }),
        timeline("a large container takes half an hour to remove", 1800, &[], |node, _| {
            removal(node, Some(RemovalState::NotFailed));
        }),
        at_first("a removal fails for nine minutes", 540, 900, &[F::ContainerStuck], |node, _| {
            removal(node, Some(RemovalState::Failed("device or resource busy".into())));
        }),
    ]
}

fn of_crio() -> Vec<Timeline> {
    use FaultType as F;
    vec![
        timeline("a quiet hour with CRI-O", 3600, &[], |_, _| {}),
        at_first("CRI-O takes 35 s for the status of one container", 35, 120, &[F::HungContainer], |node, t| {
            work(node, hung(t));
        }),
        at_first("CRI-O answers for no container for a while, and then with errors", 200, 600, &[], |node, _| {
            work(node, failed("out for 90 s, and CRI-O has answered no other question since it was due"));
        }),
    ]
}

fn of_others() -> Vec<Timeline> {
    vec![
        timeline("a quiet hour with a runtime of another kind", 3600, &[], |node, _| {
            node.kind = RuntimeKind::Other;
            node.tasks.clear();
            node.table().retain(|process| !matches!(process.role, ProcessRole::Shim { .. }));
        }),
        timeline("static pods, whose uid is a hash", 600, &[], |node, _| {
            for sandbox in &mut node.list().sandboxes {
                sandbox.pod.uid = format!("{:032x}", sandbox.pod.name.len());
            }
        }),
        timeline("containers of other users in the same namespace", 1200, &[], |node, _| {
            node.list().containers.push(ContainerSeen { pod: None, ..container(NEW, "", "nerdctl") });
            let own = ProcessRole::Shim { id: NEW.into(), living_children: 1 };
            node.table().push(process(500, own));
        }),
        timeline("a container of another user has ended and is kept", 1200, &[], |node, _| {
            lonely_shim(node, 500, NEW);
            node.tasks.insert(NEW.into(), done(TaskAnswer::Answered));
        }),
        at_first("a sandbox takes four minutes to be made", 240, 300, &[], |node, t| {
            lonely_shim(node, 500, NEW);
            node.table().last_mut().unwrap().age = Duration::from_secs(t);
            node.tasks.insert(NEW.into(), done(TaskAnswer::NotFound));
        }),
        timeline("finished pods that nobody removes", 3600, &[], |node, _| {
            for number in 0..200 {
                one_more(node, number, false, ContainerState::Exited);
            }
        }),
        at_first("/proc cannot be read for ten minutes", 600, 900, &[FaultType::ProbeDegraded], |node, _| {
            node.processes = unavailable("hidepid");
        }),
        at_first("a shim that cannot be proven waits for a disk", 120, 300, &[], |node, _| {
            node.table().retain(|process| process.pid != 100);
            node.unproven("containerd-shim", PossibleRole::Shim);
        }),
        at_first("nothing answers, and nobody can look", 600, 900, &[FaultType::ProbeDegraded], |node, _| {
            *node = Node { now: node.now, ..Node::unavailable() }
        }),
    ]
}

/// Plays a timeline and returns what was suspected. With `restarts` the probe restarts at every third check; with `jumps`
/// the wall clock goes back and forth by a day at each.
fn play(timeline: &Timeline, restarts: bool, jumps: bool) -> Vec<FaultType> {
    let thresholds = Thresholds::default();
    let (mut tracker, mut felt) = (Tracker::default(), Vec::new());
    for (step, t) in (0..timeline.seconds).step_by(STEP).enumerate() {
        let mut node = Node::with(timeline.base);
        node.now = Duration::from_secs(START + t);
        if t < timeline.changed {
            (timeline.change)(&mut node, t);
        }
        answer_before_the_list(&mut node);
        let findings = diagnose(&node, tracker.known(), &thresholds);
        let day = SignedDuration::from_hours(if step % 2 == 0 { 24 } else { -24 });
        let wall = Timestamp::from_second(1_700_000_000).unwrap() + if jumps { day } else { SignedDuration::ZERO };
        for fault in tracker.step(node.now, wall, &findings, &thresholds).faults {
            let Timeline { name, .. } = timeline;
            assert_eq!(fault.state, FaultState::Suspected, "{name}, after {t} s: {fault:#?}");
            felt.push(fault.kind);
        }
        if restarts && step % 3 == 0 {
            let saved = serde_json::to_string(&tracker).unwrap();
            tracker = serde_json::from_str::<Tracker>(&saved).unwrap().restored(node.now);
        }
    }
    felt.sort();
    felt.dedup();
    felt
}

#[test]
fn over_healthy_noise_nothing_is_ever_confirmed() {
    let timelines = timelines();
    assert!(timelines.len() >= 30);
    for kind in [RuntimeKind::Containerd, RuntimeKind::Docker, RuntimeKind::CriO] {
        assert!(timelines.iter().any(|timeline| Node::with(timeline.base).kind == kind), "{kind:?}");
    }
    for timeline in &timelines {
        for (restarts, jumps) in [(false, false), (true, false), (false, true), (true, true)] {
            let felt = play(timeline, restarts, jumps);
            assert_eq!(felt, timeline.felt, "{}, restarts: {restarts}, jumps: {jumps}", timeline.name);
        }
    }
}

/// Signs that stay for so many seconds.
fn staying() -> Vec<(FaultType, u64, Change)> {
    use FaultType as F;
    vec![
        (F::RuntimeUpdateBlocked, 90, |node, t| node.lists = hung(t)),
        (F::RuntimeListHung, 90, |node, t| (node.lists, node.sandbox_list_hung) = (hung(t), true)),
        (F::RuntimeUnreachable, 40, |node, _| node.runtime = failed("connection refused")),
        (F::KubeletDown, 70, |node, _| kubelet(node, None)),
        (F::KubeletCrashLoop, 500, |node, t| kubelet(node, (t % 60).checked_sub(10))),
        (F::HungContainer, 50, |node, _| node.freeze(SANDBOX)),
        (F::NetworkPluginHung, 90, |node, t| node.table().push(plugin(400, t, NEW, &["/l"], false))),
        (F::LostTask, 70, |node, _| {
            work(node, done(TaskAnswer::NotFound));
        }),
        (F::HungContainer, 50, |node, t| {
            with_docker(node);
            work(node, hung(t + 5));
        }),
        (F::HungContainer, 50, |node, t| {
            with_crio(node);
            work(node, hung(t + 5));
        }),
        (F::LostTask, 70, |node, _| {
            with_docker(node);
            work(node, done(TaskAnswer::ProcessGone));
        }),
        (F::ContainerStuck, 610, |node, _| {
            with_docker(node);
            removal(node, Some(RemovalState::Failed("operation not permitted".into())));
        }),
        (F::RuntimeClientHung, 370, |node, t| node.runtime_client("create", t)),
        (F::RuntimeClientHung, 100, |node, t| {
            node.runtime_client("create", t);
            node.table().last_mut().unwrap().still = Some(Duration::from_secs(t));
        }),
        (F::NetworkPluginHung, 90, |node, t| {
            node.pressure.cpu = 99;
            node.table().push(plugin(300, t, NEW, &[], false));
            node.table().last_mut().unwrap().still = Some(Duration::from_secs(t));
        }),
        (F::HungContainer, 50, |node, _| {
            node.pressure.cpu = 99;
            node.freeze(SANDBOX);
        }),
        (F::HungContainer, 190, |node, _| {
            node.pressure.cpu = 99;
            work(node, done(TaskAnswer::NoAnswer));
        }),
        (F::NetworkNotReady, 310, |node, _| no_network(node)),
        (F::UnresponsiveShim, 130, |node, _| unresponsive(node)),
        (F::ProbeDegraded, 610, |node, _| node.processes = unavailable("hidepid")),
        (F::ContainerStuck, 670, |node, t| node.unfinished(WORK, ContainerState::Created, t)),
        (F::GhostSandbox, 610, |node, _| *node = ghost(&[Some(false)])),
        (F::DuplicateSandbox, 610, |node, _| second_sandbox(node)),
    ]
}

/// The same signs, had they stayed, are confirmed: the noise is not too short to prove anything, nor are the eyes shut.
#[test]
fn what_stays_is_confirmed() {
    let mut staying = staying();
    staying.extend(of_the_host::staying());
    staying.extend(of_the_port::staying());
    for (kind, seconds, change) in staying {
        let (mut tracker, mut confirmed, mut runtime) = (Tracker::default(), None, RuntimeKind::Unknown);
        for t in (0..=seconds).step_by(STEP) {
            let mut node = Node::with(|node| change(node, t));
            runtime = node.kind;
            answer_before_the_list(&mut node);
            let faults = check(&mut tracker, &mut node, START + t).1.faults;
            let is = faults.iter().any(|fault| fault.kind == kind && fault.state == FaultState::Confirmed);
            confirmed = confirmed.or_else(|| is.then_some(t));
        }
        let runtime = match runtime {
            RuntimeKind::Docker => "Docker",
            RuntimeKind::CriO => "CRI-O",
            _ => "containerd",
        };
        Seen { confirmed, ..Seen::of(kind.as_str(), runtime, Way::MadeUp) }.record();
        let usual = kind.usual_time_to_confirm(&Thresholds::default()).as_secs();
        assert!(confirmed.is_some_and(|at| at >= usual), "{kind}: confirmed {confirmed:?}, usual {usual} s");
    }
}
