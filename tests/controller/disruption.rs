//! The kill of a shim that would end a running pod, and the disruption budget of that pod.

use serde_json::{Value, json};

use crate::fake_api::world::World;

/// A node with a hung container in a pod that runs, under a policy that lets its shim be killed.
fn world(allowed: u32) -> World {
    let world = World::new(3);
    let kill =
        json!({"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "Kill", "allowRunningPods": true}});
    world.policy("hung", "Enforce", &json!([kill, {"action": "Notify"}]));
    world.api.put(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "log-x", "namespace": "d", "uid": "pod-1", "labels": {"app": "log"}},
        "spec": {"nodeName": "w1", "containers": []}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    world.api.put(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "log", "namespace": "d", "generation": 1}, "spec": {"selector": {"matchLabels": {"app": "log"}}},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 2,
            "observedGeneration": 1}}));
    world.kubelets();
    for node in ["w1", "w2", "w3"] {
        world.probe(node);
    }
    world
}

fn step(world: &World) -> Value {
    world.api.list("noderemediations").first().map(|e| e["status"]["steps"][0].clone()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn no_running_pod_is_ended_past_its_disruption_budget() {
    let world = world(0);
    let replica = world.controller("a");
    world.set_sick("w1", true);
    world.until("people are told", || world.phases() == ["Failed"]).await;
    let refused = step(&world);
    assert_eq!((&refused["state"], &refused["reason"]), (&json!("Refused"), &json!("Protected")));
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("PodDisruptionBudget d/log lets none go, and the kill would end Pod d/log-x"),
        "{message}"
    );
    assert!(world.api.list("jobs").is_empty() && world.status("w1")["order"].is_null(), "nothing was ordered");
    replica.crash().await;
}

#[tokio::test(start_paused = true)]
async fn what_has_room_or_goes_anyway_or_has_no_budget_is_released() {
    type Change = fn(&World);
    let cases: [(u32, Change); 4] = [
        (1, |_| {}),
        (0, |world| world.api.remove("poddisruptionbudgets", "log")),
        (0, |world| {
            world.api.change("pods", "log-x", |pod| {
                pod["metadata"]["finalizers"] = json!(["x/y"]);
                pod["metadata"]["deletionTimestamp"] = json!("2025-06-01T12:00:00Z");
            });
        }),
        // Another pod of that name is not the one that would be ended.
        (0, |world| world.api.change("pods", "log-x", |pod| pod["metadata"]["uid"] = json!("pod-2"))),
    ];
    for (number, (allowed, change)) in cases.into_iter().enumerate() {
        let world = world(allowed);
        change(&world);
        let replica = world.controller("a");
        world.set_sick("w1", true);
        world.until("healed", || world.phases() == ["Succeeded"]).await;
        assert_eq!(world.api.list("jobs").len(), 1, "case {number}");
        replica.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_ask_nothing_is_killed() {
    use crate::fake_api::{Call, Fault};
    let world = world(1);
    let is_asked = |call: &Call| call.target.plural == "poddisruptionbudgets";
    world.api.hook(move |call| is_asked(call).then_some(Fault::Code(403)));
    let replica = world.controller("a");
    world.set_sick("w1", true);
    world.until("people are told", || world.phases() == ["Failed"]).await;
    assert!(world.api.list("jobs").is_empty());
    assert_eq!(step(&world)["reason"], "CallFailed");
    replica.crash().await;
}
