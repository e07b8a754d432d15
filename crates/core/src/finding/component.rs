//! A fault of a component that exists once or a few times on a node. Nothing in it is the one target of an action.

use std::time::Duration;

use super::{Harm, Sighting, evidence};
use crate::fault::{FaultType, MAX_LINE, Severity, Subject, Target};
use crate::text::bounded;
use crate::thresholds::Confirmation;

/// A fault of a component as a whole. Nothing on the node is its one target.
pub(crate) struct Component<'a> {
    pub kind: FaultType,
    pub key: &'a str,
    pub subject: Subject,
    pub severity: Severity,
    pub message: String,
    pub impact: &'a str,
    pub evidence: Vec<String>,
    pub checked: Duration,
    pub confirm: Confirmation,
}

impl From<Component<'_>> for Sighting {
    fn from(component: Component<'_>) -> Self {
        Self {
            kind: component.kind,
            key: component.key.to_owned(),
            certain: true,
            harm: Harm::Always,
            severity: component.severity,
            subject: component.subject,
            target: Target::default(),
            message: bounded(&component.message, MAX_LINE),
            impact: component.impact.to_owned(),
            evidence: evidence(component.evidence),
            checked: component.checked,
            since: component.checked,
            confirm: component.confirm,
            without_kubelet: None,
        }
    }
}
