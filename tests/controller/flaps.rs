//! Nodes whose `Ready` goes to and fro: what is written of it, and what the next controller knows.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::world::World;

fn stable(world: &World) -> Value {
    world.condition("noderuntimehealths", "w1", "NodeStable")["status"].clone()
}

async fn flap(world: &World, times: usize, every: Duration) {
    for n in 0..times {
        world.api.change("nodes", "w1", |node| {
            node["status"]["conditions"][0]["status"] = json!(if n % 2 == 0 { "False" } else { "True" });
            node["status"]["conditions"][0]["lastTransitionTime"] = json!(world.wall().to_string());
        });
        sleep(every).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_changes_are_a_few_writes_and_the_next_controller_knows_of_them() {
    let world = World::probing(1, &World::release());
    let replica = world.controller("a");
    world.until("it is well", || world.status("w1")["summary"]["health"] == "Healthy").await;
    assert_eq!(stable(&world), "Unknown", "nobody has watched it yet");
    world.until("it was watched", || stable(&world) == "True").await;

    world.api.forget_calls();
    flap(&world, 1_000, Duration::from_secs(4)).await;
    let writes = world.api.count_writes("noderuntimehealths");
    assert!((3..=40).contains(&writes), "{writes} writes in 4000 s: {:#?}", world.api.writes());
    let fault = world.status("w1")["clusterFaults"][0].clone();
    assert_eq!((&fault["type"], &fault["state"]), (&json!("NodeFlapping"), &json!("Confirmed")));
    assert!(fault["message"].as_str().unwrap().starts_with("Ready changed "), "{fault}");
    assert_eq!(stable(&world), "False");
    world.until("all of them are told", || world.status("w1")["flapping"]["readyTransitions"] == 1_000).await;

    replica.crash().await;
    // While nobody checks it changes three times more: the next controller sees that something has, and counts one.
    flap(&world, 3, Duration::from_secs(30)).await;
    let _replica = world.controller("b");
    let counted = || world.status("w1")["flapping"]["readyTransitions"].as_u64();
    world.until("it goes on counting", || counted().is_some_and(|count| count > 1_000)).await;
    assert_eq!((counted(), stable(&world)), (Some(1_001), json!("False")));
    sleep(Duration::from_mins(30)).await;
    assert_eq!((counted(), stable(&world)), (Some(1_001), json!("False")), "half an hour is not enough");
    sleep(Duration::from_mins(65)).await;
    world.until("it is stable", || stable(&world) == "True").await;
    sleep(Duration::from_mins(30)).await;
    world.until("nothing is left", || world.status("w1")["flapping"].is_null()).await;
    assert!(world.status("w1")["clusterFaults"].is_null());
}

#[tokio::test(start_paused = true)]
async fn a_history_that_cannot_be_right_counts_as_nothing_and_goes() {
    let world = World::new(1);
    let replica = world.controller("a");
    world.probe("w1");
    world.until("it is well", || world.status("w1")["summary"]["health"] == "Healthy").await;
    replica.crash().await;
    let now = world.wall().to_string();
    let forged = json!({"readyTransitions": 7, "recurrences": 0, "trackedSince": now, "last": now, "penalty": 4_000_000_000_u32,
        "flappingSince": now, "ready": "True"});
    world.api.change("noderuntimehealths", "w1", |report| report["status"]["flapping"] = forged);
    let _replica = world.controller("b");
    let reports = || world.condition("noderuntimehealths", "w1", "ProbeReporting")["status"] == "True";
    world.until("its probe reports", reports).await;
    sleep(Duration::from_mins(2)).await;
    assert!(world.status("w1")["clusterFaults"].is_null() && stable(&world) != "False");
    assert!(world.status("w1")["flapping"].is_null(), "an apply alone does not take away what another manager wrote");
    world.api.forget_calls();
    sleep(Duration::from_mins(2)).await;
    assert_eq!(world.api.count_writes("noderuntimehealths"), 0, "{:#?}", world.api.writes());
    // Nor does one that is written beside our own stay for ever, whatever it says.
    let more = json!({"readyTransitions": 4, "recurrences": 0, "trackedSince": now, "last": now, "penalty": 4_000, "ready": "True"});
    world.api.change("noderuntimehealths", "w1", |report| {
        report["status"]["flapping"] = more;
        report["status"]["clusterFaults"] = json!([{"id": "made-up", "type": "NodeFlapping", "severity": "Medium",
            "state": "Confirmed", "subject": {"kind": "Host"}, "target": {}, "message": "m", "impact": "", "firstSeen": now}]);
    });
    sleep(Duration::from_mins(1)).await;
    assert!(world.status("w1")["flapping"].is_null() && world.status("w1")["clusterFaults"].is_null());
    world.api.forget_calls();
    sleep(Duration::from_mins(2)).await;
    assert_eq!(world.api.count_writes("noderuntimehealths"), 0, "{:#?}", world.api.writes());
}

/// As an older or newer version of the definition might let it in: the rest of the object counts on.
#[tokio::test(start_paused = true)]
async fn a_history_that_cannot_be_read_goes_and_takes_nothing_with_it() {
    for garbage in [json!("often"), json!({"readyTransitions": -1}), json!([{}]), json!(9e99)] {
        let world = World::probing(1, &World::release());
        let replica = world.controller("a");
        world.until("it is well", || world.status("w1")["summary"]["health"] == "Healthy").await;
        replica.crash().await;
        world.api.change("noderuntimehealths", "w1", |report| report["status"]["flapping"] = garbage.clone());
        let _replica = world.controller("b");
        world.until("it is taken away", || world.status("w1")["flapping"].is_null()).await;
        world.until("it is watched", || stable(&world) == "True").await;
        assert_eq!(world.status("w1")["summary"]["health"], "Healthy", "{garbage}");
    }
}

/// Of all nodes it is known at the same moment that they were watched for long enough.
#[tokio::test(start_paused = true)]
async fn that_nodes_are_stable_is_written_a_few_at_a_time() {
    const NODES: usize = 130;
    let world = World::new(NODES);
    let began = tokio::time::Instant::now();
    let _replica = world.controller("a");
    let count = || {
        let is = |node| world.condition("noderuntimehealths", &format!("w{node}"), "NodeStable")["status"] == "True";
        (1..=NODES).filter(|node| is(*node)).count()
    };
    sleep(Duration::from_secs(599)).await;
    assert_eq!(count(), 0);
    world.until("they are watched", || count() > 0).await;
    assert!(began.elapsed() >= Duration::from_mins(10));
    sleep(Duration::from_secs(1)).await;
    let soon = count();
    assert!((1..=NODES - 10).contains(&soon), "{soon} of {NODES} at once");
    world.until("all are told", || count() == NODES).await;
}
