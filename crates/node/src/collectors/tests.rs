//! All collectors against a runtime that behaves badly: no verdict, the collector is named, the others go on.

use std::collections::BTreeMap;
use std::path::Path;

mod bus;
mod crio;
mod docker;
mod memory;

use containerd_client::services::v1::ListTasksResponse;
use containerd_client::types::v1::Process;
use tonic::Code;

use super::*;
use crate::cri::fake::{Fake, Say, sandbox, sandbox_status, task};
use nrh_core::observation::{OrphanCheck, TaskAnswer};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Sockets named by a person: the runtime's.
fn named(socket: PathBuf) -> Flags {
    Flags { runtime: Some(socket), docker: None }
}

/// The shipped rhythm, a hundred times as fast, with deadlines that leave room for a slow machine.
fn quick() -> Paces {
    let pace = Pace { rest: ms(100), urgent: ms(50), deadline: ms(400), bound: ms(30_000), back_off: ms(600_000) };
    let local = Pace { deadline: ms(5000), ..pace };
    Paces {
        version: pace,
        lists: pace,
        status: pace,
        tasks: pace,
        counted: Duration::from_secs(20),
        inspect: pace,
        processes: local,
        kubelet: pace,
        host: local,
        disks: local,
        port: local,
        bus: local,
    }
}

fn start(fake: &Fake, paces: &Paces) -> Collectors {
    Collectors::start(CollectorSettings { sockets: named(fake.socket()), paces: *paces, ..settings() })
}

fn settings() -> CollectorSettings {
    CollectorSettings { paces: quick(), ..CollectorSettings::default() }
}

/// Of a node whose files are all in this folder.
fn below(root: &Path) -> CollectorSettings {
    let host = HostPaths { root: root.to_owned(), proc: root.join("proc"), ..HostPaths::default() };
    CollectorSettings { host, ..settings() }
}

fn now(collectors: &Collectors) -> Observations {
    collectors.observations(Duration::ZERO, Instant::now())
}

/// Waits for a change after which `done` holds; fails loudly with what was seen last.
async fn until(collectors: &Collectors, what: &str, mut done: impl FnMut(&Observations) -> bool) -> Observations {
    let waited = tokio::time::timeout(Duration::from_mins(5), async {
        loop {
            let seen = now(collectors);
            if done(&seen) {
                return seen;
            }
            // Ages grow without a change, too.
            let _ = tokio::time::timeout(ms(50), collectors.changed()).await;
        }
    });
    match waited.await {
        Ok(seen) => seen,
        Err(elapsed) => panic!("{elapsed}: waited five minutes for {what}; last seen: {:#?}", now(collectors)),
    }
}

/// How long this thread has been held up from now on, by the lateness of its timers.
fn lateness() -> tokio::sync::watch::Receiver<Duration> {
    let (late, seen) = tokio::sync::watch::channel(Duration::ZERO);
    tokio::spawn(async move {
        loop {
            let due = Instant::now() + ms(20);
            tokio::time::sleep_until(due).await;
            late.send_modify(|late| *late += due.elapsed());
        }
    });
    seen
}

fn error(code: Code, said: &str) -> Say {
    Say::Error(code, said.to_owned())
}

fn is_hung<T>(reading: &Reading<T>) -> bool {
    matches!(reading, Reading::Hung { .. })
}

fn is_failed<T>(reading: &Reading<T>) -> bool {
    matches!(reading, Reading::Failed { .. })
}

fn is_unavailable<T>(reading: &Reading<T>) -> bool {
    matches!(reading, Reading::Unavailable { .. })
}

fn are_all(seen: &Observations, tasks: usize, check: fn(&Reading<TaskAnswer>) -> bool) -> bool {
    seen.tasks.len() == tasks && seen.tasks.values().all(check)
}

fn said(seen: &Observations, id: &str) -> Option<TaskAnswer> {
    seen.tasks.get(id).and_then(Reading::value).copied()
}

fn round(seen: &Observations) -> Option<u64> {
    seen.lists.value().map(|round| round.round)
}

