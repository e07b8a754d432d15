//! What is not asked for twice, and what is not told too often: an answer of the last moment is as live as another one.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::fake_api::Fault;
use crate::fake_api::world::World;

#[tokio::test(start_paused = true)]
async fn one_check_of_a_policy_serves_the_acts_of_a_moment_and_a_write_answers_with_the_remediation() {
    let world = World::probing(12, &World::release());
    let many = json!({"minNodes": 1000});
    world.api.change("remediationpolicies", "hung", |policy| policy["spec"]["limits"]["storm"] = many);
    world.kubelets();
    let _replica = world.controller("a");
    world.all_report().await;
    for node in 1..=5 {
        world.set_sick(&format!("w{node}"), true);
    }
    world.until("all are healed", || world.phases() == ["Succeeded"; 5]).await;
    let calls = world.api.calls();
    let count = |verb: &str, plural: &str| {
        calls.iter().filter(|call| call.is(verb, plural) && call.target.name.is_some()).count()
    };
    assert_eq!(calls.iter().filter(|call| call.is("create", "jobs")).count(), 5);
    let (nodes, reports) = (count("get", "nodes"), count("get", "noderuntimehealths"));
    assert!(nodes >= 5 && reports >= 5, "each act looks at its own node: {nodes} and {reports}");
    let (policies, remediations) = (count("get", "remediationpolicies"), count("get", "noderemediations"));
    assert!((1..5).contains(&policies), "{policies} looks at one policy for five acts");
    assert_eq!(remediations, 0, "looks at remediations that were written right before");
}

#[tokio::test(start_paused = true)]
async fn of_a_crowd_each_node_is_told_of_at_once_and_then_every_few_seconds() {
    const NODES: usize = 40;
    const FLIPS: u64 = 20;
    let world = World::new(NODES);
    let _replica = world.controller("a");
    let names: Vec<String> = (1..=NODES).map(|node| format!("w{node}")).collect();
    world.until("an object for each", || world.api.list("noderuntimehealths").len() == NODES).await;
    let mut sequence = 0;
    let mut say = |sick: bool| {
        sequence += 1;
        for node in &names {
            world.set_sick(node, sick);
            world.report(node, sequence);
        }
    };
    let all_are = |health: &str| names.iter().all(|node| world.status(node)["summary"]["health"] == health);
    for _ in 0..4 {
        say(false);
        sleep(Duration::from_secs(10)).await;
    }
    assert!(all_are("Healthy"));
    let told = || world.api.count_writes("patch noderuntimehealths/");
    let before = told();

    say(true);
    sleep(Duration::from_secs(1)).await;
    assert!(all_are("Unhealthy"), "the first word waits for nothing");
    for flip in 0..FLIPS {
        say(flip % 2 == 1);
        sleep(Duration::from_secs(1)).await;
    }
    // The first, and one in five seconds.
    let most = NODES * 6;
    let crowded = told() - before;
    assert!(crowded <= most, "{crowded} writes about {NODES} nodes in {FLIPS} s, expected at most {most}");
    say(false);
    sleep(Duration::from_secs(6)).await;
    assert!(all_are("Healthy"), "the last word is told as well");
}

/// A round of status writes has room for 256.
#[tokio::test(start_paused = true)]
async fn writes_that_are_refused_take_no_room_from_those_of_later_nodes() {
    let world = World::new(300);
    world.add_node("z");
    world.api.hook(|call| {
        let name = call.body["metadata"]["name"].as_str();
        let is_refused = call.is("create", "noderuntimehealths") && name != Some("z");
        is_refused.then_some(Fault::Code(403))
    });
    let _replica = world.controller("a");
    world.until("the report of z", || world.api.get("noderuntimehealths", "z").is_some()).await;
}
