use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Mutex;

use axum::body::Body as Answer;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

fn lease(holder: &str, version: &str) -> Lease {
    Lease {
        metadata: ObjectMeta { resource_version: Some(version.to_owned()), ..ObjectMeta::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        }),
    }
}

#[test]
fn a_held_lease_is_taken_only_after_we_have_watched_it_run_out() {
    let (mut seen, start) = (Observed::default(), Instant::now());
    assert_eq!(seen.step(Some(&lease("other", "1")), "me", start), Step::Wait);
    assert_eq!(seen.step(Some(&lease("other", "1")), "me", start + Duration::from_secs(14)), Step::Wait);
    // A renewal by the holder restarts our watch, whatever the holder's clock says.
    assert_eq!(seen.step(Some(&lease("other", "2")), "me", start + Duration::from_secs(15)), Step::Wait);
    assert_eq!(seen.step(Some(&lease("other", "2")), "me", start + Duration::from_secs(29)), Step::Wait);
    assert_eq!(seen.step(Some(&lease("other", "2")), "me", start + Duration::from_secs(30)), Step::Take);
}

#[test]
fn a_missing_or_released_lease_is_taken_at_once_and_ours_renewed() {
    let (mut seen, now) = (Observed::default(), Instant::now());
    assert_eq!(seen.step(None, "me", now), Step::Create);
    assert_eq!(seen.step(Some(&lease("", "1")), "me", now), Step::Take);
    assert_eq!(seen.step(Some(&lease("me", "2")), "me", now), Step::Renew);
}

#[test]
fn the_first_term_of_a_new_lease_is_above_those_of_a_deleted_one() {
    let early: Timestamp = "2025-01-01T00:00:00Z".parse().unwrap();
    let late: Timestamp = "2025-01-02T00:00:00Z".parse().unwrap();
    assert!(first_epoch(late) > first_epoch(early) + 1000);
}

#[test]
fn the_api_server_says_when_we_have_written_the_lease() {
    let entry = |manager: &str, time: &str| json!({"manager": manager, "operation": "Update", "time": time});
    let lease = |managed: Value| -> Lease {
        serde_json::from_value(json!({"metadata": {"name": "l", "managedFields": managed}})).unwrap()
    };
    let all = [
        entry("nrh-controller", "2026-01-01T00:00:05Z"),
        entry("kubectl-edit", "2026-01-01T00:09:00Z"),
        entry("nrh-controller", "2026-01-01T00:00:03Z"),
    ];
    let ours = written_at(&lease(json!(all))).map(|at| at.to_string());
    assert_eq!(ours.as_deref(), Some("2026-01-01T00:00:05Z"));
    assert_eq!(written_at(&lease(json!([]))), None);
}

const START: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// An API server with one Lease.
#[derive(Default)]
struct Api {
    lease: Mutex<Option<Value>>,
    /// How far its clock is ahead of [`START`], in seconds, for each of its answers to a write; the last one stays.
    ahead: Mutex<Vec<i64>>,
    /// What becomes of its writes, one by one; the others are done.
    fates: Mutex<VecDeque<Fate>>,
    /// The numbers of terms that were written.
    numbers: Mutex<Vec<i64>>,
}

#[derive(Clone, Copy)]
enum Fate {
    Done,
    DoneWithoutAnswer,
    Refused,
}

impl Api {
    fn of(ahead: &[i64], before: Option<Value>, fates: &[Fate]) -> Arc<Self> {
        let fates = Mutex::new(fates.iter().copied().collect());
        Arc::new(Self { lease: Mutex::new(before), ahead: Mutex::new(ahead.to_vec()), fates, ..Self::default() })
    }

    /// An election of a machine whose clock is so many seconds ahead of [`START`].
    fn election(self: &Arc<Self>, ahead: i64) -> (Election, Clock) {
        let (start, began) = (START + SignedDuration::from_secs(ahead), Instant::now());
        let clock = Clock::of(move || start.checked_add(began.elapsed()).unwrap());
        let api = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| Arc::clone(&api).answer(request));
        let client = Client::new(service, SYSTEM_NAMESPACE);
        let calls = Calls::new(client.clone(), client);
        (Election::new(calls, Arc::new(Cache::default()), clock.clone(), "me".into()).0, clock)
    }

    async fn answer(self: Arc<Self>, request: Request<Body>) -> Result<Response<Answer>, Infallible> {
        let (is_write, is_update) = (request.method() != Method::GET, request.method() == Method::PUT);
        let body = request.into_body().collect_bytes().await.unwrap();
        let status = |code: u16| {
            let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": "", "message": ""});
            Response::builder().status(code).body(Answer::from(status.to_string())).unwrap()
        };
        if is_write {
            let fate = self.fates.lock().unwrap().pop_front().unwrap_or(Fate::Done);
            if matches!(fate, Fate::Refused) {
                return Ok(status(500));
            }
            let mut lease: Value = serde_json::from_slice(&body).unwrap();
            let stored = self.lease.lock().unwrap().as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
            if is_update && stored.as_ref() != Some(&lease["metadata"]["resourceVersion"]) {
                return Ok(status(409));
            }
            lease["metadata"]["resourceVersion"] =
                json!(format!("{}1", stored.as_ref().and_then(Value::as_str).unwrap_or("")));
            let time = {
                let mut ahead = self.ahead.lock().unwrap();
                let now = if ahead.len() > 1 { ahead.remove(0) } else { ahead[0] };
                START + SignedDuration::from_secs(now)
            };
            self.numbers.lock().unwrap().push(lease["spec"]["leaseTransitions"].as_i64().unwrap());
            lease["metadata"]["managedFields"] =
                json!([{"manager": CONTROLLER_MANAGER, "operation": "Update", "time": time.to_string()}]);
            *self.lease.lock().unwrap() = Some(lease);
            if matches!(fate, Fate::DoneWithoutAnswer) {
                std::future::pending::<()>().await;
            }
        }
        let lease = self.lease.lock().unwrap().clone();
        Ok(lease.map_or_else(|| status(404), |lease| Response::new(Answer::from(lease.to_string()))))
    }
}

