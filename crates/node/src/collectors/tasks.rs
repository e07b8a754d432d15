//! The collector of single tasks. It asks for a suspect at once, then at a fixed interval and in time for each reading that
//! counts. It asks for all other tasks in turn. When a check is requested, it asks for all tasks at once.
//!
//! Behind containerd, one question a round (`Tasks/List`) reaches all shims. A task that is missing in the answer is a suspect.
//! While no such answer comes, the collector asks for all tasks one by one.
//!
//! containerd bounds its own wait for a shim. Docker and CRI-O have no such bound: where they wait for a locked container, they
//! wait for ever. A question without any answer may also mean that the daemon itself is stuck while every shim is well. So it
//! counts against its task only once the daemon has answered another question that was sent after the deadline of this one.
//! Where no other question is out, the collector sends a control question.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::pace::{Pace, Paces};
use super::slot::Failure;
use nrh_core::observation::{
    ContainerState, ListRound, ProcessRole, ProcessSeen, ProcessTable, Reading, RuntimeKind, TaskAnswer,
    is_unresponsive_state,
};
use nrh_core::text::is_full_id;
use nrh_core::thresholds::task_interval;

mod entry;
mod questions;

use entry::Entry;
pub(super) use questions::run;

/// Maximum number of questions out that are not past their deadline.
const MAX_FRESH: usize = 4;
/// Maximum number of questions out.
const MAX_OUT: usize = 16;
/// Wait between two control questions, and the deadline of each.
const CONTROL: Duration = Duration::from_secs(5);
/// Maximum number of tasks that the collector watches; far above what a kubelet allows.
const MAX_TASKS: usize = 8192;
/// Minimum time between two questions to one suspect when a check is requested.
const SUSPECT_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two questions to other tasks when a check is requested: 250 tasks take 5 s.
const REQUESTED_INTERVAL: Duration = Duration::from_millis(20);
/// How long the question for all tasks may stay out. containerd waits 2 s for each shim that gives no answer.
const LIST_BOUND: Duration = Duration::from_secs(20);
/// Minimum time that containerd waits for one shim (`io.containerd.timeout.task.state`). When containerd reports silence, the
/// shim has been silent for at least this long.
const SHIM_WAIT: Duration = Duration::from_secs(2);
/// All existing tasks, and which of them are suspects.
#[derive(Debug)]
pub(super) struct Table {
    /// The intervals and deadlines of questions to containerd, and to Docker and CRI-O.
    paces: (Pace, Pace),
    /// Time between two readings of a silent task that both count.
    counted: Duration,
    /// The runtime to ask, as far as known.
    kind: RuntimeKind,
    entries: BTreeMap<String, Entry>,
    suspects: BTreeSet<String>,
    /// Sandboxes whose shim is stopped.
    stopped: BTreeSet<String>,
    /// Ids of shims that may be left over: they are, if containerd does not know their task.
    left_over: BTreeSet<String>,
    /// When a task that is no suspect was asked for last.
    turn: Option<Instant>,
    /// When one question asked for all tasks last; whether that question is out, and whether the last one was answered.
    listed: Option<Instant>,
    list_is_out: bool,
    list_works: bool,
    /// When the newest question that the task service has answered was sent.
    alive: Option<Instant>,
    /// When the last control question was sent.
    control: Option<Instant>,
}

impl Table {
    pub(super) const fn new(paces: &Paces) -> Self {
        Self {
            paces: (paces.tasks, paces.inspect),
            counted: paces.counted,
            kind: RuntimeKind::Unknown,
            entries: BTreeMap::new(),
            suspects: BTreeSet::new(),
            stopped: BTreeSet::new(),
            left_over: BTreeSet::new(),
            turn: None,
            listed: None,
            list_is_out: false,
            list_works: false,
            alive: None,
            control: None,
        }
    }

    /// Whether the runtime answers questions about single tasks at all.
    const fn serves(&self) -> bool {
        matches!(self.kind, RuntimeKind::Containerd | RuntimeKind::Docker | RuntimeKind::CriO)
    }

    fn pace(&self) -> Pace {
        if self.kind.answers_itself() { self.paces.1 } else { self.paces.0 }
    }

