//! What the API server has answered a moment ago: as live as a call made now whose answer takes that long, and one call less.
//!
//! Many nodes are acted on by one policy at the same time, and the last look before each act asks for that policy; and the write
//! that has reserved a step answers with the very remediation that the last look would ask for next.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use crate::api::{CONFIG_NAME, LEDGER_NAME, NodeRemediation, RemediationConfig, RemediationPolicy, SYSTEM_NAMESPACE};
use crate::controller::cache::guard::Guarded;
use crate::controller::calls::{CallError, Calls, DEADLINE, bounded_opt};

/// How old an answer may be, counted from before its call was sent: no older than that of a call on a busy server.
const FRESH: Duration = Duration::from_millis(250);
/// Most policies that are remembered: more than any cluster should have.
const POLICIES: usize = 256;

/// An object that is there or not, asked for by one at a time.
type Slot<K> = tokio::sync::Mutex<Option<(Instant, Option<K>)>>;

/// An object as it stands.
#[derive(Debug)]
pub struct Read<K> {
    /// The object.
    pub object: K,
    /// Whether it was read for this very question. An answer to an earlier one is no news for the cache: what the watch has shown since,
    /// a deletion perhaps, is newer.
    pub is_new: bool,
}

/// Answers of the last moment.
#[derive(Debug, Default)]
pub struct Lately {
    config: Slot<Guarded<RemediationConfig>>,
    policies: Mutex<BTreeMap<String, Arc<Slot<RemediationPolicy>>>>,
    remediations: Mutex<BTreeMap<String, (Instant, NodeRemediation)>>,
    /// The version of the ledger, asked for by one at a time.
    ledger: tokio::sync::Mutex<Option<(Instant, Option<String>)>>,
}

impl Lately {
    /// The policy as it stands now. Who asks while another asks waits for that answer, and takes it where it is fresh enough.
    ///
    /// # Errors
    /// No answer within the deadline of a call, the time in which another one was waited for included.
    pub async fn policy(&self, calls: &Calls, name: &str) -> Result<Option<Read<RemediationPolicy>>, CallError> {
        ask(&self.slot(name), calls, name, FRESH).await
    }

    /// The object that applies to all policies. Those who wait for one another share an answer, and no earlier one serves.
    ///
    /// # Errors
    /// The same.
    pub async fn config(&self, calls: &Calls) -> Result<Option<Read<Guarded<RemediationConfig>>>, CallError> {
        ask(&self.config, calls, CONFIG_NAME, Duration::ZERO).await
    }

    /// What a write of ours that was sent then was answered with.
    pub fn wrote(&self, sent: Instant, remediation: &NodeRemediation) {
        let mut remediations = self.remediations.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        remediations.retain(|_, (sent, _)| is_fresh(*sent, now));
        remediations.insert(remediation.name_any(), (sent, remediation.clone()));
    }

    /// The remediation as it stands now. A write's answer serves once: who looks again, since the first look led to nothing, asks anew.
    pub async fn remediation(&self, calls: &Calls, name: &str) -> Result<Option<NodeRemediation>, CallError> {
        let written = self.remediations.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        if let Some((_, remediation)) = written.filter(|(sent, _)| is_fresh(*sent, Instant::now())) {
            return Ok(Some(remediation));
        }
        let api = calls.read::<NodeRemediation>();
        bounded_opt(|| format!("reading NodeRemediation {name}"), api.get(name)).await
    }

    /// The version of the ledger that stands, if there is one. It was asked for after whoever wants to know it did: those who wait for
    /// one another share an answer, and no earlier one serves, however young it looks by the clock of a machine that may have stood
    /// still.
    ///
    /// # Errors
    /// No answer within the deadline of a call, the time in which another one was waited for included.
    pub async fn ledger(&self, calls: &Calls) -> Result<Option<String>, CallError> {
        let what = || format!("reading {SYSTEM_NAMESPACE}/{LEDGER_NAME}");
        let mine = Instant::now();
        let ask = async {
            let mut known = self.ledger.lock().await;
            if let Some((_, version)) = known.as_ref().filter(|(asked, _)| *asked > mine) {
                return Ok(version.clone());
            }
            let asked = Instant::now();
            let api = calls.read_in::<ConfigMap>(SYSTEM_NAMESPACE);
            let version = bounded_opt(what, api.get(LEDGER_NAME)).await?.and_then(|map| map.resource_version());
            *known = Some((asked, version.clone()));
            Ok(version)
        };
        timeout(DEADLINE, ask).await.unwrap_or_else(|_| Err(CallError::NoAnswer { what: what() }))
    }

    fn slot(&self, name: &str) -> Arc<Slot<RemediationPolicy>> {
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        if policies.len() >= POLICIES && !policies.contains_key(name) {
            policies.clear();
        }
        Arc::clone(policies.entry(name.to_owned()).or_default())
    }
}

/// An answer that is no older than `fresh`, or was asked for after this call.
async fn ask<K>(slot: &Slot<K>, calls: &Calls, name: &str, fresh: Duration) -> Result<Option<Read<K>>, CallError>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug,
{
    let what = || format!("reading {} {name}", K::kind(&()));
    let mine = Instant::now();
    let answer = async {
        let mut known = slot.lock().await;
        let now = Instant::now();
        // One that was asked for after us is as live as our own, however long its answer took.
        if let Some((_, found)) =
            known.as_ref().filter(|(asked, _)| *asked >= mine || now.saturating_duration_since(*asked) < fresh)
        {
            return Ok(found.clone().map(|object| Read { object, is_new: false }));
        }
        *known = None;
        let found = bounded_opt(what, calls.read::<K>().get(name)).await?;
        *known = Some((now, found.clone()));
        Ok(found.map(|object| Read { object, is_new: true }))
    };
    timeout(DEADLINE, answer).await.unwrap_or_else(|_| Err(CallError::NoAnswer { what: what() }))
}

fn is_fresh(asked: Instant, now: Instant) -> bool {
    now.saturating_duration_since(asked) < FRESH
}
