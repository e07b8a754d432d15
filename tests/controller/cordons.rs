//! Cordons of ours: what comes off a Node again, what stays there, and what is told where the API server refuses that.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::world::{Replica, World};
use crate::fake_api::{Call, Fault};

const CORDONED_BY: &str = "runtimehealth.io/cordoned-by";
const TAINTED_BY: &str = "runtimehealth.io/tainted-by";

/// A policy that marks a node in this way before it repairs it.
fn world(mark: &Value) -> World {
    let world = World::probing(3, &json!([mark, World::release()[0].clone(), {"action": "Notify"}]));
    world.kubelets();
    world
}

/// A world whose controller has cordoned the faulty node w1.
async fn cordoned() -> (World, Replica) {
    let world = world(&json!({"action": "Cordon"}));
    let replica = world.controller_of_sick("a", "w1");
    world.until("cordoned", || !mark(&world, CORDONED_BY).is_null()).await;
    (world, replica)
}

fn mark(world: &World, annotation: &str) -> Value {
    world.node("w1")["metadata"]["annotations"][annotation].clone()
}

/// The warnings on the node that say this.
fn warned(world: &World, said: &str) -> Vec<Value> {
    let is_it = |event: &Value| event["note"].as_str().is_some_and(|note| note.contains(said));
    world.api.list("events").into_iter().filter(|event| event["type"] == "Warning" && is_it(event)).collect()
}

/// As where a webhook refuses that patch for as long as it is there.
#[tokio::test(start_paused = true)]
async fn a_left_over_cordon_that_stays_refused_holds_up_no_other_work_on_its_node() {
    let world = World::healthy();
    world.api.change("nodes", "w1", |node| {
        node["metadata"]["annotations"][CORDONED_BY] = json!("an-remediation-that-is-gone");
        node["spec"]["unschedulable"] = json!(true);
    });
    let removes = |call: &Call| {
        let annotations = call.body["metadata"]["annotations"].as_object();
        annotations.and_then(|annotations| annotations.get(CORDONED_BY)).is_some_and(Value::is_null)
    };
    world.api.hook(move |call| removes(call).then_some(Fault::Code(403)));
    let _replica = world.controller("a");
    world.until("refused", || world.api.calls().iter().any(removes)).await;
    world.set_sick("w1", true);
    world.healed().await;
    assert_eq!(mark(&world, CORDONED_BY), "an-remediation-that-is-gone");
    world.api.unhook();
    world.until("uncordoned", || mark(&world, CORDONED_BY).is_null()).await;
}

/// A tool has put the annotations of the old Node on the new one, and a person cordons that one.
#[tokio::test(start_paused = true)]
async fn a_mark_on_a_new_machine_is_swept_and_the_cordon_there_stays() {
    let (world, _replica) = cordoned().await;
    let old = mark(&world, CORDONED_BY);
    world.healed().await;
    world.until("uncordoned", || mark(&world, CORDONED_BY).is_null()).await;
    assert!(world.node("w1")["spec"]["unschedulable"].is_null());
    let status = || world.remediation()["status"].clone();
    let before = status();
    world.api.change("nodes", "w1", |node| {
        node["metadata"]["uid"] = json!("another-machine");
        node["metadata"]["annotations"][CORDONED_BY] = old;
        node["spec"]["unschedulable"] = json!(true);
    });
    world.until("swept", || mark(&world, CORDONED_BY).is_null()).await;
    let said = "to make it schedulable: kubectl uncordon w1";
    world.until("a person is notified", || !warned(&world, said).is_empty()).await;
    sleep(Duration::from_mins(2)).await;
    assert_eq!(world.node("w1")["spec"]["unschedulable"], true, "nobody here knows whose it is");
    assert_eq!((world.phases().len(), status()), (1, before), "its record is about the machine before");
}

/// Another tool takes the node out of service meanwhile.
#[tokio::test(start_paused = true)]
async fn a_node_that_stays_cordoned_for_others_is_not_told_to_be_uncordoned() {
    let (world, _replica) = cordoned().await;
    world.api.change("nodes", "w1", |node| {
        node["spec"]["taints"] = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    });
    world.until("our mark is off", || mark(&world, CORDONED_BY).is_null()).await;
    let said = "kubectl uncordon w1 makes it schedulable";
    world.until("a person is notified", || !warned(&world, said).is_empty()).await;
    assert_eq!(world.node("w1")["spec"]["unschedulable"], true);
    assert!(world.api.list("events").iter().all(|event| event["reason"] != "Uncordoned"));
}

/// By an admission webhook, say, or since rights were taken away.
#[tokio::test(start_paused = true)]
async fn an_undo_that_is_refused_is_told_once_keeps_its_slot_and_is_done_in_the_end() {
    let taint = json!({"action": "Taint", "taint": {"effect": "PreferNoSchedule"}});
    let cases = [(json!({"action": "Cordon"}), CORDONED_BY, "cordon"), (taint, TAINTED_BY, "taint")];
    for (how, annotation, what) in cases {
        let world = world(&how);
        world.api.hook(move |call| {
            let of_node = call.is("patch", "nodes");
            let is_cleanup = call.body["metadata"]["annotations"].get(annotation).is_some_and(Value::is_null);
            (of_node && is_cleanup).then_some(Fault::Code(403))
        });
        let _replica = world.controller_of_sick("a", "w1");
        let message = || world.api.list("noderemediations").first().map(|e| e["status"]["message"].to_string());
        let is_noted = || message().is_some_and(|said| said.contains(&format!("; not cleaned up: its {what}: ")));
        world.until("noted", is_noted).await;
        let told = || warned(&world, &format!("its {what} stays on the node"));
        world.until("a person is notified", || !told().is_empty()).await;
        let written = || world.api.count_writes("noderemediations/");
        let before = written();
        sleep(Duration::from_mins(30)).await;
        let events = told();
        assert!(events.len() == 1 && events[0]["series"].is_null(), "told again and again: {events:#?}");
        assert!(events[0]["note"].to_string().contains("(403)"), "{events:#?}");
        assert_eq!(written(), before, "{what}: {:?}", message());
        assert_ne!(world.slots(), "{\"slots\":{}}", "no further node is marked by who cannot take it back");
        world.api.unhook();
        world.until("put back", || mark(&world, annotation).is_null()).await;
        world.until("at its end", || world.phases() == ["Succeeded"]).await;
        assert!(!is_noted(), "{:?}", message());
        world.until("the slot is given back", || world.has_no_slots()).await;
    }
}