    pub(super) fn readings(&self, now: Instant) -> BTreeMap<String, Reading<TaskAnswer>> {
        let asked = self.entries.iter().filter(|(_, entry)| entry.ended.is_some() || entry.slot.is_out());
        asked.map(|(id, entry)| (id.clone(), self.reading(entry, now))).collect()
    }

    /// See [`Slot::was_suspended`].
    pub(super) fn was_suspended(&mut self, slept: Duration) {
        self.entries.values_mut().for_each(|entry| entry.slot.was_suspended(slept));
    }

    fn reading(&self, entry: &Entry, now: Instant) -> Reading<TaskAnswer> {
        match entry.slot.reading(now) {
            Reading::Hung { out } if !self.is_proven(entry, now) => {
                let out = out.as_secs();
                let who = match self.kind {
                    RuntimeKind::Docker => "Docker",
                    RuntimeKind::CriO => "CRI-O",
                    _ => "containerd",
                };
                let error = format!("out for {out} s, and {who} has answered no other question since it was due");
                Reading::Failed { error, age: Duration::ZERO }
            }
            reading => reading,
        }
    }

    /// Whether the daemon has answered a question that was sent after the deadline of this one. The time at which this process
    /// reads an answer proves nothing: the answer may have waited for this process.
    fn is_proven(&self, entry: &Entry, now: Instant) -> bool {
        entry.slot.due_since(now).is_some_and(|due| self.alive.is_some_and(|alive| alive >= due))
    }

    /// When a control question is due; `None` while nothing depends on its answer.
    fn control_due(&self, now: Instant) -> Option<Instant> {
        let unproven = self.entries.values().filter(|entry| !self.is_proven(entry, now));
        let due = unproven.filter_map(|entry| entry.slot.due_since(now)).min()?;
        Some(self.control.map_or(due, |sent| due.max(sent + CONTROL)))
    }

    fn has_room(&self, now: Instant) -> bool {
        let out = || self.entries.values().filter(|entry| entry.slot.is_out());
        out().count() < MAX_OUT && out().filter(|entry| entry.slot.due_since(now).is_none()).count() < MAX_FRESH
    }

    pub(super) fn out(&self) -> usize {
        self.entries.values().filter(|entry| entry.slot.is_out()).count()
    }

    /// Sets the suspects. Returns whether they changed.
    pub(super) fn suspect(&mut self, ids: BTreeSet<String>) -> bool {
        std::mem::replace(&mut self.suspects, ids) != self.suspects
    }

    /// Sets the kind of runtime to ask. Returns whether it changed.
    pub(super) fn serve(&mut self, kind: RuntimeKind) -> bool {
        let changed = std::mem::replace(&mut self.kind, kind) != kind;
        if changed {
            // Answers of another runtime, past and future, are about other tasks.
            self.entries.clear();
            (self.alive, self.listed, self.list_works) = (None, None, false);
        }
        changed
    }

    /// Takes over what the process table shows of shims. Returns whether the set of stopped ones changed.
    pub(super) fn note(&mut self, table: &ProcessTable) -> bool {
        self.left_over = table.processes.iter().filter_map(left_over_shim).collect();
        let stopped = table.processes.iter().filter_map(stopped_shim).collect();
        std::mem::replace(&mut self.stopped, stopped) != self.stopped
    }

    /// Takes over what the runtime lists. Returns whether anything changed.
    pub(super) fn update_targets(&mut self, round: &ListRound) -> bool {
        // Docker cannot say which other client such a shim may belong to.
        let left_over = if self.kind == RuntimeKind::Containerd { self.left_over.clone() } else { BTreeSet::new() };
        let mut wanted = if self.serves() { wanted(round, self.kind) } else { BTreeMap::new() };
        for id in &left_over {
            wanted.entry(id).or_insert(id);
        }
        let deadline = self.pace().deadline;
        let before = self.entries.len();
        // A question that is out stays known until it ends. Otherwise it could be sent twice.
        self.entries.retain(|id, entry| entry.slot.is_out() || wanted.contains_key(id.as_str()));
        let mut changed = self.entries.len() != before;
        for (id, sandbox) in wanted {
            if self.entries.len() >= MAX_TASKS || self.entries.contains_key(id) {
                continue;
            }
            changed = true;
            self.entries.insert(id.to_owned(), Entry::new(sandbox, deadline));
        }
        changed
    }

