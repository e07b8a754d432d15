//! The tool to which nodes are handed: how it takes the objects that are made for it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use nrh_core::command::OutcomeReason;
use nrh_core::hand_off::{HandOff, HandOffView, HandedOff};
use nrh_core::moment::since;
use nrh_core::remediation::ActionResult;
use nrh_core::snapshot::TriState;

/// How the remediator of a node behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Remediator {
    /// It reboots the node within a few seconds and says that it is done.
    #[default]
    Works,
    /// It says that it has failed, and touches nothing.
    Fails,
    /// It does not answer at all.
    Silent,
    /// It has an object of somebody else's for the node already.
    Taken,
}

/// One object, as long as it is there.
#[derive(Clone, Debug)]
pub struct Object {
    /// The object, with the operation that it was made for.
    pub handed: HandedOff,
    /// When it was made.
    pub made_at: Timestamp,
    /// Whether it was told that its time is over.
    pub is_told: bool,
    /// What its conditions say.
    pub succeeded: TriState,
}

/// All objects of remediators, and how often each operation has made one.
#[derive(Clone, Debug, Default)]
pub struct Remediators {
    /// Those that are there.
    pub objects: Vec<Object>,
    /// How often one was made, by operation.
    pub made: BTreeMap<String, u32>,
    /// Operations that were told that their time is over.
    pub told: Vec<String>,
}

impl Remediators {
    /// Makes the object of a step.
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

    /// Tells the object of an operation that its time is over.
    pub(super) fn tell(&mut self, handed: &HandedOff) {
        self.told.push(handed.operation_id.clone());
        for object in self.objects.iter_mut().filter(|o| o.handed.operation_id == handed.operation_id) {
            object.is_told = true;
        }
    }

    /// Deletes the object of a remediation.
    pub(super) fn delete(&mut self, handed: &HandedOff) {
        self.objects.retain(|o| !o.handed.is_same_object(handed) || !o.handed.is_of_remediation(&handed.operation_id));
    }

    /// They do their work: the nodes that were rebooted. `of` is the remediator of a node that is there.
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

    /// What is read of them now: of the operations that are still to be taken back, whether or not their object is there.
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
                // One that does not answer writes nothing, and the others are at their end within a moment.
                processing: object.map_or(TriState::Unknown, |o| {
                    if o.succeeded == TriState::Unknown { TriState::Unknown } else { TriState::False }
                }),
                succeeded: object.map_or(TriState::Unknown, |object| object.succeeded),
                message: message.to_owned(),
                node_goes: false,
                // What was made at this very moment was read after it.
                read: object.map_or(Duration::ZERO, |object| since(now, object.made_at) / 2),
            };
            (handed.operation_id, view)
        };
        wanted.map(view).collect()
    }
}
