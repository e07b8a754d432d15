//! What the engine asks about an action instead of its name.

use std::time::Duration;

use super::{Action, ActionType};
use crate::fault::{Daemon, FaultType};
use crate::faults::Helps;

/// What an action is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It keeps pods away from the node while other steps resolve the fault.
    Contain,
    /// It may resolve the fault.
    Resolve,
    /// It tells people.
    Notify,
}

/// Who carries an action out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsOn {
    /// The controller, by its own calls to the API server.
    Controller,
    /// The probe. A Job would end with the runtime or the machine.
    Probe,
    /// A Job where the kubelet can start one, else the probe.
    JobOrProbe,
}

/// What is true of an action, whatever its parameters are.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Traits {
    /// What it is for.
    pub purpose: Purpose,
    /// Who carries it out.
    pub runs_on: RunsOn,
    /// Whether it can do anything about a fault of this kind at all; otherwise the engine leaves its step out.
    pub addresses: fn(FaultType) -> Helps,
    /// It marks the Node object while the remediation lasts, and disturbs nothing there. It is done once, and no step depends on it.
    pub marks_node: bool,
    /// It evicts pods in rounds, until none is left that has to go.
    pub evicts_pods: bool,
    /// It ends the boot of the node. Only another boot id of the Node proves it.
    pub ends_boot: bool,
    /// It ends the wait of a hung process, for which other steps of the node wait in turn.
    pub frees_process: bool,
    /// The daemon that it restarts.
    pub restarts: Option<Daemon>,
    /// It is done only under the cordon of its own remediation.
    pub under_cordon: bool,
    /// It may be done for what another tool says about a node (`NodeCondition`), which no probe can check again.
    pub for_node_conditions: bool,
    /// For how long it may stay blocked before the next step follows, if that is less than the timeout of its step.
    pub block_timeout: Option<Duration>,
}

impl Traits {
    /// An action that resolves a fault, with every other trait absent.
    pub(super) const fn resolves(runs_on: RunsOn, addresses: fn(FaultType) -> Helps) -> Self {
        Self {
            purpose: Purpose::Resolve,
            runs_on,
            addresses,
            marks_node: false,
            evicts_pods: false,
            ends_boot: false,
            frees_process: false,
            restarts: None,
            under_cordon: false,
            for_node_conditions: false,
            block_timeout: None,
        }
    }

    /// An action of the controller that keeps pods away.
    pub(super) const fn contains() -> Self {
        let pods_make_it_worse = Self::resolves(RunsOn::Controller, |kind| kind.spec().remedy.fewer_pods);
        Self { purpose: Purpose::Contain, for_node_conditions: true, ..pods_make_it_worse }
    }
}

impl ActionType {
    /// Whether it may resolve a fault.
    pub fn resolves(self) -> bool {
        self.traits().purpose == Purpose::Resolve
    }

    /// Whether it keeps pods away from the node while other steps resolve the fault.
    pub fn contains(self) -> bool {
        self.traits().purpose == Purpose::Contain
    }

    /// Whether it only tells people.
    pub fn notifies(self) -> bool {
        self.traits().purpose == Purpose::Notify
    }

    /// Whether it disturbs what runs on the node. A policy limits how often that may be done to one node.
    pub fn disturbs(self) -> bool {
        !self.notifies() && !self.traits().marks_node
    }

    /// Whether the node itself carries it out and answers.
    pub fn is_done_on_node(self) -> bool {
        self.traits().runs_on != RunsOn::Controller
    }
}

impl Action {
    /// Whether it may resolve a fault.
    pub fn resolves(&self) -> bool {
        self.kind().resolves()
    }

    /// Whether it keeps pods away from the node while other steps resolve the fault.
    pub fn contains(&self) -> bool {
        self.kind().contains()
    }

    /// Whether it only tells people.
    pub fn notifies(&self) -> bool {
        self.kind().notifies()
    }

    /// Whether it disturbs what runs on the node.
    pub fn disturbs(&self) -> bool {
        self.kind().disturbs()
    }

    /// Whether it ends the boot of the node.
    pub const fn ends_boot(&self) -> bool {
        self.traits().ends_boot
    }
}