    fn is_suspect(&self, id: &str, entry: &Entry) -> bool {
        entry.unresponsive
            || entry.missing
            || self.suspects.contains(id)
            || self.suspects.contains(&entry.sandbox)
            || self.stopped.contains(&entry.sandbox)
            || self.stopped.contains(id)
    }

    /// The next question, and when it is due: the most overdue suspect, else the task whose turn it is.
    fn next(&self, now: Instant, asked: Option<Instant>) -> Option<(Instant, String)> {
        let pace = self.pace();
        let free = || self.entries.iter().filter(|(_, entry)| !entry.slot.is_out());
        let suspect = free()
            .filter(|(id, entry)| self.is_suspect(id, entry))
            .map(|(id, entry)| (entry.suspect_due(now, asked, pace.urgent, self.counted), id.clone()))
            .min();
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX).max(1);
        let interval = self.round().checked_div(count).unwrap_or_default();
        // Tasks that the answer to the question for all has shown to respond have had their turn.
        let own_wait = |entry: &Entry| {
            let least = if self.list_works { self.round() + LIST_BOUND } else { Duration::ZERO };
            entry.own_wait(pace).max(least)
        };
        let after = |interval| self.turn.map_or(now, |turn| turn + interval);
        let other = free()
            .filter(|(id, entry)| !self.is_suspect(id, entry))
            .min_by_key(|(_, entry)| entry.ended.map(|ended| ended + own_wait(entry)))
            .map(|(id, entry)| {
                let own = entry.ended.map(|ended| ended + own_wait(entry));
                let is_requested = entry.abandoned == 0 && asked.is_some_and(|asked| entry.ended < Some(asked));
                let due = if is_requested {
                    after(REQUESTED_INTERVAL)
                } else {
                    own.into_iter().fold(after(interval), Instant::max)
                };
                (due, id.clone())
            });
        match (suspect, other) {
            (Some(suspect), Some(other)) if suspect.0 <= now || suspect.0 <= other.0 => Some(suspect),
            (Some(suspect), None) => Some(suspect),
            (_, other) => other,
        }
    }

    fn sent(&mut self, id: &str, now: Instant) {
        let suspected = self.entries.get(id).is_some_and(|entry| self.is_suspect(id, entry));
        if !suspected {
            self.turn = Some(now);
        }
        if let Some(entry) = self.entries.get_mut(id) {
            entry.slot.sent(now);
            entry.missing = false;
        }
    }

    /// The time in which all tasks are asked for.
    fn round(&self) -> Duration {
        let tasks = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.pace().rest.max(task_interval(self.kind).min(self.pace().rest).saturating_mul(tasks))
    }

    /// When one question asks for all tasks; never while such a question is out. `asked` is the last time at which a check was
    /// requested.
    fn list_due(&self, now: Instant, asked: Option<Instant>) -> Option<Instant> {
        if self.list_is_out
            || self.entries.is_empty()
            || !matches!(self.kind, RuntimeKind::Containerd | RuntimeKind::Docker)
        {
            return None;
        }
        let Some(listed) = self.listed else { return Some(now) };
        Some(if asked > Some(listed) { listed + SUSPECT_INTERVAL } else { listed + self.round() })
    }

    /// Records whose shims have answered, `now`, the question that was sent at `sent`. Returns whether anything changed.
    fn answered(&mut self, answered: &BTreeSet<String>, sent: Instant, now: Instant) -> bool {
        if !self.entries.keys().any(|id| answered.contains(id)) {
            // All shims are unresponsive, or it is another containerd: the collector asks for each task alone in its turn.
            return false;
        }
        self.alive = self.alive.max(Some(sent));
        // Docker's own state of a container is asked for alone.
        let is_enough = self.kind == RuntimeKind::Containerd;
        self.list_works = is_enough;
        // An answer that came at once did not wait for any shim.
        let silent = if now >= sent + SHIM_WAIT { SHIM_WAIT } else { Duration::ZERO };
        let mut news = false;
        let asked_before =
            self.entries.iter().filter(|(_, entry)| !entry.slot.is_out() && entry.ended.is_none_or(|at| at < sent));
        let ids: Vec<String> = asked_before.map(|(id, _)| id.clone()).collect();
        for id in ids {
            if answered.contains(&id) {
                if is_enough {
                    // Its shim may have answered any time since then. The oldest time counts.
                    news |= self.ended(&id, sent, Ok(TaskAnswer::Answered), sent);
                }
            } else if let Some(entry) = self.entries.get_mut(&id).filter(|entry| !entry.unresponsive) {
                // A task that is known to be silent is asked for when its answer counts.
                (entry.missing, entry.silent) = (true, silent);
                news = true;
            }
        }
        news
    }

    /// Records the end of one question. Returns whether anything changed.
    fn ended(&mut self, id: &str, sent: Instant, result: Result<TaskAnswer, Failure>, now: Instant) -> bool {
        if result.is_ok() {
            self.alive = self.alive.max(Some(sent));
        }
        self.entries.get_mut(id).is_some_and(|entry| entry.ended(sent, result, now, self.counted))
    }

    /// Updates the time that each question has been out. Returns how long this process was delayed meanwhile, and whether a
    /// question has passed its deadline since the last call.
    fn count(&mut self, now: Instant) -> (Duration, bool) {
        let (mut held_up, mut passed) = (Duration::ZERO, false);
        for slot in self.entries.values_mut().map(|entry| &mut entry.slot) {
            let was_within = slot.next_count().is_some();
            held_up = held_up.max(slot.count(now));
            passed |= was_within && slot.next_count().is_none();
        }
        (held_up, passed)
    }

    fn next_count(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.slot.next_count()).min()
    }
}

