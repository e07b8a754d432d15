//! Taints of ours: what is written to a Node that others write to as well.

use serde_json::{Value, json};

use crate::fake_api::world::World;

const OURS: &str = "runtimehealth.io/unhealthy";

fn world() -> World {
    let world = World::new(3);
    let taint = json!({"action": "Taint", "taint": {"effect": "PreferNoSchedule"}});
    let release = json!({"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "Cont"}});
    world.policy("hung", "Enforce", &json!([taint, release, {"action": "Notify"}]));
    for node in ["w1", "w2", "w3"] {
        world.probe(node);
    }
    world
}

fn taints(world: &World) -> Vec<Value> {
    world.api.get("nodes", "w1").unwrap_or_default()["spec"]["taints"].as_array().cloned().unwrap_or_default()
}

fn mark(world: &World) -> Value {
    world.api.get("nodes", "w1").unwrap_or_default()["metadata"]["annotations"]["runtimehealth.io/tainted-by"].clone()
}

/// Told in medik8s/poison-pill #65 and kubernetes-sigs/node-readiness-controller #292.
#[tokio::test(start_paused = true)]
async fn it_comes_and_goes_beside_the_taints_of_others() {
    let world = world();
    let theirs = json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"});
    world.api.change("nodes", "w1", |node| node["spec"]["taints"] = json!([theirs]));
    let replica = world.controller("a");
    world.set_sick("w1", true);
    world.until("tainted", || taints(&world).len() == 2).await;
    assert_eq!(taints(&world), [theirs.clone(), json!({"key": OURS, "effect": "PreferNoSchedule"})]);
    let episode = world.api.list("noderemediations").first().cloned().unwrap();
    assert_eq!(mark(&world), episode["metadata"]["name"]);
    // Somebody else writes to the same list meanwhile.
    let later = json!({"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"});
    world.api.change("nodes", "w1", |node| node["spec"]["taints"].as_array_mut().unwrap().push(later.clone()));
    world.set_sick("w1", false);
    world.until("healed", || world.phases().iter().all(|phase| phase == "Succeeded" || phase == "Cancelled")).await;
    world.until("taken off", || mark(&world).is_null()).await;
    assert_eq!(taints(&world), [theirs, later]);
    replica.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_write_strands_no_taint() {
    let mut points = 0;
    for writes in 0..40 {
        let world = world();
        let was_cut = world.cut_off_after(writes);
        let first = world.controller("a");
        world.set_sick("w1", true);
        tokio::time::sleep(std::time::Duration::from_secs(90)).await;
        first.crash().await;
        world.api.unhook();
        let is_end = !was_cut();
        let second = world.controller("b");
        world.set_sick("w1", false);
        world
            .until("at its end", || {
                let phases = world.phases();
                phases.iter().all(|phase| ["Succeeded", "Cancelled", "Failed"].contains(&phase.as_str()))
                    && mark(&world).is_null()
            })
            .await;
        assert!(taints(&world).is_empty(), "cut off after {writes} writes");
        second.crash().await;
        if is_end {
            break;
        }
        points += 1;
    }
    println!("{points} points at which the leader died");
    assert!(points >= 6, "{points}");
}
