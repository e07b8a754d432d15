//! What the controller does where the admission policies are not in force, and where one node writes without end.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::world::{Replica, World};
use crate::fake_api::{Call, Fault};

/// What `RemediationAllowed` of the only policy says.
fn allowed(world: &World) -> String {
    let allowed = world.condition("remediationpolicies", "hung", "RemediationAllowed");
    allowed["message"].as_str().unwrap_or_default().to_owned()
}

/// What Events say of the check.
fn told(world: &World) -> Vec<Value> {
    world.api.list("events").into_iter().filter(|event| event["action"] == "CheckAdmission").collect()
}

#[tokio::test(start_paused = true)]
async fn without_a_binding_nothing_is_done_and_people_are_told() {
    let world = World::healthy();
    let _replica = world.controller("a");
    world.until("it leads", || world.api.get("configmaps", "nrh-ledger").is_some()).await;
    sleep(Duration::from_secs(1)).await;
    world.api.remove("validatingadmissionpolicybindings", "nrh-jobs");
    world.until("it is seen", || allowed(&world).contains("nrh-jobs")).await;
    world.api.forget_calls();
    world.set_sick("w1", true);
    sleep(Duration::from_mins(10)).await;
    assert_eq!(world.api.acts(), [""; 0], "nothing is done");
    assert!(world.phases().is_empty(), "{:?}", world.phases());
    let told = told(&world);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert_eq!(told[0]["regarding"]["name"], "nrh-system");
    // It is put back.
    world.api.install_admission();
    world.healed().await;
}

#[tokio::test(start_paused = true)]
async fn a_binding_that_was_never_there_is_told_once_the_controller_leads() {
    let world = World::healthy();
    world.api.remove("validatingadmissionpolicybindings", "nrh-jobs");
    world.api.hook(|call| (call.target.plural == "leases").then_some(Fault::Code(500)));
    let replica = world.controller("a");
    world.until("it is seen", || replica.served.metrics.text().unwrap().contains("nrh_admission_enforced 0")).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(told(&world), [Value::Null; 0], "another replica may lead");
    world.api.unhook();
    world.until("it is reported", || !told(&world).is_empty()).await;
    sleep(Duration::from_mins(2)).await;
    let told = told(&world);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(told[0]["note"].as_str().unwrap().contains("nrh-jobs"), "{told:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_check_without_an_answer_proves_nothing() {
    let world = World::healthy();
    let is_check = |call: &Call| call.target.plural == "validatingadmissionpolicies";
    world.api.hook(move |call| is_check(call).then_some(Fault::Stall));
    let _replica = world.controller_of_sick("a", "w1");
    world.until("it is reported", || allowed(&world).contains("not known whether the admission policies")).await;
    sleep(Duration::from_mins(2)).await;
    assert!(world.phases().is_empty(), "{:?}", world.phases());
    world.api.unhook();
    world.healed().await;
    // For a while the last proof counts.
    world.api.hook(move |call| is_check(call).then_some(Fault::Code(500)));
    sleep(Duration::from_secs(400)).await;
    assert!(!allowed(&world).contains("admission"), "{}", allowed(&world));
    assert_eq!(told(&world), [Value::Null; 0]);
    sleep(Duration::from_secs(400)).await;
    assert!(allowed(&world).contains("not known whether the admission policies"), "{}", allowed(&world));
    let told = told(&world);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(told[0]["note"].as_str().unwrap().contains("not known whether the admission policies"), "{told:#?}");
}

/// How many decisions a replica has made.
fn decisions(replica: &Replica) -> u64 {
    let text = replica.served.metrics.text().unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("nrh_plan_duration_seconds_count "));
    count.unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_reports_costs_a_decision_a_second_and_keeps_no_other_node_waiting() {
    let world = World::new(2);
    world.policy("p", "Enforce", &World::release());
    world.probe("w1");
    let replica = world.controller("a");
    world.until("it leads", || world.api.get("noderuntimehealths", "w2").is_some()).await;
    sleep(Duration::from_secs(30)).await;
    let before = decisions(&replica);
    let flood = |from: u64, to: u64| {
        let world = world.clone();
        async move {
            for sequence in from..to {
                // Each other one with another set of faults.
                world.set_sick("w2", sequence % 2 == 0);
                world.report("w2", sequence);
                sleep(Duration::from_millis(20)).await;
            }
        }
    };
    flood(1000, 1000 + 50 * 60).await;
    let made = decisions(&replica) - before;
    assert!(made < 250, "{made} decisions on 3000 reports in 60 s");
    tokio::spawn(flood(5000, 5000 + 50 * 60));
    world.set_sick("w1", true);
    let w1 = |world: &World| world.api.list("noderemediations").iter().any(|one| one["spec"]["nodeName"] == "w1");
    world.until("the other node has its turn", || w1(&world)).await;
}

#[tokio::test(start_paused = true)]
async fn a_report_of_megabytes_is_not_read_and_its_node_is_held() {
    let world = World::healthy();
    let replica = world.controller("a");
    world.until("it leads", || world.api.get("noderuntimehealths", "w1").is_some()).await;
    sleep(Duration::from_secs(5)).await;
    world.set_sick("w1", true);
    world.api.change("noderuntimehealths", "w1", |object| {
        object["status"]["faults"] = (0..64).map(|id| {
            let evidence: Vec<String> = (0..8).map(|_| "x".repeat(512)).collect();
            json!({"type": "HungContainer", "id": format!("x-{id}"), "severity": "Critical", "state": "Confirmed", "subject": {},
                "target": {}, "message": "x", "evidence": evidence, "confirmations": 9, "durationSeconds": 60, "checkAgeSeconds": 0})
        }).collect();
    });
    sleep(Duration::from_millis(100)).await;
    let text = replica.served.metrics.text().unwrap();
    assert!(text.contains("nrh_unreadable_objects{kind=\"NodeRuntimeHealth\"} 1"), "{text}");
}
