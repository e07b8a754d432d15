//! The context of one node: what is known of it now, and how much that counts.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::unreadable::{Kept, Unreadable};
use super::{PlanSettings, Wake, conditions, recurrence};
use crate::along::Along;
use crate::command::ActionCommand;
use crate::external_condition::ObservedCondition;
use crate::fault::{Fault, FaultState, MAX_FAULTS};
use crate::faults::{ShowsIn, kubelet_start_blocked, probe_not_reporting};
use crate::flap::{FlapView, QUIET};
use crate::kubelet;
use crate::matching::MatchContext;
use crate::moment::since;
use crate::policy::{Mode, Policy, RuleMatch};
use crate::remediation::{Remediation, RemediationFault};
use crate::snapshot::{
    CommandView, Heartbeat, LONGEST_INTERVAL, NodeView, ReportView, Snapshot, SuspectPod, TriState, missed_after,
};
use crate::stuck;

/// The state of a node's probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// It has never reported.
    Never,
    /// Its report is about another node of the same name, or the node is gone.
    WrongNode,
    /// It reports as promised.
    Reporting,
    /// It has missed a heartbeat.
    Missed,
    /// It has missed three heartbeats.
    Silent,
}

/// A fault with the ages that rules ask for.
#[derive(Clone, Debug)]
pub(super) struct ObservedFault<'a> {
    pub fault: Cow<'a, Fault>,
    /// Time since the last check of it.
    pub looked: Duration,
    /// For how long it has been there.
    pub lasted: Duration,
}

/// Everything known of one node.
#[derive(Debug)]
pub(super) struct NodeContext<'a> {
    pub name: &'a str,
    /// Who has suspended all remediation, and why.
    pub all_suspended: Option<&'a str>,
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
    /// What rules may ask about the pods and the node.
    pub around: MatchContext<'a>,
    /// Conditions on the Node that some policy asks for.
    pub noticed: &'a [ObservedCondition],
    /// Its recent changes, if there were several.
    pub flap: Option<&'a FlapView>,
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

/// The contexts of all nodes that are named anywhere, by node name. Each context stays in place while the map is built.
pub(super) type Nodes<'a> = BTreeMap<&'a str, Box<NodeContext<'a>>>;

/// Whether a fault of a remediation is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClearCheck {
    /// Gone, by a clean check.
    Clean,
    /// Still there.
    Present,
    /// Nobody could check since.
    Unknown,
}

/// Returns the heartbeat ages after which one heartbeat is missed, and three are.
fn bounds(heartbeat: &Heartbeat) -> (Duration, Duration) {
    (missed_after(heartbeat.interval), heartbeat.interval.min(LONGEST_INTERVAL) * 7 / 2)
}

impl Probe {
    fn of(view: Option<&NodeView>, report: Option<&ReportView>) -> Self {
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

    /// Returns the dry run that would remediate this fault instead of `heals`, if it acted.
    pub fn trial_for(&self, fault: &Fault, heals: &Policy) -> Option<&'a Policy> {
        self.with_rule(fault).next().filter(|first| heals.mode == Mode::Enforce && first.name != heals.name)
    }

    fn with_rule(&self, fault: &Fault) -> impl Iterator<Item = &'a Policy> {
        self.policies.iter().copied().filter(move |policy| self.rule_of(policy, fault).is_some())
    }

    /// Returns the rule of a policy for a fault of this node.
    pub fn rule_of<'p>(&self, policy: &'p Policy, fault: &Fault) -> RuleMatch<'p> {
        policy.rule_for(fault, &self.around)
    }

    /// Returns another policy than `than`, if it surely remediates this fault instead. Neither a dry run nor a policy whose rule
    /// may or may not match takes over what has begun.
    pub fn other_for(&self, fault: &Fault, than: &Policy) -> Option<&'a Policy> {
        let acts = |other: &&Policy| other.mode == Mode::Enforce && other.name != than.name;
        let other = self.policy_for(fault).filter(acts)?;
        matches!(self.rule_of(other, fault), RuleMatch::Rule(_)).then_some(other)
    }
}

