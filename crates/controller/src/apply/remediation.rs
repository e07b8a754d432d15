//! Writes remediations as objects. They are created once and then updated by compare-and-swap on their version, so two leaders
//! can never both write one.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{ObjectMeta, Patch};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Applied, Applier, ApplyError, CHAINS, FIRST_WAIT, Failures};
use crate::cache::RemediationRow;
use crate::cache::fold::Ingest;
use crate::calls::{CallError, bounded, delete_params, our_label, patch_params, post_params};
use nrh_api::condition::condition;
use nrh_api::convert::{remediation_spec, remediation_status};
use nrh_api::view::guard::Guarded;
use nrh_api::{
    ConditionReason, ConditionType, FINALIZER, NODE_LABEL, NodeRemediation, NodeRemediationStatus, POLICY_LABEL,
};
use nrh_core::moment::since;
use nrh_core::remediation::{Phase, Remediation, StepState};
use nrh_core::snapshot::{ReportView, Snapshot, TriState};
use nrh_core::text::{is_subdomain, short_name};

/// How long a deleted remediation is kept until its node's object has recorded who stopped it.
const NOTED_WITHIN: Duration = Duration::from_secs(30);

/// The labels by which a remediation is found.
pub(super) fn labels(remediation: &Remediation) -> BTreeMap<String, String> {
    BTreeMap::from([
        our_label(),
        (NODE_LABEL.to_owned(), short_name(&remediation.node, 63)),
        (POLICY_LABEL.to_owned(), short_name(&remediation.policy, 63)),
    ])
}

