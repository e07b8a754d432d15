//! An episode that a newer version has written, and that the version which leads now cannot read.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::world::{Replica, World};
use crate::{die_with_an_episode_open, jobs_created};

/// A leader dies with an episode of w1 open, which nobody can read any more; another one leads. Its name.
async fn lost(world: &World) -> String {
    world.policy("hung", "Enforce", &World::release());
    world.kubelets();
    world.set_sick("w1", true);
    for node in ["w1", "w2", "w3", "w4"] {
        world.probe(node);
    }
    die_with_an_episode_open(world).await;
    let name = world.api.list("noderemediations")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    world.api.change("noderemediations", &name, |episode| {
        episode["status"]["phase"] = json!("Quarantined");
        episode["status"]["message"] = json!("of a later version");
    });
    world.api.unhook();
    name
}

fn slots(world: &World) -> String {
    world.api.get("configmaps", "nrh-ledger").unwrap()["data"]["ledger.json"].as_str().unwrap().to_owned()
}

fn held(world: &World) -> Vec<String> {
    let held = world.status("w1")["remediation"]["held"].as_array().cloned().unwrap_or_default();
    held.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}

async fn heals(world: &World, node: &str) {
    world.set_sick(node, true);
    let is_done = |episode: &Value| episode["spec"]["nodeName"] == node && episode["status"]["phase"] == "Succeeded";
    world.until(&format!("{node} is healed"), || world.api.list("noderemediations").iter().any(is_done)).await;
}

async fn nothing_is_done_on_the_first_and_the_others_go_on(world: &World, name: &str) -> Replica {
    let next = world.controller("b");
    heals(world, "w2").await;
    // Later than any slot is kept of an episode that nobody sees.
    sleep(Duration::from_mins(3)).await;
    heals(world, "w3").await;
    assert!(jobs_created(&world.api.calls()).iter().all(|job| !job.contains("/w1-")));
    let held = held(world);
    assert!(held.iter().any(|line| line.starts_with("CannotAct: ") && line.contains(name)), "{held:?}");
    next
}

#[tokio::test(start_paused = true)]
async fn an_episode_that_the_new_leader_cannot_read_keeps_its_slot_and_its_node_and_stops_nobody_else() {
    let world = World::new(4);
    let name = lost(&world).await;
    world.api.forget_calls();
    let next = nothing_is_done_on_the_first_and_the_others_go_on(&world, &name).await;
    assert!(slots(&world).contains(&name), "{}", slots(&world));
    world.api.remove("noderemediations", &name);
    world.until("w1 is healed, too", || world.phases() == ["Succeeded"; 3]).await;
    world.until("the slot is given back", || slots(&world) == "{\"slots\":{}}").await;
    world.until("nothing is held", || held(&world).is_empty()).await;
    next.crash().await;
}

#[tokio::test(start_paused = true)]
async fn one_without_a_slot_keeps_its_node_all_the_same() {
    let world = World::new(4);
    let name = lost(&world).await;
    world.api.forget_calls();
    world.api.change("configmaps", "nrh-ledger", |map| map["data"]["ledger.json"] = json!("{\"slots\":{}}"));
    let next = nothing_is_done_on_the_first_and_the_others_go_on(&world, &name).await;
    assert!(!slots(&world).contains(&name), "{}", slots(&world));
    next.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_ledger_is_rebuilt_with_it() {
    let world = World::new(4);
    let name = lost(&world).await;
    world.api.forget_calls();
    world.api.remove("configmaps", "nrh-ledger");
    let next = nothing_is_done_on_the_first_and_the_others_go_on(&world, &name).await;
    assert!(slots(&world).contains(&name), "{}", slots(&world));
    next.crash().await;
}
