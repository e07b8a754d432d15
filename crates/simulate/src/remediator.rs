//! The tool to which nodes are handed off: what it does with the objects that are created for it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use nrh_core::action::HandOff;
use nrh_core::command::OutcomeReason;
use nrh_core::hand_off::{HandOffView, HandedOff};
use nrh_core::moment::since;
use nrh_core::remediation::ActionResult;
use nrh_core::snapshot::TriState;

/// How the remediator of a node behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Remediator {
    /// It reboots the node within a few seconds and reports success.
    #[default]
    Works,
    /// It reports a failure, and changes nothing.
    Fails,
    /// It does not answer at all.
    Silent,
    /// It already has an object for the node that somebody else has created.
    Taken,
}

/// One existing object.
#[derive(Clone, Debug)]
pub struct Object {
    /// The object, with its operation.
    pub handed: HandedOff,
    /// When it was made.
    pub made_at: Timestamp,
    /// Whether the timeout was reported to it.
    pub is_told: bool,
    /// What its conditions say.
    pub succeeded: TriState,
}

/// All objects of remediators, and how often each operation has created one.
#[derive(Clone, Debug, Default)]
pub struct Remediators {
    /// The existing objects.
    pub objects: Vec<Object>,
    /// How often one was created, by operation.
    pub made: BTreeMap<String, u32>,
    /// Operations with a reported timeout.
    pub notified: Vec<String>,
}

impl Remediators {
    /// Creates the object of a step.
    pub(super) fn make(
        &mut self,
        remediator: Remediator,
        name: &str,
        id: &str,
        with: &HandOff,
        now: Timestamp,
    ) -> ActionResult {
        let handed = HandedOff::new(&with.remediation_template, name, id);
        let standing = self.objects.iter().find(|object| object.handed.is_same_object(&handed));
        if standing.is_some_and(|object| object.handed.operation_id == id) {
            return ActionResult::Started;
        }
        if standing.is_some() || remediator == Remediator::Taken {
            let message = format!("{handed} is there already, of somebody else");
            return ActionResult::Refused { reason: OutcomeReason::Protected, message };
        }
        *self.made.entry(id.to_owned()).or_default() += 1;
        self.objects.push(Object { handed, made_at: now, is_told: false, succeeded: TriState::Unknown });
        ActionResult::Started
    }

    /// Reports the timeout to the object of an operation.
    pub(super) fn tell(&mut self, handed: &HandedOff) {
        self.notified.push(handed.operation_id.clone());
        for object in self.objects.iter_mut().filter(|o| o.handed.operation_id == handed.operation_id) {
            object.is_told = true;
        }
    }

    /// Deletes the object of a remediation.
    pub(super) fn delete(&mut self, handed: &HandedOff) {
        self.objects.retain(|o| !o.handed.is_same_object(handed) || !o.handed.is_of_remediation(&handed.operation_id));
    }

    /// Lets the remediators work. Returns the rebooted nodes. `of` is the remediator of an existing node.
    pub(super) fn work(&mut self, of: impl Fn(&str) -> Option<Remediator>) -> Vec<String> {
        let mut rebooted = Vec::new();
        for object in self.objects.iter_mut().filter(|object| object.succeeded == TriState::Unknown && !object.is_told)
        {
            match of(&object.handed.name) {
                Some(Remediator::Works) => {
                    object.succeeded = TriState::True;
                    rebooted.push(object.handed.name.clone());
                }
                Some(Remediator::Fails) => object.succeeded = TriState::False,
                Some(Remediator::Silent | Remediator::Taken) | None => {}
            }
        }
        rebooted
    }

    /// The views of the wanted operations (those with pending cleanup), whether or not their object exists.
    pub(super) fn views(
        &self,
        wanted: impl Iterator<Item = HandedOff>,
        now: Timestamp,
    ) -> BTreeMap<String, HandOffView> {
        let view = |handed: HandedOff| {
            let object = self.objects.iter().find(|object| object.handed.operation_id == handed.operation_id);
            let message = object.map_or("", |object| match object.succeeded {
                TriState::True => "rebooted",
                TriState::False => "no way to reboot it",
                TriState::Unknown => "nothing yet",
            });
            let view = HandOffView {
                exists: object.is_some(),
                // A remediator that does not answer writes nothing, and the others finish within a moment.
                processing: object.map_or(TriState::Unknown, |o| {
                    if o.succeeded == TriState::Unknown { TriState::Unknown } else { TriState::False }
                }),
                succeeded: object.map_or(TriState::Unknown, |object| object.succeeded),
                message: message.to_owned(),
                node_goes: false,
                // An object from this very moment was read after its creation.
                read: object.map_or(Duration::ZERO, |object| since(now, object.made_at) / 2),
            };
            (handed.operation_id, view)
        };
        wanted.map(view).collect()
    }
}
