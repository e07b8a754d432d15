//! One node of the simulated cluster, and the components on it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::boot::Boots;
use crate::cleared_by::ClearedBy;
use crate::remediator::Remediator;
use crate::workload::Workload;
use nrh_core::action::{Action, ActionType};
use nrh_core::command::{ActionCommand, Outcome, OutcomeReason, OutcomeState};
use nrh_core::drain::cannot_end;
use nrh_core::fault::Fault;
use nrh_core::snapshot::{CommandView, Heartbeat, NodeView, ReportView, SuspectPod, TriState};

/// Age of the probe's checks when its report arrives.
pub(super) const CHECKED: Duration = Duration::from_secs(1);
/// The heartbeat interval that a probe with something to report promises.
pub(super) const INTERVAL: Duration = Duration::from_secs(15);

/// A fault with its true cause.
#[derive(Clone, Debug)]
pub struct InjectedFault {
    /// As the probe reports it.
    pub fault: Fault,
    /// Each of these resolves it.
    pub cleared_by: BTreeSet<ClearedBy>,
}

/// One node, and our components on it.
#[derive(Clone, Debug, Default)]
pub struct WorldNode {
    /// The Node object.
    pub view: NodeView,
    /// The last report that arrived.
    pub report: ReportView,
    /// The current command in its `NodeCommand`.
    pub command: Option<ActionCommand>,
    /// Whether its probe reports.
    pub probe_runs: bool,
    /// Whether its kubelet starts the pods of Jobs.
    pub job_starts: bool,
    /// Its faults.
    pub sick: Vec<InjectedFault>,
    /// Its pods of suspect `DaemonSet`s.
    pub pods: Vec<SuspectPod>,
    /// Deleted pods without a successor yet.
    pub deleted: Vec<SuspectPod>,
    /// Claimed operations, each with its result, unless its executor has ended without one.
    pub claimed: BTreeMap<String, Option<Outcome>>,
    /// Age of each check when its report arrives.
    pub checked: Duration,
    /// The tool to which it may be handed off.
    pub remediator: Remediator,
    /// Its other pods, which a drain evicts.
    pub workloads: Vec<Workload>,
    /// Its reboots.
    pub boots: Boots,
    /// Actions that fail on it.
    pub fails: BTreeSet<ActionType>,
    /// Conditions of the Node that an action resolves.
    pub(super) restorable: Vec<super::conditions::RestorableCondition>,
}

impl WorldNode {
    /// A healthy node.
    pub fn new(name: &str) -> Self {
        let uid = format!("uid-{name}");
        let heartbeat = Heartbeat {
            arrived: CHECKED,
            age_known: true,
            interval: INTERVAL,
            sequence: 1,
            boot_id: String::new(),
            actions_enabled: true,
            kubelet_works: TriState::True,
        };
        let mut node = Self {
            view: NodeView { uid: uid.clone(), ready: TriState::True, ..NodeView::default() },
            report: ReportView { node_uid: Some(uid), heartbeat: Some(heartbeat), ..ReportView::default() },
            probe_runs: true,
            job_starts: true,
            checked: CHECKED,
            ..Self::default()
        };
        node.set_boot_id();
        node.view.labels.insert("kubernetes.io/hostname".into(), name.into());
        node
    }

    /// Its `NodeCommand`, while it contains a command.
    pub(super) fn command(&self) -> Option<CommandView> {
        let command = Some(self.command.clone()?);
        Some(CommandView { node_uid: Some(self.view.uid.clone()), command, unreadable: None })
    }

    /// Whether its runtime and its kubelet end terminating pods, by its true faults.
    pub(super) fn ends_pods(&self) -> bool {
        let works = self.report.heartbeat.as_ref().map_or(TriState::Unknown, |heartbeat| heartbeat.kubelet_works);
        let known = works != TriState::False;
        known && cannot_end(TriState::True, TriState::True, self.sick.iter().map(|sick| &sick.fault)).is_none()
    }

    /// Its machine reboots where it is to, its executor executes a new command, and its probe reports.
    pub fn work(&mut self, now: Timestamp, acts: &mut BTreeMap<String, u32>) {
        self.tend_mark(now);
        if self.boot() || !self.probe_runs {
            return;
        }
        if let Some(command) = self.command.clone()
            && self.report.heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.actions_enabled)
            && self.report.agent.as_ref().is_none_or(|agent| agent.operation_id != command.operation_id)
        {
            self.report.agent = Some(self.execute(&command, now, acts));
        }
        self.send();
    }

    /// Executes a command once, by the node executor or by a Job.
    pub fn execute(&mut self, command: &ActionCommand, now: Timestamp, acts: &mut BTreeMap<String, u32>) -> Outcome {
        let outcome = |state, reason: OutcomeReason| Outcome {
            operation_id: command.operation_id.clone(),
            state,
            reason,
            message: format!("{reason:?}"),
            at: now,
        };
        if command.boot_id.is_some() && command.boot_id != self.view.boot_id {
            return outcome(OutcomeState::Refused, OutcomeReason::AlreadyRebooted);
        }
        if let Some(known) = self.claimed.get(&command.operation_id) {
            let open = || outcome(OutcomeState::Refused, OutcomeReason::AlreadyExecuted);
            return known.clone().unwrap_or_else(open);
        }
        let (state, reason) = self.act(command, now, acts);
        let outcome = outcome(state, reason);
        self.claimed.insert(command.operation_id.clone(), Some(outcome.clone()));
        outcome
    }

    fn act(
        &mut self,
        command: &ActionCommand,
        now: Timestamp,
        acts: &mut BTreeMap<String, u32>,
    ) -> (OutcomeState, OutcomeReason) {
        let Some(place) = self.sick.iter().position(|sick| sick.fault.id == command.fault_id) else {
            return (OutcomeState::Refused, OutcomeReason::Recovered);
        };
        *acts.entry(command.operation_id.clone()).or_default() += 1;
        if self.fails.contains(&command.action.kind()) {
            return (OutcomeState::Failed, OutcomeReason::RequestFailed);
        }
        match command.action {
            Action::Reboot(_) => self.begin_boot(),
            Action::MarkForReboot(_) => self.mark(command, now),
            _ => {
                let by = ClearedBy::of(&command.action);
                if self.sick.get(place).is_some_and(|sick| by.is_some_and(|by| sick.cleared_by.contains(&by))) {
                    self.sick.remove(place);
                }
            }
        }
        (OutcomeState::Done, OutcomeReason::Executed)
    }
}