/// The tasks to ask about, with their sandbox: those of running containers, and of ready sandboxes in which nothing runs (their
/// shim is the same process, so one question is enough). With Docker, each object is asked about alone, also a container that
/// is created: its start may have failed. With CRI-O, each container is: CRI-O has another question for sandboxes.
fn wanted(round: &ListRound, kind: RuntimeKind) -> BTreeMap<&str, &str> {
    let in_state =
        |state: ContainerState| round.containers.iter().filter(move |seen| seen.state == state && seen.pod.is_some());
    let running = in_state(ContainerState::Running);
    let ready = round.sandboxes.iter().filter(|seen| seen.ready).map(|seen| seen.id.as_str());
    match kind {
        RuntimeKind::CriO => running.map(|seen| (seen.id.as_str(), seen.id.as_str())).collect(),
        RuntimeKind::Docker => {
            let containers = running.chain(in_state(ContainerState::Created)).map(|seen| seen.id.as_str());
            containers.chain(ready).map(|id| (id, id)).collect()
        }
        _ => {
            let mut wanted: BTreeMap<&str, &str> =
                running.map(|seen| (seen.id.as_str(), seen.sandbox_id.as_str())).collect();
            let busy: BTreeSet<&str> = wanted.values().copied().collect();
            wanted.extend(ready.filter(|id| !busy.contains(id)).map(|id| (id, id)));
            wanted
        }
    }
}

/// The id that a stopped shim, or CRI-O's monitor, serves. A stopped process gives no answer, so the collector asks for its
/// tasks at once.
fn stopped_shim(process: &ProcessSeen) -> Option<String> {
    match &process.role {
        ProcessRole::Shim { id, .. } | ProcessRole::Monitor { id, .. } if is_unresponsive_state(process.state) => {
            Some(id.clone())
        }
        _ => None,
    }
}

/// The id of a shim that may be left over: old, without parent or child, and not stopped (a stopped one is evidence by itself).
/// It counts from the default age on, which no configuration shortens.
fn left_over_shim(process: &ProcessSeen) -> Option<String> {
    match &process.role {
        ProcessRole::Shim { id, living_children: 0 }
            if process.parent == 1
                && process.state != 'T'
                && process.age >= nrh_core::faults::leaked_shim::AGE.shipped
                && is_full_id(id) =>
        {
            Some(id.clone())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
