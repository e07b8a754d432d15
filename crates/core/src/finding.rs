//! What one pass over one set of observations has to say of each kind of fault: what was seen (sightings, each backed by one
//! check), where it was checked for and not found (absence counts), and where nobody could check (which proves nothing either way).

mod component;
mod naming;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fault::{FaultType, MAX_LINE, Severity, Subject, Target};
use crate::observation::{ListRound, Observations, Part, ProcessSeen, ProcessTable, Reading, RuntimeKind};
use crate::reason::ConditionReason;
use crate::text::bounded;
use crate::thresholds::{Confirm, Confirmation, STILL, Thresholds};

pub(crate) use component::Component;
pub(crate) use naming::{bounded_pod, container_of, describe, evidence, of_pod, pod_of, process_ref, short, unproven};

/// An answer older than this proves nothing about now: its collector looks far more often.
pub(crate) const STALE: Duration = Duration::from_mins(3);
/// The API server's clock is seen with each report, and at rest those are five minutes apart.
pub(crate) const CLOCK_STALE: Duration = Duration::from_mins(20);
/// The kubelet's own port is asked every ten minutes while all is well: each look costs the API server questions.
pub(crate) const PORT_STALE: Duration = Duration::from_mins(25);
/// Most ids asked for in one go.
pub(crate) const MAX_ASK: usize = 64;

/// When a thing that is seen does harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Whenever it is there.
    Always,
    /// Only while the kubelet is down and none has completed a start since it was first seen. Otherwise it
    /// is the dead instance that a live kubelet keeps for `logs --previous`, and no fault at all.
    WithoutKubelet,
}

/// What holds instead while the kubelet is confirmed down and none has completed a start since the thing
/// was first seen: nothing else creates or removes containers then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithoutKubelet {
    /// What confirms it then.
    pub confirm: Confirmation,
    /// How bad it is then.
    pub severity: Severity,
    /// What it does to the node then.
    pub impact: String,
}

/// One fault as one look shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// What is wrong.
    pub kind: FaultType,
    /// What stays the same for as long as it is the same fault; never a pid.
    pub key: String,
    /// False = a first sign that counts towards nothing until a direct look agrees.
    pub certain: bool,
    /// When it does harm.
    pub harm: Harm,
    /// How bad it is.
    pub severity: Severity,
    /// The object.
    pub subject: Subject,
    /// What an act would touch.
    pub target: Target,
    /// One sentence. It holds no figure that changes by itself: reports are written when it changes.
    pub message: String,
    /// What it does to the node or its pods.
    pub impact: String,
    /// What was seen, one fact a line.
    pub evidence: Vec<String>,
    /// The moment of the look behind it, on the node's monotonic clock. One look counts once.
    pub looked: Duration,
    /// From when on that look shows it, on the same clock: of a question without an answer when it was sent.
    pub since: Duration,
    /// What confirms it.
    pub confirm: Confirmation,
    /// What holds instead without a kubelet.
    pub without_kubelet: Option<WithoutKubelet>,
}

/// What a look says of a fault that it does not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was looked for and is not there.
    Clean {
        /// The moment of the look.
        looked: Duration,
    },
    /// Nobody could look: neither confirms nor clears.
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

    /// Clean at this look, unless something was left unseen in it.
    pub(crate) fn clean_unless(unseen: Option<&str>, looked: Duration) -> Self {
        unseen.map_or(Self::Clean { looked }, |why| Self::unknown(ConditionReason::CheckFailed, why))
    }

    /// Clean at this look, where it was had.
    pub(crate) fn clean_at<T>(look: Result<(&T, Duration), Self>) -> Self {
        look.map_or_else(|verdict| verdict, |(_, looked)| Self::Clean { looked })
    }

    /// Of one object: it was looked at, and is neither sick nor clean yet. No gap of the condition.
    pub(crate) fn undecided(detail: &str) -> Self {
        Self::unknown(ConditionReason::NotYetChecked, detail)
    }
}

/// How well one kind of fault was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Objects with a verdict of their own, by key.
    pub named: BTreeMap<String, Verdict>,
    /// All others.
    pub others: Verdict,
}

impl Coverage {
    pub(crate) fn new(others: Verdict) -> Self {
        Self { named: BTreeMap::new(), others }
    }

