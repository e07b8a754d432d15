//! The result of one pass over one set of observations, for each kind of fault: what was seen (sightings, each backed by one
//! check), where a check found nothing (absence counts), and where nobody could check (which proves nothing either way).

mod naming;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fault::{FaultType, MAX_LINE, Severity, Subject, Target};
use crate::observation::{
    ListRound, Observations, PossibleRole, ProcessRole, ProcessSeen, ProcessTable, Reading, RuntimeKind,
};
use crate::reason::ConditionReason;
use crate::text::bounded;
use crate::thresholds::{Confirm, Confirmation, NO_PROGRESS_TIME, Thresholds};

pub(crate) use naming::{bounded_pod, container_of, describe, evidence, of_pod, phrase, pod_of, process_ref, short};

/// Age from which an answer proves nothing about now. Its collector checks far more often.
pub(crate) const STALE: Duration = Duration::from_mins(3);
/// The same for the API server's clock. Each report brings a reading, and at rest reports are five minutes apart.
pub(crate) const CLOCK_STALE: Duration = Duration::from_mins(20);
/// The same for the kubelet's own port. The probe asks it every ten minutes while all is well, since each check costs requests to
/// the API server.
pub(crate) const PORT_STALE: Duration = Duration::from_mins(25);
/// Most ids asked for in one pass.
pub(crate) const MAX_ASK: usize = 64;

/// When what was seen does harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Whenever it is present.
    Always,
    /// Only while the kubelet is down and none has completed a start since the object was first seen. Otherwise the object is the
    /// dead instance that a live kubelet keeps for `logs --previous`, and no fault at all.
    WithoutKubelet,
}

/// What applies instead while the kubelet is confirmed down and none has completed a start since the object was first seen.
/// Nothing else creates or removes containers then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithoutKubelet {
    /// What confirms the fault then.
    pub confirm: Confirmation,
    /// The severity then.
    pub severity: Severity,
    /// The effect on the node then.
    pub impact: &'static str,
}

/// One fault as one check shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The kind of fault.
    pub kind: FaultType,
    /// The key, which stays the same for as long as the fault is the same. It is never a pid.
    pub key: String,
    /// False = a first sign that counts towards nothing until a direct check agrees.
    pub certain: bool,
    /// When it does harm.
    pub harm: Harm,
    /// The severity.
    pub severity: Severity,
    /// The object.
    pub subject: Subject,
    /// The target of an action.
    pub target: Target,
    /// One sentence. It contains no figure that changes by itself, since a report is written when it changes.
    pub message: String,
    /// The effect on the node or its pods.
    pub impact: &'static str,
    /// What was seen, one fact a line.
    pub evidence: Vec<String>,
    /// The moment of the check behind the sighting, on the node's monotonic clock. One check counts once.
    pub checked: Duration,
    /// From when on that check shows the fault, on the same clock: for a question without an answer, when it was sent.
    pub since: Duration,
    /// What confirms the fault.
    pub confirm: Confirmation,
    /// What applies instead without a kubelet.
    pub without_kubelet: Option<WithoutKubelet>,
}

/// What a check says about a fault that it does not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The check found that the fault is not present.
    Clean {
        /// The moment of the check.
        checked: Duration,
    },
    /// Nobody could check: this neither confirms nor clears.
    Unknown {
        /// Why, from the closed set.
        reason: ConditionReason,
        /// Why, in words.
        detail: String,
    },
}

impl Verdict {
    pub(crate) fn unknown(reason: ConditionReason, detail: &str) -> Self {
        Self::Unknown { reason, detail: bounded(detail, MAX_LINE) }
    }

    /// The check was not possible, or did not succeed.
    pub(crate) fn failed(detail: &str) -> Self {
        Self::unknown(ConditionReason::CheckFailed, detail)
    }

    /// Clean at this check, unless the check left something unseen.
    pub(crate) fn clean_unless(unseen: Option<&str>, checked: Duration) -> Self {
        unseen.map_or(Self::Clean { checked }, Self::failed)
    }

    /// Clean at this check, if the check succeeded.
    pub(crate) fn clean_at<T>(reading: Result<(&T, Duration), Self>) -> Self {
        reading.map_or_else(|verdict| verdict, |(_, checked)| Self::Clean { checked })
    }

    /// Not decided yet: nobody has checked, or what was checked is neither faulty nor clean. Of one object alone it is no gap of the
    /// condition.
    pub(crate) fn undecided(detail: &str) -> Self {
        Self::unknown(ConditionReason::NotYetChecked, detail)
    }
}

/// How completely the probe checked for one kind of fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Objects with a verdict of their own, by key.
    pub named: BTreeMap<String, Verdict>,
    /// The verdict on all other objects.
    pub others: Verdict,
}

impl Coverage {
    pub(crate) fn new(others: Verdict) -> Self {
        Self { named: BTreeMap::new(), others }
    }

