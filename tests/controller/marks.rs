//! Nodes that are marked for a reboot by another tool: the command stands as long as the mark is wanted, and not a moment longer.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::fake_api::world::World;

fn world() -> World {
    let mark = json!({"action": "MarkForReboot", "markForReboot": {"path": "/run/kured-reboot"}, "approval": "Automatic",
        "timeout": "4h"});
    World::probing(3, &json!([mark, {"action": "Notify"}]))
}

/// The probe of a node says what came of the command that stands.
fn answer(world: &World, node: &str, reason: &str) {
    let operation = world.command(node)["operationId"].clone();
    world.api.change("noderuntimehealths", node, |health| {
        health["status"]["commandResult"] = json!({"operationId": operation, "state": "Done", "reason": reason,
            "message": "/run/kured-reboot asks for a reboot", "at": "2026-01-01T00:00:00Z"});
    });
}

#[tokio::test(start_paused = true)]
async fn a_node_is_marked_without_a_cordon_and_waited_for_by_whatever_leader() {
    let world = world();
    let replica = world.controller_of_sick("a", "w1");
    world.until("it has its command", || world.command("w1")["action"] == "MarkForReboot").await;
    let command = world.command("w1");
    assert_eq!(command["markForReboot"], json!({"path": "/run/kured-reboot"}));
    assert_eq!(command["markerExpiresAfterSeconds"], 14400);
    assert_eq!(command["bootId"], "b");
    assert!(!world.is_cordoned("w1"));
    answer(&world, "w1", "Executed");
    world.until("answered", || world.step(0)["reason"] == "Executed").await;
    replica.crash().await;
    let replica = world.controller("b");
    sleep(Duration::from_hours(2)).await;
    assert_eq!((world.step(0)["state"].as_str(), world.command("w1")), (Some("Started"), command));
    world.set_sick("w1", false);
    world.set_boot("w1", "b2", true);
    world.until("verified", || world.step(0)["state"] == "Succeeded").await;
    world.until("taken back", || world.command("w1").is_null()).await;
    assert_eq!(world.step(0)["markForReboot"]["path"], "/run/kured-reboot");
    replica.stop().await.unwrap();
}
