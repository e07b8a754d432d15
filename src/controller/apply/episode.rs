//! Episodes into objects: opened by create, gone on with by compare-and-swap on their version, so that two
//! leaders can never both write one.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::{DeleteParams, ObjectMeta, Patch, Preconditions};
use serde_json::{Value, json};

use super::{Applier, ApplyError};
use crate::api::condition::condition;
use crate::api::convert::{remediation_spec, remediation_status};
use crate::api::{
    ConditionReason, ConditionType, FINALIZER, NODE_LABEL, NodeRemediation, NodeRemediationStatus, POLICY_LABEL,
};
use crate::controller::cache::fold::Folds;
use crate::controller::cache::guard::Guarded;
use crate::controller::calls::{CallError, bounded, bounded_opt, patch_params, post_params};
use crate::core::episode::{Episode, Phase, StepState, since};
use crate::core::snapshot::{ReportView, Snapshot, Tri};
use crate::core::text::{is_subdomain, short_name};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tokio::time::Instant;

/// For how long a deleted episode is kept until its node's object has noted who stopped it.
const NOTED_WITHIN: Duration = Duration::from_secs(30);

/// The labels by which an episode is found.
pub(super) fn labels(episode: &Episode) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("app.kubernetes.io/part-of".to_owned(), "nrh".to_owned()),
        (NODE_LABEL.to_owned(), short_name(&episode.node, 63)),
        (POLICY_LABEL.to_owned(), short_name(&episode.policy, 63)),
    ])
}

