//! Nodes handed to a remediator of Cluster API's kind: it takes its machine from the owner of its object, and says no more than a
//! phase.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fake_api::world::World;

const GROUP: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
const OBJECTS: &str = "metal3remediations";
const MACHINES: &str = "cluster.x-k8s.io/v1beta1";

/// Three nodes of Cluster API, Metal3, and a policy that hands nodes to it. Machine `m-1` is that of node `w1`.
fn world() -> World {
    let template =
        json!({"apiVersion": GROUP, "kind": "Metal3RemediationTemplate", "name": "reboot", "namespace": "metal"});
    let steps = json!([{"action": "HandOff", "timeout": "30m", "handOff": {"remediationTemplate": template}}, {"action": "Notify"}]);
    let world = World::probing(3, &steps);
    world.api.serve_kind(GROUP, "Metal3Remediation", OBJECTS);
    world.api.serve_kind(GROUP, "Metal3RemediationTemplate", "metal3remediationtemplates");
    world.api.serve_kind(MACHINES, "Machine", "machines");
    world.api.put(json!({"apiVersion": GROUP, "kind": "Metal3RemediationTemplate",
        "metadata": {"name": "reboot", "namespace": "metal"},
        "spec": {"template": {"spec": {"strategy": {"type": "Reboot", "retryLimit": 1, "timeout": "300s"}}}}}));
    world.api.put(json!({"apiVersion": MACHINES, "kind": "Machine", "metadata": {"name": "m-1", "namespace": "metal"},
        "spec": {"providerID": "metal3://metal/m-1"}, "status": {"nodeRef": {"apiVersion": "v1", "kind": "Node", "name": "w1"}}}));
    names(&world, "m-1", "metal");
    world
}

/// Has node `w1` name that Machine as its own.
fn names(world: &World, machine: &str, namespace: &str) {
    world.api.change("nodes", "w1", |node| {
        node["spec"]["providerID"] = json!("metal3://metal/m-1");
        node["metadata"]["annotations"]["cluster.x-k8s.io/machine"] = json!(machine);
        node["metadata"]["annotations"]["cluster.x-k8s.io/cluster-namespace"] = json!(namespace);
    });
}

fn is_in(world: &World, phase: &str) {
    world.api.change(OBJECTS, "w1", |object| object["status"] = json!({"phase": phase}));
}

