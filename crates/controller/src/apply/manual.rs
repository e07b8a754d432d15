//! Manual requests. A person has written their objects. They become remediations at exactly the version that the decision was
//! based on.

use kube::ResourceExt;
use kube::api::Patch;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::remediation::{conditions, labels};
use super::{Applier, ApplyError};
use crate::cache::fold::Ingest;
use crate::calls::{bounded, patch_params};
use nrh_api::{FINALIZER, NodeRemediation};
use nrh_core::remediation::{Phase, Remediation};

impl Applier {
    /// Makes the object a remediation. First it writes the finalizer, which keeps the object from disappearing with its slot,
    /// then the status. A crash in between leaves a manual request that has not begun, with the controller's finalizer. A later
    /// pass begins it, or ends and frees it.
    pub(super) async fn begin_manual(&self, remediation: &Remediation) -> Result<(), ApplyError> {
        let Some((uid, version)) = remediation.identity.clone() else {
            return Err(ApplyError::NotNow(format!("manual request {} has no object", remediation.name)));
        };
        let Remediation { name, node, policy, message, .. } = remediation;
        let api = self.calls.read::<NodeRemediation>();
        let what = || format!("reading NodeRemediation {name}");
        let read = match bounded(what, api.get(name)).await {
            Ok(read) => read,
            Err(error) => return Err(self.refresh_after(error, name).await),
        };
        if read.uid().as_deref() != Some(&uid) || read.resource_version().as_deref() != Some(&version) {
            read.fold(&mut self.cache.lock(), Instant::now());
            return Err(ApplyError::NotNow(format!("manual request {name} has changed since the plan")));
        }
        // The finalizers of others stay. The version ensures that the list that is written is the one that was read.
        let mut finalizers: Vec<String> = read.finalizers().to_vec();
        if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
        }
        let metadata =
            json!({"uid": uid, "resourceVersion": version, "finalizers": finalizers, "labels": labels(remediation)});
        let kept = self.patch_manual(name, &json!({"metadata": metadata}), false).await?;
        tracing::info!(remediation = name, node, policy, message, "remediation of a manual request started");
        let identity = kept.uid().zip(kept.resource_version());
        self.write_remediation(&Remediation { identity, ..remediation.clone() }).await
    }

    /// Writes why the manual request has not begun.
    pub(super) async fn write_pending_reason(
        &self,
        name: &str,
        (uid, version): &(String, String),
        message: &str,
    ) -> Result<(), ApplyError> {
        let row = self.cache.lock().remediations.get(name).cloned().unwrap_or_default();
        let conditions = conditions(Phase::Pending, message, &row, self.clock.now());
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": {"phase": "Pending", "message": message,
            "observedGeneration": row.generation, "conditions": conditions}});
        self.patch_manual(name, &patch, true).await.map(drop)
    }

    /// Patches the object or its status, and folds the answer into the cache. An object whose state was not as expected is read
    /// again.
    async fn patch_manual(&self, name: &str, patch: &Value, is_status: bool) -> Result<NodeRemediation, ApplyError> {
        let api = self.calls.act::<NodeRemediation>();
        let (params, patch) = (patch_params(), Patch::Merge(patch));
        let what = || format!("writing NodeRemediation {name}, a manual request");
        let answer = if is_status {
            bounded(what, api.patch_status(name, &params, &patch)).await
        } else {
            bounded(what, api.patch(name, &params, &patch)).await
        };
        match answer {
            Ok(written) => {
                written.clone().fold(&mut self.cache.lock(), Instant::now());
                Ok(written)
            }
            Err(error) => Err(self.refresh_after(error, name).await),
        }
    }
}