    /// The verdict on the object with this key.
    pub fn of(&self, key: &str) -> &Verdict {
        self.named.get(key).unwrap_or(&self.others)
    }

    /// The first thing that kept us from looking everywhere, if anything did.
    pub fn gap(&self) -> Option<(ConditionReason, &str)> {
        std::iter::once(&self.others).chain(self.named.values()).find_map(|verdict| match verdict {
            Verdict::Clean { .. } => None,
            Verdict::Unknown { reason, detail } => Some((*reason, detail.as_str())),
        })
    }
}

/// What is known of the kubelet's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KubeletStart {
    /// Whether one runs and has completed its start; `None` = starting, or nobody could look.
    pub started: Option<bool>,
    /// When the process that has completed its start was begun, on the monotonic clock.
    pub completed: Option<Duration>,
    /// The moment of the look at whether a process runs; `None` = nobody could look.
    pub looked: Option<Duration>,
    /// When the process that runs was begun; `None` = none runs, or nobody could look.
    pub began: Option<Duration>,
    /// Whether a sandbox of a pod has been made since.
    pub creates_pods: bool,
}

/// The kubelets that were seen lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kubelets {
    /// How many processes.
    pub begun: u32,
    /// How many of them have completed their start.
    pub completed: u32,
    /// The longest time for which any of them was seen, the newest aside.
    pub longest: Duration,
}

/// What was learned before this look and matters to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// A process of the runtime, a shim or a kubelet has been seen since it booted: the process table is the
    /// node's. Without `hostPID` a pod sees only itself, and no kubelet there means nothing.
    pub host_processes: bool,
    /// Every running container's task has been asked once since the node booted. Before that, a container about
    /// which nothing is said may be the one that hangs.
    pub tasks: bool,
    /// The kubelets that were seen lately.
    pub kubelets: Kubelets,
}

/// What confirms that something hangs, on a node that may be short of something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HangConfirmation {
    /// Of what may only be slow.
    pub slow: Confirmation,
    /// Of what is stopped, or has made no progress for long: that is no slowness, whatever the node is short of.
    pub stuck: Confirmation,
}

/// One pass over one set of observations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check<'a> {
    /// What the collectors saw.
    pub seen: &'a Observations,
    /// What was learned before.
    pub known: Known,
    /// The thresholds that hold now: longer than configured on a node that is short of something.
    pub thresholds: &'a Thresholds,
    /// The thresholds as configured.
    pub configured: &'a Thresholds,
}

impl Check<'_> {
    /// What confirms that something hangs.
    pub fn hangs(&self, of: &Confirm) -> HangConfirmation {
        HangConfirmation { slow: self.thresholds.confirm(of), stuck: self.configured.confirm(of) }
    }
}

impl HangConfirmation {
    /// Of a process whose progress is followed.
    pub(crate) fn of(self, process: &ProcessSeen, thresholds: &Thresholds) -> Confirmation {
        if is_still(process, thresholds) { self.stuck } else { self.slow }
    }
}

/// Whether a process has been seen to make no progress for long.
pub(crate) fn is_still(process: &ProcessSeen, thresholds: &Thresholds) -> bool {
    process.still.is_some_and(|still| still >= thresholds.bound(&STILL))
}

/// Everything one pass has to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What was seen.
    pub sightings: Vec<Sighting>,
    /// How well each kind was looked for.
    pub coverage: BTreeMap<FaultType, Coverage>,
    /// The kubelet's start.
    pub kubelet: KubeletStart,
    /// Containers whose task should be asked at once, most wanted first; bounded.
    pub ask: Vec<String>,
    /// Running containers whose task has not answered within `task_max_age`.
    pub unasked: usize,
    /// Age up to which an answer about one task counts.
    pub task_max_age: Duration,
    /// Whether the process table shows a process that only the node's own table can show.
    pub host_processes: bool,
    /// Work of the runtime that has been under way for suspiciously long, one line each.
    pub in_flight: Vec<String>,
    /// The resource that the node is short of, see [`Pressure::shortage`](super::observation::Pressure::shortage).
    pub shortage: Option<&'static str>,
    /// Whether the last process table shows no daemon of any container runtime.
    pub runtime_gone: bool,
}

impl Findings {
    pub(crate) fn cover(&mut self, kind: FaultType, coverage: Coverage) {
        self.coverage.insert(kind, coverage);
    }