impl<'a> NodeContext<'a> {
    /// Whether the report is about this very node, however old it is.
    pub fn owns_report(&self) -> bool {
        matches!(self.probe, Probe::Reporting | Probe::Missed | Probe::Silent)
    }

    /// Returns the report if it is about this very node, however old it is.
    pub fn own_report(&self) -> Option<&'a ReportView> {
        self.report.filter(|_| self.owns_report())
    }

    /// Returns the current command to any node of this name.
    pub fn order(&self) -> Option<&'a ActionCommand> {
        self.command?.order.as_ref()
    }

    /// Returns the current command if it is to this very node.
    pub fn own_command(&self) -> Option<&'a ActionCommand> {
        let uid = &self.view?.uid;
        self.command.filter(|command| command.node_uid.as_ref() == Some(uid))?.order.as_ref()
    }

    /// Remediations in Enforce mode on nodes of this name, as far as they are kept.
    fn real(&self) -> impl Iterator<Item = &Remediation> {
        self.open.iter().chain(&self.finished).copied().filter(|remediation| remediation.mode == Mode::Enforce)
    }

    /// Remediations of that policy in Enforce mode on nodes of this name.
    pub fn remediations_by(&self, policy: &Policy) -> impl Iterator<Item = &Remediation> {
        self.real().filter(|remediation| remediation.policy == policy.name)
    }

    /// Returns when the last disturbing remediation of a node of this name ended, if that is less than `within` ago.
    pub fn last_served(&self, now: Timestamp, within: Duration) -> Option<Timestamp> {
        let disturbed = |remediation: &&Remediation| remediation.steps.iter().any(|step| step.action.disturbs());
        let ended = self.real().filter(disturbed).filter_map(|remediation| remediation.finished_at);
        ended.filter(|at| since(now, *at) < within).max()
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

    /// Returns the fault with that id.
    pub fn find(&self, id: &str) -> Option<&ObservedFault<'_>> {
        self.seen.iter().find(|seen| seen.fault.id == id)
    }

    /// Whether the Node shows a running kubelet that has finished its start.
    pub fn kubelet_works(&self) -> bool {
        let (Some(view), Some(report)) = (self.view, self.report) else { return false };
        let started = report.kubelet.began.is_some() && kubelet::unfinished(view, &report.kubelet).is_none();
        started && view.ready == TriState::True
    }

    /// Time since the last report arrived.
    pub fn arrived(&self) -> Option<Duration> {
        self.report.and_then(|report| report.heartbeat.as_ref()).map(|heartbeat| heartbeat.arrived)
    }

    /// Checks whether a fault of a remediation is gone, by a check later than `after`.
    pub fn cure(
        &self,
        fault: &RemediationFault,
        after: Option<Timestamp>,
        now: Timestamp,
        fresh: Duration,
    ) -> ClearCheck {
        if self.probe != Probe::Reporting {
            return ClearCheck::Unknown;
        }
        let is_later = |age: Duration| after.is_none_or(|after| age < since(now, after));
        if let Some(seen) = self.find(&fault.id) {
            // A pod that could not be read lately may be gone.
            let is_ambiguous = fault.kind.spec().shows_in == ShowsIn::Pod && seen.fault.state != FaultState::Confirmed;
            return if is_ambiguous { ClearCheck::Unknown } else { ClearCheck::Present };
        }
        let looked = match fault.kind.spec().shows_in {
            ShowsIn::Pod => {
                if self.pods.iter().any(|pod| is_unwell(pod, fault)) {
                    return ClearCheck::Present;
                }
                // The deleted pod is gone. A successor that has not come yet does not clear the fault.
                let is_back = self.pods.iter().any(|pod| is_of(pod, fault));
                // Nor does it clear where no successor can come.
                let is_kept_away = self.view.is_some_and(|view| view.repels_daemon_sets().is_some());
                let is_awaited = !is_back && (is_kept_away || after.is_some_and(|after| since(now, after) < SUCCESSOR));
                !is_awaited && self.pods_read.is_some_and(|age| age <= fresh && is_later(age))
            }
            ShowsIn::Heartbeats => true,
            // Only the history that the controller keeps can show that the node does not flap any more.
            ShowsIn::History => self.stable == TriState::True && self.arrived().is_some_and(is_later),
            ShowsIn::KubeletStart => self.kubelet_works() && self.arrived().is_some_and(is_later),
            ShowsIn::Ready => {
                self.view.is_some_and(|view| view.ready == TriState::True) && self.arrived().is_some_and(is_later)
            }
            // The watch never goes back: the controller saw the current condition later than the one that it acted on. A later
            // report proves that the node was there to be written to.
            ShowsIn::Condition => conditions::is_other(self, fault) && self.arrived().is_some_and(is_later),
            // A full report may have left the fault out.
            ShowsIn::Report => {
                let is_full = self.report.is_none_or(|report| report.faults.len() >= MAX_FAULTS);
                // A probe that has just started without its memory, or that lost access to something, may have left it out too.
                let is_blind = self.report.is_none_or(|report| report.unlooked.contains(&fault.kind));
                !is_full && !is_blind && self.arrived().is_some_and(is_later)
            }
        };
        if looked { ClearCheck::Clean } else { ClearCheck::Unknown }
    }
}

