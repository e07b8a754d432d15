//! The listener against an API server in memory, with the clock under control.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::super::command::Command;
use super::super::fake::{Bench, Kind, Mood, seconds};
use nrh_core::command::ActionCommand;
use nrh_core::examples::{self, fault};
use nrh_core::fault::FaultType;

fn command() -> ActionCommand {
    ActionCommand { epoch: 3, ..examples::command("op-1") }
}

/// Tells the node something and waits until it is heard; after how long that was.
async fn hears(bench: &mut Bench, number: u64) -> Duration {
    let began = Instant::now();
    bench.api.command(&json!({"checkSequence": number}));
    let heard = bench.command.wait_for(|command| command.check_sequence == number);
    timeout(Duration::from_hours(2), heard).await.unwrap().unwrap();
    began.elapsed()
}

const SOON: Duration = Duration::from_secs(2);

#[tokio::test(start_paused = true)]
async fn what_the_node_is_told_is_heard_at_once_at_any_time() {
    let mut bench = Bench::new();
    bench.say(Vec::new());
    seconds(1).await;
    assert_eq!(*bench.command.borrow(), Command::NONE, "there is no such object");
    for number in 1..200 {
        seconds(97).await;
        bench.say(Vec::new());
        let after = hears(&mut bench, number).await;
        assert!(after <= SOON, "request {number}: {after:?}");
    }
    bench.api.command(&json!({"command": command(), "checkSequence": 4, "checkRequested": "rollout-7"}));
    seconds(1).await;
    let told = Command {
        is_known: true,
        command: Some(command()),
        check_sequence: 4,
        check_requested: Some("rollout-7".to_owned()),
    };
    assert_eq!(*bench.command.borrow_and_update(), told);
    // The same again is no news.
    bench.api.command(&json!({"command": command(), "checkSequence": 4, "checkRequested": "rollout-7"}));
    assert!(timeout(Duration::from_hours(2), bench.command.changed()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn at_rest_report_and_watch_make_fewer_than_18_requests_an_hour() {
    for bookmarks in [false, true] {
        let bench = Bench::new();
        bench.api.server().bookmarks = bookmarks;
        bench.api.command(&json!({"checkSequence": 1}));
        for _ in 0..10 * 360 {
            bench.say(Vec::new());
            seconds(10).await;
        }
        let count = |kind| bench.api.times(kind).len();
        let (writes, reads, watches) = (count(Kind::Write), count(Kind::Read), count(Kind::Watch));
        println!("in ten hours: {writes} reports, {reads} reads, {watches} watches");
        assert_eq!(reads, watches);
        assert!(watches <= 13, "{watches} watches");
        assert!(writes + reads + watches < 180, "{} in ten hours", writes + reads + watches);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_is_followed_by_a_read_and_the_next_watch() {
    let mut bench = Bench::new();
    seconds(20).await;
    for number in 1..20 {
        bench.api.cut();
        // It is told while nobody watches.
        let after = hears(&mut bench, number).await;
        assert!(after <= SOON, "{after:?}");
        seconds(20).await;
    }
    assert!(bench.delivered.borrow().watch_failing.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_again_and_again_is_tried_ever_more_slowly() {
    let bench = Bench::new();
    for _ in 0..6000 {
        bench.api.cut();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let tries = bench.api.times(Kind::Watch).len();
    assert!((20..=40).contains(&tries), "{tries} watches in ten minutes");
    let watch_failing = bench.delivered.borrow().watch_failing.clone();
    assert!(watch_failing.is_some_and(|(_, error)| error.contains("connection reset")), "it is said why");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_silent_has_an_end_soon_after_the_bookmarks_where_there_were_any() {
    for (bookmarks, most) in [(true, Duration::from_secs(210)), (false, Duration::from_mins(61))] {
        let mut bench = Bench::new();
        bench.api.server().bookmarks = bookmarks;
        seconds(130).await;
        bench.api.hang();
        let after = hears(&mut bench, 1).await;
        assert!(after <= most, "bookmarks: {bookmarks}: {after:?}");
        let watch_failing = bench.delivered.borrow().watch_failing.clone();
        assert!(watch_failing.is_some_and(|(_, error)| error.contains("said nothing on the watch")), "it is said why");
        seconds(15).await;
        assert!(bench.delivered.borrow().watch_failing.is_none());
        assert!(hears(&mut bench, 2).await <= SOON);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_without_bookmarks_is_not_taken_for_one_that_hangs() {
    let bench = Bench::new();
    seconds(45 * 60).await;
    assert_eq!(bench.api.times(Kind::Watch), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_is_read_anew() {
    let mut bench = Bench::new();
    bench.api.command(&json!({"checkSequence": 1}));
    bench.api.server().watches = Some(Mood::Expired);
    seconds(60).await;
    let reads = bench.api.times(Kind::Read).len();
    assert!((5..=10).contains(&reads), "ever more slowly: {reads}");
    assert_eq!(bench.command.borrow().check_sequence, 1);
    bench.api.server().watches = None;
    seconds(40).await;
    assert!(hears(&mut bench, 2).await <= SOON);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_deleted_and_made_anew_is_heard_of_each_time() {
    let mut bench = Bench::new();
    seconds(1).await;
    for round in 0..3 {
        bench.api.command(&json!({"command": command(), "checkSequence": 7}));
        seconds(1).await;
        assert_eq!(bench.command.borrow().command, Some(command()), "round {round}");
        bench.api.command(&Value::Null);
        seconds(1).await;
        assert_eq!(*bench.command.borrow(), Command::NONE, "no command stands any more");
        // Also while the watch is broken.
        bench.api.cut();
        assert!(hears(&mut bench, 1).await <= SOON);
        bench.api.cut();
        bench.api.command(&Value::Null);
        seconds(2).await;
        assert_eq!(*bench.command.borrow(), Command::NONE);
        seconds(20).await;
    }
}

#[tokio::test(start_paused = true)]
async fn where_watches_are_refused_reads_go_on_and_it_is_said_why() {
    for mood in [Mood::Answers(403), Mood::Silent] {
        let mut bench = Bench::new();
        bench.api.server().watches = Some(mood);
        seconds(600).await;
        let reads = bench.api.times(Kind::Read).len();
        assert!((14..=40).contains(&reads), "{mood:?}: {reads} reads in ten minutes");
        let after = hears(&mut bench, 1).await;
        assert!(after <= Duration::from_secs(41), "{mood:?}: {after:?}");
        let watch_failing = bench.delivered.borrow().watch_failing.clone();
        let why = if mood == Mood::Silent { "no answer within 10 s" } else { "refused: scripted (403)" };
        assert!(watch_failing.is_some_and(|(_, error)| error.contains(why)), "{mood:?}");
        assert!(bench.command.borrow().is_known);

        bench.api.server().watches = None;
        seconds(60).await;
        assert!(bench.delivered.borrow().watch_failing.is_none());
        assert!(hears(&mut bench, 2).await <= SOON);
    }
}

#[tokio::test(start_paused = true)]
async fn that_nobody_answers_says_nothing_of_a_command_and_holds_up_no_report() {
    let bench = Bench::new();
    bench.api.server().reads = Some(Mood::Answers(404));
    for round in 0..60 {
        let kind = if round % 2 == 0 { FaultType::HungContainer } else { FaultType::LeakedShim };
        bench.say(vec![fault(kind)]);
        seconds(2).await;
    }
    assert!(bench.api.writes().len() >= 58, "{}", bench.api.writes().len());
    assert!(!bench.command.borrow().is_known, "it is not known that no command exists: the kind may not be served yet");

    bench.api.mood(Mood::Answers(500));
    (bench.api.server().reads, bench.api.server().watches) = (Some(Mood::Well), Some(Mood::Well));
    bench.api.command(&json!({"command": command()}));
    bench.say(Vec::new());
    seconds(50).await;
    assert_eq!(bench.command.borrow().command, Some(command()));
    assert!(bench.delivered.borrow().watch_failing.is_none() && bench.delivered.borrow().failing.is_some());

    (bench.api.server().reads, bench.api.server().watches) = (None, None);
    bench.api.cut();
    seconds(120).await;
    assert_eq!(bench.command.borrow().command, Some(command()), "what was heard last");
}

#[tokio::test(start_paused = true)]
async fn an_unauthorized_answer_makes_a_new_client() {
    let bench = Bench::new();
    seconds(1).await;
    let before = *bench.clients.lock().unwrap();
    bench.api.server().watches = Some(Mood::Answers(401));
    bench.api.cut();
    seconds(3).await;
    assert!(*bench.clients.lock().unwrap() > before);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_cannot_be_read_is_left_alone() {
    for command in [json!({"operationID": 7}), json!("x"), json!({"action": "ReformatDisk"}), json!([])] {
        let bench = Bench::new();
        bench.api.command(&json!({"command": command, "checkSequence": 2, "checkRequested": "\u{1b}[2J"}));
        seconds(1).await;
        assert_eq!(*bench.command.borrow(), Command { check_sequence: 2, ..Command::NONE }, "the rest is read");
    }
}
