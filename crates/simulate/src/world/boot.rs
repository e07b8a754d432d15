//! Nodes of the small cluster that boot anew.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::WorldNode;
use crate::cleared_by::ClearedBy;
use nrh_core::command::ActionCommand;
use nrh_core::moment::since;
use nrh_core::snapshot::TriState;

/// Ticks that a machine takes to boot.
const TICKS: u32 = 12;
/// After which time kured has seen a mark, got its lock and drained the node.
const DRAINED: Duration = Duration::from_mins(2);

/// How kured stands on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Kured {
    /// It reboots a marked node within minutes.
    #[default]
    Works,
    /// It waits for its window or its lock, or there is none.
    Waits,
}

/// A mark for a reboot by kured.
#[derive(Clone, Debug)]
pub struct Marked {
    /// The operation that made it.
    pub operation_id: String,
    /// When.
    pub at: Timestamp,
    /// For how long it stands by itself.
    pub stands_for: Duration,
}

/// How a node boots anew.
#[derive(Clone, Debug, Default)]
pub struct Boots {
    /// How often it did.
    pub count: u32,
    /// Ticks until it is back, while it boots.
    pub away: Option<u32>,
    /// Whether nothing comes of it when it is told to.
    pub fails: bool,
    /// How kured stands on it.
    pub kured: Kured,
    /// The mark for it, while it stands.
    pub marked: Option<Marked>,
    /// Whether kured has cordoned the node, and uncordons it.
    pub is_cordoned: bool,
}

impl WorldNode {
    /// It goes down, where anything comes of that.
    pub(super) fn begin_boot(&mut self) {
        self.boots.away = (!self.boots.fails).then_some(TICKS);
    }

    /// Its agent leaves the mark.
    pub(super) fn mark(&mut self, order: &ActionCommand, now: Timestamp) {
        let seconds = order.reboot_marker.as_ref().map_or(0, |mark| mark.expires_after_seconds);
        let stands_for = Duration::from_secs(seconds.into());
        self.boots.marked = Some(Marked { operation_id: order.operation_id.clone(), at: now, stands_for });
    }

    /// The agent takes away a mark that nobody wants any more; kured reboots the node for one that stands.
    pub(super) fn tend_mark(&mut self, now: Timestamp) {
        let Some(mark) = &self.boots.marked else { return };
        let is_ordered = self.order.as_ref().is_some_and(|order| order.operation_id == mark.operation_id);
        let age = since(now, mark.at);
        if self.probe_runs && (!is_ordered || age > mark.stands_for) {
            self.boots.marked = None;
        } else if self.boots.kured == Kured::Works && age >= DRAINED && self.boots.away.is_none() {
            // It opens again what it has cordoned itself.
            self.boots.is_cordoned = !self.view.unschedulable;
            self.view.unschedulable = true;
            self.boots.marked = None;
            self.begin_boot();
        }
    }

    /// The boot that it is in, as its kubelet and its probe tell it.
    pub(super) fn tell_boot(&mut self) {
        let boot = format!("boot-{}", self.boots.count);
        if let Some(heartbeat) = &mut self.report.heartbeat {
            heartbeat.boot_id.clone_from(&boot);
        }
        self.view.boot_id = Some(boot);
    }

    /// Time passes for a machine that boots: what `/run` held is lost, and what a boot ends is gone. Whether it is away.
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
        self.tell_boot();
        false
    }
}