/// How long the check waits for the successor of a deleted pod: the controller manager may have just lost its leader. A DaemonSet
/// that is gone, or that does not want the node any more, creates no successor.
const SUCCESSOR: Duration = Duration::from_secs(30);

/// Whether it is the stuck pod, or another pod of the same DaemonSet on the node.
fn is_of(pod: &SuspectPod, fault: &RemediationFault) -> bool {
    let Some(stuck) = &fault.subject.pod else { return false };
    let same_set = pod.pod.namespace == stuck.namespace && pod.daemon_set == fault.subject.name;
    pod.pod.uid == stuck.uid || same_set
}

/// Whether it is one of these pods and not well yet.
fn is_unwell(pod: &SuspectPod, fault: &RemediationFault) -> bool {
    is_of(pod, fault) && !pod.is_well()
}

/// Builds the contexts of all nodes that are named anywhere.
pub(super) fn gather<'a>(
    snapshot: &'a Snapshot,
    settings: &PlanSettings,
    policies: &[&'a Policy],
    wake: &mut Wake,
) -> Nodes<'a> {
    let mut pods: BTreeMap<&str, Vec<&SuspectPod>> = BTreeMap::new();
    for pod in &snapshot.pods {
        pods.entry(&pod.node).or_default().push(pod);
    }
    let mut remediations: BTreeMap<&str, Vec<&Remediation>> = BTreeMap::new();
    for remediation in snapshot.remediations.values() {
        remediations.entry(&remediation.node).or_default().push(remediation);
    }
    let kept = Kept::of(snapshot);
    let live_nodes = remediations.iter().filter(|(_, list)| list.iter().any(|e| e.is_live())).map(|(node, _)| *node);
    let mut names: Vec<&str> =
        snapshot.nodes.keys().chain(snapshot.reports.keys()).map(String::as_str).chain(live_nodes).collect();
    #[expect(
        clippy::stable_sort_primitive,
        reason = "they are runs that are sorted already, which only a stable sort merges"
    )]
    names.sort();
    names.dedup();
    let (mut views, mut reports) = (Along::new(&snapshot.nodes), Along::new(&snapshot.reports));
    let (mut reads, mut notices) = (Along::new(&snapshot.pods_read), Along::new(&snapshot.noticed));
    let (mut flaps, mut commands) = (Along::new(&snapshot.flaps), Along::new(&snapshot.commands));
    names
        .into_iter()
        .map(|name| {
            let (view, report, flap) = (views.at(name), reports.at(name), flaps.at(name));
            let mut pods = pods.remove(name).unwrap_or_default();
            // The order of the list must not matter: the same pod must be judged the same.
            pods.sort_by(|a, b| a.pod.cmp(&b.pod).then_with(|| a.read.cmp(&b.read)));
            let mut here = remediations.remove(name).unwrap_or_default();
            here.sort_by(|a, b| a.started_at.cmp(&b.started_at).then_with(|| a.name.cmp(&b.name)));
            let (open, finished): (Vec<&Remediation>, Vec<&Remediation>) =
                here.into_iter().partition(|remediation| remediation.is_open());
            let uid = view.map(|view| view.uid.as_str());
            let recent = recurrence::recent(&finished, uid, snapshot.now, settings.failed_memory);
            let probe = Probe::of(view, report);
            let mut facts = Box::new(NodeContext {
                name,
                all_suspended: snapshot.suspended.as_deref(),
                view,
                report,
                command: commands.at(name),
                probe,
                seen: Vec::new(),
                pods,
                pods_read: reads.at(name).copied(),
                around: MatchContext {
                    pods: Some(&snapshot.pods_seen),
                    runtime: view.and_then(|view| view.runtime_version.as_deref()),
                    kubelet: view.and_then(|view| view.kubelet_version.as_deref()),
                },
                noticed: notices.at(name).map(Vec::as_slice).unwrap_or_default(),
                flap,
                stable: stable(snapshot, view, flap),
                policies: view.map_or_else(Vec::new, |view| {
                    policies.iter().filter(|policy| policy.selector.matches(&view.labels)).copied().collect()
                }),
                open,
                finished,
                recent,
                unreadable: kept.on(name),
            });
            facts.seen = seen(&facts, snapshot.now);
            plan_wake(&facts, wake);
            (name, facts)
        })
        .collect()
}

