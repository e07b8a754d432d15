//! Nodes handed to a remediator, which is played here: it answers in its own object's conditions.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::world::{World, die_at_each_write};
use crate::fake_api::{Call, Fault};

const GROUP: &str = "self-node-remediation.medik8s.io/v1alpha1";
const OBJECTS: &str = "selfnoderemediations";
const TEMPLATES: &str = "selfnoderemediationtemplates";

fn steps(timeout: &str) -> Value {
    let template = json!({"apiVersion": GROUP, "kind": "SelfNodeRemediationTemplate", "name": "automatic", "namespace": "medik8s"});
    json!([{"action": "HandOff", "timeout": timeout, "handOff": {"remediationTemplate": template}}, {"action": "Notify"}])
}

/// Three nodes, a remediator that is installed, and a policy that hands nodes to it.
fn world(timeout: &str) -> World {
    let world = World::probing(3, &steps(timeout));
    world.api.serve_kind(GROUP, "SelfNodeRemediation", OBJECTS);
    world.api.serve_kind(GROUP, "SelfNodeRemediationTemplate", TEMPLATES);
    world.api.put(json!({"apiVersion": GROUP, "kind": "SelfNodeRemediationTemplate",
        "metadata": {"name": "automatic", "namespace": "medik8s"},
        "spec": {"template": {"spec": {"remediationStrategy": "Automatic"}}}}));
    world
}

fn says(world: &World, conditions: &[(&str, &str)]) {
    let of = |(kind, status): &(&str, &str)| json!({"type": kind, "status": status, "reason": "R", "message": "said"});
    let conditions: Vec<Value> = conditions.iter().map(of).collect();
    world.api.change(OBJECTS, "w1", |object| object["status"] = json!({"conditions": conditions}));
}

fn created(world: &World) -> usize {
    world.api.count_writes("create selfnoderemediations/w1")
}

