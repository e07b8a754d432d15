//! Nodes that are drained: evictions by uid, as budgets allow, round after round, and only with the right to.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::world::{Replica, World, die_at_each_write};
use crate::fake_api::{Call, Fault};

/// A node with pods, and a policy that drains it before people are told.
fn world(drain: &Value, timeout: &str) -> World {
    World::probing(
        3,
        &json!([{"action": "Cordon"}, {"action": "Drain", "drain": drain, "timeout": timeout}, {"action": "Notify"}]),
    )
}

/// A pod of a `ReplicaSet` on the node, with changes on top.
fn pod(world: &World, name: &str, change: impl Fn(&mut Value)) {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}"), "labels": {"app": "web"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": true}]},
        "spec": {"nodeName": "w1", "containers": []}, "status": {"phase": "Running"}});
    change(&mut pod);
    world.api.put(pod);
}

fn budget(world: &World, allowed: u32) {
    world.api.put(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}}, "status": {"disruptionsAllowed": allowed}}));
}

fn evictions(world: &World) -> Vec<String> {
    let calls = world.api.calls();
    calls.iter().filter(|call| call.is_eviction()).map(Call::line).collect()
}

#[tokio::test(start_paused = true)]
async fn a_cordoned_node_is_emptied_of_what_may_go() {
    let world = world(&json!({"gracePeriod": "45s"}), "10m");
    pod(&world, "web-1", |_| {});
    pod(&world, "web-2", |pod| pod["metadata"]["finalizers"] = json!(["test/slow"]));
    world.api.put(json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "web", "namespace": "shop", "uid": "ds"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {}},
        "status": {"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberReady": 1, "numberMisscheduled": 0}}));
    let owned = |uid: &str| json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "web", "uid": uid, "controller": true}]);
    pod(&world, "set", |pod| pod["metadata"]["ownerReferences"] = owned("ds"));
    // Its author has written an owner that there is not.
    pod(&world, "forged", |pod| pod["metadata"]["ownerReferences"] = owned("of-nobody"));
    pod(&world, "static", |pod| pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"}));
    pod(&world, "over", |pod| pod["status"]["phase"] = json!("Succeeded"));
    pod(&world, "elsewhere", |pod| pod["spec"]["nodeName"] = json!("w2"));
    let replica = world.controller_of_sick("a", "w1");
    world.until("under way", || world.step(1)["state"] == "Started").await;
    let mut went = evictions(&world);
    went.sort();
    assert_eq!(went, ["forged", "web-1", "web-2"].map(|name| format!("create pods/eviction/{name}")));
    for name in ["forged", "web-1", "web-2"] {
        let expected = json!({"gracePeriodSeconds": 45, "preconditions": {"uid": format!("uid-{name}")}});
        assert_eq!(options(&world, name), expected);
    }
    assert!(world.is_cordoned("w1"), "cordoned before");
    sleep(Duration::from_mins(1)).await;
    assert_eq!(evictions(&world).len(), 3, "what is on its way out is waited for");
    assert_eq!(world.step(1)["message"], "1 pod(s) left; on their way out: shop/web-2");
    world.api.remove("pods", "web-2");
    world.until("a person is notified", || world.step(2)["action"] == "Notify").await;
    assert_eq!(world.step(1)["state"], "Succeeded");
    assert_eq!(world.message(1), "drained: no pod is left to evict");
    for left in ["set", "static", "over", "elsewhere"] {
        assert!(world.api.get("pods", left).is_some(), "{left}");
    }
    world.until("uncordoned", || !world.is_cordoned("w1")).await;
    replica.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_asked_again_and_again_and_named() {
    let world = world(&Value::Null, "5m");
    world.api.change("remediationpolicies", "hung", |policy| {
        policy["spec"]["rules"][0]["steps"][1].as_object_mut().unwrap().remove("drain");
    });
    for name in ["web-1", "web-2", "web-3"] {
        pod(&world, name, |_| {});
    }
    budget(&world, 1);
    let _replica = world.controller_of_sick("a", "w1");
    world.until("under way", || world.step(1)["state"] == "Started").await;
    let said = world.message(1);
    let no = "(The disruption budget web needs 1 healthy pods and has 1 currently)";
    assert!(said.starts_with("3 pod(s) left; not evicted: shop/web-") && said.matches(no).count() == 2, "{said}");
    assert_eq!(said.matches("on their way out: shop/web-").count(), 1, "{said}");
    budget(&world, 1);
    world.until("one more has gone", || world.message(1).starts_with("1 pod(s) left")).await;
    let before = evictions(&world).len();
    sleep(Duration::from_mins(1)).await;
    let asked = evictions(&world).len() - before;
    assert!((4..=8).contains(&asked), "asked again every ten seconds or so: {asked}");
    world.until("a person is notified", || world.step(2)["action"] == "Notify").await;
    let done = world.step(1);
    assert_eq!(done["state"], "TimedOut");
    let message = done["message"].as_str().unwrap();
    assert!(message.starts_with("not done within 300s: 1 pod(s) left; not evicted: shop/web-"), "{message}");
    assert_eq!(world.api.list("pods").len(), 1, "never past a budget");
}

#[tokio::test(start_paused = true)]
async fn what_another_pod_of_that_name_is_and_what_a_hung_process_holds_is_spared() {
    let world = world(&json!({}), "2m");
    pod(&world, "web-1", |_| {});
    // The pod above the hung container of this world.
    pod(&world, "log-x", |pod| pod["metadata"]["uid"] = json!("pod-1"));
    pod(&world, "bare", |pod| pod["metadata"]["ownerReferences"] = json!([]));
    pod(&world, "cache", |pod| pod["spec"]["volumes"] = json!([{"name": "c", "emptyDir": {}}]));
    // It is replaced between the list and the eviction.
    world.api.meanwhile(Call::is_eviction, |api| {
        api.remove("pods", "web-1");
        api.put(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-1", "namespace": "shop", "uid": "next"},
            "spec": {"nodeName": "w2", "containers": []}}));
    });
    let _replica = world.controller_of_sick("a", "w1");
    world.until("a person is notified", || world.step(2)["action"] == "Notify").await;
    assert_eq!(evictions(&world), ["create pods/eviction/web-1"]);
    assert_eq!(world.api.get("pods", "web-1").unwrap()["metadata"]["uid"], "next");
    let said = world.message(1);
    for part in [
        "3 pod(s) left",
        "shop/bare (no controller recreates it; set drain.force to evict it)",
        "shop/cache (it has data in an emptyDir (drain.deleteEmptyDirData))",
        "shop/log-x (HungContainer below it is to be released first)",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_right_the_policy_is_invalid_and_the_step_left_out() {
    let world = world(&json!({}), "10m");
    world.api.deny(&[("create", "pods/eviction")]);
    pod(&world, "web-1", |_| {});
    let _replica = world.controller("a");
    let valid = || world.ready_of("hung");
    world.until("known to be lacking", || valid()["status"] == "False").await;
    assert!(valid()["message"].as_str().unwrap().contains("may not create pods/eviction"), "{}", valid());
    world.set_sick("w1", true);
    world.until("a person is notified", || world.step(2)["action"] == "Notify").await;
    assert!(world.message(1).starts_with("skipped: the controller may not evict"));
    assert!(evictions(&world).is_empty());
    world.api.deny(&[]);
    world.until("valid", || valid()["status"] == "True").await;
}

#[tokio::test(start_paused = true)]
async fn as_long_as_nobody_knows_of_the_right_nothing_is_begun() {
    let world = world(&json!({}), "10m");
    world.api.hook(|call| (call.target.plural == "selfsubjectaccessreviews").then_some(Fault::Code(500)));
    let _replica = world.controller_of_sick("a", "w1");
    let why = "not known yet whether the controller may evict pods";
    world.until("blocked", || world.blocked("w1").contains(why)).await;
    assert!(world.api.list("noderemediations").is_empty());
    world.api.unhook();
    world.until("drained", || world.step(1)["state"] == "Succeeded").await;
}

/// A drain under way of pods that no eviction may end.
async fn held_by_a_budget(pods: &[&str]) -> (World, Replica) {
    let world = world(&json!({}), "10m");
    for name in pods {
        pod(&world, name, |_| {});
    }
    budget(&world, 0);
    let replica = world.controller_of_sick("a", "w1");
    world.until("under way", || world.step(1)["state"] == "Started").await;
    (world, replica)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_gives_no_answer_ends_the_round_and_not_the_drain() {
    let world = world(&json!({}), "10m");
    for i in 0..10 {
        pod(&world, &format!("web-{i}"), |_| {});
    }
    let mut stalls = 3;
    world.api.hook(move |call| {
        let is_it = call.is_eviction() && stalls > 0;
        is_it.then(|| {
            stalls -= 1;
            Fault::Stall
        })
    });
    let _replica = world.controller_of_sick("a", "w1");
    world.until("one round is over", || world.step(1)["state"] == "Started").await;
    assert_eq!(evictions(&world).len(), 1, "nobody is asked further");
    assert_eq!(world.step(1)["message"], "10 pod(s) left; 10 to be evicted next (the API server gave no answer)");
    world.until("drained", || world.step(1)["state"] == "Succeeded").await;
    assert!(world.api.list("pods").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_write_drains_all_the_same() {
    let make = || {
        let world = world(&json!({}), "10m");
        for name in ["web-1", "web-2"] {
            pod(&world, name, |_| {});
        }
        world.set_sick("w1", true);
        world
    };
    let is_told = |world: &World| world.step(2)["state"] == "Succeeded";
    // Ledger, remediation, its status, the cordon, two evictions, …
    die_at_each_write(make, is_told, 7, async |world, writes| {
        let drained = world.step(1)["state"].clone();
        assert_eq!((drained, world.api.list("pods").len()), (json!("Succeeded"), 0), "a death at write {writes}");
        world.until("uncordoned", || !world.is_cordoned("w1")).await;
    })
    .await;
}

/// The bodies of evictions, by the name of the pod.
fn options(world: &World, name: &str) -> Value {
    let calls = world.api.calls();
    let of = |call: &&Call| call.is_eviction() && call.target.name.as_deref() == Some(name);
    calls.iter().find(of).map(|call| call.body["deleteOptions"].clone()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_ended_without_any_time_and_none_gets_less_than_its_own() {
    let world = world(&json!({}), "10m");
    pod(&world, "none", |pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(0));
    pod(&world, "long", |pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(600));
    let _replica = world.controller_of_sick("a", "w1");
    world.until("drained", || world.step(1)["state"] == "Succeeded").await;
    assert_eq!(options(&world, "none"), json!({"gracePeriodSeconds": 1, "preconditions": {"uid": "uid-none"}}));
    assert_eq!(options(&world, "long"), json!({"preconditions": {"uid": "uid-long"}}));
}

#[tokio::test(start_paused = true)]
async fn a_right_that_was_taken_away_is_noticed_at_the_next_eviction() {
    let (world, _replica) = held_by_a_budget(&["web-1", "web-2"]).await;
    // Not when it is asked for the next time, in five minutes.
    world.api.deny(&[("create", "pods/eviction")]);
    sleep(Duration::from_secs(45)).await;
    assert_eq!(world.ready_of("hung")["status"], "False");
    let blocked = world.blocked("w1");
    assert!(blocked.contains("may not evict pods"), "{blocked}");
    let before = evictions(&world).len();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(evictions(&world).len(), before, "and no further pod is tried");
    world.api.deny(&[]);
    budget(&world, 2);
    world.until("drained", || world.step(1)["state"] == "Succeeded").await;
}

/// What changes between the decision and the last check.
#[tokio::test(start_paused = true)]
async fn what_the_last_check_shows_stops_the_round() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 2] = [
        ("the mark is another's", |node| {
            node["metadata"]["annotations"]["runtimehealth.io/cordoned-by"] = json!("another");
        }),
        ("the node cannot end pods", |node| node["status"]["conditions"][0]["status"] = json!("Unknown")),
    ];
    for (what, change) in cases {
        let (world, _replica) = held_by_a_budget(&["web-1"]).await;
        world.api.hook(move |call| {
            let is_check = call.is("get", "nodes") && call.target.name.as_deref() == Some("w1");
            is_check.then(|| Fault::Meanwhile(Box::new(move |api| api.change("nodes", "w1", change))))
        });
        let before = evictions(&world).len();
        sleep(Duration::from_mins(1)).await;
        assert_eq!(evictions(&world).len(), before, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn more_pods_than_a_node_can_have_are_an_error_and_those_that_have_ended_do_not_count() {
    let world = world(&json!({}), "10m");
    for i in 0..2_100 {
        pod(&world, &format!("over-{i}"), |pod| pod["status"]["phase"] = json!("Succeeded"));
    }
    pod(&world, "web-1", |_| {});
    let replica = world.controller_of_sick("a", "w1");
    world.until("drained", || world.step(1)["state"] == "Succeeded").await;
    assert_eq!(evictions(&world), ["create pods/eviction/web-1"]);
    replica.crash().await;

    let world = self::world(&json!({}), "10m");
    for i in 0..2_001 {
        pod(&world, &format!("web-{i}"), |_| {});
    }
    let _replica = world.controller_of_sick("a", "w1");
    world.until("a person is notified", || world.step(2)["action"] == "Notify").await;
    let failed = world.step(1);
    assert_eq!(failed["state"], "Refused");
    let said = failed["message"].as_str().unwrap();
    assert!(said.contains("expected at most 2000, found more; see who binds pods to it"), "{said}");
    assert!(evictions(&world).is_empty(), "nobody could say that none is left");
    // Each page is asked for at no resource version: none is served from an old cache.
    let lists = world.api.calls();
    let is_list = |call: &&Call| {
        call.verb == "list" && call.query.get("fieldSelector").is_some_and(|by| by.contains("spec.nodeName=w1"))
    };
    let lists: Vec<_> = lists.iter().filter(is_list).collect();
    assert!(lists.len() >= 20, "{}", lists.len());
    assert!(lists.iter().all(|call| !call.query.contains_key("resourceVersion")));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_bound_after_the_first_quiet_check_is_evicted_too() {
    let world = world(&json!({}), "10m");
    let _replica = world.controller_of_sick("a", "w1");
    world.until("looked once", || world.step(1)["rounds"]["empty"] == 1).await;
    pod(&world, "late", |_| {});
    world.until("drained", || world.step(1)["state"] == "Succeeded").await;
    assert_eq!(evictions(&world), ["create pods/eviction/late"]);
    assert_eq!(world.step(1)["rounds"]["empty"], 2);
}