    /// The one object with this key is neither faulty nor clean. There is no other object.
    pub(crate) fn undecided(key: &str, checked: Duration, detail: &str) -> Self {
        let named = BTreeMap::from([(key.to_owned(), Verdict::undecided(detail))]);
        Self { named, others: Verdict::Clean { checked } }
    }

    /// Gives the object with this key a verdict of its own.
    pub(crate) fn note(&mut self, key: &str, verdict: Verdict) {
        self.named.insert(key.to_owned(), verdict);
    }

    /// The verdict on the object with this key.
    pub fn of(&self, key: &str) -> &Verdict {
        self.named.get(key).unwrap_or(&self.others)
    }

    /// The first reason, if any, why the probe did not check everywhere.
    pub fn gap(&self) -> Option<(ConditionReason, &str)> {
        std::iter::once(&self.others).chain(self.named.values()).find_map(|verdict| match verdict {
            Verdict::Clean { .. } => None,
            Verdict::Unknown { reason, detail } => Some((*reason, detail.as_str())),
        })
    }
}

/// How completely a detector checked for its kind of fault, or the verdict on all objects where it could not check.
pub(crate) type Detected = Result<Coverage, Verdict>;

/// What is known about the start of the kubelet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KubeletStart {
    /// Whether a kubelet runs and has completed its start; `None` = it is starting, or not checked.
    pub started: Option<bool>,
    /// When the process that has completed its start began, on the monotonic clock.
    pub completed: Option<Duration>,
    /// The moment of the check whether a process runs; `None` = nobody could check.
    pub checked: Option<Duration>,
    /// When the running process began; `None` = none runs, or nobody could check.
    pub began: Option<Duration>,
    /// Whether the runtime has made a sandbox of a pod since.
    pub creates_pods: bool,
}

/// The kubelets that were seen lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kubelets {
    /// The number of processes.
    pub begun: u32,
    /// How many of them have completed their start.
    pub completed: u32,
    /// The longest time for which any of them was seen, except the newest.
    pub longest: Duration,
}

/// What earlier checks found and this check needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// A process of the runtime, a shim or a kubelet has been seen since the node booted, so the process table is the table of
    /// the node. Without `hostPID` a pod sees only itself, and a missing kubelet proves nothing.
    pub host_processes: bool,
    /// The task of every running container has been asked once since the node booted. Before that, a container without an answer
    /// may be the one that hangs.
    pub tasks: bool,
    /// The kubelets that were seen lately.
    pub kubelets: Kubelets,
}

/// What confirms that something hangs, on a node that may be short of a resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HangConfirmation {
    /// The confirmation of what may only be slow.
    pub slow: Confirmation,
    /// The confirmation of what is stopped, or has made no progress for long. That is not slowness, whatever the node is short
    /// of.
    pub stuck: Confirmation,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Check<'a> {
    pub seen: &'a Observations,
    pub known: Known,
    /// The thresholds that apply now. They are longer than configured on a node that is short of a resource.
    pub thresholds: &'a Thresholds,
    pub configured: &'a Thresholds,
}

impl Check<'_> {
    /// What confirms that something hangs.
    pub fn hangs(&self, of: &Confirm) -> HangConfirmation {
        HangConfirmation { slow: self.thresholds.confirm(of), stuck: self.configured.confirm(of) }
    }
}

impl HangConfirmation {
    /// The confirmation for a process whose progress the probe follows.
    pub(crate) fn of(self, process: &ProcessSeen, thresholds: &Thresholds) -> Confirmation {
        if is_still(process, thresholds) { self.stuck } else { self.slow }
    }
}

/// Whether checks have seen the process make no progress for long.
pub(crate) fn is_still(process: &ProcessSeen, thresholds: &Thresholds) -> bool {
    process.still.is_some_and(|still| still >= thresholds.bound(&NO_PROGRESS_TIME))
}

/// The complete result of one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What was seen.
    pub sightings: Vec<Sighting>,
    /// How completely the pass checked for each kind.
    pub coverage: BTreeMap<FaultType, Coverage>,
    /// The start of the kubelet.
    pub kubelet: KubeletStart,
    /// Containers whose task the probe should ask at once, the most urgent first. The list is bounded.
    pub ask: Vec<String>,
    /// Number of running containers whose task has not answered within `task_max_age`.
    pub unasked: usize,
    /// Age up to which an answer about one task counts.
    pub task_max_age: Duration,
    /// Whether the process table shows a process that only the node's own table can show.
    pub host_processes: bool,
    /// Work of the runtime that has been in progress for suspiciously long, one line each.
    pub in_flight: Vec<String>,
    /// The resource that the node is short of, see [`Pressure::shortage`](super::observation::Pressure::shortage).
    pub shortage: Option<&'static str>,
    /// Whether the last process table shows no daemon of any container runtime.
    pub runtime_gone: bool,
    /// Checks of the node itself without a fresh answer, one line each. What they would show can keep a daemon from starting.
    pub silent_checks: Vec<String>,
}

