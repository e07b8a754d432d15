//! Nodes of the small cluster that boot anew.

use super::{Cure, WorldNode};
use crate::core::snapshot::Tri;

/// Ticks that a machine takes to boot.
const TICKS: u32 = 12;

/// How a node boots anew.
#[derive(Clone, Debug, Default)]
pub struct Boots {
    /// How often it did.
    pub count: u32,
    /// Ticks until it is back, while it boots.
    pub away: Option<u32>,
    /// Whether nothing comes of it when it is told to.
    pub fails: bool,
}

impl WorldNode {
    /// It goes down, where anything comes of that.
    pub(super) fn begin_boot(&mut self) {
        self.boots.away = (!self.boots.fails).then_some(TICKS);
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
        self.view.ready = Tri::Unknown;
        self.boots.away = left.checked_sub(1);
        if self.boots.away.is_some() {
            return true;
        }
        self.boots.count += 1;
        self.claimed.clear();
        self.report.agent = None;
        self.end_all(Cure::Reboot);
        self.view.ready = Tri::True;
        self.tell_boot();
        false
    }
}
