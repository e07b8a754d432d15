//! One operation, one act, one outcome: whoever asks, and whatever crashes.

use std::sync::{Arc, Barrier};

use super::super::claims::{Known, NoLeader};
use super::*;
use crate::reader::MAX_THREADS;

#[tokio::test]
async fn two_executors_started_together_signal_once() {
    for _ in 0..10 {
        let (node, sandbox) = (Node::new(), id());
        let shim = node.stage.shim(&sandbox);
        // It runs, and its task does not answer: every signal reaches its trap at once, so two would show.
        node.task_says(&sandbox, silent_shim());
        let command = resume(&shim, &sandbox);
        let barrier = Arc::new(Barrier::new(2));
        let collectors: Vec<_> = (0..2)
            .map(|_| {
                let (settings, command, barrier) = (node.settings(), command.clone(), Arc::clone(&barrier));
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    let agent = Agent::new(settings);
                    barrier.wait();
                    runtime.block_on(agent.execute(&command))
                })
            })
            .collect();
        let outcomes: Vec<Outcome> = tokio::task::spawn_blocking(move || {
            collectors.into_iter().map(|collector| collector.join().unwrap()).collect()
        })
        .await
        .unwrap();
        let executed: Vec<_> = outcomes.iter().filter(|outcome| outcome.message.starts_with("sent SIGCONT")).collect();
        // The one that came second is refused, or is told the stored outcome of the first.
        match executed[..] {
            [first, second] => assert_eq!(first, second),
            [_] => {
                assert!(outcomes.iter().any(|outcome| outcome.reason == AlreadyExecuted), "{outcomes:?}");
            }
            _ => panic!("nobody acted: {outcomes:?}"),
        }
        wait_until("the trap", || shim.resumed() > 0);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(shim.resumed(), 1, "{outcomes:?}");
    }
}

#[tokio::test]
async fn a_restarted_executor_returns_the_stored_outcome() {
    let (node, sandbox, shim) = stopped();
    let command = resume(&shim, &sandbox);
    let first = node.execute(&command).await;
    done(&first);
    // A trap runs a moment after the signal: one that is stopped before has not run at all.
    wait_until("the trap", || shim.resumed() == 1);
    shim.stop();
    assert_eq!(node.execute(&command).await, first);
    // Also when its time is over and a newer leader has come since.
    let old = ActionCommand { epoch: 8, ..resume(&shim, &sandbox) };
    let stale = ActionCommand {
        target: Target { container_id: Some(id()), ..Target::default() },
        action: Action::CleanupOrphans(CleanupOrphans),
        fault_type: FaultType::OrphanContainer,
        ..old
    };
    node.refuses(&stale, TargetGone).await;
    assert_eq!(node.execute(&command).await, first);
    assert_eq!(shim.state(), Some('T'));
    assert_eq!(shim.resumed(), 1);
}

#[tokio::test]
async fn after_a_crash_between_claim_and_act_nothing_is_done() {
    let (node, sandbox, shim) = stopped();

    let command = resume(&shim, &sandbox);
    assert!(node.claims().claim(&command, None).unwrap());
    node.refuses(&command, AlreadyExecuted).await;

    // Cut short while the claim was written.
    let command = resume(&shim, &sandbox);
    std::fs::write(node.stage.path("state").join("ops").join(&command.operation_id), "").unwrap();
    node.refuses(&command, AlreadyExecuted).await;
    assert_eq!((shim.state(), shim.resumed()), (Some('T'), 0));
}

#[tokio::test]
async fn a_refusal_ends_the_operation() {
    let (node, sandbox) = (Node::new(), id());
    let shim = node.stage.shim(&sandbox);
    node.task_says(&sandbox, task(2));
    let command = resume(&shim, &sandbox);
    let first = node.execute(&command).await;
    refused(&first, Recovered);
    // The controller was told no. Sick again, the fault needs a new operation.
    shim.stop();
    assert_eq!(node.execute(&command).await, first);
    assert_eq!(shim.state(), Some('T'));
}

