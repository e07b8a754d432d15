//! When a write is tried again that the API server had no time for.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::fake_api::world::World;
use crate::fake_api::{Call, Fault};

/// Answers the first two of these writes that too much is asked, perhaps with a wait in seconds.
fn busy_twice(world: &World, is_meant: fn(&Call) -> bool, asked: Option<u32>) {
    let mut tries = 0;
    world.api.forget_calls();
    world.api.hook(move |call| {
        tries += usize::from(is_meant(call));
        (is_meant(call) && tries < 3).then(|| asked.map_or(Fault::Code(429), Fault::Busy))
    });
}

/// The seconds from each of these writes to the next.
fn waits(world: &World, is_meant: fn(&Call) -> bool) -> Vec<u64> {
    let tries: Vec<Instant> = world.api.calls().iter().filter(|call| is_meant(call)).map(|call| call.at).collect();
    tries.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs()).collect()
}

/// Refuses the calls that are meant on remediations whose names begin with `a-`.
fn refuse(world: &World, is_meant: fn(&Call) -> bool) {
    world.api.forget_calls();
    world.api.hook(move |call| {
        let is_refused = is_meant(call) && call.target.name.as_deref().is_some_and(|name| name.starts_with("a-"));
        is_refused.then_some(Fault::Code(403))
    });
}

/// Ten minutes later the first of them was tried a few times a minute.
async fn tried_seldom(world: &World, is_meant: fn(&Call) -> bool) {
    sleep(Duration::from_mins(10)).await;
    let is_first = |call: &&Call| is_meant(call) && call.target.name.as_deref() == Some("a-00");
    let tries = world.api.calls().iter().filter(is_first).count();
    assert!((30..=60).contains(&tries), "{tries} tries in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn an_act_is_not_tried_again_before_the_api_server_wants_it() {
    // One asks for longer than anybody waits, and the last one says nothing of how long.
    let cases = [(Some(7), 7..=9), (Some(600), 60..=75), (None, 1..=2)];
    for (asked, expected) in cases {
        let world = World::healthy();
        let is_meant = |call: &Call| call.is("create", "jobs");
        busy_twice(&world, is_meant, asked);
        let _replica = world.controller_of_sick("a", "w1");
        world.healed().await;
        let waits = waits(&world, is_meant);
        assert!(waits.len() == 2 && waits.iter().all(|wait| expected.contains(wait)), "{expected:?}: {waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_ledger_is_not_written_again_before_the_api_server_wants_it() {
    let world = World::healthy();
    let _replica = world.controller("a");
    world.until("it leads", || world.api.get("configmaps", "nrh-ledger").is_some()).await;
    sleep(Duration::from_secs(5)).await;
    let is_meant = |call: &Call| call.is("patch", "configmaps") && !call.body["data"].is_null();
    busy_twice(&world, is_meant, Some(9));
    world.set_sick("w1", true);
    world.healed().await;
    let waits = waits(&world, is_meant);
    assert!(waits.iter().take(2).all(|wait| (9..=11).contains(wait)), "{waits:?}");
}

/// As where a webhook refuses that write.
#[tokio::test(start_paused = true)]
async fn finished_remediations_that_keep_their_finalizers_are_tried_seldom_and_hold_up_no_other() {
    let frees = |call: &Call| {
        call.verb == "patch"
            && call.target.resource() == "noderemediations"
            && !call.body["metadata"]["finalizers"].is_null()
    };
    let world = World::healthy();
    world.api.hook(move |call| frees(call).then_some(Fault::Code(403)));
    let first = world.controller_of_sick("a", "w1");
    world.healed().await;
    first.crash().await;
    let last = world.remediation();
    for number in 0..20 {
        let mut other = last.clone();
        other["metadata"] = json!({"name": format!("a-{number:02}"), "labels": last["metadata"]["labels"],
            "finalizers": last["metadata"]["finalizers"]});
        world.api.put(other);
    }
    refuse(&world, frees);
    let _second = world.controller("b");
    let name = last["metadata"]["name"].as_str().unwrap();
    let finalizers = || world.api.get("noderemediations", name).unwrap()["metadata"]["finalizers"].clone();
    world.until("the one that may be freed is", || finalizers().as_array().is_none_or(Vec::is_empty)).await;
    tried_seldom(&world, frees).await;
}

/// As where a webhook refuses it, and more of them than one pass deletes.
#[tokio::test(start_paused = true)]
async fn old_remediations_that_cannot_be_deleted_are_tried_seldom_and_hold_up_no_other() {
    let world = World::healthy();
    let first = world.controller_of_sick("a", "w1");
    world.healed().await;
    first.crash().await;
    let last = world.remediation();
    let refused = (0..100).map(|number| (format!("a-{number:02}"), "2020-01-01T00:00:00Z"));
    for (name, ended) in refused.chain([("b".to_owned(), "2020-01-02T00:00:00Z")]) {
        let mut old = last.clone();
        old["metadata"] = json!({"name": name, "labels": last["metadata"]["labels"]});
        (old["status"]["startedAt"], old["status"]["finishedAt"]) = (json!(ended), json!(ended));
        world.api.put(old);
    }
    let deletes = |call: &Call| call.verb == "delete";
    refuse(&world, deletes);
    let _second = world.controller("b");
    world.until("the one that may be deleted is", || world.api.get("noderemediations", "b").is_none()).await;
    tried_seldom(&world, deletes).await;
}
