//! Commands to the probe, and requests for a fresh check: both stand in its NodeCommand, which the controller alone writes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fake_api::world::World;
use crate::fake_api::{Call, Fault};

#[tokio::test(start_paused = true)]
async fn a_command_that_meets_another_write_is_given_at_once_after_another_check() {
    let world = World::probing(1, &World::release());
    let lasts = command(&world, "w1", &json!({"checkSequence": 7}));
    world.kubelets();
    let _replica = world.controller("a");
    // Such a kubelet starts no Job.
    block(&world).await;

    let is_order =
        |call: &Call| call.target.plural == "nodecommands" && !call.body["spec"]["command"]["operationId"].is_null();
    let mut count = 0;
    world.api.forget_calls();
    world.api.hook(move |call| {
        count += usize::from(is_order(call));
        (is_order(call) && count < 3).then_some(Fault::Code(409))
    });
    world.set_sick("w1", true);
    world.until("the probe has its command", || world.command("w1")["releaseHungProcess"]["signal"] == "SIGCONT").await;
    let given = world.api.get("nodecommands", "w1").unwrap();
    assert_eq!(given["metadata"]["uid"], lasts["metadata"]["uid"], "it is changed, not made anew");
    assert!(given["spec"]["checkSequence"].as_u64().is_some_and(|number| number >= 7), "{given}");
    let calls = world.api.calls();
    let tries: Vec<Instant> = calls.iter().filter(|call| is_order(call)).map(|call| call.at).collect();
    assert_eq!(tries.len(), 3);
    let first = tries.first().unwrap();
    // What has failed waits for a tenth of a second at least; time stands still here while anything is to be done.
    assert!(tries.iter().all(|at| at.duration_since(*first) < Duration::from_millis(100)), "{tries:?}");
    let checks = calls.iter().filter(|call| call.is("get", "nodecommands")).count();
    assert!(checks >= 3, "each time on what was read right before");
    sleep(Duration::from_secs(1)).await;
}

/// A NodeCommand that is there already, owned by the node's Node.
fn command(world: &World, node: &str, spec: &Value) -> Value {
    let uid = world.api.get("nodes", node).unwrap()["metadata"]["uid"].clone();
    owned_command(world, node, &uid, spec)
}

