//! Recent answers of the API server. Such an answer is as live as one of a call made now that takes that long. It saves one call.
//!
//! One policy may execute actions on many nodes at the same time, and the preflight of each action needs that policy. The write
//! that reserves a step also answers with the remediation that the preflight would read next.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use crate::calls::{CallError, Calls, DEADLINE};
use nrh_api::view::guard::Guarded;
use nrh_api::{CONFIG_NAME, LEDGER_NAME, NodeRemediation, RemediationConfig, RemediationPolicy, SYSTEM_NAMESPACE};

/// Maximum age of an answer, counted from before its call was sent. It is no older than the answer of a call to a busy server.
const FRESH: Duration = Duration::from_millis(250);
/// Maximum number of policies that are remembered. No cluster should have more.
const POLICIES: usize = 256;

/// An object that exists or not. One caller reads it at a time.
type Slot<K> = tokio::sync::Mutex<Option<(Instant, Option<K>)>>;

/// Recent answers.
#[derive(Debug, Default)]
pub struct RecentAnswers {
    config: Slot<Guarded<RemediationConfig>>,
    policies: Mutex<BTreeMap<String, Arc<Slot<RemediationPolicy>>>>,
    remediations: Mutex<BTreeMap<String, (Instant, NodeRemediation)>>,
    /// The version of the ledger. One caller reads it at a time.
    ledger: tokio::sync::Mutex<Option<(Instant, Option<String>)>>,
}

impl RecentAnswers {
    /// The current policy. A caller that comes while another call is under way waits for that answer, and uses it if it is recent
    /// enough. The deadline of a call includes that wait.
    pub async fn policy(&self, calls: &Calls, name: &str) -> Result<Option<RemediationPolicy>, CallError> {
        ask(&self.slot(name), calls, name, FRESH).await
    }

    /// The object that applies to all policies. Callers that wait for each other share an answer. No earlier answer is used.
    pub async fn config(&self, calls: &Calls) -> Result<Option<Guarded<RemediationConfig>>, CallError> {
        ask(&self.config, calls, CONFIG_NAME, Duration::ZERO).await
    }

    /// Stores the answer to a write of this process that was sent at `sent`.
    pub fn wrote(&self, sent: Instant, remediation: &NodeRemediation) {
        let mut remediations = self.remediations.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        remediations.retain(|_, (sent, _)| is_fresh(*sent, now));
        remediations.insert(remediation.name_any(), (sent, remediation.clone()));
    }

    /// The current remediation. The answer to a write is used once. A second preflight, after the first led to nothing, reads
    /// again.
    pub async fn remediation(&self, calls: &Calls, name: &str) -> Result<Option<NodeRemediation>, CallError> {
        let written = self.remediations.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        if let Some((_, remediation)) = written.filter(|(sent, _)| is_fresh(*sent, Instant::now())) {
            return Ok(Some(remediation));
        }
        calls.find(name).await
    }

    /// The current version of the ledger, if it exists. The read always starts after the caller asked. Callers that wait for each
    /// other share an answer. No earlier answer is used, however recent it looks by the clock of a machine that may have stood
    /// still. The deadline of a call includes the wait for another call.
    pub async fn ledger(&self, calls: &Calls) -> Result<Option<String>, CallError> {
        let what = || format!("reading {SYSTEM_NAMESPACE}/{LEDGER_NAME}");
        let mine = Instant::now();
        let ask = async {
            let mut known = self.ledger.lock().await;
            if let Some((_, version)) = known.as_ref().filter(|(asked, _)| *asked > mine) {
                return Ok(version.clone());
            }
            let asked = Instant::now();
            let map = calls.find_in::<ConfigMap>(SYSTEM_NAMESPACE, LEDGER_NAME).await?;
            let version = map.and_then(|map| map.resource_version());
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

/// An answer that is no older than `fresh`, or whose read started after this call.
async fn ask<K>(slot: &Slot<K>, calls: &Calls, name: &str, fresh: Duration) -> Result<Option<K>, CallError>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug,
{
    let what = || format!("reading {} {name}", K::kind(&()));
    let mine = Instant::now();
    let answer = async {
        let mut known = slot.lock().await;
        let now = Instant::now();
        // A read that started after this call is as live as our own, however long its answer took.
        if let Some((_, found)) =
            known.as_ref().filter(|(asked, _)| *asked >= mine || now.saturating_duration_since(*asked) < fresh)
        {
            return Ok(found.clone());
        }
        *known = None;
        let found = calls.find::<K>(name).await?;
        *known = Some((now, found.clone()));
        Ok(found)
    };
    timeout(DEADLINE, answer).await.unwrap_or_else(|_| Err(CallError::NoAnswer { what: what() }))
}

fn is_fresh(asked: Instant, now: Instant) -> bool {
    now.saturating_duration_since(asked) < FRESH
}
