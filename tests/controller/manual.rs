//! What a person starts and cancels, by the objects that he writes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::Fault;
use crate::fake_api::world::{World, die_at_each_write};
use crate::jobs_created;

const REMEDIATIONS: &str = "noderemediations";

/// Three nodes of which one is sick, and a policy that leaves it alone for an hour.
fn world() -> World {
    let world = World::healthy();
    world.api.change("remediationpolicies", "hung", |policy| {
        policy["spec"]["rules"][0]["match"]["minDuration"] = json!("1h");
        policy["spec"]["rules"][0]["steps"][0]["approval"] = json!("Manual");
    });
    world.set_sick("w1", true);
    world
}

/// A person writes a start by hand.
fn ask(world: &World, name: &str) {
    let uid = world.node("w1")["metadata"]["uid"].clone();
    let generation = world.api.get("remediationpolicies", "hung").unwrap()["metadata"]["generation"].clone();
    let now = world.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    world.api.put(json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRemediation",
        "metadata": {"name": name, "creationTimestamp": now},
        "spec": {"nodeName": "w1", "nodeUid": uid, "policy": "hung", "mode": "Enforce",
            "manual": {"requestedBy": "ann", "fault": "HungContainer", "action": "ReleaseHungProcess", "reason": "seen it", "policyGeneration": generation}}}));
}

fn remediation(world: &World, name: &str) -> Value {
    world.api.get(REMEDIATIONS, name).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_manual_request_becomes_the_remediation_in_its_own_object() {
    let world = world();
    let replica = world.controller("a");
    sleep(Duration::from_mins(2)).await;
    assert!(world.api.list(REMEDIATIONS).is_empty());
    ask(&world, "by-hand");
    world.healed().await;
    let made = remediation(&world, "by-hand");
    assert_eq!(made["status"]["attempts"][0]["approvedBy"], "ann");
    assert_eq!(made["metadata"]["labels"]["app.kubernetes.io/part-of"], "nrh");
    assert_eq!(world.api.list(REMEDIATIONS).len(), 1, "no other object is made for it");
    let writes = world.api.writes();
    let of = |start: &str| writes.iter().position(|write| write.starts_with(start)).unwrap();
    let (kept, begun) = (of("patch noderemediations/by-hand"), of("patch noderemediations/status/by-hand"));
    let ledger = writes.iter().take(kept).filter(|write| write.starts_with("patch configmaps/nrh-ledger")).count();
    assert!(ledger >= 1 && kept < begun && begun < of("create jobs/"), "{writes:#?}");
    world.until("its finalizer is off", || world.all_are_freed()).await;
    world.until("its slot is given back", || world.has_no_slots()).await;
    assert_eq!(jobs_created(&world.api.calls()).len(), 1);
    replica.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_write_of_a_manual_request_is_repaired_with_one_job_in_all() {
    let make = || {
        let world = world();
        ask(&world, "by-hand");
        world
    };
    let is_resolved = |world: &World| world.phases() == ["Succeeded"];
    die_at_each_write(make, is_resolved, 6, async |world, writes| {
        world.until("freed", || world.all_are_freed()).await;
        world.until("its slot is given back", || world.has_no_slots()).await;
        assert_eq!(jobs_created(&world.api.calls()).len(), 1, "a death at write {writes}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_says_why_and_is_taken_back_without_a_trace_of_a_slot() {
    let world = world();
    world.api.change("remediationpolicies", "hung", |policy| policy["spec"]["pauseRequests"] = json!(["release"]));
    let _replica = world.controller("a");
    // Before the probe has reported it would wait for that.
    sleep(Duration::from_mins(1)).await;
    ask(&world, "by-hand");
    let message = || remediation(&world, "by-hand")["status"]["message"].as_str().unwrap_or_default().to_owned();
    world.until("it is reported", || message().contains("paused: release")).await;
    let told = || world.api.count_writes("status/by-hand");
    let before = told();
    sleep(Duration::from_mins(10)).await;
    assert_eq!((before, told()), (1, 1), "told once");
    assert_eq!((world.slots().as_str(), world.phases()), ("{\"slots\":{}}", vec!["Pending".to_owned()]));
    world.api.change(REMEDIATIONS, "by-hand", |object| object["spec"]["cancel"] = json!({"cancelledBy": "ann"}));
    world.until("ended", || world.phases() == ["Cancelled"]).await;
    assert_eq!(message(), "cancelled by a person: its manual request was cancelled by ann");
    assert!(world.all_are_freed() && world.api.list("jobs").is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_slot_of_a_start_that_could_not_be_written_is_given_back_and_holds_the_ledger_up_for_nobody() {
    let world = world();
    let _replica = world.controller("a");
    world.api.hook(|call| {
        let is_its = call.verb == "patch" && call.target.name.as_deref() == Some("by-hand");
        is_its.then_some(Fault::Code(500))
    });
    ask(&world, "by-hand");
    world.until("its slot is taken", || world.slots().contains("by-hand")).await;
    // The fault goes: nothing begins any more, and the object stays.
    world.set_sick("w1", false);
    world.until("its slot is given back", || world.has_no_slots()).await;
    assert!(world.api.list("jobs").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_remediation_ends_and_what_was_not_done_is_not_done() {
    let world = world();
    world.api.change("remediationpolicies", "hung", |policy| {
        policy["spec"]["rules"][0]["match"]["minDuration"] = Value::Null;
    });
    let _replica = world.controller("a");
    world.until("asked", || world.phases() == ["AwaitingApproval"]).await;
    let name = world.api.list(REMEDIATIONS)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    // The no comes right before the act, beside the yes: the watch has told of neither.
    let operation = remediation(&world, &name)["status"]["attempts"][0]["operationId"].clone();
    world.api.change(REMEDIATIONS, &name, |object| {
        object["spec"]["approval"] = json!({"approvedBy": "ann", "operationId": operation});
        object["spec"]["cancel"] = json!({"cancelledBy": "bob", "reason": "not this one"});
    });
    world.until("ended", || world.phases() == ["Cancelled"]).await;
    let message = remediation(&world, &name)["status"]["message"].clone();
    assert_eq!(message, "cancelled by a person: cancelled by bob: not this one");
    sleep(Duration::from_mins(10)).await;
    assert!(world.api.list("jobs").is_empty() && world.phases() == ["Cancelled"], "nothing begins anew at once");
}
