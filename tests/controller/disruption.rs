//! The kill of a shim that would end a running pod, and the disruption budget of that pod.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fake_api::world::World;
use crate::fake_api::{Call, Fault};

/// A node with a hung container in a pod that runs, under a policy that lets its shim be killed.
fn world(allowed: u32) -> World {
    let kill =
        json!({"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGKILL", "allowRunningPods": true}});
    let world = World::probing(6, &json!([kill, {"action": "Notify"}]));
    world.api.put(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "log-x", "namespace": "d", "uid": "pod-1", "labels": {"app": "log"}},
        "spec": {"nodeName": "w1", "containers": []}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    world.api.put(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "log", "namespace": "d", "generation": 1}, "spec": {"selector": {"matchLabels": {"app": "log"}}},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 2,
            "observedGeneration": 1}}));
    world.kubelets();
    world
}

fn remediation_of(world: &World, node: &str) -> Value {
    let all = world.api.list("noderemediations");
    all.into_iter().find(|one| one["spec"]["nodeName"] == node).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn no_running_pod_is_ended_past_its_disruption_budget() {
    let world = world(0);
    let _replica = world.controller_of_sick("a", "w1");
    world.until("people are told", || world.phases() == ["Failed"]).await;
    let refused = world.step(0);
    assert_eq!((&refused["state"], &refused["reason"]), (&json!("Refused"), &json!("Protected")));
    let why = "PodDisruptionBudget d/log allows no disruption, and the kill would end Pod d/log-x";
    assert!(world.message(0).contains(why), "{refused}");
    assert!(world.api.list("jobs").is_empty() && world.command("w1").is_null(), "nothing was commanded");
}

#[tokio::test(start_paused = true)]
async fn what_has_room_or_goes_anyway_or_has_no_budget_is_released() {
    type Change = fn(&World);
    let cases: [(u32, Change); 4] = [
        (1, |_| {}),
        (0, |world| world.api.remove("poddisruptionbudgets", "log")),
        (0, |world| {
            world.api.change("pods", "log-x", |pod| {
                pod["metadata"]["finalizers"] = json!(["x/y"]);
                pod["metadata"]["deletionTimestamp"] = json!("2025-06-01T12:00:00Z");
            });
        }),
        // Another pod of that name is not the one that would be ended.
        (0, |world| world.api.change("pods", "log-x", |pod| pod["metadata"]["uid"] = json!("pod-2"))),
    ];
    for (number, (allowed, change)) in cases.into_iter().enumerate() {
        let world = world(allowed);
        change(&world);
        let _replica = world.controller_of_sick("a", "w1");
        world.healed().await;
        assert_eq!(world.api.list("jobs").len(), 1, "case {number}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_ask_nothing_is_killed() {
    let world = world(1);
    let is_asked = |call: &Call| call.target.plural == "poddisruptionbudgets";
    world.api.hook(move |call| is_asked(call).then_some(Fault::Code(403)));
    let _replica = world.controller_of_sick("a", "w1");
    world.until("people are told", || world.phases() == ["Failed"]).await;
    assert!(world.api.list("jobs").is_empty());
    assert_eq!(world.step(0)["reason"], "RequestFailed");
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_lets_none_go_is_waited_for_before_anything_harsher_follows() {
    let world = world(0);
    let _replica = world.controller_of_sick("a", "w1");
    world.until("its step is reserved", || world.step(0)["state"] == "Scheduled").await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!((&world.step(0)["state"], world.api.list("jobs").len()), (&json!("Scheduled"), 0), "it waits");
    world.api.change("poddisruptionbudgets", "log", |budget| budget["status"]["disruptionsAllowed"] = json!(1));
    world.healed().await;
    assert_eq!(world.api.list("jobs").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_room_in_a_budget_is_spent_once() {
    let world = world(1);
    let _replica = world.controller("a");
    world.all_report().await;
    world.set_kubelet(false);
    let began = Instant::now();
    for node in ["w1", "w2"] {
        world.set_sick(node, true);
    }
    world.until("both steps are reserved", || world.api.list("noderemediations").len() == 2).await;
    world.until("one is killed", || world.api.list("jobs").len() == 1).await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(world.api.list("jobs").len(), 1, "the other one waits until the first shows: {:?}", world.api.acts());
    // It is answered, and its budget does not know it yet.
    world.set_kubelet(true);
    let is_over = |world: &World| world.phases().iter().filter(|phase| *phase == "Succeeded").count();
    world.until("the first is done", || is_over(&world) == 1 || world.api.list("jobs").len() == 2).await;
    assert_eq!(world.api.list("jobs").len(), 1);
    world.until("the second follows", || world.api.list("jobs").len() == 2).await;
    assert!(began.elapsed() > Duration::from_secs(50), "{:?}", began.elapsed());
    world.until("both are healed", || is_over(&world) == 2).await;
}

/// The next leader knows nothing of what was weighed before, and finds it in the remediations, also in one that a person has stopped:
/// its node may still execute the kill.
#[tokio::test(start_paused = true)]
async fn nor_is_it_spent_again_by_the_next_leader() {
    for is_cancelled in [false, true] {
        let world = world(1);
        let first = world.controller("a");
        world.all_report().await;
        world.set_kubelet(false);
        world.set_sick("w1", true);
        world.until("one is begun", || world.step(0)["state"] == "Started").await;
        if is_cancelled {
            world.change_remediation(|one| one["spec"]["cancel"] = json!({"cancelledBy": "ann"}));
            world.until("it is cancelled", || world.step(0)["state"] == "Cancelled").await;
            sleep(Duration::from_mins(1)).await;
        }
        first.crash().await;
        world.set_sick("w2", true);
        let _next = world.controller("b");
        world.until("it is opened", || world.api.list("noderemediations").len() == 2).await;
        sleep(Duration::from_secs(20)).await;
        let commanded = world.api.acts();
        let jobs = commanded.iter().filter(|act| act.contains("jobs") && act.contains("create")).count();
        assert_eq!(jobs, 1, "{commanded:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_only_waited_for_another_kill_has_not_tried() {
    let world = world(1);
    let _replica = world.controller("a");
    world.all_report().await;
    // The first is never answered.
    world.set_kubelet(false);
    world.set_sick("w1", true);
    world.until("one is begun", || world.step(0)["state"] == "Started").await;
    world.set_sick("w2", true);
    let second = || remediation_of(&world, "w2");
    let first = || second()["status"]["attempts"][0].clone();
    world.until("the second has waited", || first()["state"] == "Refused").await;
    assert_eq!(first()["reason"], "CheckFailed", "{}", first());
    assert!(first()["message"].as_str().unwrap().contains("does not show in its budgets yet"), "{}", first());
    world.set_kubelet(true);
    world.until("it is healed all the same", || second()["status"]["phase"] == "Succeeded").await;
}

/// The same, where w2 is drained in place of a kill, and has a pod of the same budget.
fn draining(allowed: u32) -> World {
    let world = world(allowed);
    let drain = json!([{"action": "Cordon"}, {"action": "Drain", "timeout": "10m"}, {"action": "Notify"}]);
    world.policy("drain", "Enforce", &drain);
    for (policy, node) in [("hung", "w1"), ("drain", "w2")] {
        world.api.change("remediationpolicies", policy, |policy| {
            policy["spec"]["nodeSelector"] = json!({"matchLabels": {"kubernetes.io/hostname": node}});
            policy["spec"]["limits"]["maxUnhealthy"] = json!("100%");
        });
    }
    let owners =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "log", "uid": "rs", "controller": true}]);
    world.api.put(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "log-y", "namespace": "d", "uid": "pod-2", "labels": {"app": "log"}, "ownerReferences": owners},
        "spec": {"nodeName": "w2", "containers": []}, "status": {"phase": "Running"}}));
    world
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_evicted_before_its_budget_can_show_a_kill() {
    let world = draining(1);
    let _replica = world.controller("a");
    world.all_report().await;
    world.set_kubelet(false);
    world.set_sick("w1", true);
    world.until("one is killed", || world.api.list("jobs").len() == 1).await;
    world.set_sick("w2", true);
    let drain = || remediation_of(&world, "w2")["status"]["attempts"][1].clone();
    world.until("the drain is under way", || drain()["state"] == "Started").await;
    let kill = remediation_of(&world, "w1")["status"]["attempts"][0]["operationId"].as_str().unwrap().to_owned();
    let why = format!("waits until the kill by operation {kill} shows in the disruption budgets");
    assert_eq!(drain()["message"], format!("1 pod(s) left; not evicted: d/log-y ({why})"));
    let began = Instant::now();
    world.set_kubelet(true);
    world.until("the pod is evicted", || world.api.get("pods", "log-y").is_none()).await;
    assert!(began.elapsed() >= Duration::from_secs(30), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_kill_and_an_eviction_at_the_same_time_do_not_spend_the_same_room() {
    const READ: Duration = Duration::from_secs(1);
    const EVICTION: Duration = Duration::from_secs(3);
    let world = draining(1);
    world.set_kubelet(false);
    // The kill and the drain begin in the same pass.
    world.api.change("remediationpolicies", "hung", |policy| {
        policy["spec"]["rules"][0]["steps"].as_array_mut().unwrap().insert(0, json!({"action": "Cordon"}));
    });
    // The last read before the budgets are read.
    let is_of_kill = |call: &Call| call.verb == "get" && call.target.name.as_deref() == Some("log-x");
    world.api.hook(move |call| {
        let late = call.is_eviction().then_some(EVICTION).or(is_of_kill(call).then_some(READ));
        late.map(Fault::Late)
    });
    let _replica = world.controller("a");
    world.all_report().await;
    for node in ["w1", "w2"] {
        world.set_sick(node, true);
    }
    world.until("the pod is evicted", || world.api.get("pods", "log-y").is_none()).await;
    sleep(Duration::from_secs(10)).await;
    assert!(world.api.list("jobs").is_empty(), "{:#?}", world.api.acts());
    let calls = world.api.calls();
    let at = |is_it: fn(&Call) -> bool| -> Vec<Instant> {
        calls.iter().filter(|call| is_it(call)).map(|call| call.at).collect()
    };
    let (reads, evictions) = (at(is_of_kill), at(Call::is_eviction));
    let is_during = |read: &Instant| evictions.iter().any(|at| (*at..*at + EVICTION).contains(&(*read + READ)));
    assert!(reads.iter().any(is_during), "the test proves nothing: {reads:?} {evictions:?}");
}
