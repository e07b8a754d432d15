//! One of the controller's Jobs joined with its pod: whether it has started, whether it has finished, and its outcome.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::Instant;

use super::State;
use super::fold::{Changed, Ingest};
use nrh_api::OPERATION_LABEL;
use nrh_core::command::Outcome;
use nrh_core::snapshot::JobView;
use nrh_core::text::bounded;

/// How long a finished Job is not shown as finished while its pod's termination message has not arrived: the Job and the pod
/// come by two watches.
const LAST_WORD: Duration = Duration::from_secs(5);
/// Longest termination message that is read. The kubelet keeps 4 KiB.
const MAX_MESSAGE: usize = 4096;
/// Longest reason that is kept for a refused pod: a word, such as `NodeShutdown`.
const MAX_REASON: usize = 64;

/// What is known of one operation's Job.
#[expect(clippy::struct_excessive_bools, reason = "what two objects say, as they say it")]
#[derive(Debug, Default)]
pub struct JobRow {
    /// Whether the Job object is there.
    pub exists: bool,
    /// Its uid.
    pub uid: Option<String>,
    /// Whether the Job controller says that it has started.
    pub job_started: bool,
    /// Whether the Job controller says that its pod has succeeded.
    pub job_succeeded: bool,
    /// When the controller first saw it finished.
    pub job_finished: Option<Instant>,
    /// Whether its pod has started.
    pub pod_started: bool,
    /// Why the kubelet has refused its pod, if it has.
    pub pod_rejected: Option<String>,
    /// Whether its pod's container has ended.
    pub pod_finished: bool,
    /// The outcome that it has reported.
    pub outcome: Option<Outcome>,
}

impl JobRow {
    /// The view for a decision.
    pub fn view(&self, id: &str, now: Instant) -> JobView {
        JobView {
            operation_id: id.to_owned(),
            // Neither the failure nor the end of a Job proves that its pod has started.
            started: self.pod_started || (self.job_started && self.pod_rejected.is_none()),
            rejected: self.pod_rejected.clone().filter(|_| !self.pod_started),
            finished: self.pod_finished
                || self.job_finished.is_some_and(|at| now.saturating_duration_since(at) >= LAST_WORD),
            pod_ended: self.pod_finished || self.job_succeeded || (self.pod_rejected.is_some() && !self.pod_started),
            outcome: self.outcome.clone(),
        }
    }

    /// When the controller stops waiting for the termination message of a finished Job's pod.
    pub fn settles_in(&self, now: Instant) -> Option<Duration> {
        let at = self.job_finished.filter(|_| !self.pod_finished)?;
        let waited = now.saturating_duration_since(at);
        (waited < LAST_WORD).then(|| LAST_WORD.saturating_sub(waited))
    }
}

/// The operation that an object of the controller belongs to.
pub fn operation(meta: &ObjectMeta) -> Option<&str> {
    meta.labels.as_ref()?.get(OPERATION_LABEL).map(String::as_str)
}

/// Stores the status of a Job.
pub fn note_job(row: &mut JobRow, job: &Job, now: Instant) {
    let status = job.status.as_ref();
    let positive = |count: Option<i32>| count.unwrap_or(0) > 0;
    row.exists = true;
    row.uid.clone_from(&job.metadata.uid);
    row.job_started = status.is_some_and(|s| positive(s.ready) || positive(s.succeeded) || positive(s.failed));
    row.job_succeeded = status.is_some_and(|s| positive(s.succeeded));
    let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let ended = conditions.iter().any(|c| ["Complete", "Failed"].contains(&c.type_.as_str()) && c.status == "True");
    row.job_finished = ended.then(|| row.job_finished.unwrap_or(now));
}

/// The operation that a pod belongs to, if the Job controller made the pod for the operation's Job. A kubelet may mirror its own
/// pods into the controller's namespace, with any label, but it cannot give them an owner.
pub fn operation_of_pod(meta: &ObjectMeta) -> Option<&str> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    operation(meta).filter(|id| {
        owners.iter().any(|owner| {
            owner.kind == "Job"
                && owner.api_version == "batch/v1"
                && owner.name == *id
                && owner.controller == Some(true)
        })
    })
}

/// Stores the status of a Job's pod.
pub fn note_pod(row: &mut JobRow, id: &str, pod: &Pod) {
    row.pod_rejected = rejected(pod);
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_deref()).unwrap_or_default();
    let Some(state) = statuses.first().and_then(|status| status.state.as_ref()) else { return };
    row.pod_started = state.running.is_some() || state.terminated.is_some();
    if let Some(ended) = &state.terminated {
        row.pod_finished = true;
        row.outcome = ended.message.as_deref().and_then(|message| outcome(message, id));
    }
}

/// Stores that the Job's pod exists and cannot be read. Returns whether that changed anything. The pod may have started: if it
/// counted as never started, the controller would send the same command another way.
pub fn note_unread_pod(row: &mut JobRow) -> bool {
    row.pod_rejected.is_none() && !std::mem::replace(&mut row.pod_started, true)
}

/// Why the kubelet has refused a pod at its admission. A kubelet does that while its node shuts down, or without room. It then
/// reports the pod as failed, with a reason, and without containers. Once the kubelet has admitted a pod, it reports each
/// container, also when it ends the pod. Any other component that fails a pod in its place, such as the garbage collector of a
/// lost node, gives no reason.
fn rejected(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Failed"))?;
    let containers = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let reason = status.reason.as_deref().filter(|reason| !reason.is_empty())?;
    (containers.count() == 0).then(|| bounded(reason, MAX_REASON))
}

