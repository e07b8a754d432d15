//! One write of a status, and how it is carried out.

use std::fmt::Debug;

use k8s_openapi::ClusterResourceScope;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;

use crate::cache::command::CommandRow;
use crate::cache::fold::Ingest;
use crate::cache::guard::Guardable;
use crate::cache::versions::version_of;
use crate::cache::{Cache, State};
use crate::calls::{CallError, Calls, bounded, bounded_opt, delete_params, patch_params, post_params};
use crate::commands::{Ask, Command, metadata_of};
use crate::events::Events;
use nrh_api::view::guard::Guarded;
use nrh_api::{
    CONFIG_NAME, CONTROLLER_MANAGER, ConditionReason, NodeRuntimeHealth, NodeRuntimeHealthSpec,
    NodeRuntimeHealthStatus, RemediationConfig, RemediationConfigStatus, RemediationPolicy, RemediationPolicyStatus,
};

/// Key of the only `RemediationConfig`.
pub const CONFIG: &str = "config";

/// One write that is due.
#[derive(Debug)]
pub enum Write {
    /// Create the object of a Node.
    Create { node: String, node_uid: String },
    /// Remove the object of a Node that was replaced under the same name.
    Remove { node: String, uid: String },
    /// Ask the probe for a fresh check.
    Check { node: String, node_uid: String, row: Option<CommandRow>, ask: Ask },
    /// Write the controller's part.
    Node { node: String, part: Box<NodeRuntimeHealthStatus> },
    /// Write a policy's status.
    Policy { name: String, status: Box<RemediationPolicyStatus> },
    /// Write the status of the `RemediationConfig`, and report whether it begins or ends to suspend all remediation.
    Config { status: Box<RemediationConfigStatus>, is_news: bool },
}

impl Write {
    /// What it is about. After a write or a failure, the next write with the same key waits.
    pub fn key(&self) -> String {
        match self {
            Self::Create { node, .. } | Self::Remove { node, .. } | Self::Node { node, .. } => format!("node {node}"),
            Self::Check { node, .. } => format!("command {node}"),
            Self::Policy { name, .. } => format!("policy {name}"),
            Self::Config { .. } => CONFIG.to_owned(),
        }
    }

    /// Carries out the write, and stores the answer in the cache.
    pub async fn carry_out(&self, calls: &Calls, cache: &Cache, events: &Events) -> Result<(), CallError> {
        match self {
            Self::Create { node, node_uid } => create(calls, cache, node, node_uid).await,
            Self::Remove { node, uid } => remove(calls, node, uid).await,
            Self::Check { node, node_uid, row, ask } => {
                let command = Command { calls, cache, node, uid: node_uid };
                match command.ask_check(row.as_ref(), ask).await {
                    // The watch delivers the object.
                    Err(error) if error.is_conflict() => Ok(()),
                    answer => answer,
                }
            }
            Self::Node { node, part } => write_node(calls, cache, node, part).await,
            Self::Policy { name, status } => {
                write_status::<RemediationPolicy>(calls, cache, name, status).await.map(drop)
            }
            Self::Config { status, is_news } => {
                let about = write_status::<RemediationConfig>(calls, cache, CONFIG_NAME, status).await?;
                if let Some(ready) = status.conditions.first().filter(|_| *is_news) {
                    let is_suspended = ready.reason == ConditionReason::Suspended.as_str();
                    events.configured(&about, is_suspended, &ready.message);
                }
                Ok(())
            }
        }
    }
}

/// Writes the controller's part, and removes what others have written there.
async fn write_node(calls: &Calls, cache: &Cache, node: &str, part: &NodeRuntimeHealthStatus) -> Result<(), CallError> {
    let api: Api<Guarded<NodeRuntimeHealth>> = calls.act();
    let what = || format!("writing the status of NodeRuntimeHealth {node}");
    let patch = Patch::Apply(status_patch::<NodeRuntimeHealth>(part));
    let before = latest::<NodeRuntimeHealth>(cache, node);
    let written = bounded(what, api.patch_status(node, &apply(), &patch)).await?;
    let foreign = foreign(&written, part);
    fold(cache, before, written);
    let Some(foreign) = foreign else { return Ok(()) };
    tracing::warn!(node, fields = %foreign, "somebody else has written what is the controller's; it is removed");
    let what = || format!("removing what others wrote into the status of NodeRuntimeHealth {node}");
    let patch = Patch::Merge(json!({"status": foreign}));
    fold(cache, before, bounded(what, api.patch_status(node, &patch_params(), &patch)).await?);
    Ok(())
}