#[tokio::test(start_paused = true)]
async fn a_node_is_handed_off_and_comes_back_well() {
    let world = world("30m");
    let replica = world.controller_of_sick("a", "w1");
    world.until("handed off", || world.api.get(OBJECTS, "w1").is_some()).await;
    let object = world.api.get(OBJECTS, "w1").unwrap();
    let remediation = world.remediation();
    assert_eq!(object["spec"], json!({"remediationStrategy": "Automatic"}));
    assert_eq!((&object["kind"], &object["metadata"]["namespace"]), (&json!("SelfNodeRemediation"), &json!("medik8s")));
    let owner = &object["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&remediation["metadata"]["uid"], &Value::Null));
    assert_eq!(object["metadata"]["annotations"]["remediation.medik8s.io/node-name"], "w1");
    let operation = &object["metadata"]["annotations"]["runtimehealth.io/operation"];
    world.until("recorded", || world.step(0)["state"] == "Started").await;
    assert_eq!(*operation, world.step(0)["operationId"]);

    says(&world, &[("Processing", "True")]);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(world.step(0)["state"], "Started");
    says(&world, &[("Processing", "False"), ("Succeeded", "True")]);
    world.until("done", || world.step(0)["state"] == "Verifying").await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(world.phases(), ["Verifying"], "the probe's look decides, not the remediator's word");
    world.set_sick("w1", false);
    world.healed().await;
    world.until("taken back", || world.api.get(OBJECTS, "w1").is_none()).await;
    world.until("the finalizer is off", || world.all_are_freed()).await;
    assert_eq!(created(&world), 1);
    replica.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_a_template_that_was_changed_after_a_person_has_agreed_nothing_is_made() {
    let world = world("30m");
    let mut asks = steps("30m");
    asks[0]["approval"] = json!("Manual");
    world.policy("hung", "Enforce", &asks);
    let _replica = world.controller_of_sick("a", "w1");
    world.until("asked", || world.phases() == ["AwaitingApproval"]).await;
    assert!(world.step(0)["templateVersion"].is_string(), "{}", world.step(0));
    let is_read = |call: &Call| call.is("get", TEMPLATES);
    world.api.meanwhile(is_read, |api| {
        api.change(TEMPLATES, "automatic", |template| {
            template["spec"]["template"]["spec"]["remediationStrategy"] = json!("OutOfServiceTaint");
        });
    });
    let approval = json!({"approvedBy": "ann", "operationId": world.step(0)["operationId"]});
    world.change_remediation(|remediation| remediation["spec"]["approval"] = approval);
    world.until("tried", || world.step(0)["state"] == "Failed").await;
    let failed = world.step(0);
    assert!(failed["message"].as_str().unwrap().contains("has changed since ann was asked"), "{failed}");
    world.until("asked anew", || world.phases() == ["AwaitingApproval"]).await;
    assert_eq!(created(&world), 0);
}

#[tokio::test(start_paused = true)]
async fn a_remediator_that_fails_is_quoted() {
    let world = world("30m");
    let _replica = world.controller_of_sick("a", "w1");
    world.until("handed off", || world.api.get(OBJECTS, "w1").is_some()).await;
    says(&world, &[("Processing", "False"), ("Succeeded", "False")]);
    world.until("ended", || world.phases() == ["Failed"]).await;
    assert_eq!(world.step(0)["state"], "Failed");
    assert!(world.message(0).contains("Succeeded=False R: said"), "{}", world.step(0));
    world.until("taken back", || world.api.get(OBJECTS, "w1").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_of_somebody_else_is_left_to_them() {
    let world = world("30m");
    world.api.put(json!({"apiVersion": GROUP, "kind": "SelfNodeRemediation",
        "metadata": {"name": "w1", "namespace": "medik8s",
            "ownerReferences": [{"apiVersion": "x/v1", "kind": "NodeHealthCheck", "name": "workers", "uid": "u"}]}}));
    let _replica = world.controller_of_sick("a", "w1");
    world.until("ended", || world.phases() == ["Failed"]).await;
    let refused = world.step(0);
    assert_eq!((&refused["state"], &refused["reason"]), (&json!("Refused"), &json!("Protected")));
    assert!(refused["message"].as_str().unwrap().contains("of NodeHealthCheck workers: another tool"), "{refused}");
    sleep(Duration::from_mins(1)).await;
    assert!(world.api.get(OBJECTS, "w1").is_some());
    assert_eq!(world.api.count_writes(OBJECTS), 0, "{:#?}", world.api.writes());
}

#[tokio::test(start_paused = true)]
async fn a_remediator_is_told_that_its_time_is_over() {
    let world = world("5m");
    let _replica = world.controller_of_sick("a", "w1");
    world.until("handed off", || world.api.get(OBJECTS, "w1").is_some()).await;
    sleep(Duration::from_mins(4)).await;
    assert_eq!(world.step(0)["state"], "Started");
    // The first try is lost on the way.
    let mut lost = false;
    world.api.hook(move |call| {
        let is_it = call.is("patch", OBJECTS);
        (is_it && !std::mem::replace(&mut lost, true)).then_some(Fault::Code(503))
    });
    world.until("ended", || world.phases() == ["Failed"]).await;
    world.until("taken back", || world.api.get(OBJECTS, "w1").is_none()).await;
    let told = |call: &&Call| call.is("patch", OBJECTS);
    let calls = world.api.calls();
    let told: Vec<_> = calls.iter().filter(told).map(|call| &call.body["metadata"]["annotations"]).collect();
    assert_eq!(told.len(), 2, "once more after it was lost");
    let at: jiff::Timestamp = told[1]["remediation.medik8s.io/nhc-timed-out"].as_str().unwrap().parse().unwrap();
    assert!(at <= world.wall() && told[0] == told[1]);
    assert_eq!(world.step(0)["state"], "TimedOut");
    assert!(world.message(0).contains("not resolved within 300s"), "{}", world.step(0));
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_write_hands_the_node_off_once() {
    let make = || {
        let world = world("30m");
        world.set_sick("w1", true);
        let remediator = world.clone();
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_secs(20)).await;
                if remediator.api.get(OBJECTS, "w1").is_some_and(|object| object["status"].is_null()) {
                    says(&remediator, &[("Succeeded", "True")]);
                    remediator.set_sick("w1", false);
                }
            }
        });
        world
    };
    let is_resolved = |world: &World| world.phases() == ["Succeeded"];
    // Ledger, remediation, its status, the object, …
    die_at_each_write(make, is_resolved, 6, async |world, writes| {
        world.until("taken back", || world.api.get(OBJECTS, "w1").is_none()).await;
        assert_eq!(created(world), 1, "a death at write {writes}: {:#?}", world.api.writes());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_read_for_longer_than_the_term_holds_is_not_acted_on() {
    let world = world("30m");
    let replica = world.controller("a");
    sleep(Duration::from_secs(30)).await;
    // The Lease is not renewed any more, and each check before the act comes so late that it is just in time by itself.
    let mut is_late = false;
    world.api.hook(move |call| {
        let late = match (call.verb, call.target.plural.as_str()) {
            ("get", "nodes") => 2_000,
            ("get", OBJECTS | TEMPLATES) => 4_900,
            (_, "leases") if is_late => return Some(Fault::Stall),
            _ => return None,
        };
        is_late = true;
        Some(Fault::Late(Duration::from_millis(late)))
    });
    world.set_sick("w1", true);
    world.until("reserved", || world.step(0)["state"] == "Scheduled").await;
    sleep(Duration::from_mins(1)).await;
    let checks = world.api.calls().iter().filter(|call| call.is("get", TEMPLATES)).count();
    assert!(checks > 0, "it came as far as its last look");
    assert_eq!(created(&world), 0, "an object was made after the term's end");
    replica.crash().await;
    world.api.unhook();
    let _next = world.controller("b");
    world.until("handed off", || world.api.get(OBJECTS, "w1").is_some()).await;
    assert_eq!(created(&world), 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_controller_may_not_do_makes_the_policy_invalid_and_no_other() {
    let world = world("30m");
    world.api.deny(&[("create", OBJECTS), ("get", TEMPLATES)]);
    world.policy("other", "DryRun", &json!([{"action": "Notify"}]));
    let _replica = world.controller("a");
    world.until("known to be invalid", || world.ready_of("hung")["status"] == "False").await;
    let ready = world.ready_of("hung");
    let message = ready["message"].as_str().unwrap();
    for part in [
        "may not create selfnoderemediations.self-node-remediation.medik8s.io in namespace medik8s",
        "may not get selfnoderemediationtemplates.",
        "runtimehealth.io/aggregate-to-hand-off: \"true\"",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(world.ready_of("other")["status"], "True");
    world.set_sick("w2", true);
    // It keeps nobody from being told.
    world.until("a person is notified", || world.step(0)["action"] == "Notify").await;
    assert_eq!(world.phases().len(), 1);
    sleep(Duration::from_mins(3)).await;
    assert!(world.api.list(OBJECTS).is_empty());
    world.api.deny(&[]);
    world.until("valid", || world.ready_of("hung")["status"] == "True").await;
    world.set_sick("w2", false);
    world.set_sick("w1", true);
    world.until("handed off", || world.api.get(OBJECTS, "w1").is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn a_remediator_that_is_not_installed_makes_the_policy_invalid_and_no_answer_holds_the_step() {
    let world = World::new(3);
    world.policy("hung", "Enforce", &steps("30m"));
    world.probe("w1");
    world.set_sick("w1", true);
    let is_review = |call: &Call| call.target.plural == "selfsubjectaccessreviews";
    world.api.hook(move |call| is_review(call).then_some(Fault::Code(500)));
    let replica = world.controller("a");
    world.until("known to be invalid", || world.ready_of("hung")["status"] == "False").await;
    let ready = world.ready_of("hung").to_string();
    assert!(ready.contains("expected a kind SelfNodeRemediation"), "{ready}");
    replica.crash().await;
    // It is there now, and nobody says what may be done.
    world.api.serve_kind(GROUP, "SelfNodeRemediation", OBJECTS);
    world.api.serve_kind(GROUP, "SelfNodeRemediationTemplate", TEMPLATES);
    let _replica = world.controller_of_sick("b", "w2");
    world.probe("w2");
    world.until("blocked", || world.blocked("w2").contains("it is not proven that the controller may create")).await;
    assert!(world.api.list(OBJECTS).is_empty());
}