/// How many containers and sandboxes have been answered for: one that was just asked for is in the table, too.
fn answered(seen: &Observations) -> usize {
    seen.tasks.values().filter(|reading| reading.value().is_some()).count()
}

/// The other collectors go on: fresh answers of version and process collector, two more of each.
async fn others_go_on(collectors: &Collectors, fake: &Fake) {
    let versions = fake.calls("Version");
    let before = until(collectors, "the process collector", |seen| seen.processes.value().is_some()).await;
    let table = before.processes.value().unwrap().round;
    until(collectors, "the other collectors to go on", |seen| {
        fake.calls("Version") >= versions + 2
            && matches!(seen.runtime, Reading::Done { age, .. } if age < ms(1500))
            && seen.processes.value().is_some_and(|value| value.round >= table + 2)
    })
    .await;
}

#[tokio::test]
async fn a_healthy_node_is_seen_whole() {
    let fake = Fake::start();
    fake.lists(&["s1", "s2"], &[("c1", "s1")]);
    fake.say("Get", task(2));
    let collectors = start(&fake, &quick());
    let seen = until(&collectors, "all collectors", |seen| {
        let local = seen.kubelet.value().is_some() && seen.host.value().is_some() && seen.disks.value().is_some();
        answered(seen) == 2 && round(seen).is_some_and(|round| round >= 3) && local && seen.status.value().is_some()
    })
    .await;
    let lists = seen.lists.value().unwrap();
    assert_eq!((lists.sandboxes.len(), lists.containers.len()), (2, 1));
    assert_eq!(lists.sandboxes_again, ["s1", "s2"]);
    assert!(lists.orphan_checks.is_empty());
    // Two sandboxes of 64 bytes and more each, or one container: small, and not nothing.
    assert!((10..1000).contains(&lists.answer_bytes), "{}", lists.answer_bytes);
    assert!(seen.host.value().unwrap().pids.iter().any(|limit| limit.usage.is_ok()));
    // The sandbox in which nothing runs is asked for itself, the other one through its container.
    let asked: Vec<&String> = seen.tasks.keys().collect();
    assert_eq!(asked, ["c1", "s2"]);
    assert_eq!(seen.tasks["c1"].value(), Some(&TaskAnswer::Answered));
    assert_eq!(collectors.call_counts().abandoned, BTreeMap::new());
}

#[tokio::test]
async fn a_status_that_hangs_is_a_collector_of_its_own() {
    let fake = Fake::start();
    fake.say("Status", Say::Never);
    let collectors = start(&fake, &quick());
    until(&collectors, "a hung status", |seen| is_hung(&seen.status)).await;
    others_go_on(&collectors, &fake).await;
    assert_eq!((fake.calls("Status"), collectors.call_counts().out["status"]), (1, 1), "nobody asks twice");
}

#[tokio::test]
async fn a_container_that_is_not_started_is_timed_from_the_first_list_that_shows_it() {
    let fake = Fake::start();
    fake.lists(&["s1"], &[("c1", "s1")]);
    fake.set(|world| world.containers[0].state = 0);
    let collectors = start(&fake, &quick());
    let since = |seen: &Observations| seen.lists.value().and_then(|round| round.unfinished.get("c1").copied());
    let first = since(&until(&collectors, "a container in between", |seen| since(seen).is_some()).await);
    until(&collectors, "it to have been so for longer", |seen| since(seen) > first && since(seen) >= Some(ms(200)))
        .await;
    fake.set(|world| world.containers[0].state = 1);
    until(&collectors, "it to run", |seen| seen.lists.value().is_some_and(|round| round.unfinished.is_empty())).await;
}

