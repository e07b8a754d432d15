//! Events, which people read in `kubectl describe node`. They are bounded and folded, and they never block an action.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::calls::DEADLINE;
use nrh_api::{CONTROLLER_MANAGER, NodeRemediation, RemediationConfig, SYSTEM_NAMESPACE};
use nrh_core::policy::ActionType;
use nrh_core::remediation::{ActionResult, Executor, Phase, Remediation, StepRecord, StepState};
use nrh_core::text::{bounded, short_hash};

/// Maximum number of events that wait to be sent. Further ones are dropped, and the log says so.
const WAITING: usize = 128;
/// Maximum number of attempts to send an event, and the pause between two of them.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum length of a note in the API, in bytes.
const MAX_NOTE: usize = 1024;
/// Maximum length of an action in the API, in bytes.
const MAX_ACTION: usize = 128;

nrh_core::named! {
    /// The reason of an event: a closed set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        /// A step was executed.
        ActionExecuted,
        /// A step was not executed, or failed.
        ActionNotExecuted,
        /// A remediation has resolved its faults.
        RemediationSucceeded,
        /// A remediation has ended, and a fault is still there.
        RemediationFailed,
        /// A remediation has ended before it could resolve its faults.
        RemediationCancelled,
        /// A person must act.
        ManualActionRequired,
        /// The controller's cordon was removed.
        Uncordoned,
        /// The controller's taint was removed.
        Untainted,
        /// A person has suspended all remediation.
        Suspended,
        /// Remediation is no longer suspended.
        Resumed,
    }
}

#[derive(Debug)]
struct Notice {
    about: ObjectReference,
    /// The remediation that it belongs to. Events of different remediations are never counted as one.
    remediation: Option<ObjectReference>,
    kind: Kind,
    action: String,
    note: String,
}

impl Notice {
    fn new(about: ObjectReference, kind: Kind, action: &str, note: String) -> Self {
        Self { about, remediation: None, kind, action: action.to_owned(), note }
    }
}

/// The queue for events.
#[derive(Clone, Debug)]
pub struct Events(mpsc::Sender<Notice>);

/// Sends the events of the queue.
#[derive(Debug)]
pub struct EventSender(mpsc::Receiver<Notice>);

/// Creates a queue for events and its sender.
pub fn channel() -> (Events, EventSender) {
    let (put, take) = mpsc::channel(WAITING);
    (Events(put), EventSender(take))
}

impl Events {
    /// Reports an event about a node.
    pub fn send_event(&self, node: &Node, kind: Kind, text: String) {
        self.put(Notice::new(node.object_ref(&()), kind, kind.as_str(), text));
    }

    /// Reports the result of a step.
    pub fn executed(&self, remediation: &Remediation, step: &StepRecord, result: &ActionResult) {
        use ActionResult as R;
        let kind = match result {
            R::Done { .. } if step.action == ActionType::Notify => Kind::ManualActionRequired,
            R::Done { .. } | R::InProgress { .. } | R::Quiet { .. } | R::Started => Kind::ActionExecuted,
            R::AlreadyCordoned | R::AlreadyTainted | R::Gone { .. } | R::Failed { .. } | R::Refused { .. } => {
                Kind::ActionNotExecuted
            }
        };
        let what = match result {
            R::Started => format!("requested from {}", answers(step.executor)),
            _ => result.message().to_owned(),
        };
        self.put_of(remediation, kind, &step.phrase(), &format!("{}: {what}", remediation.purpose(step)));
    }

