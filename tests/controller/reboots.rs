//! Nodes that are rebooted: commanded once for one boot, by whatever leader, and judged by the boot id that the Node shows.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::world::World;

fn world() -> World {
    World::probing(
        3,
        &json!([{"action": "Cordon"},
            {"action": "Reboot", "reboot": {"requireDrain": false}, "approval": "Automatic", "timeout": "15m"},
            {"action": "Notify"}]),
    )
}

/// Commands to reboot that were written, each with its boot id.
fn commands(world: &World) -> Vec<Value> {
    let calls = world.api.calls();
    let commands = calls.iter().map(|call| call.body["spec"]["command"].clone());
    commands.filter(|command| command["action"] == "Reboot").map(|command| command["bootId"].clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_node_is_commanded_once_and_opened_when_its_new_boot_is_well() {
    let world = world();
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
    assert_eq!(commands(&world), ["b"]);
    assert!(world.command("w1").is_null(), "taken back");
    replica.stop().await.unwrap();
}
