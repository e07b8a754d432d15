//! Remediators that are played: they answer in their objects, as Self Node Remediation does by conditions and Metal3 by a phase.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::remediators::{METAL, SELF_NODE};

/// What a remediator keeps its object by until it is through with it.
const FINALIZER: &str = "remediation.example/at-work";
pub const KINDS: [(&str, &str); 2] = [(SELF_NODE, "SelfNodeRemediation"), (METAL, "Metal3Remediation")];

/// What a remediator does with the node of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Says that it is done; the probe sees later that the node is well.
    Repairs,
    Fails,
    Works,
}

#[derive(Clone)]
pub struct Remediators {
    client: Client,
    does: Arc<Mutex<BTreeMap<String, Does>>>,
    /// Objects as they were first seen, by node.
    made: Arc<Mutex<BTreeMap<String, DynamicObject>>>,
    /// Objects as they were when their deletion had been asked for, by node.
    ended: Arc<Mutex<BTreeMap<String, DynamicObject>>>,
    stop: Arc<AtomicBool>,
}

impl Remediators {
    /// They play until they are told to stop.
    pub fn new(client: Client) -> Self {
        let (does, made, ended, stop) = Default::default();
        let all = Self { client, does, made, ended, stop };
        let playing = all.clone();
        tokio::spawn(async move {
            while !playing.stop.load(Ordering::SeqCst) {
                // What does not succeed now is tried again.
                let _ = playing.round().await;
                sleep(Duration::from_millis(200)).await;
            }
        });
        all
    }

    /// What is done with that node from now on.
    pub fn will(&self, node: &str, does: Does) {
        self.does.lock().unwrap().insert(node.to_owned(), does);
    }

    /// The object of that node as it was first seen.
    pub fn made(&self, node: &str) -> Option<DynamicObject> {
        self.made.lock().unwrap().get(node).cloned()
    }

    /// The object of that node as it was when its deletion had been asked for.
    pub fn ended(&self, node: &str) -> Option<DynamicObject> {
        self.ended.lock().unwrap().get(node).cloned()
    }

    /// They play no more.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    async fn round(&self) -> Result<()> {
        for (api_version, kind) in KINDS {
            let api = objects(&self.client, api_version, kind);
            for object in api.list(&ListParams::default()).await? {
                self.one(&api, kind, object).await?;
            }
        }
        Ok(())
    }

    async fn one(&self, api: &Api<DynamicObject>, kind: &str, object: DynamicObject) -> Result<()> {
        let node = object.name_any();
        let merge = async |patch: Value| api.patch(&node, &PatchParams::default(), &Patch::Merge(patch)).await;
        if object.metadata.deletion_timestamp.is_some() {
            self.ended.lock().unwrap().insert(node.clone(), object);
            merge(json!({"metadata": {"finalizers": null}})).await?;
            return Ok(());
        }
        if !object.finalizers().iter().any(|one| one == FINALIZER) {
            self.made.lock().unwrap().insert(node.clone(), object);
            merge(json!({"metadata": {"finalizers": [FINALIZER]}})).await?;
            return Ok(());
        }
        let does = self.does.lock().unwrap().get(&node).copied().unwrap_or(Does::Works);
        let status = answer(kind, does);
        if object.data.get("status") != Some(&status) {
            let patch = json!({"status": status});
            api.patch_status(&node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Ok(())
    }
}

fn answer(kind: &str, does: Does) -> Value {
    if kind != "SelfNodeRemediation" {
        return json!({"phase": if does == Does::Repairs { "Waiting" } else { "Running" }});
    }
    let (processing, succeeded) = match does {
        Does::Repairs => ("False", "True"),
        Does::Fails => ("False", "False"),
        Does::Works => ("True", "Unknown"),
    };
    let of = |(kind, status): (&str, &str)| {
        json!({"type": kind, "status": status, "reason": "R", "message": "said",
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let conditions = [("Processing", processing), ("Succeeded", succeeded)].map(of);
    json!({"conditions": conditions})
}

pub fn objects(client: &Client, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or_default();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), "medik8s", &resource)
}
