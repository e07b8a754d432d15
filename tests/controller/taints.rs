//! Taints of ours: what is written to a Node that others write to as well.

use serde_json::{Value, json};

use crate::fake_api::Fault;
use crate::fake_api::world::{World, die_at_each_write};

const OURS: &str = "runtimehealth.io/unhealthy";

fn world() -> World {
    let taint = json!({"action": "Taint", "taint": {"effect": "PreferNoSchedule"}});
    let release = json!({"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGCONT"}});
    World::probing(3, &json!([taint, release, {"action": "Notify"}]))
}

fn taints(world: &World) -> Vec<Value> {
    world.node("w1")["spec"]["taints"].as_array().cloned().unwrap_or_default()
}

fn mark(world: &World) -> Value {
    world.node("w1")["metadata"]["annotations"]["runtimehealth.io/tainted-by"].clone()
}

/// Told in medik8s/poison-pill #65 and kubernetes-sigs/node-readiness-controller #292.
#[tokio::test(start_paused = true)]
async fn it_comes_and_goes_beside_the_taints_of_others() {
    let world = world();
    let theirs = json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"});
    world.api.change("nodes", "w1", |node| node["spec"]["taints"] = json!([theirs]));
    let _replica = world.controller_of_sick("a", "w1");
    world.until("tainted", || taints(&world).len() == 2).await;
    assert_eq!(taints(&world), [theirs.clone(), json!({"key": OURS, "effect": "PreferNoSchedule"})]);
    let remediation = world.remediation();
    assert_eq!(mark(&world), format!("{}:PreferNoSchedule", remediation["metadata"]["name"].as_str().unwrap()));
    // Somebody else writes to the same list meanwhile; one of them takes the taint for theirs to add to.
    let later = json!({"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"});
    let mine = json!({"key": OURS, "value": "mine", "effect": "NoExecute"});
    world.api.change("nodes", "w1", |node| {
        node["spec"]["taints"].as_array_mut().unwrap().extend([later.clone(), mine.clone()]);
    });
    world.set_sick("w1", false);
    world.until("healed", || world.phases().iter().all(|phase| phase == "Succeeded" || phase == "Cancelled")).await;
    world.until("taken off", || mark(&world).is_null()).await;
    assert_eq!(taints(&world), [theirs, later, mine]);
}

/// What another tool writes between our check and our write: the write is refused, and made anew on what stands there then.
#[tokio::test(start_paused = true)]
async fn what_others_write_between_the_check_and_the_write_is_not_lost() {
    let world = world();
    let mut written = Vec::new();
    world.api.hook(move |call| {
        let is_ours = call.is("patch", "nodes") && !call.body["spec"]["taints"].is_null();
        // Once before the taint is put on, once before it is taken off.
        if !is_ours || call.target.name.as_deref() != Some("w1") {
            return None;
        }
        let is_off = call.body["metadata"]["annotations"]["runtimehealth.io/tainted-by"].is_null();
        let key = if is_off { "karpenter.sh/late" } else { "karpenter.sh/early" };
        if written.contains(&key) {
            return None;
        }
        written.push(key);
        let theirs = json!({"key": key, "effect": "NoSchedule"});
        Some(Fault::Meanwhile(Box::new(move |api| {
            api.change("nodes", "w1", |node| {
                let mut all = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
                all.push(theirs);
                node["spec"]["taints"] = json!(all);
            });
        })))
    });
    let _replica = world.controller_of_sick("a", "w1");
    world.until("tainted", || !mark(&world).is_null()).await;
    assert_eq!(taints(&world).len(), 2, "{:?}", taints(&world));
    world.set_sick("w1", false);
    world.until("taken off", || mark(&world).is_null()).await;
    let keys: Vec<Value> = taints(&world).into_iter().map(|mut taint| taint["key"].take()).collect();
    assert_eq!(keys, ["karpenter.sh/early", "karpenter.sh/late"]);
}

/// Without the mark it is nobody's here any more: it stays, and people are told.
#[tokio::test(start_paused = true)]
async fn a_taint_that_has_lost_its_mark_stays_and_people_are_told() {
    let world = world();
    let _replica = world.controller_of_sick("a", "w1");
    world.until("tainted", || !mark(&world).is_null()).await;
    world.api.change("nodes", "w1", |node| {
        node["metadata"]["annotations"].as_object_mut().unwrap().remove("runtimehealth.io/tainted-by");
    });
    world.set_sick("w1", false);
    world.until("healed", || world.phases().iter().all(|phase| phase == "Succeeded" || phase == "Cancelled")).await;
    let told = || {
        let events = world.api.list("events");
        let is_it = |event: &&Value| event["note"].as_str().is_some_and(|note| note.contains("stays on the node"));
        events.iter().find(is_it).map(|event| (event["reason"].clone(), event["type"].clone()))
    };
    world.until("a person is notified", || told().is_some()).await;
    assert_eq!(told(), Some((json!("ActionNotExecuted"), json!("Warning"))));
    assert_eq!(taints(&world), [json!({"key": OURS, "effect": "PreferNoSchedule"})]);
}

/// The write that marks the node landed and its answer was lost; before it is repeated, a person takes the taint off, or uncordons.
#[tokio::test(start_paused = true)]
async fn what_a_person_undoes_before_it_was_recorded_is_not_done_again() {
    let release = json!({"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGCONT"}});
    for (action, field) in [("Taint", "taints"), ("Cordon", "unschedulable")] {
        let world = world();
        world.policy("hung", "Enforce", &json!([{"action": action}, release, {"action": "Notify"}]));
        let mut is_done = false;
        world.api.hook(move |call| {
            let is_it = call.is("patch", "nodes") && !call.body["spec"][field].is_null();
            (is_it && !std::mem::replace(&mut is_done, true)).then_some(Fault::DoneButSilent)
        });
        let _replica = world.controller_of_sick("a", "w1");
        let spec = || world.node("w1")["spec"].clone();
        world.until("marked", || !spec()[field].is_null()).await;
        world.api.change("nodes", "w1", |node| node["spec"][field] = Value::Null);
        world.until("cancelled", || world.phases() == ["Cancelled"]).await;
        let notes = || world.node("w1")["metadata"]["annotations"].to_string();
        world.until("the mark is off", || !notes().contains("runtimehealth.io/")).await;
        tokio::time::sleep(std::time::Duration::from_mins(2)).await;
        assert!(spec()[field].is_null() || spec()[field] == json!([]), "{action}: {}", spec());
        let said = world.remediation()["status"]["message"].clone();
        assert!(said.as_str().is_some_and(|said| said.contains("a person ")), "{action}: {said}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_write_strands_no_taint() {
    let make = || {
        let world = world();
        world.kubelets();
        world.set_sick("w1", true);
        world
    };
    let is_done = |world: &World| world.phases() == ["Succeeded"] && mark(world).is_null();
    die_at_each_write(make, is_done, 6, async |world, writes| {
        assert!(taints(world).is_empty(), "a death at write {writes}");
    })
    .await;
}