#[tokio::test]
async fn a_bad_list_is_no_verdict_and_delays_nobody() {
    for say in [
        error(Code::Internal, "boom"),
        error(Code::DeadlineExceeded, "context deadline exceeded"),
        Say::Broken,
        Say::Short,
        Say::Huge,
        Say::Garbage,
    ] {
        for list in ["ListContainers", "ListPodSandbox"] {
            let fake = Fake::start();
            fake.lists(&["s1"], &[("c1", "s1")]);
            fake.say(list, say.clone());
            let collectors = start(&fake, &quick());
            let seen = until(&collectors, "a failed list", |seen| is_failed(&seen.lists)).await;
            assert_eq!(seen.lists.value(), None, "{list} {say:?}: a part of a round was kept");
            assert_eq!(seen.list_too_large, matches!(say, Say::Huge), "{list} {say:?}");
            others_go_on(&collectors, &fake).await;
            fake.unsay(list);
            let seen = until(&collectors, "the lists to come back", |seen| seen.lists.value().is_some()).await;
            assert!(!seen.list_too_large);
        }
    }
}

#[tokio::test]
async fn a_list_that_this_probe_does_not_keep_says_nothing_of_the_runtime() {
    let fake = Fake::start();
    let names: Vec<String> = (0..20_000).map(|number| format!("c{number:063}")).collect();
    let containers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "s1")).collect();
    fake.lists(&["s1"], &containers);
    let collectors = start(&fake, &quick());
    let seen = until(&collectors, "a failed list", |seen| is_failed(&seen.lists)).await;
    assert!(!seen.list_too_large);
    let Reading::Failed { error, .. } = seen.lists else { unreachable!() };
    assert!(error.contains("does not keep"), "{error}");
}

#[tokio::test]
async fn a_list_that_hangs_is_seen_at_its_deadline_and_not_asked_again() {
    for (list, say, sandboxes) in [
        ("ListContainers", Say::Never, false),
        ("ListContainers", Say::Endless, false),
        ("ListPodSandbox", Say::Never, true),
    ] {
        let fake = Fake::start();
        fake.say(list, say);
        let collectors = start(&fake, &quick());
        // On a slow machine the list before it may be late, too, for a moment.
        until(&collectors, "a hung list", |seen| is_hung(&seen.lists) && seen.sandbox_list_hung == sandboxes).await;
        others_go_on(&collectors, &fake).await;
        collectors.refresh();
        others_go_on(&collectors, &fake).await;
        let Reading::Hung { out } = now(&collectors).lists else { panic!("{list} no longer hung") };
        assert!(out >= ms(400), "{out:?}");
        assert_eq!((fake.calls(list), fake.out(list)), (1, 1), "{list} was sent again");
        assert_eq!(collectors.call_counts().out["lists"], 1);
    }
}

/// The deadline of the one before is over when it is sent.
#[tokio::test]
async fn a_list_that_hangs_after_a_slow_one_is_seen_too() {
    let fake = Fake::start();
    let answer = Say::message(&k8s_cri::v1::ListPodSandboxResponse::default());
    fake.say("ListPodSandbox", Say::Late(ms(4000), Box::new(answer)));
    fake.say("ListContainers", Say::Never);
    let late = lateness();
    let collectors = start(&fake, &quick());
    until(&collectors, "a slow list of sandboxes", |seen| is_hung(&seen.lists) && seen.sandbox_list_hung).await;
    until(&collectors, "a hung list of containers", |seen| is_hung(&seen.lists) && !seen.sandbox_list_hung).await;
    let held_up = collectors.call_counts().stalled_seconds.get("lists").copied().unwrap_or_default();
    let late = late.borrow().as_secs_f64();
    assert!(held_up < late + 2.0, "the probe was held up for {late} s, and books {held_up} s");
}

#[tokio::test]
async fn a_slow_list_is_hung_for_a_while_and_then_an_answer() {
    let fake = Fake::start();
    let answer = Say::message(&k8s_cri::v1::ListContainersResponse::default());
    fake.say("ListContainers", Say::Late(ms(4000), Box::new(answer)));
    let collectors = start(&fake, &quick());
    until(&collectors, "a hung list", |seen| is_hung(&seen.lists)).await;
    until(&collectors, "its answer", |seen| round(seen).is_some()).await;
}

