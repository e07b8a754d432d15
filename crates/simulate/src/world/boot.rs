//! Reboots of nodes in the small cluster.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::WorldNode;
use crate::cleared_by::ClearedBy;
use nrh_core::command::ActionCommand;
use nrh_core::moment::since;
use nrh_core::snapshot::TriState;

/// How kured behaves on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Kured {
    /// It reboots a node that requests it within minutes.
    #[default]
    Works,
    /// It waits for its window or its lock, or there is no kured.
    Waits,
}

/// A request for a reboot by kured.
#[derive(Clone, Debug)]
pub struct Marked {
    /// The operation that made it.
    pub operation_id: String,
    /// When it was made.
    pub at: Timestamp,
    /// How long it lasts without a removal.
    pub stands_for: Duration,
}

/// The reboots of a node.
#[derive(Clone, Debug)]
pub struct Boots {
    /// Number of reboots.
    pub count: u32,
    /// Ticks that a reboot takes.
    pub takes: u32,
    /// Time after which kured has seen the request, taken its lock and drained the node.
    pub drained_after: Duration,
    /// Ticks until the node is back, while it boots.
    pub away: Option<u32>,
    /// Whether a requested reboot has no effect.
    pub fails: bool,
    /// How kured behaves on it.
    pub kured: Kured,
    /// The current request for a reboot by kured.
    pub marked: Option<Marked>,
    /// Whether kured has cordoned the node and will uncordon it.
    pub is_cordoned: bool,
}

impl Default for Boots {
    fn default() -> Self {
        Self {
            count: 0,
            takes: 12,
            drained_after: Duration::from_mins(2),
            away: None,
            fails: false,
            kured: Kured::Works,
            marked: None,
            is_cordoned: false,
        }
    }
}

impl WorldNode {
    /// Starts a reboot, unless reboots have no effect.
    pub(super) fn begin_boot(&mut self) {
        self.boots.away = (!self.boots.fails).then_some(self.boots.takes);
    }

    /// The node executor leaves the reboot request.
    pub(super) fn mark(&mut self, command: &ActionCommand, now: Timestamp) {
        let seconds = command.marker_expires_after_seconds.unwrap_or_default();
        let stands_for = Duration::from_secs(seconds.into());
        self.boots.marked = Some(Marked { operation_id: command.operation_id.clone(), at: now, stands_for });
    }

    /// The node executor removes a request that is not wanted any more. Kured reboots the node for a current one.
    pub(super) fn tend_mark(&mut self, now: Timestamp) {
        let Some(mark) = &self.boots.marked else { return };
        let has_command = self.command.as_ref().is_some_and(|command| command.operation_id == mark.operation_id);
        let age = since(now, mark.at);
        if self.probe_runs && (!has_command || age > mark.stands_for) {
            self.boots.marked = None;
        } else if self.boots.kured == Kured::Works && age >= self.boots.drained_after && self.boots.away.is_none() {
            // Kured uncordons only what it has cordoned itself.
            self.boots.is_cordoned = !self.view.unschedulable;
            self.view.unschedulable = true;
            self.boots.marked = None;
            self.begin_boot();
        }
    }

    /// Sets the current boot id in the Node and in the heartbeat.
    pub(super) fn set_boot_id(&mut self) {
        let boot = format!("boot-{}", self.boots.count);
        if let Some(heartbeat) = &mut self.report.heartbeat {
            heartbeat.boot_id.clone_from(&boot);
        }
        self.view.boot_id = Some(boot);
    }

    /// Lets time pass for a booting machine: the content of `/run` is lost, and faults that a reboot resolves are gone. Returns
    /// whether the machine is still away.
    pub(super) fn boot(&mut self) -> bool {
        let Some(left) = self.boots.away else { return false };
        self.view.ready = TriState::Unknown;
        self.boots.away = left.checked_sub(1);
        if self.boots.away.is_some() {
            return true;
        }
        self.boots.count += 1;
        self.claimed.clear();
        self.report.agent = None;
        self.end_all(ClearedBy::Reboot);
        self.view.ready = TriState::True;
        if std::mem::take(&mut self.boots.is_cordoned) {
            self.view.unschedulable = false;
        }
        self.set_boot_id();
        false
    }
}
