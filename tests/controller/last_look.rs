//! What people say between the decision and the act, before any watch has brought it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::world::World;
use crate::fake_api::{Call, Fault};

#[tokio::test(start_paused = true)]
async fn a_label_that_is_taken_off_and_a_window_that_shuts_right_before_the_act_stop_it() {
    type No = (&'static str, &'static str, fn(&mut Value));
    let cases: [No; 2] = [
        ("nodes", "w1", |node| drop(node["metadata"]["labels"].as_object_mut().unwrap().remove("pool"))),
        ("remediationpolicies", "hung", |policy| {
            policy["spec"]["windows"] = json!([{"type": "Deny", "schedule": "0 0 * * *", "duration": "24h"}]);
        }),
    ];
    for (plural, name, no) in cases {
        let world = World::healthy();
        for node in ["w1", "w2", "w3"] {
            world.api.change("nodes", node, |node| node["metadata"]["labels"]["pool"] = json!("healed"));
        }
        world.api.change("remediationpolicies", "hung", |policy| {
            policy["spec"]["nodeSelector"] = json!({"matchLabels": {"pool": "healed"}});
        });
        let is_last_look = move |call: &Call| {
            call.verb == "get" && call.target.plural == plural && call.target.name.as_deref() == Some(name)
        };
        world.api.hook(move |call| {
            is_last_look(call).then(|| Fault::Meanwhile(Box::new(move |api| api.change(plural, name, no))))
        });
        let replica = world.controller("a");
        world.set_sick("w1", true);
        let has_looked = || world.api.calls().iter().any(is_last_look);
        world.until("it was looked at once more", has_looked).await;
        assert_eq!(world.phases().len(), 1, "it was decided on");
        sleep(Duration::from_mins(10)).await;
        assert!(world.api.list("jobs").is_empty(), "{plural}: {:#?}", world.api.acts());
        replica.crash().await;
    }
}