    /// Reports how a remediation has changed: a step waits for approval, the node did not execute one, the remediation has ended.
    pub fn changed(&self, before: Option<&Remediation>, now: &Remediation) {
        let awaited = before.and_then(Remediation::awaiting);
        if let Some(operation) = now.awaiting().filter(|operation| awaited != Some(*operation)) {
            let text = format!("{}: {}", now.message, now.approve_command(operation));
            self.put_of(now, Kind::ManualActionRequired, "Approve", &text);
        }
        // The controller reports its own steps when it has executed them.
        let on_node = |step: &&StepRecord| step.executor != Executor::Controller && step.started_at.is_some();
        let was_final = |step: &StepRecord| {
            let mut known = before.iter().flat_map(|before| &before.steps);
            known.any(|known| known.operation_id == step.operation_id && known.state.is_final())
        };
        let has_failed =
            |step: &&StepRecord| matches!(step.state, StepState::Failed | StepState::Refused | StepState::TimedOut);
        for step in now.steps.iter().filter(on_node).filter(has_failed).filter(|step| !was_final(step)) {
            let what = format!("{}: {}", now.purpose(step), step.message);
            self.put_of(now, Kind::ActionNotExecuted, &step.phrase(), &what);
        }
        let kind = match now.phase {
            Phase::Succeeded => Kind::RemediationSucceeded,
            Phase::Failed | Phase::Quarantined => Kind::RemediationFailed,
            Phase::Cancelled => Kind::RemediationCancelled,
            _ => return,
        };
        if before.is_none_or(|before| before.phase != now.phase) {
            self.put_of(now, kind, kind.as_str(), &now.message);
        }
    }

    /// Puts an event about the node of a remediation into the queue.
    fn put_of(&self, remediation: &Remediation, kind: Kind, action: &str, text: &str) {
        let about = ObjectReference { uid: Some(remediation.node_uid.clone()), ..reference::<Node>(&remediation.node) };
        let note = format!("remediation {}: {text}", remediation.name);
        self.put(Notice {
            remediation: Some(reference::<NodeRemediation>(&remediation.name)),
            ..Notice::new(about, kind, &bounded(action, MAX_ACTION), note)
        });
    }

    /// Reports that the admission policies are not known to be in force.
    pub fn not_enforced(&self, text: String) {
        let about = reference::<Namespace>(SYSTEM_NAMESPACE);
        self.put(Notice::new(about, Kind::ManualActionRequired, "CheckAdmission", text));
    }

    /// Reports that all remediation is suspended, or no longer is.
    pub fn configured(&self, config: &ObjectMeta, is_suspended: bool, text: &str) {
        let name = config.name.as_deref().unwrap_or_default();
        let about = ObjectReference { uid: config.uid.clone(), ..reference::<RemediationConfig>(name) };
        let (kind, action) = if is_suspended { (Kind::Suspended, "Suspend") } else { (Kind::Resumed, "Resume") };
        self.put(Notice::new(about, kind, action, text.to_owned()));
    }

    /// Whether one more event can wait to be sent.
    pub fn has_room(&self) -> bool {
        self.0.capacity() > 0
    }

    fn put(&self, notice: Notice) {
        if let Err(error) = self.0.try_send(notice) {
            tracing::warn!(error = %error, "an event was dropped");
        }
    }
}

/// A reference to a cluster-scoped object.
fn reference<K: Resource<DynamicType = ()>>(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// Who executes a request of this executor, and answers it.
const fn answers(executor: Executor) -> &'static str {
    match executor {
        Executor::Controller => "another controller",
        Executor::Job => "the node, by a Job",
        Executor::Probe => "the node's probe",
    }
}

/// The object that the event is related to. The recorder counts events of one reason about the same two objects as one, and keeps the
/// text of the first, so the reference also names the text.
fn related(notice: &Notice) -> ObjectReference {
    let related = notice.remediation.clone().unwrap_or_else(|| notice.about.clone());
    ObjectReference { field_path: Some(short_hash(&notice.note)), ..related }
}

