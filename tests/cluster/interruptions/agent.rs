//! The agent of a node, played, and the machine below it: it does what the order in the node's own object says, once for each
//! operation, and says so in its next report. What it remembers lies in memory, and is lost with the boot.

use std::collections::BTreeSet;

use jiff::Timestamp;
use nrh::core::action::ActionType;
use nrh::core::command::{ActionCommand, Outcome, OutcomeReason, OutcomeState};

/// How the kubelet of a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubelet {
    /// It says that the node is Ready, and runs pods.
    Works,
    /// It says that the node is Ready, and starts no pod.
    StartsNothing,
    /// It says that the node is not Ready.
    NotReady,
}

/// A machine with an agent.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its kubelet.
    pub kubelet: Kubelet,
    /// What is done there in vain.
    fails: &'static [ActionType],
    boots: usize,
    claimed: BTreeSet<String>,
    said: Option<Outcome>,
    goes_down: bool,
    /// Operation of the mark that it carries for a reboot.
    mark: Option<String>,
}

impl Machine {
    /// In its first boot, without any order.
    pub fn new(kubelet: Kubelet, fails: &'static [ActionType]) -> Self {
        let (claimed, said, mark) = Default::default();
        Self { kubelet, fails, boots: 0, claimed, said, goes_down: false, mark }
    }

    /// The boot that it is in.
    pub fn boot_id(&self) -> String {
        format!("boot-{}", self.boots)
    }

    /// What its agent has said of the last order.
    pub const fn said(&self) -> Option<&Outcome> {
        self.said.as_ref()
    }

    /// Boots anew where it goes down, or where it is marked for that and the order for the mark still stands; whether it did.
    pub fn boots_anew(&mut self, standing: Option<&ActionCommand>) -> bool {
        let is_wanted = |mark: &String| standing.is_some_and(|order| order.operation_id == *mark);
        let is_rebooted = self.goes_down || self.mark.take_if(|mark| is_wanted(mark)).is_some();
        // The file goes with its order.
        self.mark = None;
        if is_rebooted {
            *self = Self { boots: self.boots + 1, ..Self::new(self.kubelet, self.fails) };
        }
        is_rebooted
    }

    /// Does what the order says, unless it has done so already, or it is for another boot. What was done, and whether the fault is
    /// gone by that.
    pub fn obeys(&mut self, order: &ActionCommand) -> Option<(ActionType, bool)> {
        if !self.claimed.insert(order.operation_id.clone()) {
            return None;
        }
        let action = order.action.kind();
        let is_meant = order.boot_id.as_ref().is_none_or(|boot| *boot == self.boot_id());
        let (state, reason) = if !is_meant {
            (OutcomeState::Refused, OutcomeReason::AlreadyRebooted)
        } else if self.fails.contains(&action) {
            (OutcomeState::Failed, OutcomeReason::RequestFailed)
        } else {
            (OutcomeState::Done, OutcomeReason::Executed)
        };
        let (operation_id, at) = (order.operation_id.clone(), Timestamp::now());
        self.said = Some(Outcome { operation_id, state, reason, message: "played".to_owned(), at });
        if !is_meant {
            return None;
        }
        self.goes_down = action == ActionType::Reboot;
        self.mark = (action == ActionType::MarkForReboot).then(|| order.operation_id.clone());
        let is_for_boot = self.goes_down || self.mark.is_some();
        Some((action, state == OutcomeState::Done && !is_for_boot))
    }
}