/// Writes the whole status of an object, which the controller owns. Returns the object's metadata.
async fn write_status<K>(
    calls: &Calls,
    cache: &Cache,
    name: &str,
    status: &impl Serialize,
) -> Result<ObjectMeta, CallError>
where
    K: Guardable + Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<Guarded<K>> = calls.act();
    let what = || format!("writing the status of {} {name}", K::KIND);
    let patch = Patch::Apply(status_patch::<K>(status));
    let before = latest::<K>(cache, name);
    let written = bounded(what, api.patch_status(name, &apply(), &patch)).await?;
    let about = written.meta().clone();
    fold(cache, before, written);
    Ok(about)
}

/// The controller's fields that still differ after an apply, as a merge patch that removes them. An apply removes only what the
/// controller has applied, not what others wrote there. The next round writes the controller's own values again.
fn foreign(written: &Guarded<NodeRuntimeHealth>, part: &NodeRuntimeHealthStatus) -> Option<serde_json::Value> {
    let status = written.0.as_ref().ok()?.status.as_ref()?;
    let fields = [
        ("flapping", status.flapping != part.flapping),
        ("clusterFaults", part.cluster_faults.is_empty() && !status.cluster_faults.is_empty()),
        ("kubeletVersion", status.kubelet_version != part.kubelet_version),
    ];
    let removes = |(field, is_foreign): (&str, bool)| is_foreign.then(|| (field.to_owned(), serde_json::Value::Null));
    let fields: serde_json::Map<_, _> = fields.into_iter().filter_map(removes).collect();
    (!fields.is_empty()).then(|| fields.into())
}

/// All fields that the controller owns in the status: the API server removes those that an apply leaves out.
fn status_patch<K: Resource<DynamicType = ()>>(status: &impl Serialize) -> serde_json::Value {
    json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "status": status})
}

fn apply() -> PatchParams {
    PatchParams::apply(CONTROLLER_MANAGER).force()
}

/// The latest known version of an object, read before the controller sends a call about it.
fn latest<K: Ingest>(cache: &Cache, key: &str) -> u64 {
    let state: &mut State = &mut cache.lock();
    K::versions(state).latest(key)
}

/// Stores the answer to a call; `before` is the object's latest version when the call was sent.
fn fold<K: Ingest>(cache: &Cache, before: u64, object: K) {
    let state: &mut State = &mut cache.lock();
    K::versions(state).note_answer(&K::key(object.meta()), before, version_of(object.meta()));
    object.fold(state, Instant::now());
}

/// Creates the object of a Node.
async fn create(calls: &Calls, cache: &Cache, node: &str, node_uid: &str) -> Result<(), CallError> {
    let (metadata, spec) = (metadata_of(node, node_uid), NodeRuntimeHealthSpec::default());
    let object = NodeRuntimeHealth { metadata, spec, status: None };
    let api = calls.act::<NodeRuntimeHealth>();
    let before = latest::<NodeRuntimeHealth>(cache, node);
    match bounded(|| format!("creating NodeRuntimeHealth {node}"), api.create(&post_params(), &object)).await {
        Ok(made) => {
            fold(cache, before, made);
            cache.wake();
            Ok(())
        }
        // The watch delivers the object.
        Err(error) if error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the report of an earlier node of the same name; the next round creates the right one.
async fn remove(calls: &Calls, node: &str, uid: &str) -> Result<(), CallError> {
    let params = delete_params(Some(uid.to_owned()));
    let api: Api<Guarded<NodeRuntimeHealth>> = calls.act();
    match bounded_opt(|| format!("deleting NodeRuntimeHealth {node}"), api.delete(node, &params)).await {
        Err(error) if error.is_conflict() => Ok(()),
        answer => answer.map(drop),
    }
}