#[tokio::test]
async fn after_the_bound_a_call_is_dropped_counted_and_not_repeated_soon() {
    let fake = Fake::start();
    fake.say("ListContainers", Say::Never);
    let mut paces = quick();
    paces.lists.bound = ms(900);
    let collectors = start(&fake, &paces);
    until(
        &collectors,
        "the bound",
        |seen| matches!(&seen.lists, Reading::Failed { error, .. } if error.contains("given up")),
    )
    .await;
    assert_eq!(collectors.call_counts().abandoned.get("lists"), Some(&1));
    others_go_on(&collectors, &fake).await;
    collectors.refresh();
    tokio::time::sleep(ms(1500)).await;
    assert_eq!((fake.calls("ListContainers"), fake.out("ListContainers")), (1, 0));
}

#[tokio::test]
async fn a_version_call_that_hangs_does_not_hold_up_the_lists() {
    let fake = Fake::start();
    fake.say("Version", Say::Never);
    let collectors = start(&fake, &quick());
    let seen = until(&collectors, "a hung version call", |seen| is_hung(&seen.runtime)).await;
    let first = round(&seen).unwrap_or_default();
    until(&collectors, "more rounds", |seen| round(seen).is_some_and(|round| round >= first + 3)).await;
    assert_eq!(fake.calls("Version"), 1);
}

#[tokio::test]
async fn a_runtime_restart_is_seen_and_survived() {
    let mut fake = Fake::start();
    fake.lists(&["s1"], &[("c1", "s1")]);
    fake.say("Get", task(2));
    let collectors = start(&fake, &quick());
    until(&collectors, "a first answer", |seen| seen.lists.value().is_some() && seen.tasks.contains_key("c1")).await;
    fake.stop();
    let seen = until(&collectors, "the end", |seen| is_failed(&seen.runtime) && is_failed(&seen.lists)).await;
    assert!(seen.tasks.contains_key("c1"), "tasks were forgotten while nobody could look");
    fake.restart();
    until(&collectors, "the new runtime", |seen| {
        seen.runtime.value().is_some()
            && seen.lists.value().is_some()
            && matches!(seen.tasks.get("c1"), Some(Reading::Done { value: TaskAnswer::Answered, age, .. }) if *age < ms(1000))
    })
    .await;
}

/// Told in kubereboot/kured #976.
#[tokio::test]
async fn a_socket_that_is_missing_from_the_start_is_blindness_one_that_goes_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let sockets = named(folder.path().join("none.sock"));
    let collectors = Collectors::start(CollectorSettings { sockets, ..below(folder.path()) });
    until(&collectors, "blindness", |seen| is_unavailable(&seen.runtime)).await;

    let fake = Fake::start();
    fake.lists(&["s1"], &[]);
    let collectors = start(&fake, &quick());
    until(&collectors, "an answer", |seen| seen.runtime.value().is_some()).await;
    std::fs::remove_file(fake.socket()).unwrap();
    until(&collectors, "a failure", |seen| is_failed(&seen.runtime)).await;

    let collectors = Collectors::start(below(folder.path()));
    let seen =
        until(&collectors, "blindness", |seen| is_unavailable(&seen.runtime) && is_unavailable(&seen.lists)).await;
    // There is no process table at all at that place.
    assert!(!matches!(seen.processes, Reading::Done { .. }) && !matches!(seen.kubelet, Reading::Done { .. }));
}

async fn recheck(collectors: &Collectors, id: &str) -> OrphanCheck {
    let known = |seen: &Observations| seen.lists.value().and_then(|round| round.orphan_checks.get(id).copied());
    known(&until(collectors, "a recheck", |seen| known(seen).is_some()).await).unwrap()
}

