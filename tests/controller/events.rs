//! Events: which are counted as one, and which are written anew.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use nrh::controller::events::channel;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::fake_api::{FakeApi, Fault};

/// A `Notify` is done once its Event is in the queue.
#[tokio::test(start_paused = true)]
async fn an_event_that_the_api_server_does_not_take_is_sent_again() {
    let api = FakeApi::new();
    let (events, sender) = channel();
    let mut refusals = 2;
    api.hook(move |call| {
        let is_refused = call.is("create", "events") && refusals > 0;
        refusals -= i32::from(is_refused);
        is_refused.then_some(Fault::Code(429))
    });
    events.not_enforced("one".to_owned());
    events.not_enforced("two".to_owned());
    drop(events);
    sender.run(api.client(), "a".to_owned()).await;
    assert_eq!(written(&api), [("one".to_owned(), None), ("two".to_owned(), None)]);
}

/// All Events in the order of their beginning: the text, and how often it was counted if more than once.
fn written(api: &FakeApi) -> Vec<(String, Option<i64>)> {
    let mut events = api.list("events");
    events.sort_by_key(|event| event["eventTime"].as_str().unwrap().to_owned());
    let of = |event: &Value| (event["note"].as_str().unwrap().to_owned(), event["series"]["count"].as_i64());
    events.iter().map(of).collect()
}

#[tokio::test]
async fn the_same_text_is_counted_and_another_one_or_a_deleted_one_is_written_anew() {
    let api = FakeApi::new();
    let (events, sender) = channel();
    let sender = tokio::spawn(sender.run(api.client(), "a".to_owned()));
    for text in ["one", "one", "two"] {
        events.not_enforced(text.to_owned());
    }
    let both = async {
        while api.list("events").len() < 2 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = timeout(Duration::from_secs(10), both).await;
    assert_eq!(written(&api), [("one".to_owned(), Some(2)), ("two".to_owned(), None)]);
    for event in api.list("events").iter().filter(|event| event["note"] == "one") {
        api.remove("events", event["metadata"]["name"].as_str().unwrap());
    }
    events.not_enforced("one".to_owned());
    drop(events);
    sender.await.unwrap();
    assert_eq!(written(&api), [("two".to_owned(), None), ("one".to_owned(), None)]);
}