/// The object of a new remediation. A call of its own writes the status.
fn object(remediation: &Remediation) -> NodeRemediation {
    let metadata = ObjectMeta {
        name: Some(remediation.name.clone()),
        labels: Some(labels(remediation)),
        // While it holds a slot or has a pending cleanup, the object must not disappear with them.
        finalizers: remediation.is_open().then(|| vec![FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    NodeRemediation { metadata, spec: remediation_spec(remediation), status: None }
}

/// The status of a remediation, with its conditions.
fn status(remediation: &Remediation, row: &RemediationRow, now: Timestamp) -> NodeRemediationStatus {
    NodeRemediationStatus {
        observed_generation: Some(row.generation),
        conditions: conditions(remediation.phase, &remediation.message, row, now),
        ..remediation_status(remediation)
    }
}

/// The conditions of the medik8s contract and those of kstatus.
pub(super) fn conditions(phase: Phase, message: &str, row: &RemediationRow, now: Timestamp) -> Vec<Condition> {
    let (processing, succeeded, stalled) = match phase {
        Phase::Pending | Phase::AwaitingApproval | Phase::Running | Phase::Verifying => {
            (TriState::True, TriState::Unknown, TriState::False)
        }
        Phase::Succeeded => (TriState::False, TriState::True, TriState::False),
        Phase::Simulated => (TriState::False, TriState::False, TriState::False),
        Phase::Quarantined | Phase::Failed | Phase::Cancelled => (TriState::False, TriState::False, TriState::True),
    };
    let ready =
        if processing == TriState::False && stalled == TriState::False { TriState::True } else { TriState::False };
    let reason = if phase.is_final() { ConditionReason::Finished } else { ConditionReason::InProgress };
    let of = |(kind, value)| Condition {
        observed_generation: Some(row.generation),
        ..condition(&row.conditions, kind, value, reason, message, now)
    };
    let all = [
        (ConditionType::Processing, processing),
        (ConditionType::Succeeded, succeeded),
        (ConditionType::Ready, ready),
        (ConditionType::Reconciling, processing),
        (ConditionType::Stalled, stalled),
    ];
    all.map(of).into()
}

/// Completes a status for a merge patch, which keeps fields that it does not name. It sets optional fields that the status lacks
/// to null.
fn whole(mut status: Value) -> Value {
    if let Some(fields) = status.as_object_mut() {
        for optional in ["observedGeneration", "startedAt", "finishedAt", "faults", "attempts", "cleanup"] {
            fields.entry(optional).or_insert(Value::Null);
        }
    }
    status
}

impl Applier {
    /// Creates the remediation's object, then its status.
    pub(super) async fn open_remediation(&self, remediation: &Remediation) -> Result<(), ApplyError> {
        let api = self.calls.act::<NodeRemediation>();
        let what = || format!("creating NodeRemediation {}", remediation.name);
        let made = match bounded(what, api.create(&post_params(), &object(remediation))).await {
            Ok(made) => made,
            Err(error) => {
                if error.is_conflict() {
                    self.refresh_remediation(&remediation.name).await;
                }
                return Err(error.into());
            }
        };
        let identity = made.uid().zip(made.resource_version());
        made.fold(&mut self.cache.lock(), Instant::now());
        tracing::info!(remediation = remediation.name, node = remediation.node, policy = remediation.policy, mode = ?remediation.mode, "remediation opened");
        self.write_remediation(&Remediation { identity, ..remediation.clone() }).await
    }

    /// Writes a remediation's status, at exactly the version that it was made from.
    pub(super) async fn write_remediation(&self, remediation: &Remediation) -> Result<(), ApplyError> {
        let Some((uid, version)) = remediation.identity.clone() else {
            return Err(ApplyError::NotNow(format!("remediation {} has no object yet", remediation.name)));
        };
        let (row, before) = {
            let state = self.cache.lock();
            let before = state.snapshot.remediations.get(&remediation.name).cloned();
            (state.remediations.get(&remediation.name).cloned().unwrap_or_default(), before)
        };
        let status = whole(serde_json::to_value(status(remediation, &row, self.clock.now()))?);
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": status});
        let api = self.calls.act::<NodeRemediation>();
        let what = || format!("writing the status of NodeRemediation {}", remediation.name);
        let sent = Instant::now();
        match bounded(what, api.patch_status(&remediation.name, &patch_params(), &Patch::Merge(&patch))).await {
            Ok(written) => {
                // An action follows immediately, with its preflight before it.
                if remediation.current_step().is_some_and(|step| step.state == StepState::Scheduled) {
                    self.lately.wrote(sent, &written);
                }
                written.fold(&mut self.cache.lock(), Instant::now());
                self.events.changed(before.as_ref(), remediation);
                if remediation.phase.is_final() {
                    let Remediation { name, node, phase, message, .. } = remediation;
                    tracing::info!(remediation = name, node, phase = phase.as_str(), message, "remediation ended");
                }
                Ok(())
            }
            Err(error) => Err(self.refresh_after(error, &remediation.name).await),
        }
    }

    /// Passes the error on. If it shows that the remediation is not as expected, reads it again first.
    pub(super) async fn refresh_after(&self, error: CallError, name: &str) -> ApplyError {
        if error.is_conflict() || error.is_not_found() {
            self.refresh_remediation(name).await;
        }
        error.into()
    }

    /// Reads a remediation whose state was not as expected, so that the next pass decides on its current state.
    pub(super) async fn refresh_remediation(&self, name: &str) {
        self.is_gone(name).await;
    }

    /// Whether the remediation does not exist. If it exists, it is folded into the cache.
    pub(super) async fn is_gone(&self, name: &str) -> bool {
        // Somebody may have written into the owner annotation a text that is not a name. A request with it may not be about one
        // object.
        if !is_subdomain(name) {
            return true;
        }
        // A remediation that this version cannot read exists, too.
        match self.calls.find::<Guarded<NodeRemediation>>(name).await {
            Ok(Some(object)) => {
                object.fold(&mut self.cache.lock(), Instant::now());
                false
            }
            Ok(None) => {
                NodeRemediation::forget(name, &mut self.cache.lock());
                true
            }
            Err(error) => {
                tracing::warn!(error = error.line(), "a remediation could not be read again");
                false
            }
        }
    }

    /// Removes a finished remediation.
    pub(super) async fn delete_remediation(&self, name: &str) -> Result<(), ApplyError> {
        let known = self.known(name).filter(|known| known.phase.is_final());
        // Another object may have its name meanwhile.
        let Some((uid, _)) = known.and_then(|known| known.identity) else { return Ok(()) };
        let params = delete_params(Some(uid));
        let api = self.calls.act::<NodeRemediation>();
        match bounded(|| format!("deleting NodeRemediation {name}"), api.delete(name, &params)).await {
            Err(error) if error.is_conflict() => self.refresh_remediation(name).await,
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => drop(NodeRemediation::forget(name, &mut self.cache.lock())),
        }
        Ok(())
    }

    /// Removes the controller's finalizer from remediations that hold nothing any more. A crash may have left it. Those that have
    /// not failed come first, then those that have waited for longest.
    pub async fn free_finished(&self, failures: &mut Failures) -> Applied {
        let (now, mut applied, mut due) = (Instant::now(), Applied::default(), Vec::new());
        for (name, version, shared) in self.finished() {
            match failures.waits(&name, now) {
                Some(wait) => applied = applied.and(Applied { done: 0, retry_in: Some(wait) }),
                None => due.push((name, version, shared)),
            }
        }
        due.sort_by_key(|(name, ..)| failures.until(name));
        if due.len() > CHAINS {
            applied.retry_in = Some(FIRST_WAIT);
        }
        let runs = due.into_iter().take(CHAINS).map(|(name, version, shared)| async move {
            let result = self.free(&name, version, shared).await;
            (name, result)
        });
        let results: Vec<_> = futures::stream::iter(runs).buffer_unordered(CHAINS).collect().await;
        for (name, result) in results {
            applied = applied.and(failures.ended(&name, usize::from(result.is_ok()), result.as_ref().err()));
        }
        applied
    }

    /// Remediations that hold nothing any more and have the controller's finalizer: name, version, and whether others have
    /// finalizers there, too.
    fn finished(&self) -> Vec<(String, String, bool)> {
        let (state, now) = (self.cache.lock(), self.clock.now());
        let rows = state.remediations.iter().filter(|(_, row)| row.finalizer);
        rows.filter_map(|(name, row)| Some((row, state.snapshot.remediations.get(name)?)))
            .filter(|(_, remediation)| !remediation.is_live() && !is_awaited(&state.snapshot, remediation, now))
            .filter_map(|(row, remediation)| {
                Some((remediation.name.clone(), remediation.identity.clone()?.1, row.others_finalizers))
            })
            .collect()
    }

    /// Removes the controller's finalizer, if the remediation still exists.
    async fn free(&self, name: &str, version: String, shared: bool) -> Result<(), ApplyError> {
        match self.remove_finalizer(name, version, shared).await {
            Err(error) if error.is_not_found() => drop(NodeRemediation::forget(name, &mut self.cache.lock())),
            Err(error) => return Err(self.refresh_after(error, name).await),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Removes the controller's finalizer. The version ensures that the list that is written is the one that was read.
    async fn remove_finalizer(&self, name: &str, version: String, shared: bool) -> Result<(), CallError> {
        let api = self.calls.act::<NodeRemediation>();
        let (version, rest) = if shared {
            // The cache does not keep the finalizers of others, and they must stay.
            let read = bounded(|| format!("reading NodeRemediation {name}"), api.get(name)).await?;
            let rest = read.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).cloned().collect();
            (read.resource_version().unwrap_or(version), rest)
        } else {
            (version, Vec::<String>::new())
        };
        let patch = json!({"metadata": {"resourceVersion": version, "finalizers": rest}});
        let what = || format!("freeing NodeRemediation {name}");
        let freed = bounded(what, api.patch(name, &patch_params(), &Patch::Merge(&patch))).await?;
        freed.fold(&mut self.cache.lock(), Instant::now());
        Ok(())
    }
}

/// Whether the remediation stays until the node's object has recorded that a person stopped it. After that it may be deleted, and
/// nothing begins again. If the object cannot be written, the remediation waits only briefly.
fn is_awaited(snapshot: &Snapshot, remediation: &Remediation, now: Timestamp) -> bool {
    let Some(stopped) =
        remediation.stopped().filter(|stopped| remediation.deleting && since(now, stopped.at) < NOTED_WITHIN)
    else {
        return false;
    };
    let same_node = |report: &&ReportView| report.node_uid.as_deref() == Some(remediation.node_uid.as_str());
    let report = snapshot.reports.get(&remediation.node).filter(same_node);
    report.is_some_and(|report| report.stopped.as_ref().is_none_or(|noted| noted.at < stopped.at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_status_that_can_be_absent_is_named_when_it_is() {
        let bare = whole(serde_json::to_value(NodeRemediationStatus::default()).unwrap());
        let schema = nrh_api::crds::all().into_iter().find(|(file, _)| file.starts_with("noderemediations")).unwrap().1;
        let schema = serde_json::to_value(&schema.spec.versions.first().unwrap().schema).unwrap();
        let fields = schema.pointer("/openAPIV3Schema/properties/status/properties").unwrap().as_object().unwrap();
        for field in fields.keys().filter(|field| *field != "conditions") {
            assert!(bare.get(field).is_some(), "{field} would survive from an older status");
        }
    }
}
