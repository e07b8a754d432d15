//! Events: what people read in `kubectl describe node`. Bounded, folded, and never in the way of an act.

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::calls::DEADLINE;
use crate::api::{CONTROLLER_MANAGER, SYSTEM_NAMESPACE};
use crate::core::episode::ActResult;
use crate::core::text::bounded;

/// Most events that wait to be sent; more are dropped and counted.
const WAITING: usize = 128;
/// Longest note the API takes, in bytes.
const MAX_NOTE: usize = 1024;

/// Why an event is told: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A step was carried out.
    Acted,
    /// A step was not carried out, or went wrong.
    NotActed,
    /// A person is asked for.
    NeedsPerson,
    /// Our cordon was removed.
    Uncordoned,
    /// Our taint was taken off.
    Untainted,
}

impl Kind {
    /// The reason as it stands in the event.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acted => "Acted",
            Self::NotActed => "NotActed",
            Self::NeedsPerson => "NeedsPerson",
            Self::Uncordoned => "Uncordoned",
            Self::Untainted => "Untainted",
        }
    }
}

/// One thing to tell.
#[derive(Debug)]
struct Told {
    about: ObjectReference,
    kind: Kind,
    action: &'static str,
    note: String,
}

/// Where events are put.
#[derive(Clone, Debug)]
pub struct Events(mpsc::Sender<Told>);

/// Sends what was put there.
#[derive(Debug)]
pub struct EventSender(mpsc::Receiver<Told>);

/// A place for events, and who sends them.
pub fn channel() -> (Events, EventSender) {
    let (put, take) = mpsc::channel(WAITING);
    (Events(put), EventSender(take))
}

impl Events {
    /// Tells about a node.
    pub fn tell(&self, node: &Node, kind: Kind, text: String) {
        self.put(Told { about: about(node), kind, action: kind.as_str(), note: text });
    }

    /// Tells what came of a step.
    pub fn acted(&self, node: &Node, episode: &str, action: &'static str, result: &ActResult) {
        let (kind, what) = match result {
            ActResult::Done { message } if action == "Notify" => (Kind::NeedsPerson, message.clone()),
            ActResult::Done { message } | ActResult::UnderWay { message } | ActResult::Quiet { message } => {
                (Kind::Acted, message.clone())
            }
            ActResult::Started if action == "HandOff" => (Kind::Acted, "handed off; its remediator answers".to_owned()),
            ActResult::Started => (Kind::Acted, "ordered; the node answers".to_owned()),
            ActResult::AlreadyCordoned => (Kind::NotActed, "already unschedulable, adopted nothing".to_owned()),
            ActResult::AlreadyTainted => {
                (Kind::NotActed, "somebody else's taint is there already, adopted nothing".to_owned())
            }
            ActResult::Gone { message } | ActResult::Failed { message } | ActResult::Refused { message, .. } => {
                (Kind::NotActed, message.clone())
            }
        };
        self.put(Told { about: about(node), kind, action, note: format!("episode {episode}: {what}") });
    }

    /// Tells that a step waits for a person.
    pub fn awaits(&self, node: &str, uid: &str, text: String) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.put(Told { about, kind: Kind::NeedsPerson, action: "Approve", note: text });
    }

    /// Tells that the admission policies are not known to be in force.
    pub fn not_enforced(&self, text: String) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Namespace".to_owned()),
            name: Some(SYSTEM_NAMESPACE.to_owned()),
            ..ObjectReference::default()
        };
        self.put(Told { about, kind: Kind::NeedsPerson, action: "CheckAdmission", note: text });
    }

    fn put(&self, told: Told) {
        if let Err(error) = self.0.try_send(told) {
            tracing::warn!(error = %error, "an event was dropped");
        }
    }
}

fn about(node: &Node) -> ObjectReference {
    node.object_ref(&())
}

impl EventSender {
    /// Sends events, one at a time (two at the same moment for one object would get the same name).
    pub async fn run(mut self, client: Client, instance: String) {
        let reporter = Reporter { controller: CONTROLLER_MANAGER.to_owned(), instance: Some(instance) };
        let recorder = Recorder::new(client, reporter);
        while let Some(told) = self.0.recv().await {
            let type_ = match told.kind {
                Kind::Acted | Kind::Uncordoned | Kind::Untainted => EventType::Normal,
                Kind::NotActed | Kind::NeedsPerson => EventType::Warning,
            };
            let event = Event {
                type_,
                reason: told.kind.as_str().to_owned(),
                note: Some(bounded(&told.note, MAX_NOTE)),
                action: told.action.to_owned(),
                secondary: None,
            };
            match timeout(DEADLINE, recorder.publish(&event, &told.about)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(error = %error, "an event was not taken"),
                Err(_) => tracing::warn!("an event got no answer"),
            }
        }
    }
}
