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
    let entry =
        |manager: &str, time: &str| serde_json::json!({"manager": manager, "operation": "Update", "time": time});
    let lease = |managed: serde_json::Value| -> Lease {
        serde_json::from_value(serde_json::json!({"metadata": {"name": "l", "managedFields": managed}})).unwrap()
    };
    let all = [
        entry("nrh-controller", "2026-01-01T00:00:05Z"),
        entry("kubectl-edit", "2026-01-01T00:09:00Z"),
        entry("nrh-controller", "2026-01-01T00:00:03Z"),
    ];
    let ours = written_at(&lease(serde_json::Value::from(all.to_vec()))).map(|at| at.to_string());
    assert_eq!(ours.as_deref(), Some("2026-01-01T00:00:05Z"));
    assert_eq!(written_at(&lease(serde_json::json!([]))), None);
}

/// An API server whose clock is minutes ahead. It has one Lease, and does not answer the call that takes it.
fn server() -> Client {
    let store = Arc::new(Mutex::new(json!({"metadata": {"name": LEASE_NAME, "resourceVersion": "1"}, "spec": {}})));
    let service = tower::service_fn(move |request: Request<Body>| {
        let store = Arc::clone(&store);
        async move {
            let is_write = request.method() == Method::PUT;
            let body = request.into_body().collect_bytes().await.unwrap();
            let before = store.lock().unwrap().clone();
            if is_write {
                let mut lease: Value = serde_json::from_slice(&body).unwrap();
                let entry =
                    json!({"manager": CONTROLLER_MANAGER, "operation": "Update", "time": "2026-01-01T00:05:00Z"});
                lease["metadata"]["managedFields"] = json!([entry]);
                *store.lock().unwrap() = lease;
            }
            if is_write && before["spec"]["holderIdentity"].is_null() {
                std::future::pending::<()>().await;
            }
            let lease = store.lock().unwrap().to_string();
            Ok::<_, Infallible>(Response::new(Answer::from(lease)))
        }
    });
    Client::new(service, SYSTEM_NAMESPACE)
}

#[tokio::test(start_paused = true)]
async fn a_term_whose_taking_got_no_answer_begins_with_the_clock_of_the_api_server_too() {
    let (start, began): (Timestamp, _) = ("2026-01-01T00:00:00Z".parse().unwrap(), Instant::now());
    let clock = Clock::of(move || start.checked_add(began.elapsed()).unwrap());
    let client = server();
    let calls = Calls::new(client.clone(), client);
    let (mut election, _leadership) = Election::new(calls, Arc::new(Cache::new()), clock.clone(), "me".into());
    assert!(election.round().await.is_err(), "the answer is lost");
    assert!(election.round().await.unwrap().is_some(), "the lease is renewed");
    assert!(clock.disputed().is_some(), "nothing shows which clock is right");
}

#[test]
fn a_leader_stands_down_before_others_may_take_over() {
    assert!(RENEW_DEADLINE + RETRY < LEASE_DURATION);
}
