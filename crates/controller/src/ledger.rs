//! The ledger of in-flight slots: one ConfigMap, which the leader writes by compare-and-swap before any side effect.
//!
//! Two leaders, a crash or a stale cache cannot spend a slot twice. The second writer gets a conflict, and neither opens a
//! remediation nor executes an action in that pass. But a write of another leader may still be on its way when this process reads
//! the ledger. So no slot is spent from a ledger that was only read. The leader first writes it once, unchanged if need be. From
//! then on the API server refuses every write that is based on an older version.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{ObjectMeta, Patch, PostParams};
use serde_json::json;

use super::calls::{CallError, Calls, bounded, bounded_opt, our_label, patch_params};
use nrh_api::{LEDGER_NAME, SYSTEM_NAMESPACE};
use nrh_core::snapshot::Ledger;

/// Key of the slots in the ConfigMap.
const KEY: &str = "ledger.json";
/// Key of the writer and the version that it replaced. So even a write that changes nothing else creates a new version.
const WRITTEN: &str = "written";
/// Maximum size. The largest ceiling (1,000 slots of two names each) needs less, so larger data is not the controller's.
const MAX_BYTES: usize = 1 << 20;

/// The slots from text; `None` if the text is not what the controller writes.
pub fn read(text: &str) -> Option<Ledger> {
    (text.len() <= MAX_BYTES).then(|| serde_json::from_str(text).ok()).flatten()
}

/// The ledger as last read or written, with the version that the next write expects.
#[derive(Debug, Default)]
pub struct LedgerStore {
    /// Version of the ConfigMap; `None` = there is none.
    version: Option<String>,
    /// Whether it was read since it was last uncertain.
    known: bool,
    /// Whether it was written since it was last uncertain. Then it is known, too.
    ours: bool,
}

impl LedgerStore {
    /// Whether it must be read before the next decision.
    pub const fn is_uncertain(&self) -> bool {
        !self.known
    }

    /// Whether it was written since it was last read. Then no earlier write can change it any more.
    pub const fn is_ours(&self) -> bool {
        self.ours
    }

    /// The version that was written since the last read. Slots are spent from it.
    pub fn ours(&self) -> Option<&str> {
        self.version.as_deref().filter(|_| self.is_ours())
    }

    /// Marks it as uncertain, because another version was found. It must be read before the next decision.
    pub const fn mark_uncertain(&mut self) {
        (self.known, self.ours) = (false, false);
    }

    /// Whether it was read and does not exist, as at the very first start in a cluster.
    pub const fn is_missing(&self) -> bool {
        self.known && self.version.is_none()
    }

    /// Reads the ledger. `None` = missing or unreadable, so nothing new may start until the plan has rebuilt it.
    pub async fn load(&mut self, calls: &Calls) -> Result<Option<Ledger>, CallError> {
        self.mark_uncertain();
        let api = calls.act_in::<ConfigMap>(SYSTEM_NAMESPACE);
        let map = bounded_opt(|| format!("reading {SYSTEM_NAMESPACE}/{LEDGER_NAME}"), api.get(LEDGER_NAME)).await?;
        self.known = true;
        self.version = map.as_ref().and_then(ResourceExt::resource_version);
        let text = map.as_ref().and_then(|map| map.data.as_ref()?.get(KEY).cloned());
        let ledger = text.as_deref().and_then(read);
        if map.is_some() && ledger.is_none() {
            tracing::warn!(
                "ConfigMap {SYSTEM_NAMESPACE}/{LEDGER_NAME}: expected a ledger as JSON under {KEY}, found something else; it is rebuilt from the open remediations"
            );
        }
        Ok(ledger)
    }

    /// Stores it over the version last read, in the given term. After any failure it is uncertain, and must be read again.
    pub async fn store(&mut self, calls: &Calls, ledger: &Ledger, term: u64) -> Result<(), StoreError> {
        let text = serde_json::to_string(ledger)?;
        let api = calls.act_in::<ConfigMap>(SYSTEM_NAMESPACE);
        self.mark_uncertain();
        let over = self.version.as_deref().unwrap_or("none");
        let data = BTreeMap::from([(KEY, text), (WRITTEN, format!("in term {term}, over version {over}"))]);
        let what = || format!("storing {SYSTEM_NAMESPACE}/{LEDGER_NAME}");
        let stored = match &self.version {
            None => bounded(what, api.create(&PostParams::default(), &new_map(&data))).await,
            Some(version) => {
                let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
                bounded(what, api.patch(LEDGER_NAME, &patch_params(), &Patch::Merge(&patch))).await
            }
        }?;
        self.version = stored.resource_version();
        (self.known, self.ours) = (true, true);
        Ok(())
    }
}

/// Why the ledger was not stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It cannot be written as JSON.
    #[error("the ledger cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

impl StoreError {
    /// How long the API server asks the controller to wait before the next request.
    pub fn retry_after(&self) -> Option<Duration> {
        if let Self::Call(error) = self { error.retry_after() } else { None }
    }

    /// The error in one line.
    pub fn line(&self) -> String {
        match self {
            Self::Call(error) => error.line(),
            Self::Json(_) => self.to_string(),
        }
    }
}

fn new_map(data: &BTreeMap<&str, String>) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(LEDGER_NAME.to_owned()),
            namespace: Some(SYSTEM_NAMESPACE.to_owned()),
            labels: Some(BTreeMap::from([our_label()])),
            ..ObjectMeta::default()
        },
        data: Some(data.iter().map(|(key, text)| ((*key).to_owned(), text.clone())).collect()),
        ..ConfigMap::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrh_core::snapshot::Slot;

    #[test]
    fn what_is_written_is_read_back() {
        let slot = Slot {
            node: "w1".into(),
            policy: "p".into(),
            taken_at: "2025-01-01T00:00:00Z".parse().unwrap(),
            kinds: Some([nrh_core::fault::FaultType::KubeletDown].into()),
        };
        let ledger = Ledger { slots: BTreeMap::from([("w1-abc".to_owned(), slot)]) };
        assert_eq!(read(&serde_json::to_string(&ledger).unwrap()), Some(ledger));
    }

    #[test]
    fn anything_else_is_unreadable_not_empty() {
        for text in [
            "",
            "null",
            "[]",
            "{}",
            "{\"slots\":[]}",
            "{\"slots\":{\"a\":{}}}",
            "{\"slots\":",
            "{\"slots\":{\"a\":{\"node\":1}}}",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read(&" ".repeat(MAX_BYTES + 1)), None);
        assert_eq!(read("{\"slots\":{}}"), Some(Ledger::default()));
    }
}
