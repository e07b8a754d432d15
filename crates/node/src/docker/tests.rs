//! Every way in which an answer may be none.

use std::time::Instant;

use serde_json::json;

use super::fake::{Fake, Say, id, listed};
use super::*;
use nrh_core::observation::{ContainerState, TaskAnswer};

const SOON: Duration = Duration::from_secs(10);

fn docker(fake: &Fake) -> Docker {
    Docker::at(&fake.socket())
}

#[tokio::test]
async fn a_healthy_docker_is_read() {
    let fake = Fake::start();
    let (sandbox, container) = (id('a'), id('b'));
    fake.lists(&[&sandbox], &[(&container, &sandbox)]);
    let docker = docker(&fake);
    let version = docker.version(SOON).await.unwrap();
    assert_eq!((version.name.as_str(), version.version.as_str()), ("docker", "20.10.24"));
    let sandboxes = docker.sandboxes(SOON).await.unwrap();
    assert_eq!((sandboxes.len(), sandboxes[0].ready, sandboxes[0].pod.name.as_str()), (1, true, "pod-a"));
    let containers = docker.containers(SOON).await.unwrap();
    assert_eq!((containers[0].sandbox_id.as_str(), containers[0].state), (sandbox.as_str(), ContainerState::Running));
    assert_eq!(docker.inspect(&container, SOON).await.unwrap().answer(false), TaskAnswer::DaemonAnswered);
    docker.answers(SOON).await.unwrap();
}

#[tokio::test]
async fn only_dockers_own_words_say_that_a_container_is_not_there() {
    let fake = Fake::start();
    let (docker, id) = (docker(&fake), id('c'));
    assert_eq!(docker.inspect(&id, SOON).await, Err(CriError::NotFound));
    for say in [
        Say::Error(404, "page not found".to_owned()),
        Say::Error(404, format!("No such container: {}", super::fake::id('d'))),
        Say::Text(404, "<html>not here</html>".to_owned()),
    ] {
        fake.say("Inspect", say.clone());
        assert!(matches!(docker.inspect(&id, SOON).await, Err(CriError::Unimplemented(_))), "{say:?}");
        assert!(docker.answers(SOON).await.is_err(), "{say:?}");
    }
}

#[tokio::test]
async fn what_is_no_whole_answer_is_an_error_that_says_why() {
    type Is = fn(&CriError) -> bool;
    let cut: Is = |error| matches!(error, CriError::Cut(_));
    let large: Is = |error| matches!(error, CriError::TooLarge(_));
    let foreign: Is = |error| matches!(error, CriError::Unimplemented(_));
    let other: Is = |error| matches!(error, CriError::Other(_));
    let forbidden: Is = |error| matches!(error, CriError::Forbidden(_));
    let cases: [(Say, Is); 11] = [
        (Say::Short, cut),
        (Say::Half, cut),
        (Say::Announced((16 << 20) + 1), large),
        (Say::Pieces(17 << 20), large),
        (Say::Garbage, foreign),
        (Say::Text(200, "hello".to_owned()), foreign),
        (Say::Json(json!([{"State": "running"}])), foreign),
        (Say::Error(400, "invalid filter".to_owned()), foreign),
        (Say::Error(500, "driver failed".to_owned()), other),
        (Say::Error(403, "authorization denied by plugin".to_owned()), forbidden),
        (Say::Text(301, String::new()), foreign),
    ];
    let fake = Fake::start();
    for (say, expected) in cases {
        fake.say("Containers", say.clone());
        let error = docker(&fake).containers(SOON).await.unwrap_err();
        assert!(expected(&error), "{say:?}: {error:?}");
        assert!(error.to_string().len() < 400);
    }
    fake.say("Inspect", Say::Pieces(2 << 20));
    assert!(matches!(docker(&fake).inspect(&id('c'), SOON).await, Err(CriError::TooLarge(_))));
    fake.say("Version", Say::Text(200, "{\"Server\": \"something else\"}".to_owned()));
    assert!(matches!(docker(&fake).version(SOON).await, Err(CriError::Unimplemented(_))));
}

#[tokio::test]
async fn a_list_of_which_too_much_would_be_kept_is_refused_by_its_name() {
    let fake = Fake::start();
    let list = |number| Say::Json((0..number).map(|_| listed(&id('c'), "container", &id('a'), "exited")).collect());
    fake.say("Containers", list(3000));
    assert_eq!(docker(&fake).containers(SOON).await.unwrap().len(), 3000);
    fake.say("Containers", list(12_000));
    let refused = docker(&fake).containers(SOON).await.unwrap_err();
    assert!(matches!(&refused, CriError::NotKept(text) if text.contains("KiB that are kept")), "{refused:?}");
}

#[tokio::test]
async fn every_call_ends_by_its_deadline_and_leaves_no_connection() {
    let fake = Fake::start();
    let deadline = Duration::from_millis(150);
    for say in [Say::Never, Say::Endless] {
        fake.say("Inspect", say);
        let began = Instant::now();
        assert_eq!(docker(&fake).inspect(&id('c'), deadline).await, Err(CriError::Deadline(deadline)));
        assert!(began.elapsed() < Duration::from_secs(5));
        let end = Instant::now() + SOON;
        while fake.out("Inspect") > 0 {
            assert!(Instant::now() < end, "the connection is still open");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn a_socket_that_is_not_there_or_not_served_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let docker = Docker::at(&folder.path().join("none.sock"));
    assert!(matches!(docker.version(SOON).await, Err(CriError::Missing(_))));
    let path = folder.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(matches!(Docker::at(&path).version(SOON).await, Err(CriError::Unreachable(_))));
}

#[tokio::test]
async fn no_id_but_a_full_one_becomes_part_of_a_path() {
    let fake = Fake::start();
    for id in ["", "abc", "../info", &format!("{}/json?size=1", id('a'))] {
        assert!(matches!(docker(&fake).inspect(id, SOON).await, Err(CriError::Other(_))), "{id}");
    }
    assert_eq!(fake.calls("Inspect"), 0);
}
