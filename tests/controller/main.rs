//! The controller against an API server in memory, with paused time: whole remediations, and everything that may
//! go wrong between two calls.

mod admission;
mod commands;
mod cordons;
mod disruption;
mod drains;
mod events;
#[path = "../fake_api/mod.rs"]
mod fake_api;
mod flaps;
mod hand_offs;
mod last_check;
mod ledger;
mod manual;
mod matching;
mod metal3;
mod pods_in_any_order;
mod reboots;
mod requests;
mod retries;
mod scrapes;
#[path = "../simulated_node/mod.rs"]
mod simulated_node;
mod stuck_pods;
mod taints;
mod terms;
mod unreadable;

use std::collections::BTreeSet;
use std::time::Duration;

use fake_api::world::{World, die_at_each_write};
use fake_api::{Call, Fault};
use nrh::controller::rbac;
use serde_json::{Value, json};
use tokio::time::sleep;

fn position(writes: &[String], start: &str) -> usize {
    writes.iter().position(|w| w.starts_with(start)).unwrap_or_else(|| panic!("no {start} in {writes:#?}"))
}

fn jobs_created(calls: &[Call]) -> BTreeSet<String> {
    calls.iter().filter(|c| c.is("create", "jobs")).map(Call::line).collect()
}

#[tokio::test(start_paused = true)]
async fn a_hung_container_is_resolved_ledger_first_then_remediation_then_job() {
    let world = World::healthy();
    let replica = world.controller("a");
    world.all_report().await;
    assert!(world.api.list("jobs").is_empty() && world.api.list("noderemediations").is_empty());

    world.set_sick("w2", true);
    world.healed().await;
    let writes = world.api.writes();
    // The first one, at the start, holds no slot.
    let ledger = position(&writes, "patch configmaps/nrh-ledger");
    let remediation = position(&writes, "create noderemediations/");
    let job = position(&writes, "create jobs/");
    assert!(ledger < remediation && remediation < job, "{writes:#?}");
    world.until("the slot is given back", || world.has_no_slots()).await;
    world.until("the finalizer is off", || world.all_are_freed()).await;
    assert_eq!(jobs_created(&world.api.calls()).len(), 1);
    replica.stop().await.unwrap();
    let lease = world.api.get("leases", "nrh-controller").unwrap();
    assert!(lease["spec"]["holderIdentity"].is_null(), "the lease is given back at the end");
}

