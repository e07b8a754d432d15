//! The client against a runtime that behaves badly.

use std::io::Write;
use std::os::unix::net::UnixListener;

use containerd_client::types::v1::Status as TaskStatus;

use super::fake::{Fake, Say, task};
use super::tasks::Tasks;
use super::*;

const SOON: Duration = Duration::from_secs(10);
const BOUND: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_millis(100);

async fn lists(say: Say) -> CriError {
    let fake = Fake::start();
    fake.say("ListContainers", say);
    Cri::connect(&fake.socket()).await.unwrap().containers(BOUND).await.unwrap_err()
}

#[tokio::test]
async fn a_healthy_runtime_answers() {
    let fake = Fake::start();
    fake.lists(&["s1"], &[("c1", "s1")]);
    let cri = Cri::connect(&fake.socket()).await.unwrap();
    let version = cri.version(SOON).await.unwrap();
    assert_eq!((version.name.as_str(), version.version.as_str()), ("containerd", "1.6.20"));
    assert!(cri.sandboxes(SOON).await.unwrap().items[0].ready);
    let containers = cri.containers(SOON).await.unwrap().items;
    assert_eq!(containers[0].pod.as_ref().unwrap().uid, "uid-of-s1");
    assert_eq!(cri.container_status("c1", SOON).await.unwrap(), ContainerState::Running);
    assert!(cri.sandbox_ready("s1", SOON).await.unwrap());
}

#[tokio::test]
async fn what_it_says_of_its_network_is_taken_bounded_and_silence_is_nothing() {
    let fake = Fake::start();
    let cri = Cri::connect(&fake.socket()).await.unwrap();
    assert!(cri.status(SOON).await.unwrap().network.unwrap().ready);
    fake.network(false, "NetworkPluginNotReady", &"x".repeat(5000));
    let network = cri.status(SOON).await.unwrap().network.unwrap();
    assert_eq!((network.ready, network.reason.as_str()), (false, "NetworkPluginNotReady"));
    assert!(network.message.len() <= 256);
    fake.say("Status", Say::message(&k8s_cri::v1::StatusResponse::default()));
    assert_eq!(cri.status(SOON).await.unwrap().network, None);
    fake.say("Status", Say::Never);
    assert_eq!(cri.status(BOUND).await, Err(CriError::Deadline(BOUND)));
}

#[tokio::test]
async fn every_bad_answer_has_its_name() {
    let error = |code, text: &str| Say::Error(code, text.to_owned());
    assert_eq!(lists(error(Code::NotFound, "x")).await, CriError::NotFound);
    assert_eq!(lists(error(Code::DeadlineExceeded, "x")).await, CriError::DeadlineInside);
    assert!(matches!(lists(error(Code::ResourceExhausted, "grpc: too large")).await, CriError::TooLarge(_)));
    assert!(matches!(lists(error(Code::Internal, "boom")).await, CriError::Other(text) if text.contains("boom")));
    let long = "x".repeat(5000);
    assert!(matches!(lists(error(Code::Internal, &long)).await, CriError::Other(text) if text.len() <= MAX_ERROR));
    assert!(matches!(lists(error(Code::Unavailable, "ttrpc: closed")).await, CriError::Other(_)));
    assert!(matches!(lists(Say::Huge).await, CriError::TooLarge(_)));
    assert!(matches!(lists(Say::Broken).await, CriError::Cut(_)));
    assert!(matches!(lists(Say::Short).await, CriError::Cut(_)));
    assert!(matches!(lists(Say::Garbage).await, CriError::Other(_) | CriError::Cut(_)));
    assert_eq!(lists(Say::Never).await, CriError::Deadline(BOUND));
    assert_eq!(lists(Say::Endless).await, CriError::Deadline(BOUND));
}

#[tokio::test]
async fn dockers_words_for_not_found_count_only_for_the_same_id() {
    let fake = Fake::start();
    let cri = Cri::connect(&fake.socket()).await.unwrap();
    let say = |id: &str| Say::Error(Code::Unknown, format!("Error response from daemon: No such container: {id}"));
    fake.say("ContainerStatus", say("abc"));
    assert_eq!(cri.container_status("abc", SOON).await, Err(CriError::NotFound));
    assert!(matches!(cri.container_status("def", SOON).await, Err(CriError::Other(_))));
}