#[tokio::test]
async fn an_orphan_is_confirmed_only_by_not_found() {
    let gone = || error(Code::NotFound, "gone");
    let cases: [(&str, &str, Say, OrphanCheck); 6] = [
        ("as it is", "x", gone(), OrphanCheck::Confirmed),
        ("the container is gone", "ContainerStatus:c1", gone(), OrphanCheck::Refuted),
        ("the sandbox answers", "PodSandboxStatus:lost", sandbox_status(0), OrphanCheck::Refuted),
        ("an error", "PodSandboxStatus:lost", error(Code::Unknown, "?"), OrphanCheck::NoAnswer),
        ("cut off", "PodSandboxStatus:lost", Say::Broken, OrphanCheck::NoAnswer),
        ("its own deadline", "ContainerStatus:c1", error(Code::DeadlineExceeded, "?"), OrphanCheck::NoAnswer),
    ];
    for (what, method, say, expected) in cases {
        let fake = Fake::start();
        fake.lists(&["s1"], &[("c1", "lost"), ("c2", "s1")]);
        fake.say(method, say);
        let collectors = start(&fake, &quick());
        assert_eq!(recheck(&collectors, "c1").await, expected, "{what}");
        assert_eq!(fake.calls("ContainerStatus:c2"), 0, "{what}: a container with a sandbox was asked for");
    }
}

#[tokio::test]
async fn a_sandbox_in_either_of_two_lists_is_there() {
    for (before, after, is_odd) in [(&["s1"][..], &[][..], false), (&[], &["s1"], false), (&[], &[], true)] {
        let fake = Fake::start();
        fake.lists(before, &[("c1", "s1")]);
        fake.set(|world| world.sandboxes_again = Some(after.iter().map(|id| sandbox(id)).collect()));
        let collectors = start(&fake, &quick());
        let seen = until(&collectors, "some rounds", |seen| round(seen).is_some_and(|round| round >= 2)).await;
        assert_eq!(seen.lists.value().unwrap().orphan_checks.contains_key("c1"), is_odd, "{before:?} {after:?}");
        assert_eq!(fake.calls("ContainerStatus") > 0, is_odd, "{before:?} {after:?}");
    }
}

#[tokio::test]
async fn at_most_five_direct_questions_a_round_and_all_get_their_turn() {
    let ids: Vec<String> = (0..12).map(|number| format!("c{number:02}")).collect();
    let containers: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), "lost")).collect();
    let fake = Fake::start();
    fake.lists(&["s1"], &containers);
    let collectors = start(&fake, &quick());
    let mut most = 0;
    until(&collectors, "all of them", |seen| {
        most = most.max(seen.lists.value().map_or(0, |round| round.orphan_checks.len()));
        ids.iter().all(|id| fake.calls(&format!("ContainerStatus:{id}")) > 0)
    })
    .await;
    assert_eq!(most, 5);
}

#[tokio::test]
async fn a_direct_question_that_hangs_stays_out_alone() {
    let fake = Fake::start();
    fake.lists(&["s1"], &[("c1", "lost"), ("c2", "lost")]);
    fake.say("ContainerStatus:c1", Say::Never);
    let collectors = start(&fake, &quick());
    let seen = until(&collectors, "two rounds", |seen| round(seen).is_some_and(|round| round >= 2)).await;
    let orphan_checks = &seen.lists.value().unwrap().orphan_checks;
    assert_eq!(orphan_checks["c1"], OrphanCheck::NoAnswer);
    assert_eq!(orphan_checks["c2"], OrphanCheck::Confirmed);
    assert_eq!((fake.calls("ContainerStatus:c1"), fake.out("ContainerStatus:c1")), (1, 1));
    assert_eq!(collectors.call_counts().out["rechecks"], 1);
}

