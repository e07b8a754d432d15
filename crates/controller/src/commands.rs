//! Writes the `NodeCommand`s: commands to probes, and requests for a fresh check. An object is created when it is first needed.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cache::Cache;
use super::cache::command::CommandRow;
use super::cache::fold::Ingest;
use super::calls::{CallError, Calls, bounded, bounded_opt, delete_params, our_label};
use nrh_api::view::guard::Guarded;
use nrh_api::{CHECKS_MANAGER, CONTROLLER_MANAGER, NodeCommand, NodeCommandSpec};
use nrh_core::command::ActionCommand;

/// The `NodeCommand` of one Node, and the clients to write it.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    pub calls: &'a Calls,
    /// The cache that receives the answers.
    pub cache: &'a Cache,
    pub node: &'a str,
    /// The Node's uid. Exactly that Node owns the object, which is deleted with it.
    pub uid: &'a str,
}

/// A request for a fresh check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The controller's own request.
    pub number: Option<u64>,
    /// A person's request, which the controller passes on.
    pub check: Option<String>,
}

impl Command<'_> {
    /// Writes a command to the object as it was just read. Any change since then is a conflict.
    pub async fn give_command(&self, found: Option<&NodeCommand>, command: &ActionCommand) -> Result<(), CallError> {
        let current = found.and_then(|command| command.spec.command.as_ref());
        let change = json!({"command": replacement(&json!(current), json!(command))});
        let spec = NodeCommandSpec { command: Some(command.clone()), ..NodeCommandSpec::default() };
        let (row, version) = (found.map(CommandRow::of), found.and_then(ResourceExt::resource_version));
        self.write(CONTROLLER_MANAGER, row.as_ref().map(|row| (row, version)), &change, spec).await
    }

    /// Requests a fresh check from the probe: by a number that is higher than the one before, by a person's request, or by both.
    pub async fn ask_check(&self, row: Option<&CommandRow>, ask: &Ask) -> Result<(), CallError> {
        let Ask { number, check } = ask.clone();
        let spec = NodeCommandSpec { command: None, check_sequence: number, check_requested: check };
        self.write(CHECKS_MANAGER, row.map(|row| (row, None)), &json!(spec), spec).await
    }

    /// Changes the known object, at that version if one is named, or creates it. An object that belongs to an earlier Node of
    /// that name is deleted first.
    async fn write(
        &self,
        manager: &str,
        known: Option<(&CommandRow, Option<String>)>,
        change: &Value,
        spec: NodeCommandSpec,
    ) -> Result<(), CallError> {
        if let Some((row, version)) = known {
            if row.owner.as_deref() == Some(self.uid) {
                let mut metadata = json!({"uid": row.uid});
                if let Some(version) = version {
                    metadata["resourceVersion"] = version.into();
                }
                let change = json!({"metadata": metadata, "spec": change});
                return patch(self.calls, self.cache, manager, self.node, &change).await;
            }
            self.remove(&row.uid).await?;
        }
        self.create(manager, spec).await
    }

    async fn create(&self, manager: &str, spec: NodeCommandSpec) -> Result<(), CallError> {
        let object = NodeCommand { metadata: metadata_of(self.node, self.uid), spec };
        let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
        let (api, what) = (self.calls.act::<NodeCommand>(), || format!("creating NodeCommand {}", self.node));
        let made = bounded(what, api.create(&params, &object)).await?;
        made.fold(&mut self.cache.lock(), Instant::now());
        Ok(())
    }

    async fn remove(&self, uid: &str) -> Result<(), CallError> {
        let params = delete_params(Some(uid.to_owned()));
        let api = self.calls.act::<Guarded<NodeCommand>>();
        let what = || format!("deleting NodeCommand {} of another node of that name", self.node);
        bounded_opt(what, api.delete(self.node, &params)).await.map(drop)
    }
}

/// Withdraws the command from the object as it was just read. Any change since then is a conflict.
pub async fn withdraw_command(calls: &Calls, cache: &Cache, found: &NodeCommand) -> Result<(), CallError> {
    let metadata = json!({"uid": found.uid(), "resourceVersion": found.resource_version()});
    let change = json!({"metadata": metadata, "spec": {"command": null}});
    match patch(calls, cache, CONTROLLER_MANAGER, &found.name_any(), &change).await {
        Err(error) if error.is_not_found() => Ok(()),
        answer => answer,
    }
}

async fn patch(calls: &Calls, cache: &Cache, manager: &str, node: &str, change: &Value) -> Result<(), CallError> {
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    let api = calls.act::<Guarded<NodeCommand>>();
    let what = || format!("changing NodeCommand {node}");
    let written = bounded(what, api.patch(node, &params, &Patch::Merge(change))).await?;
    written.fold(&mut cache.lock(), Instant::now());
    Ok(())
}

/// The metadata of an object about exactly that Node: it has its name, and the garbage collector deletes it with the Node.
pub fn metadata_of(node: &str, node_uid: &str) -> ObjectMeta {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: node_uid.to_owned(),
        controller: None,
        block_owner_deletion: Some(false),
    };
    ObjectMeta {
        name: Some(node.to_owned()),
        owner_references: Some(vec![owner]),
        labels: Some(BTreeMap::from([our_label()])),
        ..ObjectMeta::default()
    }
}

/// A merge patch that turns `old` into exactly `new`. Fields that only `old` has become null.
fn replacement(old: &Value, new: Value) -> Value {
    let (Value::Object(old), Value::Object(mut new)) = (old, new.clone()) else { return new };
    for (key, before) in old {
        let after = new.remove(key).unwrap_or(Value::Null);
        new.insert(key.clone(), replacement(before, after));
    }
    Value::Object(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_leaves_nothing_of_the_old_command() {
        let old = json!({"a": 1, "target": {"pid": 7, "wchan": "x"}, "gone": [1]});
        let patch = replacement(&old, json!({"a": 2, "target": {"pid": 8}}));
        assert_eq!(patch, json!({"a": 2, "target": {"pid": 8, "wchan": null}, "gone": null}));
        assert_eq!(replacement(&Value::Null, json!({"a": 1})), json!({"a": 1}));
    }
}
