//! Docker as the runtime: behind cri-dockerd, and alone.

use serde_json::json;

use super::*;
use crate::docker::fake::{Fake as Docker, Say as Said, id, listed};
use nrh_core::observation::{ContainerState, RemovalState};

/// Docker's own API is all there is.
fn alone(docker: &Docker, named_by: NamedBy) -> Collectors {
    let settings = below(docker.socket().parent().unwrap());
    // A kubelet of another test would name another runtime. Containers of this Docker are this process.
    std::fs::create_dir_all(&settings.host.proc).unwrap();
    let own = std::process::id().to_string();
    std::os::unix::fs::symlink(Path::new("/proc").join(&own), settings.host.proc.join(own)).unwrap();
    let saved_endpoint = Some(Endpoint::docker(docker.socket(), named_by));
    Collectors::start(CollectorSettings { saved_endpoint, ..settings })
}

/// cri-dockerd in front of it.
fn behind(cri: &Fake, docker: &Docker) -> Collectors {
    cri.name("docker");
    let sockets = Flags { runtime: Some(cri.socket()), docker: Some(docker.socket()) };
    Collectors::start(CollectorSettings { sockets, ..settings() })
}

fn answer(status: u16, text: &str) -> Said {
    Said::Error(status, text.to_owned())
}

fn knows_removals(seen: &Observations) -> bool {
    seen.lists.value().is_some_and(|round| round.removals.is_some())
}

#[tokio::test]
async fn alone_it_gives_version_lists_and_every_container_and_sandbox_by_itself() {
    let docker = Docker::start();
    let (sandbox, idle, container) = (id('a'), id('b'), id('c'));
    docker.lists(&[&sandbox, &idle], &[(&container, &sandbox)]);
    let collectors = alone(&docker, NamedBy::Kubelet);
    let seen = until(&collectors, "all collectors", |seen| answered(seen) == 3 && round(seen) >= Some(2)).await;
    assert_eq!((seen.kind, seen.runtime.value().unwrap().name.as_str()), (RuntimeKind::Docker, "docker"));
    let lists = seen.lists.value().unwrap();
    assert_eq!((lists.sandboxes.len(), lists.containers.len(), lists.sandboxes_again.len()), (2, 1, 2));
    assert_eq!((lists.orphan_checks.len(), lists.removals.as_deref()), (0, Some(&[][..])));
    for id in [&sandbox, &idle, &container] {
        assert_eq!(said(&seen, id), Some(TaskAnswer::DaemonAnswered), "{id}");
    }
}

#[tokio::test]
async fn behind_cri_dockerd_the_lists_are_cris_and_single_containers_dockers() {
    let (cri, docker) = (Fake::start(), Docker::start());
    let (sandbox, container) = (id('a'), id('c'));
    cri.lists(&[&sandbox], &[(&container, &sandbox)]);
    docker.lists(&[&sandbox], &[(&container, &sandbox)]);
    let collectors = behind(&cri, &docker);
    let seen = until(&collectors, "all collectors", |seen| answered(seen) == 2 && knows_removals(seen)).await;
    assert_eq!(said(&seen, &container), Some(TaskAnswer::DaemonAnswered));
    assert_eq!((docker.calls("Sandboxes"), docker.calls("Containers"), cri.calls("Get")), (0, 0, 0));
}

#[tokio::test]
async fn a_locked_container_is_named_the_others_answer_and_nobody_asks_twice() {
    let (cri, docker) = (Fake::start(), Docker::start());
    let (sandbox, locked, other) = (id('a'), id('c'), id('d'));
    cri.lists(&[&sandbox], &[(&locked, &sandbox), (&other, &sandbox)]);
    docker.lists(&[&sandbox], &[(&locked, &sandbox), (&other, &sandbox)]);
    docker.say(&format!("Inspect:{locked}"), Said::Never);
    let collectors = behind(&cri, &docker);
    let hung = |seen: &Observations| seen.tasks.get(&locked).is_some_and(is_hung);
    until(&collectors, "the hang", hung).await;
    let calls = docker.calls(&format!("Inspect:{other}"));
    collectors.suspects(vec![locked.clone(), other.clone()]);
    until(&collectors, "more questions", |_| docker.calls(&format!("Inspect:{other}")) >= calls + 3).await;
    assert!(hung(&now(&collectors)));
    let inspect = format!("Inspect:{locked}");
    assert_eq!((docker.calls(&inspect), docker.out(&inspect)), (1, 1));
    drop(collectors);
}