fn owned_command(world: &World, node: &str, owner: &Value, spec: &Value) -> Value {
    let owners = json!([{"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner}]);
    world.api.put(json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeCommand",
        "metadata": {"name": node, "ownerReferences": owners}, "spec": spec}))
}

/// A node whose kubelet starts no Job, so that its probe is commanded.
async fn blocked() -> World {
    let world = World::probing(1, &World::release());
    let replica = world.controller("to-begin");
    block(&world).await;
    replica.stop().await.unwrap();
    world
}

/// Lets the node report, and then starts its kubelet anew, which comes to no end.
async fn block(world: &World) {
    let status = || world.status("w1");
    world.until("it has reported", || status()["summary"]["health"] == "Healthy").await;
    sleep(Duration::from_mins(4)).await;
    world.restart_kubelet("w1");
    world.until("its start is blocked", || status()["clusterFaults"][0]["type"] == "KubeletStartBlocked").await;
}

#[tokio::test(start_paused = true)]
async fn a_command_is_made_when_it_is_first_needed_and_belongs_to_its_node() {
    let world = blocked().await;
    assert!(world.api.list("nodecommands").is_empty(), "nothing was needed yet");
    let _replica = world.controller_of_sick("a", "w1");
    world.until("the probe has its command", || world.command("w1")["releaseHungProcess"]["signal"] == "SIGCONT").await;
    let made = world.api.get("nodecommands", "w1").unwrap();
    let node = world.node("w1");
    let owners = json!([{"apiVersion": "v1", "kind": "Node", "name": "w1", "uid": node["metadata"]["uid"], "blockOwnerDeletion": false}]);
    assert_eq!(made["metadata"]["ownerReferences"], owners);
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_node_of_that_name_was_told_is_removed_before_the_new_one_is_commanded() {
    let world = blocked().await;
    let old = owned_command(&world, "w1", &json!("of-another"), &json!({"checkSequence": 9}));
    let _replica = world.controller_of_sick("a", "w1");
    world.until("the probe has its command", || world.command("w1")["releaseHungProcess"]["signal"] == "SIGCONT").await;
    let made = world.api.get("nodecommands", "w1").unwrap();
    assert_ne!(made["metadata"]["uid"], old["metadata"]["uid"]);
    let node = world.node("w1");
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_before_it_is_known_which_commands_stand() {
    let world = blocked().await;
    world.api.forget_calls();
    world.api.hook(|call| call.is("list", "nodecommands").then_some(Fault::Code(403)));
    let _replica = world.controller_of_sick("a", "w1");
    sleep(Duration::from_mins(3)).await;
    assert!(world.command("w1").is_null() && world.api.list("noderemediations").is_empty(), "{:?}", world.api.writes());
    world.api.unhook();
    world.until("the probe has its command", || world.command("w1")["releaseHungProcess"]["signal"] == "SIGCONT").await;
}

#[tokio::test(start_paused = true)]
async fn a_command_that_cannot_be_read_holds_its_node_until_a_person_has_removed_it() {
    let world = blocked().await;
    command(&world, "w1", &json!({"command": {"action": "OfAnotherVersion"}}));
    let _replica = world.controller_of_sick("a", "w1");
    world.until("it is reported", || world.blocked("w1").contains("NodeCommand w1 cannot be read")).await;
    sleep(Duration::from_mins(2)).await;
    assert!(world.phases().iter().all(|phase| phase != "Running"), "{:?}", world.phases());
    assert_eq!(world.command("w1")["action"], "OfAnotherVersion");
    world.api.remove("nodecommands", "w1");
    world.until("the probe has its command", || world.command("w1")["releaseHungProcess"]["signal"] == "SIGCONT").await;
}

/// As a kubelet that shuts its node down, which fails each of our pods before any of its containers.
fn refuse_pod(world: &World, job: Value) {
    let refused = json!({"phase": "Failed", "reason": "NodeShutdown",
        "message": "Pod was rejected: Pod was rejected as the node is shutting down."});
    world.end_job(job, &refused, json!({"failed": 1, "conditions": [{"type": "Failed", "status": "True"}]}));
}

#[tokio::test(start_paused = true)]
async fn what_a_refused_pod_could_not_do_is_commanded_from_the_probe_before_anything_harsher() {
    let world = World::probing(1, &World::release_then_kill());
    world.api.change("remediationpolicies", "hung", |policy| policy["spec"]["limits"]["maxUnhealthy"] = json!("100%"));
    world.kubelets_that(refuse_pod);
    let _replica = world.controller_of_sick("a", "w1");
    world.until("the Job is there", || !world.api.list("jobs").is_empty()).await;
    let (job, asked) = (world.api.list("jobs")[0]["metadata"]["name"].clone(), Instant::now());
    world.until("the probe has its command", || world.command("w1")["releaseHungProcess"]["signal"] == "SIGCONT").await;
    assert!(asked.elapsed() < Duration::from_secs(10), "a refused pod is waited for no longer");
    let operation = world.command("w1")["operationId"].clone();
    assert_eq!(job, operation, "the node claims it once");
    let at = world.wall().to_string();
    world.api.change("noderuntimehealths", "w1", |object| {
        object["status"]["commandResult"] =
            json!({"operationId": operation, "state": "Done", "reason": "Executed", "message": "released", "at": at});
    });
    world.set_sick("w1", false);
    world.healed().await;
    let steps = world.remediation()["status"]["attempts"].clone();
    assert_eq!(steps.as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&steps[0]["executor"], &steps[0]["releaseHungProcess"]["signal"]),
        (&json!("Probe"), &json!("SIGCONT"))
    );
    let why = steps[0]["executorReason"].as_str().unwrap();
    assert!(why.starts_with("Job: ") && why.contains("; then Probe: the kubelet refused the Job's pod"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_command_that_the_probe_does_not_take_is_withdrawn_before_a_job_is_made_for_the_same_operation() {
    let world = World::probing(1, &World::release());
    world.kubelets();
    let _replica = world.controller("a");
    block(&world).await;
    world.set_sick("w1", true);
    world.until("the probe has its command", || world.command("w1")["releaseHungProcess"]["signal"] == "SIGCONT").await;
    let operation = world.command("w1")["operationId"].clone();
    // The kubelet has got on, and the probe, which plays no part here, takes no command.
    world.write_node_status("w1");
    world.healed().await;
    let calls = world.api.calls();
    let command = |call: &Call| {
        let is_it = call.is("patch", "nodecommands");
        call.body["spec"].get("command").filter(|_| is_it).cloned()
    };
    let withdrawn = calls.iter().position(|call| command(call) == Some(Value::Null)).unwrap();
    let is_made = |call: &Call| call.is("create", "jobs");
    let made: Vec<usize> = calls.iter().enumerate().filter(|(_, call)| is_made(call)).map(|(place, _)| place).collect();
    assert_eq!(made.len(), 1, "one Job: {:#?}", world.api.writes());
    assert!(withdrawn < made[0], "{:#?}", world.api.writes());
    assert_eq!(calls[made[0]].body["metadata"]["name"], operation, "the node claims it once");
    let step = world.step(0);
    assert_eq!((&step["executor"], step["executorChangedAt"].is_string()), (&json!("Job"), true));
    let why = step["executorReason"].as_str().unwrap();
    let handed_over = "; then Job: the probe has not answered the command within 75s";
    assert!(why.starts_with("Probe: ") && why.contains(handed_over), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_does_not_start_is_deleted_by_its_uid() {
    let world = World::probing(1, &World::release());
    let _replica = world.controller_of_sick("a", "w1");
    world.until("the Job is there", || !world.api.list("jobs").is_empty()).await;
    let uid = world.api.list("jobs")[0]["metadata"]["uid"].clone();
    world.until("it is deleted", || world.api.list("jobs").is_empty()).await;
    let calls = world.api.calls();
    let delete = calls.iter().find(|call| call.is("delete", "jobs")).unwrap();
    assert_eq!(delete.body["preconditions"]["uid"], uid);
}

/// The leader is late with its withdrawal, and the next one has given a command meanwhile.
#[tokio::test(start_paused = true)]
async fn a_withdrawal_that_comes_late_leaves_the_next_command() {
    let world = World::probing(1, &World::release());
    let _replica = world.controller("a");
    block(&world).await;
    world.set_sick("w1", true);
    world.until("the probe has its command", || world.command("w1")["releaseHungProcess"]["signal"] == "SIGCONT").await;
    let withdraws = |call: &Call| {
        call.verb == "patch"
            && call.target.plural == "nodecommands"
            && call.body["spec"].get("command") == Some(&Value::Null)
    };
    world.api.meanwhile(withdraws, |api| {
        api.change("nodecommands", "w1", |object| object["spec"]["command"]["operationId"] = json!("next-1"));
    });
    world.set_sick("w1", false);
    world.until("it is withdrawn", || world.api.calls().iter().any(withdraws)).await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(world.command("w1")["operationId"], "next-1");
}

#[tokio::test(start_paused = true)]
async fn what_a_person_asks_for_is_passed_on_at_once_and_again_only_under_another_name() {
    let world = World::healthy();
    let _replica = world.controller("a");
    world.until("it has reported", || world.status("w1")["summary"]["health"] == "Healthy").await;
    sleep(Duration::from_mins(2)).await;
    let ask = |name: &str| {
        world.api.change("noderuntimehealths", "w1", |object| object["spec"]["checkRequested"] = json!(name));
    };
    for name in ["rollout-1", "rollout-2"] {
        let asked = Instant::now();
        ask(name);
        world.until("it is passed on", || world.command_spec("w1")["checkRequested"] == name).await;
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        sleep(Duration::from_mins(6)).await;
    }
    let writes = || world.api.count_writes("nodecommands");
    assert_eq!(writes(), 2, "once each: {:?}", world.command_spec("w1"));
    assert!(world.command_spec("w2").is_null(), "the others are not asked");
    // What the probe would not take is not passed on: here no definition has kept it out.
    ask("\u{1b}[2J");
    sleep(Duration::from_mins(6)).await;
    assert_eq!(writes(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_answers_do_not_help_is_asked_ever_more_slowly() {
    let world = World::new(1);
    world.policy("hung", "Enforce", &World::release());
    let _replica = world.controller("a");
    world.until("its object is there", || world.api.get("noderuntimehealths", "w1").is_some()).await;
    let (mut answered, mut asked) = (None, Vec::new());
    let began = Instant::now();
    for sequence in 1..=6000 {
        let number = world.command_spec("w1")["checkSequence"].as_u64();
        if number != answered || sequence % 150 == 1 {
            if number != answered {
                asked.push(began.elapsed().as_secs());
            }
            answered = number;
            world.report("w1", sequence);
            // It reports, and cannot check.
            world.api.change("noderuntimehealths", "w1", |object| {
                object["status"]["faults"] = json!([{"id": "hungcontainer-1", "type": "HungContainer", "severity": "High",
                    "state": "Confirmed", "subject": {"kind": "Container", "name": "log"}, "target": {}, "message": "deaf",
                    "firstSeen": "2025-06-01T12:00:00Z", "durationSeconds": 600, "confirmations": 3, "checkAgeSeconds": 300}]);
            });
        }
        sleep(Duration::from_millis(100)).await;
    }
    assert!(asked.len() >= 10, "it is asked: {asked:?}");
    assert!(asked.len() <= 30, "ever more slowly: {asked:?}");
    assert!(asked.windows(2).skip(8).all(|pair| pair[1] - pair[0] >= 35), "{asked:?}");
}
