//! Who gives commands to nodes: the controller, and nobody else, be it by roles or by admission.

use anyhow::{Result, ensure};
use nrh_testbed::Bed;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::nodes::command;
use crate::admission::requests::{Call, Caller, Cases, create, delete, get, merge, owned_command};
use crate::objects::{COMMANDS, ours};
use crate::plane;

const NODES: &str = "/api/v1/nodes";
/// What admission says to everybody but nodes.
const NOT_THEIRS: &str = "NodeCommands are written by the controller only";

fn path_of(node: &str) -> String {
    format!("{COMMANDS}/{node}")
}

fn made(node: &str) -> Value {
    owned_command(node, &json!("11111111-1111-1111-1111-111111111111"), json!({"command": command()}))
}

/// Writes that give a command, change one, or take one back, to the node worker-1 or worker-2, whose commands exist.
pub fn forgeries(node: &str) -> Vec<(String, Call)> {
    let path = path_of(node);
    let mut forged = command();
    forged["operationId"] = json!("op-forged");
    let bare = owned_command(node, &json!("u"), json!({"command": forged}));
    let writes = [
        ("create", create(COMMANDS, bare.clone())),
        ("give a command by", merge(&path, json!({"spec": {"command": forged}}))),
        ("raise the epoch of", merge(&path, json!({"spec": {"command": {"epoch": 99}}}))),
        ("take a command back from", merge(&path, json!({"spec": {"command": null}}))),
        ("ask for a check by", merge(&path, json!({"spec": {"checkSequence": 99}}))),
        ("own", merge(&path, json!({"metadata": {"ownerReferences": null}}))),
        ("apply", crate::admission::requests::apply(format!("{path}?fieldManager=x&force=true"), bare)),
        ("delete", delete(&path, Value::Null)),
    ];
    writes.map(|(what, call)| (format!("{what} the command of {node}"), call)).into()
}

/// What the shipped roles and policies say.
pub async fn guarded(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let by = &all.controller;
    let owner = "is owned by the Node of the same name";
    let unowned = create(COMMANDS, ours("NodeCommand", "worker-1", json!({})));
    cases.denied(by, "an unowned command", unowned, owner).await;
    let mut wrong = made("worker-1");
    wrong["metadata"]["name"] = json!("x");
    cases.denied(by, "a command owned by another node", create(COMMANDS, wrong), owner).await;
    for node in ["worker-1", "worker-2"] {
        let uid = all.admin.must(&get(format!("{NODES}/{node}"))).await?["metadata"]["uid"].clone();
        let call = create(COMMANDS, owned_command(node, &uid, json!({"checkSequence": 1})));
        cases.allowed(by, "make a command", call).await;
        cases.allowed(by, "give a command", merge(path_of(node), json!({"spec": {"command": command()}}))).await;
    }
    cases.allowed(by, "take a command back", merge(path_of("worker-2"), json!({"spec": {"command": null}}))).await;
    for caller in [&all.pod, &all.unit] {
        read_by(caller, cases).await;
        refused_by_roles(caller, cases).await;
    }
    for caller in [&all.other_account, &all.operator, &all.approver, &all.requester] {
        let call = merge(path_of("worker-1"), json!({"spec": {"command": null}}));
        cases.denied(caller, "change a command", call, "cannot patch resource").await;
    }
    for caller in [&all.operator, &all.approver, &all.requester] {
        cases.allowed(caller, "read a command", get(path_of("worker-1"))).await;
    }
    // Somebody was given too much.
    let verbs = "--verb=get,create,patch,update,delete";
    bed.kubectl(&["create", "clusterrole", "commander", verbs, "--resource=nodecommands.runtimehealth.io"])?;
    let to = ["--clusterrole=commander", "--serviceaccount=default:patcher"];
    bed.kubectl(&[&["create", "clusterrolebinding", "commander"], &to[..]].concat())?;
    all.patcher.until_allowed(&get(path_of("worker-1"))).await?;
    for (what, call) in forgeries("worker-1") {
        cases.denied(&all.patcher, &what, call.clone(), NOT_THEIRS).await;
        if !what.starts_with("delete") && !what.starts_with("own") {
            cases.denied(&all.admin, &what, call, NOT_THEIRS).await;
        }
    }
    let call = merge(path_of("worker-1"), json!({"metadata": {"labels": {"a": "b"}}}));
    cases.allowed(&all.patcher, "label a command", call).await;
    cases.allowed(&all.admin, "delete a command", delete(path_of("worker-2"), Value::Null)).await;
    bed.kubectl(&["delete", "clusterrolebinding,clusterrole", "commander"])?;
    goes_with_its_node(all).await
}

/// What a node reads, by its role.
async fn read_by(caller: &Caller, cases: &mut Cases) {
    cases.allowed(caller, "read its own command", get(path_of("worker-1"))).await;
    let watch = format!("{COMMANDS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dworker-1");
    cases.allowed(caller, "watch its own command", get(watch)).await;
}

/// Everything else is refused to a node by its role alone: these are the authorizer's sentences, which is asked before admission.
async fn refused_by_roles(caller: &Caller, cases: &mut Cases) {
    for node in ["worker-1", "worker-2"] {
        for (what, call) in forgeries(node) {
            let verb = what.split(' ').next().filter(|verb| ["create", "delete"].contains(verb)).unwrap_or("patch");
            cases.denied(caller, &what, call, &format!("cannot {verb} resource \"nodecommands\"")).await;
        }
        let call = merge(format!("{}/status", path_of(node)), json!({"spec": {"command": command()}}));
        cases.denied(caller, "by the status of a command", call, "cannot patch resource \"nodecommands/status\"").await;
    }
    cases.denied(caller, "list all commands", get(COMMANDS), "cannot list resource \"nodecommands\"").await;
}

/// The garbage collector removes a command with its Node.
async fn goes_with_its_node(all: &Callers) -> Result<()> {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "short-lived"}});
    let uid = all.admin.must(&create(NODES, node)).await?["metadata"]["uid"].clone();
    all.controller.must(&create(COMMANDS, owned_command("short-lived", &uid, json!({"command": command()})))).await?;
    all.admin.must(&delete(format!("{NODES}/short-lived"), Value::Null)).await?;
    // It learns of new kinds every half a minute.
    plane::soon(async || {
        let is_there = all.admin.send(&get(path_of("short-lived"))).await.is_ok();
        ensure!(!is_there, "the command of a Node that is gone is still there");
        Ok(())
    })
    .await
}

/// Every admission policy is missing: roles alone keep nodes from giving commands. In the end all are there again.
pub async fn without_any_policy(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    bed.kubectl(&["delete", "validatingadmissionpolicybinding", "-l", "app.kubernetes.io/part-of=nrh"])?;
    // That nothing holds an administrator any more shows that they are gone. Its owner is no Node: the garbage collector removes it.
    all.admin.until_allowed(&create(COMMANDS, made("canary"))).await?;
    let uid = all.admin.must(&get(format!("{NODES}/worker-1"))).await?["metadata"]["uid"].clone();
    all.admin.must(&create(COMMANDS, owned_command("worker-1", &uid, json!({"command": command()})))).await?;
    for caller in [&all.pod, &all.unit, &all.unbound] {
        read_by(caller, cases).await;
        refused_by_roles(caller, cases).await;
    }
    all.admin.must(&delete(path_of("worker-1"), Value::Null)).await?;
    plane::install(bed)
}