impl Findings {
    pub(crate) fn cover(&mut self, kind: FaultType, coverage: Coverage) {
        self.coverage.insert(kind, coverage);
    }

    /// What is reported is bounded here: names come from the runtime and from processes.
    pub(crate) fn sight(&mut self, seen: Sighting) {
        let message = bounded(&seen.message, MAX_LINE);
        self.sightings.push(Sighting { message, evidence: evidence(seen.evidence), ..seen });
    }

    pub(crate) fn ask(&mut self, id: &str) {
        if self.ask.len() < MAX_ASK && !self.ask.iter().any(|known| known == id) {
            self.ask.push(id.to_owned());
        }
    }
}

/// An answer with the moment of its check, or why there is none.
pub(crate) fn answer<'a, T>(
    reading: &'a Reading<T>,
    now: Duration,
    what: &str,
    stale: Duration,
) -> Result<(&'a T, Duration), Verdict> {
    match reading {
        Reading::Done { value, age, .. } if *age <= stale => Ok((value, now.saturating_sub(*age))),
        Reading::Done { age, .. } => Err(Verdict::unknown(
            ConditionReason::Stale,
            &format!("the last check of {what} is {} s old", age.as_secs()),
        )),
        Reading::Never => Err(Verdict::undecided(&format!("{what}: not checked yet"))),
        Reading::Hung { .. } => Err(Verdict::failed(&format!("the check of {what} does not come back"))),
        Reading::Failed { error, .. } => Err(Verdict::failed(&format!("the check of {what} failed: {error}"))),
        Reading::Unavailable { reason } => Err(Verdict::failed(&format!("cannot check {what}: {reason}"))),
    }
}

/// The verdict while the kind of the runtime is not known: each kind can report different things.
pub(crate) fn kind_not_known() -> Verdict {
    Verdict::undecided("which runtime it is is not known yet")
}

/// Whether the probe can ask about single containers at all; else why not.
pub(crate) fn asks_single(kind: RuntimeKind) -> Result<(), Verdict> {
    match kind {
        RuntimeKind::Containerd | RuntimeKind::Docker | RuntimeKind::CriO => Ok(()),
        RuntimeKind::Unknown => Err(kind_not_known()),
        RuntimeKind::Other => Err(Verdict::failed("this runtime has no cheap question about a single container yet")),
    }
}

pub(crate) fn lists(seen: &Observations) -> Result<(&ListRound, Duration), Verdict> {
    answer(&seen.lists, seen.now, "the runtime's lists", STALE)
}

/// The process table, if it can be the table of the node: a runtime that answers has a process somewhere.
pub(crate) fn processes(seen: &Observations) -> Result<(&ProcessTable, Duration), Verdict> {
    let (table, checked) = answer(&seen.processes, seen.now, "processes", STALE)?;
    let runs = table.processes.iter().any(|process| process.role == ProcessRole::Runtime);
    if !runs && answer(&seen.runtime, seen.now, "the runtime", STALE).is_ok() {
        let detail = table.left_out.processes.as_deref().unwrap_or(
            "the runtime answers, but no process of it is seen: this is not the node's process table (hostPID), or the runtime is of an unknown kind",
        );
        return Err(Verdict::failed(detail));
    }
    Ok((table, checked))
}

/// Whether the process may be a daemon of a runtime of this kind. A node may have another runtime, for which no kubelet runs.
pub(crate) fn is_daemon_of(kind: RuntimeKind, process: &ProcessSeen) -> bool {
    let is_named = |name| process.command.starts_with(name);
    process.role == ProcessRole::Runtime
        && match kind {
            RuntimeKind::Containerd => is_named("containerd"),
            RuntimeKind::CriO => is_named("crio"),
            RuntimeKind::Unknown | RuntimeKind::Docker | RuntimeKind::Other => true,
        }
}

/// The verdict on a process that is missing from the table. Absence is evidence, unless the table may lack processes of the node.
pub(crate) fn absent(table: &ProcessTable, checked: Duration) -> Verdict {
    Verdict::clean_unless(table.left_out.processes.as_deref(), checked)
}

/// The same for a process of this role and of at least this age: an unproven process may be the one that is missing.
pub(crate) fn absent_of(role: PossibleRole, age: Duration, table: &ProcessTable, checked: Duration) -> Verdict {
    let unproven = table.unproven.iter().find(|process| process.possible_role == role && process.age >= age);
    unproven.map_or_else(|| absent(table, checked), naming::unproven)
}

/// Whether the process table shows a process that only the node's own table can show.
pub(crate) fn shows_host_processes(seen: &Observations) -> bool {
    let is_of_host =
        |role: &ProcessRole| matches!(role, ProcessRole::Runtime | ProcessRole::Shim { .. } | ProcessRole::Kubelet);
    processes(seen).is_ok_and(|(table, _)| table.processes.iter().any(|process| is_of_host(&process.role)))
}