/// A released Lease, of a leader whose clock was that of the API server.
fn released(number: i64) -> Value {
    let time = START.to_string();
    let entry = json!({"manager": CONTROLLER_MANAGER, "operation": "Update", "time": time});
    json!({
        "metadata": {"name": LEASE_NAME, "resourceVersion": "1", "managedFields": [entry]},
        "spec": {"leaseTransitions": number, "renewTime": time},
    })
}

#[tokio::test(start_paused = true)]
async fn a_term_whose_taking_got_no_answer_begins_with_the_clock_of_the_api_server_too() {
    let api = Api::of(&[300], Some(released(1)), &[Fate::DoneWithoutAnswer]);
    let (mut election, clock) = api.election(0);
    assert!(election.round().await.is_err(), "the answer is lost");
    assert!(election.round().await.unwrap().is_some(), "the lease is renewed");
    assert!(clock.disputed().is_some(), "nothing shows which clock is right");
}

/// How far the machine's and the server's clocks are ahead, what was there before, what becomes of the writes, and the numbers in them.
type Case<'a> = (i64, i64, Option<Value>, &'a [Fate], &'a [i64]);

/// Nodes refuse each command of a term that is far above the minutes since 1970.
#[tokio::test(start_paused = true)]
async fn a_machine_whose_clock_is_ahead_takes_no_number_that_time_has_to_catch_up_with() {
    const DAYS: i64 = 3 * 86_400;
    let now = i64::from(first_epoch(START));
    let later = now + DAYS / 60;
    let taken = Some(released(now - 9));
    let cases: [Case<'_>; 8] = [
        (DAYS, 0, taken.clone(), &[], &[later, now]),
        (DAYS, 0, None, &[], &[later, now]),
        (DAYS, 0, Some(released(now + 5)), &[], &[later, now + 6]),
        // A Lease with such a number keeps it: the number of a term never falls.
        (DAYS, 0, Some(released(later + 5)), &[], &[later + 6]),
        (DAYS, 0, taken.clone(), &[Fate::Done, Fate::Refused], &[later, later, now]),
        (DAYS, 0, taken.clone(), &[Fate::DoneWithoutAnswer], &[later, later, now]),
        // Which of the two is wrong is not known. The lower number does no lasting harm.
        (0, DAYS, taken.clone(), &[], &[now]),
        (20, 0, taken, &[], &[now]),
    ];
    for (number, (machine, server, before, fates, written)) in cases.into_iter().enumerate() {
        let api = Api::of(&[server], before, fates);
        let (mut election, _clock) = api.election(machine);
        if !fates.is_empty() {
            assert!(election.round().await.is_err(), "case {number}: no term yet");
        }
        let term = election.round().await.unwrap().unwrap();
        assert_eq!(api.numbers.lock().unwrap()[..], *written, "case {number}");
        assert_eq!(i64::try_from(term).unwrap(), *written.last().unwrap(), "case {number}");
    }
}

/// For a machine that is paused with its clock, the API server's is ahead afterwards.
#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_ahead_within_a_term_ends_it_once() {
    let api = Api::of(&[0, 0, 600], Some(released(1)), &[]);
    let (election, clock) = api.election(0);
    let ended = tokio::time::timeout(RETRY * 5, election.run(CancellationToken::new())).await;
    assert!(matches!(ended, Ok(Err(Lost::Suspended))), "{ended:?}");
    assert!(clock.has_jumped());
    // Another replica of the server answers the next leader first.
    api.lease.lock().unwrap().as_mut().unwrap()["spec"]["holderIdentity"] = Value::Null;
    *api.ahead.lock().unwrap() = vec![0, 600];
    let (election, clock) = api.election(0);
    let run = tokio::spawn(election.run(CancellationToken::new()));
    tokio::time::sleep(RETRY * 3).await;
    assert!(!run.is_finished() && clock.disputed().is_some());
}

#[test]
fn a_leader_stands_down_before_others_may_take_over() {
    assert!(RENEW_DEADLINE + RETRY < LEASE_DURATION);
}
