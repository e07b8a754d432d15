//! Who reads the metrics.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::Request;
use nrh::controller::access::Access;
use nrh::controller::cache::Cache;
use nrh::controller::calls::Calls;
use nrh::controller::http::{Served, metrics};
use nrh::controller::metrics::Metrics;
use nrh::controller::rbac;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tower::ServiceExt;

use crate::fake_api::{API, FakeApi, Fault};

/// Three accounts: `may` has the right, `may-not` has none, and `abroad` has one with a token for another audience.
fn api() -> FakeApi {
    let api = FakeApi::new();
    api.give_token("token-1", "may", API);
    api.give_token("token-2", "may-not", API);
    api.give_token("token-3", "abroad", "nrh-metrics");
    api.let_read_metrics("may", true);
    api.let_read_metrics("abroad", true);
    api
}

fn served(api: &FakeApi, audience: Option<&str>) -> Router {
    let calls = Calls::new(api.client(), api.client());
    let served = Served { cache: Arc::new(Cache::default()), metrics: Arc::new(Metrics::default()) };
    metrics(served, Some(Access::new(calls, audience.map(ToOwned::to_owned))))
}

async fn scrape(router: &Router, token: Option<&str>) -> (u16, String) {
    let request = Request::get("/metrics");
    let request = match token {
        Some(token) => request.header("Authorization", format!("Bearer {token}")),
        None => request,
    };
    let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    assert_eq!(answer.headers().contains_key("www-authenticate"), code == 401);
    let text = String::from_utf8(to_bytes(answer.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap();
    assert_eq!(text.contains("nrh_leader"), code == 200, "{code}: {text}");
    (code, text)
}

#[tokio::test(start_paused = true)]
async fn the_metrics_are_for_those_who_have_the_right() {
    let api = api();
    let router = served(&api, None);
    assert_eq!(scrape(&router, None).await.0, 401);
    assert!(api.calls().is_empty(), "nobody was asked about: there is no token");
    assert_eq!(scrape(&router, Some("unknown")).await.0, 401);
    assert_eq!(scrape(&router, Some("token-3")).await.0, 401, "a token for somebody else");
    let (code, said) = scrape(&router, Some("token-2")).await;
    assert_eq!(code, 403);
    assert!(said.contains("nrh:metrics-reader"), "{said}");
    assert_eq!(scrape(&router, Some("token-1")).await.0, 200);
    for call in api.calls() {
        let (group, resource) = (&call.target.group, call.target.resource());
        assert!(rbac::allows(group, &resource, call.verb, None, None), "not in the list: {}", call.line());
    }
    let asked = api.calls().last().unwrap().body["spec"].clone();
    assert_eq!((&asked["user"], &asked["groups"], &asked["uid"]), (&json!("may"), &json!(["scrapers"]), &json!("u")));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_believed_for_a_minute_and_no_longer() {
    let api = api();
    let router = served(&api, None);
    for _ in 0..10 {
        assert_eq!(scrape(&router, Some("token-1")).await.0, 200);
        assert_eq!(scrape(&router, Some("token-2")).await.0, 403);
    }
    assert_eq!(api.calls().len(), 4, "two questions for each of two tokens");
    api.let_read_metrics("may", false);
    api.let_read_metrics("may-not", true);
    sleep(Duration::from_secs(29)).await;
    assert_eq!(scrape(&router, Some("token-2")).await.0, 403);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(scrape(&router, Some("token-2")).await.0, 200);
    assert_eq!(scrape(&router, Some("token-1")).await.0, 200);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(scrape(&router, Some("token-1")).await.0, 403);
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_nobody_new_reads_them() {
    let api = api();
    let router = served(&api, None);
    assert_eq!(scrape(&router, Some("token-1")).await.0, 200);
    api.set_down(true);
    assert_eq!(scrape(&router, Some("token-2")).await.0, 503);
    assert_eq!(scrape(&router, Some("token-1")).await.0, 200, "known for a minute");
    sleep(Duration::from_mins(1)).await;
    assert_eq!(scrape(&router, Some("token-1")).await.0, 503);
    api.set_down(false);
    // The first question is answered, the second is not.
    api.hook(|call| (call.target.plural == "subjectaccessreviews").then_some(Fault::Code(500)));
    assert_eq!(scrape(&router, Some("token-1")).await.0, 503);
    api.hook(|_| Some(Fault::Stall));
    let began = Instant::now();
    assert_eq!(scrape(&router, Some("token-1")).await.0, 503);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    api.unhook();
    assert_eq!(scrape(&router, Some("token-1")).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn with_an_audience_a_token_for_the_api_server_is_nobody_s() {
    let api = api();
    let router = served(&api, Some("nrh-metrics"));
    assert_eq!(scrape(&router, Some("token-3")).await.0, 200);
    assert_eq!(scrape(&router, Some("token-1")).await.0, 401);
}

#[tokio::test(start_paused = true)]
async fn tokens_that_are_nobody_s_are_asked_about_a_few_at_a_time() {
    let api = api();
    let router = served(&api, None);
    let began = Instant::now();
    let untracked = (0..40).map(|i| {
        let router = router.clone();
        async move { scrape(&router, Some(&format!("stranger-{i}"))).await.0 }
    });
    assert_eq!(futures::future::join_all(untracked).await, [401; 40]);
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(api.calls().len(), 40);
    assert_eq!(scrape(&router, Some("token-1")).await.0, 200);
}
