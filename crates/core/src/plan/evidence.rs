//! What is known of one node at this moment, and how much it counts.

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

/// How the probe of a node stands.
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
    /// It has missed three.
    Silent,
}

/// A fault with the ages that rules ask for.
#[derive(Clone, Debug)]
pub(super) struct ObservedFault<'a> {
    pub fault: Cow<'a, Fault>,
    /// Time since the last look at it.
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
    /// All faults, most urgent first, the controller's own too.
    pub seen: Vec<ObservedFault<'a>>,
    /// Pods of every suspect DaemonSet here.
    pub pods: Vec<&'a SuspectPod>,
    /// Time since all DaemonSet pods of the node were read.
    pub pods_read: Option<Duration>,
    /// What rules may ask about its pods and about itself.
    pub around: MatchContext<'a>,
    /// Conditions that stand on it as some policy asks for them.
    pub noticed: &'a [ObservedCondition],
    /// Its changes of late, if there were several.
    pub flap: Option<&'a FlapView>,
    /// Whether it does not flap, by what was seen of it.
    pub stable: TriState,
    /// The policies that select the node, the one that goes first before the others.
    pub policies: Vec<&'a Policy>,
    /// Open remediations, oldest first.
    pub open: Vec<&'a Remediation>,
    /// Finished remediations, oldest first.
    pub finished: Vec<&'a Remediation>,
    /// Of those, what ended on this very node within the memory of failures.
    pub recent: Vec<&'a Remediation>,
    /// A remediation that has the node and cannot be read.
    pub unreadable: Option<Unreadable<'a>>,
}

/// What is known of every node that is named anywhere, by its name. Each stays where it is while the map is made.
pub(super) type Nodes<'a> = BTreeMap<&'a str, Box<NodeContext<'a>>>;

/// Whether a fault of a remediation is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClearCheck {
    /// Gone, by a clean look.
    Clean,
    /// Still there.
    Present,
    /// Nobody could look since.
    Unknown,
}

/// Ages of a heartbeat past which one is missed, and three are.
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
    /// The policy that heals this fault: of those with a rule for it, the one that goes first. A policy without a
    /// rule for a fault does not keep it from those that have one, and a dry run not from those that act. One of which nobody
    /// knows whether it has a rule keeps it like one that has.
    pub fn policy_for(&self, fault: &Fault) -> Option<&'a Policy> {
        let acts = self.with_rule(fault).find(|policy| policy.mode == Mode::Enforce);
        acts.or_else(|| self.with_rule(fault).next()).or_else(|| self.policies.first().copied())
    }

    /// The dry run that would heal this fault in the place of the policy that does, if it acted.
    pub fn trial_for(&self, fault: &Fault, heals: &Policy) -> Option<&'a Policy> {
        self.with_rule(fault).next().filter(|first| heals.mode == Mode::Enforce && first.name != heals.name)
    }

    fn with_rule(&self, fault: &Fault) -> impl Iterator<Item = &'a Policy> {
        self.policies.iter().copied().filter(move |policy| self.rule_of(policy, fault).is_some())
    }

    /// The rule of a policy for a fault of this node.
    pub fn rule_of<'p>(&self, policy: &'p Policy, fault: &Fault) -> RuleMatch<'p> {
        policy.rule_for(fault, &self.around)
    }

    /// Another policy than that, if it surely heals this fault in its place. Neither a dry run nor one of which nobody knows takes
    /// away what has begun.
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

    /// The report, where it is about this very node, however old it is.
    pub fn own_report(&self) -> Option<&'a ReportView> {
        self.report.filter(|_| self.owns_report())
    }

    /// The order that stands, to whichever node of that name.
    pub fn order(&self) -> Option<&'a ActionCommand> {
        self.command?.order.as_ref()
    }

    /// The order that stands, where it is to this very node.
    pub fn own_command(&self) -> Option<&'a ActionCommand> {
        let uid = &self.view?.uid;
        self.command.filter(|command| command.node_uid.as_ref() == Some(uid))?.order.as_ref()
    }

    /// What was really done on nodes of that name, as far as it is kept.
    fn real(&self) -> impl Iterator<Item = &Remediation> {
        self.open.iter().chain(&self.finished).copied().filter(|remediation| remediation.mode == Mode::Enforce)
    }

    /// Of that, what was done in the name of that policy.
    pub fn remediations_by(&self, policy: &Policy) -> impl Iterator<Item = &Remediation> {
        self.real().filter(|remediation| remediation.policy == policy.name)
    }

    /// When something that disturbs a node of that name was last over, of what ended within that time.
    pub fn last_served(&self, now: Timestamp, within: Duration) -> Option<Timestamp> {
        let disturbed = |remediation: &&Remediation| remediation.steps.iter().any(|step| step.action.disturbs());
        let ended = self.real().filter(disturbed).filter_map(|remediation| remediation.finished_at);
        ended.filter(|at| since(now, *at) < within).max()
    }

    /// And on this very node.
    pub fn remediations_of(&self, policy: &Policy) -> impl Iterator<Item = &Remediation> {
        let uid = self.view.map(|view| view.uid.as_str());
        self.remediations_by(policy).filter(move |remediation| Some(remediation.node_uid.as_str()) == uid)
    }

    /// What was really done on another Node object of this name, as far as it is kept, and when it ended.
    pub fn on_others_of_its_name(&self) -> impl Iterator<Item = (&Remediation, Timestamp)> {
        let uid = self.view.map(|view| view.uid.as_str());
        let others = self.real().filter(move |remediation| Some(remediation.node_uid.as_str()) != uid);
        others.map(|remediation| (remediation, remediation.finished_at.unwrap_or(remediation.started_at)))
    }

    /// The fault of that id.
    pub fn find(&self, id: &str) -> Option<&ObservedFault<'_>> {
        self.seen.iter().find(|seen| seen.fault.id == id)
    }

    /// Whether a kubelet runs whose start has come to an end, by the word of the Node.
    pub fn kubelet_works(&self) -> bool {
        let (Some(view), Some(report)) = (self.view, self.report) else { return false };
        let started = report.kubelet.began.is_some() && kubelet::unfinished(view, &report.kubelet).is_none();
        started && view.ready == TriState::True
    }

    /// Time since the last report arrived.
    pub fn arrived(&self) -> Option<Duration> {
        self.report.and_then(|report| report.heartbeat.as_ref()).map(|heartbeat| heartbeat.arrived)
    }

    /// Whether a fault of a remediation is gone by a look later than `after`.
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
                // The deleted pod is gone; that its successor has not come yet is no cure.
                let is_back = self.pods.iter().any(|pod| is_of(pod, fault));
                // Nor is it one that none can come.
                let is_kept_away = self.view.is_some_and(|view| view.repels_daemon_sets().is_some());
                let is_awaited = !is_back && (is_kept_away || after.is_some_and(|after| since(now, after) < SUCCESSOR));
                !is_awaited && self.pods_read.is_some_and(|age| age <= fresh && is_later(age))
            }
            ShowsIn::Heartbeats => true,
            // It is not flapping any more only by the history that the controller keeps.
            ShowsIn::History => self.stable == TriState::True && self.arrived().is_some_and(is_later),
            ShowsIn::KubeletStart => self.kubelet_works() && self.arrived().is_some_and(is_later),
            ShowsIn::Ready => {
                self.view.is_some_and(|view| view.ready == TriState::True) && self.arrived().is_some_and(is_later)
            }
            // The watch never goes back: what stands there now was seen later than what was acted upon. That a report has
            // come since proves that the node was there to be written to.
            ShowsIn::Condition => conditions::is_other(self, fault) && self.arrived().is_some_and(is_later),
            // A full report may have left the fault out.
            ShowsIn::Report => {
                let is_full = self.report.is_none_or(|report| report.faults.len() >= MAX_FAULTS);
                // So may a probe that has just begun without its memory, or that lost sight of something.
                let is_blind = self.report.is_none_or(|report| report.unlooked.contains(&fault.kind));
                !is_full && !is_blind && self.arrived().is_some_and(is_later)
            }
        };
        if looked { ClearCheck::Clean } else { ClearCheck::Unknown }
    }
}

