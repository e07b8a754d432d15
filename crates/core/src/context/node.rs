//! The context of one node: what is known of it now, and how much that counts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::ClusterContext;
use crate::command::ActionCommand;
use crate::external_condition::ObservedCondition;
use crate::fault::Fault;
use crate::flap::FlapView;
use crate::kubelet;
use crate::matching::{MatchContext, MissingFact};
use crate::moment::since;
use crate::policy::{Mode, Policy, Rule};
use crate::remediation::{Remediation, RemediationFault, Resolution};
use crate::snapshot::{
    CommandView, Heartbeat, NodeView, ReportView, SuspectPod, TriState, UnreadableRemediation, missed_after,
    silent_after,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    Never,
    /// Its report is about another node of the same name, or the node is gone.
    WrongNode,
    Reporting,
    Missed,
    /// It has missed three heartbeats.
    Silent,
}

/// A fault with the ages that rules ask for.
#[derive(Clone, Debug)]
pub(crate) struct ObservedFault<'a> {
    pub fault: Cow<'a, Fault>,
    /// Time since the last check of it.
    pub checked: Duration,
    /// For how long it has been there.
    pub lasted: Duration,
}

impl ObservedFault<'_> {
    /// The state of the fault when it enters a remediation under this rule.
    pub fn opened(&self, now: Timestamp, rule: &Rule) -> RemediationFault {
        let fault = &self.fault;
        RemediationFault {
            since: now.checked_sub(self.lasted).ok(),
            id: fault.id.clone(),
            kind: fault.kind,
            subject: fault.subject.clone(),
            rule: rule.name.clone(),
            step_index: 0,
            state: Resolution::Open,
            clear_since: None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct NodeContext<'a> {
    pub cluster: ClusterContext<'a>,
    pub name: &'a str,
    pub view: Option<&'a NodeView>,
    pub report: Option<&'a ReportView>,
    pub command: Option<&'a CommandView>,
    pub probe: Probe,
    /// All faults, most urgent first, including the faults that the controller finds.
    pub seen: Vec<ObservedFault<'a>>,
    /// Pods of every suspect DaemonSet on the node.
    pub pods: Vec<&'a SuspectPod>,
    /// Time since the controller read all DaemonSet pods of the node.
    pub pods_read: Option<Duration>,
    /// Whether a pod of a DaemonSet may be missing from `pods` because nobody could read it.
    pub pods_unread: bool,
    /// What rules may ask about the pods and the node.
    pub around: MatchContext<'a>,
    /// Conditions on the Node that some policy asks for.
    pub matched_conditions: &'a [ObservedCondition],
    /// Its recent changes, if there were several.
    pub flap: Option<&'a FlapView>,
    /// For how long its kubelet has reported that it cannot check its pods.
    pub stalled: Option<Duration>,
    /// Whether its history shows that it does not flap.
    pub stable: TriState,
    /// The policies that select the node. The policy that takes precedence comes first.
    pub policies: Vec<&'a Policy>,
    /// Open remediations, oldest first.
    pub open: Vec<&'a Remediation>,
    /// Finished remediations, oldest first.
    pub finished: Vec<&'a Remediation>,
    /// Finished remediations of this very node that ended within the memory of failures.
    pub recent: Vec<&'a Remediation>,
    /// A remediation that has the node and that the controller cannot read.
    pub unreadable: Option<Unreadable<'a>>,
}

pub(crate) type Unreadable<'a> = (&'a str, &'a UnreadableRemediation);

/// The contexts of all nodes that are named anywhere, by node name. Each context stays in place while the map is built.
pub(crate) type Nodes<'a> = BTreeMap<&'a str, Box<NodeContext<'a>>>;

/// Returns the heartbeat ages after which one heartbeat is missed, and three are.
pub(super) fn bounds(heartbeat: &Heartbeat) -> (Duration, Duration) {
    (missed_after(heartbeat.interval), silent_after(heartbeat.interval))
}

impl Probe {
    pub(super) fn of(view: Option<&NodeView>, report: Option<&ReportView>) -> Self {
        let Some(report) = report else { return Self::Never };
        let Some(heartbeat) = &report.heartbeat else { return Self::Never };
        if view.is_none_or(|view| report.node_uid.as_deref() != Some(view.uid.as_str())) {
            return Self::WrongNode;
        }
        let (missed, silent) = bounds(heartbeat);
        if heartbeat.arrived <= missed {
            Self::Reporting
        } else if heartbeat.arrived <= silent {
            Self::Missed
        } else {
            Self::Silent
        }
    }
}

impl<'a> NodeContext<'a> {
    /// Returns the policy that remediates this fault: of the policies with a rule for it, the one that takes precedence. A policy
    /// without a rule for the fault does not keep it from policies with one. A dry run does not keep it from policies that act. A
    /// policy whose rule may or may not match keeps it like one whose rule matches.
    pub fn policy_for(&self, fault: &Fault) -> Option<&'a Policy> {
        let acts = self.with_rule(fault).find(|policy| policy.mode == Mode::Enforce);
        acts.or_else(|| self.with_rule(fault).next()).or_else(|| self.policies.first().copied())
    }

    /// Returns the dry run that would remediate this fault instead of `policy`, if it acted.
    pub fn dry_run_for(&self, fault: &Fault, policy: &Policy) -> Option<&'a Policy> {
        self.with_rule(fault).next().filter(|first| policy.mode == Mode::Enforce && first.name != policy.name)
    }

    fn with_rule(&self, fault: &Fault) -> impl Iterator<Item = &'a Policy> {
        self.policies.iter().copied().filter(move |policy| self.rule_of(policy, fault).is_some())
    }

    /// Returns the rule of a policy that applies to a fault of this node, or may apply, with what is unknown.
    pub fn rule_of<'p>(&self, policy: &'p Policy, fault: &Fault) -> Option<(&'p Rule, Option<MissingFact>)> {
        policy.rule_for(fault, &self.around)
    }

    /// Returns another policy than `than`, if it surely remediates this fault instead. Neither a dry run nor a policy whose rule
    /// may or may not match takes over what has begun.
    pub fn other_for(&self, fault: &Fault, than: &Policy) -> Option<&'a Policy> {
        let acts = |other: &&Policy| other.mode == Mode::Enforce && other.name != than.name;
        let other = self.policy_for(fault).filter(acts)?;
        matches!(self.rule_of(other, fault), Some((_, None))).then_some(other)
    }

    /// Whether the report is about this very node, however old it is.
    pub fn owns_report(&self) -> bool {
        matches!(self.probe, Probe::Reporting | Probe::Missed | Probe::Silent)
    }

    /// Returns the report if it is about this very node, however old it is.
    pub fn own_report(&self) -> Option<&'a ReportView> {
        self.report.filter(|_| self.owns_report())
    }

    /// The boot id that the probe reports of this very node, however old the report is.
    pub fn own_boot_id(&self) -> Option<&'a str> {
        self.own_report()?.heartbeat.as_ref().map(|heartbeat| heartbeat.boot_id.as_str())
    }

    /// Returns the current command to any node of this name.
    pub fn command(&self) -> Option<&'a ActionCommand> {
        self.command?.command.as_ref()
    }

    /// Returns the current command if it is to this very node.
    pub fn own_command(&self) -> Option<&'a ActionCommand> {
        let uid = &self.view?.uid;
        self.command.filter(|command| command.node_uid.as_ref() == Some(uid))?.command.as_ref()
    }

    /// Remediations on nodes of this name, as far as they are kept: the open ones, then the finished ones.
    pub fn remediations(&self) -> impl Iterator<Item = &Remediation> {
        self.open.iter().chain(&self.finished).copied()
    }

    /// Those in Enforce mode.
    fn real(&self) -> impl Iterator<Item = &Remediation> {
        self.remediations().filter(|remediation| remediation.mode == Mode::Enforce)
    }

    /// Remediations of that policy in Enforce mode on nodes of this name.
    pub fn remediations_by(&self, policy: &Policy) -> impl Iterator<Item = &Remediation> {
        self.real().filter(|remediation| remediation.policy == policy.name)
    }

    /// Returns when the last disturbing remediation of a node of this name ended, within the memory of failures.
    pub fn last_served(&self) -> Option<Timestamp> {
        let (now, memory) = (self.cluster.snapshot.now, self.cluster.settings.failed_memory);
        let disturbed = |remediation: &&Remediation| remediation.steps.iter().any(|step| step.action.disturbs());
        let ended = self.real().filter(disturbed).filter_map(|remediation| remediation.finished_at);
        ended.filter(|at| since(now, *at) < memory).max()
    }

    /// Remediations of that policy in Enforce mode on this very node.
    pub fn remediations_of(&self, policy: &Policy) -> impl Iterator<Item = &Remediation> {
        let uid = self.view.map(|view| view.uid.as_str());
        self.remediations_by(policy).filter(move |remediation| Some(remediation.node_uid.as_str()) == uid)
    }

    /// Remediations in Enforce mode on other Node objects of this name, as far as they are kept, and when each one ended.
    pub fn on_others_of_its_name(&self) -> impl Iterator<Item = (&Remediation, Timestamp)> {
        let uid = self.view.map(|view| view.uid.as_str());
        let others = self.real().filter(move |remediation| Some(remediation.node_uid.as_str()) != uid);
        others.map(|remediation| (remediation, remediation.finished_at.unwrap_or(remediation.started_at)))
    }

    pub fn find(&self, id: &str) -> Option<&ObservedFault<'_>> {
        self.seen.iter().find(|seen| seen.fault.id == id)
    }

    /// Whether the Node shows a running kubelet that has finished its start.
    pub fn kubelet_works(&self) -> bool {
        let (Some(view), Some(report)) = (self.view, self.report) else { return false };
        let started = report.kubelet.began.is_some() && kubelet::unfinished(view, &report.kubelet).is_none();
        started && view.ready == TriState::True
    }

    /// Time since the last report arrived, if the controller saw it arrive.
    pub fn arrived(&self) -> Option<Duration> {
        self.heartbeat().filter(|heartbeat| heartbeat.age_known).map(|heartbeat| heartbeat.arrived)
    }

    pub fn heartbeat(&self) -> Option<&'a Heartbeat> {
        self.report.and_then(|report| report.heartbeat.as_ref())
    }
}