/// Whether a node does not flap. A node without a history has had no changes for as long as the controller watched it.
fn stable(snapshot: &Snapshot, view: Option<&NodeView>, flap: Option<&FlapView>) -> TriState {
    let is_read = view.is_some_and(|view| view.unreadable.is_none());
    match flap {
        Some(flap) if flap.flapping.is_some() => TriState::False,
        _ if is_read && snapshot.watched >= QUIET => TriState::True,
        _ => TriState::Unknown,
    }
}

fn seen<'a>(facts: &NodeContext<'a>, now: Timestamp) -> Vec<ObservedFault<'a>> {
    let mut all: Vec<ObservedFault<'a>> = Vec::new();
    if facts.owns_report()
        && let Some(report) = facts.report
    {
        let arrived = facts.arrived().unwrap_or_default();
        // A probe cannot report what only the controller can know.
        for reported in report.faults.iter().filter(|r| !r.fault.kind.is_cluster_fault()) {
            let lasted = Duration::from_secs(reported.fault.duration_seconds).saturating_add(arrived);
            all.push(ObservedFault { fault: believed(&reported.fault), looked: reported.looked, lasted });
        }
    }
    // Where a report names a fault twice, the more doubtful entry counts, whatever the order.
    all.sort_by(|a, b| {
        (&a.fault.id, a.fault.state, Reverse(a.looked), a.lasted, a.fault.severity, &a.fault.message).cmp(&(
            &b.fault.id,
            b.fault.state,
            Reverse(b.looked),
            b.lasted,
            b.fault.severity,
            &b.fault.message,
        ))
    });
    all.dedup_by(|later, first| later.fault.id == first.fault.id);
    all.sort_by(|a, b| Fault::by_urgency(&a.fault, &b.fault));
    all.truncate(MAX_FAULTS);
    if facts.view.is_some() {
        let own = cluster_faults(facts, &all, now);
        all.extend(own);
        all.sort_by(|a, b| Fault::by_urgency(&a.fault, &b.fault));
    }
    all
}