#[tokio::test]
async fn a_docker_that_answers_for_no_container_accuses_none() {
    let docker = Docker::start();
    let (sandbox, container) = (id('a'), id('c'));
    docker.lists(&[&sandbox], &[(&container, &sandbox)]);
    for what in ["Inspect".to_owned(), format!("Inspect:{sandbox}"), format!("Inspect:{container}")] {
        docker.say(&what, Said::Never);
    }
    let nobody = format!("Inspect:{}", "0".repeat(64));
    docker.say(&nobody, Said::Never);
    let collectors = alone(&docker, NamedBy::Kubelet);
    nobody_is_accused(&collectors).await;
    // Once it answers anything, what is still out is out because of its own lock.
    docker.say(&nobody, Said::Error(404, format!("No such container: {}", "0".repeat(64))));
    until(&collectors, "the control question", |seen| are_all(seen, 2, is_hung)).await;
}

#[tokio::test]
async fn what_docker_remembers_is_held_against_the_process_table() {
    let docker = Docker::start();
    let (sandbox, lost, ended, gone, broken) = (id('a'), id('c'), id('d'), id('e'), id('f'));
    let containers = [&lost, &ended, &gone, &broken].map(|id| (id.as_str(), sandbox.as_str()));
    docker.lists(&[&sandbox], &containers);
    let inspect = |id: &str, state: serde_json::Value| {
        docker.say(&format!("Inspect:{id}"), Said::Json(json!({"Id": id, "State": state})));
    };
    // No process can have this id.
    inspect(&lost, json!({"Status": "running", "Running": true, "Pid": 4_194_305}));
    inspect(&ended, json!({"Status": "exited", "Running": false, "Pid": 0}));
    docker.say(&format!("Inspect:{gone}"), Said::Error(404, format!("No such container: {gone}")));
    docker.say(&format!("Inspect:{broken}"), answer(500, "?"));
    let collectors = alone(&docker, NamedBy::Kubelet);
    let asked = |seen: &Observations| {
        seen.tasks.len() == 5 && !seen.tasks.values().any(|reading| matches!(reading, Reading::Never))
    };
    let seen = until(&collectors, "all answers", asked).await;
    assert_eq!(said(&seen, &sandbox), Some(TaskAnswer::DaemonAnswered));
    assert_eq!(said(&seen, &lost), Some(TaskAnswer::ProcessGone));
    assert_eq!(said(&seen, &ended), Some(TaskAnswer::Ended));
    assert_eq!(said(&seen, &gone), Some(TaskAnswer::NotFound));
    assert!(is_failed(&seen.tasks[&broken]));
}

#[tokio::test]
async fn an_orphan_is_confirmed_by_dockers_404_alone() {
    for (what, say, expected) in [
        ("it is gone", None, OrphanCheck::Confirmed),
        ("it answers", Some(Said::Json(json!({"Id": id('b'), "State": {"Status": "exited"}}))), OrphanCheck::Refuted),
        ("it fails", Some(answer(500, "?")), OrphanCheck::NoAnswer),
        ("another 404", Some(answer(404, "page not found")), OrphanCheck::NoAnswer),
    ] {
        let (docker, lost, container) = (Docker::start(), id('b'), id('c'));
        docker.lists(&[&id('a')], &[(&container, &lost)]);
        if let Some(say) = say {
            docker.say(&format!("Inspect:{lost}"), say);
        }
        let collectors = alone(&docker, NamedBy::Kubelet);
        assert_eq!(recheck(&collectors, &container).await, expected, "{what}");
    }
}

#[tokio::test]
async fn a_bad_list_of_dockers_is_no_verdict() {
    for say in [answer(500, "boom"), Said::Short, Said::Half, Said::Pieces(17 << 20), Said::Garbage] {
        for list in ["Sandboxes", "Containers"] {
            let docker = Docker::start();
            docker.lists(&[&id('a')], &[]);
            docker.say(list, say.clone());
            let collectors = alone(&docker, NamedBy::Kubelet);
            let seen = until(&collectors, "a failed list", |seen| is_failed(&seen.lists)).await;
            assert_eq!(seen.lists.value(), None, "{list} {say:?}");
        }
    }
    let docker = Docker::start();
    docker.say("Containers", Said::Never);
    let collectors = alone(&docker, NamedBy::Kubelet);
    let seen = until(&collectors, "a hung list", |seen| is_hung(&seen.lists)).await;
    assert!(!seen.sandbox_list_hung);
}

