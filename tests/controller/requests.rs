//! What is not asked for twice: an answer of the last moment is as live as another one.

use serde_json::json;

use crate::fake_api::world::World;

#[tokio::test(start_paused = true)]
async fn one_look_at_a_policy_serves_the_acts_of_a_moment_and_a_write_answers_with_the_episode() {
    let world = World::new(12);
    world.policy("hung", "Enforce", &World::release());
    world
        .api
        .change("remediationpolicies", "hung", |policy| policy["spec"]["limits"]["storm"] = json!({"nodes": 1000}));
    world.kubelets();
    for node in 1..=12 {
        world.probe(&format!("w{node}"));
    }
    let replica = world.controller("a");
    world
        .until("all have reported", || {
            (1..=12).all(|n| world.status(&format!("w{n}"))["summary"]["health"] == "Healthy")
        })
        .await;
    for node in 1..=5 {
        world.set_sick(&format!("w{node}"), true);
    }
    world.until("all are healed", || world.phases() == ["Succeeded"; 5]).await;
    let calls = world.api.calls();
    let count = |verb: &str, plural: &str| {
        let named = |name: &Option<String>| name.is_some();
        calls
            .iter()
            .filter(|call| call.verb == verb && call.target.plural == plural && named(&call.target.name))
            .count()
    };
    assert_eq!(calls.iter().filter(|call| call.verb == "create" && call.target.plural == "jobs").count(), 5);
    let (nodes, reports) = (count("get", "nodes"), count("get", "noderuntimehealths"));
    assert!(nodes >= 5 && reports >= 5, "each act looks at its own node: {nodes} and {reports}");
    let (policies, episodes) = (count("get", "remediationpolicies"), count("get", "noderemediations"));
    assert!((1..5).contains(&policies), "{policies} looks at one policy for five acts");
    assert_eq!(episodes, 0, "looks at episodes that were written right before");
    replica.crash().await;
}
