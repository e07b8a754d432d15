//! When a write is tried again that the API server had no time for.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::fake_api::world::World;
use crate::fake_api::{Call, Fault};

/// Answers the first two of these writes that too much is asked, perhaps with a wait in seconds; when each came.
fn busy_twice(
    world: &World,
    is_meant: impl Fn(&Call) -> bool + Send + 'static,
    asked: Option<u32>,
) -> Arc<Mutex<Vec<Instant>>> {
    let tries = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&tries);
    world.api.hook(move |call| {
        if !is_meant(call) {
            return None;
        }
        let mut seen = seen.lock().unwrap();
        seen.push(Instant::now());
        (seen.len() < 3).then(|| asked.map_or(Fault::Code(429), Fault::Busy))
    });
    tries
}

fn waits(tries: &Mutex<Vec<Instant>>) -> Vec<u64> {
    let tries = tries.lock().unwrap();
    tries.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_act_is_not_tried_again_before_the_api_server_wants_it() {
    // One asks for longer than anybody waits, and the last one says nothing of how long.
    let cases = [(Some(7), 7..=9), (Some(600), 60..=75), (None, 1..=2)];
    for (asked, expected) in cases {
        let world = World::healthy();
        let tries = busy_twice(&world, |call| call.verb == "create" && call.target.plural == "jobs", asked);
        let _replica = world.controller("a");
        world.set_sick("w1", true);
        world.until("healed", || world.phases() == ["Succeeded"]).await;
        let waits = waits(&tries);
        assert!(waits.len() == 2 && waits.iter().all(|wait| expected.contains(wait)), "{expected:?}: {waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_ledger_is_not_written_again_before_the_api_server_wants_it() {
    let world = World::healthy();
    let _replica = world.controller("a");
    world.until("it leads", || world.api.get("configmaps", "nrh-ledger").is_some()).await;
    sleep(Duration::from_secs(5)).await;
    let tries = busy_twice(
        &world,
        |call| call.verb == "patch" && call.target.plural == "configmaps" && call.body["data"] != json!(null),
        Some(9),
    );
    world.set_sick("w1", true);
    world.until("healed", || world.phases() == ["Succeeded"]).await;
    let waits = waits(&tries);
    assert!(waits.iter().take(2).all(|wait| (9..=11).contains(wait)), "{waits:?}");
}