#[tokio::test]
async fn removals_are_asked_for_one_by_one_and_their_failure_is_no_failure_of_the_round() {
    let docker = Docker::start();
    let (sandbox, dead, slow, gone) = (id('a'), id('c'), id('d'), id('e'));
    docker.lists(&[&sandbox], &[]);
    let entries: Vec<_> =
        [&dead, &slow, &gone].into_iter().map(|id| listed(id, "container", &sandbox, "removing")).collect();
    docker.say("Removals", Said::Json(json!(entries)));
    let state = json!({"Status": "dead", "Dead": true, "Error": "busy"});
    docker.say(&format!("Inspect:{dead}"), Said::Json(json!({"Id": dead, "State": state})));
    let state = json!({"Status": "removing"});
    docker.say(&format!("Inspect:{slow}"), Said::Json(json!({"Id": slow, "State": state})));
    let collectors = alone(&docker, NamedBy::Kubelet);
    let seen = until(&collectors, "removals", knows_removals).await;
    let removals = seen.lists.value().unwrap().removals.clone().unwrap();
    let said: Vec<_> = removals.iter().map(|removal| removal.state.clone().unwrap()).collect();
    assert_eq!(said, [RemovalState::Failed("busy".to_owned()), RemovalState::NotFailed, RemovalState::Gone]);
    assert!(removals.iter().all(|removal| removal.container.state == ContainerState::Unknown));
    docker.say("Removals", answer(500, "?"));
    until(&collectors, "a round without", |seen| seen.lists.value().is_some() && !knows_removals(seen)).await;
}

#[tokio::test]
async fn sandboxes_that_are_not_ready_are_asked_for_a_few_at_a_time_and_in_turn() {
    let (cri, docker) = (Fake::start(), Docker::start());
    let ids = ['a', 'b', 'c', 'd', 'e'].map(id);
    cri.lists(&ids.each_ref().map(String::as_str), &[]);
    for number in 1..ids.len() {
        cri.set(|world| world.sandboxes[number].state = 1);
    }
    let gone = format!("Error response from daemon: No such container: {}", ids[1]);
    cri.say(&format!("PodSandboxStatus:{}", ids[1]), Say::Error(Code::Unknown, gone));
    cri.say(&format!("PodSandboxStatus:{}", ids[3]), error(Code::Internal, "?"));
    let collectors = behind(&cri, &docker);
    let mut said = BTreeMap::new();
    until(&collectors, "an answer of each", |seen| {
        if let Some(round) = seen.lists.value() {
            // Two in turn, and the one that is gone again.
            assert!(round.asked_sandboxes.len() <= 3, "{:?}", round.asked_sandboxes);
            said.extend(round.asked_sandboxes.clone());
        }
        said.len() == 4
    })
    .await;
    let said: Vec<_> = ids.iter().map(|id| said.get(id).copied()).collect();
    assert_eq!(said, [None, Some(Some(false)), Some(Some(true)), Some(None), Some(Some(true))]);
    assert_eq!(cri.calls(&format!("PodSandboxStatus:{}", ids[0])), 0, "one that is ready is there");
}

#[tokio::test]
async fn a_docker_that_nobody_named_and_no_kubelet_uses_is_not_the_runtime() {
    let docker = Docker::start();
    let collectors = alone(&docker, NamedBy::Nobody);
    until(&collectors, "blindness", |seen| is_unavailable(&seen.lists)).await;
    docker.lists(&[&id('a')], &[]);
    until(&collectors, "lists", |seen| seen.lists.value().is_some()).await;
}

#[tokio::test]
async fn without_dockers_socket_its_containers_are_not_known_to_be_well() {
    let (cri, docker) = (Fake::start(), Docker::start());
    cri.lists(&[&id('a')], &[]);
    let missing = docker.socket();
    drop(docker);
    cri.name("docker");
    let sockets = Flags { runtime: Some(cri.socket()), docker: Some(missing) };
    let collectors = Collectors::start(CollectorSettings { sockets, ..settings() });
    let is_asked = |seen: &Observations| seen.tasks.get(&id('a')).is_some_and(|reading| *reading != Reading::Never);
    let seen = until(&collectors, "a question", is_asked).await;
    assert!(is_failed(&seen.tasks[&id('a')]), "{:?}", seen.tasks);
    assert_eq!(seen.lists.value().unwrap().removals, None);
}