#[tokio::test(start_paused = true)]
async fn the_object_belongs_to_the_nodes_machine_too_and_the_check_decides_where_there_is_only_a_phase() {
    let world = world();
    let replica = world.controller_of_sick("a", "w1");
    world.until("handed off", || world.api.get(OBJECTS, "w1").is_some()).await;
    let object = world.api.get(OBJECTS, "w1").unwrap();
    let (remediation, machine) = (world.remediation(), world.api.get("machines", "m-1").unwrap());
    let owners = object["metadata"]["ownerReferences"].as_array().unwrap();
    let told: Vec<_> = owners.iter().map(|owner| (&owner["apiVersion"], &owner["kind"], &owner["uid"])).collect();
    assert_eq!(
        told,
        [
            (&json!("runtimehealth.io/v1alpha1"), &json!("NodeRemediation"), &remediation["metadata"]["uid"]),
            (&json!(MACHINES), &json!("Machine"), &machine["metadata"]["uid"])
        ]
    );
    assert_eq!((&owners[1]["name"], &owners[1]["controller"]), (&json!("m-1"), &Value::Null));
    for phase in ["Running", "Waiting"] {
        is_in(&world, phase);
        sleep(Duration::from_mins(1)).await;
        assert_eq!(world.step(0)["state"], "Started", "{phase} says nothing of the end");
    }
    world.set_sick("w1", false);
    world.healed().await;
    world.until("taken back", || world.api.get(OBJECTS, "w1").is_none()).await;
    replica.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_a_machine_that_names_the_node_in_turn_nothing_is_made() {
    type Change = fn(&World);
    let cases: [(Change, &str); 4] = [
        (|world| names(world, "", ""), "Node w1 names no Machine that its remediator could work on"),
        (|world| names(world, "m-1", "elsewhere"), "Machine elsewhere/m-1 of Node w1: expected it in namespace metal"),
        (|world| names(world, "m-9", "metal"), "Machine metal/m-9 of Node w1 is not there"),
        // The kubelet of w1 may write what its Node says, and not what another's Machine does.
        (
            |world| world.api.change("machines", "m-1", |machine| machine["status"]["nodeRef"]["name"] = json!("w2")),
            "names another node in status.nodeRef: expected this one, found w2",
        ),
    ];
    for (change, why) in cases {
        let world = world();
        change(&world);
        let _replica = world.controller_of_sick("a", "w1");
        world.until("people are told", || world.phases() == ["Failed"]).await;
        assert_eq!(world.step(0)["state"], "Failed", "{why}");
        let message = world.message(0);
        assert!(message.contains(why) && message.contains("nothing was made"), "{why}: {message}");
        assert_eq!(world.api.count_writes(OBJECTS), 0, "{why}: {:#?}", world.api.writes());
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_is_invalid_as_long_as_machines_may_not_be_read() {
    let world = world();
    world.api.deny(&[("get", "machines")]);
    let _replica = world.controller("a");
    world.until("known to be invalid", || world.ready_of("hung")["status"] == "False").await;
    let ready = world.ready_of("hung").to_string();
    assert!(ready.contains("may not get machines.cluster.x-k8s.io in namespace metal"), "{ready}");
    world.set_sick("w1", true);
    sleep(Duration::from_mins(3)).await;
    assert!(world.api.list(OBJECTS).is_empty());
    world.api.deny(&[]);
    world.until("valid", || world.ready_of("hung")["status"] == "True").await;
}

/// It belongs to a Machine too, so nothing takes it away with the remediation that has made it.
#[tokio::test(start_paused = true)]
async fn what_a_remediation_that_is_gone_has_left_behind_is_deleted_before_the_next_hand_off() {
    let world = world();
    let left = |remediation: &str| {
        json!({"apiVersion": GROUP, "kind": "Metal3Remediation", "metadata": {"name": "w1", "namespace": "metal",
            "annotations": {"runtimehealth.io/remediation": remediation, "runtimehealth.io/operation": "op-of-before"}}})
    };
    let old = world.api.put(left("w1-gone"))["metadata"]["uid"].clone();
    let _replica = world.controller_of_sick("a", "w1");
    world.until("handed off", || world.step(0)["state"] == "Started").await;
    let object = world.api.get(OBJECTS, "w1").unwrap();
    assert_ne!(object["metadata"]["uid"], old, "another object");
    assert_eq!(object["metadata"]["annotations"]["runtimehealth.io/operation"], world.step(0)["operationId"]);
    world.set_sick("w1", false);
    world.until("taken back", || world.api.get(OBJECTS, "w1").is_none()).await;
}

/// Of a remediation that nobody has removed yet it is that one's to take back.
#[tokio::test(start_paused = true)]
async fn what_a_remediation_that_is_there_has_made_is_left_alone() {
    let world = world();
    world.api.put(json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": "w2-open"},
        "spec": {"nodeName": "w2", "nodeUid": "u", "policy": "other", "mode": "Enforce"},
        "status": {"phase": "OfALaterVersion", "message": "", "startedAt": "2025-06-01T11:00:00Z", "faults": [], "attempts": []}}));
    let object = json!({"apiVersion": GROUP, "kind": "Metal3Remediation", "metadata": {"name": "w1", "namespace": "metal",
        "annotations": {"runtimehealth.io/remediation": "w2-open", "runtimehealth.io/operation": "op-of-before"}}});
    let uid = world.api.put(object)["metadata"]["uid"].clone();
    let _replica = world.controller_of_sick("a", "w1");
    world.until("refused", || world.phases().iter().any(|phase| phase == "Failed")).await;
    assert_eq!(world.api.get(OBJECTS, "w1").unwrap()["metadata"]["uid"], uid);
}