/// Returns the fault as it counts. A node that reports more than the worst severity of the kind gains no priority by that.
fn believed(reported: &Fault) -> Cow<'_, Fault> {
    let worst = reported.kind.spec().worst_severity;
    if reported.severity <= worst {
        return Cow::Borrowed(reported);
    }
    Cow::Owned(Fault { severity: worst, ..reported.clone() })
}

/// Returns the faults that show only in the API.
fn cluster_faults<'a>(facts: &NodeContext<'_>, probe: &[ObservedFault<'a>], now: Timestamp) -> Vec<ObservedFault<'a>> {
    let reported: Vec<&Fault> = probe.iter().map(|seen| seen.fault.as_ref()).collect();
    let mut own: Vec<ObservedFault<'a>> = stuck::stuck_pods(now, &facts.pods, &reported)
        .into_iter()
        .map(|fault| {
            let uid = fault.subject.pod.as_ref().map(|pod| pod.uid.as_str());
            let read = facts.pods.iter().filter(|pod| Some(pod.pod.uid.as_str()) == uid).map(|pod| pod.read).max();
            let lasted = Duration::from_secs(fault.duration_seconds);
            ObservedFault { looked: read.unwrap_or(Duration::MAX), lasted, fault: Cow::Owned(fault) }
        })
        .collect();
    own.extend(of_kubelet(facts, &reported, now));
    own.extend(conditions::seen(facts));
    own.extend(facts.flap.and_then(|flap| {
        let (fault, lasted) = flap.fault(facts.name).zip(flap.flapping)?;
        // The controller watches the Node, so it has the last written state.
        Some(ObservedFault { looked: Duration::ZERO, lasted, fault: Cow::Owned(fault) })
    }));
    if let (Probe::Silent, Some(arrived)) = (facts.probe, facts.arrived()) {
        let fault = probe_not_reporting::fault(facts.name, now, arrived);
        own.push(ObservedFault { fault: Cow::Owned(fault), looked: Duration::ZERO, lasted: arrived });
    }
    own
}

/// Returns the faults of the kubelet that show in what it writes, and does not write, into its Node.
fn of_kubelet<'a>(
    facts: &NodeContext<'_>,
    reported: &[&Fault],
    now: Timestamp,
) -> impl Iterator<Item = ObservedFault<'a>> {
    let process = facts.own_report().map(|report| &report.kubelet);
    // Nothing is known of a process that nobody checks any more. One missed heartbeat does not void what is known: the controller
    // watches the Node all the while.
    let looked_at = process.filter(|_| facts.probe != Probe::Silent);
    let blocked = facts.view.zip(looked_at).and_then(|(view, process)| {
        let fault = kubelet::start_blocked(facts.name, view, process, reported)?;
        Some((fault, process.looked))
    });
    let stalled = facts.view.and_then(|view| kubelet::pleg_stalled(facts.name, view, process, reported));
    let all = blocked.into_iter().chain(stalled.map(|fault| (fault, Duration::ZERO)));
    all.map(move |(fault, looked)| ObservedFault {
        looked,
        lasted: kubelet::lasted(&fault, now),
        fault: Cow::Owned(fault),
    })
}

/// Plans a wake-up for the times at which something about the node may change by time alone.
fn plan_wake(facts: &NodeContext<'_>, wake: &mut Wake) {
    if let Some(heartbeat) = facts.own_report().and_then(|report| report.heartbeat.as_ref()) {
        let (missed, silent) = bounds(heartbeat);
        wake.when_past(missed, heartbeat.arrived);
        wake.when_past(silent, heartbeat.arrived);
    }
    if let Some(process) = facts.own_report().map(|report| &report.kubelet)
        && let Some(seen) = process.unfinished
    {
        wake.when_past(kubelet_start_blocked::AGE, process.age);
        wake.when_past(kubelet_start_blocked::SEEN, seen);
    }
    // Time alone makes no pod more stuck, but what the controller has read of it gets stale.
    for pod in facts.pods.iter().filter(|pod| stuck::pattern(pod).is_some()) {
        wake.when_past(stuck::FRESH, pod.read);
    }
}