/// For how long a deleted pod's successor is awaited: the controller manager may have just lost its leader. A DaemonSet that
/// is gone, or does not want the node any more, makes none.
const SUCCESSOR: Duration = Duration::from_secs(30);

/// Whether it is the stuck pod, or another one of the same DaemonSet on the node.
fn is_of(pod: &SuspectPod, fault: &RemediationFault) -> bool {
    let Some(stuck) = &fault.subject.pod else { return false };
    let same_set = pod.pod.namespace == stuck.namespace && pod.daemon_set == fault.subject.name;
    pod.pod.uid == stuck.uid || same_set
}

/// Whether one of these pods is not well yet.
fn is_unwell(pod: &SuspectPod, fault: &RemediationFault) -> bool {
    is_of(pod, fault) && !pod.is_well()
}

/// Gathers what is known of every node that is named anywhere.
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
            // Whatever order the list had: the same pod must be judged the same.
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

/// Whether a node does not flap. One without a history has had no changes for as long as it was watched.
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
        // A probe has no say in what only the controller can know.
        for reported in report.faults.iter().filter(|r| !r.fault.kind.is_cluster_fault()) {
            let lasted = Duration::from_secs(reported.fault.duration_seconds).saturating_add(arrived);
            all.push(ObservedFault { fault: believed(&reported.fault), looked: reported.looked, lasted });
        }
    }
    // A report that names a fault twice is read with the greater doubt, whatever its order.
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

/// The fault as it counts: a node that says more than its kind can do gets no turn before others by that.
fn believed(reported: &Fault) -> Cow<'_, Fault> {
    let worst = reported.kind.spec().worst_severity;
    if reported.severity <= worst {
        return Cow::Borrowed(reported);
    }
    Cow::Owned(Fault { severity: worst, ..reported.clone() })
}

/// Faults that show only in the API.
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
        // The Node is watched: it is as it was last written.
        Some(ObservedFault { looked: Duration::ZERO, lasted, fault: Cow::Owned(fault) })
    }));
    if let (Probe::Silent, Some(arrived)) = (facts.probe, facts.arrived()) {
        let fault = probe_not_reporting::fault(facts.name, now, arrived);
        own.push(ObservedFault { fault: Cow::Owned(fault), looked: Duration::ZERO, lasted: arrived });
    }
    own
}

/// Faults of the kubelet that show in what it writes, and does not write, into its Node.
fn of_kubelet<'a>(
    facts: &NodeContext<'_>,
    reported: &[&Fault],
    now: Timestamp,
) -> impl Iterator<Item = ObservedFault<'a>> {
    let process = facts.own_report().map(|report| &report.kubelet);
    // Of a process that nobody looks at any more, nothing is known. One missed heartbeat makes nothing undone: the Node
    // is watched all the while.
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

/// When something about the node may change by the mere passing of time.
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
    // By time alone a pod becomes no more stuck, but what was read of it grows old.
    for pod in facts.pods.iter().filter(|pod| stuck::pattern(pod).is_some()) {
        wake.when_past(stuck::FRESH, pod.read);
    }
}