impl EventSender {
    /// Sends events, one at a time (two at the same moment for one object would get the same name).
    pub async fn run(mut self, client: Client, instance: String) {
        let reporter = Reporter { controller: CONTROLLER_MANAGER.to_owned(), instance: Some(instance) };
        let mut recorder = Recorder::new(client.clone(), reporter.clone());
        while let Some(notice) = self.0.recv().await {
            let type_ = match notice.kind {
                Kind::ActionExecuted
                | Kind::RemediationSucceeded
                | Kind::RemediationCancelled
                | Kind::Uncordoned
                | Kind::Untainted
                | Kind::Resumed => EventType::Normal,
                Kind::ActionNotExecuted | Kind::RemediationFailed | Kind::ManualActionRequired | Kind::Suspended => {
                    EventType::Warning
                }
            };
            let event = Event {
                type_,
                reason: notice.kind.as_str().to_owned(),
                note: Some(bounded(&notice.note, MAX_NOTE)),
                secondary: Some(related(&notice)),
                action: notice.action,
            };
            for attempts_left in (0..ATTEMPTS).rev() {
                let error = match timeout(DEADLINE, recorder.publish(&event, &notice.about)).await {
                    Ok(Ok(())) => break,
                    Ok(Err(error)) => Some(error),
                    Err(_) => None,
                };
                let code = match &error {
                    Some(kube::Error::Api(status)) => Some(status.code),
                    _ => None,
                };
                let text = error.map_or_else(|| "no answer".to_owned(), |error| error.to_string());
                tracing::warn!(error = text, attempts_left, "an event was not taken");
                match code {
                    // The Event that counts the repetitions was deleted. A new recorder does not know it, and writes the text anew.
                    Some(404) => recorder = Recorder::new(client.clone(), reporter.clone()),
                    Some(code) if code < 500 && code != 429 => break,
                    _ if attempts_left > 0 => sleep(PAUSE).await,
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use nrh_api::convert;

    #[test]
    fn what_is_requested_is_reported_with_its_step_and_its_fault_and_as_part_of_its_remediation() {
        let remediation = running();
        let (events, mut sent) = channel();
        events.executed(&remediation, &remediation.steps[0], &ActionResult::Started);
        let notice = sent.0.try_recv().unwrap();
        assert_eq!((notice.kind, notice.action.as_str()), (Kind::ActionExecuted, "ReleaseHungProcess(SIGCONT)"));
        let note = "remediation w1-a: ReleaseHungProcess(SIGCONT) for HungContainer (container c): requested from the node, by a Job";
        assert_eq!(notice.note, note);
        let about = (notice.about.kind.as_deref(), notice.about.name.as_deref(), notice.about.uid.as_deref());
        assert_eq!(about, (Some("Node"), Some("w1"), Some("u")));
        // Without it, the Events of a second remediation would be counted as the first one's.
        assert_eq!(notice.remediation.and_then(|related| related.name).as_deref(), Some("w1-a"));
    }

    #[test]
    fn what_the_node_refused_and_how_the_remediation_ended_is_reported_once() {
        let (before, mut now) = (running(), running());
        now.steps[0].finish(StepState::Refused, "process 7 is gone", now.started_at);
        (now.phase, now.message) = (Phase::Failed, "no step is left".into());
        let (events, mut sent) = channel();
        events.changed(Some(&before), &now);
        events.changed(Some(&now), &now);
        drop(events);
        let mut reported = Vec::new();
        while let Ok(notice) = sent.0.try_recv() {
            reported.push((notice.kind, notice.note));
        }
        let refused =
            "remediation w1-a: ReleaseHungProcess(SIGCONT) for HungContainer (container c): process 7 is gone";
        let expected = [
            (Kind::ActionNotExecuted, refused.to_owned()),
            (Kind::RemediationFailed, "remediation w1-a: no step is left".to_owned()),
        ];
        assert_eq!(reported, expected);
    }

    #[test]
    fn a_full_queue_has_no_room_until_an_event_is_sent() {
        let (events, mut sent) = channel();
        for number in 0..WAITING {
            assert!(events.has_room(), "{number}");
            events.not_enforced(number.to_string());
        }
        assert!(!events.has_room());
        assert_eq!(sent.0.try_recv().unwrap().note, "0");
        assert!(events.has_room());
    }

    /// A remediation whose Job has started.
    fn running() -> Remediation {
        let object = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": "w1-a"},
            "spec": {"nodeName": "w1", "nodeUid": "u", "policy": "p", "mode": "Enforce"},
            "status": {"phase": "Running", "startedAt": "2026-01-01T00:00:00Z",
                "faults": [{"id": "f", "type": "HungContainer", "subject": {"kind": "Container", "name": "c"}, "rule": "r",
                    "stepIndex": 0, "state": "Open"}],
                "attempts": [{"operationId": "op", "faultId": "f", "action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGCONT"},
                    "stepIndex": 0, "executor": "Job", "state": "Started", "startedAt": "2026-01-01T00:00:01Z",
                    "scheduledAt": "2026-01-01T00:00:00Z"}]}});
        convert::remediation(&serde_json::from_value(object).unwrap())
    }
}