#[tokio::test]
async fn an_unresponsive_task_is_named_and_the_others_answer() {
    let fake = Fake::start();
    let ids = ["c1", "c2", "c3", "c4", "c5", "c6"];
    fake.lists(&["s1"], &ids.map(|id| (id, "s1")));
    fake.say("Get", task(2));
    fake.say("Get:c1", Say::Never);
    fake.say("Get:c2", Say::Late(ms(1300), Box::new(task(0))));
    fake.say("Get:c3", error(Code::DeadlineExceeded, "state"));
    fake.say("Get:c4", error(Code::NotFound, "no task"));
    fake.say("Get:c5", error(Code::Unavailable, "?"));
    let mut paces = quick();
    paces.tasks.deadline = ms(2000);
    let collectors = start(&fake, &paces);
    let is_over = |reading: &Reading<TaskAnswer>| !matches!(reading, Reading::Never | Reading::Hung { .. });
    // An answer that came late while this process could not run is no silence: c2 is then asked again.
    let seen = until(&collectors, "all tasks", |seen| {
        seen.tasks.len() == 6
            && is_hung(&seen.tasks["c1"])
            && seen.tasks["c2"].value() == Some(&TaskAnswer::NoAnswer)
            && ids[2..].iter().all(|id| is_over(&seen.tasks[*id]))
    })
    .await;
    assert_eq!(said(&seen, "c3"), Some(TaskAnswer::NoAnswer));
    assert_eq!(said(&seen, "c4"), Some(TaskAnswer::NotFound));
    assert!(is_failed(&seen.tasks["c5"]));
    assert_eq!(said(&seen, "c6"), Some(TaskAnswer::Answered));
    let calls = fake.calls("Get:c6");
    until(&collectors, "more questions", |_| fake.calls("Get:c6") >= calls + 2).await;
    assert_eq!((fake.calls("Get:c1"), fake.out("Get:c1")), (1, 1));
}

#[tokio::test]
async fn what_one_question_for_all_tasks_lacks_is_asked_for_alone() {
    let fake = Fake::start();
    let ids = ["c1", "c2", "c3"];
    fake.lists(&["s1"], &ids.map(|id| (id, "s1")));
    let process = |id: &str| Process { container_id: id.to_owned(), status: 2, ..Process::default() };
    let unknown = Process { status: 0, ..process("c2") };
    fake.say("List", Say::message(&ListTasksResponse { tasks: vec![process("c1"), unknown] }));
    fake.say("Get", task(2));
    fake.say("Get:c3", error(Code::DeadlineExceeded, "state"));
    let collectors = start(&fake, &quick());
    until(&collectors, "all tasks", |seen| {
        ids.map(|id| said(seen, id)) == [TaskAnswer::Answered, TaskAnswer::Answered, TaskAnswer::NoAnswer].map(Some)
    })
    .await;
    // Those that the answer lacks are asked again and again, and the other one is not.
    let (well, calls) = (fake.calls("Get:c1"), fake.calls("Get:c3"));
    until(&collectors, "more questions", |_| fake.calls("Get:c3") >= calls + 3).await;
    assert!(fake.calls("Get:c1") <= well + 1, "{} questions", fake.calls("Get:c1") - well);
    assert!(fake.calls("Get:c2") > 0);
}

#[tokio::test]
async fn a_containerd_that_answers_no_question_accuses_no_task() {
    let fake = Fake::start();
    let ids = ["c1", "c2", "c3", "c4", "c5", "c6"];
    fake.lists(&["s1"], &ids.map(|id| (id, "s1")));
    fake.say("Get", Say::Never);
    let collectors = start(&fake, &quick());
    until(&collectors, "all to be asked", |seen| are_all(seen, 6, is_failed)).await;
    tokio::time::sleep(ms(1000)).await;
    let seen = now(&collectors);
    assert!(seen.tasks.values().all(is_failed), "{:?}", seen.tasks);
    assert!(ids.iter().all(|id| fake.calls(&format!("Get:{id}")) == 1), "a question was sent twice");
    others_go_on(&collectors, &fake).await;
    // Once the service answers anything, what is still out is out because of its own shim.
    fake.say("Get", error(Code::NotFound, "no such container"));
    until(&collectors, "the control question", |seen| are_all(seen, 6, is_hung)).await;
}

#[tokio::test]
async fn other_runtimes_are_not_asked_about_tasks() {
    let fake = Fake::start();
    fake.name("another");
    fake.lists(&["s1"], &[("c1", "s1")]);
    let collectors = start(&fake, &quick());
    collectors.suspects(vec!["c1".to_owned()]);
    let seen = until(&collectors, "some rounds", |seen| round(seen).is_some_and(|round| round >= 4)).await;
    assert!(seen.tasks.is_empty());
    assert_eq!(fake.calls("Get"), 0);
}

