//! What people say between the decision and the act, before any watch has brought it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::Call;
use crate::fake_api::world::World;

/// Told in NVIDIA/NVSentinel #121.
#[tokio::test(start_paused = true)]
async fn each_last_no_is_heard() {
    type No = (&'static str, &'static str, &'static str, fn(&mut Value));
    let cases: [No; 5] = [
        ("the policy no longer selects the node", "nodes", "w1", |node| {
            drop(node["metadata"]["labels"].as_object_mut().unwrap().remove("pool"));
        }),
        ("the node is excluded", "nodes", "w1", |node| {
            node["metadata"]["labels"]["remediation.medik8s.io/exclude-from-remediation"] = json!("");
        }),
        ("the node is suspended", "noderuntimehealths", "w1", |report| report["spec"]["suspend"] = json!(true)),
        ("the policy is suspended", "remediationpolicies", "hung", |policy| policy["spec"]["suspend"] = json!(true)),
        ("a window shuts", "remediationpolicies", "hung", |policy| {
            policy["spec"]["windows"] = json!([{"type": "Deny", "schedule": "0 0 * * *", "duration": "24h"}]);
        }),
    ];
    for (what, plural, name, no) in cases {
        let world = World::healthy();
        for node in ["w1", "w2", "w3"] {
            world.api.change("nodes", node, |node| node["metadata"]["labels"]["pool"] = json!("healed"));
        }
        world.api.change("remediationpolicies", "hung", |policy| {
            policy["spec"]["nodeSelector"] = json!({"matchLabels": {"pool": "healed"}});
        });
        let is_last_check = move |call: &Call| {
            call.verb == "get" && call.target.plural == plural && call.target.name.as_deref() == Some(name)
        };
        world.api.meanwhile(is_last_check, move |api| api.change(plural, name, no));
        let _replica = world.controller_of_sick("a", "w1");
        let has_checked = || world.api.calls().iter().any(is_last_check);
        world.until("it was looked at once more", has_checked).await;
        assert_eq!(world.phases().len(), 1, "{what}: it was decided on");
        sleep(Duration::from_mins(10)).await;
        assert!(world.api.list("jobs").is_empty(), "{what}: {:#?}", world.api.acts());
    }
}

#[tokio::test(start_paused = true)]
async fn all_remediation_is_suspended_right_before_the_act_and_later_resumed() {
    let world = World::healthy();
    let is_last_check = |call: &Call| call.is("get", "remediationconfigs") && call.target.name.is_some();
    let suspended = config(&json!({"suspend": true, "suspendedBy": "ann"}));
    world.api.meanwhile(is_last_check, move |api| drop(api.put(suspended)));
    let _replica = world.controller_of_sick("a", "w1");
    world.until("it was looked at once more", || world.api.calls().iter().any(is_last_check)).await;
    assert_eq!(world.phases().len(), 1, "it was decided on");
    sleep(Duration::from_mins(10)).await;
    assert!(world.api.list("jobs").is_empty(), "{:#?}", world.api.acts());
    assert_eq!(world.phases(), ["Cancelled"]);
    let told = || world.api.get("remediationconfigs", "cluster").unwrap()["status"].clone();
    let ready = |status: &Value| (status["conditions"][0]["status"].clone(), status["conditions"][0]["reason"].clone());
    assert_eq!((ready(&told()), &told()["activeRemediations"]), ((json!("True"), json!("Suspended")), &json!(0)));
    let blocked = world.blocked("w1");
    let says = ["Suspended: remediation is suspended in the whole cluster", "by ann"];
    assert!(says.iter().all(|text| blocked.contains(text)), "{blocked}");

    world.api.change("remediationconfigs", "cluster", |config| config["spec"] = json!({}));
    world.until("it is healed", || world.phases().contains(&"Succeeded".to_owned())).await;
    assert_eq!(ready(&told()), (json!("True"), json!("Allowed")));
    let events = world.api.list("events");
    let of_config = events.iter().filter(|event| event["regarding"]["kind"] == "RemediationConfig");
    let of_config: Vec<&Value> = of_config.map(|event| &event["reason"]).collect();
    assert_eq!(of_config, ["Suspended", "Resumed"], "{events:#?}");
}

fn config(spec: &Value) -> Value {
    json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationConfig", "metadata": {"name": "cluster"}, "spec": spec})
}