#[tokio::test]
async fn a_server_that_speaks_no_grpc_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("x.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(1) {
            let _ = stream.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = match Cri::connect(&socket).await {
        Ok(cri) => cri.version(SOON).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(error, CriError::Cut(_) | CriError::Unreachable(_)), "{error:?}");
}

#[tokio::test]
async fn a_dead_or_missing_socket_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Cri::connect(&folder.path().join("none.sock")).await.unwrap_err();
    assert!(matches!(missing, CriError::Missing(_)), "{missing:?}");
    let dead = folder.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let refused = Cri::connect(&dead).await.unwrap_err();
    assert!(matches!(&refused, CriError::Unreachable(text) if text.contains("refused")), "{refused:?}");
}

/// Reported as `RuntimeUnreachable` by a probe that had too many files open.
#[test]
fn what_this_process_lacks_says_nothing_about_the_runtime() {
    use rustix::io::Errno;
    for errno in [Errno::CONNREFUSED, Errno::CONNRESET, Errno::NOTCONN, Errno::AGAIN] {
        let error = refused(Path::new("/run/x.sock"), &errno.into());
        assert!(matches!(error, CriError::Unreachable(_)) && error.is_silence(), "{error:?}");
    }
    for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS] {
        let error = refused(Path::new("/run/x.sock"), &errno.into());
        assert!(matches!(error, CriError::Unavailable(_)) && !error.is_silence(), "{error:?}");
    }
}

#[tokio::test]
async fn a_socket_that_nobody_serves_ends_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("x.sock");
    // It listens, so the kernel accepts; the process behind it is as good as stopped.
    let _listener = UnixListener::bind(&socket).unwrap();
    let cri = Cri::connect(&socket).await.unwrap();
    assert_eq!(cri.version(SHORT).await, Err(CriError::Deadline(SHORT)));
}

#[tokio::test]
async fn short_ids_are_refused_before_they_are_sent() {
    let fake = Fake::start();
    let cri = Cri::connect(&fake.socket()).await.unwrap();
    let (short, odd, full) = ("abc123", "g".repeat(64), "a".repeat(64));
    for id in [short, odd.as_str(), ""] {
        assert!(matches!(cri.remove_container(id, SOON).await, Err(CriError::Other(_))));
        assert!(matches!(cri.stop_container(id, SOON, SOON).await, Err(CriError::Other(_))));
    }
    assert_eq!(fake.writes(), [] as [String; 0]);
    assert_eq!(cri.remove_container(&full, SOON).await, Ok(()));
    assert_eq!(cri.stop_container(&full, SOON, SOON).await, Ok(()));
    assert_eq!(fake.writes(), [format!("RemoveContainer:{full}"), format!("StopContainer:{full}")]);
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_in_the_server() {
    let fake = Fake::start();
    fake.say("ListContainers", Say::Never);
    let cri = Cri::connect(&fake.socket()).await.unwrap();
    assert_eq!(cri.containers(BOUND).await, Err(CriError::Deadline(BOUND)));
    let gone = async {
        while fake.out("ListContainers") > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, gone).await.unwrap();
    assert_eq!(fake.calls("ListContainers"), 1, "it has not come, or was sent again");
}

#[tokio::test]
async fn a_task_is_asked_for_in_the_kubelets_namespace() {
    let fake = Fake::start();
    fake.say("Get:c1", task(2));
    fake.say("Get:c2", task(0));
    fake.say("Get:c3", Say::Error(Code::NotFound, "no running task".to_owned()));
    let tasks = Tasks::connect(&fake.socket()).await.unwrap();
    assert_eq!(tasks.get("c1", SOON).await, Ok(TaskStatus::Running));
    assert_eq!(tasks.get("c2", SOON).await, Ok(TaskStatus::Unknown));
    assert_eq!(tasks.get("c3", SOON).await, Err(CriError::NotFound));
    fake.say("Get", Say::Error(Code::NotFound, "no such container".to_owned()));
    assert_eq!(tasks.answers(SOON).await, Ok(()));
    fake.say("Get", Say::Error(Code::Unavailable, "?".to_owned()));
    assert!(tasks.answers(SOON).await.is_err());
}