#[tokio::test]
async fn an_operation_id_serves_one_command_only() {
    let (node, sandbox, other) = (Node::new(), id(), id());
    let (shim, second) = (node.stage.shim(&sandbox), node.stage.shim(&other));
    shim.stop();
    second.stop();
    let command = resume(&shim, &sandbox);
    done(&node.execute(&command).await);
    wait_until("the trap", || shim.resumed() == 1);
    let again = ActionCommand { operation_id: command.operation_id.clone(), epoch: 4, ..resume(&shim, &sandbox) };
    done(&node.execute(&again).await);
    assert_eq!(shim.resumed(), 1, "the same attempt, given again by a new leader, is told its outcome");
    let fault_id = "fault-2".to_owned();
    let forged = ActionCommand { operation_id: command.operation_id, fault_id, ..resume(&second, &other) };
    node.refuses(&forged, AlreadyExecuted).await;
    assert_eq!((second.state(), second.resumed()), (Some('T'), 0));
}

#[test]
fn the_epoch_only_rises_and_survives_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let claims = Claims::new(folder.path());
    claims.prepare().unwrap();
    // 1,000 minutes after 1970.
    let now = Timestamp::from_second(60_000).unwrap();
    let raise = |epoch| Claims::new(folder.path()).raise_epoch(epoch, now);
    assert_eq!(raise(5).unwrap(), Ok(()));
    assert_eq!(raise(5).unwrap(), Ok(()));
    assert_eq!(raise(4).unwrap(), Err(NoLeader::Behind { seen: 5 }));
    // No leader is as far ahead of the clock: such a term would shut out all that come after it.
    for forged in [u64::MAX, 2001] {
        assert_eq!(raise(forged).unwrap(), Err(NoLeader::Ahead { highest: 2000 }));
    }
    assert_eq!(raise(5).unwrap(), Ok(()));
    assert_eq!(raise(2000).unwrap(), Ok(()));
    // Unreadable is not zero.
    std::fs::write(folder.path().join("epoch"), "x").unwrap();
    assert!(raise(2000).is_err());
}

#[tokio::test]
async fn a_command_of_a_term_far_ahead_is_refused_and_shuts_no_leader_out() {
    let (node, sandbox, shim) = stopped();
    let forged = ActionCommand { epoch: u64::MAX, ..resume(&shim, &sandbox) };
    node.refuses_saying(&forged, Expired, "docs/runbook/controller.md").await;
    done(&node.execute(&resume(&shim, &sandbox)).await);
}

#[test]
fn old_operations_are_swept_and_young_ones_kept() {
    let folder = tempfile::tempdir().unwrap();
    let claims = Claims::new(folder.path());
    claims.prepare().unwrap();
    let day = Duration::from_hours(24);
    let at = |uptime| Moment { boot: "b".to_owned(), uptime };
    let [old, young] = [(); 2].map(|()| command(CONT, FaultType::HungContainer, Target::default()));
    claims.first_read(&old, &at(Duration::ZERO)).unwrap();
    claims.first_read(&young, &at(day)).unwrap();
    for command in [&old, &young] {
        assert!(claims.claim(command, None).unwrap());
    }
    claims.sweep(&at(day)).unwrap();
    assert_eq!(claims.known(&old).unwrap(), Known::Open, "exactly a day is not older than a day");
    claims.sweep(&at(day + Duration::from_secs(1))).unwrap();
    assert_eq!(claims.known(&old).unwrap(), Known::Free);
    assert_eq!(claims.known(&young).unwrap(), Known::Open);
    // A mark of another boot was made just now by the wall clock: it stays.
    claims.sweep(&Moment { boot: "c".to_owned(), uptime: day * 9 }).unwrap();
    assert_eq!(claims.known(&young).unwrap(), Known::Open);
}

#[tokio::test]
async fn all_executors_of_a_process_share_one_bound() {
    let folder = tempfile::tempdir().unwrap();
    let none = Endpoint::cri(folder.path().join("none"), NamedBy::Nobody);
    let settings = AgentSettings::new("n1", folder.path(), none);
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(gate));
    for _ in 0..MAX_THREADS {
        let agent = Agent::new(settings.clone());
        let gate = Arc::clone(&gate);
        let wait = move || gate.lock().unwrap().recv().is_ok();
        assert!(agent.checker.reader.run(Duration::from_millis(10), wait).await.is_err());
    }
    let one_more = Agent::new(settings);
    assert!(one_more.checker.reader.run(Duration::from_secs(1), || 7).await.is_err());
    drop(release);
}
