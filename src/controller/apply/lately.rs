//! What the API server has answered a moment ago: as live as a call made now whose answer takes that long, and one call less.
//!
//! Many nodes are acted on by one policy at the same time, and the last look before each act asks for that policy; and the write
//! that has reserved a step answers with the very remediation that the last look would ask for next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use tokio::time::{Instant, timeout};

use crate::api::{LEDGER_NAME, NodeRemediation, RemediationPolicy, SYSTEM_NAMESPACE};
use crate::controller::calls::{CallError, Calls, DEADLINE, bounded_opt};

/// How old an answer may be, counted from before its call was sent: no older than that of a call on a busy server.
const FRESH: Duration = Duration::from_millis(250);
/// Most policies that are remembered: more than any cluster should have.
const POLICIES: usize = 256;

/// One policy, asked for by one at a time.
type Slot = Arc<tokio::sync::Mutex<Option<(Instant, RemediationPolicy)>>>;

/// A policy as it stands.
#[derive(Debug)]
pub struct Read {
    /// The policy.
    pub policy: RemediationPolicy,
    /// Whether it was read for this very question. An answer to an earlier one is no news for the cache: what the watch has shown since,
    /// a deletion perhaps, is newer.
    pub is_new: bool,
}

/// Answers of the last moment.
#[derive(Debug, Default)]
pub struct Lately {
    policies: Mutex<BTreeMap<String, Slot>>,
    remediations: Mutex<BTreeMap<String, (Instant, NodeRemediation)>>,
    /// The version of the ledger, asked for by one at a time.
    ledger: tokio::sync::Mutex<Option<(Instant, Option<String>)>>,
}

impl Lately {
    /// The policy as it stands now. Who asks while another asks waits for that answer, and takes it where it is fresh enough;
    /// that there is none, or no answer, is nobody else's answer.
    ///
    /// # Errors
    /// No answer within the deadline of a call, the time in which another one was waited for included.
    pub async fn policy(&self, calls: &Calls, name: &str) -> Result<Option<Read>, CallError> {
        let what = || format!("reading RemediationPolicy {name}");
        timeout(DEADLINE, self.ask(calls, name, what))
            .await
            .unwrap_or_else(|_| Err(CallError::NoAnswer { what: what() }))
    }

    async fn ask(
        &self,
        calls: &Calls,
        name: &str,
        what: impl FnOnce() -> String + Send,
    ) -> Result<Option<Read>, CallError> {
        let (slot, mine) = (self.slot(name), Instant::now());
        let mut known = slot.lock().await;
        let now = Instant::now();
        // One that was asked for after us is as live as our own, however long its answer took.
        if let Some((_, policy)) = known.as_ref().filter(|(asked, _)| *asked >= mine || is_fresh(*asked, now)) {
            return Ok(Some(Read { policy: policy.clone(), is_new: false }));
        }
        *known = None;
        let api = calls.read::<RemediationPolicy>();
        let found = bounded_opt(what, api.get(name)).await?;
        *known = found.clone().map(|policy| (now, policy));
        Ok(found.map(|policy| Read { policy, is_new: true }))
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

    fn slot(&self, name: &str) -> Slot {
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        if policies.len() >= POLICIES && !policies.contains_key(name) {
            policies.clear();
        }
        Arc::clone(policies.entry(name.to_owned()).or_default())
    }
}

fn is_fresh(asked: Instant, now: Instant) -> bool {
    now.saturating_duration_since(asked) < FRESH
}