#[tokio::test(start_paused = true)]
async fn what_is_confirmed_stands_on_the_node_for_other_tools_where_that_is_wanted() {
    let world = World::new(2);
    let replica = world.mirroring("a", "ContainersUnresponsive,KubeletUnhealthy");
    world.probe("w1");
    let of = |node, kind| world.condition("nodes", node, kind);
    let stands = |status: &str, reason: &str| {
        let one = of("w1", "ContainersUnresponsive");
        one["status"] == status && one["reason"] == reason
    };
    world.until("no problem", || stands("False", "NoFaultConfirmed")).await;
    world.set_sick("w1", true);
    world.until("a problem", || stands("True", "HungContainer")).await;
    // Of what was not wanted, and of a node that has not reported, nothing is claimed.
    assert_eq!((of("w1", "RestartUnsafe"), of("w2", "ContainersUnresponsive")), (Value::Null, Value::Null));
    assert_eq!(of("w1", "Ready")["status"], "True", "the kubelet's own stays");
    let since = of("w1", "ContainersUnresponsive")["lastTransitionTime"].clone();
    world.set_sick("w1", false);
    world.until("it is gone", || stands("False", "NoFaultConfirmed")).await;
    assert_ne!(of("w1", "ContainersUnresponsive")["lastTransitionTime"], since);
    let writes = world.api.count_writes("patch nodes/");
    assert!((3..=6).contains(&writes), "{writes} writes to Nodes");
    replica.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_records_and_touches_nothing() {
    let world = World::healthy();
    world.policy("hung", "DryRun", &World::release());
    world.set_sick("w1", true);
    let _replica = world.controller("a");
    world.until("simulated", || world.phases() == ["Simulated"]).await;
    sleep(Duration::from_mins(2)).await;
    assert_eq!(world.phases(), ["Simulated"]);
    assert!(world.api.acts().iter().all(|act| act.contains("configmaps/")), "{:?}", world.api.acts());
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_write_is_repaired_by_the_next_process_with_one_job_in_all() {
    let make = || {
        let world = World::probing(2, &json!([{"action": "Cordon"}, World::release()[0].clone()]));
        world.kubelets();
        world.set_sick("w1", true);
        world
    };
    let is_resolved = |world: &World| world.phases() == ["Succeeded"];
    // Ledger, remediation, its status, cordon, job, …
    die_at_each_write(make, is_resolved, 6, async |world, writes| {
        world.until("uncordoned", || !world.is_cordoned("w1")).await;
        assert_eq!(jobs_created(&world.api.calls()).len(), 1, "a death at write {writes}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_names_no_remediation_is_taken_off_whatever_it_says() {
    let marks = ["an-remediation-that-is-gone", "", "no/name", "../nodes/w1", "Not A Name"];
    let world = World::probing(marks.len(), &World::release());
    let node = |at: usize| format!("w{}", at + 1);
    for (at, mark) in marks.iter().enumerate() {
        world.api.change("nodes", &node(at), |node| {
            node["metadata"]["annotations"]["runtimehealth.io/cordoned-by"] = json!(mark);
            node["spec"]["unschedulable"] = json!(true);
        });
    }
    let _replica = world.controller("a");
    for (at, mark) in marks.iter().enumerate() {
        let is_bare = |node: &Value| node["metadata"]["annotations"].as_object().is_none_or(serde_json::Map::is_empty);
        let is_off = || !world.is_cordoned(&node(at)) && is_bare(&world.node(&node(at)));
        world.until(&format!("mark {mark:?} is off"), is_off).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_on_the_ledger_opens_nothing() {
    let world = World::probing(3, &World::release());
    world.set_sick("w1", true);
    // The first, empty one may be made; taking a slot in it may not.
    world.api.hook(|call| call.is("patch", "configmaps").then_some(Fault::Code(409)));
    let _replica = world.controller("a");
    sleep(Duration::from_mins(3)).await;
    assert!(world.api.list("noderemediations").is_empty());
    assert!(world.api.list("jobs").is_empty());
    world.api.unhook();
    world.until("it goes on when the ledger can be written", || !world.api.list("jobs").is_empty()).await;
}

/// A leader opens a remediation of w1, cannot make its Job, and dies.
async fn die_with_a_remediation_open(world: &World) {
    world.set_sick("w1", true);
    world.api.hook(|call| (call.is_write() && call.target.plural == "jobs").then_some(Fault::Stall));
    let first = world.controller("a");
    world.until("opened", || !world.api.list("noderemediations").is_empty()).await;
    first.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_spends_nothing_from_a_ledger_that_it_has_only_read() {
    let world = World::healthy();
    die_with_a_remediation_open(&world).await;
    let written = || world.api.get("configmaps", "nrh-ledger").unwrap()["data"]["written"].to_string();
    let by_first = written();
    // What the first has sent could arrive now, and the second would not see it: its slot stands in what it has read.
    world.api.hook(|call| call.is("patch", "configmaps").then_some(Fault::Code(409)));
    let _second = world.controller("b");
    sleep(Duration::from_mins(1)).await;
    assert!(world.api.list("jobs").is_empty(), "{:?}", world.api.acts());
    world.api.unhook();
    world.until("it goes on once it has written the ledger", || !world.api.list("jobs").is_empty()).await;
    assert!(written().contains("in term ") && written() != by_first, "{by_first} and {}", written());
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_cannot_be_written_uses_up_no_step() {
    let world = World::probing(3, &World::release_then_kill());
    world.kubelets();
    die_with_a_remediation_open(&world).await;
    world.api.hook(|call| call.is("patch", "configmaps").then_some(Fault::Code(403)));
    let _second = world.controller("b");
    sleep(Duration::from_mins(20)).await;
    assert!(world.api.list("jobs").is_empty(), "{:#?}", world.api.acts());
    world.api.unhook();
    world.healed().await;
    let steps = world.remediation()["status"]["attempts"].as_array().cloned().unwrap();
    let is_gentle = |step: &Value| step["releaseHungProcess"]["signal"] == "SIGCONT";
    assert!(steps.iter().all(is_gentle), "nothing harsher: {steps:#?}");
}

#[tokio::test(start_paused = true)]
async fn the_slot_of_a_remediation_that_no_watch_shows_is_not_given_back() {
    let world = World::probing(4, &World::release());
    world.api.change("remediationpolicies", "hung", |policy| policy["spec"]["limits"]["maxInFlight"] = json!(1));
    die_with_a_remediation_open(&world).await;
    // The second reads everything, and of remediations an answer from before the first one.
    world.api.hook(|call| call.is("list", "noderemediations").then_some(Fault::Empty));
    let _second = world.controller_of_sick("b", "w2");
    sleep(Duration::from_secs(150)).await;
    let asked = world.api.calls().iter().any(|call| call.is("get", "noderemediations"));
    let remediations = world.api.list("noderemediations");
    let nodes: Vec<&Value> = remediations.iter().map(|remediation| &remediation["spec"]["nodeName"]).collect();
    assert_eq!((nodes, asked), (vec![&json!("w1")], true), "one at a time, and that one is there");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_asks_waits_for_the_yes_in_its_object() {
    let mut steps = World::release();
    steps[0]["approval"] = json!("Manual");
    let world = World::probing(3, &steps);
    world.kubelets();
    world.set_sick("w1", true);
    let _replica = world.controller("a");
    world.until("asked", || world.phases() == ["AwaitingApproval"]).await;
    sleep(Duration::from_mins(10)).await;
    assert!(world.api.list("jobs").is_empty(), "{:#?}", world.api.writes());
    let operation = &world.step(0)["operationId"];
    let told: Vec<Value> =
        world.api.list("events").into_iter().filter(|e| e["reason"] == "ManualActionRequired").collect();
    assert_eq!(told.len(), 1, "{told:#?}");
    let yes = format!("nrh approve w1 --operation {}", operation.as_str().unwrap());
    assert!(told[0]["note"].as_str().unwrap().contains(&yes), "{told:#?}");
    let approve = |operation: &Value| {
        let approval = json!({"approvedBy": "ann", "operationId": operation});
        world.change_remediation(|remediation| remediation["spec"]["approval"] = approval);
    };
    approve(&json!("another"));
    sleep(Duration::from_mins(2)).await;
    assert!(world.api.list("jobs").is_empty(), "{:#?}", world.api.writes());
    approve(operation);
    world.healed().await;
    assert_eq!(jobs_created(&world.api.calls()).len(), 1);
    assert_eq!(world.step(0)["approvedBy"], "ann");
}

#[tokio::test(start_paused = true)]
async fn two_leaders_act_once() {
    // A leader that was cut off and does not know it yet, beside its successor.
    for lead in [0, 1, 3, 7, 20, 60] {
        let world = World::probing(3, &json!([{"action": "Cordon"}, World::release()[0].clone()]));
        world.kubelets();
        world.set_sick("w1", true);
        let one = world.usurper("a");
        sleep(Duration::from_millis(lead)).await;
        let two = world.usurper("b");
        world.healed().await;
        sleep(Duration::from_mins(2)).await;
        let leases: Vec<String> = world.api.list("leases").iter().map(|l| l["metadata"]["name"].to_string()).collect();
        assert_eq!(leases.len(), 2, "both led");
        assert_eq!(world.phases(), ["Succeeded"]);
        assert_eq!(jobs_created(&world.api.calls()).len(), 1);
        assert!(!world.is_cordoned("w1"));
        assert!(!one.task.is_finished() && !two.task.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn a_remediation_that_somebody_else_wrote_meanwhile_is_not_written_over() {
    let world = World::healthy();
    world.set_sick("w1", true);
    let (successor, is_it) = (world.clone(), |call: &Call| call.target.resource() == "noderemediations/status");
    world.api.meanwhile(is_it, move |_| {
        successor.change_remediation(|remediation| {
            remediation["status"] = json!({"phase": "Cancelled", "message": "the successor's word",
                "startedAt": "2025-06-01T12:00:00Z", "finishedAt": "2025-06-01T12:00:00Z"});
        });
    });
    let _replica = world.controller("a");
    world.until("cancelled", || world.phases().contains(&"Cancelled".to_owned())).await;
    sleep(Duration::from_mins(2)).await;
    let all = world.api.list("noderemediations");
    let first = all.iter().find(|one| one["status"]["message"] == "the successor's word").unwrap();
    assert_eq!(first["status"]["phase"], "Cancelled");
}

#[tokio::test(start_paused = true)]
async fn a_node_replaced_in_the_middle_is_touched_no_more() {
    let world = World::probing(3, &json!([{"action": "Cordon"}, World::release()[0].clone()]));
    world.set_kubelet(false);
    world.kubelets();
    world.set_sick("w1", true);
    let _replica = world.controller("a");
    world.until("under way", || !world.api.list("jobs").is_empty()).await;
    assert!(world.is_cordoned("w1"));
    world.api.remove("nodes", "w1");
    world.api.forget_calls();
    world.add_node("w1");
    world.until("cancelled", || world.phases() == ["Cancelled"]).await;
    sleep(Duration::from_mins(1)).await;
    let mut writes = world.api.writes();
    writes.retain(|write| write.contains("nodes/") || write.starts_with("create jobs"));
    assert_eq!(writes, [""; 0]);
    let report = world.api.get("noderuntimehealths", "w1").unwrap();
    let uid = &world.node("w1")["metadata"]["uid"];
    assert_eq!(&report["metadata"]["ownerReferences"][0]["uid"], uid, "the report belongs to the new node");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_disturbs_nothing_else() {
    let world = World::new(4);
    world.policy("hung", "Enforce", &World::release());
    for (name, faults) in [("strange", json!(["NoSuchFault"])), ("wrong", json!([]))] {
        world.policy(name, "Enforce", &json!([]));
        world.api.change("remediationpolicies", name, |policy| policy["spec"]["rules"][0]["match"]["faults"] = faults);
    }
    let _replica = world.controller("a");
    world.until("reports exist", || world.api.list("noderuntimehealths").len() == 4).await;
    world.kubelets();
    for node in ["w1", "w2", "w4"] {
        world.probe(node);
    }
    world.api.change("noderuntimehealths", "w3", |object| {
        object["status"] = json!({"faults": [{"id": "x", "type": "NoSuchFault"}], "conditions": []});
    });
    world.set_sick("w1", true);
    world.until("the others go on", || world.phases() == ["Succeeded"]).await;
    assert_eq!(world.ready_of("hung")["status"], "True");
    assert_eq!(world.ready_of("strange")["status"], "False");
    let wrong = world.ready_of("wrong");
    assert_eq!(wrong["status"], "False");
    for error in ["expected at least one of faults and nodeConditions", "expected at least one step"] {
        assert!(wrong["message"].as_str().unwrap().contains(error), "{error} is missing in {wrong}");
    }
    let acts = jobs_created(&world.api.calls());
    assert!(acts.iter().all(|job| job.contains("/w1-")), "{acts:?}");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_was_gone_for_minutes_is_caught_up_with_and_nothing_is_repeated() {
    let world = World::healthy();
    let replica = world.controller_of_sick("a", "w1");
    world.until("the job is there", || !world.api.list("jobs").is_empty()).await;
    world.api.set_down(true);
    sleep(Duration::from_mins(4)).await;
    let ended = replica.task.is_finished();
    world.api.set_down(false);
    // A leader that could not renew has ended its process; its pod is started again.
    assert!(ended, "a leader without its lease must not go on");
    let _next = world.controller("a");
    world.healed().await;
    sleep(Duration::from_mins(2)).await;
    assert_eq!(jobs_created(&world.api.calls()).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn errors_about_one_node_do_not_stop_the_others() {
    let world = World::probing(6, &World::release());
    world.kubelets();
    world.api.hook(|call| {
        let about_w1 = call.line().contains("/w1-");
        (about_w1 && call.target.plural == "noderemediations" && call.is_write()).then_some(Fault::Code(500))
    });
    let _replica = world.controller_of_sick("a", "w1");
    world.set_sick("w2", true);
    world.until("w2 is healed", || world.phases().contains(&"Succeeded".to_owned())).await;
    assert!(world.api.list("jobs").iter().all(|job| job["spec"]["template"]["spec"]["nodeName"] == "w2"));
    world.api.unhook();
    world.until("w1 too", || world.phases() == ["Succeeded", "Succeeded"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_the_api_server_refuses_is_told_and_not_tried_again_at_once() {
    let world = World::healthy();
    world.api.hook(|call| call.is("create", "jobs").then_some(Fault::Code(403)));
    let _replica = world.controller_of_sick("a", "w1");
    world.until("tried", || !jobs_created(&world.api.calls()).is_empty()).await;
    sleep(Duration::from_secs(50)).await;
    assert_eq!(jobs_created(&world.api.calls()).len(), 1, "it waits for its cool-down");
    let blocked = world.blocked("w1");
    let why = "RequestRejected: ReleaseHungProcess(SIGCONT)";
    assert!(blocked.starts_with(why) && blocked.contains("(403)"), "{blocked}");
    assert_eq!(world.condition("noderuntimehealths", "w1", "SelfHealing")["status"], "False");
    let events = world.api.list("events");
    let is_told = |event: &Value| event["reason"] == "ActionNotExecuted" && event.to_string().contains("(403)");
    assert!(events.iter().any(is_told), "{events:#?}");
    world.api.unhook();
    world.until("healed when it is allowed", || world.phases() == ["Succeeded"]).await;
}

#[tokio::test(start_paused = true)]
async fn no_call_goes_beyond_the_listed_rights() {
    let world = World::probing(3, &json!([{"action": "Cordon"}, World::release()[0].clone(), {"action": "Notify"}]));
    world.kubelets();
    world.api.put(json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "log", "namespace": "d"},
        "spec": {"selector": {"matchLabels": {"app": "log"}}, "template": {}},
        "status": {"desiredNumberScheduled": 3, "currentNumberScheduled": 3, "numberReady": 2, "numberMisscheduled": 0, "numberUnavailable": 1}}));
    let replica = world.controller_of_sick("a", "w1");
    world.healed().await;
    sleep(Duration::from_mins(1)).await;
    replica.stop().await.unwrap();
    let calls = world.api.calls();
    for call in &calls {
        let target = &call.target;
        let name = target.name.as_deref().or_else(|| call.body["metadata"]["name"].as_str());
        let is_listed = rbac::allows(&target.group, &target.resource(), call.verb, target.namespace.as_deref(), name);
        assert!(is_listed, "not in the list: {} {target:?}", call.verb);
    }
    let used: BTreeSet<(String, &str)> = calls.iter().map(|c| (c.target.resource(), c.verb)).collect();
    for (resource, verb) in [("nodes", "patch"), ("pods", "list"), ("jobs", "create"), ("events", "create")] {
        assert!(used.contains(&(resource.to_owned(), verb)), "{verb} {resource} was not seen: this proves too little");
    }
}

#[tokio::test(start_paused = true)]
async fn a_blocked_start_of_a_kubelet_is_named_on_a_ready_node_and_no_job_is_sent_there() {
    let world = World::probing(1, &World::release());
    world.kubelets();
    let _replica = world.controller("a");
    let status = || world.status("w1");
    world.until("the kubelet's version is told", || status()["kubeletVersion"] == "v1.36.3").await;
    // At rest its status is written every five minutes: that it is old means nothing. By then it was watched for long enough to be
    // called stable, too.
    sleep(Duration::from_mins(11)).await;
    assert_eq!((&status()["clusterFaults"], &status()["summary"]["health"]), (&Value::Null, &json!("Healthy")));

    world.restart_kubelet("w1");
    sleep(Duration::from_secs(85)).await;
    assert_eq!(status()["clusterFaults"], Value::Null, "it may still be on its way");
    world.until("it is named", || status()["clusterFaults"][0]["type"] == "KubeletStartBlocked").await;
    let progressing = || world.condition("noderuntimehealths", "w1", "PodsProgressing")["status"].clone();
    assert_eq!(progressing(), "False");
    let written = || world.api.count_writes("noderuntimehealths");
    let before = written();
    sleep(Duration::from_mins(10)).await;
    assert_eq!(written(), before, "what stays the same is not written");

    world.set_sick("w1", true);
    world.until("the probe has its command", || world.command("w1")["releaseHungProcess"]["signal"] == "SIGCONT").await;
    assert!(world.api.list("jobs").is_empty(), "nobody would run it");
    world.set_sick("w1", false);
    world.write_node_status("w1");
    world.until("it is over", || status()["clusterFaults"] == Value::Null).await;
    world.until("pods get on", || progressing() == "True").await;
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_a_policy_asks_for_is_told_and_its_heartbeats_write_nothing() {
    let world = World::new(1);
    world.policy("kernel", "Enforce", &World::release());
    world.api.change("remediationpolicies", "kernel", |policy| {
        let asked = json!({"type": "KernelDeadlock", "status": "True", "reasons": ["DockerHung"]});
        policy["spec"]["rules"] = json!([{"name": "kernel", "match": {"nodeConditions": [asked], "minDuration": "2m"},
            "steps": [{"action": "Notify"}]}]);
    });
    let _replica = world.controller("a");
    world.probe("w1");
    let status = || world.status("w1");
    world.until("it is well", || status()["summary"]["health"] == "Healthy").await;
    let write = |status: &str, message: &str| {
        world.api.change("nodes", "w1", |node| {
            let new = json!({"type": "KernelDeadlock", "status": status, "reason": "DockerHung", "message": message});
            let conditions = node["status"]["conditions"].as_array_mut().unwrap();
            conditions.retain(|condition| condition["type"] != "KernelDeadlock");
            conditions.push(new);
        });
    };
    write("True", "blocked for 120 s");
    world.until("it is named", || status()["clusterFaults"][0]["type"] == "NodeCondition").await;
    let named = status()["clusterFaults"][0].clone();
    let message = "condition KernelDeadlock of the Node is True (DockerHung): blocked for 120 s";
    assert_eq!((&named["message"], &named["state"]), (&json!(message), &json!("Confirmed")));
    sleep(Duration::from_secs(10)).await;
    let written = || world.api.count_writes("noderuntimehealths");
    let before = written();
    for beat in 1..9 {
        write("True", &format!("blocked for {} s", 120 + 10 * beat));
        sleep(Duration::from_secs(10)).await;
    }
    assert_eq!((written(), &status()["clusterFaults"][0]), (before, &named), "what stays the same is not written");
    assert_eq!(world.phases(), Vec::<String>::new(), "two minutes are not over");
    world.until("people are told", || world.phases() == ["Failed"]).await;
    write("False", "no deadlock");
    world.until("it is over", || status()["clusterFaults"] == Value::Null).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_start_in_a_cluster_creates_the_dry_run_policy_and_no_later_one_does() {
    let world = World::new(1);
    let replica = world.controller("a");
    world.until("it is there", || world.api.get("remediationpolicies", "dry-run").is_some()).await;
    world.until("the ledger too", || world.api.get("configmaps", "nrh-ledger").is_some()).await;
    replica.crash().await;
    world.api.remove("remediationpolicies", "dry-run");
    let _replica = world.controller("b");
    sleep(Duration::from_mins(2)).await;
    assert!(world.api.get("remediationpolicies", "dry-run").is_none(), "who removed it is not overruled");
}

#[test]
fn a_job_has_exactly_what_the_executor_asks_for() {
    let job = nrh::controller::jobs::job(&nrh::core::examples::command("op-1"), "nrh:1").unwrap();
    let job = serde_json::to_value(job).unwrap();
    let pod = &job["spec"]["template"]["spec"];
    let texts = |list: &Value, at: &str| -> BTreeSet<String> {
        list.as_array().unwrap().iter().map(|v| v.pointer(at).unwrap().as_str().unwrap().to_owned()).collect()
    };
    let security = &pod["containers"][0]["securityContext"];
    let wanted = nrh::node::agent::CAPABILITIES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(texts(&security["capabilities"]["add"], ""), wanted);
    let wanted: BTreeSet<String> = nrh::node::agent::MOUNTS.iter().map(|(path, ..)| (*path).to_owned()).collect();
    assert_eq!(texts(&pod["volumes"], "/hostPath/path"), wanted);
    for (path, writable, _) in nrh::node::agent::MOUNTS {
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        let mount = mounts.iter().find(|mount| mount["mountPath"] == *path).unwrap();
        assert_eq!(mount["readOnly"] != true, *writable, "{path}");
    }
}
