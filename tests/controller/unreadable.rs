//! A remediation that a newer version has written, and that the version which leads now cannot read; and Nodes that no version can.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::world::{Replica, World};
use crate::fake_api::{Call, FakeApi};
use crate::{die_with_a_remediation_open, jobs_created};

/// A leader dies with a remediation of w1 open, which nobody can read any more. After this change another one leads:
/// nothing is done on w1, and the others go on. With the name of the remediation.
async fn lost(change: impl FnOnce(&FakeApi), has_slot: bool) -> (World, String, Replica) {
    let world = World::probing(4, &World::release());
    world.kubelets();
    die_with_a_remediation_open(&world).await;
    let name = world.remediation()["metadata"]["name"].as_str().unwrap().to_owned();
    world.api.change("noderemediations", &name, |remediation| {
        remediation["status"]["phase"] = json!("OfALaterVersion");
        remediation["status"]["message"] = json!("of a later version");
    });
    world.api.unhook();
    world.api.forget_calls();
    change(&world.api);
    let next = world.controller("b");
    resolves(&world, "w2").await;
    // Later than any slot is kept of a remediation that nobody sees.
    sleep(Duration::from_mins(3)).await;
    resolves(&world, "w3").await;
    assert!(jobs_created(&world.api.calls()).iter().all(|job| !job.contains("/w1-")));
    let blocked = world.blocked("w1");
    assert!(blocked.lines().any(|line| line.starts_with("ActionsDisabled: ") && line.contains(&name)), "{blocked:?}");
    assert_eq!(world.slots().contains(&name), has_slot, "{}", world.slots());
    (world, name, next)
}

async fn resolves(world: &World, node: &str) {
    world.set_sick(node, true);
    world.until(&format!("{node} is healed"), || is_resolved(world, node)).await;
}

#[tokio::test(start_paused = true)]
async fn a_remediation_that_the_new_leader_cannot_read_keeps_its_slot_and_its_node_and_stops_nobody_else() {
    let (world, name, _next) = lost(|_| {}, true).await;
    world.api.remove("noderemediations", &name);
    world.until("w1 is healed, too", || world.phases() == ["Succeeded"; 3]).await;
    world.until("the slot is given back", || world.has_no_slots()).await;
    world.until("nothing is held", || world.blocked("w1").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn one_without_a_slot_keeps_its_node_all_the_same() {
    let without = |map: &mut Value| map["data"]["ledger.json"] = json!("{\"slots\":{}}");
    lost(|api| api.change("configmaps", "nrh-ledger", without), false).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_ledger_is_rebuilt_with_it() {
    lost(|api| api.remove("configmaps", "nrh-ledger"), true).await;
}

/// A time that the API server takes and the controller cannot hold, and one that it can.
const BEYOND: &str = "9999-12-31T23:59:59Z";
const FINE: &str = "2025-06-01T12:00:00Z";

/// The kubelet of a node writes this time into its status.
fn beat(api: &FakeApi, node: &str, at: &str) {
    api.change("nodes", node, |node| node["status"]["conditions"][0]["lastHeartbeatTime"] = json!(at));
}

fn is_resolved(world: &World, node: &str) -> bool {
    let is_it =
        |remediation: &Value| remediation["spec"]["nodeName"] == node && remediation["status"]["phase"] == "Succeeded";
    world.api.list("noderemediations").iter().any(is_it)
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_object_cannot_be_read_is_held_and_hides_no_other() {
    let world = World::new(8);
    world.policy("hung", "Enforce", &World::release());
    world.kubelets();
    // One is so from the start, when nothing is known of it yet.
    beat(&world.api, "w1", BEYOND);
    world.set_sick("w1", true);
    for node in ["w1", "w2", "w3", "w4"] {
        world.probe(node);
    }
    let _replica = world.controller("a");
    resolves(&world, "w2").await;
    // The other becomes so while it is watched.
    beat(&world.api, "w3", BEYOND);
    world.set_sick("w3", true);
    resolves(&world, "w4").await;
    let is_it = |line: &str| line.starts_with("ActionsDisabled: ") && line.contains("lastHeartbeatTime");
    let is_told = || world.blocked("w1").lines().any(is_it);
    world.until("it is told why", is_told).await;
    sleep(Duration::from_mins(2)).await;
    let jobs = jobs_created(&world.api.calls());
    assert!(jobs.iter().all(|job| !job.contains("/w1-") && !job.contains("/w3-")), "{jobs:?}");
    for node in ["w1", "w3"] {
        beat(&world.api, node, FINE);
        world.until(&format!("{node} is healed, too"), || is_resolved(&world, node)).await;
    }
    world.until("nothing is held", || world.blocked("w1").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_read_at_the_last_check_is_not_acted_on_and_its_remediation_waits() {
    let world = World::healthy();
    // What the watch has shown was fine.
    let is_check = |call: &Call| call.is("get", "nodes");
    world.api.meanwhile(is_check, |api| beat(api, "w1", BEYOND));
    let _replica = world.controller_of_sick("a", "w1");
    let is_beyond = || world.node("w1")["status"]["conditions"][0]["lastHeartbeatTime"] == BEYOND;
    world.until("it was looked at", is_beyond).await;
    sleep(Duration::from_mins(1)).await;
    assert!(jobs_created(&world.api.calls()).is_empty(), "{:?}", world.api.acts());
    let phases = world.phases();
    assert!(matches!(phases.as_slice(), [phase] if phase != "Cancelled" && phase != "Failed"), "{phases:?}");
    world.api.unhook();
    beat(&world.api, "w1", FINE);
    world.until("it goes on", || world.phases() == ["Succeeded"]).await;
    assert_eq!(jobs_created(&world.api.calls()).len(), 1);
}
