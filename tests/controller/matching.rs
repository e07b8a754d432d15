//! Rules that ask for the labels of a fault's pod: it is read where they ask, once more right before the act, and what cannot
//! be read is held.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::world::World;
use crate::fake_api::{Call, FakeApi, Fault};

/// A sick node whose fault names pod `d/log-x` with these labels, and a policy that leaves databases alone.
fn world(labels: &Value) -> World {
    let world = World::healthy();
    let asks = json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["database"]}]});
    world.api.change("remediationpolicies", "hung", |policy| {
        policy["spec"]["rules"][0]["match"]["podSelector"] = asks;
    });
    world.api.put(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "log-x", "namespace": "d", "uid": "pod-1", "labels": labels},
        "spec": {"nodeName": "w1", "containers": []}}));
    world.set_sick("w1", true);
    world
}

fn count(world: &World, verb: &str) -> usize {
    world.api.calls().iter().filter(|call| call.verb == verb && call.target.plural == "pods").count()
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_read_is_held_and_then_resolved() {
    let world = world(&json!({"tier": "web"}));
    let is_pod = |call: &Call| call.target.plural == "pods" && call.target.namespace.is_none();
    world.api.hook(move |call| (call.verb == "list" && is_pod(call)).then_some(Fault::Code(500)));
    let _replica = world.controller("a");
    let why = "the labels and the owner of pod d/log-x are not known yet";
    world.until("it is held", || world.blocked("w1").contains(why)).await;
    sleep(Duration::from_mins(2)).await;
    assert!(world.api.list("noderemediations").is_empty(), "{:#?}", world.api.acts());
    world.api.unhook();
    world.healed().await;
    assert!(count(&world, "get") >= 1, "read once more right before the act");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_no_rule_means_is_left_alone() {
    let world = world(&json!({"tier": "database"}));
    let _replica = world.controller("a");
    let why = "match.podSelector asks for tier notin (database), and pod d/log-x has tier=database";
    world.until("it is held", || world.blocked("w1").contains(why)).await;
    sleep(Duration::from_mins(2)).await;
    assert!(world.api.list("noderemediations").is_empty());
    assert_eq!(count(&world, "get"), 0);
}

/// What changes when the last check reads objects of this kind.
#[tokio::test(start_paused = true)]
async fn labels_or_rules_that_change_right_before_the_act_stop_it() {
    type Change = fn(&FakeApi);
    let cases: [(&str, Value, &str, Change); 2] = [
        ("its labels change", json!({"tier": "web"}), "pods", |api| {
            api.change("pods", "log-x", |pod| pod["metadata"]["labels"]["tier"] = json!("database"));
        }),
        ("a rule is put first", json!({"tier": "web", "people": "dba"}), "remediationpolicies", |api| {
            api.change("remediationpolicies", "hung", |policy| {
                let rules = policy["spec"]["rules"].as_array_mut().unwrap();
                if rules.len() == 1 {
                    let mut first = rules[0].clone();
                    first["name"] = json!("dba");
                    first["match"]["podSelector"] = json!({"matchLabels": {"people": "dba"}});
                    first["steps"] = json!([{"action": "Notify"}]);
                    rules.insert(0, first);
                }
            });
        }),
    ];
    for (what, labels, read, change) in cases {
        let world = world(&labels);
        world.api.hook(move |call| call.is("get", read).then(|| Fault::Meanwhile(Box::new(change))));
        let _replica = world.controller("a");
        world.until("it was looked at once more", || count(&world, "get") >= 1).await;
        sleep(Duration::from_mins(10)).await;
        assert!(world.api.list("jobs").is_empty(), "{what}: {:#?}", world.api.acts());
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_seen_and_is_gone_is_resolved_by_what_it_was_like() {
    let world = world(&json!({"tier": "web"}));
    // No act comes through while the pod is still there.
    world.api.hook(|call| call.is("create", "jobs").then_some(Fault::Code(500)));
    let _replica = world.controller("a");
    world.until("it was looked at once more", || count(&world, "get") >= 1).await;
    world.api.remove("pods", "log-x");
    sleep(Duration::from_secs(12)).await;
    world.api.unhook();
    world.healed().await;
}