    pub(crate) fn blind(&mut self, kind: FaultType, verdict: Verdict) {
        self.cover(kind, Coverage::new(verdict));
    }

    /// The one object with this key is neither sick nor clean; there is no other.
    pub(crate) fn undecided(&mut self, kind: FaultType, key: &str, looked: Duration, detail: &str) {
        let mut coverage = Coverage::new(Verdict::Clean { looked });
        coverage.named.insert(key.to_owned(), Verdict::undecided(detail));
        self.cover(kind, coverage);
    }

    pub(crate) fn ask(&mut self, id: &str) {
        if self.ask.len() < MAX_ASK && !self.ask.iter().any(|known| known == id) {
            self.ask.push(id.to_owned());
        }
    }
}

/// An answer with the moment of its look, or why there is none.
pub(crate) fn answer<'a, T>(
    look: &'a Reading<T>,
    now: Duration,
    what: &str,
    stale: Duration,
) -> Result<(&'a T, Duration), Verdict> {
    match look {
        Reading::Done { value, age, .. } if *age <= stale => Ok((value, now.saturating_sub(*age))),
        Reading::Done { age, .. } => Err(Verdict::unknown(
            ConditionReason::Stale,
            &format!("the last check of {what} is {} s old", age.as_secs()),
        )),
        Reading::Never => Err(Verdict::unknown(ConditionReason::NotYetChecked, &format!("{what}: not checked yet"))),
        Reading::Hung { .. } => {
            Err(Verdict::unknown(ConditionReason::CheckFailed, &format!("the check of {what} does not come back")))
        }
        Reading::Failed { error, .. } => {
            Err(Verdict::unknown(ConditionReason::CheckFailed, &format!("the check of {what} failed: {error}")))
        }
        Reading::Blind { reason } => {
            Err(Verdict::unknown(ConditionReason::CheckFailed, &format!("cannot check {what}: {reason}")))
        }
    }
}

/// What each kind of runtime can tell differs.
pub(crate) fn kind_not_known() -> Verdict {
    Verdict::unknown(ConditionReason::NotYetChecked, "which runtime it is is not known yet")
}

/// Whether single containers can be asked about at all; else why not.
pub(crate) fn asks_single(kind: RuntimeKind) -> Result<(), Verdict> {
    match kind {
        RuntimeKind::Containerd | RuntimeKind::Docker | RuntimeKind::CriO => Ok(()),
        RuntimeKind::Unknown => Err(kind_not_known()),
        RuntimeKind::Other => {
            let detail = "this runtime has no cheap question about a single container yet";
            Err(Verdict::unknown(ConditionReason::CheckFailed, detail))
        }
    }
}

/// The newest round of lists.
pub(crate) fn lists(seen: &Observations) -> Result<(&ListRound, Duration), Verdict> {
    answer(&seen.lists, seen.now, "the runtime's lists", STALE)
}

/// The process table, where it can be the node's: a runtime that answers runs somewhere.
pub(crate) fn processes(seen: &Observations) -> Result<(&ProcessTable, Duration), Verdict> {
    let (table, looked) = answer(&seen.processes, seen.now, "processes", STALE)?;
    let runs = table.processes.iter().any(|process| process.part == Part::Runtime);
    if !runs && answer(&seen.runtime, seen.now, "the runtime", STALE).is_ok() {
        let detail = table.left_out.processes.as_deref().unwrap_or(
            "the runtime answers, but no process of it is seen: this is not the node's process table (hostPID), or the runtime is of an unknown kind",
        );
        return Err(Verdict::unknown(ConditionReason::CheckFailed, detail));
    }
    Ok((table, looked))
}

/// Absence from a process table is evidence, unless processes of the node's own may be missing from it.
pub(crate) fn absent(table: &ProcessTable, looked: Duration) -> Verdict {
    Verdict::clean_unless(table.left_out.processes.as_deref(), looked)
}

/// Whether the process table shows a process that only the node's own table can show.
pub(crate) fn shows_host_processes(seen: &Observations) -> bool {
    let is_of_host = |part: &Part| matches!(part, Part::Runtime | Part::Shim { .. } | Part::Kubelet);
    processes(seen).is_ok_and(|(table, _)| table.processes.iter().any(|process| is_of_host(&process.part)))
}
