//! Nodes that are rebooted: commanded once for one boot, by whatever leader, and judged by the boot id that the Node shows.
//! And nodes that are marked for a reboot by another tool: the command stands as long as the mark is wanted.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::world::World;

#[tokio::test(start_paused = true)]
async fn a_node_is_commanded_once_and_opened_when_its_new_boot_is_well() {
    let steps = json!([{"action": "Cordon"},
        {"action": "Reboot", "reboot": {"requireDrain": false}, "approval": "Automatic", "timeout": "15m"},
        {"action": "Notify"}]);
    let world = World::probing(3, &steps);
    let replica = world.controller_of_sick("a", "w1");
    world.until("it has its command", || world.command("w1")["action"] == "Reboot").await;
    assert!(world.is_cordoned("w1"), "cordoned before");
    // The controller dies; another one leads while the command stands.
    replica.crash().await;
    let replica = world.controller("b");
    world.until("known to the next", || world.step(1)["state"] == "Started").await;
    sleep(Duration::from_mins(2)).await;
    assert_eq!(world.step(1)["state"], "Started", "that nothing is heard is no verdict");
    // The probe is back and well before the kubelet has told the new boot.
    world.set_sick("w1", false);
    world.set_boot("w1", "b2", false);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(world.step(1)["state"], "Started");
    world.set_boot("w1", "b2", true);
    world.until("verified", || world.step(1)["state"] == "Succeeded").await;
    let said = world.message(1);
    assert!(said.starts_with("the node has rebooted: its boot id was b and is b2"), "{said}");
    world.until("opened", || !world.is_cordoned("w1")).await;
    let calls = world.api.calls();
    let commands = calls.iter().map(|call| &call.body["spec"]["command"]);
    let boots: Vec<&Value> = commands.filter(|one| one["action"] == "Reboot").map(|one| &one["bootId"]).collect();
    assert_eq!(boots, ["b"]);
    assert!(world.command("w1").is_null(), "taken back");
    replica.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_is_marked_without_a_cordon_and_waited_for_by_whatever_leader() {
    let mark = json!({"action": "MarkForReboot", "markForReboot": {"path": "/run/kured-reboot"}, "approval": "Automatic",
        "timeout": "4h"});
    let world = World::probing(3, &json!([mark, {"action": "Notify"}]));
    let replica = world.controller_of_sick("a", "w1");
    world.until("it has its command", || world.command("w1")["action"] == "MarkForReboot").await;
    let command = world.command("w1");
    assert_eq!(command["markForReboot"], json!({"path": "/run/kured-reboot"}));
    assert_eq!(command["markerExpiresAfterSeconds"], 14400);
    assert_eq!(command["bootId"], "b");
    assert!(!world.is_cordoned("w1"));
    world.api.change("noderuntimehealths", "w1", |health| {
        health["status"]["commandResult"] = json!({"operationId": command["operationId"], "state": "Done", "reason": "Executed",
            "message": "/run/kured-reboot asks for a reboot", "at": "2026-01-01T00:00:00Z"});
    });
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