/// The object of an episode that is to be opened. The status comes with a call of its own.
fn object(episode: &Episode) -> NodeRemediation {
    let metadata = ObjectMeta {
        name: Some(episode.name.clone()),
        labels: Some(labels(episode)),
        // As long as it holds a slot or owes an undo, it must not vanish with them.
        finalizers: episode.is_open().then(|| vec![FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    NodeRemediation { metadata, spec: remediation_spec(episode), status: None }
}

/// The status of an episode, with the conditions that others of its kind have.
fn status(episode: &Episode, before: &[Condition], now: Timestamp) -> NodeRemediationStatus {
    let (processing, succeeded) = match episode.phase {
        Phase::Pending | Phase::AwaitingApproval | Phase::Running | Phase::Verifying => (Tri::True, Tri::Unknown),
        Phase::Succeeded => (Tri::False, Tri::True),
        Phase::Contained | Phase::Failed | Phase::Cancelled | Phase::Simulated => (Tri::False, Tri::False),
    };
    let reason = if episode.phase.is_final() { ConditionReason::Finished } else { ConditionReason::UnderWay };
    let of = |kind, value| condition(before, kind, value, reason, &episode.message, now);
    NodeRemediationStatus {
        conditions: vec![of(ConditionType::Processing, processing), of(ConditionType::Succeeded, succeeded)],
        ..remediation_status(episode)
    }
}

/// A merge patch leaves what it does not name: what this status does not have is named as absent.
fn whole(mut status: Value) -> Value {
    if let Some(fields) = status.as_object_mut() {
        for optional in ["openedAt", "finishedAt", "faults", "steps"] {
            fields.entry(optional).or_insert(Value::Null);
        }
        if let Some(undo) = fields.get_mut("undo").and_then(Value::as_object_mut) {
            for optional in ["uncordonedAt", "tainted", "untaintedAt", "handedOff"] {
                undo.entry(optional).or_insert(Value::Null);
            }
        }
    }
    status
}

impl Applier {
    /// Creates the episode's object, then its status.
    pub(super) async fn open_episode(&self, episode: &Episode) -> Result<(), ApplyError> {
        let api = self.calls.act::<NodeRemediation>();
        let what = || format!("creating NodeRemediation {}", episode.name);
        let made = match bounded(what, api.create(&post_params(), &object(episode))).await {
            Ok(made) => made,
            Err(error) => {
                if error.is_conflict() {
                    self.refresh_episode(&episode.name).await;
                }
                return Err(error.into());
            }
        };
        let identity = made.uid().zip(made.resource_version());
        made.fold(&mut self.cache.lock(), Instant::now());
        tracing::info!(episode = episode.name, node = episode.node, policy = episode.policy, mode = ?episode.mode, "episode opened");
        self.write_episode(&Episode { identity, ..episode.clone() }).await
    }

    /// Writes an episode's status, at exactly the version that it was made from.
    pub(super) async fn write_episode(&self, episode: &Episode) -> Result<(), ApplyError> {
        let Some((uid, version)) = episode.identity.clone() else {
            return Err(ApplyError::NotNow(format!("episode {} has no object yet", episode.name)));
        };
        let (before, has_asked) = {
            let state = self.cache.lock();
            let known = state.snapshot.episodes.get(&episode.name);
            let has_asked = known.is_some_and(|known| known.awaiting() == episode.awaiting());
            (state.episodes.get(&episode.name).map(|row| row.conditions.clone()).unwrap_or_default(), has_asked)
        };
        let status = whole(serde_json::to_value(status(episode, &before, self.clock.now()))?);
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": status});
        let api = self.calls.act::<NodeRemediation>();
        let what = || format!("writing the status of NodeRemediation {}", episode.name);
        let sent = Instant::now();
        match bounded(what, api.patch_status(&episode.name, &patch_params(), &Patch::Merge(&patch))).await {
            Ok(written) => {
                // An act follows at once, with its last look before it.
                if episode.current_step().is_some_and(|step| step.state == StepState::Reserved) {
                    self.lately.wrote(sent, &written);
                }
                written.fold(&mut self.cache.lock(), Instant::now());
                if let Some(operation) = episode.awaiting().filter(|_| !has_asked) {
                    let how = episode.approve_command(operation);
                    let note = format!("episode {}: {}: {how}", episode.name, episode.message);
                    self.events.awaits(&episode.node, &episode.node_uid, note);
                }
                if episode.phase.is_final() {
                    tracing::info!(
                        episode = episode.name,
                        node = episode.node,
                        phase = episode.phase.as_str(),
                        message = episode.message,
                        "episode ended"
                    );
                }
                Ok(())
            }
            Err(error) => {
                if error.is_conflict() || error.is_not_found() {
                    self.refresh_episode(&episode.name).await;
                }
                Err(error.into())
            }
        }
    }

    /// Reads an episode that is not as we thought, so that the next pass decides on what it is.
    pub(super) async fn refresh_episode(&self, name: &str) {
        self.is_gone(name).await;
    }

    /// Whether there is no such episode. One that is there is folded in.
    pub(super) async fn is_gone(&self, name: &str) -> bool {
        // What somebody has written into our mark need not be a name, and asking for it need not be a question about one object.
        if !is_subdomain(name) {
            return true;
        }
        // One that this version cannot read is there, too.
        let api = self.calls.read::<Guarded<NodeRemediation>>();
        match bounded_opt(|| format!("reading NodeRemediation {name}"), api.get(name)).await {
            Ok(Some(object)) => {
                object.fold(&mut self.cache.lock(), Instant::now());
                false
            }
            Ok(None) => {
                NodeRemediation::forget(name, &mut self.cache.lock());
                true
            }
            Err(error) => {
                tracing::warn!(error = error.line(), "an episode could not be read again");
                false
            }
        }
    }

    /// Removes a finished episode.
    pub(super) async fn delete_episode(&self, name: &str) -> Result<(), ApplyError> {
        let identity = self.cache.lock().snapshot.episodes.get(name).and_then(|e| e.identity.clone());
        let preconditions = identity.map(|(uid, _)| Preconditions { uid: Some(uid), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        let api = self.calls.act::<NodeRemediation>();
        match bounded(|| format!("deleting NodeRemediation {name}"), api.delete(name, &params)).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
        NodeRemediation::forget(name, &mut self.cache.lock());
        Ok(())
    }

    /// Takes our finalizer off episodes that hold nothing any more; a crash may have left it.
    pub async fn free_finished(&self) -> usize {
        let finished: Vec<(String, String, bool)> = {
            let state = self.cache.lock();
            let rows = state.episodes.iter().filter(|(_, row)| row.finalizer);
            rows.filter_map(|(name, _)| state.snapshot.episodes.get(name))
                .filter(|episode| !episode.is_live() && !is_awaited(&state.snapshot, episode, self.clock.now()))
                .filter_map(|episode| {
                    let shared = state.episodes.get(&episode.name).is_none_or(|row| row.others_finalizers);
                    Some((episode.name.clone(), episode.identity.clone()?.1, shared))
                })
                .take(16)
                .collect()
        };
        let mut freed = 0;
        for (name, version, shared) in finished {
            match self.free(&name, version, shared).await {
                Ok(()) => freed += 1,
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    tracing::warn!(error = error.line(), "a finished episode keeps its finalizer for now");
                    self.refresh_episode(&name).await;
                }
            }
        }
        freed
    }

    /// Takes our finalizer off; with the version, the list that is written is the one that was read.
    async fn free(&self, name: &str, version: String, shared: bool) -> Result<(), CallError> {
        let api = self.calls.act::<NodeRemediation>();
        let (version, rest) = if shared {
            // Which ones others have put there is not kept, and they stay.
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

/// Whether the episode stays until the node's object has noted that a person has stopped it: after that it may go, and
/// nothing begins anew all the same. An object that cannot be written holds nobody up for long.
fn is_awaited(snapshot: &Snapshot, episode: &Episode, now: Timestamp) -> bool {
    let Some(stopped) = episode.stopped().filter(|stopped| episode.deleting && since(now, stopped.at) < NOTED_WITHIN)
    else {
        return false;
    };
    let same_node = |report: &&ReportView| report.node_uid.as_deref() == Some(episode.node_uid.as_str());
    let report = snapshot.reports.get(&episode.node).filter(same_node);
    report.is_some_and(|report| report.stopped.as_ref().is_none_or(|noted| noted.at < stopped.at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_status_that_can_be_absent_is_named_when_it_is() {
        let bare = whole(serde_json::to_value(NodeRemediationStatus::default()).unwrap());
        let schema =
            crate::api::crds::all().into_iter().find(|(file, _)| file.starts_with("noderemediations")).unwrap().1;
        let schema = serde_json::to_value(&schema.spec.versions.first().unwrap().schema).unwrap();
        let fields = schema.pointer("/openAPIV3Schema/properties/status/properties").unwrap().as_object().unwrap();
        for field in fields.keys().filter(|field| *field != "conditions") {
            assert!(bare.get(field).is_some(), "{field} would survive from an older status");
        }
        let undo = fields["undo"]["properties"].as_object().unwrap();
        for field in undo.keys() {
            assert!(bare["undo"].get(field).is_some(), "undo.{field} would survive from an older status");
        }
    }
}