/// Both tasks are asked for and neither answers: that is nothing against them, however long it takes.
async fn nobody_is_accused(collectors: &Collectors) {
    until(collectors, "no verdict", |seen| are_all(seen, 2, is_failed)).await;
    tokio::time::sleep(ms(600)).await;
    assert!(are_all(&now(collectors), 2, is_failed), "{:?}", now(collectors).tasks);
}

#[tokio::test]
async fn a_refresh_does_not_wait_for_the_next_turn() {
    let fake = Fake::start();
    let mut paces = quick();
    for pace in [&mut paces.version, &mut paces.lists, &mut paces.processes, &mut paces.kubelet] {
        (pace.rest, pace.urgent) = (ms(60_000), ms(40_000));
    }
    let collectors = start(&fake, &paces);
    until(&collectors, "a first look", |seen| {
        seen.runtime.value().is_some() && seen.lists.value().is_some() && seen.processes.value().is_some()
    })
    .await;
    tokio::time::sleep(ms(300)).await;
    assert_eq!(fake.calls("Version"), 1);
    while tokio::time::timeout(ms(10), collectors.changed()).await.is_ok() {}
    collectors.refresh();
    until(&collectors, "second looks", |seen| {
        round(seen) == Some(2)
            && seen.processes.value().is_some_and(|table| table.round == 2)
            && fake.calls("Version") == 2
    })
    .await;
    tokio::time::sleep(ms(1200)).await;
    assert_eq!(fake.calls("Version"), 2, "one refresh was served twice");
}

#[tokio::test]
async fn urgency_shortens_the_wait_that_is_running() {
    let fake = Fake::start();
    let mut paces = quick();
    paces.version.rest = ms(60_000);
    let collectors = start(&fake, &paces);
    until(&collectors, "a first look", |seen| seen.runtime.value().is_some()).await;
    collectors.set_urgent(true);
    until(&collectors, "more looks", |_| fake.calls("Version") >= 3).await;
}

#[tokio::test]
async fn a_health_check_that_answers_where_no_kubelet_is_seen_is_no_missing_kubelet() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("proc")).unwrap();
    std::fs::write(folder.path().join("proc/uptime"), "1000.00 1.0\n").unwrap();
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let healthz = server.local_addr().unwrap();
    let mut settings = below(folder.path());
    settings.host.healthz = healthz;
    let collectors = Collectors::start(settings);
    let (mut stream, _) = server.accept().await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    drop((stream, server));
    until(&collectors, "a failed check", |seen| is_failed(&seen.kubelet)).await;
    // Then nothing listens there any more.
    until(&collectors, "no kubelet", |seen| seen.kubelet.value().is_some_and(|seen| seen.process.is_none())).await;
}

#[tokio::test]
async fn a_guess_does_not_replace_the_socket_that_an_earlier_probe_has_used() {
    let folder = tempfile::tempdir().unwrap();
    // Another runtime's socket is there, and no kubelet to name the right one.
    std::fs::create_dir_all(folder.path().join("run/containerd")).unwrap();
    std::fs::write(folder.path().join("run/containerd/containerd.sock"), "").unwrap();
    let saved = Endpoint::cri(folder.path().join("run/crio/crio.sock"), NamedBy::Kubelet);
    let guessing = Collectors::start(below(folder.path()));
    let guessed = |collectors: &Collectors| collectors.endpoint().map(|endpoint| endpoint.named_by);
    until(&guessing, "a guess", |_| guessed(&guessing) == Some(NamedBy::Nobody)).await;
    let collectors =
        Collectors::start(CollectorSettings { saved_endpoint: Some(saved.clone()), ..below(folder.path()) });
    until(&collectors, "a look", |seen| !matches!(seen.kubelet, Reading::Never)).await;
    assert_eq!(collectors.endpoint(), Some(saved));
}
