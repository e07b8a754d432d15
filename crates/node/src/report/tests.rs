//! The reporter against an API server in memory, with the clock under control.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, advance, sleep};

use super::client;
use super::fake::{Api, Bench, Mood, seconds};
use nrh_api::NodeRuntimeHealthStatus;
use nrh_api::health::ProbeStatus;
use nrh_core::examples::fault;
use nrh_core::fault::{Fault, FaultState, FaultType};

fn confirmed() -> Fault {
    Fault { state: FaultState::Confirmed, ..fault(FaultType::HungContainer) }
}

fn gaps(writes: &[(u64, Value)]) -> Vec<u64> {
    writes.windows(2).map(|pair| pair[1].0 - pair[0].0).collect()
}

#[tokio::test(start_paused = true)]
async fn at_rest_it_writes_every_five_minutes() {
    let bench = Bench::new();
    bench.say(Vec::new());
    for _ in 0..360 {
        seconds(10).await;
        bench.say(Vec::new());
    }
    let writes = bench.api.writes();
    assert!((11..=14).contains(&writes.len()), "{} writes in an hour", writes.len());
    assert!(gaps(&writes).iter().all(|gap| (268..=331).contains(gap)), "{:?}", gaps(&writes));
    for (pair, gap) in writes.iter().zip(gaps(&writes)) {
        let promised = pair.1["probe"]["intervalSeconds"].as_u64().unwrap();
        assert!(gap <= promised, "promised {promised}, took {gap}");
    }
    let sequences: Vec<u64> = writes.iter().map(|(_, body)| body["probe"]["sequence"].as_u64().unwrap()).collect();
    assert_eq!(sequences, (1..=sequences.len() as u64).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_suspicion_is_told_at_once_then_every_15_s_for_ten_minutes_then_every_minute() {
    let mut bench = Bench::new();
    bench.say(Vec::new());
    seconds(60).await;
    bench.api.forget();
    bench.suspected = Some(Instant::now());
    for _ in 0..900 {
        bench.say(vec![fault(FaultType::HungContainer)]);
        seconds(1).await;
    }
    let writes = bench.api.writes();
    assert!(writes[0].0 <= 62, "{}", writes[0].0);
    assert_eq!(writes[0].1["probe"]["intervalSeconds"].as_u64().map(|seconds| seconds <= 15), Some(true));
    for (pair, gap) in writes.iter().zip(gaps(&writes)) {
        let (at, promised) = (pair.0, pair.1["probe"]["intervalSeconds"].as_u64().unwrap());
        assert!(gap <= promised.max(1), "at {at}: promised {promised}, took {gap}");
        match at {
            0..640 => assert!(gap <= 15, "at {at}: {gap}"),
            680.. => assert!((53..=60).contains(&gap), "at {at}: {gap}"),
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_remediation_keeps_the_rhythm_of_15_s() {
    let bench = Bench::new();
    bench.api.server().controller = json!({"remediation": {"name": "e-1"}});
    for _ in 0..1200 {
        bench.say(vec![confirmed()]);
        seconds(1).await;
    }
    let writes = bench.api.writes();
    assert!(gaps(&writes).iter().skip(1).all(|gap| *gap <= 15), "{:?}", gaps(&writes));
    let feedback = bench.feedback.borrow().clone();
    assert_eq!((feedback.remediation, feedback.node_uid.as_deref()), (true, Some("node-uid")));
}

#[tokio::test(start_paused = true)]
async fn ages_alone_are_no_news() {
    let bench = Bench::new();
    for age in 0..100 {
        let mut one = fault(FaultType::HungContainer);
        (one.check_age_seconds, one.duration_seconds, one.confirmations) = (age, age, 7);
        one.evidence = vec![format!("{age} s old")];
        one.message = format!("state changes {age}");
        bench.say(vec![one]);
        advance(Duration::from_millis(100)).await;
    }
    assert_eq!(bench.api.writes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_age_is_sent_as_it_is_when_it_is_sent() {
    let bench = Bench::new();
    bench.api.mood(Mood::Answers(500));
    let old = Fault { check_age_seconds: 5, duration_seconds: 60, ..confirmed() };
    bench.say(vec![old]);
    seconds(100).await;
    bench.api.mood(Mood::Well);
    seconds(40).await;
    let writes = bench.api.writes();
    let (at, body) = writes.last().unwrap();
    let age = body["faults"][0]["checkAgeSeconds"].as_u64().unwrap();
    assert!((at + 4..=at + 5).contains(&age), "sent at {at} with age {age}");
}

#[tokio::test(start_paused = true)]
async fn while_the_server_is_away_nothing_piles_up_and_the_newest_goes_out_once() {
    for mood in [Mood::Answers(500), Mood::Answers(404), Mood::Answers(409), Mood::Answers(429), Mood::Silent] {
        let bench = Bench::new();
        bench.say(Vec::new());
        seconds(5).await;
        bench.api.mood(mood);
        for second in 0..600 {
            let kind = if second % 2 == 0 { FaultType::HungContainer } else { FaultType::LeakedShim };
            bench.say(vec![fault(kind)]);
            seconds(1).await;
        }
        bench.say(vec![confirmed()]);
        bench.api.forget();
        bench.api.mood(Mood::Well);
        seconds(45).await;
        let news: Vec<_> = bench.api.writes().into_iter().filter(|(_, body)| body["faults"] != json!([])).collect();
        let said: Vec<_> = news.iter().map(|(_, body)| body["faults"][0]["state"].clone()).collect();
        assert!(!said.is_empty(), "{mood:?}");
        assert!(said.iter().all(|state| state == "Confirmed"), "{mood:?}: {said:?}");
        assert_eq!(news[0].1["probe"]["sequence"], 2, "{mood:?}: what did not arrive is not counted");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_ever_more_slowly_with_a_new_client_now_and_then() {
    let bench = Bench::new();
    bench.api.mood(Mood::Answers(503));
    bench.say(Vec::new());
    seconds(600).await;
    let tries = bench.api.writes();
    assert!((20..=40).contains(&tries.len()), "{} tries in ten minutes", tries.len());
    assert!(gaps(&tries).iter().all(|gap| *gap <= 31), "{:?}", gaps(&tries));
    assert!(*bench.clients.lock().unwrap() > 3);
    let said = bench.delivered.borrow().clone();
    let (since, error) = said.failing.unwrap();
    assert!(said.taken.is_none() && since.elapsed() >= Duration::from_secs(590) && error.contains("503"), "{error}");
    bench.api.mood(Mood::Well);
    seconds(40).await;
    let said = bench.delivered.borrow().clone();
    assert!(said.failing.is_none() && said.taken.is_some_and(|taken| taken.elapsed() <= Duration::from_secs(40)));
}

#[tokio::test(start_paused = true)]
async fn an_unauthorized_answer_makes_a_new_client_at_once() {
    let bench = Bench::new();
    bench.say(Vec::new());
    seconds(1).await;
    bench.api.mood(Mood::Answers(401));
    bench.say(vec![fault(FaultType::LeakedShim)]);
    seconds(2).await;
    bench.api.mood(Mood::Well);
    seconds(5).await;
    assert!(*bench.clients.lock().unwrap() >= 2);
    assert_eq!(bench.api.writes().last().unwrap().1["faults"][0]["type"], "LeakedShim");
}

#[tokio::test(start_paused = true)]
async fn a_check_that_was_asked_for_is_answered_by_a_write_although_nothing_changed() {
    let bench = Bench::new();
    bench.say_answering(vec![confirmed()], 0);
    seconds(8).await;
    bench.api.forget();
    bench.say_answering(vec![confirmed()], 1);
    seconds(2).await;
    assert_eq!(bench.api.writes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_changes_is_written_once_a_second_at_most() {
    let bench = Bench::new();
    for i in 0..200 {
        let kind = if i % 2 == 0 { FaultType::HungContainer } else { FaultType::LeakedShim };
        bench.say(vec![fault(kind)]);
        sleep(Duration::from_millis(50)).await;
    }
    assert!(bench.api.writes().len() <= 11, "{}", bench.api.writes().len());
}

#[tokio::test]
async fn definitions_of_before_get_a_report_without_what_they_do_not_know() {
    let api = Api::new();
    let safe = nrh_api::health::RestartSafeStatus::default();
    let probe = ProbeStatus { check_answered: Some("a".to_owned()), ..ProbeStatus::default() };
    let status =
        NodeRuntimeHealthStatus { restart_safe: Some(safe), probe: Some(probe), ..NodeRuntimeHealthStatus::default() };
    client::apply(&api.client(), "n1", &status).await.unwrap();
    assert_eq!(api.writes().len(), 1);
    for (count, field) in [(3, "restartSafe"), (5, "checkAnswered")] {
        api.mood(Mood::Before(field));
        client::apply(&api.client(), "n1", &status).await.unwrap();
        let writes = api.writes();
        assert_eq!(writes.len(), count);
        let (refused, taken) = (&writes[count - 2].1, &writes[count - 1].1);
        assert!(refused["restartSafe"].is_object() && refused["probe"]["checkAnswered"] == "a", "{writes:?}");
        assert!(taken["restartSafe"].is_null() && taken["probe"]["checkAnswered"].is_null(), "{writes:?}");
    }
    // Any other refusal is told as it is, and once.
    api.mood(Mood::Answers(500));
    client::apply(&api.client(), "n1", &status).await.unwrap_err();
    assert_eq!(api.writes().len(), 6);
}