/// Reads a termination message as the outcome of this operation; any other text is no outcome.
pub fn outcome(message: &str, id: &str) -> Option<Outcome> {
    if message.len() > MAX_MESSAGE {
        return None;
    }
    serde_json::from_str::<Outcome>(message.trim()).ok().filter(|outcome| outcome.operation_id == id)
}

impl Ingest for Job {
    const KIND: &'static str = "Job";

    fn put(self, _key: &str, state: &mut State, now: Instant) -> Changed {
        let Some(id) = operation(&self.metadata) else { return Changed::Nothing };
        let row = state.jobs.entry(id.to_owned()).or_default();
        let before = (row.exists, row.job_started, row.job_finished);
        note_job(row, &self, now);
        Changed::when(before != (row.exists, row.job_started, row.job_finished))
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        // A Job's name is its operation. A pod of it that still exists no longer matters.
        Changed::when(state.jobs.remove(key).is_some())
    }
}

/// The pod of one of the controller's Jobs.
impl Ingest for Pod {
    const KIND: &'static str = "Pod";

    fn put(self, _key: &str, state: &mut State, _now: Instant) -> Changed {
        let Some(id) = operation_of_pod(&self.metadata) else { return Changed::Nothing };
        // A pod without its Job has no effect. They arrive by separate watches, the Job first as a rule.
        let row = state.jobs.entry(id.to_owned()).or_default();
        let before = (row.pod_started, row.pod_rejected.is_some(), row.pod_finished);
        note_pod(row, id, &self);
        Changed::when(before != (row.pod_started, row.pod_rejected.is_some(), row.pod_finished))
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        // The Job controller names a pod after its Job and a suffix.
        if let Some((id, _)) = key.rsplit_once('-')
            && state.jobs.get(id).is_some_and(|row| !row.exists)
        {
            state.jobs.remove(id);
        }
        Changed::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(state: &serde_json::Value) -> Pod {
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "op-1", "uid": "u", "controller": true});
        serde_json::from_value(
            json!({"metadata": {"name": "p", "labels": {OPERATION_LABEL: "op-1"}, "ownerReferences": [owner]}, "status": {"containerStatuses": [
            {"name": "command", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]}}),
        )
        .unwrap()
    }

    fn job(kind: &str) -> Job {
        serde_json::from_value(json!({"metadata": {"name": "op-1"},
            "status": {"conditions": [{"type": kind, "status": "True"}]}}))
        .unwrap()
    }

    #[test]
    fn the_pods_last_word_is_awaited_for_a_while_after_the_job_ended() {
        let (mut row, now) = (JobRow::default(), Instant::now());
        note_job(&mut row, &job("Complete"), now);
        assert!(!row.view("op-1", now).finished);
        assert_eq!(row.settles_in(now), Some(LAST_WORD));
        assert!(row.view("op-1", now + LAST_WORD).finished, "a pod that was removed must not hold it up for ever");
        let outcome = json!({"operationId": "op-1", "state": "Done", "reason": "Executed", "message": "m", "at": "2025-01-01T00:00:00Z"});
        note_pod(&mut row, "op-1", &pod(&json!({"terminated": {"exitCode": 0, "message": outcome.to_string()}})));
        let view = row.view("op-1", now);
        assert!(view.finished && view.outcome.is_some());
    }

    #[test]
    fn a_pod_that_no_job_of_this_operation_made_says_nothing() {
        let ended = json!({"terminated": {"exitCode": 0}});
        let (mut mirror, mut of_another) = (pod(&ended), pod(&ended));
        mirror.metadata.owner_references = Some(Vec::new());
        of_another.metadata.labels = serde_json::from_value(json!({OPERATION_LABEL: "op-2"})).unwrap();
        let mut state = State::default();
        for of_no_job in [mirror, of_another] {
            assert_eq!(of_no_job.put("", &mut state, Instant::now()), Changed::Nothing);
        }
        assert!(state.jobs.is_empty());
    }

    #[test]
    fn a_pod_that_the_kubelet_refused_is_told_from_one_whose_container_may_have_run() {
        let failed: Job = serde_json::from_value(json!({"metadata": {"name": "op-1"},
            "status": {"failed": 1, "conditions": [{"type": "Failed", "status": "True"}]}}))
        .unwrap();
        let view = |status: &serde_json::Value| {
            let (mut row, mut pod) = (JobRow::default(), pod(&json!({})));
            pod.status = serde_json::from_value(status.clone()).unwrap();
            note_job(&mut row, &failed, Instant::now());
            note_pod(&mut row, "op-1", &pod);
            let view = row.view("op-1", Instant::now());
            (view.started, view.rejected)
        };
        let refused = json!({"phase": "Failed", "reason": "NodeShutdown", "message": "Pod was rejected: the node is shutting down"});
        assert_eq!(view(&refused), (false, Some("NodeShutdown".to_owned())));
        let container = json!({"name": "command", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}});
        let waits = json!({"name": "command", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}}});
        for unknown in [
            json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": [container]}),
            json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": [waits]}),
            json!({"phase": "Failed"}),
            json!({"phase": "Running", "reason": "NodeLost"}),
            json!(null),
        ] {
            assert_eq!(view(&unknown), (true, None), "{unknown}");
        }
    }

    #[test]
    fn a_message_that_is_not_this_operations_outcome_is_none() {
        let other = json!({"operationId": "op-2", "state": "Done", "reason": "Executed", "message": "m", "at": "2025-01-01T00:00:00Z"});
        for message in ["", "done", "{}", &other.to_string(), &" ".repeat(5000)] {
            let mut row = JobRow::default();
            note_pod(&mut row, "op-1", &pod(&json!({"terminated": {"exitCode": 0, "message": message}})));
            assert!(row.pod_finished);
            assert_eq!(row.outcome, None, "{message}");
        }
    }
}
